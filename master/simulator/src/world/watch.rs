//! Who watches the world: what must hold whatever goes wrong, and how often that was put to the
//! test.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use control::Record;
use control::job::phase::Phase;
use control::record::{JobRecord, SlowCase, SlowJobRecord};
use model::client::{Answer, Change, Reply};
use model::{Generation, JobId, Millis, NodeId, Task};
use rand_pcg::Pcg64Mcg;

use super::World;
use super::agent::Name;
use super::chance::uniform;
use super::truth::Saved;
use crate::faults::Plant;

/// Time within which a node that hears the master runs nothing of an ended job: a grace, a
/// resend of the order, and what messages take.
const LEFT_OVER_MS: u64 = 150_000;
/// Time in which slowness that has ended may still be judged: reports are late, windows are left
/// out where a job saves.
const UNEVEN_MS: u64 = 300_000;
/// Things due at once, for each node and job, and beside them.
const DUE_EACH: usize = 400;

/// What is watched. Does nothing until it is turned on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    pub(crate) on: bool,
    pub(crate) plant: Option<Plant>,
    /// The last events in words, where they are wanted.
    pub(crate) told: Option<VecDeque<String>>,
    pub(super) told_max: usize,
    /// How often something was put to the test.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// Operators' requests under way.
    pub(super) asked: BTreeMap<u64, Change>,
    pub(super) chance: Option<Pcg64Mcg>,
    newest: BTreeMap<JobId, Generation>,
    accepted: BTreeMap<JobId, usize>,
    cancelled: BTreeSet<JobId>,
    /// Since when processes of an ended job live on a node that hears the master.
    left_over: BTreeMap<(usize, Name), Millis>,
    /// What each node's last heartbeat told of its tasks, in words.
    pub(super) beats: BTreeMap<NodeId, String>,
    /// When all nodes were at one speed again, and workers that are being replaced.
    pub(super) even_since: Option<Millis>,
    slow_cases: BTreeMap<JobId, SlowCase>,
    pub(super) leaked: Option<(Name, Task)>,
    pub(super) lost: Option<JobId>,
}

impl Watch {
    pub(crate) fn count(&mut self, what: &'static str) {
        if self.on {
            *self.counts.entry(what).or_default() += 1;
        }
    }

    pub(super) fn draws(&mut self, share: f64) -> bool {
        self.chance.as_mut().is_some_and(|chance| uniform(chance) < share)
    }
}

impl World {
    /// Turns the watch on.
    pub(crate) fn watched(mut self, plant: Option<Plant>, tells: usize) -> Self {
        self.watch.on = true;
        self.watch.plant = plant;
        self.watch.told = (tells > 0).then(VecDeque::new);
        self.watch.told_max = tells;
        self.watch.chance = Some(crate::random::stream(self.options.seed, "plant"));
        self
    }

    pub(crate) fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// A slow worker is put elsewhere: only where nodes were at different speeds lately, whatever
    /// agents tell, and never again once it was slow on two nodes.
    pub(super) fn watch_slow(&mut self, record: &SlowJobRecord) {
        let case = record.slow.case.as_ref();
        if !self.watch.on || self.watch.slow_cases.get(&record.job) == case {
            return;
        }
        let Some(case) = case else {
            self.watch.slow_cases.remove(&record.job);
            return;
        };
        self.watch.slow_cases.insert(record.job, case.clone());
        self.watch.count("slow workers put on another node");
        let now = self.now;
        let uneven = self.agents.iter().any(|agent| (agent.speed - 1.0).abs() > 1e-9)
            || self.watch.even_since.is_some_and(|since| now.since(since) < UNEVEN_MS);
        if !uneven {
            let words = &case.words;
            self.findings.push(format!("{} is moved though no node is slow: {words}", record.job));
        }
        if let Some(own) = &record.slow.own {
            self.findings.push(format!("{} is moved again: {own}", record.job));
        }
    }

    /// A record of a job reaches the disk.
    pub(super) fn watch_record(&mut self, record: &JobRecord) {
        if !self.watch.on {
            return;
        }
        let index = record.request_id.as_deref().and_then(|id| id.strip_prefix('w')?.parse().ok());
        if let Some(job) = index.filter(|job| *job < self.truths.len()) {
            if let Some(other) = self.job_of(record.id).filter(|other| *other != job) {
                let finding = format!("{} was job {other} and is job {job} now", record.id);
                self.findings.push(finding);
            }
            self.name_job(record.id, job);
        }
        let Some(job) = self.job_of(record.id) else { return };
        for checkpoint in &record.checkpoints {
            if let Some(saved) = self.truths[job].saved.get_mut(&checkpoint.directory) {
                saved.known = true;
                if !saved.whole {
                    let finding = format!("{} is on record and not whole", checkpoint.directory);
                    self.findings.push(finding);
                }
            }
        }
        if let Phase::Completed { .. } = record.phase {
            self.watch.count("completions with their work done");
            let truth = &self.truths[job];
            if truth.loss.is_none() && truth.done_at.is_none() {
                self.findings.push(format!("{} is COMPLETED before its last step", record.id));
            }
        }
    }

    /// A client was told that its job is accepted.
    pub(super) fn watch_accepted(&mut self, job: usize, id: JobId) {
        if !self.watch.on {
            return;
        }
        if let Some(other) = self.truths[job].id.filter(|other| *other != id) {
            self.findings.push(format!("job {job} was accepted as {other} and again as {id}"));
        }
        if self.watch.accepted.insert(id, job).is_some() {
            self.watch.count("jobs submitted again and known");
        }
    }

    pub(super) fn watch_reply(&mut self, request: u64, reply: &Reply) {
        let Some(change) = self.watch.asked.remove(&request) else { return };
        match (change, reply) {
            (Change::Cancel { job, .. }, Ok(Answer::Accepted { .. })) => {
                self.watch.cancelled.insert(job);
                self.watch.count("cancels accepted");
            }
            (_, Ok(_)) => self.watch.count("operators' requests accepted"),
            (_, Err(_)) => self.watch.count("operators' requests refused"),
        }
    }

    /// An agent starts processes of a generation.
    pub(super) fn watch_start(&mut self, node: usize, name: Name, job: usize) {
        if !self.watch.on {
            return;
        }
        self.watch.count("starts of tasks");
        let now = self.now_s();
        let newest = self.watch.newest.entry(name.0).or_default();
        if name.1 < *newest {
            let finding = format!("{} of {} starts after {newest} did, at {now} s", name.1, name.0);
            self.findings.push(finding);
        }
        *newest = (*newest).max(name.1);
        if self.truths[job].ended {
            let id = &self.agents[node].id;
            self.findings.push(format!("{} starts on {id} after its end, at {now} s", name.0));
        }
    }

    /// A generation resumes from a checkpoint, or from none.
    pub(super) fn watch_resume(&mut self, job: usize, name: Name, saved: Option<Saved>) {
        if !self.watch.on {
            return;
        }
        let kept = self.truths[job].saved.values();
        let sound = kept.filter(|saved| saved.known && saved.published && !saved.damaged);
        let best = sound.map(|saved| saved.work).fold(0.0, f64::max);
        if best > 0.0 {
            self.watch.count("resumes from a checkpoint");
        }
        let work = saved.map_or(0.0, |saved| saved.work);
        if work < best {
            let finding = format!("{} {} goes back to {work} behind {best}", name.0, name.1);
            self.findings.push(finding);
        }
    }

    /// Looks at everything that must hold now; what does not is among the findings.
    pub(crate) fn look(&mut self) {
        self.look_at_tasks();
        self.look_at_room();
        self.look_at_ended();
        self.look_at_jobs();
        let bound = DUE_EACH * (self.agents.len() + self.truths.len());
        if self.queue.len() > bound {
            self.findings.push(format!("{} things are due at once", self.queue.len()));
        }
        if self.master_up {
            self.control.assert_invariants();
        }
    }

    fn look_at_tasks(&mut self) {
        let mut last: Option<Name> = None;
        for (name, training) in &self.trainings {
            if training.alive.is_empty() {
                continue;
            }
            if let Some(other) = last.filter(|other| other.0 == name.0) {
                let finding = format!("{} and {} of {} live at once", other.1, name.1, name.0);
                self.findings.push(finding);
            }
            last = Some(*name);
            // Told by the agents themselves: whoever holds a task is where it lives.
            for (task, node) in &training.alive {
                let held = self.agents[*node].ledger.get(name);
                if held.and_then(|held| held.tasks.get(task)) != Some(&None) {
                    self.findings.push(format!("{task} of {} lives and is not held", name.0));
                }
            }
        }
    }

    fn look_at_room(&mut self) {
        for agent in self.agents.iter().filter(|agent| agent.powered && !agent.ledger.is_empty()) {
            let (mut cpus, mut memory, mut gpus) = (0, 0, 0);
            for ((id, _), held) in &agent.ledger {
                let Some(job) = self.job_of(*id) else { continue };
                let job = &self.workload.jobs[job];
                for (task, exit) in &held.tasks {
                    let take = match task.role {
                        model::Role::Server => &job.server,
                        model::Role::Worker => &job.worker,
                        model::Role::Scheduler => continue,
                    };
                    if exit.is_none() {
                        cpus += take.cpus_milli;
                        memory += take.memory_bytes;
                        gpus += take.gpus;
                    }
                }
            }
            let has = &agent.capacity;
            if cpus > has.cpus_milli || memory > has.memory_bytes || gpus > has.gpus {
                let finding = format!("{} runs more than it has: {cpus} mCPU", agent.id);
                self.findings.push(finding);
                return;
            }
        }
    }

    /// Nothing of an ended job runs for long on a node that hears the master.
    fn look_at_ended(&mut self) {
        if self.trainings.is_empty() && self.watch.left_over.is_empty() {
            return;
        }
        let now = self.now;
        let mut seen = BTreeMap::new();
        for (name, training) in &self.trainings {
            if !self.truths[training.job].ended {
                continue;
            }
            for node in training.alive.values() {
                let agent = &self.agents[*node];
                let hears = agent.session.is_some() && agent.hears() && !agent.link.is_mute();
                if !hears || !self.master_up {
                    continue;
                }
                let known = self.watch.left_over.get(&(*node, *name)).copied();
                let since = known.unwrap_or(now);
                seen.insert((*node, *name), since);
                if now.since(since) > LEFT_OVER_MS {
                    let finding = format!("{} of ended {} runs on {}", name.1, name.0, agent.id);
                    self.findings.push(finding);
                }
            }
        }
        if !seen.is_empty() {
            self.watch.count("looks at processes of ended jobs");
        }
        self.watch.left_over = seen;
    }

    /// Every job that was accepted is there once, and the disk says what the master believes.
    fn look_at_jobs(&mut self) {
        if !self.master_up {
            return;
        }
        let mut known = 0;
        for record in self.control.job_records() {
            known += usize::from(self.watch.accepted.contains_key(&record.id));
            let kept = self.store.get(&control::Key::Job(record.id));
            let same = matches!(kept, Some(Record::JobV1(kept))
                if kept.phase.state() == record.phase.state() && kept.last == record.last);
            if !same {
                let state = record.phase.state();
                self.findings.push(format!("{} is {state} and not so on disk", record.id));
            }
        }
        if known != self.watch.accepted.len() {
            let all = self.watch.accepted.keys();
            let there: BTreeSet<JobId> = self.control.job_records().map(|job| job.id).collect();
            let gone: Vec<String> =
                all.filter(|id| !there.contains(id)).map(ToString::to_string).collect();
            self.findings.push(format!("accepted and not known any more: {}", gone.join(", ")));
        }
    }

    /// What is left once everything should be over; empty where it is.
    pub(crate) fn unhealed(&self) -> Vec<String> {
        let mut unhealed = Vec::new();
        for record in self.control.job_records() {
            if !record.phase.is_final() {
                unhealed.push(format!(
                    "{} is {}: {}",
                    record.id,
                    record.phase.state(),
                    self.why(record.id)
                ));
            }
            if !record.litter.is_empty() {
                unhealed.push(format!("{} has litter: {:?}", record.id, record.litter));
            }
        }
        for agent in &self.agents {
            if !agent.ledger.is_empty() || !agent.desired.is_empty() {
                let names: Vec<String> =
                    agent.ledger.keys().map(|name| format!("{} {}", name.0, name.1)).collect();
                let wanted = agent.desired.len();
                unhealed.push(format!("{} holds {names:?} and wants {wanted}", agent.id));
            }
        }
        for record in self.store.values() {
            if let Record::PortsV1 { host, ports } = record
                && !ports.held.is_empty()
            {
                unhealed.push(format!("ports of {host} are held: {:?}", ports.held));
            }
        }
        match self.control.read(self.clocks(), &model::client::Read::Nodes) {
            Ok(Answer::Nodes(rows)) => {
                if rows.len() != self.agents.len() {
                    unhealed.push(format!("{} nodes are known", rows.len()));
                }
                for row in rows {
                    let up = row.reachability == model::reason::Reachability::Up;
                    if !up || !row.used.is_zero() || row.tasks > 0 {
                        let reach = row.reachability.name();
                        let left = format!("{} is {reach}, uses {:?}", row.id, row.used);
                        unhealed.push(left);
                    }
                }
            }
            other => unhealed.push(format!("nodes cannot be read: {other:?}")),
        }
        unhealed
    }

    fn why(&self, job: JobId) -> String {
        match self.control.read(self.clocks(), &model::client::Read::Why { job }) {
            Ok(Answer::Why(why)) => format!("{}; {}", why.reason, why.decision),
            other => format!("{other:?}"),
        }
    }

    /// What must hold of the story as a whole, once everything is over.
    pub(crate) fn look_back(&mut self) {
        let mut findings = Vec::new();
        for record in self.control.job_records() {
            let cancelled = self.watch.cancelled.contains(&record.id);
            match &record.phase {
                Phase::Completed { .. } if cancelled => {
                    findings.push(format!("{} was cancelled and is COMPLETED", record.id));
                }
                Phase::Failed { cause } => {
                    let spent = record.failures_in_row > record.spec.restarts_max;
                    if cause.is_empty() || !spent {
                        findings.push(format!("{} FAILED for no reason: {cause:?}", record.id));
                    }
                }
                Phase::Queued { .. }
                | Phase::Starting { .. }
                | Phase::Running { .. }
                | Phase::Checkpointing { .. }
                | Phase::Stopping { .. }
                | Phase::Paused { .. }
                | Phase::Completed { .. }
                | Phase::Cancelled { .. } => {}
            }
        }
        let submitted = self.truths.len();
        let there = self.control.job_records().count();
        if there != submitted {
            findings.push(format!("{there} jobs are there, {submitted} were submitted"));
        }
        self.findings.extend(findings);
    }
}
