//! A master's start: from nothing, or from what the last one kept.
//!
//! Nothing that was in flight is trusted. A checkpoint under way is released and not used;
//! generations that may be alive are in the desired sets again, and the agents' reports say the
//! rest. No node is judged until the grace is over.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use model::agent::CheckpointOrder;
use model::{JobId, Millis, NodeId, Shape};

use crate::command::Command;
use crate::event::{Now, Refused};
use crate::job::Job;
use crate::job::blocks::Blocks;
use crate::job::live::Live;
use crate::job::phase::{Phase, Wait};
use crate::job::rates::Rates;
use crate::job::speed::Speed;
use crate::node::Node;
use crate::record::{BlocksRecord, JobRecord, Meta, NodeRecord, RateRecord, Record};
use crate::room::demand;
use crate::round::Rounding;
use crate::settings::Settings;
use crate::step::{Control, Out};
use crate::timers::{JobTimer, Timer, Timers};
use crate::told::places;

/// Why a store cannot be taken up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The counters are missing: the store is not whole.
    NoMeta { records: usize },
    /// An id beyond its counter: a part of the store is older than the rest.
    Behind { what: &'static str, id: u64, counter: u64 },
    /// The upper half of revisions is used up.
    TooManyStarts,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMeta { records } => write!(
                f,
                "cannot take up the store: it has {records} records but no counters; restore a \
                 snapshot"
            ),
            Self::Behind { what, id, counter } => write!(
                f,
                "cannot take up the store: it holds {what} {id} but counts only to {counter}; \
                 restore a snapshot"
            ),
            Self::TooManyStarts => f.write_str("cannot start more than 2^31 times on one store"),
        }
    }
}

impl std::error::Error for RestoreError {}

impl Control {
    /// A state machine that starts now, from the records of the last one or from none. The
    /// commands are to be carried out before the first event.
    ///
    /// # Errors
    /// [`RestoreError`] where the records are not one whole store.
    pub fn new(
        settings: Settings,
        now: Now,
        restored: Vec<Record>,
    ) -> Result<(Self, Vec<Command>), RestoreError> {
        let mut meta = None;
        let records = restored.len();
        let mut control = Self::empty(settings, now);
        let mut jobs = Vec::new();
        let mut later = Vec::new();
        for record in restored {
            match record {
                Record::MetaV1(found) => meta = Some(found),
                Record::JobV1(job) => jobs.push(*job),
                Record::EventV1(event) => {
                    control.events.insert(event.number, event);
                }
                Record::RoundV1(round) => {
                    control.rounds.insert(round.id, *round);
                }
                Record::NodeV1(node) => {
                    control.nodes.insert(node.id.clone(), Node::new(node));
                }
                Record::SpeedV1(speed) => {
                    control.speeds.insert(speed.key, Speed::restored(speed.samples));
                }
                Record::PortsV1 { host, ports } => {
                    control.ports.insert(host, ports);
                }
                Record::RatesV1(_)
                | Record::OptionsV1(_)
                | Record::DivergingV1(_)
                | Record::BlocksV1(_)
                | Record::SlowJobV1(_)
                | Record::SlowNodeV1(_)
                | Record::GpuV1(_)
                | Record::NodeOpsV1(_) => later.push(record),
            }
        }
        if meta.is_none() && records > 0 {
            return Err(RestoreError::NoMeta { records });
        }
        control.meta = meta.unwrap_or_else(|| Meta::default().succeeding(now.unix));
        control.check_counters(&jobs)?;
        control.meta.starts += 1;
        if control.meta.starts >= 1 << 31 {
            return Err(RestoreError::TooManyStarts);
        }
        control.out.meta = true;
        for job in jobs {
            control.restore_job(job);
        }
        for record in later {
            control.restore_later(record);
        }
        control.await_nodes();
        let starts = control.meta.starts;
        control.tell(None, None, "master", format!("the master started: its life {starts}"));
        control.restore_decisions();
        if !control.unfinished.is_empty() {
            control.ask_round("the master started");
        }
        let commands = control.step(now, crate::event::Event::Tick);
        Ok((control, commands))
    }

    /// What belongs to jobs and nodes that are there by now.
    fn restore_later(&mut self, record: Record) {
        match record {
            Record::RatesV1(RateRecord { job, marks }) => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.rates = Rates::restored(marks);
                }
            }
            Record::OptionsV1(record) => {
                if let Some(job) = self.jobs.get_mut(&record.job) {
                    job.options = record.options;
                    // What is told of a job's data set takes places, too.
                    for share in job.placement().0 {
                        self.recount(&share.node);
                    }
                }
            }
            Record::DivergingV1(record) => {
                if let Some(job) = self.jobs.get_mut(&record.job) {
                    job.diverging = record.diverging;
                }
            }
            Record::BlocksV1(BlocksRecord { job, sizes, assigned }) => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    Self::restore_assignment(job, Blocks::restored(sizes, assigned));
                }
            }
            Record::SlowJobV1(record) => self.restore_slow(vec![*record], Vec::new()),
            Record::SlowNodeV1(record) => self.restore_slow(Vec::new(), vec![record]),
            Record::GpuV1(record) => self.restore_gpu(*record),
            Record::NodeOpsV1(record) => self.restore_ops(record),
            Record::MetaV1(_)
            | Record::JobV1(_)
            | Record::EventV1(_)
            | Record::RoundV1(_)
            | Record::NodeV1(_)
            | Record::SpeedV1(_)
            | Record::PortsV1 { .. } => {}
        }
    }

    fn empty(settings: Settings, now: Now) -> Self {
        Self {
            settings,
            now,
            started: now,
            judge_from: now.mono,
            meta: Meta::default(),
            jobs: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            finished: BTreeSet::new(),
            reserved: BTreeSet::new(),
            promised: BTreeMap::new(),
            places: BTreeMap::new(),
            requests: BTreeMap::new(),
            nodes: BTreeMap::new(),
            closed: BTreeSet::new(),
            gpus: crate::gpu::Gpus::default(),
            draining: BTreeSet::new(),
            superseded: None,
            speeds: BTreeMap::new(),
            ports: BTreeMap::new(),
            rounds: BTreeMap::new(),
            events: BTreeMap::new(),
            rounding: Rounding::default(),
            timers: Timers::default(),
            refused: Refused::new(),
            fits: (0, 0),
            desired_sets: 0,
            out: Out::default(),
        }
    }

    fn check_counters(&self, jobs: &[JobRecord]) -> Result<(), RestoreError> {
        let newest = [
            ("job", jobs.iter().map(|job| job.id.0).max(), self.meta.jobs),
            ("round", self.rounds.keys().next_back().map(|id| id.0), self.meta.rounds),
            ("event", self.events.keys().next_back().copied(), self.meta.events),
        ];
        for (what, id, counter) in newest {
            if let Some(id) = id.filter(|id| *id > counter) {
                return Err(RestoreError::Behind { what, id, counter });
            }
        }
        Ok(())
    }

    fn restore_job(&mut self, mut record: JobRecord) {
        let id = record.id;
        if let Some(request) = &record.request_id {
            self.requests.insert((record.user.clone(), request.clone()), id);
        }
        if record.phase.is_final() {
            self.finished.insert((record.ended.unwrap_or_default(), id));
            self.jobs.insert(id, Job::new(record, Millis::default()));
            self.remove_old_litter(id);
            return;
        }
        record.phase = without_what_was_in_flight(record.phase);
        let age_ms = self.now.unix.0.saturating_sub(record.submitted.0);
        // Only the order of arrivals counts from here.
        let arrival = Millis(self.now.mono.0.saturating_sub(age_ms));
        let mut job = Job::new(record, arrival);
        job.changed = self.now.mono;
        let generation = job.life().map(|life| life.generation);
        job.live = generation.map(|generation| Live::new(generation, self.now.mono));
        let shares = job.placement().0;
        let reserved = matches!(job.phase(), Phase::Queued { wait: Wait::Room(_), .. });
        self.jobs.insert(id, job);
        self.unfinished.insert(id);
        if reserved {
            self.reserved.insert(id);
        }
        self.promise(id);
        for share in shares {
            self.restore_share(id, &share);
        }
        self.arm_phase_timers(id);
        self.arm_periodic(id);
        self.touch(id);
        self.remove_old_litter(id);
        self.out.settle.insert(id);
    }

    /// What was being published when the master died, of a job whose processes are gone.
    fn remove_old_litter(&mut self, id: JobId) {
        let job = self.job(id);
        if job.life().is_none() && !job.record.litter.is_empty() {
            self.remove_litter(id);
            self.touch(id);
        }
    }

    fn restore_share(&mut self, id: JobId, share: &model::NodeShare) {
        let take = demand(self.job(id), share);
        let more = places(self.job(id), Shape::new(share.servers, share.workers));
        let node = self.nodes.entry(share.node.clone()).or_insert_with(|| {
            // Its record was never written: it will tell when it connects.
            Node::new(unheard(share.node.clone()))
        });
        node.lives.insert(id);
        node.used = node.used.plus(&take);
        node.places = node.places.saturating_add(more);
    }

    /// The interval goes on from the last checkpoint as far as the wall clock can be believed.
    fn arm_periodic(&mut self, id: JobId) {
        let job = self.job(id);
        let (Phase::Running { .. }, Some(newest)) = (job.phase(), job.newest_checkpoint()) else {
            return;
        };
        let interval_ms = u64::from(job.spec().checkpoint_interval_s) * 1000;
        let age_ms = self.now.unix.0.saturating_sub(newest.at.0).min(interval_ms);
        let at = self.now.mono.plus((interval_ms - age_ms).max(5_000));
        self.timers.set(Timer::Job(id, JobTimer::Periodic), at);
    }

    /// Nothing is decided until the nodes that were here have had time to report.
    fn await_nodes(&mut self) {
        for (id, node) in &self.nodes {
            if node.record.gone.is_none() {
                self.rounding.awaited.insert(id.clone());
                self.timers.set(
                    Timer::Node(id.clone()),
                    self.now.mono.plus(self.settings.down_ms.max(self.settings.start_grace_ms)),
                );
            }
        }
        if !self.rounding.awaited.is_empty() {
            let wait_ms = self.settings.suspect_ms.min(self.settings.start_grace_ms);
            self.rounding.hold_until = self.now.mono.plus(wait_ms);
        }
    }

    /// What the last round said, for `why`.
    fn restore_decisions(&mut self) {
        let Some(round) = self.rounds.values().next_back() else { return };
        for entry in &round.jobs {
            if let Some(job) = self.jobs.get_mut(&entry.job) {
                job.decision = Some((round.id, round.at, entry.clone()));
            }
        }
        self.rounding.finished = Some((round.id, round.at, self.now.mono));
    }
}

fn without_what_was_in_flight(phase: Phase) -> Phase {
    match phase {
        Phase::Checkpointing { life, save, .. } => {
            let released = Some(CheckpointOrder { released: true, ..save.order });
            Phase::Running { life, pending: None, released }
        }
        // A place given before the start may be anybody's by now.
        Phase::Running { life, released, .. } => Phase::Running { life, pending: None, released },
        Phase::Queued { .. }
        | Phase::Starting { .. }
        | Phase::Stopping { .. }
        | Phase::Paused { .. }
        | Phase::Completed { .. }
        | Phase::Failed { .. }
        | Phase::Cancelled { .. } => phase,
    }
}

pub(crate) fn unheard(id: NodeId) -> NodeRecord {
    NodeRecord {
        id,
        incarnation: model::Incarnation::default(),
        boot_id: model::BootId::default(),
        software: String::new(),
        task_address: String::new(),
        beat_ms: 2_000,
        capacity: model::Resources::default(),
        gone: None,
    }
}
