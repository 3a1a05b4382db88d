//! How many epochs are left until the loss drops too little (sections 2.1 and 3.1).

use super::loss::{LossFit, Unknown, curve};

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
/// from 0 or 1 as the first entry says; it may be empty. The range comes from the fit's refits:
/// their 10th and 90th percentile.
///
/// # Errors
/// [`Unknown`] where `steps_per_epoch` or `threshold` is not positive and finite.
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
    let value = ahead.epochs_left(fit.beta);
    let mut others: Vec<f64> = fit.spread.iter().map(|beta| ahead.epochs_left(*beta)).collect();
    others.push(value);
    others.sort_by(f64::total_cmp);
    Ok(RemainingEpochs {
        value,
        low: quantile(&others, 0.1).min(value),
        high: quantile(&others, 0.9).max(value),
    })
}

/// By linear interpolation; `sorted` is not empty.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = u32::try_from(sorted.len() - 1).expect("a handful of refits");
    let at = f64::from(last) * share;
    // The first whose index is past the place.
    let above = (0..=last).find(|index| f64::from(*index) >= at).unwrap_or(last);
    let below = above.saturating_sub(1);
    let pick = |index: u32| sorted[usize::try_from(index).expect("fits")];
    let part = at - f64::from(below);
    if above == below { pick(above) } else { pick(below) + part * (pick(above) - pick(below)) }
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
    fn is_small(&self, beta: [f64; 3], ahead: u32) -> bool {
        let end = self.start + self.steps_per_epoch * f64::from(ahead);
        let drop = curve(beta, end - self.steps_per_epoch) - curve(beta, end);
        // A curve that is infinite at step 0 has not arrived there.
        drop < self.threshold
    }

    /// The drop only shrinks along the curve, so the first small one is found by halving.
    fn epochs_left(&self, beta: [f64; 3]) -> f64 {
        if self.counted >= self.patience {
            return 0.0;
        }
        let left = if self.is_small(beta, 1) {
            self.patience - self.counted
        } else {
            let (mut large, mut small) = (1, self.epochs_left_max.max(1));
            if !self.is_small(beta, small) {
                return f64::from(self.epochs_left_max);
            }
            while small - large > 1 {
                let middle = u32::midpoint(large, small);
                if self.is_small(beta, middle) {
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
