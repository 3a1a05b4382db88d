//! Faults at will: for searches that let everything go wrong and then see the cluster heal.

use std::collections::BTreeMap;

use control::{Control, Record};
use model::agent::Exit;
use model::{JobId, JobSpec, OnDisconnect, Task};
use rand_pcg::Pcg64Mcg;

use super::{Due, Fidelity, RECONNECT_MS, World};
use crate::random::stream;

/// What is wrong at present beside nodes and links.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) saves: Pcg64Mcg,
    pub(super) saves_fail: bool,
    pub(super) store_fails: bool,
    pub(super) hangs: bool,
    pub(super) loses_stops: bool,
    /// The master dies once so many commands were carried out.
    pub(super) dies_after: Option<u64>,
    /// How far the wall clock of the master's host is off.
    pub(super) unix_shift_ms: i64,
    /// Processes that are told to stop take at least this long: they wait for the KILL.
    pub(super) stubborn_ms: u64,
    /// Checkpoints are said to be written while a part is short.
    pub(super) half_written: bool,
    pub(super) plan_late_ms: u64,
    pub(super) plan_is_lost: bool,
    /// Messages of a node that come twice, the second time so much later.
    pub(super) repeats: BTreeMap<usize, (u32, u64)>,
    /// What is wrong with the next reports of a node.
    pub(super) garbage: BTreeMap<usize, Vec<super::Garbage>>,
    /// What owners ask for beyond the workload.
    pub(super) tweaks: Vec<Tweak>,
}

/// What a job's owner asks for beside what the workload says.
#[derive(Clone, Debug)]
pub(crate) struct Tweak {
    pub(crate) on_disconnect: OnDisconnect,
    pub(crate) restarts_max: u32,
    pub(crate) checkpoint_interval_s: u32,
}

impl Trouble {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            saves: stream(seed, "saves"),
            saves_fail: false,
            store_fails: false,
            hangs: false,
            loses_stops: false,
            dies_after: None,
            unix_shift_ms: 0,
            stubborn_ms: 0,
            half_written: false,
            plan_late_ms: 0,
            plan_is_lost: false,
            repeats: BTreeMap::new(),
            garbage: BTreeMap::new(),
            tweaks: Vec::new(),
        }
    }

    pub(super) fn tweaked(&self, job: usize, mut spec: JobSpec) -> JobSpec {
        if let Some(tweak) = self.tweaks.get(job) {
            spec.on_disconnect = tweak.on_disconnect;
            spec.restarts_max = tweak.restarts_max;
            spec.checkpoint_interval_s = tweak.checkpoint_interval_s;
        }
        spec
    }
}

/// Nodes are named by their position in the cluster; a position that is not there does nothing.
impl World {
    /// Nodes of the cluster.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.agents.len()
    }

    pub(super) fn has(&self, node: usize) -> bool {
        node < self.agents.len()
    }

    /// A machine loses power, and its tasks with it.
    pub fn power_off(&mut self, node: usize) {
        if self.has(node) {
            self.lose_power(node);
        }
    }

    /// It starts again: a new boot, an empty ledger.
    pub fn power_on(&mut self, node: usize) {
        if self.has(node) {
            self.get_power(node);
        }
    }

    /// The network to a node is cut: nothing passes, what is under way is lost, tasks live on.
    pub fn cut(&mut self, node: usize) {
        if !self.has(node) || self.agents[node].link.cut {
            return;
        }
        self.agents[node].link.cut = true;
        self.drop_messages(node);
    }

    /// The network is back; the agent connects anew.
    pub fn heal(&mut self, node: usize) {
        if !self.has(node) || !self.agents[node].link.cut {
            return;
        }
        let agent = &mut self.agents[node];
        agent.link.cut = false;
        agent.session = None;
        agent.soon = false;
        self.queue.put(self.now.plus(RECONNECT_MS), Due::Connect(node));
    }

    /// Messages of a node take this long from now on, each way; they never overtake each other.
    pub fn delay(&mut self, node: usize, ms: u64) {
        if self.has(node) {
            self.agents[node].link.delay_ms = ms;
        }
    }

    /// The next messages of a node, of either direction, are lost.
    pub fn lose(&mut self, node: usize, messages: u32) {
        if self.has(node) {
            self.agents[node].link.losses = messages;
        }
    }

    /// The agent's process dies and comes back after a while, with its ledger; tasks live on.
    pub fn restart_agent(&mut self, node: usize) {
        if !self.has(node) || !self.agents[node].powered {
            return;
        }
        self.drop_messages(node);
        let agent = &mut self.agents[node];
        agent.session = None;
        agent.soon = false;
        agent.beats += 1;
        agent.incarnation = agent.incarnation.next();
        self.queue.put(self.now.plus(RECONNECT_MS), Due::Connect(node));
    }

    pub(super) fn drop_messages(&mut self, node: usize) {
        let id = self.agents[node].id.clone();
        self.queue.retain(|due| match due {
            Due::Agent { node: other, .. } => *other != node,
            Due::Master { event, .. } => match event.as_ref() {
                control::Event::NodeConnected { node: other, .. }
                | control::Event::Heartbeat { node: other, .. } => *other != id,
                control::Event::Tick
                | control::Event::Rates { .. }
                | control::Event::Notes { .. }
                | control::Event::NodeNotes { .. }
                | control::Event::NodeDisconnected { .. }
                | control::Event::Change { .. }
                | control::Event::RoundFinished { .. }
                | control::Event::Published { .. } => true,
            },
            Due::Arrive(_)
            | Due::Connect(_)
            | Due::Beat { .. }
            | Due::Soon(_)
            | Due::Out { .. }
            | Due::Train { .. }
            | Due::Silence(_)
            | Due::Declare { .. }
            | Due::Turn { .. }
            | Due::StartMaster
            | Due::StartAgent(_) => true,
        });
    }

    /// The master dies with all that was in flight and starts again from its store `after_ms`
    /// later. Only at exact fidelity: coarse runs keep no store.
    pub fn kill_master(&mut self, after_ms: u64) {
        if !self.is_exact() || !self.master_up {
            return;
        }
        self.master_up = false;
        self.life += 1;
        for node in 0..self.agents.len() {
            let agent = &mut self.agents[node];
            agent.session = None;
            agent.soon = false;
        }
        // Clients that got no answer ask again under the same request id.
        let unanswered: Vec<usize> = std::mem::take(&mut self.requests).into_values().collect();
        for job in unanswered {
            self.queue.put(self.now.plus(after_ms + RECONNECT_MS), Due::Arrive(job));
        }
        self.queue.put(self.now.plus(after_ms), Due::StartMaster);
    }

    /// The master dies and starts again at once.
    pub fn restart_master(&mut self) {
        self.kill_master(0);
    }

    /// The master dies between two commands, once it carried out so many more.
    pub fn master_dies_after(&mut self, commands: u64) {
        self.trouble.dies_after = self.is_exact().then(|| self.commands + commands);
    }

    pub(super) fn start_master(&mut self) {
        if self.master_up {
            return;
        }
        let records: Vec<Record> = self.store.values().cloned().collect();
        match Control::new(self.settings.clone(), self.clocks(), records) {
            Ok((control, commands)) => {
                self.control = control;
                self.master_up = true;
                self.watch.count("starts of a master from its store");
                self.cache = scheduler::Cache::default();
                self.carry_out(commands);
                for node in 0..self.agents.len() {
                    self.queue.put(self.now.plus(RECONNECT_MS), Due::Connect(node));
                }
            }
            Err(error) => self.findings.push(error.to_string()),
        }
    }

    /// No checkpoint can be written by training processes, until told otherwise.
    pub fn fail_saves(&mut self, fails: bool) {
        self.trouble.saves_fail = fails;
    }

    /// The master can write no manifest, until told otherwise.
    pub fn fail_store(&mut self, fails: bool) {
        self.trouble.store_fails = fails;
    }

    /// Generations that start now never make a step, until told otherwise.
    pub fn hang(&mut self, hangs: bool) {
        self.trouble.hangs = hangs;
    }

    /// A planted bug: agents forget orders to stop, until told otherwise.
    pub fn plant_lost_stops(&mut self, loses: bool) {
        self.trouble.loses_stops = loses;
    }

    /// Damages every checkpoint of the jobs so far that `which` picks by position.
    pub fn damage(&mut self, which: impl Fn(usize) -> bool) {
        for (job, truth) in self.truths.iter_mut().enumerate() {
            if which(job) {
                truth.saved.values_mut().for_each(|saved| saved.damaged = true);
            }
        }
    }

    /// A node's tasks run at this share of their speed.
    pub fn slow(&mut self, node: usize, speed: f64) {
        if self.has(node) && speed.is_finite() && speed > 0.0 {
            self.set_speed(node, speed);
        }
    }

    /// A process of a job's living generation ends by itself.
    pub fn exit(&mut self, job: JobId, task: Task, code: i32) {
        let lives = (job, model::Generation(0))..=(job, model::Generation(u64::MAX));
        let newest = self.trainings.range(lives).next_back().map(|(name, _)| *name);
        if let Some(name) = newest {
            let reason = "died in its sleep".to_owned();
            let exit = Exit { code: Some(code), reason, ..Exit::default() };
            self.exit_one(name, task, &exit);
        }
    }

    /// Ends every fault that lasts: links, power, slowness, writes.
    pub fn heal_all(&mut self) {
        self.trouble.hangs = false;
        self.trouble.saves_fail = false;
        self.trouble.store_fails = false;
        self.trouble.dies_after = None;
        self.trouble.stubborn_ms = 0;
        self.trouble.half_written = false;
        (self.trouble.plan_late_ms, self.trouble.plan_is_lost) = (0, false);
        self.trouble.repeats.clear();
        self.trouble.garbage.clear();
        let usual_ms = match self.options.fidelity {
            Fidelity::Exact { delay_ms, .. } => delay_ms,
            Fidelity::Coarse { .. } => 0,
        };
        for node in 0..self.agents.len() {
            let link = &mut self.agents[node].link;
            (link.losses, link.delay_ms) = (0, usual_ms);
            self.power_on(node);
            self.heal(node);
            self.unmute(node);
            self.slow(node, 1.0);
        }
    }

    /// Processes that live and that no agent is told to keep, once every message has arrived.
    #[must_use]
    pub fn unwanted(&self) -> Vec<String> {
        let mut unwanted = Vec::new();
        for agent in self.agents.iter().filter(|agent| agent.powered) {
            for (name, held) in &agent.ledger {
                if held.is_live() && !agent.wants(*name) {
                    unwanted.push(format!("{} {} on {}", name.0, name.1, agent.id));
                }
            }
        }
        unwanted
    }

    /// Processes of ended jobs that are alive anywhere.
    #[must_use]
    pub fn left_over(&self) -> Vec<String> {
        let ended = self.trainings.iter().filter(|(_, training)| self.truths[training.job].ended);
        ended.map(|((job, generation), _)| format!("{job} {generation}")).collect()
    }
}
