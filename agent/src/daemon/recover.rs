//! The start of a life of the agent: finding the tasks of the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use model::{BootId, Incarnation, Millis, NodeId, Revision};
use nix::unistd::{Gid, Uid};

use super::isolated::words_of;
use super::{Agent, Due, Ended, Live, LiveTask, NEVER, Parts, read_socket};
use crate::cgroup::{self, Tree};
use crate::clock;
use crate::config::Settings;
use crate::gateway::{Gateway, Served};
use crate::ledger::{Found, Held, HeldTask, Key, Ledger, LedgerFile, State, Stopping};
use crate::probe::host::Host;
use crate::procfs::{self, Census, Mark};
use crate::systemd::Systemd;
use crate::task::adopt::{self, Fate};
use crate::task::output::Logs;
use crate::telemetry::{self, Telemetry};

/// Makes a ledger this agent's, for its next incarnation.
fn take_over(ledger: &mut Ledger, node: &NodeId, settings: &Settings) -> Result<()> {
    match &ledger.node {
        Some(before) if before != node && ledger.generations.values().any(Held::is_live) => {
            bail!(
                "{} holds tasks of node {before}, and the certificate is for {node}; \
                 end them with the old certificate first, or give another state_dir",
                settings.state_dir.display()
            );
        }
        before => {
            if before.as_ref().is_some_and(|before| before != node) {
                // Of another node, perhaps of another cluster, whose master counts otherwise.
                ledger.obeyed = Revision::default();
            }
            ledger.node = Some(node.clone());
        }
    }
    ledger.incarnation = ledger.incarnation.next();
    Ok(())
}

impl Agent {
    /// Reads the ledger, begins a new incarnation, takes back what still runs and ends what
    /// must not.
    ///
    /// # Errors
    /// Where the state folder cannot be used; says why and what to do.
    pub(crate) fn recover(parts: Parts) -> Result<Self> {
        let Parts { settings, node, gpus, events, heartbeats } = parts;
        let now = clock::now();
        let boot = procfs::boot_id().context("cannot read the boot id")?;
        let found = cgroup::find(&settings.groups, &node, &settings.state_dir)?;
        for words in &found.isolation.missing {
            tracing::warn!(words, "not enforced here");
        }
        let mut settings = Arc::unwrap_or_clone(settings);
        settings.user.helpers = found.tree.as_ref().map(Tree::helpers);
        let settings = Arc::new(settings);
        let file = LedgerFile::new(&settings.state_dir);
        let mut ledger = load(&file)?;
        take_over(&mut ledger, &node, &settings)?;
        let logs = Logs::new(&settings.state_dir, settings.log_bytes_max);
        let gateway = Arc::new(Gateway::new(&settings, events.clone()));
        let mut agent = Self {
            host: Host::new(&settings.state_dir),
            guard: super::guard::Guard::new(&settings, &node, &ledger),
            contact: read_contact(&settings.state_dir, &boot, now),
            contact_written: Millis(0),
            started_at: now,
            settings,
            node,
            boot,
            ledger,
            file,
            unsaved_since: Some(now),
            unsaved_why: None,
            save_again_at: Millis(0),
            desired: None,
            extras: model::notes::Extras::default(),
            orders: model::nodes::NodeOrders::default(),
            live: BTreeMap::new(),
            gpus,
            line: super::sockets::Line::default(),
            tickets: super::tickets::Watch::default(),
            logs,
            outputs: super::outputs::Outputs::default(),
            gateway,
            events,
            heartbeats,
            connected: false,
            reports_dropped: 0,
            systemd: Systemd::new(),
            forks: super::forks::Forks::default(),
            tree: found.tree,
            isolation: found.isolation,
            isolated: super::isolated::Isolated::new(found.outside),
            due: Due {
                beat: now,
                beat_paid: Millis(0),
                look: NEVER,
                look_every_ms: 25,
                watch: now,
            },
        };
        agent.find_tasks(now);
        agent.raise_filter();
        agent.file.store(&agent.ledger).with_context(|| {
            format!("cannot write the ledger in {}", agent.settings.state_dir.display())
        })?;
        agent.unsaved_since = None;
        agent.tidy(agent.stale_folders());
        Ok(agent)
    }

    fn find_tasks(&mut self, now: Millis) {
        let mut uids: BTreeSet<u32> = self.ledger.generations.values().map(|h| h.uid).collect();
        uids.insert(self.settings.user.uid.as_raw());
        self.end_stale_forks(&uids);
        let mut census = Census::take(&self.node, &self.settings.state_dir, &uids);
        self.claim_groups(&mut census);
        let tasks: Vec<(Key, model::Task, HeldTask)> = self
            .ledger
            .generations
            .iter()
            .flat_map(|(&key, held)| held.tasks.iter().map(move |(&t, s)| (key, t, s.clone())))
            .collect();
        let strays = adopt::strays(&self.ledger, &self.node, &census);
        for (key, task, state) in tasks {
            let mark = self.mark(key, task);
            let Some(fate) = adopt::judge(&state, &mark, &self.boot, &census) else { continue };
            self.take_back(&mark, fate, now);
        }
        for (mark, (pid, start_ticks)) in strays {
            tracing::warn!(task = %mark, pid, "a task that the ledger does not hold is ended");
            self.hold_stray(&mark);
            self.take_back(&mark, Fate::Alive { pid, start_ticks }, now);
        }
        let keys: Vec<Key> = self.ledger.generations.keys().copied().collect();
        for key in keys {
            self.reopen(key);
            self.stop_again(key, now);
        }
    }

    /// Counts what lives in a task's group as the task's, also where its environment is gone; ends
    /// what is in groups that are no task's.
    fn claim_groups(&self, census: &mut Census) {
        let Some(tree) = &self.tree else { return };
        for (of, group) in tree.of_tasks() {
            if let Some((key, task)) = of {
                census.claim(&self.mark(key, task), group.pids());
                let held = self.ledger.generations.get(&key).and_then(|h| h.tasks.get(&task));
                if held.is_some_and(HeldTask::is_live) {
                    // Also where it is empty: it still says what the task died of.
                    continue;
                }
            } else {
                group.kill();
            }
            // Refused while a process is in it.
            let _busy = group.remove();
        }
    }

    fn take_back(&mut self, mark: &Mark, fate: Fate, now: Millis) {
        let (key, task) = (mark.key, mark.task);
        let boot = self.boot.clone();
        match fate {
            Fate::Alive { pid, start_ticks } => {
                let state = &mut self.ledger.task_mut(key, task).state;
                let ready = matches!(state, State::Running { ready: true, .. });
                *state = State::Running { pid, start_ticks, boot, ready };
                let leads = procfs::process(pid).is_some_and(|process| process.group == pid);
                let live =
                    LiveTask { group: leads.then_some(pid), adopted: true, ..LiveTask::default() };
                self.live.entry(key).or_default().tasks.insert(task, live);
                tracing::info!(task = %mark, pid, "taken back");
            }
            Fate::Leftovers(exit) => {
                tracing::warn!(task = %mark, reason = exit.reason, "its last processes are ended");
                let by_itself =
                    self.ledger.generations.get(&key).is_none_or(|held| held.stopping.is_none());
                let ended = Some(Ended { exit, by_itself });
                let live = LiveTask { adopted: true, ended, ..LiveTask::default() };
                self.live.entry(key).or_default().tasks.insert(task, live);
                self.look_soon(now, 0);
            }
            Fate::Gone(mut exit) => {
                let stopping = self.ledger.generations.get(&key).and_then(|h| h.stopping.as_ref());
                if let Some(stopping) = stopping {
                    exit.ordered = stopping.ordered;
                    exit.reason.clone_from(&stopping.reason);
                }
                if let Some(cause) = self.end_of_group(key, task) {
                    exit.reason = words_of(cause, task);
                }
                tracing::warn!(task = %mark, reason = exit.reason, "gone");
                self.set_exited(key, task, exit, now);
            }
        }
    }

    fn hold_stray(&mut self, mark: &Mark) {
        let user = &self.settings.user;
        let stopping = Stopping {
            reason: "unknown to this agent's ledger".to_owned(),
            ordered: false,
            grace_ms: self.settings.stop_grace_ms,
        };
        let held = self.ledger.generations.entry(mark.key).or_insert_with(|| Held {
            on_disconnect: model::OnDisconnect::Keep,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            stopping: None,
            order: None,
            tasks: BTreeMap::new(),
        });
        held.stopping.get_or_insert(stopping);
        held.tasks.insert(mark.task, HeldTask { gpus: Vec::new(), state: State::Intent });
    }

    /// Binds the socket of a generation again, at the same path: its processes send to the path.
    fn reopen(&mut self, key: Key) {
        let folder = self.folder(key);
        let mark = self.mark(key, model::Task::SCHEDULER);
        let Some(held) = self.ledger.generations.get(&key).filter(|held| held.is_live()) else {
            return;
        };
        let (uid, gid) = (Uid::from_raw(held.uid), Gid::from_raw(held.gid));
        let bound = telemetry::bind(&folder, uid, gid).and_then(|socket| {
            let reader = read_socket(key, socket.try_clone()?, self.events.clone())?;
            Ok((socket, reader))
        });
        let (socket, reader) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                tracing::warn!(%key, %error, "cannot hear the reports of running tasks");
                return;
            }
        };
        let mut telemetry = Telemetry::new(socket, held.uid, &mark, false);
        telemetry.ordered(held.order.as_ref());
        for (&task, state) in &held.tasks {
            if let State::Running { pid, .. } = state.state {
                telemetry.add(task, pid);
            }
        }
        let files = Served::open(&self.gateway, key, &folder, (uid, gid), false)
            .inspect_err(|error| tracing::warn!(%key, %error, "tasks have no way to storage"))
            .ok();
        if let Some(files) = &files {
            files.take_up(held.order.as_ref());
        }
        let live: &mut Live = self.live.entry(key).or_default();
        live.reader = reader;
        live.files = files;
        live.telemetry = Some(telemetry);
    }

    /// Generations that have a folder and no entry: of a lost ledger, or an interrupted end.
    fn stale_folders(&self) -> Vec<Key> {
        let listing = fs::read_dir(self.settings.state_dir.join("tasks"));
        let names = listing.into_iter().flatten().flatten();
        names
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (job, generation) = name.split_once('-')?;
                Some(Key { job: job.parse().ok()?, generation: generation.parse().ok()? })
            })
            .filter(|key| !self.ledger.generations.contains_key(key))
            .collect()
    }
}

fn load(file: &LedgerFile) -> Result<Ledger> {
    Ok(match file.load(clock::unix_ms())? {
        Found::Nothing => fresh(),
        Found::Ledger(ledger) => ledger,
        Found::Damaged { why, kept } => {
            tracing::error!(
                why,
                kept = %kept.display(),
                "the ledger is damaged and kept aside; tasks are found by their marks and ended"
            );
            fresh()
        }
    })
}

/// Lives that a ledger may count for each ms of its beginning: over what a master takes for the
/// next life of an agent that it knows.
const STARTS_PER_MS: u64 = 1024;

/// A ledger for a folder that has none. Its lives are counted from the time since the boot: a
/// master that knew a ledger that was lost would take a smaller count in the same boot
/// for an older agent.
fn fresh() -> Ledger {
    // Of two agents with one identity that a service manager starts together, one must not look
    // like the other's next life.
    let first = clock::now().0.saturating_mul(STARTS_PER_MS);
    Ledger { incarnation: Incarnation(first), ..Ledger::default() }
}

/// The last contact with a master, as an earlier life in this boot left it. Without it a
/// restart would give tasks that must end 45 s after the last contact another 45 s, while the
/// master starts them elsewhere.
fn read_contact(state_dir: &Path, boot: &BootId, now: Millis) -> Millis {
    let read = || {
        let text = fs::read_to_string(state_dir.join("contact")).ok()?;
        let (of, at) = text.trim().split_once(' ')?;
        let at = Millis(at.parse().ok()?);
        (of == boot.0 && at <= now).then_some(at)
    };
    read().unwrap_or(now)
}

/// Not synced: after a power cut there is no task left to end.
pub(super) fn write_contact(state_dir: &Path, boot: &BootId, now: Millis) {
    if let Err(error) = fs::write(state_dir.join("contact"), format!("{} {}\n", boot.0, now.0)) {
        tracing::debug!(%error, "cannot note the last contact");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_contact_counts_within_one_boot_only() {
        let dir = tempfile::tempdir().unwrap();
        let (boot, other) = (BootId("a".to_owned()), BootId("b".to_owned()));
        assert_eq!(read_contact(dir.path(), &boot, Millis(900)), Millis(900));
        write_contact(dir.path(), &boot, Millis(500));
        assert_eq!(read_contact(dir.path(), &boot, Millis(900)), Millis(500));
        assert_eq!(read_contact(dir.path(), &other, Millis(900)), Millis(900));
        assert_eq!(read_contact(dir.path(), &boot, Millis(100)), Millis(100));
    }
}
