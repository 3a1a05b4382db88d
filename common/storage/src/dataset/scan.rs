//! Making an index of a data set as it lies there.

use crc32fast::Hasher;
use model::options::DataFormat;

use super::frame::walk;
use super::{BLOCK_BYTES, Block, DataError, INDEX_BYTES_MAX, Index, Source};

/// Records of a block: the places of its records must fit in memory beside its bytes, however
/// small they are.
const BLOCK_RECORDS_MAX: u64 = 1 << 16;

/// Indexes a data set: reads small records whole (and sums them), hops over large ones.
///
/// # Errors
/// A record that is damaged, with its file and place; a set without records; the source's own.
pub fn scan(source: &dyn Source, format: DataFormat, chunk_bytes: u64) -> Result<Index, DataError> {
    let mut builder = Builder::new(format, chunk_bytes);
    let files = walk(source, format, &mut |pieces, record| {
        builder.begin(record.file, record.offset, record.bytes);
        // Whole files are summed by whoever has them in memory anyway.
        let content = match format {
            DataFormat::Files => None,
            DataFormat::RecordIo | DataFormat::Lines | DataFormat::Fixed(_) => {
                pieces.content(record.offset, record.bytes)?
            }
        };
        match content {
            Some(content) => builder.sum(content),
            None => builder.skip(),
        }
        Ok(())
    })?;
    let index = Index { format, chunk_bytes, files, chunks: builder.finish() };
    let bytes = index.encode().len() as u64;
    if bytes > INDEX_BYTES_MAX {
        let problem = format!(
            "its index would have {bytes} bytes, more than {INDEX_BYTES_MAX}; import it, which \
             packs its files"
        );
        return Err(DataError::Unusable { url: source.url(""), problem });
    }
    Ok(index)
}

/// Puts records together to blocks, and blocks to chunks.
#[derive(Debug)]
pub(super) struct Builder {
    format: DataFormat,
    chunk_bytes: u64,
    chunks: Vec<Vec<Block>>,
    chunk: Vec<Block>,
    block: Option<Block>,
    /// The sum of the block so far; none where a part of it was not read.
    hasher: Option<Hasher>,
}

impl Builder {
    pub(super) const fn new(format: DataFormat, chunk_bytes: u64) -> Self {
        Self {
            format,
            chunk_bytes,
            chunks: Vec::new(),
            chunk: Vec::new(),
            block: None,
            hasher: None,
        }
    }

    /// Whether a record of so many bytes would begin another chunk.
    pub(super) fn fills(&self, bytes: u64) -> bool {
        let closed: u64 = self.chunk.iter().map(|block| block.bytes).sum();
        match &self.block {
            Some(block) => closed + block.bytes + bytes > self.chunk_bytes,
            None => false,
        }
    }

    /// Adds a record; what it holds is then told by [`Self::sum`] or [`Self::skip`].
    pub(super) fn begin(&mut self, file: u32, offset: u64, bytes: u64) {
        if self.fills(bytes) {
            self.close_block();
            self.chunks.push(std::mem::take(&mut self.chunk));
        }
        let full = self.block.is_some_and(|block| {
            block.bytes + bytes > BLOCK_BYTES
                || block.records >= BLOCK_RECORDS_MAX
                || (block.file != file && self.format != DataFormat::Files)
        });
        if full {
            self.close_block();
        }
        let block = self.block.get_or_insert_with(|| {
            self.hasher = Some(Hasher::new());
            Block { file, offset, bytes: 0, records: 0, crc32: None }
        });
        block.bytes += bytes;
        block.records += 1;
    }

    pub(super) fn sum(&mut self, content: &[u8]) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(content);
        }
    }

    pub(super) fn skip(&mut self) {
        self.hasher = None;
    }

    fn close_block(&mut self) {
        if let Some(mut block) = self.block.take() {
            block.crc32 = self.hasher.take().map(Hasher::finalize);
            self.chunk.push(block);
        }
    }

    pub(super) fn finish(mut self) -> Vec<Vec<Block>> {
        self.close_block();
        if !self.chunk.is_empty() {
            self.chunks.push(self.chunk);
        }
        self.chunks
    }
}
