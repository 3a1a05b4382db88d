//! Where checkpoints, their manifests and other files of the cluster lie, behind one trait.
//!
//! Everything here is synchronous: a daemon calls it on a thread that may block. A path that
//! exists is never written again, because another writer may still hold it; a file that others
//! look for appears under its name only when its last byte is on stable storage (on HDFS: with
//! every DataNode that keeps a copy).

pub mod checkpoint;
pub mod dataset;
mod error;
mod file;
mod hdfs;
mod path;
pub mod probe;
pub mod snapshot;
pub mod tickets;

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use model::Location;

pub use error::{Error, Result, chain};
pub use file::FileStorage;
pub use hdfs::HdfsStorage;

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

/// A block of an HDFS file where nothing else is asked for: the paper's chunk size (section 5.1).
pub const BLOCK_BYTES: u64 = 128 << 20;

/// HDFS takes no smaller blocks unless it is told to.
const BLOCK_BYTES_MIN: u64 = 1 << 20;

/// The block size for a file of so many bytes: one block up to [`BLOCK_BYTES`]. HDFS counts a
/// whole block, times the replication, against a quota before the first byte is written.
#[must_use]
pub fn block_bytes_for(bytes: u64) -> u64 {
    let whole = bytes.div_ceil(BLOCK_BYTES_MIN).saturating_mul(BLOCK_BYTES_MIN);
    whole.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES)
}

/// How an upload is kept; of no effect on `file://`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UploadOptions {
    /// Copies of each block; the file system's own default where none.
    pub replication: Option<u32>,
    /// Bytes of a block; [`BLOCK_BYTES`] where none.
    pub block_bytes: Option<u64>,
    /// Writes one copy and leaves the others to the file system, which makes them soon after. A
    /// DataNode that died a moment ago is still given out for ten minutes, and one among the
    /// copies breaks the upload: with one copy, that is met seldom.
    pub spread_later: bool,
}

/// How an HDFS is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HdfsSettings {
    /// The folder with `core-site.xml` and `hdfs-site.xml`; where none, `HADOOP_CONF_DIR` and
    /// `HADOOP_HOME` are followed.
    pub conf_dir: Option<PathBuf>,
    /// Whom Kerberos should take this process for; where none, the tickets of its user are used
    /// (`KRB5CCNAME`, made and renewed by whoever runs `kinit`).
    pub principal: Option<String>,
    /// The principal's keytab: tickets are then taken as they are needed.
    pub keytab: Option<PathBuf>,
    /// How long a call goes on trying while nobody can serve it.
    pub patience: Duration,
}

impl HdfsSettings {
    /// As the folder of Hadoop's configuration says, where a daemon's settings name one.
    ///
    /// # Errors
    /// [`Error::ConfDir`] where it is no folder: the client would go by defaults in silence.
    pub fn by(conf_dir: Option<PathBuf>) -> Result<Self> {
        if let Some(folder) = conf_dir.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(Error::ConfDir { folder: folder.display().to_string() });
        }
        Ok(Self { conf_dir, ..Self::default() })
    }

    /// Shows itself as a principal of Kerberos, by its keytab where there is one.
    ///
    /// # Errors
    /// [`Error::Keytab`] where this process cannot read it.
    pub fn as_principal(self, principal: Option<String>, keytab: Option<PathBuf>) -> Result<Self> {
        if let Some(file) = &keytab
            && let Err(source) = std::fs::File::open(file)
        {
            return Err(Error::Keytab { file: file.display().to_string(), source });
        }
        Ok(Self { principal, keytab, ..self })
    }
}

impl Default for HdfsSettings {
    /// Long enough for a failover by hand or by ZooKeeper.
    fn default() -> Self {
        let patience = Duration::from_secs(12);
        Self { conf_dir: None, principal: None, keytab: None, patience }
    }
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

    /// Bytes of a regular file.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotAFile`], or the system's own.
    fn length(&self, path: &str) -> Result<u64>;

    /// Exactly `bytes` bytes of a file, at most [`READ_BYTES_MAX`], from byte `from` on.
    ///
    /// # Errors
    /// [`Error::PastEnd`] where the file has fewer, else as [`Storage::read`].
    fn read_range(&self, path: &str, from: u64, bytes: u64) -> Result<Vec<u8>>;

    /// A stream of a file from byte `from` on, of at most `bytes` bytes or up to its end. Its
    /// errors are this crate's: see [`Error::from_stream`].
    ///
    /// # Errors
    /// [`Error::PastEnd`] where `from` lies behind the end (at the end the stream is empty), else
    /// as [`Storage::read`].
    fn reader(&self, path: &str, from: u64, bytes: u64) -> Result<Box<dyn Read + Send>>;

    /// Writes a fresh file, which may be visible while it grows, and syncs it with its folder. The
    /// folder must exist.
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

    /// Makes a file of all that `source` gives appear whole or not at all, as [`Storage::publish`]
    /// does, in pieces and within bounded memory. The source is read once: it must start anew for
    /// another try.
    ///
    /// # Returns
    /// What was read of the source and written.
    ///
    /// # Errors
    /// As [`Storage::publish`]; [`Error::Io`] where the source fails.
    fn upload(&self, path: &str, source: &mut dyn Read, options: UploadOptions) -> Result<Sum>;

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

/// Uploads from a source that can be had anew, such as a spooled file, and tries again while the
/// storage cannot serve: each try asks `open` for the source from its first byte. From the third
/// try on, copies are left to the file system: see [`UploadOptions::spread_later`].
///
/// # Errors
/// As [`Storage::upload`]; [`Error::Unavailable`] after [`UPLOAD_TRIES`].
pub fn upload_again<R: Read>(
    storage: &dyn Storage,
    path: &str,
    mut options: UploadOptions,
    mut open: impl FnMut() -> std::io::Result<R>,
) -> Result<Sum> {
    let mut tries = 1;
    loop {
        let verb = "open what should become";
        let mut source = open().map_err(|error| Error::from_io(verb, storage.url(path), error))?;
        match storage.upload(path, &mut source, options) {
            Err(error) if error.is_temporary() && tries < UPLOAD_TRIES => tries += 1,
            other => return other,
        }
        options.spread_later |= TRIES_WITH_COPIES < tries;
    }
}

/// Tries of [`upload_again`].
pub const UPLOAD_TRIES: u32 = 6;

/// Tries that write all the copies themselves.
const TRIES_WITH_COPIES: u32 = 2;

/// Opens the tree at a URL with the default settings: see [`open_with`].
///
/// # Errors
/// See [`open_with`].
pub fn open(url: &str) -> Result<Box<dyn Storage>> {
    open_with(url, &HdfsSettings::default())
}

/// Opens the tree at a URL: `file:///absolute/folder`, or `hdfs://nameservice/absolute/folder`
/// with a nameservice, a host, or a host and a port. The folder need not exist yet, and no
/// NameNode is asked yet.
///
/// # Errors
/// [`Error::Unsupported`] for any other scheme, for a `file` URL that names a host, for an `hdfs`
/// URL that names none, and for a folder that is relative or has `..` in it.
pub fn open_with(url: &str, settings: &HdfsSettings) -> Result<Box<dyn Storage>> {
    match Location::parse(url) {
        Ok(Location::File { path }) => Ok(Box::new(FileStorage::new(path))),
        Ok(Location::Hdfs { authority, path }) => {
            Ok(Box::new(HdfsStorage::new(authority, path, settings.clone())))
        }
        Err(remedy) => Err(Error::Unsupported { url: url.chars().take(200).collect(), remedy }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_is_not_there_is_refused_by_its_name() {
        let error = HdfsSettings::by(Some("/no/such/folder".into())).unwrap_err().to_string();
        assert!(error.contains("hadoop_conf_dir") && error.contains("/no/such/folder"), "{error}");
        assert_eq!(HdfsSettings::by(None).unwrap().conf_dir, None);
        let keytab = Some("/no/such/keytab".into());
        let error = HdfsSettings::default().as_principal(Some("a@B".to_owned()), keytab);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("kerberos_keytab") && error.contains("/no/such/keytab"), "{error}");
    }

    #[test]
    fn only_absolute_urls_are_opened() {
        for good in ["file:///srv/ckpt", "hdfs://nn/ckpt", "hdfs://10.0.0.1:8020/a/b", "hdfs://ns/"]
        {
            let wanted = format!("{}/j1", good.trim_end_matches('/'));
            assert_eq!(open(good).unwrap().url("j1"), wanted);
        }
        for (wrong, word) in [
            ("hdfs://nn", "absolute folder"),
            ("hdfs:///ckpt", "nameservice"),
            ("hdfs://nn/a/../b", "'..'"),
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
