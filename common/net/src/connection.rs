//! A connection after its handshake.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Close, Lost};
use crate::frame::{FrameReader, FrameWriter};
use crate::gate::Slot;
use crate::identity::{Identity, Role};
use crate::verify::PeerCertificate;
use crate::{FRAME_BYTES_MAX, REQUEST_BYTES_MAX};

/// A handle; clones are the same connection. It ends when it is closed, or when the last handle
/// and the last stream are dropped.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    quic: quinn::Connection,
    peer: PeerCertificate,
    send_max: usize,
    receive_max: usize,
    /// The connecting side's own socket.
    endpoint: Option<quinn::Endpoint>,
    /// The listening side's place among its connections.
    _slot: Option<Slot>,
}

/// A connection with its first stream, after the handshake.
#[derive(Debug)]
pub struct Session {
    pub connection: Connection,
    pub writer: FrameWriter,
    pub reader: FrameReader,
    /// The version to speak.
    pub protocol: u16,
    /// The peer's name and version of its program, for people.
    pub software: String,
    /// The cluster's name.
    pub cluster: String,
}

/// Longest frame that a role sends.
const fn frame_bytes_max(sender: Role) -> usize {
    match sender {
        Role::Operator | Role::Admin | Role::User => REQUEST_BYTES_MAX,
        Role::Master | Role::Agent => FRAME_BYTES_MAX,
    }
}

impl Connection {
    pub(crate) fn of_client(
        quic: quinn::Connection,
        endpoint: quinn::Endpoint,
        peer: PeerCertificate,
        own: Role,
    ) -> Self {
        Self(Arc::new(Inner {
            receive_max: frame_bytes_max(peer.identity.role),
            send_max: frame_bytes_max(own),
            quic,
            peer,
            endpoint: Some(endpoint),
            _slot: None,
        }))
    }

    pub(crate) fn of_server(quic: quinn::Connection, peer: PeerCertificate, slot: Slot) -> Self {
        Self(Arc::new(Inner {
            receive_max: frame_bytes_max(peer.identity.role),
            send_max: frame_bytes_max(Role::Master),
            quic,
            peer,
            endpoint: None,
            _slot: Some(slot),
        }))
    }

    fn framed(
        &self,
        (send, receive): (quinn::SendStream, quinn::RecvStream),
    ) -> (FrameWriter, FrameReader) {
        (FrameWriter::new(send, self.0.send_max), FrameReader::new(receive, self.0.receive_max))
    }

    /// Sets the limits of a stream that was opened before the peer was known.
    pub(crate) fn set_limits(&self, writer: &mut FrameWriter, reader: &mut FrameReader) {
        writer.set_limit(self.0.send_max);
        reader.set_limit(self.0.receive_max);
    }

    /// Who the peer is, by its certificate.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.peer.identity
    }

    /// The certificate that the peer showed at the handshake.
    #[must_use]
    pub fn certificate(&self) -> &PeerCertificate {
        &self.0.peer
    }

    /// The peer's present address; it may change in a connection's life.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.0.quic.remote_address()
    }

    /// Opens a stream. The peer sees it with the first frame sent. Waits where the peer has as
    /// many open as it allows (8).
    ///
    /// # Errors
    /// Where the connection is lost.
    pub async fn open_bi(&self) -> Result<(FrameWriter, FrameReader), Lost> {
        Ok(self.framed(self.0.quic.open_bi().await?))
    }

    /// The next stream that the peer opened. May be dropped while it waits.
    ///
    /// # Errors
    /// Where the connection is lost.
    pub async fn accept_bi(&self) -> Result<(FrameWriter, FrameReader), Lost> {
        Ok(self.framed(self.0.quic.accept_bi().await?))
    }

    /// Closes at once, with words that the peer's error shows; frames under way may be lost.
    pub fn close(&self, close: Close, words: &str) {
        self.0.quic.close(close.code(), words.as_bytes());
    }

    /// Closes, and waits until the peer can know of it: for a process that ends. At most a
    /// second, where the peer is gone.
    pub async fn close_and_wait(&self, close: Close, words: &str) {
        self.close(close, words);
        if let Some(endpoint) = &self.0.endpoint {
            // The deadline is the outcome where the peer is gone: nothing more can be done.
            let _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
        }
    }

    /// Waits until the connection is no more, and says why.
    pub async fn closed(&self) -> Lost {
        self.0.quic.closed().await.into()
    }

    /// Why the connection is no more, where it is so.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        self.0.quic.close_reason().map(Lost::from)
    }

    /// UDP datagrams that came from the peer so far. It grows with every acknowledgement, so a
    /// sender of heartbeats sees in it that they arrive, without any reply.
    #[must_use]
    pub fn contact(&self) -> u64 {
        self.0.quic.stats().udp_rx.datagrams
    }

    /// The smoothed round-trip time.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.0.quic.rtt()
    }
}
