//! Where a data set's bytes come from.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use model::options::{DataFormat, DataSpec};
use nix::fcntl::OFlag;

use super::{DataError, DataFile, INDEX, Index, scan};
use crate::{EntryKind, Error, FileStorage, Storage};

/// Folders below folders. A tree that is deeper is most likely a loop of mounts.
const DEPTH_MAX: u32 = 32;
/// Files of a data set. More would fill an index; pack them into RecordIO by an import.
const FILES_MAX: usize = 1_000_000;

/// A file as it was found.
pub type Found = DataFile;

/// A tree of files that hold records.
pub trait Source: Send + Sync + std::fmt::Debug {
    /// The URL of a file of the set; of the set itself where `path` is empty.
    fn url(&self, path: &str) -> String;

    /// All files below the set's URL that hold records, by path. A URL that is a file gives that
    /// one, with an empty path.
    ///
    /// Names that begin with `.` or `_` are passed over, as Hadoop does, and the set's own index.
    ///
    /// # Errors
    /// Where something cannot be listed, or is neither a file nor a folder (a link, say).
    fn files(&self) -> Result<Vec<Found>, DataError>;

    /// Reads from `offset` on until the buffer is full or the file ends; returns how much it read.
    ///
    /// # Errors
    /// The storage's own.
    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, DataError>;

    /// The content of the set's own index, where it was imported.
    ///
    /// # Errors
    /// The storage's own.
    fn own_index(&self) -> Result<Option<Vec<u8>>, DataError>;
}

/// The index of a data set: its own where it was imported, else by a scan.
///
/// # Errors
/// Where the set is damaged, empty, or not of the format that `spec` says.
pub fn index_of(source: &dyn Source, spec: &DataSpec) -> Result<Index, DataError> {
    let Some(text) = source.own_index()? else {
        return scan(source, spec.format, spec.chunk_bytes);
    };
    let index = Index::decode(&text, &source.url(INDEX))?;
    if index.format != spec.format {
        return Err(DataError::Unusable {
            url: source.url(""),
            problem: format!(
                "it was imported as {}, and is asked for as {}; write the former",
                index.format, spec.format
            ),
        });
    }
    Ok(index)
}

/// A folder or a file of this machine, or a shared mount.
#[derive(Debug)]
pub struct LocalSource {
    place: PathBuf,
    folder: FileStorage,
    /// The file that was read last: a scan reads one after the other.
    open: Mutex<Option<(String, File)>>,
}

impl LocalSource {
    /// A data set at an absolute path. The path itself is trusted and may lead through links;
    /// below it none is followed.
    #[must_use]
    pub fn new(place: impl Into<PathBuf>) -> Self {
        let place = place.into();
        Self { folder: FileStorage::new(&place), place, open: Mutex::new(None) }
    }

    fn collect(&self, path: &str, depth: u32, files: &mut Vec<Found>) -> Result<(), DataError> {
        let unusable =
            |problem: String| Err(DataError::Unusable { url: self.folder.url(path), problem });
        if depth > DEPTH_MAX {
            return unusable(format!("its folders are more than {DEPTH_MAX} deep"));
        }
        for entry in self.folder.list(path)? {
            if entry.name.starts_with(['.', '_']) {
                continue;
            }
            let below = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
            match entry.kind {
                EntryKind::Folder => self.collect(&below, depth + 1, files)?,
                EntryKind::File => {
                    let bytes = self.open(&below)?.1;
                    files.push(Found { path: below, bytes });
                }
                EntryKind::Other => {
                    let url = self.folder.url(&below);
                    let problem =
                        "it is a link, a pipe or a device; a data set is made of plain files";
                    return Err(DataError::Unusable { url, problem: problem.to_owned() });
                }
            }
            if files.len() > FILES_MAX {
                return unusable(format!(
                    "it has more than {FILES_MAX} files; import it, which packs them"
                ));
            }
        }
        Ok(())
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.place.clone() } else { self.place.join(path) }
    }

    fn open(&self, path: &str) -> Result<(File, u64), DataError> {
        // A name that is no UTF-8 was shown with replacement characters and is not found.
        if path.contains('\u{fffd}') && !self.path(path).exists() {
            let problem = "its name is not UTF-8; rename it".to_owned();
            return Err(DataError::Unusable { url: self.url(path), problem });
        }
        let fail = |source| DataError::Storage(Error::from_io("open", self.url(path), source));
        // A pipe must not hold the reader, and no link is followed below the set's own path.
        let below = if path.is_empty() { OFlag::empty() } else { OFlag::O_NOFOLLOW };
        let flags = below | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let mut options = OpenOptions::new();
        let file =
            options.read(true).custom_flags(flags.bits()).open(self.path(path)).map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        if !metadata.is_file() {
            return Err(Error::NotAFile { url: self.url(path) }.into());
        }
        Ok((file, metadata.len()))
    }

    fn read(file: &File, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let read = file.read_at(&mut buffer[filled..], offset + filled as u64)?;
            if read == 0 {
                break;
            }
            filled += read;
        }
        Ok(filled)
    }
}

impl Source for LocalSource {
    fn url(&self, path: &str) -> String {
        self.folder.url(path)
    }

    fn files(&self) -> Result<Vec<Found>, DataError> {
        let mut files = Vec::new();
        if is_folder(&self.place) {
            self.collect("", 0, &mut files)?;
            if self.own_index()?.is_some() {
                files.retain(|file| file.path != INDEX);
            }
        } else {
            let bytes = self.open("")?.1;
            files.push(Found { path: String::new(), bytes });
        }
        // By whole path, not folder by folder: the order that every listing agrees on.
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, DataError> {
        let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if open.as_ref().is_none_or(|(last, _)| last != path) {
            *open = Some((path.to_owned(), self.open(path)?.0));
        }
        let (_, file) = open.as_ref().expect("set just above");
        Self::read(file, offset, buffer)
            .map_err(|source| DataError::Storage(Error::from_io("read", self.url(path), source)))
    }

    fn own_index(&self) -> Result<Option<Vec<u8>>, DataError> {
        if !is_folder(&self.place) {
            return Ok(None);
        }
        own_index(self.folder.read(INDEX))
    }
}

fn is_folder(place: &Path) -> bool {
    std::fs::metadata(place).is_ok_and(|found| found.is_dir())
}

/// A file of that name that is another's (a record of a set of files, say) is no index.
pub(super) fn own_index(read: crate::Result<Vec<u8>>) -> Result<Option<Vec<u8>>, DataError> {
    match read {
        Ok(text) => {
            let start = text.get(..text.len().min(256)).unwrap_or_default();
            let ours = String::from_utf8_lossy(start).contains("\"optimus.data/");
            Ok(ours.then_some(text))
        }
        Err(Error::NotFound { .. } | Error::NotAFile { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether `format` can have this file beside its records: what `im2rec` leaves is none.
pub(super) fn beside(format: DataFormat, path: &str) -> bool {
    format == DataFormat::RecordIo && (path.ends_with(".idx") || path.ends_with(".lst"))
}
