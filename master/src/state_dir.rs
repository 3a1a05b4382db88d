//! The state folder: made, and locked so that two masters never share one.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum StateDirError {
    #[error("cannot make the state folder {path}")]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot lock {path}")]
    Lock { path: PathBuf, source: io::Error },
    #[error(
        "another master{holder} uses the state folder {path}: stop it, or set another state_dir"
    )]
    Taken { path: PathBuf, holder: String },
}

/// Holds the state folder; given back when dropped, or when the process ends in any way.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Makes the folder (0700) where it is missing, and takes it.
    pub(crate) fn take(path: &Path) -> Result<Self, StateDirError> {
        make(path).map_err(|source| StateDirError::Make { path: path.to_owned(), source })?;
        let lock_path = path.join("lock");
        let failed = |source| StateDirError::Lock { path: lock_path.clone(), source };
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // Only for the words: the lock itself says that it is taken.
                let _ = lock.take(20).read_to_string(&mut pid);
                let plain = !pid.is_empty() && pid.trim().bytes().all(|b| b.is_ascii_digit());
                let holder =
                    if plain { format!(" (process {})", pid.trim()) } else { String::new() };
                return Err(StateDirError::Taken { path: path.to_owned(), holder });
            }
        }
        // On a full disk the number cannot be written; the lock holds all the same.
        let noted = lock
            .set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        if let Err(error) = noted {
            tracing::warn!(%error, "cannot note the process id in the lock file");
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn make(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    // The folders above are shared with the agent and the certificates: only this one is private.
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    DirBuilder::new().mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn two_masters_cannot_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/master");
        let first = StateDir::take(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let error = StateDir::take(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        StateDir::take(&path).unwrap();
    }
}
