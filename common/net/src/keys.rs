//! The keys that let a restarted master tell its former peers at once that it has restarted.

use std::fmt::{self, Write};
use std::path::Path;

use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::PkiError;
use crate::files;

const HEADER: &str = "optimus reset keys 1";
const KEY_BYTES: usize = 32;
type KeyBytes = [u8; KEY_BYTES];

/// The key of QUIC's stateless resets and the key of connection ids. quinn makes both anew in
/// each process, and peers of the former process would then hang until their idle timeout: a
/// reset under another key is noise to them, and ids of another key are not answered at all.
#[derive(Clone)]
pub struct ResetKeys {
    reset: KeyBytes,
    connection_ids: KeyBytes,
}

impl fmt::Debug for ResetKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetKeys { .. }")
    }
}

impl ResetKeys {
    /// Reads the keys, or makes and stores them (mode 0600) where the file does not exist.
    ///
    /// # Errors
    /// Where the file does not read or write, or holds something else.
    pub fn load_or_create(path: &Path) -> Result<Self, PkiError> {
        if !path.exists() {
            let keys = Self::random()?;
            if let Some(folder) = path.parent() {
                files::make_folder(folder)?;
            }
            return match files::write_new(path, keys.text().as_bytes(), files::PRIVATE, REMEDY) {
                // Another process was faster; its keys are as good.
                Err(PkiError::Exists { .. }) => Self::load(path),
                other => other.map(|()| keys),
            };
        }
        Self::load(path)
    }

    fn load(path: &Path) -> Result<Self, PkiError> {
        let bytes = files::read(path, REMEDY)?;
        let read = std::str::from_utf8(&bytes).ok().and_then(Self::parse);
        read.ok_or_else(|| PkiError::Unusable {
            path: path.to_owned(),
            reason: format!("it does not hold the reset keys of a master; {REMEDY}"),
        })
    }

    /// Keys of one process, for what nobody reconnects to.
    ///
    /// # Errors
    /// Where the system has no randomness.
    pub fn random() -> Result<Self, PkiError> {
        let fresh = || {
            let mut key: KeyBytes = [0; KEY_BYTES];
            SystemRandom::new().fill(&mut key).map(|()| key).map_err(|_| PkiError::Invalid {
                field: "reset keys",
                problem: "the system gives no random bytes".to_owned(),
            })
        };
        Ok(Self { reset: fresh()?, connection_ids: fresh()? })
    }

    fn text(&self) -> String {
        format!("{HEADER}\n{}\n{}\n", hex(&self.reset), hex(&self.connection_ids))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != HEADER {
            return None;
        }
        let (reset, connection_ids) = (unhex(lines.next()?)?, unhex(lines.next()?)?);
        lines.next().is_none().then_some(Self { reset, connection_ids })
    }

    pub(crate) fn reset_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.reset)
    }

    /// Makes connection ids that a later process of the same key knows for its own; any other
    /// is dropped without an answer.
    pub(crate) fn connection_ids(&self) -> HashedConnectionIdGenerator {
        let (key, _) = self.connection_ids.split_first_chunk().expect("32 bytes are over 8");
        HashedConnectionIdGenerator::from_key(u64::from_le_bytes(*key))
    }
}

const REMEDY: &str = "remove it and start again: agents then reconnect at their idle timeout";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(digits: &str) -> Option<KeyBytes> {
    if digits.len() != 2 * KEY_BYTES || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use quinn_proto::ConnectionIdGenerator;

    use super::*;

    #[test]
    fn keys_are_kept_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/reset.keys");
        let first = ResetKeys::load_or_create(&path).unwrap();
        let second = ResetKeys::load_or_create(&path).unwrap();
        assert_eq!(first.text(), second.text());
        assert_ne!(first.text(), ResetKeys::random().unwrap().text());
        for damage in ["", "optimus reset keys 1\n00\n00\n", "optimus reset keys 2\n"] {
            std::fs::write(&path, damage).unwrap();
            let error = ResetKeys::load_or_create(&path).unwrap_err().to_string();
            assert!(error.contains("reset.keys") && error.contains("remove it"), "{error}");
        }
    }

    #[test]
    fn connection_ids_are_known_to_the_next_process_only_with_the_key() {
        let keys = ResetKeys::random().unwrap();
        let id = keys.connection_ids().generate_cid();
        assert!(keys.connection_ids().validate(&id).is_ok());
        let other = ResetKeys::random().unwrap();
        assert!(other.connection_ids().validate(&id).is_err());
    }
}
