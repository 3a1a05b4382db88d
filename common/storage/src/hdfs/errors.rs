//! What HDFS and its client say, sorted by what a caller can do about it.

use std::io;

use hdfs_native::HdfsError;

use crate::Error;

/// What can be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing but wait: the same call may succeed later.
    Unavailable,
    /// A quota or the disks are full.
    NoSpace,
    AlreadyExists,
    NotFound,
    NotAFile,
    /// Credentials or permissions.
    Denied,
    Other,
}

/// Java's exceptions by the last part of their names.
const BY_CLASS: &[(&str, Kind)] = &[
    ("StandbyException", Kind::Unavailable),
    ("RetriableException", Kind::Unavailable),
    ("SafeModeException", Kind::Unavailable),
    ("ObserverRetryOnActiveException", Kind::Unavailable),
    ("NotReplicatedYetException", Kind::Unavailable),
    ("NoRouteToHostException", Kind::Unavailable),
    ("ConnectException", Kind::Unavailable),
    ("SocketTimeoutException", Kind::Unavailable),
    ("DSQuotaExceededException", Kind::NoSpace),
    ("NSQuotaExceededException", Kind::NoSpace),
    ("QuotaExceededException", Kind::NoSpace),
    ("QuotaByStorageTypeExceededException", Kind::NoSpace),
    ("FileAlreadyExistsException", Kind::AlreadyExists),
    ("AlreadyBeingCreatedException", Kind::AlreadyExists),
    ("FileNotFoundException", Kind::NotFound),
    ("AccessControlException", Kind::Denied),
    ("AuthorizationException", Kind::Denied),
    ("SaslException", Kind::Denied),
    ("GSSException", Kind::Denied),
    ("SecretManager$InvalidToken", Kind::Denied),
];

/// Words of exceptions that carry no class of their own. All must be there.
const BY_WORDS: &[(&[&str], Kind)] = &[
    (&["Path is not a file"], Kind::NotAFile),
    (&["Name node is in safe mode"], Kind::Unavailable),
    (&["NameNode still not started"], Kind::Unavailable),
    (&["in startup mode"], Kind::Unavailable),
    (&["There are 0 datanode(s) running"], Kind::Unavailable),
    (&["could only be written to"], Kind::NoSpace),
    (&["Failed to find datanode"], Kind::Unavailable),
];

pub(super) fn kind(error: &HdfsError) -> Kind {
    match error {
        HdfsError::RPCError(class, words) | HdfsError::FatalRPCError(class, words) => {
            by_exception(class, words)
        }
        HdfsError::IOError(error) => by_io(error.kind()),
        HdfsError::DataTransferError(_) | HdfsError::BlocksNotFound(_) => Kind::Unavailable,
        HdfsError::OperationFailed(words) if words.contains("in time") => Kind::Unavailable,
        HdfsError::AlreadyExists(_) => Kind::AlreadyExists,
        HdfsError::FileNotFound(_) => Kind::NotFound,
        HdfsError::IsADirectoryError(_) => Kind::NotAFile,
        HdfsError::SASLError(_) | HdfsError::GSSAPIError(..) | HdfsError::NoSASLMechanism => {
            Kind::Denied
        }
        HdfsError::OperationFailed(_)
        | HdfsError::ChecksumError
        | HdfsError::InvalidPath(_)
        | HdfsError::InvalidArgument(_)
        | HdfsError::UrlParseError(_)
        | HdfsError::TrashNotEnabled
        | HdfsError::UnsupportedErasureCodingPolicy(_)
        | HdfsError::ErasureCodingError(_)
        | HdfsError::UnsupportedFeature(_)
        | HdfsError::InternalError(_)
        | HdfsError::InvalidRPCResponse(_)
        | HdfsError::XmlParseError(_) => Kind::Other,
    }
}

fn by_exception(class: &str, words: &str) -> Kind {
    let by_words = || {
        let found = BY_WORDS.iter().find(|(all, _)| all.iter().all(|word| words.contains(word)));
        found.map(|(_, kind)| *kind)
    };
    let last = class.rsplit('.').next().unwrap_or(class);
    let by_class = BY_CLASS.iter().find(|(name, _)| *name == last).map(|(_, kind)| *kind);
    by_words().or(by_class).unwrap_or(Kind::Other)
}

/// A broken connection is mended by asking again; what the local system refuses is not.
fn by_io(kind: io::ErrorKind) -> Kind {
    use io::ErrorKind as Io;
    if matches!(
        kind,
        Io::ConnectionRefused
            | Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::NotConnected
            | Io::BrokenPipe
            | Io::TimedOut
            | Io::UnexpectedEof
            | Io::HostUnreachable
            | Io::NetworkUnreachable
            | Io::NetworkDown
            | Io::AddrNotAvailable
            | Io::Interrupted
            | Io::WouldBlock
    ) {
        return Kind::Unavailable;
    }
    if kind == Io::PermissionDenied { Kind::Denied } else { Kind::Other }
}

/// First line: Java sends its stack after it.
fn words(error: &HdfsError) -> String {
    let text =
        if let HdfsError::RPCError(class, words) | HdfsError::FatalRPCError(class, words) = error {
            let class = class.rsplit('.').next().unwrap_or(class);
            format!("{class}: {words}")
        } else {
            error.to_string()
        };
    text.lines().next().unwrap_or_default().chars().take(1000).collect()
}

/// A failure as this crate's callers see it. `more` is added to its cause.
pub(super) fn told(verb: &'static str, url: String, error: &HdfsError, more: &str) -> Error {
    let text = format!("{}{more}", words(error));
    let source = |kind| io::Error::new(kind, text.clone());
    match kind(error) {
        Kind::Unavailable => {
            Error::Unavailable { verb, url, source: source(io::ErrorKind::TimedOut) }
        }
        Kind::NoSpace => Error::NoSpace { verb, url, source: source(io::ErrorKind::QuotaExceeded) },
        Kind::AlreadyExists => Error::AlreadyExists { url },
        Kind::NotFound => Error::NotFound { url },
        Kind::NotAFile => Error::NotAFile { url },
        Kind::Denied => Error::Io { verb, url, source: source(io::ErrorKind::PermissionDenied) },
        Kind::Other => Error::Io { verb, url, source: source(io::ErrorKind::Other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hadoop_says_is_sorted_by_what_can_be_done() {
        let hdfs = "org.apache.hadoop.hdfs";
        for (class, words, wanted) in [
            ("org.apache.hadoop.ipc.StandbyException", "READ is not supported", Kind::Unavailable),
            (
                "org.apache.hadoop.ipc.RetriableException",
                "Name node is in safe mode",
                Kind::Unavailable,
            ),
            ("java.io.IOException", "NameNode still not started", Kind::Unavailable),
            (&format!("{hdfs}.protocol.DSQuotaExceededException"), "quota of /a", Kind::NoSpace),
            ("java.io.FileNotFoundException", "Path is not a file: /a", Kind::NotAFile),
            ("java.io.FileNotFoundException", "File does not exist: /a", Kind::NotFound),
            (
                "java.io.IOException",
                "File /a could only be written to 0 of the 1 minReplication nodes. There are 2 \
                 datanode(s) running and 0 node(s) are excluded in this operation.",
                Kind::NoSpace,
            ),
            (
                "java.io.IOException",
                "File /a could only be written to 0 of the 1 minReplication nodes. There are 0 \
                 datanode(s) running and 0 node(s) are excluded in this operation.",
                Kind::Unavailable,
            ),
            ("org.apache.hadoop.security.token.SecretManager$InvalidToken", "", Kind::Denied),
            ("java.lang.NullPointerException", "", Kind::Other),
        ] {
            let error = HdfsError::RPCError(class.to_owned(), words.to_owned());
            assert_eq!(kind(&error), wanted, "{class}: {words}");
        }
    }

    #[test]
    fn javas_stack_stays_out_of_messages() {
        let stack = "The DiskSpace quota of /a is exceeded\n\tat org.apache".to_owned();
        let class = "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException".to_owned();
        let error =
            told("write", "hdfs://h/a/b".to_owned(), &HdfsError::RPCError(class, stack), "");
        let text = crate::chain(&error);
        assert!(matches!(error, Error::NoSpace { .. }), "{text}");
        assert!(
            text.ends_with("DSQuotaExceededException: The DiskSpace quota of /a is exceeded"),
            "{text}"
        );
    }
}
