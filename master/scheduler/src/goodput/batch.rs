//! Which batch a job takes on so many replicas.

use super::efficiency::goodput;
use super::{Elastic, Gradient, Limits, Spread, Throughput};

/// What each replica does in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// m: samples of a replica in one pass.
    pub local: u32,
    /// s: passes before the one after which the optimiser steps.
    pub accumulation: u32,
}

impl Batch {
    /// M = K·m·(s+1), in samples.
    #[must_use]
    pub fn total(self, replicas: u32) -> f64 {
        f64::from(replicas) * f64::from(self.local) * (f64::from(self.accumulation) + 1.0)
    }
}

/// A batch with the goodput that it is expected to give, in samples per s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub batch: Batch,
    pub goodput: f64,
}

/// Sizes that are tried, evenly spaced by their logarithms from the least to the most.
const CANDIDATES: u32 = 50;
/// Sizes are computed through logarithms: what is so little above a whole number is that number.
const ROUNDING: f64 = 1e-8;

/// The batches that are tried on so many replicas, in ascending order, none twice in a row. None
/// where even the least local batch is more than the largest batch.
pub fn candidates(limits: Limits, replicas: u32) -> impl Iterator<Item = Batch> {
    let least = f64::from(first(&limits, replicas));
    let most = f64::from(limits.batch_max);
    let sound = replicas > 0 && least > 0.0 && least <= most && limits.local_max > 0;
    let (from, to) = (libm::log10(least), libm::log10(most));
    let step = (to - from) / f64::from(CANDIDATES - 1);
    let total = move |at: u32| match at {
        0 => least,
        _ if at == CANDIDATES - 1 => most,
        _ => libm::pow(10.0, from + f64::from(at) * step),
    };
    let mut last = None;
    (0..if sound { CANDIDATES } else { 0 }).filter_map(move |at| {
        let batch = rounded(&limits, replicas, total(at) / f64::from(replicas))?;
        let is_new = last.replace(batch) != Some(batch);
        let fits = (limits.local_min..=limits.local_max).contains(&batch.local);
        (is_new && fits && batch.local > 0).then_some(batch)
    })
}

/// The passes that `local` samples of each replica take.
fn rounded(limits: &Limits, replicas: u32, local: f64) -> Option<Batch> {
    let up = |value: f64| (value - ROUNDING).ceil();
    if !limits.accumulation {
        return Some(Batch { local: whole(up(local))?, accumulation: 0 });
    }
    let mut passes = up(local / f64::from(limits.local_max)).max(1.0);
    // The noise of gradients cannot be told well from single samples of it.
    if replicas == 1 && local > f64::from(limits.initial) {
        passes = passes.max(2.0);
    }
    Some(Batch { local: whole(up(local / passes))?, accumulation: whole(passes - 1.0)? })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "held within the range just before"
)]
fn whole(value: f64) -> Option<u32> {
    (0.0..=f64::from(u32::MAX)).contains(&value).then_some(value as u32)
}

/// The batch of the largest goodput on these replicas (Pollux, section 4.1), of equal ones the
/// smallest; none where there is none within the limits, or the numbers tell nothing.
#[must_use]
pub fn best(
    throughput: &Throughput,
    gradient: &Gradient,
    limits: &Limits,
    spread: Spread,
) -> Option<Choice> {
    best_of(candidates(*limits, spread.replicas), throughput, gradient, (limits, spread))
}

/// [`best`] of these batches.
pub(super) fn best_of(
    batches: impl Iterator<Item = Batch>,
    throughput: &Throughput,
    gradient: &Gradient,
    (limits, spread): (&Limits, Spread),
) -> Option<Choice> {
    let mut best: Option<Choice> = None;
    for batch in batches {
        let goodput = goodput(throughput, gradient, limits, (spread, batch));
        if goodput > best.map_or(0.0, |best| best.goodput) {
            best = Some(Choice { batch, goodput });
        }
    }
    best
}

impl Elastic {
    /// [`best`] for the job; none before its throughput was measured.
    #[must_use]
    pub fn best_batch(&self, spread: Spread) -> Option<Choice> {
        best(self.throughput.as_ref()?, &self.gradient, &self.limits, spread)
    }
}

/// The whole batch that a job begins with, before anything is known of its speed: the initial one,
/// or as many samples as its replicas take at least.
#[must_use]
pub fn first(limits: &Limits, replicas: u32) -> u32 {
    limits.initial.max(limits.local_min.saturating_mul(replicas))
}

/// How replicas share a whole batch that stays as it is; none on no replicas, or where they are so
/// many that not a sample is left for each.
#[must_use]
pub fn fixed(limits: &Limits, replicas: u32, total: u32) -> Option<Batch> {
    if replicas == 0 || limits.local_max == 0 {
        return None;
    }
    let local = total.div_ceil(replicas);
    let mut passes = local.div_ceil(limits.local_max).max(1);
    if replicas == 1 && total > limits.initial {
        passes = passes.max(2);
    }
    if !limits.accumulation {
        passes = 1;
    }
    let most = u64::from(limits.batch_max) / (u64::from(replicas) * u64::from(passes));
    let local = local.div_ceil(passes).min(limits.local_max);
    let local = u32::try_from(u64::from(local).min(most)).expect("no more than a u32");
    (local > 0).then_some(Batch { local, accumulation: passes - 1 })
}
