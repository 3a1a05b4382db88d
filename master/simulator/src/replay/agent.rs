//! What runs beside a job: it times the steps, fits the job's throughput to them, and chooses the
//! batch (Pollux, sections 4.1 and 5.2).

use std::collections::BTreeSet;

use scheduler::goodput::batch::{Batch, best, first, fixed};
use scheduler::goodput::fit::{Observation, fit};
use scheduler::goodput::{Elastic, Gradient, Limits, Spread, Throughput};

use super::profile::Timing;

/// Most replicas that any job is given.
const REPLICAS_MAX: u32 = 64;

/// What was learned of a job so far.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    limits: Limits,
    /// What the measurements allow.
    replicas_max: u32,
    rows: Vec<Observation>,
    timed: BTreeSet<(Spread, u32)>,
    throughput: Option<Throughput>,
    gradient: Gradient,
    /// Most replicas that were timed.
    replicas_timed: u32,
    chosen: Option<(Spread, Gradient, Batch)>,
}

impl Agent {
    pub(super) fn new(limits: Limits, replicas_max: u32) -> Self {
        Self {
            limits,
            replicas_max: replicas_max.min(REPLICAS_MAX),
            rows: Vec::new(),
            timed: BTreeSet::new(),
            throughput: None,
            // Before anything is known no batch is taken for worth more than the initial one.
            gradient: Gradient { sqr: 1.0, var: 1.0 },
            replicas_timed: 0,
            chosen: None,
        }
    }

    pub(super) fn rows(&self) -> &[Observation] {
        &self.rows
    }

    /// True once steps were timed.
    pub(super) fn has_learned(&self) -> bool {
        self.throughput.is_some()
    }

    /// Sees steps with a local batch. A shape that was not timed before is one more row of the
    /// fit: times are exact here, so that a further look at one tells nothing.
    pub(super) fn learn(&mut self, spread: Spread, local: u32, timing: Timing, gradient: Gradient) {
        self.gradient = gradient;
        if !self.timed.insert((spread, local)) {
            return;
        }
        self.replicas_timed = self.replicas_timed.max(spread.replicas);
        let (grad_s, optim_s) = (timing.pass_s(), timing.step_s);
        self.rows.push(Observation { spread, local, grad_s, optim_s });
        self.throughput = fit(&self.rows, self.throughput.as_ref()).or(self.throughput);
        self.chosen = None;
    }

    /// The batch that promises the largest goodput, or the first one of all.
    pub(super) fn batch(&mut self, spread: Spread) -> Option<Batch> {
        if let Some((known, gradient, batch)) = self.chosen
            && (known, gradient) == (spread, self.gradient)
        {
            return Some(batch);
        }
        let known = self.throughput.as_ref();
        let choice = known.and_then(|known| best(known, &self.gradient, &self.limits, spread));
        if let Some(choice) = choice {
            self.chosen = Some((spread, self.gradient, choice.batch));
            return Some(choice.batch);
        }
        fixed(&self.limits, spread.replicas, first(&self.limits, spread.replicas))
    }

    /// What a policy by goodput is told. A job may have twice the replicas that were timed.
    pub(super) fn elastic(&self, restarts: u32, age_s: f64) -> Elastic {
        let fill = self.limits.batch_max / self.limits.local_min.max(1);
        Elastic {
            throughput: self.throughput,
            gradient: self.gradient,
            limits: self.limits,
            replicas_max: (2 * self.replicas_timed).max(1).min(self.replicas_max).min(fill),
            restarts,
            age_s,
        }
    }
}
