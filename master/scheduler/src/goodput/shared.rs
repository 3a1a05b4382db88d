//! What was measured of jobs of one model: the times of their steps, and how the noise of their
//! gradients grew with their work.
//!
//! A job learns from its own measurements; where its owner names its model, from those of all jobs
//! of that model, so that the next one is known from its start.

use std::collections::{BTreeMap, BTreeSet};

use super::horizon::{Settings, outlook::prior};
use super::fit::{Observation, fit};
use super::{Gradient, Limits, Spread, Throughput, batch};

/// Parts of a job's work by which gradients are kept apart: finer at the beginning, where they
/// change most. Each is from one of these to the next.
const PARTS: [f64; 20] = [
    0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8,
    0.85, 0.9, 0.95,
];

/// What is known of a model.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    rows: Vec<Observation>,
    timed: BTreeSet<(Spread, u32)>,
    /// Rows that the fit has seen.
    fitted: usize,
    throughput: Option<Throughput>,
    gradients: [Option<Gradient>; PARTS.len()],
    /// Progress a second by replicas, whether they leave one node, and part of the work.
    rates: BTreeMap<(u32, bool, usize), f64>,
}

fn part(done: f64) -> usize {
    PARTS.iter().rposition(|from| *from <= done).unwrap_or(0)
}

impl Shared {
    /// Takes in times; those of a shape and batch that is known already tell nothing new.
    pub fn time(&mut self, rows: &[Observation]) {
        for row in rows {
            if self.timed.insert((row.spread, row.local)) {
                self.rows.push(*row);
            }
        }
    }

    /// Takes in a gradient that was measured where this part of a job's work was done.
    pub fn see(&mut self, done: f64, gradient: Gradient) {
        let at = part(done);
        if self.gradients[at].is_none() && gradient.sqr > 0.0 && gradient.var > 0.0 {
            self.gradients[at] = Some(gradient);
            self.rates.retain(|(_, _, known), _| *known < at);
        }
    }

    /// The model of all times so far.
    pub fn throughput(&mut self) -> Option<Throughput> {
        if self.fitted < self.rows.len() {
            self.fitted = self.rows.len();
            self.throughput = fit(&self.rows, self.throughput.as_ref()).or(self.throughput);
            self.rates.clear();
        }
        self.throughput
    }

    /// Progress a second on this spread, now and on average over what is left, of a job with this
    /// part of its work done. `gradient` is what the job itself measured; before it did, what others
    /// had there is taken. None where nothing is known of its model.
    pub fn rates(
        &mut self,
        limits: &Limits,
        spread: Spread,
        (done, gradient): (f64, Option<Gradient>),
        settings: &Settings,
    ) -> Option<(f64, f64)> {
        let local = limits.initial.min(limits.local_max);
        let throughput = prior(self.throughput()?, local, settings);
        let initial = f64::from(limits.initial.max(1));
        let rate = |gradient: &Gradient| {
            let choice = batch::best(&throughput, gradient, limits, spread);
            choice.map_or(0.0, |choice| choice.goodput / initial)
        };
        let here = part(done);
        let (mut seconds, mut left) = (0.0, 0.0);
        for at in here..PARTS.len() {
            let key = (spread.replicas, spread.nodes > 1, at);
            let known = self.rates.get(&key).copied();
            let there = known.unwrap_or_else(|| rate(&expected(&self.gradients, at, limits)));
            self.rates.insert(key, there);
            let to = PARTS.get(at + 1).copied().unwrap_or(1.0);
            let width = to - PARTS[at].max(done.min(1.0));
            (seconds, left) = (seconds + width / there, left + width);
        }
        let later = if left > 0.0 { left / seconds } else { 0.0 };
        let now = match gradient {
            Some(gradient) => rate(&gradient),
            None => self.rates.get(&(spread.replicas, spread.nodes > 1, here)).copied()?,
        };
        Some((now, if later > 0.0 { later } else { now }))
    }
}

/// The share of a job's work after which the largest batch that its owner allows tells as much of
/// the noise to come as what was measured last.
const EARLY: f64 = 0.1;

/// The gradient in a part of the work: as it was measured there, or from the part before that was.
/// The noise grows as a job converges, and most at its beginning, of which the largest batch that
/// the owner allows tells what is to come.
fn expected(gradients: &[Option<Gradient>], at: usize, limits: &Limits) -> Gradient {
    let measured = gradients[..=at].iter().enumerate().rev();
    let last = measured.filter_map(|(from, gradient)| Some((from, (*gradient)?))).next();
    let (from, gradient) = last.unwrap_or((0, Gradient { sqr: 1.0, var: 1.0 }));
    if last.is_some() && from == at {
        return gradient;
    }
    let initial = f64::from(limits.initial.max(1));
    let (noise, told) = (initial * gradient.var / gradient.sqr, f64::from(limits.batch_max));
    let trust = PARTS[from] / (PARTS[from] + EARLY);
    // The further away, the less the last one tells.
    let near = 1.0 - (1.0 - trust) * (PARTS[at] - PARTS[from]) / (PARTS[at] - PARTS[from] + EARLY / 2.0);
    if noise.is_finite() && noise > 0.0 && noise < told {
        let noise = libm::exp(libm::log(noise) * near + libm::log(told) * (1.0 - near));
        return Gradient { sqr: 1.0, var: noise / initial };
    }
    gradient
}
