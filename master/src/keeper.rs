//! The thread that owns the store. Persists that wait together become one batch; each is told
//! durable only when the batch is on stable storage.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use storage::snapshot::Header;
use tokio::sync::oneshot;

use crate::disk::{ASIDE_BYTES, Disk};
use crate::store::{Op, StoreError};
use crate::vault::Vault;

/// Persists in one batch: enough for a burst, while the batch stays some hundred KB.
const GROUP_MAX: usize = 256;

/// Between two looks at the disk, and between two tries on a full one.
const WATCH: Duration = Duration::from_secs(2);

/// Free bytes beyond the level at which a disk is nearly full no longer.
const GONE_BY: u64 = 256 << 10;

/// Free bytes of which it is worth setting some aside.
const ASIDE_FREE: u64 = 64 << 10;

/// What the keeper says to the daemon.
#[derive(Debug)]
pub(crate) enum Told {
    /// Every persist up to this number is on stable storage.
    Durable(u64),
    /// Nothing can be kept any more: the master must stop.
    Failed(String),
}

enum Job {
    Persist { number: u64, ops: Vec<Op> },
    Export { header: Header, reply: oneshot::Sender<Result<Vec<u8>, String>> },
}

/// What operators should know of the store and its disk.
#[derive(Debug, Default)]
pub(crate) struct Health {
    low: AtomicBool,
    stalled: AtomicBool,
    aside_bytes: AtomicU64,
    alerts: Mutex<Alerts>,
}

#[derive(Debug, Default)]
struct Alerts {
    disk: Option<String>,
    stall: Option<String>,
    store: Option<String>,
    journal: Option<String>,
    repairs: Vec<String>,
}

impl Health {
    /// True while the disk is nearly full.
    fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    /// True while nothing at all can be stored.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Room that changes are sure to find, however full the disk is.
    pub(crate) fn aside_bytes(&self) -> u64 {
        self.aside_bytes.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn set(&self, stalled: bool, aside_bytes: u64) {
        self.stalled.store(stalled, Ordering::Relaxed);
        self.aside_bytes.store(aside_bytes, Ordering::Relaxed);
    }

    pub(crate) fn alerts(&self) -> Vec<String> {
        self.with(|alerts| {
            // Where nothing can be stored, what is taken on a full disk is no news.
            let disk = if alerts.stall.is_some() { &alerts.stall } else { &alerts.disk };
            let now = [disk, &alerts.store, &alerts.journal];
            now.into_iter().flatten().chain(&alerts.repairs).cloned().collect()
        })
    }

    fn with<T>(&self, look: impl FnOnce(&mut Alerts) -> T) -> T {
        look(&mut self.alerts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A handle on the thread.
#[derive(Debug)]
pub(crate) struct Keeper {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
    health: Arc<Health>,
}

impl Keeper {
    /// Starts the thread. `tell` is called from it. `repairs` is what opening the vault mended.
    pub(crate) fn start(
        vault: Vault,
        disk: Arc<Disk>,
        repairs: Vec<String>,
        tell: impl Fn(Told) + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, receiver) = mpsc::channel();
        let health = Arc::new(Health::default());
        health.with(|alerts| {
            alerts.repairs = repairs;
            alerts.store = vault.trouble().map(str::to_owned);
        });
        let mut run = Run {
            jobs: receiver,
            waiting: VecDeque::new(),
            ended: false,
            vault,
            disk,
            tell: Box::new(tell),
            health: Arc::clone(&health),
        };
        run.watch_disk();
        let thread =
            std::thread::Builder::new().name("store".to_owned()).spawn(move || run.run())?;
        Ok(Self { jobs, thread, health })
    }

    pub(crate) fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Queues a persist. Never waits: the daemon bounds how many are under way.
    pub(crate) fn persist(&self, number: u64, ops: Vec<Op>) {
        // A thread that has ended has told why; the daemon hears that first.
        let _ = self.jobs.send(Job::Persist { number, ops });
    }

    /// Asks for a consistent copy of the store.
    pub(crate) fn export(&self, header: Header) -> oneshot::Receiver<Result<Vec<u8>, String>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.jobs.send(Job::Export { header, reply });
        answer
    }

    /// Lets the thread finish what is queued, and waits for it.
    pub(crate) fn finish(self) {
        drop(self.jobs);
        if self.thread.join().is_err() {
            tracing::error!("the store's thread panicked");
        }
    }
}

struct Run {
    jobs: Receiver<Job>,
    /// Jobs that came while a full disk was waited for.
    waiting: VecDeque<Job>,
    ended: bool,
    vault: Vault,
    disk: Arc<Disk>,
    tell: Box<dyn Fn(Told) + Send>,
    health: Arc<Health>,
}

impl Run {
    fn run(mut self) {
        while let Some(job) = self.next() {
            match job {
                Job::Export { header, reply } => self.export(&header, reply),
                Job::Persist { number, ops } => {
                    if let Err(reason) = self.commit_group(number, ops) {
                        (self.tell)(Told::Failed(reason));
                        return;
                    }
                }
            }
        }
    }

    /// The next job; looks after the disk while there is none.
    fn next(&mut self) -> Option<Job> {
        loop {
            if let Some(job) = self.waiting.pop_front() {
                return Some(job);
            }
            if self.ended {
                return None;
            }
            match self.jobs.recv_timeout(WATCH) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Timeout) => self.watch_disk(),
                Err(RecvTimeoutError::Disconnected) => self.ended = true,
            }
        }
    }

    fn export(&self, header: &Header, reply: oneshot::Sender<Result<Vec<u8>, String>>) {
        // An operator who no longer waits is no fault.
        let _ = reply.send(self.vault.export(header).map_err(|error| storage::chain(&error)));
    }

    fn commit_group(&mut self, first: u64, mut ops: Vec<Op>) -> Result<(), String> {
        let mut through = first;
        // Where room is short, one may fit that many do not.
        let most = if self.health.is_low() { 1 } else { GROUP_MAX };
        for _ in 1..most {
            let next = self.waiting.pop_front().or_else(|| self.jobs.try_recv().ok());
            match next {
                Some(Job::Persist { number, ops: more }) => {
                    ops.extend(more);
                    through = number;
                }
                Some(other @ Job::Export { .. }) => {
                    self.waiting.push_front(other);
                    break;
                }
                None => break,
            }
        }
        self.commit(&ops)?;
        (self.tell)(Told::Durable(through));
        self.tidy();
        Ok(())
    }

    /// Tries until the batch is durable. A full disk without any room set aside is waited for;
    /// any other failure of the journal is tried once more.
    fn commit(&mut self, ops: &[Op]) -> Result<(), String> {
        let mut failures = 0;
        loop {
            let Err(error) = self.attempt(ops) else {
                let trouble = self.vault.trouble().map(str::to_owned);
                if self.health.stalled.swap(false, Ordering::Relaxed) {
                    tracing::info!("changes are stored again");
                }
                self.health.with(|alerts| {
                    alerts.stall = None;
                    alerts.store = trouble;
                });
                return Ok(());
            };
            let words = storage::chain(&error);
            if let StoreError::Full(_) = error {
                if self.ended {
                    return Err(format!("{words}; the last changes were not stored"));
                }
                self.stall(&words);
            } else {
                failures += 1;
                if failures > 1 {
                    return Err(words);
                }
                tracing::error!(error = words, "cannot store changes: trying once more");
            }
        }
    }

    fn attempt(&mut self, ops: &[Op]) -> Result<(), StoreError> {
        let bytes = |op: &Op| op.key.len() + op.value.as_ref().map_or(0, Vec::len);
        let batch: usize = ops.iter().map(bytes).sum();
        // Journal and store each write the batch, and the store moves some of what it has.
        let needed = self.disk.reserve_bytes().saturating_add(4 * batch as u64);
        let free = self.disk.free_bytes()?;
        if needed <= free {
            self.vault.commit(ops)?;
        } else {
            self.give_ballast();
            self.vault.commit_short(ops, self.disk.free_bytes()?)?;
        }
        self.look(free);
        Ok(())
    }

    /// Turns the ballast into room for the journal at once: whoever fills the disk goes on.
    fn give_ballast(&mut self) {
        if self.disk.release_ballast() {
            self.vault.set_aside(self.disk.released_bytes());
            let aside_bytes = self.vault.aside_bytes();
            tracing::warn!(aside_bytes, "the disk is full: gave the ballast's room to the journal");
        }
    }

    /// Waits a moment on a full disk, taking in what comes.
    fn stall(&mut self, words: &str) {
        let alert = format!(
            "changes wait for space on the disk of the state folder ({words}): nothing can be \
             stored, jobs train on, reads are served; {}",
            self.disk.remedy()
        );
        self.health.low.store(true, Ordering::Relaxed);
        self.health.stalled.store(true, Ordering::Relaxed);
        if self.health.with(|alerts| alerts.stall.replace(alert.clone())).is_none() {
            tracing::error!("{alert}");
        }
        match self.jobs.recv_timeout(WATCH) {
            // A copy shows what is durable, so it need not wait for what is not.
            Ok(Job::Export { header, reply }) => self.export(&header, reply),
            Ok(job @ Job::Persist { .. }) => self.waiting.push_back(job),
            Err(RecvTimeoutError::Timeout) => self.watch_disk(),
            Err(RecvTimeoutError::Disconnected) => self.ended = true,
        }
    }

    /// Begins the journal anew where it has grown; never on a disk that is nearly full.
    fn tidy(&mut self) {
        if self.health.is_low() {
            return;
        }
        let failed = match self.vault.tidy() {
            Ok(false) => return,
            Ok(true) => {
                // What was set aside went with the former one.
                self.vault.set_aside(ASIDE_BYTES);
                tracing::info!("began the store's journal anew");
                None
            }
            Err(error) => Some(format!("cannot shorten the journal: {}", storage::chain(&error))),
        };
        if let Some(words) = &failed {
            tracing::warn!("{words}");
        }
        self.health.with(|alerts| alerts.journal = failed);
    }

    /// Judges what is free, and sets room aside for the next changes.
    fn look(&mut self, free: u64) {
        // A file system that is out of space may take long to say so.
        if self.vault.aside_bytes() < ASIDE_BYTES / 2 && ASIDE_FREE <= free {
            self.vault.set_aside(ASIDE_BYTES);
        }
        self.health.aside_bytes.store(self.vault.aside_bytes(), Ordering::Relaxed);
        // What comes and goes at the edge is told once.
        let edge = if self.health.is_low() { GONE_BY } else { 0 };
        let low = free < self.disk.low_bytes() + edge;
        let alert = low.then(|| self.disk.alert(free));
        if self.health.low.swap(low, Ordering::Relaxed) != low {
            match &alert {
                Some(words) => tracing::warn!("{words}"),
                None => tracing::info!(free, "the disk of the state folder has room again"),
            }
        }
        self.health.with(|alerts| alerts.disk = alert);
    }

    fn watch_disk(&mut self) {
        let free = match self.disk.free_bytes() {
            Ok(free) => free,
            Err(error) => {
                tracing::warn!(%error, "cannot ask for the free space of the state folder");
                return;
            }
        };
        self.look(free);
        if self.disk.reserve_bytes() <= free {
            let notes = self.vault.catch_up();
            notes.iter().for_each(|note| tracing::warn!("{note}"));
            let trouble = self.vault.trouble().map(str::to_owned);
            self.health.with(|alerts| {
                alerts.repairs.extend(notes);
                alerts.store = trouble;
            });
        }
        match self.disk.keep_ballast() {
            Ok(true) => tracing::info!("made the ballast file"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot make the ballast file"),
        }
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
