//! Writing a data set anew as chunk files, with its index.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use model::options::DataFormat;

use super::frame::{HEADER_BYTES, MAGIC, PART_BYTES_MAX, Pieces, Record, walk};
use super::scan::Builder;
use super::{DataError, DataFile, INDEX, Index, Source};
use crate::{Error, FileStorage, Storage};

/// Where an imported data set goes.
pub trait Destination: std::fmt::Debug {
    fn url(&self, path: &str) -> String;

    /// Makes the folder. It must be missing or empty: nothing of another set may lie between the
    /// chunks.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], or the storage's own.
    fn prepare(&mut self) -> Result<(), DataError>;

    /// Begins a fresh file.
    ///
    /// # Errors
    /// The storage's own.
    fn create(&mut self, path: &str) -> Result<Box<dyn Growing>, DataError>;

    /// Makes a file appear whole or not at all.
    ///
    /// # Errors
    /// The storage's own.
    fn publish(&mut self, path: &str, bytes: &[u8]) -> Result<(), DataError>;
}

/// A file that is being written.
pub trait Growing {
    /// # Errors
    /// The storage's own.
    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError>;

    /// Puts the file on stable storage.
    ///
    /// # Errors
    /// The storage's own.
    fn finish(self: Box<Self>) -> Result<(), DataError>;
}

/// Copies a data set in chunks of about `chunk_bytes`, one file each, and publishes the index
/// last: a set without one was not imported to its end. Files become records of RecordIO.
///
/// # Errors
/// As [`super::scan()`], and where the destination cannot be written.
pub fn import(
    source: &dyn Source,
    format: DataFormat,
    chunk_bytes: u64,
    destination: &mut dyn Destination,
) -> Result<Index, DataError> {
    destination.prepare()?;
    let kept = if format == DataFormat::Files { DataFormat::RecordIo } else { format };
    let mut writer = Writer {
        format,
        builder: Builder::new(kept, chunk_bytes),
        destination,
        files: Vec::new(),
        open: None,
    };
    walk(source, format, &mut |pieces, record| writer.record(pieces, record))?;
    writer.close()?;
    let Writer { builder, files, destination, .. } = writer;
    let index = Index { format: kept, chunk_bytes, files, chunks: builder.finish() };
    destination.publish(INDEX, &index.encode())?;
    Ok(index)
}

struct Writer<'a> {
    format: DataFormat,
    builder: Builder,
    destination: &'a mut dyn Destination,
    files: Vec<DataFile>,
    open: Option<Box<dyn Growing>>,
}

impl Writer<'_> {
    fn record(&mut self, pieces: &mut Pieces<'_>, record: Record) -> Result<(), DataError> {
        match self.format {
            DataFormat::RecordIo | DataFormat::Fixed(_) => {
                self.begin(record.bytes)?;
                self.copy(pieces, record.offset, record.bytes)
            }
            DataFormat::Lines => {
                // Only the last line of a file can lack its end; another may follow it here.
                let last = record.offset + record.bytes == pieces.file.bytes;
                let ended = !last || pieces.peek(pieces.file.bytes - 1, 1)?.starts_with(b"\n");
                self.begin(record.bytes + u64::from(!ended))?;
                self.copy(pieces, record.offset, record.bytes)?;
                if ended { Ok(()) } else { self.put(b"\n") }
            }
            DataFormat::Files => self.framed(pieces, record.bytes),
        }
    }

    /// Writes a file as one record of RecordIO. A word of its content that looks like the magic
    /// one, at a place divisible by four, is left out and ends a part: readers put it back.
    fn framed(&mut self, pieces: &mut Pieces<'_>, bytes: u64) -> Result<(), DataError> {
        let mut cuts = Vec::new();
        let mut at = 0;
        let mut word = [0_u8; 4];
        pieces.copy(0, bytes, &mut |piece| {
            for byte in piece {
                word[usize::try_from(at % 4).expect("below four")] = *byte;
                at += 1;
                if at % 4 == 0 && u32::from_le_bytes(word) == MAGIC {
                    cuts.push(at - 4);
                }
            }
            Ok(())
        })?;
        let starts = std::iter::once(0).chain(cuts.iter().map(|cut| cut + 4));
        let ends = cuts.iter().copied().chain(std::iter::once(bytes));
        let parts: Vec<(u64, u64)> = starts.zip(ends).collect();
        let size = |(start, end): &(u64, u64)| HEADER_BYTES + (end - start).next_multiple_of(4);
        if let Some((start, _)) = parts.iter().find(|(start, end)| end - start > PART_BYTES_MAX) {
            return Err(pieces.damaged(*start, "the file is too large for a record"));
        }
        self.begin(parts.iter().map(size).sum())?;
        for (number, (start, end)) in parts.iter().enumerate() {
            let kind: u32 = match (number, number + 1 == parts.len()) {
                (0, true) => 0,
                (0, false) => 1,
                (_, false) => 2,
                (_, true) => 3,
            };
            let bytes = end - start;
            let length = u32::try_from(bytes).expect("at most 29 bits, checked above");
            self.put(&MAGIC.to_le_bytes())?;
            self.put(&(kind << 29 | length).to_le_bytes())?;
            self.copy(pieces, *start, bytes)?;
            let padding = usize::try_from(bytes.next_multiple_of(4) - bytes).expect("below four");
            self.put(&[0; 3][..padding])?;
        }
        Ok(())
    }

    /// Begins a record of so many bytes, in another file where the present chunk is full.
    fn begin(&mut self, bytes: u64) -> Result<(), DataError> {
        if self.builder.fills(bytes) {
            self.close()?;
        }
        if self.open.is_none() {
            let path = format!("chunk-{:06}", self.files.len());
            self.open = Some(self.destination.create(&path)?);
            self.files.push(DataFile { path, bytes: 0 });
        }
        let number = u32::try_from(self.files.len() - 1).expect("fewer chunks than bytes of one");
        let file = self.files.last_mut().expect("pushed when it was opened");
        self.builder.begin(number, file.bytes, bytes);
        file.bytes += bytes;
        Ok(())
    }

    fn copy(&mut self, pieces: &mut Pieces<'_>, offset: u64, bytes: u64) -> Result<(), DataError> {
        pieces.copy(offset, bytes, &mut |piece| self.put(piece))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.builder.sum(bytes);
        self.open.as_mut().expect("a record was begun").write(bytes)
    }

    fn close(&mut self) -> Result<(), DataError> {
        match self.open.take() {
            Some(file) => file.finish(),
            None => Ok(()),
        }
    }
}

/// A folder of this machine, or a shared mount.
#[derive(Debug)]
pub struct LocalDestination {
    place: PathBuf,
    folder: FileStorage,
}

impl LocalDestination {
    #[must_use]
    pub fn new(place: impl Into<PathBuf>) -> Self {
        let place = place.into();
        Self { folder: FileStorage::new(&place), place }
    }
}

impl Destination for LocalDestination {
    fn url(&self, path: &str) -> String {
        self.folder.url(path)
    }

    fn prepare(&mut self) -> Result<(), DataError> {
        let fail = |source| Error::from_io("make the folder", self.folder.url(""), source);
        fs::create_dir_all(&self.place).map_err(fail)?;
        if fs::read_dir(&self.place).map_err(fail)?.next().is_some() {
            return Err(Error::AlreadyExists { url: self.folder.url("") }.into());
        }
        Ok(())
    }

    fn create(&mut self, path: &str) -> Result<Box<dyn Growing>, DataError> {
        let place = self.place.join(path);
        let url = self.folder.url(path);
        let created = OpenOptions::new().write(true).create_new(true).open(&place);
        let file = created.map_err(|source| Error::from_io("create", url.clone(), source))?;
        Ok(Box::new(LocalFile { file: BufWriter::with_capacity(1 << 18, file), url }))
    }

    fn publish(&mut self, path: &str, bytes: &[u8]) -> Result<(), DataError> {
        // The names of the chunks must be as safe as the index that names them.
        sync(&self.place).map_err(|source| Error::from_io("sync", self.url(""), source))?;
        Ok(self.folder.publish(path, bytes)?)
    }
}

fn sync(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

struct LocalFile {
    file: BufWriter<File>,
    url: String,
}

impl Growing for LocalFile {
    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.file
            .write_all(bytes)
            .map_err(|source| Error::from_io("write", self.url.clone(), source).into())
    }

    fn finish(mut self: Box<Self>) -> Result<(), DataError> {
        self.file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all())
            .map_err(|source| Error::from_io("write", self.url.clone(), source).into())
    }
}
