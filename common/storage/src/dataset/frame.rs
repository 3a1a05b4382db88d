//! Where records begin and end, format by format.

use model::options::DataFormat;

use super::source::beside;
use super::{DataError, Found, PIECE_BYTES, Source};

/// First word of every part of a record in RecordIO, little-endian.
pub(super) const MAGIC: u32 = 0xced7_230a;
/// Bytes of the magic word and of the word with kind and length.
pub(super) const HEADER_BYTES: u64 = 8;
/// Most bytes of one part, by the 29 bits of its length.
pub(super) const PART_BYTES_MAX: u64 = (1 << 29) - 1;
/// Largest record. A worker holds a record whole, and RecordIO can count no further.
pub(super) const RECORD_BYTES_MAX: u64 = 1 << 29;
/// After a record this large only the next header is read, not the bytes in between.
const HOP_BYTES: u64 = 256 << 10;
const HEADER_PIECE_BYTES: usize = 4096;

/// One file, read piece by piece.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    source: &'a dyn Source,
    pub(super) file: &'a Found,
    buffer: Vec<u8>,
    /// Place in the file of the buffer's first byte.
    start: u64,
    piece: usize,
}

impl<'a> Pieces<'a> {
    fn new(source: &'a dyn Source, file: &'a Found) -> Self {
        Self { source, file, buffer: Vec::new(), start: 0, piece: PIECE_BYTES }
    }

    pub(super) fn damaged(&self, offset: u64, problem: impl Into<String>) -> DataError {
        DataError::Damaged { url: self.url(), offset, problem: problem.into() }
    }

    fn url(&self) -> String {
        self.source.url(&self.file.path)
    }

    /// At least `need` bytes from `offset` on, which the file had when it was listed.
    pub(super) fn peek(&mut self, offset: u64, need: usize) -> Result<&[u8], DataError> {
        let held = self.buffer.len() as u64;
        let inside = self.start <= offset && offset + need as u64 <= self.start + held;
        if !inside {
            let left = usize::try_from(self.file.bytes - offset).unwrap_or(usize::MAX);
            self.buffer.resize(self.piece.max(need).min(left), 0);
            let read = self.source.read_at(&self.file.path, offset, &mut self.buffer)?;
            self.buffer.truncate(read);
            self.start = offset;
            if read < need {
                let (end, bytes) = (offset + read as u64, self.file.bytes);
                let problem = format!("it ends at byte {end} and had {bytes} when it was listed");
                return Err(DataError::Changed { url: self.url(), problem });
            }
        }
        let from = usize::try_from(offset - self.start).expect("within the buffer");
        Ok(&self.buffer[from..])
    }

    /// The content of a record that is small enough to be read for its own sake.
    pub(super) fn content(&mut self, offset: u64, bytes: u64) -> Result<Option<&[u8]>, DataError> {
        if bytes > HOP_BYTES {
            self.piece = HEADER_PIECE_BYTES;
            return Ok(None);
        }
        self.piece = PIECE_BYTES;
        let need = usize::try_from(bytes).expect("a few hundred KiB");
        Ok(Some(&self.peek(offset, need)?[..need]))
    }

    /// Calls `each` with the bytes of a range, piece by piece.
    pub(super) fn copy(
        &mut self,
        offset: u64,
        bytes: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        self.piece = PIECE_BYTES;
        let mut at = offset;
        while at < offset + bytes {
            let left = usize::try_from(offset + bytes - at).unwrap_or(usize::MAX);
            let piece = self.peek(at, 1)?;
            let piece = &piece[..piece.len().min(left)];
            each(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Where the record that begins at `offset` ends.
    fn end(&mut self, format: DataFormat, offset: u64) -> Result<u64, DataError> {
        let end = match format {
            DataFormat::RecordIo => self.recordio_end(offset)?,
            DataFormat::Lines => self.line_end(offset)?,
            DataFormat::Fixed(bytes) => offset + u64::from(bytes),
            DataFormat::Files => self.file.bytes,
        };
        if end - offset > RECORD_BYTES_MAX {
            let problem = format!(
                "a record of {} bytes is larger than {RECORD_BYTES_MAX}, which a worker can hold",
                end - offset
            );
            return Err(self.damaged(offset, problem));
        }
        Ok(end)
    }

    fn recordio_end(&mut self, offset: u64) -> Result<u64, DataError> {
        let mut at = offset;
        loop {
            if self.file.bytes - at < HEADER_BYTES {
                return Err(self.damaged(offset, "the file ends within the head of a record"));
            }
            let head = self.peek(at, 8)?;
            let word =
                |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
            let (magic, kind, bytes) = (word(0), word(4) >> 29, u64::from(word(4) & 0x1fff_ffff));
            if magic != MAGIC {
                let what = if at == offset { "record" } else { "part of a record" };
                let problem = format!("no RecordIO {what} begins at byte {at}");
                return Err(self.damaged(offset, problem));
            }
            let expected = if at == offset { kind <= 1 } else { kind == 2 || kind == 3 };
            if !expected {
                let problem = format!("a part of kind {kind} stands at byte {at}, out of order");
                return Err(self.damaged(offset, problem));
            }
            let end = at + HEADER_BYTES + bytes.next_multiple_of(4);
            if end > self.file.bytes {
                let problem =
                    format!("its record reaches to byte {end}, the file to {}", self.file.bytes);
                return Err(self.damaged(offset, problem));
            }
            at = end;
            if kind == 0 || kind == 3 {
                return Ok(at);
            }
            if at - offset > RECORD_BYTES_MAX {
                return Ok(at); // the caller refuses it
            }
        }
    }

    fn line_end(&mut self, offset: u64) -> Result<u64, DataError> {
        let mut at = offset;
        while at < self.file.bytes && at - offset <= RECORD_BYTES_MAX {
            let piece = self.peek(at, 1)?;
            if let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
                return Ok(at + end as u64 + 1);
            }
            at += piece.len() as u64;
        }
        Ok(at)
    }
}

/// A record, as [`walk`] finds it: number of its file, and its bytes there with all framing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

type Visit<'v> = dyn FnMut(&mut Pieces<'_>, Record) -> Result<(), DataError> + 'v;

/// Finds every record of every file, in order; returns the files that can hold records.
pub(super) fn walk(
    source: &dyn Source,
    format: DataFormat,
    visit: &mut Visit<'_>,
) -> Result<Vec<Found>, DataError> {
    let unusable = |problem: String| DataError::Unusable { url: source.url(""), problem };
    if format == DataFormat::Fixed(0) {
        return Err(unusable("its records have no bytes; give their size".to_owned()));
    }
    let mut files = source.files()?;
    files.retain(|file| !beside(format, &file.path));
    let mut found = false;
    for (file, number) in files.iter().zip(0_u32..) {
        let mut pieces = Pieces::new(source, file);
        if let DataFormat::Fixed(record) = format
            && file.bytes % u64::from(record) != 0
        {
            let whole = file.bytes - file.bytes % u64::from(record);
            let problem = format!("the last record has fewer than {record} bytes");
            return Err(pieces.damaged(whole, problem));
        }
        let mut offset = 0;
        // A file of a set of files is a record even where it is empty.
        while offset < file.bytes || (format == DataFormat::Files && offset == 0) {
            let end = pieces.end(format, offset)?;
            visit(&mut pieces, Record { file: number, offset, bytes: end - offset })?;
            found = true;
            if end == 0 {
                break;
            }
            offset = end;
        }
    }
    if !found {
        return Err(unusable("it has no records".to_owned()));
    }
    Ok(files)
}
