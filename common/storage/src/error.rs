//! What can go wrong with a file of the cluster.

use std::io;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open {url:?}: {remedy}")]
    Unsupported { url: String, remedy: &'static str },
    #[error(
        "hadoop_conf_dir: {folder:?} is not a folder here; give that of core-site.xml and \
         hdfs-site.xml, or leave the setting out"
    )]
    ConfDir { folder: String },
    #[error("kerberos_keytab: cannot read {file:?}; give the file to this user, or another one")]
    Keytab { file: String, source: io::Error },
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
    /// The system cannot serve for now: no NameNode is active or answers, it is in safe mode, or
    /// no DataNode takes part. The same call may succeed later. Tries with growing pauses were
    /// made already, so whoever gets this should leave it for a while. Where it comes from a
    /// write, the file may be there or not.
    #[error("cannot {verb} {url} for now")]
    Unavailable { verb: &'static str, url: String, source: io::Error },
    #[error("cannot read {url} at byte {from}: it has {length}")]
    PastEnd { url: String, from: u64, length: u64 },
    #[error("cannot {verb} {url}")]
    Io { verb: &'static str, url: String, source: io::Error },
}

impl Error {
    /// True where the same call may succeed later without anybody's help.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// As an error of a stream; [`Self::from_stream`] gets it back.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::other(self)
    }

    /// What a reader of [`crate::Storage::reader`] reported: the storage's own error where there
    /// is one.
    #[must_use]
    pub fn from_stream(verb: &'static str, url: String, error: io::Error) -> Self {
        error.downcast::<Self>().unwrap_or_else(|source| Self::from_io(verb, url, source))
    }

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
    let mut last = text.clone();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        // Some causes begin with the words of what they caused, or are those.
        match words.strip_prefix(&last) {
            Some(rest) => text.push_str(rest),
            None if text.ends_with(&words) => {}
            None => {
                text.push_str(": ");
                text.push_str(&words);
            }
        }
        last = words;
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{words}")]
    struct Worded {
        words: &'static str,
        source: Option<Box<Worded>>,
    }

    fn chained(words: &[&'static str]) -> String {
        let made = words
            .iter()
            .copied()
            .rev()
            .fold(None, |source, words| Some(Box::new(Worded { words, source })));
        chain(made.as_deref().unwrap())
    }

    #[test]
    fn nothing_is_said_twice() {
        assert_eq!(chained(&["cannot read a", "no space left"]), "cannot read a: no space left");
        assert_eq!(chained(&["cannot open a", "cannot open a"]), "cannot open a");
        assert_eq!(
            chained(&["cannot open a", "cannot open a: no such file"]),
            "cannot open a: no such file"
        );
        assert_eq!(chained(&["broken: no route", "no route"]), "broken: no route");
    }
}
