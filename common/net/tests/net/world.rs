//! A cluster's PKI in a folder, a listening master, and peers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use net::pki::{self, Ca, Existing, Request};
use net::{
    ConnectError, ConnectOptions, Credentials, HandshakeError, ResetKeys, Role, Server,
    ServerOptions, Session, TlsFiles,
};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// The condition's value, or a failed test after a minute.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {LIMIT:?}"),
    }
}

#[expect(clippy::disallowed_methods, reason = "rustls verifies against the real clock")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

pub(crate) fn days(count: u64) -> Duration {
    Duration::from_secs(count * 86_400)
}

/// A folder with a CA that is valid since 30 days.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) ca: Ca,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ca = pki::init_cluster(folder.path(), "test", 3650, now() - days(30)).unwrap();
        Self { folder, ca }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn issue(&self, role: Role, name: &str) -> TlsFiles {
        self.issue_at(role, name, now(), 30)
    }

    pub(crate) fn issue_at(&self, role: Role, name: &str, at: SystemTime, days: u32) -> TlsFiles {
        let request = Request { role, name, addresses: &[], days };
        self.ca.issue(&request, self.path(), Existing::Replace, at).unwrap()
    }

    pub(crate) fn credentials(&self, role: Role, name: &str) -> Credentials {
        Credentials::load(&self.issue(role, name), role, now()).unwrap()
    }

    /// A certificate that was good for a day, 20 days ago, and loaded then.
    pub(crate) fn expired(&self, role: Role, name: &str) -> Credentials {
        let then = now() - days(20);
        Credentials::load(&self.issue_at(role, name, then, 1), role, then).unwrap()
    }

    pub(crate) fn server(&self) -> Server {
        self.server_with(options())
    }

    pub(crate) fn server_with(&self, options: ServerOptions) -> Server {
        let credentials = self.credentials(Role::Master, "m1");
        net::server(LOOPBACK, &credentials, &ResetKeys::random().unwrap(), options).unwrap()
    }
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions::new("test", "optimus-master 0.1.0")
}

pub(crate) fn agent_options() -> ConnectOptions {
    ConnectOptions::new("optimus-agent 0.1.0")
}

/// The next that knocks, after its handshake.
pub(crate) async fn accept(server: &Server) -> Result<Session, HandshakeError> {
    let incoming = soon("a peer", server.accept()).await.unwrap();
    soon("its handshake", incoming.handshake()).await
}

/// Both ends of one attempt.
pub(crate) async fn meet(
    server: &Server,
    credentials: &Credentials,
    options: &ConnectOptions,
) -> (Result<Session, HandshakeError>, Result<Session, ConnectError>) {
    tokio::join!(accept(server), net::connect(server.local_address(), credentials, options))
}

/// Both ends of a session.
pub(crate) async fn session(server: &Server, credentials: &Credentials) -> (Session, Session) {
    let (master, peer) = meet(server, credentials, &agent_options()).await;
    (master.unwrap(), peer.unwrap())
}

/// Accepts in the background, each peer in a task of its own, and keeps every session.
pub(crate) fn accept_all(server: &Arc<Server>) -> tokio::task::JoinHandle<()> {
    let server = Arc::clone(server);
    tokio::spawn(async move {
        let mut kept = tokio::task::JoinSet::new();
        while let Some(incoming) = server.accept().await {
            kept.spawn(async move {
                if let Ok(session) = incoming.handshake().await {
                    session.connection.closed().await;
                }
            });
        }
    })
}
