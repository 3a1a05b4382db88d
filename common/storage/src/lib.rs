//! Where checkpoints, their manifests and other files of the cluster lie, behind one trait.
//!
//! Everything here is synchronous: a daemon calls it on a thread that may block. A path that
//! exists is never written again, because another writer may still hold it; a file that others
//! look for appears under its name only when its last byte is on stable storage.

pub mod checkpoint;
pub mod dataset;
mod error;
mod file;
pub mod snapshot;

use std::path::PathBuf;

pub use error::{Error, Result, chain};
pub use file::FileStorage;

/// Longest file that [`Storage::read`] takes into memory, in bytes. Manifests are a few KiB;
/// checkpoint parts are summed in pieces and never read whole.
pub const READ_BYTES_MAX: u64 = 64 << 20;

/// Size and checksum of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    pub bytes: u64,
    /// CRC-32 (IEEE), as zlib and Python's `zlib.crc32` compute it.
    pub crc32: u32,
}

/// What a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    File,
    Folder,
    /// A link, a pipe, a socket or a device: never followed, never opened.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: String,
    pub kind: EntryKind,
}

/// A tree of files under one root. Paths are relative to the root, with `/` between plain names:
/// `j12/manifest-g00000003-c00000007.json`. A path with `..`, an empty or absolute part, or a
/// NUL byte is refused before anything is touched, and so is one that leads through a link.
pub trait Storage: Send + Sync + std::fmt::Debug {
    /// The URL of a path here; the empty path is the root.
    fn url(&self, path: &str) -> String;

    /// The whole content of a file of at most [`READ_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::TooLarge`], or the system's own.
    fn read(&self, path: &str) -> Result<Vec<u8>>;

    /// Writes a fresh file, visible while it grows, and syncs it with its folder. The folder
    /// must exist.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] where anything is at the path, which is then untouched. After
    /// any other error nothing is left at the path.
    fn write_new(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Makes a file appear whole or not at all: temporary file, sync, rename that replaces
    /// nothing, sync of the folder.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] where anything is at the path, which is then untouched. After
    /// any other error nothing new is at the path.
    fn publish(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// What lies directly in a folder, sorted by name.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the system's own.
    fn list(&self, path: &str) -> Result<Vec<Entry>>;

    /// Removes a file, or a folder with all that is in it, without following links.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the system's own.
    fn remove(&self, path: &str) -> Result<()>;

    /// Makes a folder and those above it; one that exists is fine.
    ///
    /// # Errors
    /// The system's own.
    fn make_dir(&self, path: &str) -> Result<()>;

    /// Reads a regular file once, in pieces.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotAFile`], or the system's own.
    fn size_and_crc32(&self, path: &str) -> Result<Sum>;

    /// Puts the names in a folder on stable storage.
    ///
    /// # Errors
    /// The system's own.
    fn sync_dir(&self, path: &str) -> Result<()>;

    /// Bytes that an unprivileged writer may still use.
    ///
    /// # Errors
    /// The system's own.
    fn free_bytes(&self) -> Result<u64>;
}

/// Opens the tree at a URL: `file:///absolute/folder`. The folder need not exist yet.
///
/// # Errors
/// [`Error::Unsupported`] for any other scheme, `hdfs://` included, and for a `file` URL that
/// names a host, a relative folder or one with `..`.
pub fn open(url: &str) -> Result<Box<dyn Storage>> {
    Ok(Box::new(FileStorage::new(file_url(url)?)))
}

fn file_url(url: &str) -> Result<PathBuf> {
    let refuse = |remedy| {
        let url = url.chars().take(200).collect();
        Err(Error::Unsupported { url, remedy })
    };
    if url.starts_with("hdfs://") {
        return refuse("hdfs:// is not supported by this build yet; use a shared file:// folder");
    }
    let Some(path) = url.strip_prefix("file://") else {
        return refuse("write file:// and an absolute folder, such as file:///srv/ckpt");
    };
    if !path.starts_with('/') {
        return refuse("a file URL names no host: write three slashes, as in file:///srv/ckpt");
    }
    if path.contains('\0') || path.split('/').any(|part| part == "..") {
        return refuse("the folder must not contain '..' or a NUL byte");
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_file_urls_are_opened() {
        assert_eq!(open("file:///srv/ckpt").unwrap().url("j1"), "file:///srv/ckpt/j1");
        for (wrong, word) in [
            ("hdfs://nn/ckpt", "not supported by this build yet"),
            ("s3://bucket", "file://"),
            ("/srv/ckpt", "file://"),
            ("file://host/x", "three slashes"),
            ("file:///srv/../etc", "'..'"),
            ("", "file://"),
        ] {
            let error = open(wrong).unwrap_err().to_string();
            assert!(error.contains(word), "{wrong:?}: {error}");
        }
    }
}
