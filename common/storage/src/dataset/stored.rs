//! Data sets in a [`Storage`]: on HDFS, from where tasks cannot read by themselves.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::source::{DEPTH_MAX, FILES_MAX, is_hidden, own_index};
use super::{DataError, Destination, Found, Growing, INDEX, Source};
use crate::{
    EntryKind, Error, HdfsSettings, Storage, Sum, UploadOptions, block_bytes_for, open_with,
};

/// Pieces of a chunk that wait to be stored: a few, so that reading and writing overlap.
const PIECES_MAX: usize = 4;
const PIECE_BYTES: usize = 1 << 20;

/// The storage that holds a data set, and the set's path in it: empty where the set is a folder,
/// a name where it is a file.
///
/// # Errors
/// [`Error::NotFound`] where there is neither, or the storage's own.
fn open_set(url: &str, settings: &HdfsSettings) -> crate::Result<(Box<dyn Storage>, String)> {
    let trimmed = url.trim_end_matches('/');
    if let Some((parent, name)) = parent(trimmed) {
        let above = open_with(parent, settings)?;
        match above.length(name) {
            Ok(_) => return Ok((above, name.to_owned())),
            Err(Error::NotAFile { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((open_with(url, settings)?, String::new()))
}

/// The URL of the folder that holds a URL's last name, and that name; none for a root.
#[must_use]
pub fn parent(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let at = rest.rfind('/')?;
    let name = &rest[at + 1..];
    // A root's own slash stays with it.
    let first = rest.find('/')?;
    let end = scheme.len() + 3 + if at == first { at + 1 } else { at };
    (!name.is_empty()).then(|| (&url[..end], name))
}

/// A data set in a storage.
#[derive(Debug)]
pub struct StoredSource {
    storage: Box<dyn Storage>,
    /// The file's name, where the set is one file.
    file: String,
}

impl StoredSource {
    /// Finds the set at a URL.
    ///
    /// # Errors
    /// Where there is none, or the storage cannot be asked.
    pub fn open(url: &str, settings: &HdfsSettings) -> Result<Self, DataError> {
        let (storage, file) = open_set(url, settings)?;
        Ok(Self { storage, file })
    }

    fn path<'a>(&'a self, path: &'a str) -> &'a str {
        if path.is_empty() { &self.file } else { path }
    }

    fn collect(&self, path: &str, depth: u32, files: &mut Vec<Found>) -> Result<(), DataError> {
        let unusable = |url: String, problem: String| Err(DataError::Unusable { url, problem });
        for entry in self.storage.list(path)? {
            if is_hidden(&entry.name) {
                continue;
            }
            let below = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
            match entry.kind {
                EntryKind::Folder if depth >= DEPTH_MAX => {
                    let problem = format!("its folders are more than {DEPTH_MAX} deep");
                    return unusable(self.storage.url(path), problem);
                }
                EntryKind::Folder => self.collect(&below, depth + 1, files)?,
                EntryKind::File => {
                    let bytes = self.storage.length(&below)?;
                    files.push(Found { path: below, bytes });
                }
                EntryKind::Other => {
                    let problem = "it is no plain file".to_owned();
                    return unusable(self.storage.url(&below), problem);
                }
            }
            if files.len() > FILES_MAX {
                let problem = format!("it has more than {FILES_MAX} files; import it");
                return unusable(self.storage.url(""), problem);
            }
        }
        Ok(())
    }
}

impl Source for StoredSource {
    fn url(&self, path: &str) -> String {
        self.storage.url(self.path(path))
    }

    fn files(&self) -> Result<Vec<Found>, DataError> {
        let mut files = Vec::new();
        if self.file.is_empty() {
            self.collect("", 0, &mut files)?;
            if self.own_index()?.is_some() {
                files.retain(|file| file.path != INDEX);
            }
        } else {
            let bytes = self.storage.length(&self.file)?;
            files.push(Found { path: String::new(), bytes });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, DataError> {
        let path = self.path(path);
        let wanted = buffer.len() as u64;
        let content = match self.storage.read_range(path, offset, wanted) {
            // It has shrunk: the caller names it by how little there is.
            Err(Error::PastEnd { length, .. }) => {
                self.storage.read_range(path, offset.min(length), length.saturating_sub(offset))?
            }
            other => other?,
        };
        buffer[..content.len()].copy_from_slice(&content);
        Ok(content.len())
    }

    fn own_index(&self) -> Result<Option<Vec<u8>>, DataError> {
        if self.file.is_empty() { own_index(self.storage.read(INDEX)) } else { Ok(None) }
    }
}

/// A folder in a storage, for an import.
#[derive(Debug)]
pub struct StoredDestination {
    storage: Arc<dyn Storage>,
    options: UploadOptions,
}

impl StoredDestination {
    /// `replication`: copies of each block, of chunks of about `chunk_bytes`.
    ///
    /// # Errors
    /// Where the URL is none.
    pub fn open(
        url: &str,
        settings: &HdfsSettings,
        replication: u32,
        chunk_bytes: u64,
    ) -> Result<Self, DataError> {
        let block_bytes = Some(block_bytes_for(chunk_bytes));
        let options = UploadOptions {
            replication: Some(replication),
            block_bytes,
            ..UploadOptions::default()
        };
        Ok(Self { storage: open_with(url, settings)?.into(), options })
    }
}

impl Destination for StoredDestination {
    fn url(&self, path: &str) -> String {
        self.storage.url(path)
    }

    fn prepare(&mut self) -> Result<(), DataError> {
        self.storage.make_dir("")?;
        if self.storage.list("")?.is_empty() {
            Ok(())
        } else {
            Err(Error::AlreadyExists { url: self.url("") }.into())
        }
    }

    fn create(&mut self, path: &str) -> Result<Box<dyn Growing>, DataError> {
        let (pieces, queue) = sync_channel(PIECES_MAX);
        let (storage, options, path) = (Arc::clone(&self.storage), self.options, path.to_owned());
        let url = storage.url(&path);
        let thread = std::thread::Builder::new()
            .name("chunk".to_owned())
            .spawn(move || {
                let mut queue = Queue { queue, piece: Vec::new(), at: 0, done: false };
                storage.upload(&path, &mut queue, options)
            })
            .map_err(|source| Error::from_io("start a thread for", url, source))?;
        Ok(Box::new(Upload { pieces: Some(pieces), piece: Vec::new(), thread: Some(thread) }))
    }

    fn publish(&mut self, path: &str, bytes: &[u8]) -> Result<(), DataError> {
        Ok(self.storage.publish(path, bytes)?)
    }
}

/// What the importing thread hands to the one that stores. A queue that ends without the last
/// word was given up: a part of a chunk must not be published.
enum Piece {
    Bytes(Vec<u8>),
    End,
}

struct Upload {
    pieces: Option<SyncSender<Piece>>,
    piece: Vec<u8>,
    thread: Option<JoinHandle<crate::Result<Sum>>>,
}

impl Upload {
    fn send(&mut self, piece: Piece) -> Result<(), DataError> {
        let sent = self.pieces.as_ref().map(|pieces| pieces.send(piece));
        match sent {
            Some(Ok(())) => Ok(()),
            // It does not listen any more: it failed, and says why.
            Some(Err(_)) | None => self.join(),
        }
    }

    fn join(&mut self) -> Result<(), DataError> {
        self.pieces = None;
        let stored = self.thread.take().map(JoinHandle::join);
        match stored {
            Some(Ok(Ok(_))) | None => Ok(()),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Growing for Upload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() < PIECE_BYTES {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece);
        self.send(Piece::Bytes(piece))
    }

    fn finish(mut self: Box<Self>) -> Result<(), DataError> {
        let piece = std::mem::take(&mut self.piece);
        if !piece.is_empty() {
            self.send(Piece::Bytes(piece))?;
        }
        self.send(Piece::End)?;
        self.join()
    }
}

struct Queue {
    queue: Receiver<Piece>,
    piece: Vec<u8>,
    at: usize,
    done: bool,
}

impl Read for Queue {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() && !self.done {
            match self.queue.recv() {
                Ok(Piece::Bytes(piece)) => (self.piece, self.at) = (piece, 0),
                Ok(Piece::End) => self.done = true,
                Err(_) => return Err(io::Error::other("the import was given up")),
            }
        }
        let size = buffer.len().min(self.piece.len() - self.at);
        buffer[..size].copy_from_slice(&self.piece[self.at..self.at + size]);
        self.at += size;
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_a_url_is_a_url() {
        assert_eq!(parent("hdfs://ns/a/b"), Some(("hdfs://ns/a", "b")));
        assert_eq!(parent("hdfs://ns/a"), Some(("hdfs://ns/", "a")));
        assert_eq!(parent("file:///a"), Some(("file:///", "a")));
        for root in ["hdfs://ns/", "hdfs://ns", "file:///", "a/b"] {
            assert_eq!(parent(root), None, "{root}");
        }
    }

    /// The same code over `file://`: HDFS itself is asked in the storage's own tests.
    #[test]
    fn a_set_goes_through_a_storage_and_back() {
        use model::options::DataFormat;

        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| format!("file://{}/{name}", folder.path().display());
        std::fs::create_dir(folder.path().join("set")).unwrap();
        let text: String = (0..200_000).map(|number| format!("{number}\n")).collect();
        std::fs::write(folder.path().join("set/a"), &text).unwrap();
        std::fs::write(folder.path().join("set/b"), &text).unwrap();
        let settings = HdfsSettings::default();
        let source = StoredSource::open(&place("set"), &settings).unwrap();
        let chunk = 1_000_000;
        let mut target = StoredDestination::open(&place("copy"), &settings, 2, chunk).unwrap();
        let made = super::super::import(&source, DataFormat::Lines, chunk, &mut target).unwrap();
        assert_eq!(made.records(), 400_000);
        assert_eq!(made.bytes(), 2 * text.len() as u64);
        let copy = StoredSource::open(&place("copy/"), &settings).unwrap();
        let again = super::super::scan(&copy, DataFormat::Lines, chunk).unwrap();
        assert_eq!(again.files, made.files);
        assert_eq!(again.records(), 400_000);
        assert!(copy.own_index().unwrap().is_some());
        let error = super::super::import(&source, DataFormat::Lines, chunk, &mut target);
        assert!(error.unwrap_err().to_string().contains("exists already"));

        // A set of one file; one that is not there; an import that is given up on the way.
        let one = StoredSource::open(&place("set/a"), &settings).unwrap();
        let index = super::super::scan(&one, DataFormat::Lines, chunk).unwrap();
        assert_eq!((index.files[0].path.as_str(), index.records()), ("", 200_000));
        let error = StoredSource::open(&place("none"), &settings).unwrap_err();
        assert!(error.to_string().contains("does not exist"), "{error}");
        let mut target = StoredDestination::open(&place("part"), &settings, 2, chunk).unwrap();
        target.prepare().unwrap();
        let mut growing = target.create("chunk-000000").unwrap();
        growing.write(&vec![1; 3 << 20]).unwrap();
        drop(growing);
        drop(target);
        assert!(!folder.path().join("part/chunk-000000").exists());
    }
}
