//! A master of the test's own: it speaks the real protocol and answers what the test says.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use model::client::{Reply, Request};
use net::{Credentials, ResetKeys, Role, ServerOptions, TlsFiles};
use tempfile::TempDir;

/// What the fake does with a request.
pub(crate) enum Does {
    Replies(Vec<Reply>),
    /// Closes the connection without an answer.
    Hangs,
}

impl From<Reply> for Does {
    fn from(reply: Reply) -> Self {
        Self::Replies(vec![reply])
    }
}

/// A running fake master; ends with the test.
pub(crate) struct Fake {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    _runtime: tokio::runtime::Runtime,
}

#[expect(clippy::disallowed_methods, reason = "certificates need a date")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// One folder of certificates for all tests.
pub(crate) fn pki() -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        net::pki::prepare(folder.path(), "test", "n1", "anna", now()).unwrap();
        folder
    });
    folder.path().to_owned()
}

impl Fake {
    pub(crate) fn start(answer: impl Fn(&Request) -> Does + Send + Sync + 'static) -> Self {
        Self::start_at(net::PROTOCOL, answer)
    }

    /// A master that speaks these protocols.
    pub(crate) fn start_at(
        versions: std::ops::RangeInclusive<u16>,
        answer: impl Fn(&Request) -> Does + Send + Sync + 'static,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let files = TlsFiles::in_folder(&pki(), Role::Master, "master");
        let credentials = Credentials::load(&files, Role::Master, now()).unwrap();
        let keys = ResetKeys::random().unwrap();
        let mut options = ServerOptions::new("test", "fake 0.0.0");
        options.roles.retain(|role| *role != Role::Admin || versions.contains(&4));
        options.versions = versions;
        let any = "127.0.0.1:0".parse().unwrap();
        let entered = runtime.enter();
        let server = net::server(any, &credentials, &keys, options).unwrap();
        drop(entered);
        let address = server.local_address();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (answer, requests) = (Arc::new(answer), Arc::clone(&seen));
        runtime.spawn(async move {
            while let Some(incoming) = server.accept().await {
                let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
                tokio::spawn(async move {
                    let Ok(session) = Box::pin(incoming.handshake()).await else { return };
                    while let Ok((mut writer, mut reader)) = session.connection.accept_bi().await {
                        let Ok(Some(request)) = reader.receive::<Request>().await else { return };
                        requests.lock().unwrap().push(request.clone());
                        match answer(&request) {
                            Does::Hangs => {
                                session.connection.close(net::Close::Shutdown, "going away");
                                return;
                            }
                            Does::Replies(replies) => {
                                for reply in replies {
                                    writer.send(&reply).await.unwrap();
                                }
                                writer.finish();
                            }
                        }
                    }
                });
            }
        });
        Self { address, seen, _runtime: runtime }
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// `optimus` with these words, pointed at the fake.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = optimus(words);
        command.env("OPTIMUS_MASTER", self.address.to_string());
        command.env("OPTIMUS_TLS_DIR", pki());
        command
    }

    pub(crate) fn run(&self, words: &str) -> Ran {
        Ran::of(&self.command(words).output().unwrap())
    }
}

/// `optimus` with these words in an environment that says nothing.
pub(crate) fn optimus(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_optimus"));
    command.args(words.split(' ').filter(|word| !word.is_empty()));
    command.env_clear().env("LANG", "C").stdin(Stdio::null());
    command
}

/// What a finished command left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The object on stderr.
    pub(crate) fn error(&self) -> serde_json::Value {
        serde_json::from_str(&self.err).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
