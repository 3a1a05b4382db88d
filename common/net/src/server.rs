//! The listening side: the master.

use std::net::{SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::client::peer_certificate;
use crate::connection::{Connection, Session};
use crate::credentials::Credentials;
use crate::error::{Close, FrameError, HandshakeError, Lost, ServeError};
use crate::frame::{FrameReader, FrameWriter};
use crate::gate::{Gate, Limits, Slot, Verdict};
use crate::handshake::{self, HELLO_BYTES_MAX, Hello, Refused, RefusedKind, Welcome};
use crate::identity::{Identity, Role};
use crate::keys::ResetKeys;
use crate::revocation::Revocations;
use crate::transport::{self, Acceptor};
use crate::verify::{PeerCertificate, Said};

/// From a peer's first packet to its welcome: three ways there and back, over a link that takes
/// seconds for each.
const HANDSHAKE: Duration = Duration::from_secs(40);

/// The same while many knock: who is slow then makes room.
const HANDSHAKE_CROWDED: Duration = Duration::from_secs(10);

/// For the last words to a peer that is refused.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The heartbeats of thousands of agents may come within a few ms.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// What a server says and admits.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The cluster's name, told to every peer.
    pub cluster: String,
    /// Name and version of this program, for people.
    pub software: String,
    pub versions: RangeInclusive<u16>,
    /// Roles that may connect.
    pub roles: Vec<Role>,
    pub limits: Limits,
    pub handshake: Duration,
}

impl ServerOptions {
    /// Agents and clients of every role, all of [`crate::PROTOCOL`], default limits.
    #[must_use]
    pub fn new(cluster: impl Into<String>, software: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            software: software.into(),
            versions: crate::PROTOCOL,
            roles: vec![Role::Agent, Role::Operator, Role::Admin, Role::User],
            limits: Limits::default(),
            handshake: HANDSHAKE,
        }
    }
}

/// A listening master.
#[derive(Debug)]
pub struct Server {
    endpoint: quinn::Endpoint,
    address: SocketAddr,
    receive_buffer_bytes: usize,
    gate: Arc<Gate>,
    options: Arc<ServerOptions>,
    shown: Arc<Shown>,
}

/// What can be changed while the server listens.
#[derive(Debug)]
struct Shown {
    acceptor: RwLock<Arc<Acceptor>>,
    revocations: RwLock<Arc<Revocations>>,
}

/// A lock of a value that is only ever replaced: it is whole whatever panicked.
fn read<T: ?Sized>(lock: &RwLock<Arc<T>>) -> Arc<T> {
    Arc::clone(&lock.read().unwrap_or_else(PoisonError::into_inner))
}

fn write<T: ?Sized>(lock: &RwLock<Arc<T>>, value: Arc<T>) {
    *lock.write().unwrap_or_else(PoisonError::into_inner) = value;
}

/// Listens on `listen`. Must be called within a tokio runtime.
///
/// # Errors
/// Where the address is not to be had, or TLS does not take the credentials.
pub fn server(
    listen: SocketAddr,
    credentials: &Credentials,
    keys: &ResetKeys,
    options: ServerOptions,
) -> Result<Server, ServeError> {
    let failed = |source| ServeError::Listen { address: listen, source };
    let acceptor = Arc::new(Acceptor::new(credentials).map_err(ServeError::Tls)?);
    let config = acceptor.config(Said::default()).map_err(ServeError::Tls)?;
    let socket = UdpSocket::bind(listen).map_err(failed)?;
    let receive_buffer_bytes = enlarge(&socket);
    let endpoint = quinn::Endpoint::new(
        transport::endpoint_config(keys),
        Some(config),
        socket,
        Arc::new(quinn::TokioRuntime),
    )
    .map_err(failed)?;
    let address = endpoint.local_addr().map_err(failed)?;
    let gate = Gate::new(options.limits);
    let shown = Shown { acceptor: RwLock::new(acceptor), revocations: RwLock::new(Arc::default()) };
    let (options, shown) = (Arc::new(options), Arc::new(shown));
    Ok(Server { endpoint, address, receive_buffer_bytes, gate, options, shown })
}

/// Asks for a large receive buffer and says what it became: without the privilege to go over it,
/// the kernel stops at `net.core.rmem_max`.
fn enlarge(socket: &UdpSocket) -> usize {
    if setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        // A smaller buffer only means more retransmissions under load.
        let _ = setsockopt(socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES);
    }
    // The kernel reports twice what it grants, for its own bookkeeping (socket(7)).
    getsockopt(socket, sockopt::RcvBuf).unwrap_or(0) / 2
}

impl Server {
    /// Where it listens; the port is the one given by the system where 0 was asked.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// What became of the wish for 8 MiB.
    #[must_use]
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// Connections after the handshake that are held now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.gate.connections()
    }

    /// The next that knocks; none once the server is closed. Returns before the handshake: the
    /// caller finishes each [`Incoming`] in a task of its own, so that a slow one holds up
    /// nobody. May be dropped while it waits.
    pub async fn accept(&self) -> Option<Incoming> {
        loop {
            let incoming = self.endpoint.accept().await?;
            let address = incoming.remote_address();
            match self.gate.enter(address.ip(), incoming.remote_address_validated()) {
                Verdict::Enter(slot) => {
                    let options = Arc::clone(&self.options);
                    let shown = Arc::clone(&self.shown);
                    return Some(Incoming { incoming, address, slot, options, shown });
                }
                Verdict::Prove => {
                    // It fails only for an address that has been proven.
                    let _ = incoming.retry();
                }
                Verdict::Full => incoming.refuse(),
            }
        }
    }

    /// Shows a renewed certificate to all that connect from now on; connections stay.
    ///
    /// # Errors
    /// Where TLS does not take the credentials; the former ones stay in use.
    pub fn reload(&self, credentials: &Credentials) -> Result<(), ServeError> {
        let acceptor = Acceptor::new(credentials).map_err(ServeError::Tls)?;
        let config = acceptor.config(Said::default()).map_err(ServeError::Tls)?;
        write(&self.shown.acceptor, Arc::new(acceptor));
        self.endpoint.set_server_config(Some(config));
        Ok(())
    }

    /// Refuses these certificates from now on; connections stay.
    pub fn set_revocations(&self, revocations: Arc<Revocations>) {
        write(&self.shown.revocations, revocations);
    }

    /// Refuses all that come and closes every connection with these words; waits until the
    /// peers can know of it, at most two seconds. Keep the sessions until it returns: one that
    /// is dropped meanwhile may end without the words.
    pub async fn close(&self, words: &str) {
        self.endpoint.close(Close::Shutdown.code(), words.as_bytes());
        // The deadline is the outcome where peers are gone: nothing more can be done.
        let _ = tokio::time::timeout(Duration::from_secs(2), self.endpoint.wait_idle()).await;
    }
}

/// One that knocks. Dropped, it is refused.
#[derive(Debug)]
pub struct Incoming {
    incoming: quinn::Incoming,
    address: SocketAddr,
    slot: Slot,
    options: Arc<ServerOptions>,
    shown: Arc<Shown>,
}

impl Incoming {
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.address
    }

    /// The whole handshake: [`Incoming::greet`] and [`Greeting::welcome`].
    ///
    /// # Errors
    /// See [`HandshakeError`]; the peer was told why, where that was possible.
    pub async fn handshake(self) -> Result<Session, HandshakeError> {
        self.greet().await?.welcome().await
    }

    /// QUIC, TLS and the peer's [`Hello`], within the deadline. A peer of a wrong role or version,
    /// or over a limit, is refused in words.
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub async fn greet(self) -> Result<Greeting, HandshakeError> {
        let address = self.address;
        let most = if self.slot.is_crowded() { HANDSHAKE_CROWDED } else { HANDSHAKE };
        let within = self.options.handshake.min(most);
        let mut opened = None;
        let greeting = tokio::time::timeout(within, self.read_hello(&mut opened)).await;
        greeting.unwrap_or_else(|_| {
            if let Some(quic) = opened {
                close(&quic, Close::Deadline, "no greeting came in time");
            }
            Err(HandshakeError::Deadline { address, within })
        })
    }

    async fn read_hello(
        self,
        opened: &mut Option<quinn::Connection>,
    ) -> Result<Greeting, HandshakeError> {
        let address = self.address;
        let said = Said::default();
        let lost = |error: quinn::ConnectionError| HandshakeError::Lost {
            address,
            lost: Lost::from(error).with_words(&said),
        };
        let config = read(&self.shown.acceptor).config(said.clone());
        let config = config.map_err(|reason| HandshakeError::Refused { address, reason })?;
        let connecting = self.incoming.accept_with(Arc::new(config)).map_err(lost)?;
        let quic = connecting.await.map_err(lost)?;
        *opened = Some(quic.clone());
        let (send, receive) = quic.accept_bi().await.map_err(lost)?;
        let mut reader = FrameReader::new(receive, HELLO_BYTES_MAX);
        let hello = match reader.receive_bytes().await {
            Ok(Some(body)) => Hello::read(&body),
            Ok(None) => Err("the stream ended before a greeting".to_owned()),
            Err(FrameError::Lost(lost)) => return Err(HandshakeError::Lost { address, lost }),
            Err(error) => Err(error.to_string()),
        };
        let hello = hello.map_err(|reason| {
            close(&quic, Close::Protocol, &reason);
            HandshakeError::Protocol { address, reason }
        })?;
        let writer = FrameWriter::new(send, HELLO_BYTES_MAX);
        let revocations = read(&self.shown.revocations);
        let mut door =
            Door { address, quic, writer, reader, slot: self.slot, options: self.options };
        match door.judge(&hello, &revocations) {
            Ok((certificate, protocol)) => Ok(Greeting { door, certificate, hello, protocol }),
            Err((kind, reason)) => Err(door.refuse(kind, reason).await),
        }
    }
}

fn close(quic: &quinn::Connection, close: Close, words: &str) {
    quic.close(close.code(), words.as_bytes());
}

/// A peer that has greeted, and what is needed to answer it.
#[derive(Debug)]
struct Door {
    address: SocketAddr,
    quic: quinn::Connection,
    writer: FrameWriter,
    reader: FrameReader,
    slot: Slot,
    options: Arc<ServerOptions>,
}

impl Door {
    /// Who it is and the version to speak, or why it may not come in.
    fn judge(
        &mut self,
        hello: &Hello,
        revocations: &Revocations,
    ) -> Result<(PeerCertificate, u16), (RefusedKind, String)> {
        let certificate =
            peer_certificate(&self.quic).map_err(|reason| (RefusedKind::Role, reason))?;
        let (role, roles) = (certificate.identity.role, &self.options.roles);
        if !roles.contains(&role) {
            let names: Vec<_> = roles.iter().map(|role| role.name()).collect();
            let reason = format!(
                "the certificate is that of {}; here may connect: {}",
                certificate.identity,
                names.join(", ")
            );
            return Err((RefusedKind::Role, reason));
        }
        if let Some(reason) = revocations.refusal(&certificate) {
            return Err((RefusedKind::Certificate, reason));
        }
        let versions = &self.options.versions;
        let protocol = handshake::common_version(versions, hello).ok_or_else(|| {
            (RefusedKind::Version, handshake::version_refusal(versions, hello, role))
        })?;
        self.slot.settle(&certificate.identity).map_err(|reason| (RefusedKind::Busy, reason))?;
        Ok((certificate, protocol))
    }

    async fn refuse(mut self, kind: RefusedKind, reason: String) -> HandshakeError {
        let refused = Refused {
            kind,
            oldest: *self.options.versions.start(),
            newest: *self.options.versions.end(),
            software: self.options.software.clone(),
            reason: reason.clone(),
        };
        let frame = handshake::answer_frame(&Err(refused));
        let said = async {
            self.writer.send_frame(frame).await?;
            self.writer.finished().await
        };
        // A peer that does not take the words in time is closed with them all the same.
        let _ = tokio::time::timeout(LAST_WORDS, said).await;
        close(&self.quic, Close::Refused, &reason);
        HandshakeError::Refused { address: self.address, reason }
    }
}

/// A peer that may come in by its certificate, its version and the limits, and waits for an
/// answer. Dropped, its connection is closed.
#[derive(Debug)]
pub struct Greeting {
    door: Door,
    certificate: PeerCertificate,
    hello: Hello,
    protocol: u16,
}

impl Greeting {
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.certificate.identity
    }

    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.door.address
    }

    /// Lets the peer in.
    ///
    /// # Errors
    /// Where the peer is gone meanwhile.
    pub async fn welcome(self) -> Result<Session, HandshakeError> {
        let Door { address, quic, mut writer, mut reader, slot, options } = self.door;
        let (protocol, software) = (self.protocol, self.hello.software);
        let cluster = options.cluster.clone();
        let welcome =
            Welcome { protocol, software: options.software.clone(), cluster: cluster.clone() };
        let frame = handshake::answer_frame(&Ok(welcome));
        writer.send_frame(frame).await.map_err(|error| match error {
            FrameError::Lost(lost) => HandshakeError::Lost { address, lost },
            other @ (FrameError::TooLong { .. }
            | FrameError::Cut { .. }
            | FrameError::Malformed { .. }
            | FrameError::Trailing { .. }
            | FrameError::Encode { .. }
            | FrameError::Abandoned) => {
                HandshakeError::Protocol { address, reason: other.to_string() }
            }
        })?;
        let connection = Connection::of_server(quic, self.certificate, slot);
        connection.set_limits(&mut writer, &mut reader);
        Ok(Session { connection, writer, reader, protocol, software, cluster })
    }

    /// Sends the peer away in words; returns them as the handshake's error.
    pub async fn refuse(self, reason: impl Into<String>) -> HandshakeError {
        self.door.refuse(RefusedKind::Other, reason.into()).await
    }
}
