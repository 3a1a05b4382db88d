//! What goes over a generation's `files.sock`: frames of a JSON header and bytes.
//!
//! ```text
//! u32 length of the header · u32 length of the body · header (one JSON object) · body
//! ```
//! Both lengths are in network order. A peer asks one thing at a time and gets one frame back.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A header names an operation, some numbers, and a file or the mark of each worker.
pub(crate) const HEADER_BYTES_MAX: usize = 256 << 10;
/// What tasks send is small: marks of where they stand. Parts of checkpoints lie in files.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// A frame that has begun must be whole by then, and an answer taken: whoever is slower has no
/// claim on the memory that it holds here.
const FRAME_LIMIT: Duration = Duration::from_secs(20);

/// A frame as it came.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) header: Value,
    pub(crate) body: Vec<u8>,
}

fn malformed(words: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(FRAME_LIMIT, work).await.unwrap_or_else(|_| Err(malformed("too slow")))
}

/// The next frame; none where the peer has closed between two.
///
/// # Errors
/// Where it is too long, too slow or no JSON object, or the socket fails.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    // A connection may be idle for as long as its process lives.
    let first = match stream.read_u8().await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    };
    in_time(rest(first, stream)).await.map(Some)
}

async fn rest(first: u8, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let mut lengths = [first, 0, 0, 0, 0, 0, 0, 0];
    stream.read_exact(&mut lengths[1..]).await?;
    let [a, b, c, d, e, f, g, h] = lengths;
    let length = |bytes| usize::try_from(u32::from_be_bytes(bytes)).unwrap_or(usize::MAX);
    let (header, body) = (length([a, b, c, d]), length([e, f, g, h]));
    if HEADER_BYTES_MAX < header || BODY_BYTES_MAX < body {
        return Err(malformed("longer than a request may be"));
    }
    let mut bytes = vec![0; header];
    stream.read_exact(&mut bytes).await?;
    let header: Value = serde_json::from_slice(&bytes)?;
    if !header.is_object() {
        return Err(malformed("the header is not a JSON object"));
    }
    let mut bytes = vec![0; body];
    stream.read_exact(&mut bytes).await?;
    Ok(Frame { header, body: bytes })
}

/// Sends a frame.
///
/// # Errors
/// Where the peer does not take it in time, or is gone.
pub(crate) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    header: &Value,
    body: &[u8],
) -> io::Result<()> {
    let header = serde_json::to_vec(header)?;
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
    let mut start = Vec::with_capacity(8 + header.len());
    start.extend(length(&header)?.to_be_bytes());
    start.extend(length(body)?.to_be_bytes());
    start.extend(&header);
    in_time(async {
        stream.write_all(&start).await?;
        stream.write_all(body).await?;
        stream.flush().await
    })
    .await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn read_of(bytes: &[u8]) -> io::Result<Option<Frame>> {
        read(&mut &*bytes).await
    }

    #[tokio::test]
    async fn what_is_written_is_read() {
        let mut wire = Vec::new();
        write(&mut wire, &json!({"op": "put", "n": 3}), b"abc").await.unwrap();
        write(&mut wire, &json!({}), b"").await.unwrap();
        let mut stream = &*wire;
        let first = read(&mut stream).await.unwrap().unwrap();
        assert_eq!((first.header["n"].as_u64(), &*first.body), (Some(3), &b"abc"[..]));
        assert_eq!(read(&mut stream).await.unwrap().unwrap().body, b"");
        assert_eq!(read(&mut stream).await.unwrap(), None);
    }

    #[tokio::test]
    async fn odd_frames_are_refused() {
        let with = |header: &[u8], claimed: u32, body: u32| {
            let mut wire = claimed.to_be_bytes().to_vec();
            wire.extend(body.to_be_bytes());
            wire.extend(header);
            wire
        };
        for wire in [
            with(b"[]", 2, 0),
            with(b"no json", 7, 0),
            with(b"{}", u32::MAX, 0),
            with(b"{}", 2, u32::MAX),
            with(b"{}", 3, 0),
            with(b"{}", 2, 1),
            vec![0, 0],
        ] {
            read_of(&wire).await.unwrap_err();
        }
    }
}
