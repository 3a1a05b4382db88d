//! What a job makes of replicas, now and later, as far as it was measured itself.

use super::{Candidate, Rates, Settings};
use crate::goodput::shared::towards;
use crate::goodput::{Gradient, Limits, Spread, Throughput, batch};

/// What was computed for a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    throughput: Option<Throughput>,
    gradient: Option<Gradient>,
    done: f64,
    rates: Rates,
}

/// Rates are computed anew once a job has come so much further, as a share of its work.
const FURTHER: f64 = 0.01;

impl Known {
    pub(super) fn refresh(&mut self, job: &Candidate<'_>) {
        let (throughput, gradient) = (job.elastic.throughput, Some(job.elastic.gradient));
        let further = job.work_done - self.done > FURTHER * (job.work_done + job.work_left);
        if self.throughput != throughput || self.gradient != gradient || further {
            *self = Self { throughput, gradient, done: job.work_done, rates: Rates::new() };
        }
    }

    /// Progress a second on so many replicas, now and over what is left.
    pub(super) fn rates(
        &mut self,
        job: &Candidate<'_>,
        (replicas, is_wide): (u32, bool),
        settings: &Settings,
    ) -> (f64, f64) {
        if let Some(rates) = job.rates {
            return rates.get(&(replicas, is_wide)).copied().unwrap_or((0.0, 0.0));
        }
        let whole = job.work_done + job.work_left;
        let Some(throughput) = self.throughput else {
            let power = libm::pow(f64::from(replicas), settings.first_power);
            let rate = whole / settings.unknown_s * power;
            return (rate, rate);
        };
        *self.rates.entry((replicas, is_wide)).or_insert_with(|| {
            let limits = &job.elastic.limits;
            let throughput = with_priors(throughput, limits, settings);
            let spread = Spread::new(if is_wide { 2 } else { 1 }, replicas);
            let rate = |gradient: &Gradient| {
                let choice = batch::best(&throughput, gradient, limits, spread);
                choice.map_or(0.0, |choice| choice.goodput / f64::from(limits.initial.max(1)))
            };
            let done = job.work_done / whole;
            let trust = done / (done + settings.early);
            let later = towards(job.elastic.gradient, trust, limits);
            (rate(&job.elastic.gradient), rate(&later))
        })
    }
}

/// What an exchange is held at that was not timed, in s, and a little more.
const UNTIMED_S: f64 = 2e-8;
/// The least factor of an exchange between nodes, where the fit has none; and rounding.
const UNTIMED_FACTOR: f64 = 1.1 * (1.0 + 1e-9);

/// The throughput, with what exchanges are taken to cost that were not timed: the fit holds them
/// at nothing.
pub(in crate::goodput) fn with_priors(
    mut throughput: Throughput,
    limits: &Limits,
    settings: &Settings,
) -> Throughput {
    let is_told = throughput.alpha_n > (UNTIMED_FACTOR * throughput.alpha_r).max(UNTIMED_S);
    if throughput.alpha_r <= UNTIMED_S {
        let local = limits.initial.min(limits.local_max);
        let guess = settings.local_part * throughput.grad_s(local);
        throughput.alpha_r = if is_told { guess.min(throughput.alpha_n) } else { guess };
    }
    if !is_told {
        throughput.alpha_n = settings.nodes_factor * throughput.alpha_r;
    }
    throughput
}
