//! The state machine: one event in, commands out.

use std::collections::{BTreeMap, BTreeSet};

use model::view::EventView;
use model::{JobId, JobOptions, Millis, NodeId, Placement, RoundId, UnixMs};

use crate::command::Command;
use crate::event::{Event, Now, Refused};
use crate::job::diverged::Diverging;
use crate::job::phase::{JobEvent, Phase, Wait};
use crate::job::speed::Speed;
use crate::job::{Job, push_bounded};
use crate::node::Node;
use crate::ports::HostPorts;
use crate::record::{
    BlocksRecord, DivergingRecord, JobRecord, Key, Meta, OptionsRecord, RateRecord, Record,
    RoundRecord, SlowJob, SpeedKey, Write,
};
use crate::round::Rounding;
use crate::settings::Settings;
use crate::timers::{Timer, Timers};

/// The heart of the master. Holds the state of all jobs and nodes; changes by [`Control::step`]
/// alone.
#[derive(Clone, Debug)]
pub struct Control {
    pub(crate) settings: Settings,
    pub(crate) now: Now,
    pub(crate) started: Now,
    /// Silence is judged from here on: the start, or the end of a pause of the master itself.
    pub(crate) judge_from: Millis,
    pub(crate) meta: Meta,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) unfinished: BTreeSet<JobId>,
    pub(crate) finished: BTreeSet<(UnixMs, JobId)>,
    /// Jobs that were given a place which is not free yet.
    pub(crate) reserved: BTreeSet<JobId>,
    /// Jobs whose next generation has its place on a node, whether the place is free or not.
    pub(crate) promised: BTreeMap<NodeId, BTreeSet<JobId>>,
    /// The same by jobs.
    pub(crate) places: BTreeMap<JobId, Placement>,
    pub(crate) requests: BTreeMap<(String, String), JobId>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) gpus: crate::gpu::Gpus,
    /// Nodes that take no new tasks, and those of them that jobs are leaving.
    pub(crate) closed: BTreeSet<NodeId>,
    pub(crate) draining: BTreeSet<NodeId>,
    /// In words, that another master has taken this one's place.
    pub(crate) superseded: Option<String>,
    pub(crate) speeds: BTreeMap<SpeedKey, Speed>,
    pub(crate) ports: BTreeMap<String, HostPorts>,
    pub(crate) rounds: BTreeMap<RoundId, RoundRecord>,
    pub(crate) events: BTreeMap<u64, EventView>,
    pub(crate) rounding: Rounding,
    pub(crate) timers: Timers,
    pub(crate) refused: Refused,
    /// Fits of Eqn. (1) in the present second.
    pub(crate) fits: (u64, u32),
    /// Counts desired sets of this start.
    pub(crate) desired_sets: u64,
    pub(crate) out: Out,
}

/// GPUs by their nodes and UUIDs.
pub(crate) type GpuNames = BTreeSet<(NodeId, String)>;

/// What a step has decided so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Out {
    pub(crate) commands: Vec<Command>,
    pub(crate) meta: bool,
    pub(crate) jobs: BTreeSet<JobId>,
    pub(crate) nodes: BTreeSet<NodeId>,
    pub(crate) speeds: BTreeSet<SpeedKey>,
    pub(crate) ports: BTreeSet<String>,
    pub(crate) rates: BTreeSet<JobId>,
    pub(crate) options: BTreeSet<JobId>,
    pub(crate) diverging: BTreeSet<JobId>,
    pub(crate) blocks: BTreeSet<JobId>,
    pub(crate) slow_jobs: BTreeSet<JobId>,
    pub(crate) slow_nodes: BTreeSet<NodeId>,
    pub(crate) gpus: GpuNames,
    pub(crate) node_ops: BTreeSet<NodeId>,
    pub(crate) rounds: BTreeSet<RoundId>,
    pub(crate) events: BTreeSet<u64>,
    pub(crate) deleted: Vec<Key>,
    /// Nodes whose desired set may have changed.
    pub(crate) desired: BTreeSet<NodeId>,
    /// Jobs that may be able to go on.
    pub(crate) settle: BTreeSet<JobId>,
    /// Room became free: reserved places are to be tried.
    pub(crate) room_freed: bool,
}

/// Bounds the work of one step, whatever the state: each job goes on at most a few times.
const SETTLE_MAX: usize = 1_000_000;

impl Control {
    /// Carries the state over one event. Commands are to be carried out in their order.
    pub fn step(&mut self, now: Now, event: Event) -> Vec<Command> {
        self.set_clock(now);
        match event {
            Event::Tick => {}
            Event::NodeConnected { node, session, introduction } => {
                self.on_connected(node, session, *introduction);
            }
            Event::Heartbeat { node, session, heartbeat } => {
                self.on_heartbeat(&node, session, *heartbeat);
            }
            Event::Rates { node, session, rates } => self.on_rates(&node, session, rates),
            Event::Notes { node, session, notes } => self.on_notes(&node, session, *notes),
            Event::NodeNotes { node, session, notes } => {
                self.on_node_notes(&node, session, *notes);
            }
            Event::NodeDisconnected { node, session } => self.on_disconnected(&node, session),
            Event::Change { request, user, rank, dry_run, reason, change } => {
                let asked = crate::change::Asked { request, user, rank, dry_run, reason };
                self.on_asked(asked, *change);
            }
            Event::RoundFinished { plan, refused, elapsed_s } => {
                self.on_round_finished(&plan, refused, elapsed_s);
            }
            Event::Published { job, generation, checkpoint, outcome } => {
                self.on_published(job, generation, checkpoint, outcome);
            }
        }
        self.fire_timers();
        self.settle();
        self.note_drained();
        let commands = self.flush();
        #[cfg(debug_assertions)]
        self.assert_invariants();
        commands
    }

    /// What was refused where it entered, by kind, since the start.
    #[must_use]
    pub const fn refused(&self) -> &Refused {
        &self.refused
    }

    /// What is kept of each job that is known, by id.
    pub fn job_records(&self) -> impl Iterator<Item = &JobRecord> {
        self.jobs.values().map(|job| &job.record)
    }

    /// When a [`Event::Tick`] is wanted at the latest; none where nothing is waited for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        self.timers.next()
    }

    fn set_clock(&mut self, now: Now) {
        let mono = now.mono.max(self.now.mono);
        let due = self.timers.next().map_or(mono, |at| at.max(self.now.mono));
        // The master itself stood still: a suspended host, a debugger. It heard nobody in that
        // time, so nobody's silence counts.
        if mono.since(due) >= self.settings.suspect_ms / 2 {
            self.judge_from = mono;
        }
        self.now = Now { mono, unix: now.unix };
    }

    fn fire_timers(&mut self) {
        while let Some(timer) = self.timers.pop(self.now.mono) {
            match timer {
                Timer::Round => self.on_round_due(),
                Timer::PlanLost => self.on_plan_lost(),
                Timer::Node(node) => self.judge_node(&node),
                Timer::Drain(node) => self.tend_drain(&node),
                Timer::Job(job, which) => self.on_job_timer(job, which),
            }
        }
    }

    /// Lets every job that may go on do so, until nothing moves.
    pub(crate) fn settle(&mut self) {
        for _ in 0..SETTLE_MAX {
            if let Some(job) = self.out.settle.pop_first() {
                self.advance(job);
            } else if std::mem::take(&mut self.out.room_freed) {
                self.out.settle.extend(self.reserved.iter().copied());
            } else {
                return;
            }
        }
    }

    /// A job that came from our own state.
    pub(crate) fn job(&self, id: JobId) -> &Job {
        self.jobs.get(&id).expect("the id came from the present state")
    }

    pub(crate) fn job_mut(&mut self, id: JobId) -> &mut Job {
        self.jobs.get_mut(&id).expect("the id came from the present state")
    }

    /// Marks a job's record as changed.
    pub(crate) fn touch(&mut self, id: JobId) {
        self.out.jobs.insert(id);
    }

    pub(crate) fn count(&mut self, kind: &'static str) {
        let count = self.refused.entry(kind).or_insert(0);
        *count = count.saturating_add(1);
    }

    /// Writes a line of the event record.
    pub(crate) fn tell(
        &mut self,
        job: Option<JobId>,
        node: Option<&NodeId>,
        kind: &str,
        text: impl Into<String>,
    ) {
        self.meta.events += 1;
        self.out.meta = true;
        let number = self.meta.events;
        let text: String = text.into().chars().take(EVENT_CHARS_MAX).collect();
        let event = EventView {
            number,
            at: self.now.unix,
            job,
            node: node.cloned(),
            kind: kind.to_owned(),
            text,
        };
        self.events.insert(number, event);
        self.out.events.insert(number);
        while self.events.len() > self.settings.events_kept {
            if let Some((old, _)) = self.events.pop_first()
                && !self.out.events.remove(&old)
            {
                self.out.deleted.push(Key::Event(old));
            }
        }
    }

    /// Moves a job through its table and keeps everything that hangs on its phase in step. False
    /// where the event is stale, which is counted.
    pub(crate) fn transit(&mut self, id: JobId, event: JobEvent) -> bool {
        let job = self.job_mut(id);
        let before = job.record.phase.state();
        let is_stop = matches!(event, JobEvent::Stop { .. });
        let held = job.life().map(|life| (life.generation, life.placement.clone()));
        let phase = std::mem::replace(&mut job.record.phase, Phase::Paused { last: None });
        match phase.on(event) {
            Ok(phase) => job.record.phase = phase,
            Err(stale) => {
                job.record.phase = *stale.phase;
                self.count("job event of another phase");
                return false;
            }
        }
        let generation = job.life().map(|life| life.generation);
        let after = job.record.phase.state();
        let reserved = matches!(
            job.record.phase,
            Phase::Queued { wait: Wait::Room(_), .. } | Phase::Running { pending: Some(_), .. }
        );
        if reserved {
            self.reserved.insert(id);
        } else {
            self.reserved.remove(&id);
        }
        self.promise(id);
        let held_generation = held.as_ref().map(|(generation, _)| *generation);
        if held_generation != generation {
            if let Some((generation, placement)) = held {
                self.end_life(id, generation, &placement);
            }
            if generation.is_some() {
                self.begin_life(id);
            }
        }
        // One exit of many changes neither what is desired nor what is worth keeping.
        if before == "starting" && after == "running" {
            self.note_started(id);
        }
        if before == "stopping" && after == "queued" && !self.draining.is_empty() {
            // It was told to leave, and not for a better place.
            self.ask_round("a job left a node");
        }
        if before != after || held_generation != generation || is_stop {
            self.mark_desired(id);
            self.arm_phase_timers(id);
            self.touch(id);
            if self.job(id).phase().is_final() {
                self.on_final(id);
            }
        } else if after != "stopping" {
            self.touch(id);
        }
        self.out.settle.insert(id);
        true
    }

    /// Everything that the step wants kept, before everything that it wants done.
    fn flush(&mut self) -> Vec<Command> {
        self.send_desired();
        let out = std::mem::take(&mut self.out);
        let mut writes: Vec<Write> = Vec::new();
        let mut put = |record: Record| writes.push(Write::Put(record));
        if out.meta {
            put(Record::MetaV1(self.meta));
        }
        for id in &out.nodes {
            if let Some(node) = self.nodes.get(id) {
                put(Record::NodeV1(node.record.clone()));
            }
        }
        for host in &out.ports {
            if let Some(ports) = self.ports.get(host) {
                put(Record::PortsV1 { host: host.clone(), ports: ports.clone() });
            }
        }
        for key in &out.speeds {
            if let Some(speed) = self.speeds.get_mut(key) {
                put(Record::SpeedV1(speed.record(key.clone())));
            }
        }
        for id in &out.jobs {
            if let Some(job) = self.jobs.get(id) {
                put(Record::JobV1(Box::new(job.record.clone())));
            }
        }
        self.put_beside_jobs(&out, &mut put);
        for id in &out.rounds {
            if let Some(round) = self.rounds.get(id) {
                put(Record::RoundV1(Box::new(round.clone())));
            }
        }
        for number in &out.events {
            if let Some(event) = self.events.get(number) {
                put(Record::EventV1(event.clone()));
            }
        }
        writes.extend(out.deleted.into_iter().map(Write::Delete));
        let mut commands = Vec::with_capacity(out.commands.len() + 1);
        if !writes.is_empty() {
            commands.push(Command::Persist(writes));
        }
        commands.extend(out.commands);
        commands
    }

    /// What has a record of its own beside the job's or the node's.
    fn put_beside_jobs(&self, out: &Out, put: &mut impl FnMut(Record)) {
        for id in &out.rates {
            if let Some(job) = self.jobs.get(id) {
                let marks = job.rates.marks().to_vec();
                put(Record::RatesV1(RateRecord { job: *id, marks }));
            }
        }
        for id in &out.options {
            if let Some(job) = self.jobs.get(id) {
                let options = job.options.clone();
                put(Record::OptionsV1(Box::new(OptionsRecord { job: *id, options })));
            }
        }
        for id in &out.diverging {
            if let Some(job) = self.jobs.get(id) {
                let diverging = job.diverging.clone();
                put(Record::DivergingV1(DivergingRecord { job: *id, diverging }));
            }
        }
        for id in &out.blocks {
            if let Some(Job { blocks, .. }) = self.jobs.get(id) {
                let (sizes, assigned) = (blocks.sizes().to_vec(), blocks.assigned());
                put(Record::BlocksV1(BlocksRecord { job: *id, sizes, assigned }));
            }
        }
        for record in self.slow_records(&out.slow_jobs, &out.slow_nodes) {
            put(record);
        }
        for record in self.gpu_records(&out.gpus) {
            put(record);
        }
        for id in &out.node_ops {
            if let Some(record) = self.ops_record(id) {
                put(Record::NodeOpsV1(record));
            }
        }
    }

    /// A job is over: its time is kept, and the oldest ones make room.
    fn on_final(&mut self, id: JobId) {
        let unix = self.now.unix;
        let job = self.job_mut(id);
        job.record.ended = Some(unix);
        job.record.wish = None;
        // A checkpoint that is being published still comes to its end: nobody else removes it.
        job.live = None;
        let name = job.phase_name().name();
        let text = match job.phase() {
            Phase::Completed { note } | Phase::Cancelled { note } => note.clone(),
            Phase::Failed { cause } => cause.clone(),
            Phase::Queued { .. }
            | Phase::Starting { .. }
            | Phase::Running { .. }
            | Phase::Checkpointing { .. }
            | Phase::Stopping { .. }
            | Phase::Paused { .. } => String::new(),
        };
        self.tell(Some(id), None, &name.to_lowercase(), text);
        self.unfinished.remove(&id);
        self.finished.insert((unix, id));
        self.ask_round("a job ended");
        while self.finished.len() > self.settings.jobs_finished_kept.max(1) {
            // Never the one that has just ended, even where the wall clock went back.
            let oldest = self.finished.iter().find(|(_, old)| *old != id).copied();
            let Some(oldest) = oldest else { return };
            self.finished.remove(&oldest);
            self.forget(oldest.1);
        }
    }

    fn forget(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        if let Some(request) = job.record.request_id {
            self.requests.remove(&(job.record.user, request));
        }
        self.out.jobs.remove(&id);
        self.out.settle.remove(&id);
        self.timers.cancel_job(id);
        self.out.deleted.push(Key::Job(id));
        self.out.rates.remove(&id);
        if !job.rates.marks().is_empty() {
            self.out.deleted.push(Key::Rates(id));
        }
        self.out.options.remove(&id);
        if job.options != JobOptions::default() {
            self.out.deleted.push(Key::Options(id));
        }
        self.out.diverging.remove(&id);
        if job.diverging != Diverging::default() {
            self.out.deleted.push(Key::Diverging(id));
        }
        self.out.blocks.remove(&id);
        if job.blocks.is_known() {
            self.out.deleted.push(Key::Blocks(id));
        }
        self.out.slow_jobs.remove(&id);
        if job.slow != SlowJob::default() {
            self.out.deleted.push(Key::SlowJob(id));
        }
        let own = SpeedKey::Job(id);
        if self.speeds.remove(&own).is_some() {
            self.out.speeds.remove(&own);
            self.out.deleted.push(Key::Speed(own));
        }
    }

    /// Remembers where a generation stood, for the logs of dead ones.
    pub(crate) fn remember_placement(&mut self, id: JobId) {
        let job = self.job_mut(id);
        let Some(life) = job.record.phase.life() else { return };
        let entry = (life.generation, life.placement.clone());
        push_bounded(&mut job.record.history, entry, crate::job::PLACEMENTS_MAX);
    }
}

/// Longest text of one event: an agent's words may be 2,000 bytes.
const EVENT_CHARS_MAX: usize = 2_500;
