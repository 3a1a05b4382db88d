//! Which epoch means are outliers (section 3.1), and where the loss changes its level for good.
//!
//! The paper's rule alone (a loss above its last five, or below its next five) drops a quarter of
//! the good points where the noise is 5 %: along a flat tail every sixth point is the largest of
//! six. A point is dropped only where it also leaves that range by more than three robust
//! deviations, on both sides: a level that lasts is none.

/// Neighbours on each side (the paper takes 5 epochs).
pub(super) const NEIGHBOURS: usize = 5;
/// Robust deviations past the range,
const DEVIATIONS: f64 = 3.0;
/// and this many more for each neighbour that the range lacks, as at the run's ends.
const DEVIATIONS_EACH: f64 = 2.0;
/// Least share of the loss by which it leaves the range at the ends of a short run.
const SHARE_AT_ENDS: f64 = 0.25;
const SHARES: [f64; NEIGHBOURS + 1] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
/// Least deviation as a share of the neighbours' loss: losses written with few digits must not
/// look like spikes beside a tail that is flat to the last digit.
const DEVIATION_MIN: f64 = 1e-3;
/// Differences between ten neighbours. Fewer may happen to be alike: near the start, where the run
/// has not shown its usual deviation yet, theirs counts double.
const DIFFERENCES: usize = 2 * NEIGHBOURS - 1;
/// Fewer than these tell nothing.
const DIFFERENCES_MIN: usize = 3;

/// Deviation of a loss as a share of it, as the run has shown it: a running mean of what
/// neighbours say. It helps where ten of them happen to lie close together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    share: f64,
    readings: u32,
}

/// Readings that the running mean remembers, and from which it is trusted.
const READINGS: u32 = 10;

impl Usual {
    pub(super) fn note(&mut self, before: &[f64], after: &[f64]) {
        let (local, differences) = local_deviation(before, after);
        let share = local / level(before, after);
        if differences >= DIFFERENCES && share.is_finite() {
            self.readings = (self.readings + 1).min(READINGS);
            self.share += (share - self.share) / f64::from(self.readings);
        }
    }
}

/// How an outlier leaves its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Above,
    Below,
}

/// Judges a loss by those kept before it and those that came after it, nearest first in `after`
/// and last in `before`, at most five each.
pub(super) fn outlier(before: &[f64], loss: f64, after: &[f64], usual: Usual) -> Option<Side> {
    let deviation = deviation(before, after, usual)?;
    // The range of a few is narrow by chance.
    let margin = |range: &[f64]| {
        let missing = NEIGHBOURS - range.len().min(NEIGHBOURS);
        deviation * (DEVIATIONS + DEVIATIONS_EACH * SHARES[missing])
    };
    // Nor is the deviation known where the run has not shown it yet.
    let ends = before.len() < NEIGHBOURS || after.len() < NEIGHBOURS;
    let least = if ends && usual.readings < READINGS { SHARE_AT_ENDS } else { 0.0 };
    let highest = before.iter().copied().reduce(f64::max)?;
    let margin_before = margin(before).max(least * highest.abs());
    let margin_after = margin(after).max(least * median(after).unwrap_or(0.0).abs());
    // One low loss at the start, or two, are no range: what follows would all lie above it.
    if before.len() <= 2 && after.first().is_some_and(|next| highest < *next - 3.0 * deviation) {
        return None;
    }
    let returns = median(after).is_none_or(|level| loss > level + margin_after);
    if loss > highest + margin_before && returns {
        return Some(Side::Above);
    }
    let dip = match after.iter().copied().reduce(f64::min) {
        Some(lowest) => {
            loss < lowest - margin_after
                && median(before).is_some_and(|level| loss < level - margin_before)
        }
        // The last point has nothing after it, and the next epoch may fall as the last ones did.
        None => {
            let least = before.iter().copied().fold(f64::INFINITY, f64::min);
            loss < least - (highest - least) - margin_before
        }
    };
    dip.then_some(Side::Below)
}

/// Robust deviation of one loss: from the median absolute deviation of the differences between
/// neighbours, so that a steady fall counts as none; at least the usual one. None where there
/// are too few.
fn deviation(before: &[f64], after: &[f64], usual: Usual) -> Option<f64> {
    let level = level(before, after);
    let (local, differences) = local_deviation(before, after);
    if differences < DIFFERENCES_MIN {
        return None;
    }
    let sure = differences >= DIFFERENCES || usual.readings >= READINGS;
    let local = if sure { local } else { 2.0 * local };
    Some(local.max(usual.share.max(DEVIATION_MIN) * level))
}

fn level(before: &[f64], after: &[f64]) -> f64 {
    median(before).unwrap_or(0.0).abs().max(median(after).unwrap_or(0.0).abs())
}

/// And from how many differences.
fn local_deviation(before: &[f64], after: &[f64]) -> (f64, usize) {
    let mut differences = [0.0; 2 * NEIGHBOURS];
    let mut count = 0;
    let mut previous: Option<f64> = None;
    for loss in before.iter().chain(after) {
        if let Some(previous) = previous.filter(|_| count < differences.len()) {
            differences[count] = loss - previous;
            count += 1;
        }
        previous = Some(*loss);
    }
    let differences = &mut differences[..count];
    let middle = median_of(differences);
    for difference in &mut *differences {
        *difference = (*difference - middle).abs();
    }
    // 1.4826 turns a median absolute deviation into a standard one, √2 a difference into one loss.
    (1.4826 * median_of(differences) * std::f64::consts::FRAC_1_SQRT_2, count)
}

/// Of at most five.
fn median(losses: &[f64]) -> Option<f64> {
    let mut sorted = [0.0; NEIGHBOURS];
    let count = losses.len().min(NEIGHBOURS);
    sorted[..count].copy_from_slice(&losses[..count]);
    (count > 0).then(|| median_of(&mut sorted[..count]))
}

/// Sorts in place; 0 for nothing.
pub(super) fn median_of(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    let (_, at, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let high = *at;
    if values.len() % 2 == 1 {
        return high;
    }
    let low = below_max(&values[..middle]);
    f64::midpoint(low, high)
}

fn below_max(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// A change of level is this many times the fall that went before: along Eqn. (1), which bends
/// upwards, each fall is smaller than the one before.
const CHANGE_OF_FALL: f64 = 4.0;
/// And this many robust deviations: medians of five differ by 0.8 of one.
const CHANGE_DEVIATIONS: f64 = 7.0;
/// And this share of the loss before: less does the fit no harm.
const CHANGE_SHARE: f64 = 0.1;

/// Where the level changes for good: Some(n) says that the n last of `before` and all of `after`
/// are new, at least five points then. `earlier` are the five before `before`. All hold five.
pub(super) fn level_change(
    earlier: &[f64],
    before: &[f64],
    after: &[f64],
    usual: Usual,
) -> Option<usize> {
    if earlier.len() < NEIGHBOURS || before.len() < NEIGHBOURS || after.len() < NEIGHBOURS {
        return None;
    }
    let (old, level, new) = (median(earlier)?, median(before)?, median(after)?);
    let (previous, change) = (old - level, level - new);
    let limit = CHANGE_OF_FALL * if change > 0.0 { previous.max(0.0) } else { previous.abs() };
    let deviation = deviation(earlier, before, usual)?.max(deviation(before, after, usual)?);
    let least = (CHANGE_DEVIATIONS * deviation).max(CHANGE_SHARE * level.abs());
    if change.abs() <= limit.max(least) {
        return None;
    }
    let joined: Vec<f64> = before.iter().chain(after).copied().collect();
    let jump = |at: &usize| (joined[at - 1] - joined[*at]) * change.signum();
    let middle = NEIGHBOURS;
    let at = (middle - 2..=middle + 2).max_by(|a, b| jump(a).total_cmp(&jump(b)))?;
    // Two levels: the ranges on both sides do not meet, and the change is sudden.
    let (left, right) = joined.split_at(at);
    let range = |part: &[f64]| {
        let least = part.iter().copied().fold(f64::INFINITY, f64::min);
        (least, below_max(part))
    };
    let ((left_low, left_high), (right_low, right_high)) = (range(left), range(right));
    let apart = if change > 0.0 { left_low > right_high } else { left_high < right_low };
    // Fewer than five may be a spike of some epochs.
    let sudden = apart && jump(&at) >= 0.5 * change.abs() && at <= middle;
    sudden.then(|| middle - at)
}
