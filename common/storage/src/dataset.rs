//! Data sets, cut into chunks at the boundaries of their records (paper, section 5.1).
//!
//! A data set is a folder or a file. An [`Index`] says which bytes of which file hold which
//! records: it is made once, by a scan ([`scan()`]) or by an import ([`import()`]), and everyone who
//! reads the set goes by the same one. Nothing here holds more of a set in memory than a piece of
//! [`PIECE_BYTES`] and the index itself.

mod error;
mod frame;
mod import;
mod index;
mod scan;
mod source;
#[cfg(test)]
mod tests;

pub use error::DataError;
pub use import::{Destination, Growing, LocalDestination, import};
pub use index::{Block, DataFile, INDEX, INDEX_BYTES_MAX, Index, JOB_INDEX, SCHEMA};
pub use scan::scan;
pub use source::{Found, LocalSource, Source, index_of};

/// About how large a block is: the unit in which a set is read, checked and shuffled. Large
/// enough that a disk or a DataNode streams, small enough that a few fit in a worker's memory.
pub const BLOCK_BYTES: u64 = 4 << 20;

/// What is read at once while a set is scanned.
pub const PIECE_BYTES: usize = 1 << 20;
