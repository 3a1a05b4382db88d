//! Frames on a stream: a length, then that many bytes, never more than the stream's limit.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{self, PREFIX};
use crate::error::{FrameError, Lost};

/// Bytes asked of the transport at once; a frame's buffer grows with what came, not with what
/// its length promises.
const CHUNK_BYTES: usize = 64 * 1024;

/// Puts frames together from pieces of any size.
#[derive(Debug)]
pub(crate) struct Assembler {
    limit: usize,
    prefix: [u8; PREFIX],
    prefix_len: usize,
    /// Length of the frame under way, once its prefix is there.
    length: Option<usize>,
    body: Vec<u8>,
}

impl Assembler {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, prefix: [0; PREFIX], prefix_len: 0, length: None, body: Vec::new() }
    }

    /// Bytes that the present frame lacks, at most a chunk; zero where it is whole.
    pub(crate) fn wanted(&self) -> usize {
        match self.length {
            None => PREFIX - self.prefix_len,
            Some(length) => (length - self.body.len()).min(CHUNK_BYTES),
        }
    }

    /// Takes at most [`Self::wanted`] bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        if self.length.is_some() {
            self.body.extend_from_slice(bytes);
            return Ok(());
        }
        let end = self.prefix_len + bytes.len();
        self.prefix[self.prefix_len..end].copy_from_slice(bytes);
        self.prefix_len = end;
        if end == PREFIX {
            let length = u32::from_le_bytes(self.prefix) as usize;
            if length > self.limit {
                return Err(FrameError::TooLong { bytes: length, limit: self.limit });
            }
            self.length = Some(length);
        }
        Ok(())
    }

    /// The frame's body where it is whole; the next frame starts then.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        if self.length? != self.body.len() {
            return None;
        }
        self.prefix_len = 0;
        self.length = None;
        Some(std::mem::take(&mut self.body))
    }

    /// Says whether the stream may end here.
    pub(crate) fn end(&self) -> Result<(), FrameError> {
        match self.prefix_len + self.body.len() {
            0 => Ok(()),
            bytes => Err(FrameError::Cut { bytes }),
        }
    }
}

/// Reads messages from one direction of a stream.
#[derive(Debug)]
pub struct FrameReader {
    stream: quinn::RecvStream,
    assembler: Assembler,
    /// After an error nothing on the stream can be trusted: it is the answer ever after.
    broken: Option<FrameError>,
}

impl FrameReader {
    pub(crate) fn new(stream: quinn::RecvStream, limit: usize) -> Self {
        Self { stream, assembler: Assembler::new(limit), broken: None }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.assembler.limit = limit;
    }

    /// The next message; none where the peer ended the stream between two frames. May be
    /// dropped while it waits, as in `select!`: what has come is kept for the next call.
    ///
    /// # Errors
    /// Every [`FrameError`] but `Encode`; the stream is of no use afterwards.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(body) = self.receive_bytes().await? else { return Ok(None) };
        match codec::decode(&body) {
            Ok(message) => Ok(Some(message)),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn fail(&mut self, error: FrameError) -> FrameError {
        self.broken = Some(error.clone());
        error
    }

    pub(crate) async fn receive_bytes(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        match self.assemble().await {
            Ok(body) => Ok(body),
            Err(error) => Err(self.fail(error)),
        }
    }

    async fn assemble(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        loop {
            if let Some(body) = self.assembler.take() {
                return Ok(Some(body));
            }
            let chunk = self.stream.read_chunk(self.assembler.wanted(), true).await;
            match chunk.map_err(read_error)? {
                Some(chunk) => self.assembler.push(&chunk.bytes)?,
                None => return self.assembler.end().map(|()| None),
            }
        }
    }
}

fn read_error(error: quinn::ReadError) -> FrameError {
    match error {
        quinn::ReadError::ConnectionLost(error) => FrameError::Lost(error.into()),
        quinn::ReadError::Reset(_) => FrameError::Abandoned,
        quinn::ReadError::ClosedStream
        | quinn::ReadError::IllegalOrderedRead
        | quinn::ReadError::ZeroRttRejected => FrameError::Lost(Lost::Local),
    }
}

fn write_error(error: quinn::WriteError) -> FrameError {
    match error {
        quinn::WriteError::ConnectionLost(error) => FrameError::Lost(error.into()),
        quinn::WriteError::Stopped(_) => FrameError::Abandoned,
        quinn::WriteError::ClosedStream | quinn::WriteError::ZeroRttRejected => {
            FrameError::Lost(Lost::Local)
        }
    }
}

/// Writes messages to one direction of a stream. Dropping it ends the stream.
#[derive(Debug)]
pub struct FrameWriter {
    stream: quinn::SendStream,
    limit: usize,
    pending: Vec<u8>,
    sent: usize,
}

impl FrameWriter {
    pub(crate) fn new(stream: quinn::SendStream, limit: usize) -> Self {
        Self { stream, limit, pending: Vec::new(), sent: 0 }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Hands a message to the transport; waits while the peer's window is full. Where the
    /// future is dropped before its end, the rest of the frame goes out with the next call.
    ///
    /// # Errors
    /// `TooLong` and `Encode` leave the stream usable; `Abandoned` and `Lost` end it.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), FrameError> {
        let frame = codec::encode(message, self.limit)?;
        self.send_frame(frame).await
    }

    pub(crate) async fn send_frame(&mut self, frame: Vec<u8>) -> Result<(), FrameError> {
        self.flush().await?;
        self.pending = frame;
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), FrameError> {
        while self.sent < self.pending.len() {
            let rest = &self.pending[self.sent..];
            self.sent += self.stream.write(rest).await.map_err(write_error)?;
        }
        self.pending.clear();
        self.sent = 0;
        Ok(())
    }

    /// Ends the stream: the peer's reader gives none after the last message.
    pub fn finish(&mut self) {
        // Already finished or lost: either way nothing more will be sent.
        let _ = self.stream.finish();
    }

    /// Ends the stream and waits until the peer has all of it, or no longer wants it.
    ///
    /// # Errors
    /// Where the connection is lost before.
    pub async fn finished(&mut self) -> Result<(), FrameError> {
        self.flush().await?;
        self.finish();
        match self.stream.stopped().await {
            Ok(_) | Err(quinn::StoppedError::ZeroRttRejected) => Ok(()),
            Err(quinn::StoppedError::ConnectionLost(error)) => Err(FrameError::Lost(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 1000;

    /// Feeds bytes in pieces of at most `piece` and returns the frames, or the error.
    fn feed(mut bytes: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut assembler = Assembler::new(LIMIT);
        let mut frames = Vec::new();
        loop {
            if let Some(frame) = assembler.take() {
                frames.push(frame);
                continue;
            }
            let (head, tail) = bytes.split_at(assembler.wanted().min(piece).min(bytes.len()));
            if head.is_empty() {
                return assembler.end().map(|()| frames);
            }
            assembler.push(head)?;
            assert!(assembler.body.capacity() <= 2 * LIMIT, "memory follows what came");
            bytes = tail;
        }
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut frame = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
        frame.extend_from_slice(body);
        frame
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
            piece in 1_usize..300,
        ) {
            let stream: Vec<u8> = bodies.iter().flat_map(|body| frame(body)).collect();
            prop_assert_eq!(feed(&stream, piece), Ok(bodies));
        }

        #[test]
        fn any_bytes_give_frames_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..3000),
            piece in 1_usize..300,
        ) {
            match feed(&bytes, piece) {
                Ok(frames) => {
                    let again: Vec<u8> = frames.iter().flat_map(|body| frame(body)).collect();
                    prop_assert_eq!(again, bytes);
                }
                Err(FrameError::TooLong { bytes, limit }) => prop_assert!(bytes > limit),
                Err(error) => {
                    let cut = matches!(error, FrameError::Cut { .. });
                    prop_assert!(cut, "{}", error);
                }
            }
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_bytes() {
        let error = feed(&[0xff; 4], 4).unwrap_err();
        assert_eq!(error, FrameError::TooLong { bytes: 0xffff_ffff, limit: LIMIT });
        assert_eq!(feed(&frame(&[7; LIMIT]), 64), Ok(vec![vec![7; LIMIT]]));
    }

    #[test]
    fn an_end_within_a_frame_is_not_a_clean_one() {
        let whole = frame(b"abc");
        for length in 1..whole.len() {
            assert_eq!(feed(&whole[..length], 9), Err(FrameError::Cut { bytes: length }));
        }
        assert_eq!(feed(&[], 9), Ok(Vec::new()));
    }
}
