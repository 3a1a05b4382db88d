//! `hdfs://`: a folder of an HDFS, through hdfs-native.
//!
//! **Calls** wait for a failover: what nobody can serve (no active NameNode, safe mode, a refused
//! or broken connection) is asked again with pauses of 0.2 s to 2 s until the storage's patience
//! (12 s) ends, then told as [`Error::Unavailable`]. No question waits for more than 8 s, and after
//! one without an answer the next goes to the other NameNode first.
//!
//! **Writing** goes to a fresh name (`.unpublished-…`) and ends with a rename that replaces nothing.
//! A write without an answer leaves its outcome open only where the last rename got none. HDFS
//! charges a quota with a whole block, times the copies, before the first byte of it: a file of
//! 1 MB with blocks of 128 MB and 2 copies needs 256 MB of quota while it is written. Files whose
//! size is known beforehand should have blocks of [`crate::block_bytes_for`] it.
//!
//! **A power cut** of every DataNode at once can cost what was written in the seconds before it, as
//! for all of Hadoop: a site that wants each file on the disks when it is closed says
//! `dfs.datanode.synconclose` to its DataNodes. A damaged checkpoint is noticed by its sums, and
//! the one before it is used.
//!
//! **A dead DataNode** in the midst of a block is gone on without. Until the NameNode counts it out
//! (10 minutes by default) it is still given out for new blocks, and hdfs-native cannot ask for
//! another: such a write fails as unavailable, and [`crate::upload_again`] draws again. One that
//! hangs without dying holds a write for 30 s and a read for 15 s.
//!
//! **Times**, everything on one busy host of two cores, 2 copies (`cargo bench -p storage`): a
//! question 0.3 to 1 ms, a first call with its connection 1 ms, a small file read in 2 ms and
//! published within 30 ms, uploads at 330 MB/s, sums at 850 MB/s. With one DataNode, the client by
//! itself made every second file wait for half a second at its end.
//!
//! **Kerberos** is the client's own: with `hadoop.security.authentication` set to `kerberos` in the
//! site's configuration it loads `libgssapi_krb5.so.2` and uses the process's ticket cache, or the
//! keytab of [`crate::HdfsSettings`]. Refused credentials are an [`Error::Io`] of the kind
//! "permission denied".

mod errors;
mod link;
mod read;
mod site;
mod write;

use std::io::Read;
use std::sync::Arc;

use hdfs_native::HdfsError;

use self::errors::{Kind, kind};
use self::link::{Links, Patience};
use self::read::Reader;
use crate::{Entry, EntryKind, Error, HdfsSettings, READ_BYTES_MAX, Result, Storage, Sum};
use crate::{UploadOptions, path as paths};

/// The site's configuration, where it can be read.
pub(crate) fn site(folder: Option<&std::path::Path>) -> Option<site::Site> {
    site::Site::read(folder).ok()
}

const FOLDER_MODE: u32 = 0o755;

/// A folder of an HDFS as a storage. Nothing is asked of the NameNodes before the first call; the
/// configuration of the site is read then, and again whenever a hanging connection is given up.
/// Copies share their connection.
#[derive(Clone, Debug)]
pub struct HdfsStorage {
    links: Arc<Links>,
    /// Absolute, without a slash at its end: empty for the root of the file system.
    base: String,
}

impl HdfsStorage {
    /// `authority` is a nameservice, a host, or a host and a port; `base` an absolute path.
    #[must_use]
    pub fn new(authority: &str, base: &str, settings: HdfsSettings) -> Self {
        let links = Arc::new(Links::new(authority.to_owned(), settings));
        Self { links, base: base.trim_end_matches('/').to_owned() }
    }

    /// The absolute path in the file system.
    fn place(&self, path: &str) -> Result<String> {
        paths::check(path)?;
        Ok(match (path, self.base.as_str()) {
            ("", "") => "/".to_owned(),
            ("", base) => base.to_owned(),
            (path, base) => format!("{base}/{path}"),
        })
    }

    fn patience(&self) -> Patience {
        Patience::new(self.links.settings.patience)
    }

    fn told(&self, verb: &'static str, path: &str, error: &HdfsError) -> Error {
        self.told_more(verb, path, error, "")
    }

    fn told_more(&self, verb: &'static str, path: &str, error: &HdfsError, more: &str) -> Error {
        errors::told(verb, self.url(path), error, more)
    }
}

impl Storage for HdfsStorage {
    fn url(&self, path: &str) -> String {
        let start = format!("hdfs://{}{}", self.links.authority(), self.base);
        if path.is_empty() { start } else { format!("{start}/{path}") }
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        paths::check_file(path)?;
        let bytes = self.length(path)?;
        if READ_BYTES_MAX < bytes {
            return Err(Error::TooLarge { url: self.url(path), bytes, limit: READ_BYTES_MAX });
        }
        self.read_range(path, 0, bytes)
    }

    fn length(&self, path: &str) -> Result<u64> {
        paths::check_file(path)?;
        let place = &self.place(path)?;
        let (found, _) = self
            .links
            .call(self.patience(), |link| async move { link.client.get_file_info(place).await });
        let found = found.map_err(|error| self.told("look at", path, &error))?;
        if found.isdir {
            return Err(Error::NotAFile { url: self.url(path) });
        }
        Ok(found.length as u64)
    }

    fn read_range(&self, path: &str, from: u64, bytes: u64) -> Result<Vec<u8>> {
        paths::check_file(path)?;
        if READ_BYTES_MAX < bytes {
            return Err(Error::TooLarge { url: self.url(path), bytes, limit: READ_BYTES_MAX });
        }
        let mut reader = Reader::open(self, path, from, bytes)?;
        let mut content = Vec::new();
        while let Some(piece) = reader.piece()? {
            content.extend_from_slice(&piece);
        }
        let length = from + content.len() as u64;
        if (content.len() as u64) < bytes {
            return Err(Error::PastEnd { url: self.url(path), from: from + bytes, length });
        }
        Ok(content)
    }

    fn reader(&self, path: &str, from: u64, bytes: u64) -> Result<Box<dyn Read + Send>> {
        paths::check_file(path)?;
        Ok(Box::new(Reader::open(self, path, from, bytes)?))
    }

    fn write_new(&self, path: &str, bytes: &[u8]) -> Result<()> {
        paths::check_file(path)?;
        self.write_bytes(path, bytes)
    }

    fn publish(&self, path: &str, bytes: &[u8]) -> Result<()> {
        paths::check_file(path)?;
        self.write_bytes(path, bytes)
    }

    fn upload(&self, path: &str, source: &mut dyn Read, options: UploadOptions) -> Result<Sum> {
        paths::check_file(path)?;
        self.write_once(path, source, options)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        let place = &self.place(path)?;
        let (found, _) = self.links.call(self.patience(), |link| async move {
            link.client.list_status(place, false).await
        });
        let found = found.map_err(|error| self.told("list", path, &error))?;
        // Of a file it tells the file itself, under its whole path.
        if found.iter().any(|status| !status.isdir && status.path == *place) {
            let source = std::io::Error::from(std::io::ErrorKind::NotADirectory);
            return Err(Error::Io { verb: "list", url: self.url(path), source });
        }
        let entry = |status: hdfs_native::client::FileStatus| Entry {
            name: status.path.rsplit('/').next().unwrap_or_default().to_owned(),
            kind: if status.isdir { EntryKind::Folder } else { EntryKind::File },
        };
        let mut entries: Vec<Entry> = found.into_iter().map(entry).collect();
        entries.sort();
        Ok(entries)
    }

    fn remove(&self, path: &str) -> Result<()> {
        paths::check_file(path)?;
        let place = &self.place(path)?;
        let (removed, tries) = self
            .links
            .call(self.patience(), |link| async move { link.client.delete(place, true).await });
        match removed {
            // After a try without an answer, its being gone is what was asked for.
            Ok(removed) if removed || tries > 1 => Ok(()),
            Ok(_) => Err(Error::NotFound { url: self.url(path) }),
            Err(error) => Err(self.told("remove", path, &error)),
        }
    }

    fn make_dir(&self, path: &str) -> Result<()> {
        let place = &self.place(path)?;
        let (made, _) = self.links.call(self.patience(), |link| async move {
            link.client.mkdirs(place, FOLDER_MODE, true).await
        });
        made.map_err(|error| self.told("make the folder", path, &error))
    }

    fn size_and_crc32(&self, path: &str) -> Result<Sum> {
        paths::check_file(path)?;
        let mut reader = Reader::open(self, path, 0, u64::MAX)?;
        let mut hasher = crc32fast::Hasher::new();
        let mut bytes = 0;
        while let Some(piece) = reader.piece()? {
            hasher.update(&piece);
            bytes += piece.len() as u64;
        }
        Ok(Sum { bytes, crc32: hasher.finalize() })
    }

    /// The NameNode's journal has every name before it answers: here it is only looked for.
    fn sync_dir(&self, path: &str) -> Result<()> {
        let place = &self.place(path)?;
        let (found, _) = self
            .links
            .call(self.patience(), |link| async move { link.client.get_file_info(place).await });
        found.map(drop).map_err(|error| self.told("look at", path, &error))
    }

    /// What the quotas of the base and of the folders above it leave, divided by the replicas
    /// that a file has by default here (counted as `QUOTA_REPLICAS`); `u64::MAX` where there is
    /// no quota: the client cannot ask for the room of the whole file system. It makes the
    /// NameNode count the base's subtree: not a question for every second.
    fn free_bytes(&self) -> Result<u64> {
        let mut left = u64::MAX;
        let mut folder = self.base.as_str();
        while !folder.is_empty() {
            let (found, _) = self.links.call(self.patience(), |link| async move {
                link.client.get_content_summary(folder).await
            });
            match found {
                Ok(found) => {
                    // No quota is -1, sent as a number without a sign.
                    if i64::try_from(found.space_quota).is_ok() {
                        let rest = found.space_quota.saturating_sub(found.space_consumed);
                        left = left.min(rest / QUOTA_REPLICAS);
                    }
                }
                // Not made yet.
                Err(error) if kind(&error) == Kind::NotFound => {}
                Err(error) => return Err(self.told("ask the quota of", "", &error)),
            }
            folder = folder.rsplit_once('/').map_or("", |(above, _)| above);
        }
        Ok(left)
    }
}

/// Replicas that a byte of quota is shared by: Hadoop's default, the most careful usual number.
const QUOTA_REPLICAS: u64 = 3;
