//! The gateway of tasks to storage.
//!
//! Tasks have no client for HDFS, and the bytes of a checkpoint are on the agents' hosts. So each
//! generation's folder holds a stream socket, `files.sock`, where its tasks ask their agent to
//! bring parts of a checkpoint to storage and back. A task is never trusted and never waited for:
//! only its user may connect, each request names one plain file of the one checkpoint that was
//! ordered or is resumed from, everything is bounded, and nothing here runs on the agent's loop.
//!
//! To add an operation, add an arm to [`Service::answer`].

mod checkpoint;
mod data;
mod frame;
mod server;
mod spool;
mod transfer;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use model::agent::{CheckpointOrder, STORAGE_AWAY};
use nix::unistd::{Gid, Uid};
use serde_json::{Map, Value};
use storage::checkpoint::Manifest;
use storage::{HdfsSettings, Storage};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;

use crate::config::Settings;
use crate::daemon::Event;
use crate::ledger::Key;
use checkpoint::{Locks, Present, Proved};
use frame::Frame;
use spool::{Checkpoint, Spool};

/// Storage calls of all generations at a time. Each may hold a thread for as long as storage
/// does not answer, and launches need some of those threads too.
const CALLS_MAX: usize = 12;

/// Start of the name of a file that shows that parts can be stored.
const READY: &str = "ready-";
/// Parts of a job that is not here are kept for its return, in s.
const SPOOL_KEPT_S: i64 = 1800;
/// Manifests and clients that are kept: those of the jobs of this node, mostly.
const KEPT_MAX: usize = 64;

/// Opens the storage at a base URL.
type Open = fn(&str, &HdfsSettings) -> storage::Result<Box<dyn Storage>>;

/// What all generations of this node share.
#[derive(Debug)]
pub(crate) struct Gateway {
    calls: Arc<Semaphore>,
    spool: Spool,
    open: Open,
    hdfs: HdfsSettings,
    storages: Mutex<BTreeMap<String, Arc<dyn Storage>>>,
    manifests: Mutex<BTreeMap<String, Arc<Manifest>>>,
    locks: Locks,
    proved: Proved,
    events: mpsc::Sender<Event>,
}

/// Whether a checkpoint lies where tasks cannot reach it by themselves.
pub(crate) fn is_remote(url: &str) -> bool {
    !url.starts_with("file:")
}

impl Gateway {
    pub(crate) fn new(settings: &Settings, events: mpsc::Sender<Event>) -> Self {
        let spool =
            Spool::new(&settings.state_dir, settings.user.clone(), settings.spool_bytes_max);
        Self::with(spool, (storage::open_with, settings.hdfs.clone()), events)
    }

    fn with(spool: Spool, (open, hdfs): (Open, HdfsSettings), events: mpsc::Sender<Event>) -> Self {
        let (storages, manifests, locks, proved) = Default::default();
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        Self { calls, spool, open, hdfs, storages, manifests, locks, proved, events }
    }

    /// The storage at a base; opened once.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub(crate) fn storage(&self, base: &str) -> Result<Arc<dyn Storage>, Trouble> {
        let mut storages = self.storages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(storage) = storages.get(base) {
            return Ok(Arc::clone(storage));
        }
        let storage: Arc<dyn Storage> =
            (self.open)(base, &self.hdfs).map_err(|error| transfer::trouble(&error))?.into();
        if KEPT_MAX <= storages.len() {
            storages.clear();
        }
        storages.insert(base.to_owned(), Arc::clone(&storage));
        Ok(storage)
    }

    /// A published manifest, which never changes.
    fn manifest(
        &self,
        of: &Checkpoint,
        load: impl FnOnce() -> Result<Manifest, Trouble>,
    ) -> Result<Arc<Manifest>, Trouble> {
        let place = format!("{}/{}", of.base, of.directory());
        let kept = || self.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manifest) = kept().get(&place) {
            return Ok(Arc::clone(manifest));
        }
        let manifest = Arc::new(load()?);
        let mut manifests = kept();
        if KEPT_MAX <= manifests.len() {
            manifests.clear();
        }
        manifests.insert(place, Arc::clone(&manifest));
        Ok(manifest)
    }

    fn one_at_a_time(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.locks.of(name)
    }

    /// Makes ready what a checkpoint needs before its workers hear of it: room and a folder on
    /// this node, and the fresh folder in storage.
    ///
    /// # Errors
    /// In words, with what storage or the disk says.
    pub(crate) fn prepare(&self, directory: &str, resume: Option<&str>) -> Result<(), String> {
        let prepare = || {
            let of = Checkpoint::of(directory)?;
            let resume = resume.and_then(|url| Checkpoint::of(url).ok());
            let live: Vec<Checkpoint> = resume.into_iter().chain([of.clone()]).collect();
            self.spool.make_room(of.job, &live)?;
            self.spool.make(&of)?;
            let storage = self.storage(&of.base)?;
            storage.make_dir(&of.directory()).map_err(|error| transfer::trouble(&error))?;
            // A folder costs no space: a quota that is used up shows with the first file.
            let ready = format!("{READY}{}", std::process::id());
            match storage.publish(&of.file(&ready), b"ready") {
                // Another host's agent has the same number.
                Ok(()) | Err(storage::Error::AlreadyExists { .. }) => Ok(()),
                Err(error) => Err(transfer::trouble(&error)),
            }
        };
        prepare().map_err(|trouble: Trouble| trouble.words)
    }

    /// Forgets what the spool keeps of jobs that have not been here for a while.
    pub(crate) fn prune(&self, stays: impl Fn(model::JobId) -> bool, unix_ms: u64) {
        let before_s = i64::try_from(unix_ms / 1000).unwrap_or(0) - SPOOL_KEPT_S;
        self.spool.prune(stays, before_s);
    }

    /// Runs work that blocks, once there is a place for it. Work whose asker has gone runs to its
    /// end: a thread cannot be called back.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let permits = Arc::clone(&self.calls);
        let permit = permits.acquire_owned().await.expect("it is never closed");
        let done = tokio::task::spawn_blocking(move || {
            let outcome = work();
            drop(permit);
            outcome
        });
        done.await.unwrap_or_else(|panic| Err(Trouble::new(Kind::Refused, panic.to_string())))
    }
}

/// What a generation's tasks may ask for at present.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wanted {
    /// The checkpoint that the master ordered.
    pub(crate) order: Option<CheckpointOrder>,
    /// Folder of the published checkpoint to resume from, as a URL.
    pub(crate) resume: Option<String>,
    /// The data set, where tasks cannot read it by themselves.
    pub(crate) data: Option<String>,
}

/// A generation's open socket; dropping it ends all of its connections.
#[derive(Debug)]
pub(crate) struct Served {
    server: AbortHandle,
    service: Service,
    wanted: watch::Sender<Wanted>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Served {
    /// Opens the socket in a generation's folder. `alone` says that all workers are here. Must be
    /// called within the runtime.
    ///
    /// # Errors
    /// Where the file system refuses.
    pub(crate) fn open(
        gateway: &Arc<Gateway>,
        key: Key,
        folder: &Path,
        (uid, gid): (Uid, Gid),
        alone: bool,
    ) -> io::Result<Self> {
        let (wanted, receiver) = watch::channel(Wanted::default());
        let service = Service {
            gateway: Arc::clone(gateway),
            key,
            alone,
            wanted: receiver,
            present: Arc::default(),
        };
        gateway.spool.give(key.job, (uid, gid));
        let server = server::serve(folder, uid, gid, service.clone())?;
        Ok(Self { server, service, wanted })
    }

    /// Goes on with the order that an earlier life of the agent left.
    pub(crate) fn take_up(&self, order: Option<&CheckpointOrder>) {
        let Some(order) = order.filter(|order| is_remote(&order.directory)) else { return };
        self.want(|wanted| wanted.order = Some(order.clone()));
        let service = self.service.clone();
        tokio::spawn(async move { service.take_up().await });
    }

    /// The checkpoint that the generation resumes from.
    pub(crate) fn resume(&self) -> Option<String> {
        self.wanted.borrow().resume.clone()
    }

    /// Says what the tasks may ask for from now on.
    pub(crate) fn want(&self, change: impl FnOnce(&mut Wanted)) {
        self.wanted.send_if_modified(|wanted| {
            let before = wanted.clone();
            change(wanted);
            *wanted != before
        });
    }
}

/// Answers the tasks of one generation.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    gateway: Arc<Gateway>,
    key: Key,
    alone: bool,
    wanted: watch::Receiver<Wanted>,
    present: Arc<Mutex<Present>>,
}

impl Service {
    async fn answer(&self, request: Request) -> Result<Answer, Trouble> {
        match request.text("op")? {
            "spool" => self.spool(&request).await,
            "put" => self.put(&request).await,
            "get" => self.get(&request).await,
            "mark" => self.mark(request).await,
            "marks" => self.marks(&request).await,
            "fetch" => self.fetch(&request).await,
            "read" => self.read(&request).await,
            other => Err(Trouble::new(Kind::Refused, format!("unknown operation {other:?}"))),
        }
    }
}

/// What a task asks.
#[derive(Debug)]
pub(crate) struct Request {
    frame: Frame,
}

impl Request {
    fn new(frame: Frame) -> Self {
        Self { frame }
    }

    /// A text of the header.
    ///
    /// # Errors
    /// Where it has none of the name.
    pub(crate) fn text(&self, name: &str) -> Result<&str, Trouble> {
        let value = self.frame.header[name].as_str();
        value.ok_or_else(|| Trouble::new(Kind::Refused, format!("{name} is not given as a text")))
    }

    /// A list of texts of the header.
    ///
    /// # Errors
    /// Where it has none of the name.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<&str>, Trouble> {
        let values = self.frame.header[name].as_array();
        let texts = values.and_then(|values| values.iter().map(Value::as_str).collect());
        texts.ok_or_else(|| Trouble::new(Kind::Refused, format!("{name} is not a list of texts")))
    }

    /// Whether the header has a field that is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.frame.header[name] == true
    }

    /// A whole number of the header.
    ///
    /// # Errors
    /// Where it has none of the name.
    pub(crate) fn number(&self, name: &str) -> Result<u64, Trouble> {
        let value = self.frame.header[name].as_u64();
        value.ok_or_else(|| Trouble::new(Kind::Refused, format!("{name} is not a whole number")))
    }
}

/// What a task is told.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    header: Map<String, Value>,
    body: Vec<u8>,
}

impl Answer {
    pub(crate) fn new<const N: usize>(fields: [(&str, Value); N]) -> Self {
        let header = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { header, body: Vec::new() }
    }

    pub(crate) fn with_body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }
}

/// Why a task does not get what it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) kind: Kind,
    pub(crate) words: String,
}

impl Trouble {
    pub(crate) fn new(kind: Kind, words: impl Into<String>) -> Self {
        Self { kind, words: words.into() }
    }

    /// Storage, or the disk before it, takes or gives nothing for now.
    pub(crate) fn away(words: impl std::fmt::Display) -> Self {
        Self { kind: Kind::Unavailable, words: format!("{STORAGE_AWAY}{words}") }
    }
}

/// What the asker can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing: the request makes no sense here.
    Refused,
    /// There is no such file.
    Missing,
    /// It is there, and is not what was written.
    Damaged,
    /// Storage is away for now: soon it may be well.
    Unavailable,
    /// Storage, or the disk before it, is full: it will be until somebody frees space.
    Full,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Missing => "missing",
            Self::Damaged => "damaged",
            Self::Unavailable | Self::Full => "unavailable",
        }
    }
}

#[cfg(test)]
mod tests;
