//! How the parts of a cluster talk: QUIC with mutual TLS, bincode frames with limits, and a
//! handshake that any two versions can finish in words.
//!
//! A master listens with [`server()`]; agents and operators use [`connect`]. Both get a
//! [`Session`]: the connection with the identity in the peer's certificate, and the first
//! stream. Further streams come from [`Connection::open_bi`] and [`Connection::accept_bi`].
//! Messages are the types of the crate `model`; this crate knows none of them.

mod client;
mod codec;
mod connection;
mod credentials;
mod ending;
mod error;
mod files;
mod frame;
mod gate;
mod handshake;
mod identity;
mod keys;
pub mod pki;
mod register;
mod revocation;
mod server;
mod signing;
mod transport;
mod verify;
mod wallet;

pub use client::{ConnectOptions, connect};
pub use codec::{decode, encode, encode_body};
pub use connection::{Connection, Session};
pub use credentials::{
    CertificateStatus, Credentials, TlsFiles, certificate_status, certificate_statuses,
    check_issued, parse_serial,
};
pub use ending::{Ending, ending_words};
pub use error::{Close, ConnectError, FrameError, HandshakeError, Lost, PkiError, ServeError};
pub use frame::{FrameReader, FrameWriter};
pub use gate::Limits;
pub use handshake::{HELLO_BYTES_MAX, Hello, Refused, RefusedKind, Welcome};
pub use identity::{Identity, Role};
pub use keys::ResetKeys;
pub use revocation::{REVOCATIONS_BYTES_MAX, Revocations};
pub use server::{Greeting, Incoming, Server, ServerOptions, server};
pub use verify::PeerCertificate;
pub use wallet::{Chosen, PEM_BYTES_MAX, Wallet};

/// Versions of the messages that this build speaks, oldest to newest. Since 2 an agent sends
/// learning rates, and a job may have a loss curve of its own.
pub const PROTOCOL: std::ops::RangeInclusive<u16> = 1..=4;

/// What a program says of itself: its version, the commit that it was built from and the protocols
/// that it speaks, such as `0.1.0 (commit 0123456789ab, protocol 1 to 4)`.
#[must_use]
pub fn version_line(version: &str, commit: &str) -> String {
    format!("{version} (commit {commit}, protocol {} to {})", PROTOCOL.start(), PROTOCOL.end())
}

/// The same in every version: the range of versions stands in [`Hello`], so that a peer out of
/// range is refused in words rather than by a TLS alert.
pub const ALPN: &[u8] = b"optimus/1";

/// Name in every master's certificate, which the connecting side asks for, whatever the
/// master's address.
pub const SERVER_NAME: &str = "optimus-master";

/// Longest frame, in bytes after the length prefix: a heartbeat or a desired set of a node with
/// hundreds of tasks is some 100 KB, a piece of a snapshot 1 MiB.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// Longest answer to an operator, sent in pieces: ten thousand jobs with their reasons are some
/// MB.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Longest frame from an operator: a job has at most 64 KiB of command and environment.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
