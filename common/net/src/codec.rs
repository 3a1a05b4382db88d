//! The one place that knows bincode.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::enc::write::Writer;
use bincode::error::EncodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::FrameError;

/// Bytes of a frame's length.
pub(crate) const PREFIX: usize = 4;

/// Takes bytes up to a limit and counts the rest, so that the error can name the whole size.
struct Bounded {
    bytes: Vec<u8>,
    total: usize,
    limit: usize,
}

impl Writer for Bounded {
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.total = self.total.saturating_add(bytes.len());
        if self.total <= self.limit {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(())
    }
}

/// A frame: the length as `u32`, little-endian, then the message in bincode.
///
/// # Errors
/// [`FrameError::TooLong`] where the message takes more than `limit` bytes.
pub fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, FrameError> {
    let what = short_name::<T>();
    let mut out = Bounded { bytes: vec![0; PREFIX], total: 0, limit };
    bincode::serde::encode_into_writer(message, &mut out, bincode::config::standard())
        .map_err(|error| FrameError::Encode { what, reason: error.to_string() })?;
    if out.total > limit {
        return Err(FrameError::TooLong { bytes: out.total, limit });
    }
    let length = u32::try_from(out.total)
        .map_err(|_| FrameError::TooLong { bytes: out.total, limit: u32::MAX as usize })?;
    let (prefix, _) = out.bytes.split_at_mut(PREFIX);
    prefix.copy_from_slice(&length.to_le_bytes());
    Ok(out.bytes)
}

/// The body of a frame alone, for a message that is sent in pieces.
///
/// # Errors
/// As [`encode`].
pub fn encode_body<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, FrameError> {
    let mut frame = encode(message, limit)?;
    drop(frame.drain(..PREFIX));
    Ok(frame)
}

/// Reads a message from the whole of a frame's body.
///
/// # Errors
/// Where the bytes do not read as a `T`, or where some are left over.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FrameError> {
    // bincode charges a number its full width, so one byte on the wire may cost eight of the
    // limit. A short frame gets a low limit: a length in it must not make for a long allocation.
    match bytes.len() {
        0..=0x1000 => decode_within::<T, 0x8000>(bytes),
        0x1001..=0x1_0000 => decode_within::<T, 0x8_0000>(bytes),
        0x1_0001..=0x10_0000 => decode_within::<T, 0x80_0000>(bytes),
        0x10_0001..=crate::FRAME_BYTES_MAX => {
            decode_within::<T, { 8 * crate::FRAME_BYTES_MAX }>(bytes)
        }
        _ => decode_within::<T, { 8 * crate::ANSWER_BYTES_MAX }>(bytes),
    }
}

type Bounds<const N: usize> = Configuration<LittleEndian, Varint, Limit<N>>;

fn decode_within<T: DeserializeOwned, const N: usize>(bytes: &[u8]) -> Result<T, FrameError> {
    let what = short_name::<T>();
    let config: Bounds<N> = bincode::config::standard().with_limit::<N>();
    let (message, used) = bincode::serde::decode_from_slice(bytes, config)
        .map_err(|error| FrameError::Malformed { what, reason: error.to_string() })?;
    match bytes.len().saturating_sub(used) {
        0 => Ok(message),
        bytes => Err(FrameError::Trailing { what, bytes }),
    }
}

/// `Heartbeat` rather than `model::agent::Heartbeat`.
fn short_name<T>() -> &'static str {
    let name = std::any::type_name::<T>();
    let path = name.split('<').next().unwrap_or(name);
    path.rsplit("::").next().unwrap_or(name)
}
