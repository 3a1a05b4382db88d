//! Agents: how they come, what they report, and how their silence is judged.

use std::collections::BTreeMap;

use model::agent::{Heartbeat, Introduction, TaskReport, TaskState};
use model::reason::Reachability;
use model::{Generation, JobId, NodeId, OnDisconnect, Resources, Shape, resources::NAMED_MAX};

use crate::command::Command;
use crate::event::SessionId;
use crate::job::Job;
use crate::job::phase::Phase;
use crate::node::Node;
use crate::record::NodeRecord;
use crate::room::demand_of;
use crate::step::Control;
use crate::timers::Timer;

/// Longest names that an agent may give itself.
const WORDS_MAX: usize = 128;

/// Starts of one agent, one after another, of which the master may have heard nothing.
const STARTS_UNHEARD_MAX: u64 = 1000;
const REFUSAL_EVERY_MS: u64 = 60_000;

impl Control {
    /// An agent introduces itself. The newer connection of the same machine replaces the older
    /// one: the same boot and an incarnation that is not older. A different machine under the
    /// same name is refused while the present one is heard from; once that has been silent for
    /// the time of SUSPECT, the newcomer takes the name (a machine was reinstalled or rebooted,
    /// and its old connection is a leftover).
    pub(crate) fn on_connected(
        &mut self,
        id: NodeId,
        session: SessionId,
        introduction: Introduction,
    ) {
        let may = self.may_connect(&id, session, &introduction);
        if let Err(words) = may.and_then(|()| self.obeys_us(&id, &introduction)) {
            self.count("introduction refused");
            self.tell_refusal(&id, &words);
            self.out.commands.push(Command::Disconnect { session, reason: words });
            return;
        }
        let Introduction { incarnation, boot_id, software, unix_ms, task_address, beat_ms, first } =
            introduction;
        let known = self.nodes.get(&id);
        let old_session = known.and_then(|node| node.session);
        let rebooted = known.is_some_and(|node| {
            let before = &node.record.boot_id;
            // An empty one stands for a node whose record was never written.
            !before.0.is_empty() && *before != boot_id
        });
        if let Some(old) = old_session.filter(|old| *old != session) {
            let reason = format!("a newer connection of {id} took its place");
            self.out.commands.push(Command::Disconnect { session: old, reason });
        }
        if rebooted {
            self.on_new_boot(&id);
        }
        self.tell_address(&id, &task_address);
        let record = NodeRecord {
            id: id.clone(),
            incarnation,
            boot_id,
            software: software.chars().take(WORDS_MAX).collect(),
            task_address,
            beat_ms: beat_ms.clamp(100, 60_000),
            capacity: bounded(&first.capacity),
            gone: None,
        };
        let is_new = !self.nodes.contains_key(&id);
        let node = self.nodes.entry(id.clone()).or_insert_with(|| Node::new(record.clone()));
        if is_new || node.record != record {
            node.record = record;
            self.out.nodes.insert(id.clone());
        }
        if node.reach == Reachability::Gone {
            // What it still runs was declared dead, is in no desired set, and is stopped by it.
            node.reach = Reachability::Down;
        }
        node.session = Some(session);
        node.sequence = None;
        node.tells_notes = false;
        node.sent = None;
        node.left_out.clear();
        node.stop_told.clear();
        let skew = i128::from(unix_ms) - i128::from(self.now.unix.0);
        node.clock_skew_ms = i64::try_from(skew).unwrap_or(i64::MAX);
        let skewed = node.clock_skew_ms.unsigned_abs() >= SKEW_TOLD_MS;
        // What is under way for some ms makes no second of it.
        let skew_s = node.clock_skew_ms.saturating_add(500).div_euclid(1000);
        if is_new {
            self.tell(None, Some(&id), "joined", format!("{id} joined"));
        }
        if skewed {
            let text = format!("its clock differs by {skew_s} s from the master's");
            self.tell(None, Some(&id), "clock", text);
        }
        self.out.desired.insert(id.clone());
        self.on_heartbeat(&id, session, first);
        self.free_old_ports(&id);
    }

    fn may_connect(
        &self,
        id: &NodeId,
        session: SessionId,
        introduction: &Introduction,
    ) -> Result<(), String> {
        if introduction.task_address.parse::<std::net::IpAddr>().is_err() {
            let shown: String = introduction.task_address.chars().take(80).collect();
            return Err(format!(
                "task_address {shown:?} is not numeric: set it in agent.toml, such as 10.0.0.7"
            ));
        }
        if introduction.boot_id.0.len() > WORDS_MAX {
            return Err(format!("the boot id has over {WORDS_MAX} bytes"));
        }
        let Some(node) = self.nodes.get(id) else {
            return if self.nodes.len() < NODES_MAX {
                Ok(())
            } else {
                Err(format!("the cluster has its {NODES_MAX} nodes already"))
            };
        };
        if node.session.is_some_and(|present| session < present) {
            return Err(format!("a newer connection of {id} is there already"));
        }
        let same_boot = node.record.boot_id == introduction.boot_id;
        let (present, other) = (node.record.incarnation, introduction.incarnation);
        // The same agent again counts on from its ledger. Another one on the same machine, with a
        // state folder of its own, starts anywhere: what it does not hold may live on beside it.
        let restarted = same_boot
            && present <= other
            && other.0.saturating_sub(present.0) <= STARTS_UNHEARD_MAX;
        let heard = node.received.map(|received| self.now.mono.since(received));
        let lively = heard.is_some_and(|age| age < self.settings.suspect_ms);
        if !restarted && node.session.is_some() && lively {
            let who = if same_boot { "another agent" } else { "another machine" };
            let first = &node.record;
            let boot: String = first.boot_id.0.chars().take(8).collect();
            return Err(format!(
                "{who} named {id} is connected (at {}, boot {boot}, {present}; this one is at {}, \
                 {other}) and was heard from {} ms ago; give each its own certificate and state \
                 folder, or try again once that one is silent",
                first.task_address,
                introduction.task_address,
                heard.unwrap_or(0)
            ));
        }
        Ok(())
    }

    /// Jobs that run are left alone: what they hold open either lives on or ends by itself. New
    /// generations are told the new address.
    fn tell_address(&mut self, id: &NodeId, address: &str) {
        let Some(node) = self.nodes.get(id) else { return };
        let before = node.record.task_address.clone();
        if !before.is_empty() && before != address {
            let text = format!("{id} moved from {before} to {address}");
            self.tell(None, Some(id), "address", text);
        }
    }

    /// Once a minute for a node: one that is refused tries on, and would fill the history.
    fn tell_refusal(&mut self, id: &NodeId, words: &str) {
        let now = self.now.mono;
        if let Some(node) = self.nodes.get_mut(id) {
            if node.refusal_told.is_some_and(|told| now.since(told) < REFUSAL_EVERY_MS) {
                return;
            }
            node.refusal_told = Some(now);
        }
        self.tell(None, Some(id), "refused", words.to_owned());
    }

    /// Every process of the old boot is proved dead.
    fn on_new_boot(&mut self, id: &NodeId) {
        self.tell(None, Some(id), "rebooted", format!("{id} came back with a new boot"));
        self.lose_tasks(id, "rebooted", true);
        self.gpus_rebooted(id);
        self.free_ports(|held| held.node == *id);
        if let Some(node) = self.nodes.get_mut(id) {
            node.strangers.clear();
            node.strangers_use = Resources::default();
            node.tasks.clear();
        }
    }

    /// Ports that generations got here which the node's whole state no longer shows.
    fn free_old_ports(&mut self, id: &NodeId) {
        let Some(node) = self.nodes.get(id) else { return };
        let alive: Vec<(JobId, Generation)> = node.strangers.keys().copied().collect();
        let jobs = &self.jobs;
        let mut changed = Vec::new();
        for (host, ports) in &mut self.ports {
            let freed = ports.free(|held| {
                let lives = jobs
                    .get(&held.job)
                    .and_then(Job::life)
                    .is_some_and(|life| life.generation == held.generation);
                held.node == *id && !lives && !alive.contains(&(held.job, held.generation))
            });
            if freed {
                changed.push(host.clone());
            }
        }
        self.out.ports.extend(changed);
    }

    pub(crate) fn on_disconnected(&mut self, id: &NodeId, session: SessionId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.session == Some(session) {
            node.session = None;
            node.sent = None;
        }
    }

    pub(crate) fn on_heartbeat(&mut self, id: &NodeId, session: SessionId, beat: Heartbeat) {
        let Some(node) = self.nodes.get_mut(id) else {
            self.count("heartbeat of an unknown node");
            return;
        };
        if node.session != Some(session) {
            self.count("heartbeat of an old connection");
            return;
        }
        // A queue of old heartbeats that arrives late must not put the node's state back.
        if node.sequence.is_some_and(|newest| beat.sequence <= newest) {
            self.count("heartbeat out of order");
            return;
        }
        node.sequence = Some(beat.sequence);
        node.received = Some(self.now.mono);
        node.spared = None;
        node.obeyed = beat.obeyed;
        node.load = beat.load;
        node.gpus = beat.gpus;
        node.gpus.truncate(GPUS_MAX);
        node.reports_dropped = beat.reports_dropped;
        let was = node.reach;
        let mut capacity = bounded(&beat.capacity);
        capacity.gpus = self.offer_gpus(id, capacity.gpus);
        let node = self.nodes.get_mut(id).expect("it was there a line ago");
        if node.record.capacity != capacity {
            node.record.capacity = capacity;
            self.out.nodes.insert(id.clone());
            self.out.room_freed = true;
            self.ask_round("a node's capacity changed");
        }
        self.on_gpu_beat(id);
        self.on_task_reports(id, beat.tasks, was);
        // Epochs before steps: a worker that has finished reported its last epoch before.
        for report in beat.epochs {
            self.on_epoch_report(id, report);
        }
        for report in beat.workers {
            self.on_worker_report(id, report);
        }
        for report in beat.checkpoints {
            self.on_checkpoint_report(id, report);
        }
        if was != Reachability::Up {
            self.set_reach(id, Reachability::Up);
            // It was armed for a judgement that a silent node has farther ahead.
            self.timers.cancel(&Timer::Node(id.clone()));
        }
        self.judge_node_later(id);
    }

    fn on_task_reports(&mut self, id: &NodeId, tasks: Vec<TaskReport>, was: Reachability) {
        let mut strangers: BTreeMap<(JobId, Generation), Shape> = BTreeMap::new();
        for report in &tasks {
            let life = self.jobs.get(&report.job).and_then(Job::life);
            let known = life.is_some_and(|life| {
                life.generation == report.generation
                    && life.placement.node_of(report.task) == Some(id)
            });
            if known {
                self.on_task_report(id, report, was);
                continue;
            }
            self.count("task report of another generation");
            if let TaskState::Running { .. } = report.state {
                let shape = strangers.entry((report.job, report.generation)).or_default();
                match report.task.role {
                    model::Role::Server => shape.servers = shape.servers.saturating_add(1),
                    model::Role::Worker => shape.workers = shape.workers.saturating_add(1),
                    model::Role::Scheduler => {}
                }
            }
        }
        self.note_absent(id, &tasks);
        self.note_strangers(id, strangers);
        if let Some(node) = self.nodes.get_mut(id) {
            node.tasks = tasks;
            if node.crowded {
                self.out.desired.insert(id.clone());
            }
        }
        self.tend_stuck(id);
    }

    /// The agent obeyed the order to stop a generation, and its whole state does not show a task
    /// of it: then the task is not there, and never will be.
    fn note_absent(&mut self, id: &NodeId, tasks: &[TaskReport]) {
        let Some(node) = self.nodes.get(id) else { return };
        if node.stop_told.is_empty() {
            return;
        }
        let told: Vec<_> = node.stop_told.iter().map(|(job, told)| (*job, *told)).collect();
        let obeyed = node.obeyed;
        for (job, (generation, revision)) in told {
            if obeyed < revision {
                continue;
            }
            let Some(Phase::Stopping { life, alive, .. }) = self.jobs.get(&job).map(Job::phase)
            else {
                continue;
            };
            if life.generation != generation {
                continue;
            }
            let mut absent = life.placement.tasks_on(id);
            absent.retain(|task| alive.contains(task));
            for report in tasks {
                if report.job == job && report.generation == generation {
                    absent.remove(&report.task);
                }
            }
            for task in absent {
                self.on_task_gone(job, generation, task);
            }
        }
    }

    fn note_strangers(&mut self, id: &NodeId, strangers: BTreeMap<(JobId, Generation), Shape>) {
        let Some(node) = self.nodes.get(id) else { return };
        if node.strangers == strangers {
            return;
        }
        let gone: Vec<_> =
            node.strangers.keys().filter(|old| !strangers.contains_key(*old)).copied().collect();
        let mut sum = Resources::default();
        for ((job, _), shape) in &strangers {
            // Of a job that is not known any more nothing is known of its size either; the agent
            // stops it within its own grace.
            if let Some(job) = self.jobs.get(job) {
                sum = sum.plus(&demand_of(job, *shape));
            }
        }
        let node = self.nodes.get_mut(id).expect("it was there a line ago");
        node.strangers = strangers;
        node.strangers_use = sum;
        self.out.room_freed = true;
        self.free_ports(|held| held.node == *id && gone.contains(&(held.job, held.generation)));
    }

    fn judge_node_later(&mut self, id: &NodeId) {
        let timer = Timer::Node(id.clone());
        // The armed deadline is only ever too early: it is set anew when it fires, so that a
        // heartbeat costs nothing here.
        if self.timers.armed(&timer).is_some() {
            return;
        }
        let grace_until = self.started.mono.plus(self.settings.start_grace_ms);
        let Some(node) = self.nodes.get(id) else { return };
        let next = node.next_judgement(self.now.mono, self.judge_from, grace_until, &self.settings);
        if let Some(at) = next {
            self.timers.set(timer, at);
        }
    }

    pub(crate) fn judge_node(&mut self, id: &NodeId) {
        let grace_until = self.started.mono.plus(self.settings.start_grace_ms);
        let Some(node) = self.nodes.get(id) else { return };
        let judged = node.judged(self.now.mono, self.judge_from, grace_until, &self.settings);
        // Time alone only makes it worse: to be UP again a node must be heard.
        let worse = judged > node.reach;
        let held = worse && judged == Reachability::Down && self.holds_down(id);
        if held {
            self.set_suspect(id);
            let at = self.now.mono.plus(HELD_LOOK_MS);
            self.timers.set(Timer::Node(id.clone()), at);
            return;
        }
        if worse {
            self.set_reach(id, judged);
        }
        self.judge_node_later(id);
    }

    /// A node that never was heard is it from the start.
    fn set_suspect(&mut self, id: &NodeId) {
        if self.nodes.get(id).is_some_and(|node| node.reach < Reachability::Suspect) {
            self.set_reach(id, Reachability::Suspect);
        }
    }

    pub(crate) fn set_reach(&mut self, id: &NodeId, reach: Reachability) {
        let unix = self.now.unix;
        let Some(node) = self.nodes.get_mut(id) else { return };
        let was = std::mem::replace(&mut node.reach, reach);
        if matches!(reach, Reachability::Down | Reachability::Gone) {
            node.held = false;
        }
        node.silent_since = match reach {
            Reachability::Up => None,
            Reachability::Suspect | Reachability::Down | Reachability::Gone => {
                node.silent_since.or(Some(unix))
            }
        };
        let text = format!("{id} went from {} to {}", was.name(), reach.name());
        self.tell(None, Some(id), &reach.name().to_lowercase(), text);
        match reach {
            Reachability::Up => {
                self.end_hold(id);
                self.out.room_freed = true;
                self.ask_round("a node is up");
                self.rounding.heard(id);
            }
            Reachability::Suspect => {}
            Reachability::Down => self.on_node_down(id),
            Reachability::Gone => self.lose_tasks(id, "declared lost", true),
        }
    }

    /// Each job's own rule for a silent node.
    fn on_node_down(&mut self, id: &NodeId) {
        let Some(node) = self.nodes.get(id).filter(|_| !self.is_superseded()) else { return };
        for job in node.lives.clone() {
            self.cancel_unheard(job);
            match self.job(job).spec().on_disconnect {
                // A job that is to end anyway is fenced when the node returns.
                OnDisconnect::Keep => self.fence_if_final(job, id),
                OnDisconnect::Stop => {
                    self.end_for_silence(job, id);
                    self.fence_if_final(job, id);
                }
                OnDisconnect::Replace => {
                    self.end_for_silence(job, id);
                    self.fence(job, id);
                }
            }
        }
        self.ask_round("a node is down");
    }

    /// An operator's word that a node is dead.
    pub(crate) fn declare_lost(&mut self, id: &NodeId, words: String) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.record.gone = Some(words);
        if let Some(session) = node.session.take() {
            let reason = format!("{id} was declared lost");
            self.out.commands.push(Command::Disconnect { session, reason });
        }
        node.strangers.clear();
        node.strangers_use = Resources::default();
        node.tasks.clear();
        self.out.nodes.insert(id.clone());
        self.timers.cancel(&Timer::Node(id.clone()));
        self.set_reach(id, Reachability::Gone);
        self.free_ports(|held| held.node == *id);
    }
}

/// Nodes known at once; a name costs a certificate, so only a mistake comes near.
const NODES_MAX: usize = 100_000;
/// GPUs believed of one node; more than any server has.
const GPUS_MAX: usize = 256;
/// A node that is held is looked at again.
const HELD_LOOK_MS: u64 = 5_000;
/// A skew worth a line.
const SKEW_TOLD_MS: u64 = 5_000;

/// A capacity with a bounded number of kinds.
fn bounded(capacity: &Resources) -> Resources {
    let mut capacity = capacity.clone();
    while capacity.named.len() > NAMED_MAX {
        capacity.named.pop_last();
    }
    capacity
}
