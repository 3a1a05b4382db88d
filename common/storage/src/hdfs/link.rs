//! A connection to the NameNodes, and the patience with which they are asked.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdfs_native::{Client, ClientBuilder, HdfsError};
use tokio::runtime::Runtime;

use super::errors::{Kind, kind};
use super::site::Site;
use crate::HdfsSettings;

/// One question to a NameNode, with the client's own tries at the other. A NameNode that is busy
/// for longer than this might as well be gone.
const CALL_LIMIT: Duration = Duration::from_secs(8);

/// Between two tries: a NameNode that just fails over must not be stormed.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Without these a dead NameNode blocks each call for three minutes, a DataNode that answers
/// nothing holds a reader for one, and one that dies under a writer costs the file where no other
/// can take its place. What the site's own configuration says goes before them.
const SETTINGS: [(&str, &str); 4] = [
    ("dfs.client.block.write.replace-datanode-on-failure.best-effort", "true"),
    ("dfs.client.failover.sleep.base.millis", "100"),
    ("dfs.client.failover.sleep.max.millis", "1000"),
    ("dfs.client.socket-timeout", "15000"),
];

const ATTEMPTS: &str = "dfs.client.failover.max.attempts";

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Questions that are asked again from outside: the client itself tries for 2 s (of a pair)
    /// to 5 s (one NameNode).
    Calls,
    /// One file. The client asks for its blocks by itself, nobody can ask again for it, and a
    /// failover must not cost an upload: it tries for 10 s.
    Writing,
}

impl Use {
    const fn attempts(self, name_nodes: usize) -> usize {
        match self {
            Self::Calls => 6,
            // It pauses once for each sweep over the NameNodes, 1 s from the fourth on.
            Self::Writing => 12 * name_nodes,
        }
    }
}

/// The port of a NameNode whose URL names none, as for Hadoop's own clients.
const NAME_NODE_PORT: u16 = 8020;

/// One client and the thread that carries its sockets. The client leaves tasks behind (a renewer
/// of leases, the heartbeats of an abandoned write); they end with the runtime, so each link has
/// its own.
pub(super) struct Link {
    runtime: Option<Runtime>,
    pub(super) client: Client,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl Link {
    fn new(
        authority: &str,
        settings: &HdfsSettings,
        turn: usize,
        wanted_for: Use,
    ) -> hdfs_native::Result<Self> {
        let site = Site::read(settings.conf_dir.as_deref())?;
        let mut wanted: Vec<(String, String)> = SETTINGS
            .iter()
            .filter(|(name, _)| site.value(name).is_none())
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let names = format!("dfs.ha.namenodes.{authority}");
        let nodes = site.value(&names);
        let count = nodes.map_or(1, |nodes| nodes.split(',').count());
        if site.value(ATTEMPTS).is_none() {
            wanted.push((ATTEMPTS.to_owned(), wanted_for.attempts(count).to_string()));
        }
        let mut url = format!("hdfs://{authority}");
        match nodes {
            Some(nodes) => wanted.push((names, turned(nodes, turn))),
            None if !authority.contains(':') => url = format!("{url}:{NAME_NODE_PORT}"),
            None => {}
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("hdfs")
            .enable_all()
            .build()?;
        let mut builder = ClientBuilder::new()
            .with_url(url)
            .with_config(wanted)
            .with_io_runtime(runtime.handle().clone());
        if let Some(folder) = &settings.conf_dir {
            builder = builder.with_config_dir(folder.to_string_lossy());
        }
        if let Some(principal) = &settings.principal {
            builder = builder.with_kerberos_principal(principal);
        }
        if let Some(keytab) = &settings.keytab {
            builder = builder.with_kerberos_keytab(keytab.to_string_lossy());
        }
        match builder.build() {
            Ok(client) => Ok(Self { runtime: Some(runtime), client }),
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Runs on the calling thread, which must be one that may block. A panic of the client, which
    /// has some for what it does not expect of a server, is an error here.
    pub(super) fn run<T>(
        &self,
        limit: Duration,
        future: impl Future<Output = hdfs_native::Result<T>>,
    ) -> hdfs_native::Result<T> {
        let runtime = self.runtime.as_ref().expect("it is taken only when the link is dropped");
        let bounded = async { tokio::time::timeout(limit, future).await };
        match catch_unwind(AssertUnwindSafe(|| runtime.block_on(bounded))) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => {
                let words = format!("no answer within {} s", limit.as_secs());
                Err(HdfsError::IOError(io::Error::new(io::ErrorKind::TimedOut, words)))
            }
            Err(_) => Err(HdfsError::InternalError("the client panicked".to_owned())),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // In the background: a caller may be on a thread of another runtime.
            runtime.shutdown_background();
        }
    }
}

/// `nn1,nn2` with another one first: the client asks the first one first, and one that is gone
/// without a word (power, a cut cable) holds it until the time is up.
fn turned(nodes: &str, turn: usize) -> String {
    let mut nodes: Vec<&str> = nodes.split(',').map(str::trim).collect();
    let count = nodes.len();
    nodes.rotate_left(turn % count.max(1));
    nodes.join(",")
}

/// How much time is left for tries of one call, and how long to wait before the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    start: Instant,
    limit: Duration,
    pause: Duration,
}

impl Patience {
    #[expect(clippy::disallowed_methods, reason = "sockets to wait for: this crate has no clock")]
    pub(super) fn new(limit: Duration) -> Self {
        Self { start: Instant::now(), limit, pause: PAUSE_MIN }
    }

    /// Waits a little longer than the last time; false, at once, where patience is at its end.
    pub(super) fn wait(&mut self, link: &Link) -> bool {
        if self.limit <= self.start.elapsed() {
            return false;
        }
        let pause = self.pause;
        let sleep = async move {
            tokio::time::sleep(pause).await;
            Ok(())
        };
        // It cannot fail: the limit is longer than the pause.
        let _ = link.run(pause * 2, sleep);
        self.pause = PAUSE_MAX.min(pause * 2);
        true
    }
}

/// The links of one storage: the one in use, and how often it was changed.
#[derive(Debug)]
pub(super) struct Links {
    authority: String,
    pub(super) settings: HdfsSettings,
    current: Mutex<(Option<Arc<Link>>, usize)>,
}

impl Links {
    pub(super) fn new(authority: String, settings: HdfsSettings) -> Self {
        Self { authority, settings, current: Mutex::new((None, 0)) }
    }

    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    pub(super) fn link(&self) -> hdfs_native::Result<Arc<Link>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = &current.0 {
            return Ok(Arc::clone(link));
        }
        let link = Link::new(&self.authority, &self.settings, current.1, Use::Calls)?;
        let link = Arc::new(link);
        current.0 = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Copies that the site's configuration gives a file.
    pub(super) fn default_copies(&self) -> Option<u32> {
        Site::read(self.settings.conf_dir.as_deref()).ok()?.value("dfs.replication")?.parse().ok()
    }

    /// A link for one file, which ends with it.
    pub(super) fn writing_link(&self) -> hdfs_native::Result<Link> {
        let turn = self.current.lock().unwrap_or_else(PoisonError::into_inner).1;
        Link::new(&self.authority, &self.settings, turn, Use::Writing)
    }

    /// Lets nobody start on this link any more: it hangs. The next one asks another NameNode first.
    fn set_aside(&self, link: &Arc<Link>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0.as_ref().is_some_and(|found| Arc::ptr_eq(found, link)) {
            current.0 = None;
            current.1 = current.1.wrapping_add(1);
        }
    }

    /// Asks until there is an answer that waiting would not change, or patience ends. The second
    /// value counts the tries: after more than one, an earlier one may have been carried out.
    pub(super) fn call<T, F>(
        &self,
        mut patience: Patience,
        mut ask: impl FnMut(Arc<Link>) -> F,
    ) -> (hdfs_native::Result<T>, u32)
    where
        F: Future<Output = hdfs_native::Result<T>>,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            let link = match self.link() {
                Ok(link) => link,
                Err(error) => return (Err(error), tries),
            };
            let outcome = link.run(CALL_LIMIT, ask(Arc::clone(&link)));
            let Err(error) = &outcome else { return (outcome, tries) };
            if is_broken(error) {
                self.set_aside(&link);
            }
            if kind(error) != Kind::Unavailable || !patience.wait(&link) {
                return (outcome, tries);
            }
        }
    }
}

/// True where the link itself may be the reason.
fn is_broken(error: &HdfsError) -> bool {
    let timed_out = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    matches!(error, HdfsError::InternalError(_))
        || matches!(error, HdfsError::IOError(error) if timed_out(error))
}
