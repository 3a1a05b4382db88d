//! The index of a data set: which bytes of which file hold which records.

use model::options::DataFormat;
use serde::{Deserialize, Serialize};

use super::DataError;
use crate::READ_BYTES_MAX;

/// Name of the index of an imported data set, in its folder.
pub const INDEX: &str = "index.json";
/// Name of the index of a job's data set, in the job's folder beside its checkpoints.
pub const JOB_INDEX: &str = "data.json";
pub const SCHEMA: &str = "optimus.data/1";

/// A longer index could not be read back whole.
pub const INDEX_BYTES_MAX: u64 = READ_BYTES_MAX;

/// The chunks of a data set. Every byte of every file belongs to exactly one block, so that a
/// record can neither be read twice nor be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pub format: DataFormat,
    /// About how large a chunk is; one record may be larger.
    pub chunk_bytes: u64,
    pub files: Vec<DataFile>,
    /// Blocks of each chunk, in the order of the files and of the bytes in them.
    pub chunks: Vec<Vec<Block>>,
}

/// A file of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    /// Below the data set's URL; empty where that is the file itself.
    pub path: String,
    pub bytes: u64,
}

/// Successive records. In a set of [`DataFormat::Files`] they are whole files from `file` on;
/// else they lie in this one file from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub file: u32,
    pub offset: u64,
    pub bytes: u64,
    pub records: u64,
    /// CRC-32 (IEEE) of the bytes, where they were read.
    pub crc32: Option<u32>,
}

/// A block as the document has it: file, offset, bytes, records, checksum.
type Row = (u32, u64, u64, u64, Option<u32>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    format: String,
    record_bytes: Option<u32>,
    chunk_bytes: u64,
    records: u64,
    bytes: u64,
    files: Vec<DataFile>,
    chunks: Vec<Vec<Row>>,
}

impl Index {
    #[must_use]
    pub fn records(&self) -> u64 {
        self.chunks.iter().flatten().map(|block| block.records).sum()
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The document, on one line.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let row = |b: &Block| (b.file, b.offset, b.bytes, b.records, b.crc32);
        let document = Document {
            schema: SCHEMA.to_owned(),
            format: self.format.name().to_owned(),
            record_bytes: self.format.record_bytes(),
            chunk_bytes: self.chunk_bytes,
            records: self.records(),
            bytes: self.bytes(),
            files: self.files.clone(),
            chunks: self.chunks.iter().map(|chunk| chunk.iter().map(row).collect()).collect(),
        };
        serde_json::to_vec(&document).expect("texts and whole numbers always become JSON")
    }

    /// Reads a document and checks that it covers every byte of every file exactly once.
    ///
    /// # Errors
    /// [`DataError::Index`], naming `url`.
    pub fn decode(text: &[u8], url: &str) -> Result<Self, DataError> {
        let wrong = |problem: String| DataError::Index { url: url.to_owned(), problem };
        let document: Document =
            serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        if document.schema != SCHEMA {
            return Err(wrong(format!("its schema is {:?}, not {SCHEMA:?}", document.schema)));
        }
        let Some(format) = DataFormat::named(&document.format, document.record_bytes) else {
            return Err(wrong(format!("its format is {:?}", document.format)));
        };
        let block =
            |(file, offset, bytes, records, crc32)| Block { file, offset, bytes, records, crc32 };
        let index = Self {
            format,
            chunk_bytes: document.chunk_bytes,
            files: document.files,
            chunks: document
                .chunks
                .into_iter()
                .map(|chunk| chunk.into_iter().map(block).collect())
                .collect(),
        };
        index.check(document.records, document.bytes).map_err(wrong)?;
        Ok(index)
    }

    fn check(&self, records: u64, bytes: u64) -> Result<(), String> {
        for file in &self.files {
            let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
            let alone = file.path.is_empty() && self.files.len() == 1;
            if !alone && !file.path.split('/').all(plain) {
                return Err(format!("{:?} is not a path within the data set", file.path));
            }
        }
        let sizes = || self.files.iter().map(|file| file.bytes);
        let blocks = || self.chunks.iter().flatten();
        let sum = |mut numbers: Box<dyn Iterator<Item = u64> + '_>| {
            numbers.try_fold(0_u64, u64::checked_add)
        };
        if sum(Box::new(sizes())) != Some(bytes) {
            return Err(format!("its files do not add up to {bytes} bytes"));
        }
        if sum(Box::new(blocks().map(|block| block.records))) != Some(records) || records == 0 {
            return Err(format!("its chunks do not add up to {records} records"));
        }
        if self.chunks.iter().any(Vec::is_empty) || blocks().any(|block| block.records == 0) {
            return Err("a chunk or a block has no record".to_owned());
        }
        self.check_cover()
    }

    /// Blocks follow each other without a gap through all files.
    fn check_cover(&self) -> Result<(), String> {
        let at = |file: u32, offset: u64| {
            Err(format!("its blocks do not follow each other in file {file} at byte {offset}"))
        };
        let mut files = self.files.iter().zip(0_u32..).peekable();
        let mut offset = 0;
        for block in self.chunks.iter().flatten() {
            if self.format == DataFormat::Files {
                let mut bytes = 0;
                for number in 0..block.records {
                    match files.next() {
                        Some((file, found)) if number > 0 || found == block.file => {
                            bytes += file.bytes;
                        }
                        Some(_) | None => return at(block.file, block.offset),
                    }
                }
                if bytes != block.bytes || block.offset != 0 {
                    return at(block.file, block.offset);
                }
                continue;
            }
            // Files without a record have no block.
            while files.next_if(|(file, _)| file.bytes == offset).is_some() {
                offset = 0;
            }
            let Some((file, number)) = files.peek() else { return at(block.file, offset) };
            let end = block.offset.checked_add(block.bytes);
            let fits = end.is_some_and(|end| end <= file.bytes) && block.bytes > 0;
            if *number != block.file || block.offset != offset || !fits {
                return at(block.file, block.offset);
            }
            offset += block.bytes;
        }
        while files.next_if(|(file, _)| file.bytes == offset).is_some() {
            offset = 0;
        }
        match files.peek() {
            Some((_, number)) => at(*number, offset),
            None => Ok(()),
        }
    }
}
