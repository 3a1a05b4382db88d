//! What a job makes of replicas, now and later.

use std::collections::BTreeMap;

use super::{Candidate, Settings};
use crate::goodput::{Gradient, Spread, Throughput, batch};

/// What was computed for a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    throughput: Option<Throughput>,
    gradient: Option<Gradient>,
    done: f64,
    rates: BTreeMap<(u32, bool), (f64, f64)>,
}

/// Rates are computed anew once a job has come so much further, as a share of its work.
const FURTHER: f64 = 0.01;

impl Known {
    pub(super) fn refresh(&mut self, job: &Candidate<'_>) {
        let (throughput, gradient) = (job.elastic.throughput, Some(job.elastic.gradient));
        let further = job.work_done - self.done > FURTHER * (job.work_done + job.work_left);
        if self.throughput != throughput || self.gradient != gradient || further {
            *self = Self { throughput, gradient, done: job.work_done, rates: BTreeMap::new() };
        }
    }

    /// Progress a second on so many replicas on so many nodes, now and over what is left.
    pub(super) fn rates(
        &mut self,
        job: &Candidate<'_>,
        (replicas, nodes): (u32, u32),
        settings: &Settings,
    ) -> (f64, f64) {
        if let Some(rates) = job.rates {
            return rates.get(&(replicas, nodes > 1)).copied().unwrap_or((0.0, 0.0));
        }
        let Some(throughput) = self.throughput else {
            let whole = job.work_done + job.work_left;
            let rate = whole / settings.unknown_s * libm::pow(f64::from(replicas), settings.first_power);
            return (rate, rate);
        };
        *self.rates.entry((replicas, nodes > 1)).or_insert_with(|| {
            let limits = &job.elastic.limits;
            let throughput = prior(throughput, limits.initial.min(limits.local_max), settings);
            let rate = |gradient: &Gradient| {
                let choice = batch::best(&throughput, gradient, limits, Spread::new(nodes, replicas));
                choice.map_or(0.0, |choice| choice.goodput / f64::from(limits.initial.max(1)))
            };
            let (now, later) = (rate(&job.elastic.gradient), rate(&later(job, settings)));
            // What is measured in the very beginning is soon out of date.
            let soon = settings.settle_s * now;
            let part = soon / (soon + job.work_done);
            (if part.is_finite() { now + (later - now) * part } else { now }, later)
        })
    }
}

/// Gradients as they are expected over what is left of a job. Their noise grows as a job
/// converges, and most at its beginning; there the largest batch that its owner allows tells more
/// of what is to come than what was measured.
fn later(job: &Candidate<'_>, settings: &Settings) -> Gradient {
    let Gradient { sqr, var } = job.elastic.gradient;
    let initial = f64::from(job.elastic.limits.initial.max(1));
    let noise = initial * var / sqr;
    let told = f64::from(job.elastic.limits.batch_max);
    let done = job.work_done / (job.work_done + job.work_left);
    let trust = done / (done + settings.early);
    if noise.is_finite() && trust.is_finite() && noise > 0.0 && noise < told {
        let noise = libm::exp(libm::log(noise) * trust + libm::log(told) * (1.0 - trust));
        return Gradient { sqr: 1.0, var: noise / initial };
    }
    Gradient { sqr, var }
}

/// The throughput with what exchanges cost that were not timed.
pub(in crate::goodput) fn prior(
    mut throughput: Throughput,
    local: u32,
    settings: &Settings,
) -> Throughput {
    if throughput.alpha_r <= UNTIMED_S {
        throughput.alpha_r = settings.local_part * throughput.grad_s(local);
        if throughput.alpha_n > UNTIMED_S {
            throughput.alpha_r = throughput.alpha_r.min(throughput.alpha_n);
        }
    }
    if throughput.alpha_n <= 1.1 * throughput.alpha_r * (1.0 + 1e-9) || throughput.alpha_n <= UNTIMED_S {
        throughput.alpha_n = settings.nodes_factor * throughput.alpha_r;
    }
    throughput
}

/// What an exchange is taken to last that was not timed, and a little more.
const UNTIMED_S: f64 = 2e-8;
