//! The thread that owns the store. Persists that wait together become one batch; each is told
//! durable only when the batch is on stable storage.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use storage::snapshot::Header;
use tokio::sync::oneshot;

use crate::disk::Disk;
use crate::store::{Op, StoreError};
use crate::vault::Vault;

/// Persists in one batch: enough for a burst, while the batch stays some hundred KB.
const GROUP_MAX: usize = 256;

/// Between two looks at the disk, and between two tries on a full one.
const WATCH: Duration = Duration::from_secs(2);

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
    /// True while no new job should be taken.
    pub(crate) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    pub(crate) fn alerts(&self) -> Vec<String> {
        self.with(|alerts| {
            let now = [&alerts.disk, &alerts.stall, &alerts.store, &alerts.journal];
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
        disk: Disk,
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
    disk: Disk,
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
        for _ in 1..GROUP_MAX {
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

    /// Tries until the batch is durable. A full disk is waited for, with the ballast given back;
    /// any other failure of the journal is tried once more.
    fn commit(&mut self, ops: &[Op]) -> Result<(), String> {
        let mut failures = 0;
        loop {
            let Err(error) = self.attempt(ops) else {
                let trouble = self.vault.trouble().map(str::to_owned);
                self.health.with(|alerts| {
                    alerts.stall = None;
                    alerts.store = trouble;
                });
                return Ok(());
            };
            let words = storage::chain(&error);
            if let StoreError::Full(_) = error {
                if self.disk.release_ballast() {
                    tracing::warn!(error = words, "the disk is full: gave back the ballast");
                    continue;
                }
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
        if free < needed {
            let words = format!("only {free} bytes are free");
            return Err(StoreError::Full(io::Error::new(io::ErrorKind::StorageFull, words)));
        }
        self.vault.commit(ops)
    }

    /// Waits a moment on a full disk, taking in what comes.
    fn stall(&mut self, words: &str) {
        let alert = format!(
            "changes wait for space on the disk of the state folder ({words}): free some, reads \
             are served meanwhile"
        );
        self.health.low.store(true, Ordering::Relaxed);
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

    fn watch_disk(&mut self) {
        let free = match self.disk.free_bytes() {
            Ok(free) => free,
            Err(error) => {
                tracing::warn!(%error, "cannot ask for the free space of the state folder");
                return;
            }
        };
        let low = free < self.disk.low_bytes();
        let alert = low.then(|| {
            format!(
                "the disk of the state folder has {free} bytes free: below {} no new job is taken",
                self.disk.low_bytes()
            )
        });
        if self.health.low.swap(low, Ordering::Relaxed) != low {
            match &alert {
                Some(words) => tracing::warn!("{words}"),
                None => tracing::info!(free, "the disk of the state folder has room again"),
            }
        }
        self.health.with(|alerts| alerts.disk = alert);
        match self.disk.keep_ballast() {
            Ok(true) => tracing::info!("made the ballast file"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot make the ballast file"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Op {
        Op { key: key.into(), value: Some(value.into()) }
    }

    #[test]
    fn every_persist_is_told_durable_in_order_and_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (vault, _) = Vault::open(folder.path(), Header::default()).unwrap();
        let disk = Disk::new(folder.path()).unwrap();
        let (told, heard) = mpsc::channel();
        let keeper =
            Keeper::start(vault, disk, vec![], move |told_now| told.send(told_now).unwrap())
                .unwrap();
        for number in 1..=500 {
            keeper.persist(number, vec![put(&format!("{number:03}"), "x"), put("last", "x")]);
        }
        let copy = keeper.export(Header::default());
        let mut durable = 0;
        while durable < 500 {
            match heard.recv_timeout(Duration::from_secs(60)).unwrap() {
                Told::Durable(through) => {
                    assert!(durable < through, "told {through} after {durable}");
                    durable = through;
                }
                Told::Failed(reason) => panic!("{reason}"),
            }
        }
        let copy = copy.blocking_recv().unwrap().unwrap();
        assert_eq!(storage::snapshot::verify(copy.as_slice()).unwrap().records, 501);
        keeper.finish();
        let (vault, _) = Vault::open(folder.path(), Header::default()).unwrap();
        assert_eq!(vault.records().unwrap().len(), 501);
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..1200 {
            if is_so() {
                return;
            }
            // A condition with a limit, not a guess of how long it takes.
            std::thread::park_timeout(Duration::from_millis(100));
        }
        panic!("not within two minutes: {what}");
    }

    /// A tiny file system of its own, which only root can mount.
    #[test]
    fn a_full_disk_stalls_persists_alone_and_they_go_on_once_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"])
            .arg(folder.path())
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            println!("skipped: mounting a small file system needs root");
            return;
        }
        let check = std::panic::catch_unwind(|| fill_and_free(folder.path()));
        let unmounted = std::process::Command::new("umount").arg("-l").arg(folder.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "cannot unmount");
        if let Err(panic) = check {
            std::panic::resume_unwind(panic);
        }
    }

    fn fill_and_free(folder: &std::path::Path) {
        let filler = folder.join("filler");
        std::fs::write(&filler, vec![1; 12 << 20]).unwrap();
        let disk = Disk::new(folder).unwrap();
        assert!(disk.keep_ballast().unwrap());
        let (vault, _) = Vault::open(folder, Header::default()).unwrap();
        let durable = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let seen = Arc::clone(&durable);
        let keeper = Keeper::start(vault, disk, vec![], move |told| match told {
            Told::Durable(through) => seen.store(through, Ordering::Relaxed),
            Told::Failed(reason) => panic!("{reason}"),
        })
        .unwrap();
        let health = keeper.health();
        assert!(!health.is_low());
        let mut sent = 0;
        let stalled = || health.alerts().iter().any(|alert| alert.contains("wait for space"));
        while !stalled() {
            sent += 1;
            let large = "x".repeat(100_000);
            keeper.persist(sent, vec![put(&format!("{sent:04}"), &large)]);
            assert!(sent < 400, "40 MB went onto 24");
            let before = sent - 1;
            wait_until("durable or stalled", || {
                durable.load(Ordering::Relaxed) >= before || stalled()
            });
        }
        assert!(health.is_low(), "new jobs would still be taken");
        assert!(!folder.join("ballast").exists(), "the ballast was not given back");
        let copy = keeper.export(Header::default()).blocking_recv().unwrap().unwrap();
        let kept = storage::snapshot::verify(copy.as_slice()).unwrap().records;
        assert_eq!(kept, durable.load(Ordering::Relaxed), "reads are served meanwhile");
        std::fs::remove_file(filler).unwrap();
        wait_until("all durable", || durable.load(Ordering::Relaxed) == sent);
        wait_until("no alert", || health.alerts().is_empty() && !health.is_low());
        keeper.finish();
        let (vault, _) = Vault::open(folder, Header::default()).unwrap();
        assert_eq!(vault.records().unwrap().len() as u64, sent);
    }
}
