//! What can go wrong with a file of the cluster.

use std::io;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open {url:?}: {remedy}")]
    Unsupported { url: String, remedy: &'static str },
    #[error("{path:?} is not a path within a storage: {problem}")]
    Path { path: String, problem: &'static str },
    #[error("{url} exists already and is never overwritten")]
    AlreadyExists { url: String },
    #[error("{url} does not exist")]
    NotFound { url: String },
    #[error("{url} is not a regular file")]
    NotAFile { url: String },
    #[error("{url} has {bytes} bytes, more than {limit} that are read whole")]
    TooLarge { url: String, bytes: u64, limit: u64 },
    /// No space or no quota is left: retrying is of use only once some is freed.
    #[error("cannot {verb} {url}: no space left")]
    NoSpace { verb: &'static str, url: String, source: io::Error },
    #[error("cannot {verb} {url}")]
    Io { verb: &'static str, url: String, source: io::Error },
}

impl Error {
    /// Sorts a system error by what a caller can do about it.
    pub(crate) fn from_io(verb: &'static str, url: String, source: io::Error) -> Self {
        let kind = source.kind();
        if kind == io::ErrorKind::AlreadyExists {
            Self::AlreadyExists { url }
        } else if kind == io::ErrorKind::NotFound {
            Self::NotFound { url }
        } else if no_space(kind) {
            Self::NoSpace { verb, url, source }
        } else {
            Self::Io { verb, url, source }
        }
    }
}

fn no_space(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// An error and its causes on one line, for messages that leave the process.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
