//! Proof that several hosts see the same `file://` folder: one writes a secret there, the others
//! read it back. A mount that is missing on one of them shows another folder under the same path.
//!
//! ```text
//! <base>/.optimus-probe-<nonce>          holds the nonce; removed by the one who wrote it
//! ```

use crate::{Error, Result, Storage};

const NAME: &str = ".optimus-probe-";

/// Longest nonce, and so the longest probe that is read.
const NONCE_BYTES_MAX: usize = 64;

/// What a reader found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The very probe: the folder is the writer's.
    Same,
    /// No such probe: another folder under the same path.
    Absent,
    /// Something else under the probe's name.
    Foreign,
}

fn path(nonce: &str) -> Result<String> {
    let plain = nonce.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if nonce.is_empty() || NONCE_BYTES_MAX < nonce.len() || !plain {
        return Err(crate::path::refuse(nonce, "a nonce is 1 to 64 letters and digits"));
    }
    Ok(format!("{NAME}{nonce}"))
}

/// Writes the probe, making the folder where it is missing. A nonce serves once: draw another for
/// each probe.
///
/// # Errors
/// [`Error::AlreadyExists`] where the nonce was used before; [`Error::Path`] where it is not plain;
/// else what [`Storage::publish`] says.
pub fn write(storage: &dyn Storage, nonce: &str) -> Result<()> {
    let path = path(nonce)?;
    storage.make_dir("")?;
    storage.publish(&path, nonce.as_bytes())
}

/// Looks for the probe. A folder that is not there holds none.
///
/// # Errors
/// Where the folder cannot be read, which proves nothing either way.
pub fn read(storage: &dyn Storage, nonce: &str) -> Result<Found> {
    let path = path(nonce)?;
    let found = match storage.length(&path) {
        Ok(bytes) if bytes == nonce.len() as u64 => storage.read(&path),
        Ok(_) => return Ok(Found::Foreign),
        Err(error) => Err(error),
    };
    match found {
        Ok(bytes) if bytes == nonce.as_bytes() => Ok(Found::Same),
        Ok(_) | Err(Error::NotAFile { .. }) => Ok(Found::Foreign),
        Err(Error::NotFound { .. }) => Ok(Found::Absent),
        Err(error) => Err(error),
    }
}

/// Removes the probe; one that is gone already is fine.
///
/// # Errors
/// What [`Storage::remove`] says.
pub fn remove(storage: &dyn Storage, nonce: &str) -> Result<()> {
    match storage.remove(&path(nonce)?) {
        Err(Error::NotFound { .. }) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileStorage;

    #[test]
    fn a_shared_folder_is_told_from_another_under_the_same_name() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let storage = FileStorage::new(one.path().join("ckpt"));
        write(&storage, "a1b2").unwrap();
        assert_eq!(read(&storage, "a1b2").unwrap(), Found::Same);
        assert_eq!(read(&FileStorage::new(one.path().join("ckpt")), "a1b2").unwrap(), Found::Same);
        for elsewhere in [other.path().to_owned(), other.path().join("missing")] {
            assert_eq!(read(&FileStorage::new(elsewhere), "a1b2").unwrap(), Found::Absent);
        }
        assert!(matches!(write(&storage, "a1b2"), Err(Error::AlreadyExists { .. })));
        storage.write_new(&format!("{NAME}c3"), b"d4").unwrap();
        storage.make_dir(&format!("{NAME}e5")).unwrap();
        for foreign in ["c3", "e5"] {
            assert_eq!(read(&storage, foreign).unwrap(), Found::Foreign, "{foreign}");
        }
        remove(&storage, "a1b2").unwrap();
        remove(&storage, "a1b2").unwrap();
        assert_eq!(read(&storage, "a1b2").unwrap(), Found::Absent);
        for wrong in ["", "../a", "a b", &"x".repeat(65)] {
            assert!(matches!(write(&storage, wrong), Err(Error::Path { .. })), "{wrong:?}");
        }
    }
}
