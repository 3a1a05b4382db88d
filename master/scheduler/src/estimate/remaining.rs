//! How many epochs are left until the loss drops too little (sections 2.1 and 3.1).

use super::loss::{Coefficients, LossFit, LossPoint, Unknown, usable_step};
use super::recent;

/// Epochs left, with their central 80 % range. All are at least 0 and finite, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RemainingEpochs {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// True where the drop of the measured epoch loss, as a share of the largest so far, stayed below
/// `threshold` in the last `patience` epochs. A rise is a drop below zero. An epoch without a
/// finite loss breaks the row.
#[must_use]
pub fn converged(epoch_losses: &[f64], threshold: f64, patience: u32) -> bool {
    let patience = usize::try_from(patience.max(1)).unwrap_or(usize::MAX);
    threshold.is_finite() && small_drops(epoch_losses, threshold) >= patience
}

/// How many drops in a row up to the last epoch were below the threshold.
fn small_drops(epoch_losses: &[f64], threshold: f64) -> usize {
    let largest = epoch_losses.iter().copied().filter(|loss| loss.is_finite()).fold(0.0, f64::max);
    if largest <= 0.0 {
        return 0;
    }
    epoch_losses
        .windows(2)
        .rev()
        .take_while(|pair| {
            let drop = (pair[0] - pair[1]) / largest;
            drop.is_finite() && drop < threshold
        })
        .count()
}

/// Epochs left by the fitted curve: until its drop from one epoch's end to the next, divided by
/// the fit's scale, has stayed below `threshold` for `patience` epochs, those already measured
/// counted in; never beyond `epochs_max`.
///
/// `epoch_losses` holds (epoch, step at its end, loss) of the finished epochs in order, counted
/// from 0 or 1 as the first entry says; it may be empty. The range is the central 80 % of what
/// the fit's other possible curves say.
///
/// # Errors
/// [`Unknown`] where `steps_per_epoch` or `threshold` is not positive and finite, or where the latest
/// losses fall by more than the threshold although the curve does not.
pub fn remaining_epochs(
    fit: &LossFit,
    epoch_losses: &[(u32, f64, f64)],
    steps_per_epoch: f64,
    threshold: f64,
    patience: u32,
    epochs_max: u32,
) -> Result<RemainingEpochs, Unknown> {
    if !(steps_per_epoch.is_finite() && steps_per_epoch > 0.0) {
        return Err(Unknown::new("the number of steps of an epoch is not known"));
    }
    if !(threshold.is_finite() && threshold > 0.0) {
        return Err(Unknown::new("the threshold is not a positive number"));
    }
    let first = epoch_losses.first().map_or(1, |(epoch, _, _)| *epoch);
    let last = epoch_losses.last();
    let done = last.map_or(0, |(epoch, _, _)| epoch.saturating_add(u32::from(first == 0)));
    let losses: Vec<f64> = epoch_losses.iter().map(|(_, _, loss)| *loss).collect();
    let ahead = Ahead {
        start: last.map(|(_, step, _)| *step).filter(|step| step.is_finite()).unwrap_or(0.0),
        steps_per_epoch,
        threshold: threshold * fit.scale,
        counted: u32::try_from(small_drops(&losses, threshold)).unwrap_or(u32::MAX),
        patience: patience.max(1),
        epochs_left_max: epochs_max.saturating_sub(done),
    };
    let value = ahead.epochs_left(fit, &fit.coefficients());
    if ahead.counted < ahead.patience && ahead.is_small(fit, &fit.coefficients(), 1) {
        refuse_contradicted(fit, epoch_losses, &ahead)?;
    }
    let others = fit
        .variants()
        .iter()
        .map(|variant| (ahead.epochs_left(fit, &variant.coefficients), variant.weight));
    let (mut low, mut high) = central_range(others, value);
    let points = |(_, step, loss): &(u32, f64, f64)| LossPoint { step: *step, loss: *loss };
    let points: Vec<LossPoint> = epoch_losses.iter().map(points).collect();
    if let Some(ratio) = recent::ratio_of_falls(fit, &points) {
        let ahead = Ahead { threshold: ahead.threshold / ratio, ..ahead };
        let other = ahead.epochs_left(fit, &fit.coefficients());
        (low, high) = (low.min(other), high.max(other));
    }
    Ok(RemainingEpochs { value, low, high })
}

/// The epochs up to now whose fitted drops are small already must not have fallen by more.
fn refuse_contradicted(
    fit: &LossFit,
    epoch_losses: &[(u32, f64, f64)],
    ahead: &Ahead,
) -> Result<(), Unknown> {
    let small = |step: f64| {
        let begin = step - ahead.steps_per_epoch;
        begin >= fit.since_step && fit.loss_at(begin) - fit.loss_at(step) < ahead.threshold
    };
    let late: Vec<(f64, f64)> = epoch_losses
        .iter()
        .rev()
        .take_while(|(_, step, _)| small(*step))
        .map(|(_, step, loss)| (*step, *loss))
        .collect();
    recent::refuse_still_falling(fit, &late, ahead.threshold / ahead.steps_per_epoch)
}

/// Shares of the variants below the range and below its end: the central 80 %.
const RANGE: [f64; 2] = [0.1, 0.9];

/// The central 80 % of weighted numbers; it holds `value` and is that where there are none.
fn central_range(others: impl Iterator<Item = (f64, f64)>, value: f64) -> (f64, f64) {
    let mut others: Vec<(f64, f64)> =
        others.filter(|(other, weight)| !other.is_nan() && *weight > 0.0).collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = others.iter().map(|(_, weight)| weight).sum();
    let [low, high] = RANGE.map(|share| {
        let mut below = 0.0;
        others
            .iter()
            .find(|(_, weight)| {
                below += weight;
                below >= share * total
            })
            .map_or(value, |(other, _)| *other)
    });
    (low.min(value), high.max(value))
}

/// The epochs that lie ahead of a job.
struct Ahead {
    /// Step at the end of the last epoch.
    start: f64,
    steps_per_epoch: f64,
    /// In loss.
    threshold: f64,
    /// Measured drops below the threshold up to now.
    counted: u32,
    patience: u32,
    epochs_left_max: u32,
}

impl Ahead {
    /// True where the curve drops less than the threshold in the epoch `ahead` (1 is the next).
    fn is_small(&self, fit: &LossFit, coefficients: &Coefficients, ahead: u32) -> bool {
        let end = self.start + self.steps_per_epoch * f64::from(ahead);
        let begin = end - self.steps_per_epoch;
        let drop = fit.loss_by(coefficients, begin) - fit.loss_by(coefficients, end);
        // A curve that is infinite at step 0 has not arrived there.
        drop < self.threshold
    }

    /// The drop only shrinks along the curve, so the first small one is found by halving.
    fn epochs_left(&self, fit: &LossFit, coefficients: &Coefficients) -> f64 {
        if self.counted >= self.patience {
            return 0.0;
        }
        let left = if self.is_small(fit, coefficients, 1) {
            self.patience - self.counted
        } else {
            let (mut large, mut small) = (1, self.epochs_left_max.max(1));
            if !self.is_small(fit, coefficients, small) {
                return f64::from(self.epochs_left_max);
            }
            while small - large > 1 {
                let middle = u32::midpoint(large, small);
                if self.is_small(fit, coefficients, middle) {
                    small = middle;
                } else {
                    large = middle;
                }
            }
            small.saturating_add(self.patience - 1)
        };
        f64::from(left.min(self.epochs_left_max))
    }
}

/// When the loss will have converged, by the fitted curve alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// End of the last of the `patience` epochs.
    pub converged_at_step: f64,
    /// From the last point to there; 0 where that is past.
    pub remaining_steps: f64,
    /// Central 80 % of `remaining_steps`.
    pub low: f64,
    pub high: f64,
}

/// Steps beyond which no run goes: an end past them is none.
const STEP_MAX: f64 = 1e18;

/// The step at which the fitted drop from one epoch's end to the next, divided by the fit's
/// scale, has stayed below `threshold` for `patience` epochs, all after the last step of the
/// learning rate. Measured drops are not looked at: noise makes single ones small.
///
/// `points` are those of the fit. With `steps_per_epoch` the epochs end at its multiples; without
/// it each point is an epoch, and those to come are as long as these were on average.
///
/// # Errors
/// [`Unknown`] where the threshold or the length of an epoch is not positive and finite, or where
/// no end is in sight within 10^18 steps, or where the latest losses fall by more than the threshold
/// although the curve does not.
pub fn forecast(
    fit: &LossFit,
    points: &[LossPoint],
    steps_per_epoch: Option<f64>,
    threshold: f64,
    patience: u32,
) -> Result<Forecast, Unknown> {
    if !(threshold.is_finite() && threshold > 0.0) {
        return Err(Unknown::new("the threshold is not a positive number"));
    }
    let mut steps: Vec<f64> = points.iter().filter_map(|point| usable_step(point.step)).collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let (Some(first), Some(last)) = (steps.first().copied(), steps.last().copied()) else {
        return Err(Unknown::new("there are no losses"));
    };
    let rows = f64::from(u32::try_from(steps.len() - 1).unwrap_or(u32::MAX));
    let (start, length) = match steps_per_epoch {
        Some(length) => (0.0, length),
        None => (first, (last - first) / rows),
    };
    if !(length.is_finite() && length > 0.0) {
        return Err(Unknown::new("the number of steps of an epoch is not known"));
    }
    let epochs = Epochs {
        start,
        length,
        // The first epoch that lies whole after the last restart.
        first: ((fit.since_step - start) / length - 1e-9).ceil().max(0.0) + 1.0,
        drop: threshold * fit.scale,
        patience: f64::from(patience.max(1)),
    };
    let end = epochs.end(fit, &fit.coefficients());
    if end.is_nan() || end > STEP_MAX {
        return Err(Unknown::new("the loss will not fall that slowly within 10^18 steps"));
    }
    // Within an epoch the curve bends.
    let from = end - epochs.patience * length * (1.0 - 1e-9);
    if from + length <= last {
        let mut late: Vec<(f64, f64)> = points
            .iter()
            .filter(|point| point.step >= from)
            .map(|point| (point.step, point.loss))
            .collect();
        late.sort_by(|a, b| a.0.total_cmp(&b.0));
        recent::refuse_still_falling(fit, &late, epochs.drop / length)?;
    }
    let left = |end: f64| (end.min(STEP_MAX) - last).max(0.0);
    let others = fit.variants().iter().flat_map(|variant| {
        let coefficients = &variant.coefficients;
        // The largest loss was measured with noise too: it may be the curve's own.
        let own = threshold * fit.scale_by(coefficients, first);
        [epochs.drop, own].map(|drop| {
            let epochs = Epochs { drop, ..epochs };
            (left(epochs.end(fit, coefficients)), variant.weight)
        })
    });
    let remaining_steps = left(end);
    let (mut low, mut high) = central_range(others, remaining_steps);
    if let Some(ratio) = recent::ratio_of_falls(fit, points) {
        let other =
            left(Epochs { drop: epochs.drop / ratio, ..epochs }.end(fit, &fit.coefficients()));
        (low, high) = (low.min(other), high.max(other));
    }
    Ok(Forecast { converged_at_step: end, remaining_steps, low, high })
}

/// Epochs by number: `n` ends at `start + n·length`.
#[derive(Clone, Copy)]
struct Epochs {
    start: f64,
    length: f64,
    /// First that counts.
    first: f64,
    /// In loss.
    drop: f64,
    patience: f64,
}

/// Epochs of a user's curve that are looked at one by one; its drops need not shrink.
const SINGLE: u32 = 4096;

impl Epochs {
    fn step(&self, epoch: f64) -> f64 {
        self.start + epoch * self.length
    }

    fn is_small(&self, fit: &LossFit, coefficients: &Coefficients, epoch: f64) -> bool {
        let at = |epoch: f64| fit.loss_by(coefficients, self.step(epoch));
        at(epoch - 1.0) - at(epoch) < self.drop
    }

    /// End of the last of the first `patience` epochs in a row that are small; infinite where
    /// there is none.
    fn end(&self, fit: &LossFit, coefficients: &Coefficients) -> f64 {
        let first = match coefficients {
            Coefficients::Beta(beta) => self.first_by_beta(fit, *beta),
            Coefficients::User(_) => self.first_by_search(fit, coefficients),
        };
        self.step(first + self.patience - 1.0)
    }

    /// Along Eqn. (1) every drop is smaller than the one before. With u = β0·k + β1 at an epoch's
    /// end, β0·d/((u − β0·d)·u) is its drop: a quadratic equation. Rounding is put right after.
    fn first_by_beta(&self, fit: &LossFit, beta: [f64; 3]) -> f64 {
        let fall = beta[0] * self.length;
        if fall <= 0.0 {
            return self.first;
        }
        let u = 0.5 * (fall + (fall * fall + 4.0 * fall / self.drop).sqrt());
        let step = (u - beta[1]) / beta[0];
        let guess = ((step - self.start) / self.length).ceil().max(self.first);
        if !guess.is_finite() {
            return f64::INFINITY;
        }
        let coefficients = Coefficients::Beta(beta);
        let small = |epoch: f64| self.is_small(fit, &coefficients, epoch);
        if guess > self.first && small(guess - 1.0) {
            guess - 1.0
        } else if small(guess) {
            guess
        } else {
            guess + 1.0
        }
    }

    fn first_by_search(&self, fit: &LossFit, coefficients: &Coefficients) -> f64 {
        let small = |epoch: f64| self.is_small(fit, coefficients, epoch);
        let mut row = 0.0;
        let mut epoch = self.first;
        for _ in 0..SINGLE {
            row = if small(epoch) { row + 1.0 } else { 0.0 };
            if row >= self.patience {
                return epoch - row + 1.0;
            }
            epoch += 1.0;
        }
        // From here on drops only shrink, or the curve is stranger than a loss.
        if row > 0.0 {
            return epoch - row;
        }
        let (mut large, mut step) = (epoch - 1.0, 1.0);
        while !small(large + step) {
            large += step;
            step *= 2.0;
            if self.step(large) > STEP_MAX {
                return f64::INFINITY;
            }
        }
        while step > 1.0 {
            step = (0.5 * step).floor();
            if !small(large + step) {
                large += step;
            }
        }
        large + 1.0
    }
}
