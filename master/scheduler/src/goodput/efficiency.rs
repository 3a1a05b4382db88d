//! How much a sample of a larger batch still teaches (Pollux, section 3.1).

use super::{Batch, Elastic, Gradient, Limits, Spread, Throughput};

impl Gradient {
    /// The gain r: steps at the initial batch that one step at `scale` times that batch is worth;
    /// 1 where the moments tell nothing.
    #[must_use]
    pub fn gain(&self, scale: f64) -> f64 {
        let under = self.var / scale + self.sqr;
        if under > 0.0 { (self.var + self.sqr) / under } else { 1.0 }
    }

    /// EFFICIENCY of a batch, `r / scale`: in (0, 1] from the initial batch on.
    #[must_use]
    pub fn efficiency(&self, scale: f64) -> f64 {
        self.gain(scale) / scale
    }
}

/// GOODPUT in samples of the initial batch's worth per s; 0 where the numbers tell none.
#[must_use]
pub fn goodput(
    throughput: &Throughput,
    gradient: &Gradient,
    limits: &Limits,
    (spread, batch): (Spread, Batch),
) -> f64 {
    let scale = batch.total(spread.replicas) / f64::from(limits.initial.max(1));
    let goodput = throughput.samples_per_s(spread, batch) * gradient.efficiency(scale);
    if goodput.is_finite() && goodput > 0.0 { goodput } else { 0.0 }
}

impl Elastic {
    /// [`goodput`] of the job; none before its throughput was measured.
    #[must_use]
    pub fn goodput(&self, spread: Spread, batch: Batch) -> Option<f64> {
        let throughput = self.throughput.as_ref()?;
        Some(goodput(throughput, &self.gradient, &self.limits, (spread, batch)))
    }
}
