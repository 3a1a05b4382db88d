//! What can be wrong with a data set.

/// Why a data set cannot be indexed, imported or read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The bytes are not what the format says; the place is where the record begins.
    #[error("{url} is damaged at byte {offset}: {problem}")]
    Damaged { url: String, offset: u64, problem: String },
    /// A file changed under the reader, or since it was indexed.
    #[error("{url} has changed: {problem}")]
    Changed { url: String, problem: String },
    /// The set as a whole cannot be used; the text says what to do.
    #[error("{url} cannot be used as a data set: {problem}")]
    Unusable { url: String, problem: String },
    /// A text that is no index.
    #[error("the index {url} is not understood: {problem}")]
    Index { url: String, problem: String },
    #[error(transparent)]
    Storage(#[from] crate::Error),
}
