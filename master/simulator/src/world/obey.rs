//! Agents do as they are told: processes start, stop, and hear of checkpoints.

use model::agent::{DesiredGeneration, Exit, Order};
use model::{NodeShare, Placement, Role, Shape, Task};

use super::agent::{Action, Name};
use super::training::{Sums, Training};
use super::{Due, World};
use crate::outcome::Span;
use crate::random::stream;

impl World {
    /// Carries a node's desired set out as far as it can be now.
    pub(super) fn obey(&mut self, node: usize) {
        let agent = &mut self.agents[node];
        let ends = agent.desired.iter().any(|wanted| {
            let held = agent.ledger.get(&(wanted.job, wanted.generation));
            let whole = held.is_some_and(|held| held.is_live());
            let starts = wanted.order == Order::Start && held.is_none_or(|held| !held.stopping);
            // A task that is not there, or no longer, is told at once.
            !whole && !starts
        });
        let mut actions = self.agents[node].reconcile();
        actions.extend(self.starts_again(node));
        for action in actions {
            match action {
                Action::Start { wanted, tasks } => self.start_tasks(node, &wanted, tasks),
                Action::Stop { name } => self.stop_tasks(node, name),
                Action::Order { name, order } => {
                    let revision = self.agents[node].obeyed;
                    let now = self.now;
                    if let Some(training) = self.trainings.get_mut(&name) {
                        training.accrue(now);
                        training.hear(revision, order.as_ref());
                        self.appoint(name);
                    }
                }
            }
        }
        if ends || self.is_exact() {
            self.poke(node);
        }
    }

    fn stop_tasks(&mut self, node: usize, name: Name) {
        let Some(held) = self.agents[node].ledger.get_mut(&name) else { return };
        held.stopping = true;
        if self.trouble.loses_stops || self.loses_stop() {
            return;
        }
        let stop_ms = self.job_of(name.0).map_or(0, |job| self.truths[job].stop_ms);
        let stop_ms = stop_ms.max(self.trouble.stubborn_ms);
        self.queue.put(self.now.plus(stop_ms), Due::Out { node, name });
    }

    /// The processes of a generation on a node are out as ordered.
    pub(super) fn out(&mut self, node: usize, name: Name) {
        self.end_tasks(node, name, "stopped as told", true);
    }

    /// Ends every process of a generation on a node.
    pub(super) fn end_tasks(&mut self, node: usize, name: Name, reason: &str, ordered: bool) {
        if !self.agents[node].powered {
            return;
        }
        let code = ordered.then_some(0);
        let signal = (!ordered).then_some(15);
        let exit = Exit { code, signal, reason: reason.to_owned(), ordered };
        let ended = self.agents[node].end(name, &exit);
        if ended.is_empty() {
            return;
        }
        self.leave(name, &ended);
        // A start may have waited for these.
        self.obey(node);
        self.agents[node].news.insert(name);
        self.poke(node);
    }

    fn start_tasks(&mut self, node: usize, wanted: &DesiredGeneration, tasks: Vec<Task>) {
        let name = (wanted.job, wanted.generation);
        let Some(job) = self.job_of(name.0) else { return };
        self.watch_start(node, name, job);
        let lives = (name.0, model::Generation(0))..=(name.0, model::Generation(u64::MAX));
        let others = self
            .trainings
            .range(lives)
            .filter(|(other, training)| **other != name && !training.alive.is_empty());
        for (other, _) in others {
            let at = self.now.0;
            let finding = format!("{} and {} of {} live at {at} ms", other.1, name.1, name.0);
            self.findings.push(finding);
        }
        if !self.trainings.contains_key(&name) {
            self.begin(job, wanted);
        }
        let held = self.agents[node].held(name, wanted.launch.on_disconnect);
        for task in &tasks {
            held.tasks.insert(*task, None);
        }
        let id = self.agents[node].id.clone();
        let (now, start_ms) = (self.now, self.start_ms(job));
        let Some(training) = self.trainings.get_mut(&name) else { return };
        let mut share = NodeShare { node: id, servers: 0, workers: 0 };
        for task in tasks {
            if training.alive.insert(task, node).is_some() {
                self.findings.push(format!("{task} of {} twice at {} ms", name.0, now.0));
            }
            match task.role {
                Role::Server => share.servers += 1,
                Role::Worker => share.workers += 1,
                Role::Scheduler => {}
            }
        }
        training.nodes.insert(node);
        let shares = &mut training.placement.0;
        let at = shares.partition_point(|other| other.node < share.node);
        shares.insert(at, share);
        let nodes = u32::try_from(training.nodes.len()).unwrap_or(u32::MAX);
        if training.alive.len() == training.shape.tasks().len() && training.ready_at.is_none() {
            training.ready_at = Some(now.plus(start_ms));
        }
        if let Some(span) = self.truths[job].outcome.timeline.last_mut() {
            span.nodes = nodes;
        }
        self.appoint(name);
    }

    /// What the start of a job's processes takes now.
    fn start_ms(&self, job: usize) -> u64 {
        let truth = &self.truths[job];
        if truth.outcome.restarts > 0 {
            truth.start_ms
        } else {
            super::truth::ceil_ms(self.options.costs.first_start_s)
        }
    }

    /// The first process of a generation.
    fn begin(&mut self, job: usize, wanted: &DesiredGeneration) {
        let name = (wanted.job, wanted.generation);
        let (now, launch) = (self.now, &wanted.launch);
        let truth = &mut self.truths[job];
        let saved = launch.resume.as_ref().and_then(|folder| truth.saved.get(folder)).copied();
        if let Some(folder) = &launch.resume
            && saved.is_none_or(|saved| !saved.published)
        {
            self.findings.push(format!("{folder} is resumed from but has no manifest"));
        }
        self.watch_resume(job, name, saved);
        let truth = &mut self.truths[job];
        let work = saved.map_or(0.0, |saved| saved.work);
        let at_s = now.seconds_since(model::Millis::default());
        if truth.outcome.started_s.is_some() {
            truth.outcome.restarts += 1;
        } else {
            truth.outcome.started_s = Some(at_s);
        }
        truth.held_since = truth.held_since.or(Some(now));
        let Shape { servers, workers } = launch.shape;
        let purpose = format!("observe {} {}", self.workload.jobs[job].id, name.1);
        let training = Training {
            job,
            shape: launch.shape,
            mode: launch.mode,
            alive: std::collections::BTreeMap::new(),
            nodes: std::collections::BTreeSet::new(),
            placement: Placement::default(),
            begun: now,
            ready_at: None,
            ready: false,
            broken: self.trouble.hangs,
            base_step: saved.map_or(0, |saved| saved.step),
            base_work: work,
            step_work: super::truth::step_work(&self.workload.jobs[job], launch.shape),
            total: truth.total,
            work,
            since: now,
            rate: 0.0,
            slow: 1.0,
            speeds: Vec::new(),
            moved_s: 0.0,
            stepped: false,
            finished: false,
            resume: launch.resume.clone(),
            order: None,
            heard: model::Revision::default(),
            save: None,
            left_at: None,
            sums: Sums::new(stream(self.options.seed, &purpose), work),
            appointed: None,
            version: 0,
        };
        self.trainings.insert(name, training);
        self.idle_rounds = 0;
        let take = launch.shape.demand(&launch.worker, &launch.server);
        self.tally.used = self.tally.used.plus(&take);
        self.tally.running += 1;
        self.tally.tasks += servers + workers;
        self.tally.changed = true;
        self.span(job, Span { at_s, servers, workers, nodes: 0 });
    }

    /// Notes what a job holds from now on.
    pub(super) fn span(&mut self, job: usize, span: Span) {
        let timeline = &mut self.truths[job].outcome.timeline;
        match timeline.last_mut() {
            Some(last) if last.at_s >= span.at_s => *last = span,
            Some(_) | None => timeline.push(span),
        }
    }
}
