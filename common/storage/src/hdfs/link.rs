//! A connection to the NameNodes, and the patience with which they are asked.

use std::future::Future;
use std::io;
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

/// Without these a dead NameNode blocks each call for three minutes, and a DataNode that answers
/// nothing holds a reader for one. What the site's own configuration says goes before them.
const SETTINGS: [(&str, &str); 4] = [
    ("dfs.client.failover.max.attempts", "6"),
    ("dfs.client.failover.sleep.base.millis", "100"),
    ("dfs.client.failover.sleep.max.millis", "1000"),
    ("dfs.client.socket-timeout", "15000"),
];

/// The port of a NameNode whose URL names none, as for Hadoop's own clients.
const NAME_NODE_PORT: u16 = 8020;

/// One client and the threads that carry its sockets. The client leaves tasks behind (a renewer of
/// leases, the heartbeats of an abandoned write); they end with the runtime, so each link has its
/// own.
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
    fn new(authority: &str, settings: &HdfsSettings, turn: usize) -> hdfs_native::Result<Self> {
        let site = Site::read(settings.conf_dir.as_deref())?;
        let mut wanted: Vec<(String, String)> = SETTINGS
            .iter()
            .filter(|(name, _)| site.value(name).is_none())
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let names = format!("dfs.ha.namenodes.{authority}");
        let mut url = format!("hdfs://{authority}");
        match site.value(&names) {
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
        match builder.build() {
            Ok(client) => Ok(Self { runtime: Some(runtime), client }),
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Runs on the calling thread, which must be one that may block.
    pub(super) fn run<T>(
        &self,
        limit: Duration,
        future: impl Future<Output = hdfs_native::Result<T>>,
    ) -> hdfs_native::Result<T> {
        let runtime = self.runtime.as_ref().expect("it is taken only when the link is dropped");
        let outcome = runtime.block_on(async { tokio::time::timeout(limit, future).await });
        outcome.unwrap_or_else(|_| {
            let words = format!("no answer within {} s", limit.as_secs());
            Err(HdfsError::IOError(io::Error::new(io::ErrorKind::TimedOut, words)))
        })
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

/// How much time is left for tries of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    start: Instant,
    limit: Duration,
}

impl Patience {
    #[expect(clippy::disallowed_methods, reason = "sockets to wait for: this crate has no clock")]
    pub(super) fn new(limit: Duration) -> Self {
        Self { start: Instant::now(), limit }
    }

    pub(super) fn is_over(self) -> bool {
        self.limit <= self.start.elapsed()
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

    fn link(&self) -> hdfs_native::Result<Arc<Link>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = &current.0 {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(Link::new(&self.authority, &self.settings, current.1)?);
        current.0 = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Lets nobody start on this link any more: it hangs, or an abandoned write lives on in it.
    /// The next one asks another NameNode first.
    pub(super) fn set_aside(&self, link: &Arc<Link>) {
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
        patience: Patience,
        mut ask: impl FnMut(Arc<Link>) -> F,
    ) -> (hdfs_native::Result<T>, u32)
    where
        F: Future<Output = hdfs_native::Result<T>>,
    {
        let mut pause = PAUSE_MIN;
        let mut tries = 0;
        loop {
            tries += 1;
            let link = match self.link() {
                Ok(link) => link,
                Err(error) => return (Err(error), tries),
            };
            let outcome = link.run(CALL_LIMIT, ask(Arc::clone(&link)));
            match &outcome {
                Err(error) if kind(error) == Kind::Unavailable && !patience.is_over() => {
                    if is_timeout(error) {
                        self.set_aside(&link);
                    }
                    let sleep = async {
                        tokio::time::sleep(pause).await;
                        Ok(())
                    };
                    // It cannot fail: the limit is far longer than the pause.
                    let _ = link.run(CALL_LIMIT, sleep);
                    pause = PAUSE_MAX.min(pause * 2);
                }
                Err(error) if is_timeout(error) => {
                    self.set_aside(&link);
                    return (outcome, tries);
                }
                _ => return (outcome, tries),
            }
        }
    }
}

fn is_timeout(error: &HdfsError) -> bool {
    matches!(error, HdfsError::IOError(error) if error.kind() == io::ErrorKind::TimedOut)
}
