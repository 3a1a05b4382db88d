//! Points by the handful: what a bounded fit keeps of a run of any length.
//!
//! A [`Bin`] holds the count, the means and the central moments of neighbouring points. The mean
//! of a smooth curve over a bin follows from the moments of its steps, so that a fit to bins is a
//! fit to all their points: without noise it is exact, and with noise nothing is thrown away.

use super::LossPoint;

/// Neighbouring points: sums over them, around their means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bin {
    /// Points.
    pub(super) count: f64,
    /// Mean step.
    pub(super) step: f64,
    /// Σ (k − step)², Σ (k − step)³ and Σ (k − step)⁴.
    pub(super) step_sums: [f64; 3],
    /// Mean loss.
    pub(super) loss: f64,
    /// Σ (l − loss)².
    pub(super) loss_squares: f64,
    /// Σ (k − step)·(l − loss), and the same with the square of (k − step).
    pub(super) cross: [f64; 2],
    /// Largest loss of a single point.
    pub(super) highest: f64,
    /// First and last step.
    pub(super) first: f64,
    pub(super) last: f64,
}

impl From<LossPoint> for Bin {
    fn from(point: LossPoint) -> Self {
        Self {
            count: 1.0,
            step: point.step,
            loss: point.loss,
            highest: point.loss,
            first: point.step,
            last: point.step,
            ..Self::default()
        }
    }
}

impl Bin {
    /// Both together; the sums are those of Pébay's one-pass formulas.
    pub(super) fn merged(&self, other: &Self) -> Self {
        if self.count <= 0.0 {
            return *other;
        }
        if other.count <= 0.0 {
            return *self;
        }
        let (a, b) = (self.count, other.count);
        let n = a + b;
        let apart = other.step - self.step;
        let apart_loss = other.loss - self.loss;
        let (square, product) = (apart * apart, a * b / n);
        let [a2, a3, a4] = self.step_sums;
        let [b2, b3, b4] = other.step_sums;
        let second = a2 + b2 + square * product;
        let third =
            a3 + b3 + square * apart * product * (a - b) / n + 3.0 * apart * (a * b2 - b * a2) / n;
        let fourth = a4
            + b4
            + square * square * product * (a * a - a * b + b * b) / (n * n)
            + 6.0 * square * (a * a * b2 + b * b * a2) / (n * n)
            + 4.0 * apart * (a * b3 - b * a3) / n;
        Self {
            count: n,
            step: self.step + apart * b / n,
            step_sums: [second, third, fourth],
            loss: self.loss + apart_loss * b / n,
            loss_squares: self.loss_squares
                + other.loss_squares
                + apart_loss * apart_loss * product,
            cross: [
                self.cross[0] + other.cross[0] + apart * apart_loss * product,
                self.bent(apart * b / n, apart_loss * b / n)
                    + other.bent(-apart * a / n, -apart_loss * a / n),
            ],
            highest: self.highest.max(other.highest),
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

impl Bin {
    /// Σ (k − K)²·(l − L) around means that lie `step` and `loss` above the bin's own.
    fn bent(&self, step: f64, loss: f64) -> f64 {
        let squares = self.step_sums[0] + self.count * step * step;
        self.cross[1] - 2.0 * step * self.cross[0] - loss * squares
    }
}

/// Merges neighbours until at most `target` bins are left. `origin` is where the curve starts:
/// a bin may be as wide as a share of its distance from there, and the share is the least that
/// does it. The curve bends ever less, so the early points stay by themselves.
pub(super) fn thin(bins: &mut Vec<Bin>, target: usize, origin: f64) {
    let mut share = 1.0 / 256.0;
    // After 20 times it is a third, too wide for moments to follow the curve: then pairs.
    for _ in 0..20 {
        if bins.len() <= target {
            return;
        }
        let narrow = |first: f64, last: f64| last - first <= share * (last - origin);
        if groups(bins, narrow) <= target || share > 0.2 {
            merge_within(bins, narrow);
        }
        share *= 1.25;
    }
    while bins.len() > target.max(1) {
        let mut room = bins.len() - target.max(1);
        let mut merged: Vec<Bin> = Vec::with_capacity(bins.len());
        let mut rest = bins.iter();
        while let Some(bin) = rest.next() {
            let pair = if room > 0 { rest.next() } else { None };
            room = room.saturating_sub(usize::from(pair.is_some()));
            merged.push(pair.map_or(*bin, |next| bin.merged(next)));
        }
        *bins = merged;
    }
}

/// How many bins [`merge_within`] leaves.
fn groups(bins: &[Bin], narrow: impl Fn(f64, f64) -> bool) -> usize {
    let mut count = 0;
    let mut first = f64::NEG_INFINITY;
    for bin in bins {
        if !narrow(first, bin.last) {
            first = bin.first;
            count += 1;
        }
    }
    count
}

/// Merges each bin into the one before it where both together are narrow.
fn merge_within(bins: &mut Vec<Bin>, narrow: impl Fn(f64, f64) -> bool) {
    let mut merged: Vec<Bin> = Vec::with_capacity(bins.len());
    for bin in bins.iter() {
        match merged.last_mut() {
            Some(last) if narrow(last.first, bin.last) => *last = last.merged(bin),
            _ => merged.push(*bin),
        }
    }
    *bins = merged;
}
