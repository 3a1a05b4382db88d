//! The connecting side: agents and operators.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use quinn::rustls::pki_types::CertificateDer;

use crate::connection::{Connection, Session};
use crate::credentials::{Credentials, date};
use crate::error::{Close, ConnectError, FrameError, Lost};
use crate::frame::{FrameReader, FrameWriter};
use crate::handshake::{self, HELLO_BYTES_MAX, Hello, Refused, RefusedKind, Welcome};
use crate::identity::Role;
use crate::revocation::Revocations;
use crate::transport;
use crate::verify::{PeerCertificate, Said};

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Name and version of this program, for people.
    pub software: String,
    /// Versions to offer.
    pub versions: RangeInclusive<u16>,
    /// For all of it, from the first packet to the welcome.
    pub timeout: Duration,
    /// A master with a certificate among these is refused.
    pub revocations: Arc<Revocations>,
}

impl ConnectOptions {
    /// All of [`crate::PROTOCOL`], within 10 s.
    #[must_use]
    pub fn new(software: impl Into<String>) -> Self {
        Self {
            software: software.into(),
            versions: crate::PROTOCOL,
            timeout: Duration::from_secs(10),
            revocations: Arc::default(),
        }
    }
}

/// Connects to the master at `address`, from a socket of its own, and finishes the handshake.
///
/// # Errors
/// See [`ConnectError`]: each says what to do. To try again may help with all but
/// `CertificateRefused`, `NotTheMaster`, `Version`, `Role` and `Local`, and even with these once
/// an operator has done something.
pub async fn connect(
    address: SocketAddr,
    credentials: &Credentials,
    options: &ConnectOptions,
) -> Result<Session, ConnectError> {
    let timeout = options.timeout;
    let mut deadline = pin!(tokio::time::sleep(timeout));
    let said = Said::default();
    let (endpoint, connecting) = start(address, credentials, said.clone())?;
    let quic = tokio::select! {
        biased;
        quic = connecting => quic.map_err(|error| {
            refine(address, credentials, Lost::from(error).with_words(&said))
        })?,
        () = nothing_listens(address) => return Err(ConnectError::NothingListens { address }),
        () = &mut deadline => return Err(ConnectError::Unreachable { address, timeout }),
    };
    tokio::select! {
        biased;
        session = greet(quic.clone(), endpoint, credentials, options) => {
            session.map_err(|problem| problem.of(address, credentials))
        }
        () = &mut deadline => {
            quic.close(Close::Deadline.code(), b"no welcome came in time");
            Err(ConnectError::Silent { address, timeout })
        }
    }
}

fn start(
    address: SocketAddr,
    credentials: &Credentials,
    said: Said,
) -> Result<(quinn::Endpoint, quinn::Connecting), ConnectError> {
    let local = |reason: String| ConnectError::Local { address, reason };
    let config = transport::client_config(credentials, said).map_err(local)?;
    let endpoint = quinn::Endpoint::client(any_port(address))
        .map_err(|error| local(format!("no socket: {error}")))?;
    let connecting = endpoint
        .connect_with(config, address, crate::SERVER_NAME)
        .map_err(|error| local(error.to_string()))?;
    Ok((endpoint, connecting))
}

/// Any port of the family of `address`.
fn any_port(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// Ends only where the host says that nothing listens at the port. QUIC's own socket is not
/// told; one that is connected is.
async fn nothing_listens(address: SocketAddr) {
    let probe = async {
        let socket = tokio::net::UdpSocket::bind(any_port(address)).await?;
        socket.connect(address).await?;
        // One zero byte is no QUIC packet: a master drops it without a word.
        socket.send(&[0]).await?;
        socket.recv(&mut [0; 1]).await
    };
    if probe.await.is_err_and(|error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused) {
        return;
    }
    std::future::pending().await
}

/// What went wrong in a greeting, before the address is put to it.
enum Problem {
    Lost(Lost),
    Refused(Refused),
    NotTheMaster(String),
    Protocol(String),
}

impl Problem {
    fn of(self, address: SocketAddr, credentials: &Credentials) -> ConnectError {
        match self {
            Self::Lost(lost) => refine(address, credentials, lost),
            Self::Refused(Refused { kind, reason, .. }) => match kind {
                RefusedKind::Version => ConnectError::Version { address, reason },
                RefusedKind::Role => ConnectError::Role { address, reason },
                RefusedKind::Certificate => ConnectError::CertificateRefused {
                    address,
                    certificate: credentials.files().certificate.clone(),
                    reason: format!("{reason}; issue a new one with optimus cert issue"),
                },
                RefusedKind::Busy | RefusedKind::Other => ConnectError::Refused { address, reason },
            },
            Self::NotTheMaster(reason) => ConnectError::NotTheMaster { address, reason },
            Self::Protocol(reason) => ConnectError::Failed { address, reason },
        }
    }
}

impl From<FrameError> for Problem {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Lost(lost) => Self::Lost(lost),
            other @ (FrameError::TooLong { .. }
            | FrameError::Cut { .. }
            | FrameError::Malformed { .. }
            | FrameError::Trailing { .. }
            | FrameError::Encode { .. }
            | FrameError::Abandoned) => Self::Protocol(other.to_string()),
        }
    }
}

/// Before the welcome, a lost connection mostly means that one side refused the other.
fn refine(address: SocketAddr, credentials: &Credentials, lost: Lost) -> ConnectError {
    match lost {
        Lost::CertificateRefused(reason) => {
            let certificate = credentials.files().certificate.clone();
            // The peer tells no date: with those of the certificate a wrong clock is found.
            let (from, until) = (date(credentials.not_before()), date(credentials.not_after()));
            let (reason, remedy) = reason.split_once("; ").unwrap_or((&reason, ""));
            let reason = format!("{reason} (it is valid from {from} to {until}); {remedy}");
            ConnectError::CertificateRefused { address, certificate, reason }
        }
        Lost::PeerCertificate(reason) => ConnectError::NotTheMaster { address, reason },
        Lost::Busy => ConnectError::Busy { address },
        Lost::Closed { close: _, reason } => ConnectError::Refused { address, reason },
        Lost::OtherProtocol => ConnectError::NotTheMaster { address, reason: lost.to_string() },
        Lost::Idle => ConnectError::Unreachable { address, timeout: transport::IDLE },
        Lost::Reset | Lost::Local | Lost::Transport(_) => {
            ConnectError::Failed { address, reason: lost.to_string() }
        }
    }
}

async fn greet(
    quic: quinn::Connection,
    endpoint: quinn::Endpoint,
    credentials: &Credentials,
    options: &ConnectOptions,
) -> Result<Session, Problem> {
    let peer = peer_certificate(&quic).map_err(Problem::NotTheMaster)?;
    if peer.identity.role != Role::Master {
        let words = format!("it has the certificate of {}", peer.identity);
        return Err(Problem::NotTheMaster(words));
    }
    if let Some(words) = options.revocations.refusal(&peer) {
        quic.close(Close::Refused.code(), words.as_bytes());
        return Err(Problem::NotTheMaster(words));
    }
    let (send, receive) = quic.open_bi().await.map_err(|error| Problem::Lost(error.into()))?;
    let mut writer = FrameWriter::new(send, HELLO_BYTES_MAX);
    let mut reader = FrameReader::new(receive, HELLO_BYTES_MAX);
    let hello = Hello {
        oldest: *options.versions.start(),
        newest: *options.versions.end(),
        software: options.software.clone(),
    };
    writer.send_frame(hello.frame()).await?;
    let body = reader
        .receive_bytes()
        .await?
        .ok_or_else(|| Problem::Protocol("the master ended the stream".to_owned()))?;
    let answer = handshake::read_answer(&body).map_err(Problem::Protocol)?;
    let Welcome { protocol, software, cluster } = answer.map_err(Problem::Refused)?;
    if !options.versions.contains(&protocol) {
        let words = format!("protocol {protocol} was not offered");
        quic.close(Close::Protocol.code(), words.as_bytes());
        return Err(Problem::Protocol(format!("the master chose a version: {words}")));
    }
    let connection = Connection::of_client(quic, endpoint, peer, credentials.identity().role);
    connection.set_limits(&mut writer, &mut reader);
    Ok(Session { connection, writer, reader, protocol, software, cluster })
}

/// Who the other side is. TLS has verified the certificate already.
pub(crate) fn peer_certificate(quic: &quinn::Connection) -> Result<PeerCertificate, String> {
    let chain = quic
        .peer_identity()
        .and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or("no certificate was sent")?;
    PeerCertificate::read(chain.first().ok_or("no certificate was sent")?)
}
