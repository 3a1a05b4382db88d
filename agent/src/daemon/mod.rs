//! The daemon's one owner of state: everything else (the session, children, sockets, the GPU
//! probe, blocking work) only sends it events.

mod asked;
mod assignment;
mod beat;
mod data;
mod ending;
mod event;
mod forks;
mod gpus;
mod guard;
mod isolated;
mod live;
mod order;
mod outputs;
mod reader;
mod recover;
mod sockets;
mod start;
mod tickets;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::agent::Desired;
use model::nodes::Isolation;
use model::notes::Extras;
use model::{BootId, Millis, NodeId, OnDisconnect, Task};
use tokio::sync::{mpsc, watch};

use crate::cgroup::Tree;
use crate::clock;
use crate::config::Settings;
use crate::gateway::Gateway;
use crate::ledger::{Key, Ledger, LedgerFile, State};
use crate::obey::{Action, obey};
use crate::probe::gpu::Gpus;
use crate::probe::host::Host;
use crate::procfs::Mark;
use crate::session::Beat;
use crate::systemd::Systemd;
use crate::task::output::Logs;
use crate::task::process::Refused;
use crate::telemetry;
use reader::read_socket;

use live::{Ended, Folder, Live, LiveTask};

pub(crate) use event::Event;

/// Events that wait for the loop. A full queue holds the senders back: sockets fill up then, and
/// training processes drop reports rather than wait.
pub(crate) const EVENTS_MAX: usize = 256;
/// Least mean time between two heartbeats, however much happens.
const COALESCE_MS: u64 = 100;
/// News leave at once, until so many heartbeats came close together: half of what a master lets
/// through.
const BEATS_AT_ONCE: u64 = 10;
/// How often sizes of logs are looked at while tasks run, and first children of an earlier life
/// of the agent, whose end nobody tells it.
const WATCH_MS: u64 = 1000;
const SAVE_RETRY_MS: u64 = 5000;
/// After a start, a master gets this long to answer before old silence ends any task.
const START_GRACE_MS: u64 = 3000;

/// The agent.
#[derive(Debug)]
pub(crate) struct Agent {
    settings: Arc<Settings>,
    node: NodeId,
    boot: BootId,
    ledger: Ledger,
    file: LedgerFile,
    /// The ledger in memory is ahead of the one on disk; retried from then on.
    unsaved_since: Option<Millis>,
    /// Why it could not be written at the newest try.
    unsaved_why: Option<Refused>,
    save_again_at: Millis,
    desired: Option<Desired>,
    /// What came with the newest desired set.
    extras: Extras,
    orders: model::nodes::NodeOrders,
    live: BTreeMap<Key, Live>,
    host: Host,
    gpus: Gpus,
    line: sockets::Line,
    guard: guard::Guard,
    tickets: tickets::Watch,
    logs: Logs,
    outputs: outputs::Outputs,
    gateway: Arc<Gateway>,
    events: mpsc::Sender<Event>,
    heartbeats: watch::Sender<Option<Beat>>,
    connected: bool,
    contact: Millis,
    contact_written: Millis,
    started_at: Millis,
    reports_dropped: u64,
    systemd: Systemd,
    forks: forks::Forks,
    /// Where control groups are made; none where there are none.
    tree: Option<Tree>,
    isolation: Isolation,
    isolated: isolated::Isolated,
    due: Due,
}

/// When something is to be done next; far away where nothing is.
#[derive(Clone, Copy, Debug)]
struct Due {
    beat: Millis,
    /// When the heartbeats so far are paid for, at one in [`COALESCE_MS`].
    beat_paid: Millis,
    look: Millis,
    look_every_ms: u64,
    watch: Millis,
}

const NEVER: Millis = Millis(u64::MAX);

/// What an [`Agent`] is made from.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) settings: Arc<Settings>,
    pub(crate) node: NodeId,
    pub(crate) gpus: Gpus,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) heartbeats: watch::Sender<Option<Beat>>,
}

impl Agent {
    /// Runs until `stop` resolves. Tasks live on: the end of a service must not end training.
    pub(crate) async fn run(
        &mut self,
        inbox: &mut mpsc::Receiver<Event>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = std::pin::pin!(stop);
        self.systemd.ready();
        loop {
            self.work(clock::now());
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = self.step(inbox) => {}
            }
        }
        self.systemd.stopping();
        self.save(clock::now());
        self.prune_groups();
    }

    /// Waits for the next event or deadline, and takes the events that are there.
    async fn step(&mut self, inbox: &mut mpsc::Receiver<Event>) {
        let wait = self.next_due().since(clock::now());
        let first = tokio::time::timeout(Duration::from_millis(wait), inbox.recv()).await;
        let mut next = first.ok().flatten();
        let mut taken = 0;
        while let Some(event) = next {
            self.on(event, clock::now());
            taken += 1;
            // Deadlines must be looked at, whatever comes in.
            next = if taken < EVENTS_MAX { inbox.try_recv().ok() } else { None };
        }
    }

    /// Ends every task, whatever a master wants.
    ///
    /// # Errors
    /// Names the tasks of which processes are left after `limit_ms`.
    pub(crate) async fn stop_all(
        &mut self,
        inbox: &mut mpsc::Receiver<Event>,
        limit_ms: u64,
    ) -> Result<u32, Vec<Mark>> {
        let limit = clock::now().plus(limit_ms);
        let keys: Vec<Key> = self.ledger.generations.keys().copied().collect();
        let before = self.living().len();
        for key in keys {
            let reason = "stopped by optimus-agent stop-tasks".to_owned();
            self.stop(key, reason, false, self.settings.stop_grace_ms, clock::now());
        }
        while !self.living().is_empty() && clock::now() < limit {
            self.work(clock::now());
            if !self.living().is_empty() {
                self.step(inbox).await;
            }
        }
        self.save(clock::now());
        self.guard.filter().settle().await;
        self.prune_groups();
        let left = self.living();
        if left.is_empty() { Ok(u32::try_from(before).unwrap_or(u32::MAX)) } else { Err(left) }
    }

    /// Whoever removes the agent finds nothing of it in the machine's tree.
    fn prune_groups(&self) {
        if let Some(tree) = &self.tree {
            tree.prune();
        }
    }

    fn living(&self) -> Vec<Mark> {
        let tasks = self.ledger.generations.iter().flat_map(|(&key, held)| {
            held.tasks
                .iter()
                .filter(|(_, state)| state.is_live())
                .map(move |(&task, _)| (key, task))
        });
        tasks.map(|(key, task)| Mark { node: self.node.clone(), key, task }).collect()
    }

    fn on(&mut self, event: Event, now: Millis) {
        match event {
            Event::Introduce(reply) => {
                self.connected = true;
                self.due.beat = now.plus(self.settings.beat_ms);
                self.in_contact(now);
                // A session that has gone again meanwhile asks anew with the next one.
                let _ = reply.send((
                    self.introduction(now),
                    self.rates(),
                    self.notes(),
                    self.node_notes(),
                ));
            }
            Event::Contact => self.in_contact(now),
            Event::Disconnected => self.connected = false,
            Event::Desired(desired, extras, orders) => {
                self.extras = extras;
                self.orders = orders;
                self.gpus.leave_judgement(self.orders.judges_gpus);
                self.admit(now);
                self.on_desired(desired, now);
                self.write_assignments(now);
                self.bring_data();
            }
            Event::Query(query, reply) => self.on_query(query, reply),
            Event::Started { mark, started } => self.on_started(&mark, started, now),
            Event::Ended { mark, code, signal } => self.on_ended(&mark, code, signal, now),
            Event::Orphaned { mark } => self.on_orphaned(&mark, now),
            Event::ForkServerEnded { job, threads, start, gone } => {
                self.on_fork_server_ended((job, threads), start, &gone, now);
            }
            Event::Report { key, datagram } => self.on_report(key, &datagram, now),
            Event::Folder { key, checkpoint, made } => self.on_folder(key, checkpoint, made, now),
            Event::Part { key, checkpoint, why } => self.on_part(key, checkpoint, &why, now),
            Event::DatasetWaits { key, why } => self.on_dataset_waits(key, &why, now),
            Event::Dataset { key, brought } => self.on_dataset(key, brought, now),
            Event::Gpus(reading) => self.on_gpus(reading, now),
            Event::Looked(looks) => self.on_looked(looks),
        }
    }

    fn in_contact(&mut self, now: Millis) {
        self.contact = now;
        let matters = |on: OnDisconnect| on != OnDisconnect::Keep;
        if WATCH_MS <= now.since(self.contact_written)
            && self.ledger.generations.values().any(|held| matters(held.on_disconnect))
        {
            self.contact_written = now;
            recover::write_contact(&self.settings.state_dir, &self.boot, now);
        }
    }

    fn on_desired(&mut self, desired: Desired, now: Millis) {
        self.in_contact(now);
        self.tell_gateway(&desired);
        let before = self.desired.replace(desired);
        if !self.obey(now) {
            self.desired = before;
        }
        self.tend_forks(now);
    }

    /// Brings the node closer to the desired set; asked again after each change of the ledger.
    /// False where the set is refused.
    fn obey(&mut self, now: Millis) -> bool {
        let Some(desired) = self.desired.take() else { return true };
        match obey(&self.ledger, &desired, self.settings.stop_grace_ms) {
            Ok(actions) => {
                if self.ledger.obeyed != desired.revision {
                    self.ledger.obeyed = desired.revision;
                    self.changed(now);
                }
                for action in actions {
                    self.act(action, &desired, now);
                }
                self.desired = Some(desired);
                true
            }
            Err(stale) => {
                tracing::warn!(%stale, "a desired set is ignored");
                false
            }
        }
    }

    fn act(&mut self, action: Action, desired: &Desired, now: Millis) {
        match action {
            Action::Start { key, tasks } => {
                let wanted = desired
                    .generations
                    .iter()
                    .find(|wanted| wanted.job == key.job && wanted.generation == key.generation);
                if let Some(wanted) = wanted {
                    self.start(key, &tasks, &wanted.launch, now);
                }
            }
            Action::Absent { key, task, reason } => self.absent(key, task, reason, now),
            Action::Stop { key, grace_ms } => {
                self.stop(key, "stopped as told".to_owned(), true, grace_ms, now);
            }
            Action::Order { key, order } => self.order(key, order, now),
            Action::Forget { key } => self.forget(key, now),
        }
    }

    /// The ledger has changed, and the master should know soon.
    fn changed(&mut self, now: Millis) {
        self.unsaved_since.get_or_insert(now);
        self.urgent(now);
    }

    fn urgent(&mut self, now: Millis) {
        let soon = self.due.beat_paid.0.saturating_sub(BEATS_AT_ONCE * COALESCE_MS);
        let soon = Millis(soon).max(now);
        self.due.beat = self.due.beat.min(soon);
    }

    /// Looks at ending tasks soon, and often at first.
    fn look_soon(&mut self, now: Millis, after_ms: u64) {
        self.due.look_every_ms = 25;
        self.due.look = self.due.look.min(now.plus(after_ms));
    }

    fn next_due(&self) -> Millis {
        let beat = if self.connected || !self.gpus.is_settled(clock::now()) {
            self.due.beat
        } else {
            NEVER
        };
        let save = self.unsaved_since.map_or(NEVER, |_| self.save_again_at);
        [
            beat,
            save,
            self.due.look,
            self.watch_at(),
            self.silence_ends_at(),
            self.sockets_due(),
            self.systemd.due(),
            self.forks.due(),
        ]
        .into_iter()
        .min()
        .unwrap_or(NEVER)
        // A day: the timer's own arithmetic must not overflow.
        .min(clock::now().plus(86_400_000))
    }

    fn watch_at(&self) -> Millis {
        if self.live.values().any(|live| !live.tasks.is_empty()) { self.due.watch } else { NEVER }
    }

    /// Everything that is due.
    fn work(&mut self, now: Millis) {
        if self.silence_ends_at() <= now {
            self.end_for_silence(now);
        }
        if self.due.look <= now {
            self.look(now);
        }
        if self.watch_at() <= now {
            self.due.watch = now.plus(WATCH_MS);
            self.watch_adopted(now);
            self.watch_logs();
            self.look_at_ports(now);
            self.tend_guard(now);
            self.watch_memory();
        }
        if self.sockets_due() <= now {
            self.look_at_sockets(now);
        }
        if self.save_again_at <= now {
            self.save(now);
        }
        if self.forks.due() <= now {
            self.tend_forks(now);
        }
        if self.due.beat <= now {
            self.due.beat = now.plus(self.settings.beat_ms);
            self.gpus.poll(now);
            self.tend_guard(now);
            self.look_at_tickets(now);
            self.look_for_unit();
            self.write_assignments(now);
            if self.connected {
                self.due.beat_paid = self.due.beat_paid.max(now).plus(COALESCE_MS);
                let heartbeat = self.heartbeat(now);
                let beat = Beat {
                    heartbeat,
                    rates: self.rates(),
                    notes: self.notes(),
                    node: self.node_notes(),
                };
                self.heartbeats.send_replace(Some(beat));
            }
        }
        self.systemd.alive(now);
    }

    /// Writes the ledger where it has changed. A disk that refuses is asked again later.
    fn save(&mut self, now: Millis) -> bool {
        let Some(since) = self.unsaved_since else { return true };
        match self.file.store(&self.ledger) {
            Ok(()) => {
                self.unsaved_since = None;
                self.unsaved_why = None;
                self.save_again_at = Millis(0);
                true
            }
            Err(error) => {
                self.save_again_at = now.plus(SAVE_RETRY_MS);
                self.unsaved_why =
                    Some(Refused { words: error.to_string(), ..Refused::by("", &error) });
                let behind_ms = now.since(since);
                tracing::error!(%error, behind_ms, "cannot write the ledger; tried again soon");
                false
            }
        }
    }

    fn on_report(&mut self, key: Key, datagram: &telemetry::Datagram, now: Millis) {
        let Some(telemetry) = self.live.get_mut(&key).and_then(|live| live.telemetry.as_mut())
        else {
            return;
        };
        let outcome = telemetry.take(datagram, now);
        self.heard(key, &outcome, now);
    }

    fn heard(&mut self, key: Key, outcome: &telemetry::Outcome, now: Millis) {
        self.reports_dropped = self.reports_dropped.saturating_add(outcome.dropped);
        if outcome.urgent {
            self.urgent(now);
        }
        let Some(task) = outcome.hello else { return };
        let held = self.ledger.generations.get_mut(&key);
        if let Some(State::Running { ready, .. }) =
            held.and_then(|held| held.tasks.get_mut(&task)).map(|task| &mut task.state)
            && !std::mem::replace(ready, true)
        {
            self.changed(now);
        }
    }

    fn mark(&self, key: Key, task: Task) -> Mark {
        crate::task::adopt::mark_of(&self.node, key, task)
    }

    /// `state_dir/tasks/<job>-<generation>`.
    fn folder(&self, key: Key) -> PathBuf {
        self.settings.state_dir.join("tasks").join(key.to_string())
    }
}

#[cfg(test)]
mod tests;
