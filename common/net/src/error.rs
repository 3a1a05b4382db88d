//! What can go wrong, in words that say what to do about it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use quinn::{ConnectionError, VarInt};

use crate::verify::Said;

/// Why a side closes a connection: the number on the wire, beside the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// All was said.
    Done,
    /// The process ends; come again.
    Shutdown,
    /// The peer may not be here: role, version, limits.
    Refused,
    /// The peer broke the protocol.
    Protocol,
    /// A newer connection of the same peer took the place of this one.
    Replaced,
    /// A deadline passed.
    Deadline,
    /// A number that this version does not know.
    Other,
}

impl Close {
    pub(crate) fn code(self) -> VarInt {
        VarInt::from_u32(match self {
            Self::Done => 0,
            Self::Shutdown => 1,
            Self::Refused => 2,
            Self::Protocol => 3,
            Self::Replaced => 4,
            Self::Deadline => 5,
            Self::Other => 99,
        })
    }

    fn of_code(code: VarInt) -> Self {
        match code.into_inner() {
            0 => Self::Done,
            1 => Self::Shutdown,
            2 => Self::Refused,
            3 => Self::Protocol,
            4 => Self::Replaced,
            5 => Self::Deadline,
            _ => Self::Other,
        }
    }
}

/// Why a connection is no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The peer's own words.
    #[error("the peer closed the connection: {reason}")]
    Closed { close: Close, reason: String },
    /// The peer has restarted and does not know the connection: connect again at once.
    #[error("the peer has restarted")]
    Reset,
    #[error("nothing was heard from the peer for {} s", crate::transport::IDLE.as_secs())]
    Idle,
    #[error("this side closed the connection")]
    Local,
    /// The peer refused this side's certificate.
    #[error("the peer refused this certificate: {0}")]
    CertificateRefused(String),
    /// This side refused the peer's certificate.
    #[error("the peer's certificate is not acceptable: {0}")]
    PeerCertificate(String),
    /// The peer refused before any handshake: too many connections or handshakes.
    #[error("the peer takes no more connections now; try again later")]
    Busy,
    #[error("the peer is not an Optimus of this family: it does not speak {}", alpn())]
    OtherProtocol,
    #[error("the connection failed: {0}")]
    Transport(String),
}

fn alpn() -> String {
    String::from_utf8_lossy(crate::ALPN).into_owned()
}

/// Longest text of a peer that goes into an error.
const WORDS_CHARS_MAX: usize = 1000;

/// A peer's bytes as text that is safe to print: no control characters, bounded.
pub(crate) fn words(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        .take(WORDS_CHARS_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.is_empty() { "no reason given".to_owned() } else { text }
}

/// QUIC carries a TLS alert as 0x100 plus its number (RFC 9001, section 4.8).
fn alert(code: u64) -> Option<u64> {
    (0x100..=0x1ff).contains(&code).then(|| code - 0x100)
}

const NO_APPLICATION_PROTOCOL: u64 = 120;

/// What a TLS alert means here and what to do; none where it is not about a certificate.
fn certificate_alert(alert: u64) -> Option<&'static str> {
    Some(match alert {
        42 => "it does not verify; issue it anew with optimus cert issue",
        43 => "it is not for this use; issue one for this role with optimus cert issue",
        44 => "it is revoked; issue a new one with optimus cert issue",
        45 => {
            "by the peer's clock it has expired or is not valid yet; set the clocks, or issue a \
               new one with optimus cert issue"
        }
        46 => "it is not acceptable; issue it anew with optimus cert issue",
        // Another CA of the same name shows as a wrong signature, which is a decrypt_error.
        48 | 51 => "it is not signed by the peer's CA; issue it with the CA of this cluster",
        116 => "none was sent; give a certificate and its key",
        _ => return None,
    })
}

impl Lost {
    /// With what this side's own verifier said, where it refused the peer's certificate.
    pub(crate) fn with_words(self, said: &Said) -> Self {
        match (self, said.words()) {
            (Self::PeerCertificate(_), Some(words)) => Self::PeerCertificate(words),
            (lost, _) => lost,
        }
    }
}

impl From<ConnectionError> for Lost {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => Self::Closed {
                close: Close::of_code(close.error_code),
                reason: words(&close.reason),
            },
            ConnectionError::ConnectionClosed(close) => {
                let code = u64::from(close.error_code);
                if close.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED {
                    return Self::Busy;
                }
                match alert(code) {
                    Some(NO_APPLICATION_PROTOCOL) => Self::OtherProtocol,
                    Some(number) => Self::CertificateRefused(
                        certificate_alert(number)
                            .map_or_else(|| words(&close.reason), str::to_owned),
                    ),
                    None => Self::Transport(close.to_string()),
                }
            }
            ConnectionError::TransportError(error) => match alert(u64::from(error.code)) {
                Some(NO_APPLICATION_PROTOCOL) => Self::OtherProtocol,
                Some(_) => Self::PeerCertificate(words(error.reason.as_bytes())),
                None => Self::Transport(error.to_string()),
            },
            ConnectionError::Reset => Self::Reset,
            ConnectionError::TimedOut => Self::Idle,
            ConnectionError::LocallyClosed => Self::Local,
            ConnectionError::VersionMismatch => Self::OtherProtocol,
            ConnectionError::CidsExhausted => {
                Self::Transport("no connection id is left".to_owned())
            }
        }
    }
}

/// Why a frame did not come or go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {bytes} bytes is over the limit of {limit}")]
    TooLong { bytes: usize, limit: usize },
    #[error("the stream ended within a frame, {bytes} bytes after its start")]
    Cut { bytes: usize },
    #[error("a frame does not read as {what}: {reason}")]
    Malformed { what: &'static str, reason: String },
    #[error("a frame of {what} has {bytes} bytes too many")]
    Trailing { what: &'static str, bytes: usize },
    #[error("a {what} cannot be written as a frame: {reason}")]
    Encode { what: &'static str, reason: String },
    /// The peer gave up this stream alone.
    #[error("the peer abandoned the stream")]
    Abandoned,
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why [`crate::connect`] gave no session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No answer at all in time.
    #[error(
        "no master answers at {address} within {} s; check that it runs and that UDP passes",
        timeout.as_secs_f64()
    )]
    Unreachable { address: SocketAddr, timeout: Duration },
    /// The host is there, but nothing listens at the port.
    #[error("no master listens at {address}; start it or give its address")]
    NothingListens { address: SocketAddr },
    /// The master finished TLS, but did not welcome in time.
    #[error("the master at {address} took over {} s to welcome", timeout.as_secs_f64())]
    Silent { address: SocketAddr, timeout: Duration },
    #[error("the master at {address} takes no more connections now; try again later")]
    Busy { address: SocketAddr },
    #[error("the master at {address} refused the certificate {certificate}: {reason}")]
    CertificateRefused { address: SocketAddr, certificate: PathBuf, reason: String },
    #[error("what answers at {address} is not a master of this cluster: {reason}")]
    NotTheMaster { address: SocketAddr, reason: String },
    /// The two speak no common version.
    #[error("the master at {address} refused: {reason}")]
    Version { address: SocketAddr, reason: String },
    /// The role in the certificate may not connect.
    #[error("the master at {address} refused: {reason}")]
    Role { address: SocketAddr, reason: String },
    #[error("the master at {address} refused: {reason}")]
    Refused { address: SocketAddr, reason: String },
    #[error("the connection to the master at {address} failed: {reason}")]
    Failed { address: SocketAddr, reason: String },
    /// Nothing was sent: a socket could not be opened, the certificate does not fit, …
    #[error("cannot connect to {address}: {reason}")]
    Local { address: SocketAddr, reason: String },
}

/// Why a server has no session with one that came.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    #[error("{address} did not finish the handshake within {} s", within.as_secs_f64())]
    Deadline { address: SocketAddr, within: Duration },
    /// Refused in words, which the peer was sent.
    #[error("{address} was refused: {reason}")]
    Refused { address: SocketAddr, reason: String },
    #[error("{address} was lost in the handshake: {lost}")]
    Lost { address: SocketAddr, lost: Lost },
    #[error("{address} broke the protocol in the handshake: {reason}")]
    Protocol { address: SocketAddr, reason: String },
}

/// Why a server did not start, or did not take new credentials.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

/// What is wrong with a certificate, a key or their folder.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot read {path}: {source}; {remedy}")]
    Read { path: PathBuf, source: std::io::Error, remedy: &'static str },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} holds no {what} in PEM; {remedy}")]
    NotPem { path: PathBuf, what: &'static str, remedy: &'static str },
    #[error("the certificate {path} expired at {date}; issue a new one with optimus cert issue")]
    Expired { path: PathBuf, date: String },
    #[error("the certificate {path} is not valid before {date}; set the clock or wait")]
    NotYetValid { path: PathBuf, date: String },
    #[error("the certificate {path} is for {found}, not for the role {wanted}; give one for it")]
    WrongRole { path: PathBuf, found: String, wanted: crate::Role },
    #[error("the key {key} does not belong to the certificate {path}; give the two as issued")]
    KeyMismatch { path: PathBuf, key: PathBuf },
    #[error("the certificate {path} is not signed by the CA {ca}; give the CA that issued it")]
    OtherCa { path: PathBuf, ca: PathBuf },
    #[error("the certificate {path} cannot be used: {reason}")]
    Unusable { path: PathBuf, reason: String },
    /// Of revoked certificates.
    #[error("the list {path} cannot be used: {reason}; put the newest crl.pem of the CA there")]
    NoList { path: PathBuf, reason: String },
    #[error("the key {path} is readable by every user (mode {mode:o}); chmod 600 it")]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{path} exists and is left as it is; {remedy}")]
    Exists { path: PathBuf, remedy: &'static str },
    #[error("{field}: {problem}")]
    Invalid { field: &'static str, problem: String },
    #[error("no operator certificate in {folder}: {reason}")]
    NoOperator { folder: PathBuf, reason: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_s_words_are_safe_to_print() {
        assert_eq!(words(b"bye\x1b[31m\nnow"), "bye [31m now");
        assert_eq!(words(b""), "no reason given");
        assert_eq!(words(&[0xff; 5000]).chars().count(), WORDS_CHARS_MAX);
    }

    #[test]
    fn close_codes_read_back() {
        for close in [
            Close::Done,
            Close::Shutdown,
            Close::Refused,
            Close::Protocol,
            Close::Replaced,
            Close::Deadline,
            Close::Other,
        ] {
            assert_eq!(Close::of_code(close.code()), close);
        }
    }
}
