//! What was measured of all jobs of one model: the times of their steps, and how the noise of
//! their gradients grew with their work. Where owners name their jobs' models, the next job of one
//! is known from its start.

use std::collections::{BTreeMap, BTreeSet};

use super::fit::{Observation, fit};
use super::horizon::{Rates, Settings, with_priors};
use super::{Gradient, Limits, Spread, Throughput, batch};

/// Parts of a job's work by which gradients are kept apart, by where they begin: narrower at the
/// beginning, where gradients change most.
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
    /// Progress a second in each part, by replicas and whether they leave one node.
    rates: BTreeMap<(u32, bool), [f64; PARTS.len()]>,
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
        if self.fitted < self.rows.len() {
            self.fitted = self.rows.len();
            self.throughput = fit(&self.rows, self.throughput.as_ref()).or(self.throughput);
            self.rates.clear();
        }
    }

    /// Takes in a gradient that was measured where this share of a job's work was done.
    pub fn see(&mut self, done: f64, gradient: Gradient) {
        let at = part(done);
        if self.gradients[at].is_none() && gradient.sqr > 0.0 && gradient.var > 0.0 {
            self.gradients[at] = Some(gradient);
            self.rates.clear();
        }
    }

    /// Rates of a job of this model at these sizes, with this share of its work done. `gradient` is
    /// what the job itself measured; before it did, what others had there is taken. None while
    /// nothing is known.
    pub fn rates(
        &mut self,
        sizes: impl Iterator<Item = (u32, bool)>,
        limits: &Limits,
        (done, gradient): (f64, Option<Gradient>),
        settings: &Settings,
    ) -> Option<Rates> {
        let throughput = with_priors(self.throughput?, limits, settings);
        let here = part(done);
        let rates = sizes.map(|(replicas, is_wide)| {
            let spread = Spread::new(if is_wide { 2 } else { 1 }, replicas);
            let rate = |gradient: &Gradient| {
                let choice = batch::best(&throughput, gradient, limits, spread);
                choice.map_or(0.0, |choice| choice.goodput / f64::from(limits.initial.max(1)))
            };
            let gradients = &self.gradients;
            let parts = self.rates.entry((replicas, is_wide)).or_insert_with(|| {
                std::array::from_fn(|at| rate(&expected(gradients, at, limits, settings)))
            });
            let (mut seconds, mut left) = (0.0, 0.0);
            for (at, rate) in parts.iter().enumerate().skip(here) {
                let to = PARTS.get(at + 1).copied().unwrap_or(1.0);
                let width = (to - PARTS[at].max(done)).max(0.0);
                (seconds, left) = (seconds + width / rate, left + width);
            }
            let now = gradient.map_or(parts[here], |gradient| rate(&gradient));
            let later = if left > 0.0 { left / seconds } else { now };
            ((replicas, is_wide), (now, later))
        });
        Some(rates.collect())
    }
}

/// The gradient in a part of the work: as it was measured there, or else as it is expected from
/// the last part before that was measured. The further that is away, the less it tells.
fn expected(
    gradients: &[Option<Gradient>],
    at: usize,
    limits: &Limits,
    settings: &Settings,
) -> Gradient {
    let measured = gradients[..=at].iter().enumerate().rev();
    let last = measured.filter_map(|(from, gradient)| Some((from, (*gradient)?))).next();
    let (from, gradient) = last.unwrap_or((0, Gradient { sqr: 1.0, var: 1.0 }));
    if from == at && last.is_some() {
        return gradient;
    }
    let (done, away) = (PARTS[from], PARTS[at] - PARTS[from]);
    let doubt = settings.early / (done + settings.early);
    let far = away / (away + settings.early / 2.0);
    towards(gradient, 1.0 - doubt * far, limits)
}

/// A gradient whose noise is between what was measured (`trust` 1) and the largest batch that the
/// job's owner allows (0): noise grows as a job converges, most at its beginning, and of what is to
/// come that batch tells more than the noise of the first steps.
pub(super) fn towards(measured: Gradient, trust: f64, limits: &Limits) -> Gradient {
    let initial = f64::from(limits.initial.max(1));
    let (noise, told) = (initial * measured.var / measured.sqr, f64::from(limits.batch_max));
    if noise.is_finite() && noise > 0.0 && noise < told && trust.is_finite() {
        let noise = libm::exp(libm::log(noise) * trust + libm::log(told) * (1.0 - trust));
        return Gradient { sqr: 1.0, var: noise / initial };
    }
    measured
}
