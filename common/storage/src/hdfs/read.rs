//! Reading: one stream of pieces for each call, taken up again where it broke.

use std::future::poll_fn;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use hdfs_native::HdfsError;

use super::HdfsStorage;
use super::errors::{Kind, kind};
use super::link::Link;
use crate::{Error, Result};

/// For one piece (64 KiB): the client itself goes on to another replica after 15 s.
const PIECE_LIMIT: Duration = Duration::from_secs(40);

/// Tries in a row that bring no byte.
const FAILURES_MAX: u32 = 3;

type Pieces = Pin<Box<dyn Stream<Item = hdfs_native::Result<Bytes>> + Send>>;

/// Bytes of a file, from one place up to another.
pub(super) struct Reader {
    storage: HdfsStorage,
    path: String,
    at: u64,
    end: u64,
    /// The link outlives its stream, whose tasks run on it.
    stream: Option<(Pieces, Arc<Link>)>,
    piece: Bytes,
    failures: u32,
}

impl Reader {
    /// Opens a file and puts the reader at `from`; it ends after `bytes` or with the file.
    pub(super) fn open(storage: &HdfsStorage, path: &str, from: u64, bytes: u64) -> Result<Self> {
        let mut reader = Self {
            storage: storage.clone(),
            path: path.to_owned(),
            at: from,
            end: from,
            stream: None,
            piece: Bytes::new(),
            failures: 0,
        };
        let length = reader.connect(from, bytes)?;
        if length < from {
            let url = crate::Storage::url(storage, path);
            return Err(Error::PastEnd { url, from, length });
        }
        Ok(reader)
    }

    /// Asks where the blocks lie and starts to read; returns the length of the file.
    fn connect(&mut self, from: u64, bytes: u64) -> Result<u64> {
        let place = self.storage.place(&self.path)?;
        let (opened, _) = self.storage.links.call(self.storage.patience(), |link| {
            let place = place.clone();
            async move { Ok((link.client.read(&place).await?, link)) }
        });
        let (file, link) = opened.map_err(|error| self.storage.told("open", &self.path, &error))?;
        let length = file.file_length() as u64;
        if length < from {
            return Ok(length);
        }
        let count = bytes.min(length - from);
        self.at = from;
        self.end = from + count;
        let whole = |number: u64| usize::try_from(number).expect("usize has 64 bits here");
        self.stream = Some((Box::pin(file.read_range_stream(whole(from), whole(count))), link));
        Ok(length)
    }

    /// The next bytes; none at the end.
    pub(super) fn piece(&mut self) -> Result<Option<Bytes>> {
        loop {
            if self.end <= self.at {
                self.stream = None;
                return Ok(None);
            }
            if self.stream.is_none() {
                let (from, rest) = (self.at, self.end - self.at);
                let end = self.end;
                self.connect(from, rest)?;
                if self.end != end {
                    let words = "it became shorter while it was read".to_owned();
                    return Err(self.broken(&HdfsError::DataTransferError(words)));
                }
            }
            let (stream, link) = self.stream.as_mut().expect("it was opened just now");
            let next =
                async { poll_fn(|context| stream.as_mut().poll_next(context)).await.transpose() };
            match link.run(PIECE_LIMIT, next) {
                Ok(Some(piece)) => {
                    self.at += piece.len() as u64;
                    self.failures = 0;
                    if !piece.is_empty() {
                        return Ok(Some(piece));
                    }
                }
                Ok(None) => {
                    let words = "its blocks end before the file does".to_owned();
                    self.again(&HdfsError::DataTransferError(words))?;
                }
                Err(error) => self.again(&error)?,
            }
        }
    }

    /// Lets the next piece come from a fresh stream, a bounded number of times.
    fn again(&mut self, error: &HdfsError) -> Result<()> {
        self.stream = None;
        self.failures += 1;
        if kind(error) == Kind::Unavailable && self.failures < FAILURES_MAX {
            return Ok(());
        }
        Err(self.broken(error))
    }

    fn broken(&self, error: &HdfsError) -> Error {
        self.storage.told("read", &self.path, error)
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() && !buffer.is_empty() {
            self.piece = self.piece().map_err(Error::into_io)?.unwrap_or_default();
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}
