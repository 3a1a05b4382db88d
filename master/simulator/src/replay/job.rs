//! A job in virtual time.

use scheduler::baseline::gpus::Replicas;
use scheduler::goodput::batch::{Batch, fixed};
use scheduler::goodput::{Gradient, Spread};

use super::agent::Agent;
use super::app::{App, Curve};
use super::planner::{Batching, JobView};
use super::profile::Timing;
use super::rows::Row;
use crate::outcome::{JobOutcome, Span};

/// After so many seconds of its first steps a job tells of them.
const FIRST_STEPS_S: f64 = 1.0;
/// By how much a job may become faster from one round to the next, as its batch and its epoch
/// change, without an end being overlooked.
const QUICKENS_MAX: f64 = 4.0;

/// A job and what became of it so far.
#[derive(Clone, Debug)]
pub(super) struct Job<'a> {
    row: &'a Row,
    app: &'a App,
    /// Where a policy goes by goodput.
    agent: Option<Agent>,
    held: Vec<Replicas>,
    replicas: u32,
    curve: Option<Curve>,
    batch: Batch,
    clock_s: f64,
    /// What is still to be paid of the last restart.
    delay_s: f64,
    attained_gpu_s: f64,
    executed_s: f64,
    epoch: usize,
    progress: f64,
    completion_s: Option<f64>,
    starts: u32,
    rescale_s: f64,
    started_s: Option<f64>,
    timeline: Vec<Span>,
}

impl<'a> Job<'a> {
    pub(super) fn new(row: &'a Row, app: &'a App, batching: Batching) -> Self {
        Self {
            row,
            app,
            agent: match batching {
                Batching::Stated => None,
                Batching::Goodput => Some(Agent::new(app.limits(), app.replicas_max())),
            },
            held: Vec::new(),
            replicas: 0,
            curve: None,
            batch: Batch { local: 0, accumulation: 0 },
            clock_s: 0.0,
            delay_s: 0.0,
            attained_gpu_s: 0.0,
            executed_s: 0.0,
            epoch: 0,
            progress: 0.0,
            completion_s: None,
            starts: 0,
            rescale_s: 0.0,
            started_s: None,
            timeline: Vec::new(),
        }
    }

    pub(super) fn row(&self) -> &'a Row {
        self.row
    }

    pub(super) fn held(&self) -> &[Replicas] {
        &self.held
    }

    pub(super) fn has_ended(&self) -> bool {
        self.completion_s.is_some()
    }

    pub(super) fn view(&self, id: usize, now_s: f64) -> JobView<'_> {
        let epochs = self.app.epochs();
        let (restarts, age_s) = (self.starts.saturating_sub(1), now_s - self.row.time);
        JobView {
            id,
            row: self.row,
            limits: self.app.limits(),
            replicas_max: self.app.replicas_max(),
            pinned: self.app.pinned_batch().is_some(),
            held: &self.held,
            age_s,
            attained_gpu_s: self.attained_gpu_s,
            executed_s: self.executed_s,
            restarts,
            elastic: self.agent.as_ref().map(|agent| agent.elastic(restarts, age_s)),
            timed: self.agent.as_ref().map_or(&[], Agent::rows),
            restart_left_s: self.delay_s,
            epoch: self.epoch,
            epochs,
            progress: self.progress,
            work_left: (self.app.target(epochs - 1) - self.progress).max(0.0),
            app: self.app,
        }
    }

    /// Advances from `from_s` on by so many seconds, slowed down by a share of its speed.
    pub(super) fn advance(&mut self, from_s: f64, seconds: f64, slowed: f64) {
        self.clock_s = from_s;
        let Some(curve) = self.curve.filter(|_| self.replicas > 0) else { return };
        let delay = self.delay_s.min(seconds);
        self.pass(delay);
        self.delay_s -= delay;
        if self.starts > 1 {
            self.rescale_s += delay;
        }
        let mut left = seconds - delay;
        while left > 0.0 && self.completion_s.is_none() {
            let (timing, gradient, rate) = self.pace(curve, slowed);
            if let Some(agent) = &mut self.agent {
                let spread = Spread::new(nodes(&self.held), self.replicas);
                agent.learn(spread, self.batch.local, timing, gradient);
            }
            let target = self.app.target(self.epoch);
            if self.progress + rate * left < target {
                self.progress += rate * left;
                self.pass(left);
                left = 0.0;
            } else {
                // Whole seconds, half to even: the reference rounds so.
                let seconds = libm::rint((target - self.progress) / rate).clamp(0.0, left);
                self.epoch += 1;
                self.progress = target;
                self.pass(seconds);
                left -= seconds;
                if self.epoch >= self.app.epochs() {
                    self.completion_s = Some(self.clock_s);
                }
            }
            self.choose_batch();
        }
    }

    /// When it would end before `until_s`, if it goes on as it is.
    pub(super) fn end_before(&self, from_s: f64, until_s: f64, slowed: f64) -> Option<f64> {
        let curve = self.curve.filter(|_| self.replicas > 0)?;
        let (_, _, rate) = self.pace(curve, slowed);
        let left = self.app.target(self.app.epochs() - 1) - self.progress;
        if left > QUICKENS_MAX * rate * (until_s - from_s) {
            return None;
        }
        let mut ahead = self.clone();
        ahead.advance(from_s, until_s - from_s, slowed);
        ahead.completion_s
    }

    /// Times of a step, moments of the gradient and progress a second, as things are. What tells
    /// no speed stands still.
    fn pace(&self, curve: Curve, slowed: f64) -> (Timing, Gradient, f64) {
        let whole = self.batch.total(self.replicas);
        let timing = self.app.timing(curve, self.batch.local);
        let gradient = self.app.gradient(super::read::narrow(whole), self.epoch);
        let gain = gradient.gain(whole / f64::from(self.app.limits().initial));
        let rate = gain / timing.iteration_s(self.batch.accumulation) * (1.0 - slowed);
        (timing, gradient, if rate.is_finite() && rate > 0.0 { rate } else { 0.0 })
    }

    /// Seconds until it reports its first steps; none where it has, or holds nothing.
    pub(super) fn until_report_s(&self) -> Option<f64> {
        let agent = self.agent.as_ref().filter(|agent| !agent.has_learned())?;
        let runs = self.replicas > 0 && self.completion_s.is_none() && agent.rows().is_empty();
        runs.then_some(self.delay_s + FIRST_STEPS_S)
    }

    /// Holds what it holds for so long.
    fn pass(&mut self, seconds: f64) {
        self.clock_s += seconds;
        self.executed_s += seconds;
        self.attained_gpu_s += seconds * f64::from(self.replicas);
    }

    /// Ends, or takes on what a policy gives it from `now_s` on; false where such a placement was
    /// not measured.
    pub(super) fn reallocate(&mut self, held: Vec<Replicas>, now_s: f64, restart_s: f64) -> bool {
        let counts: Vec<u32> = held.iter().map(|here| here.count).collect();
        self.curve = self.app.curve(&counts);
        if self.curve.is_none() && !counts.is_empty() {
            return false;
        }
        self.replicas = counts.iter().sum();
        self.held = held;
        if self.replicas > 0 {
            self.starts += 1;
            self.delay_s = restart_s;
            self.started_s.get_or_insert(now_s);
            self.choose_batch();
        }
        self.note(now_s);
        true
    }

    /// Gives up what it holds at its end.
    pub(super) fn release(&mut self) {
        if let Some(at_s) = self.completion_s.filter(|_| self.replicas > 0) {
            self.held.clear();
            self.replicas = 0;
            self.note(at_s);
        }
    }

    fn note(&mut self, at_s: f64) {
        let nodes = nodes(&self.held);
        self.timeline.push(Span { at_s, servers: 0, workers: self.replicas, nodes });
    }

    fn choose_batch(&mut self) {
        let (limits, spread) = (self.app.limits(), Spread::new(nodes(&self.held), self.replicas));
        let batch = match (self.app.pinned_batch(), &mut self.agent) {
            (None, Some(agent)) => agent.batch(spread),
            (Some(pinned), _) => fixed(&limits, self.replicas, pinned),
            (None, None) => fixed(&limits, self.replicas, self.row.batch_size),
        };
        // So many replicas that not a sample is left for each take one sample each.
        self.batch = batch.unwrap_or(Batch { local: 1, accumulation: 0 });
    }

    pub(super) fn outcome(self) -> JobOutcome {
        JobOutcome {
            id: self.row.name.clone(),
            model: self.app.name().to_owned(),
            arrival_s: self.row.time,
            started_s: self.started_s,
            completion_s: self.completion_s,
            restarts: self.starts.saturating_sub(1),
            rescale_s: self.rescale_s,
            timeline: self.timeline,
        }
    }

    /// Share of the time with GPUs that went into restarts.
    pub(super) fn rescale_share(&self) -> Option<f64> {
        (self.executed_s > 0.0).then(|| self.rescale_s / self.executed_s)
    }
}

fn nodes(held: &[Replicas]) -> u32 {
    u32::try_from(held.len()).unwrap_or(u32::MAX)
}
