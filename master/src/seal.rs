//! Values of the store, sealed with the store key, so that a copy of the disk or of a snapshot
//! tells nobody what is in it. Keys of records (numbers of jobs, names of nodes) stay readable,
//! and an older value put back in its own place is not noticed.
//!
//! A sealed value is 12 random bytes, 12 more, then the ciphertext with its tag (AES-256-GCM, the
//! record's key as associated data). The first 12 make a key of their own for the value
//! (HKDF-SHA256 of the store key), the others are its nonce: random nonces under one key would
//! be worn out after some billion records, these last for ever.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
const PURPOSE: &[u8] = b"optimus store value 1";
/// No key file is longer: a wrong file is not read whole.
const FILE_BYTES_MAX: u64 = 256;
const CREDENTIAL: &str = "store-key";
const REMEDY: &str = "make one with: (umask 077; openssl rand -hex 32 > FILE)";

#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("cannot read the store key {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the store key {path} has mode {mode:03o}, so that others can read it: chmod 600")]
    Exposed { path: PathBuf, mode: u32 },
    #[error("the store key {path} is not 32 bytes as 64 hexadecimal digits or in base64: {REMEDY}")]
    Malformed { path: PathBuf },
}

/// Seals and opens values.
pub(crate) struct Seal {
    key: Prk,
    random: SystemRandom,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal { .. }")
    }
}

impl Seal {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        let key = Salt::new(HKDF_SHA256, b"optimus store key").extract(key);
        Self { key, random: SystemRandom::new() }
    }

    /// The key named in the settings, else the credential `store-key` that systemd gives; none
    /// where there is neither.
    ///
    /// # Errors
    /// Where the file does not read, is open to others, or holds no key.
    pub(crate) fn find(
        setting: Option<&Path>,
        credentials: Option<&Path>,
    ) -> Result<Option<Arc<Self>>, KeyError> {
        let given = credentials.map(|folder| folder.join(CREDENTIAL)).filter(|path| path.exists());
        let Some(path) = setting.map(Path::to_owned).or(given) else { return Ok(None) };
        Ok(Some(Arc::new(Self::load(&path)?)))
    }

    fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        // Not the group's bits: systemd's LoadCredential grants by an ACL, which shows there.
        if mode & 0o007 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
        let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
        let key = unhex(text).or_else(|| unbase64(text));
        let key = key.and_then(|key| <[u8; KEY_BYTES]>::try_from(key).ok());
        key.map(|key| Self::new(&key)).ok_or_else(|| KeyError::Malformed { path: path.to_owned() })
    }

    fn key_of(&self, salt: &[u8]) -> LessSafeKey {
        let info = [PURPOSE, salt];
        let derived = self.key.expand(&info, &AES_256_GCM).expect("one block is never too long");
        LessSafeKey::new(UnboundKey::from(derived))
    }

    /// Seals the value of a record.
    ///
    /// # Errors
    /// Where the system has no randomness, or the value is of many GiB.
    pub(crate) fn seal(&self, record_key: &[u8], plain: &[u8]) -> Result<Vec<u8>, &'static str> {
        let mut random = [0; 2 * NONCE_BYTES];
        self.random.fill(&mut random).map_err(|_| "the system gives no random bytes")?;
        let (salt, nonce) = random.split_at(NONCE_BYTES);
        let nonce = Nonce::try_assume_unique_for_key(nonce).expect("it has 12 bytes");
        let mut body = plain.to_vec();
        let sealed =
            self.key_of(salt).seal_in_place_append_tag(nonce, Aad::from(record_key), &mut body);
        sealed.map_err(|_| "the value is too long to be sealed")?;
        Ok([random.as_slice(), &body].concat())
    }

    /// The value that was sealed for this record with this key; none where it was not.
    pub(crate) fn open(&self, record_key: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (salt, rest) = sealed.split_at_checked(NONCE_BYTES)?;
        let (nonce, body) = rest.split_at_checked(NONCE_BYTES)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut body = body.to_vec();
        let key = self.key_of(salt);
        let plain = key.open_in_place(nonce, Aad::from(record_key), &mut body).ok()?;
        Some(plain.to_vec())
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 2 * KEY_BYTES || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..KEY_BYTES).map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()).collect()
}

fn unbase64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0_u32);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = ((held << 6) | u32::from(value)) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from((held >> bits) & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &[u8] = &[1, 7];

    #[test]
    fn a_value_opens_with_its_key_in_its_place_and_unchanged_only() {
        let seal = Seal::new(&[7; 32]);
        let sealed = seal.seal(RECORD, b"a token").unwrap();
        assert_eq!(seal.open(RECORD, &sealed).unwrap(), b"a token");
        assert_ne!(seal.seal(RECORD, b"a token").unwrap(), sealed, "no two are alike");
        assert!(!sealed.windows(5).any(|part| part == b"token"));
        assert_eq!(Seal::new(&[8; 32]).open(RECORD, &sealed), None, "another key");
        assert_eq!(seal.open(&[1, 8], &sealed), None, "another record");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(seal.open(RECORD, &changed), None, "byte {at}");
            assert_eq!(seal.open(RECORD, &sealed[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn keys_are_read_in_both_forms_and_faults_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Seal::load(&path)
        };
        let hex = "07".repeat(32);
        let base64 = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
        let sealed = Seal::new(&[7; 32]).seal(RECORD, b"x").unwrap();
        for text in [hex.clone() + "\n", hex.to_uppercase(), base64.to_owned()] {
            assert_eq!(write(&text, 0o600).unwrap().open(RECORD, &sealed).unwrap(), b"x", "{text}");
        }
        let exposed = write(&hex, 0o644).unwrap_err().to_string();
        assert!(exposed.contains("chmod 600"), "{exposed}");
        for text in ["", "00", "hunter2", &hex[1..], &base64[4..]] {
            let error = write(text, 0o600).unwrap_err().to_string();
            assert!(error.contains("openssl rand"), "{text:?}: {error}");
            assert!(text.is_empty() || !error.contains(text), "the key is not told: {error}");
        }
        assert!(Seal::find(None, Some(folder.path())).unwrap().is_none());
        std::fs::rename(&path, folder.path().join(CREDENTIAL)).unwrap();
        assert!(Seal::find(None, Some(folder.path())).is_err(), "it is found, and is no key");
    }
}
