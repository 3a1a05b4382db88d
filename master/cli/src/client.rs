//! The connection to the master: one for a command, one stream for a request.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::client::{
    Answer, Call, Change, ErrorKind, Read, Refusal, Reply, Request, STOPPING, UNANSWERED,
};
use model::nodes::{CertificateCall, PROTOCOL_OF_NODES};
use net::{Close, ConnectError, ConnectOptions, Connection, Credentials};

use crate::clock;
use crate::config::{Environment, MASTER, PORT};
use crate::exchange::{exchange, refused};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::skew;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The master answers reads from memory and changes after one flush; a task's output comes from
/// its agent.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a long wait outlives a master that restarts.
const PATIENCE: Duration = Duration::from_secs(120);
const RETRY: Duration = Duration::from_secs(2);
/// For the last packet to leave.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// Where the master is, and the certificates to show it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub address: String,
    pub folder: PathBuf,
    pub user: Option<String>,
}

impl Target {
    /// What the options say, with defaults from the environment.
    #[must_use]
    pub(crate) fn new(
        address: Option<String>,
        folder: Option<PathBuf>,
        from: &Environment,
    ) -> Self {
        Self {
            address: address.unwrap_or_else(|| MASTER.to_owned()),
            folder: folder.unwrap_or_else(|| from.pki()),
            user: from.user.clone(),
        }
    }
}

/// The master, connected on first use.
#[derive(Debug)]
pub(crate) struct Master {
    target: Target,
    connection: Option<Connection>,
    /// Name and version of the master's program, once connected.
    pub software: Option<String>,
    /// What it speaks, once connected.
    protocol: u16,
}

impl Master {
    #[must_use]
    pub(crate) const fn new(target: Target) -> Self {
        Self { target, connection: None, software: None, protocol: 0 }
    }

    /// Asks something that changes nothing.
    ///
    /// # Errors
    /// What the master refused, or why it could not be asked.
    pub(crate) async fn read(&mut self, read: Read) -> Result<Answer, Failure> {
        let request = Request { dry_run: false, reason: None, call: Call::Read(read) };
        self.ask(&request).await
    }

    /// As [`Self::read`], of something that older masters do not tell: none there.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) async fn read_more(&mut self, read: Read) -> Result<Option<Answer>, Failure> {
        if !self.speaks(skew::first_protocol(&Call::Read(read.clone()))).await? {
            return Ok(None);
        }
        self.read(read).await.map(Some)
    }

    /// Whether the master speaks a protocol or a newer one.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(crate) async fn speaks(&mut self, protocol: u16) -> Result<bool, Failure> {
        self.connect().await?;
        Ok(self.protocol >= protocol)
    }

    /// The file of the certificate that this operator shows, and for how many days it lasts.
    ///
    /// # Errors
    /// Where there is none that can be read, or it has ended.
    pub(crate) fn certificate_days(
        &self,
        now: std::time::SystemTime,
    ) -> Result<Option<(String, f64)>, Failure> {
        let all = self.credentials()?;
        Ok(all.first().map(|credentials| {
            let left = credentials.not_after().duration_since(now).unwrap_or_default();
            let name = credentials.files().certificate.display().to_string();
            (name, left.as_secs_f64() / 86_400.0)
        }))
    }

    /// As [`Self::read`], but waits for a master that restarts.
    ///
    /// # Errors
    /// As [`Self::read`]; where the master stays away for two minutes.
    pub(crate) async fn read_patiently(
        &mut self,
        read: Read,
        output: &mut Output,
    ) -> Result<Answer, Failure> {
        let request = Request { dry_run: false, reason: None, call: Call::Read(read) };
        self.ask_patiently(&request, output).await
    }

    async fn ask_patiently(
        &mut self,
        request: &Request,
        output: &mut Output,
    ) -> Result<Answer, Failure> {
        let deadline = tokio::time::sleep(PATIENCE);
        tokio::pin!(deadline);
        let mut told = false;
        loop {
            let asked = match self.connect().await {
                Ok(_) => {
                    // No wait makes it newer.
                    self.check(&request.call)?;
                    self.reply(request).await
                }
                Err(failure) => Err(failure),
            };
            let failure = match asked {
                Ok(Err(refusal)) if is_passing(&request.call, &refusal) => refusal.into(),
                Ok(Err(refusal)) => return Err(refused_now(refusal, told)),
                Ok(Ok(answer)) => return Ok(answer),
                Err(failure) if failure.exit == Exit::Unavailable => failure,
                Err(failure) => return Err(failure),
            };
            if !told {
                output.talk(&format!("{}; still trying", failure.message));
                told = true;
            }
            tokio::select! {
                () = &mut deadline => return Err(failure),
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Sends a job; where the connection breaks in between, sends it again under the same
    /// request id, which cannot make a second one.
    ///
    /// # Errors
    /// As [`Self::read_patiently`].
    pub(crate) async fn submit(
        &mut self,
        request: &Request,
        output: &mut Output,
    ) -> Result<Answer, Failure> {
        // A master that was never there is told at once; one that was lost is waited for.
        self.connect().await?;
        self.ask_patiently(request, output).await
    }

    /// Asks for a change.
    ///
    /// # Errors
    /// What the master refused, or why it could not be asked; then the change may have happened.
    pub(crate) async fn change(
        &mut self,
        change: Change,
        dry_run: bool,
        reason: Option<&str>,
    ) -> Result<Answer, Failure> {
        let reason = reason.map(str::to_owned);
        self.ask(&Request { dry_run, reason, call: Call::Change(change) }).await
    }

    /// Asks something of certificates.
    ///
    /// # Errors
    /// As [`Self::change`]; where the master is too old.
    pub(crate) async fn certificate(
        &mut self,
        call: CertificateCall,
        reason: Option<String>,
    ) -> Result<Answer, Failure> {
        self.connect().await?;
        if self.protocol < PROTOCOL_OF_NODES {
            let protocol = self.protocol;
            let words = format!("the master speaks protocol {protocol} and knows no such request");
            return Err(Failure::new(Exit::Unavailable, words, "upgrade the master"));
        }
        self.ask(&Request { dry_run: false, reason, call: Call::Certificate(call) }).await
    }

    /// Where the certificates to show it lie.
    #[must_use]
    pub(crate) fn folder(&self) -> &Path {
        &self.target.folder
    }

    /// The serial number of the certificate that this command shows, where it can be read.
    #[must_use]
    pub(crate) fn serial(&self) -> Option<String> {
        Some(self.credentials().ok()?.first()?.serial().to_owned())
    }

    async fn ask(&mut self, request: &Request) -> Result<Answer, Failure> {
        Ok(self.reply(request).await??)
    }

    fn check(&self, call: &Call) -> Result<(), Failure> {
        skew::check(call, self.protocol, self.software.as_deref())
    }

    /// What the master said, or why it said nothing.
    async fn reply(&mut self, request: &Request) -> Result<Reply, Failure> {
        let address = self.target.address.clone();
        let connection = self.connect().await?;
        self.check(&request.call)?;
        let asked = tokio::time::timeout(REPLY_TIMEOUT, exchange(&connection, request)).await;
        let hint = match request.call {
            Call::Read(_) => "try again",
            Call::Change(_) | Call::Certificate(_) => {
                "the change may have been made: look before you repeat it"
            }
        };
        let failed = match asked {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => {
                format!("lost the master at {address} before its answer: {error}")
            }
            Err(_) => {
                format!("the master at {address} took over {} s to answer", REPLY_TIMEOUT.as_secs())
            }
        };
        self.connection = None;
        Err(Failure::new(Exit::Unavailable, failed, hint))
    }

    /// All pieces of a snapshot, one after another.
    ///
    /// # Errors
    /// As [`Self::read`], and those of `take`.
    pub(crate) async fn snapshot(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let address = self.target.address.clone();
        let connection = self.connect().await?;
        let lost = |error: String| {
            let message = format!("lost the master at {address} within the snapshot: {error}");
            Failure::new(Exit::Unavailable, message, "try again")
        };
        let (mut writer, mut reader) =
            connection.open_bi().await.map_err(|error| lost(error.to_string()))?;
        let call = Call::Read(Read::Snapshot);
        let request = Request { dry_run: false, reason: None, call };
        writer.send(&request).await.map_err(|error| lost(error.to_string()))?;
        writer.finish();
        loop {
            let next = tokio::time::timeout(REPLY_TIMEOUT, reader.receive::<Reply>()).await;
            let reply = next
                .map_err(|_| lost("no piece came in time".to_owned()))?
                .map_err(|error| lost(error.to_string()))?
                .ok_or_else(|| lost("it ended too early".to_owned()))?;
            let answer = reply?;
            let Answer::SnapshotPiece(bytes) = answer else { return Err(unexpected(&answer)) };
            if bytes.is_empty() {
                return Ok(());
            }
            take(&bytes)?;
        }
    }

    /// Connects, where that is still to be done.
    ///
    /// # Errors
    /// Exit 6 where no master answers, 4 where certificates are missing or refused.
    pub(crate) async fn connect(&mut self) -> Result<Connection, Failure> {
        if let Some(connection) = &self.connection
            && connection.lost().is_none()
        {
            return Ok(connection.clone());
        }
        let mut failure = None;
        for credentials in self.credentials()? {
            for address in resolve(&self.target.address).await? {
                let options = ConnectOptions {
                    timeout: CONNECT_TIMEOUT,
                    ..ConnectOptions::new(concat!("optimus ", env!("CARGO_PKG_VERSION")))
                };
                match Box::pin(net::connect(address, &credentials, &options)).await {
                    Ok(session) => {
                        self.software = Some(session.software);
                        self.protocol = session.protocol;
                        self.connection = Some(session.connection.clone());
                        return Ok(session.connection);
                    }
                    Err(error) => failure = Some(error),
                }
            }
            // A master of before there were admins knows an operator's certificate only.
            if !matches!(failure, Some(ConnectError::Role { .. })) {
                break;
            }
        }
        let none = || no_address(&self.target.address, "it has none");
        Err(failure.as_ref().map_or_else(none, refused))
    }

    /// What may be shown to the master, in the order to try it in.
    fn credentials(&self) -> Result<Vec<Credentials>, Failure> {
        let folder = &self.target.folder;
        let files = net::pki::find_clients(folder, self.target.user.as_deref())
            .map_err(|error| no_certificate(folder, &error.to_string()))?;
        let mut usable = Vec::new();
        for files in files {
            match Credentials::load_client(&files, clock::wall()) {
                Ok(credentials) => usable.push(credentials),
                // What is there and cannot be used is told, not passed over for a lesser one.
                Err(error) if usable.is_empty() => return Err(unusable(&error.to_string())),
                Err(_) => {}
            }
        }
        Ok(usable)
    }

    /// Says goodbye, so that the master need not wait for silence.
    pub(crate) async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            let close = connection.close_and_wait(Close::Done, "done");
            // Nothing is left to be done where the peer is gone.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
        }
    }
}

/// Whether a master that refused this is about to be back, or to know more. One that is there and
/// cannot take a change, as for want of room on its disk, is believed at once.
fn is_passing(call: &Call, refusal: &Refusal) -> bool {
    let changes = !matches!(call, Call::Read(_));
    let passing = [STOPPING, UNANSWERED].contains(&refusal.message.as_str());
    refusal.kind == ErrorKind::Unavailable && (passing || !changes)
}

/// `before`: the same was asked once without an answer.
fn refused_now(refusal: Refusal, before: bool) -> Failure {
    let mut failure = Failure::from(refusal);
    if before {
        failure.hint.push_str("; the first try had no answer and may have been carried out: look");
    }
    failure
}

/// An answer to another question: the two programs are not of one release.
#[must_use]
pub(crate) fn unexpected(answer: &Answer) -> Failure {
    let shown: String = format!("{answer:?}").chars().take(60).collect();
    Failure::new(
        Exit::Unavailable,
        format!("the master answered something else: {shown}"),
        "compare the versions with `optimus version`",
    )
}

fn unusable(message: &str) -> Failure {
    let (message, hint) = message.split_once("; ").unwrap_or((
        message,
        "make one with `optimus cert issue operator NAME`, or name the folder with --tls-dir",
    ));
    Failure::new(Exit::NotAllowed, message, hint)
}

fn no_certificate(folder: &Path, reason: &str) -> Failure {
    let folder = folder.display();
    Failure::new(
        Exit::NotAllowed,
        format!("no operator certificate in {folder}: {reason}"),
        "a master on loopback makes them when it first starts; else run `optimus cert init` once \
         and `optimus cert issue operator NAME` there, and name the folder with --tls-dir",
    )
}

fn no_address(address: &str, reason: &str) -> Failure {
    Failure::invalid(
        format!("cannot find the master's address {address:?}: {reason}"),
        "give --master HOST:PORT, such as 10.0.0.1:7600",
    )
}

async fn resolve(address: &str) -> Result<Vec<SocketAddr>, Failure> {
    if let Ok(address) = address.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    if let Ok(ip) = address.parse::<std::net::IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, PORT)]);
    }
    let name = if address.contains(':') { address.to_owned() } else { format!("{address}:{PORT}") };
    let found = tokio::net::lookup_host(name).await;
    found.map(Iterator::collect).map_err(|error| no_address(address, &error.to_string()))
}
