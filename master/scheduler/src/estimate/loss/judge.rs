//! When the losses allow no answer: too few, rising, flat.

use super::bins::Bin;
use super::outliers::median_of;
use super::solve::{Found, Row};
use super::spread::Noise;
use super::{Unknown, number};

/// The share of the quarters' range by which the last may lie over the third before the loss
/// counts as rising.
const RISE_MAX: f64 = 0.1;
/// Errors of a difference of medians that are chance.
const CHANCE: f64 = 3.0;

/// Judged on medians: single losses rise all the time.
pub(super) fn refuse_rising(bins: &[Bin]) -> Result<(), Unknown> {
    let mut scratch: Vec<f64> = Vec::with_capacity(bins.len());
    let mut of = |part: &mut dyn Iterator<Item = f64>| {
        scratch.clear();
        scratch.extend(part);
        median_of(&mut scratch)
    };
    let count = bins.len();
    let quarters: [f64; 4] = [0, 1, 2, 3]
        .map(|at| of(&mut bins[at * count / 4..(at + 1) * count / 4].iter().map(|bin| bin.loss)));
    let highest = quarters.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lowest = quarters.iter().copied().fold(f64::INFINITY, f64::min);
    let halves: [f64; 2] =
        [&bins[..count / 2], &bins[count / 2..]].map(|half| of(&mut half.iter().map(|b| b.loss)));
    // Median difference between neighbours is 0.954 standard deviations of one loss, and a median
    // of n errs by 1.25 of them over √n.
    let noise = of(&mut bins.windows(2).map(|pair| (pair[1].loss - pair[0].loss).abs())) / 0.954;
    let error = |parts: f64| CHANCE * noise * 1.25 * (2.0 * parts / number(count)).sqrt();
    let late = quarters[3] - quarters[2];
    if halves[1] - halves[0] > error(2.0) || late > error(4.0).max(RISE_MAX * (highest - lowest)) {
        return Err(Unknown::new("the loss is rising"));
    }
    Ok(())
}

/// Least ratio of what the fall explains to what is left as noise (F of 2 and n - 3 degrees).
/// Flat losses reach it by chance once in some hundred times.
const EXPLAINED_MIN: f64 = 7.0;
/// Least fall as a share of the largest loss: less is rounding.
const FALL_MIN: f64 = 1e-9;

/// Refuses a fall that is lost in the noise: the curve must fall by more than twice the error of
/// a mean over a quarter of the points, and explain more than chance does.
pub(super) fn refuse_flat(rows: &[Row], best: &Found, noise: Noise) -> Result<(), Unknown> {
    let flat =
        || Err(Unknown::new(if falls_anyhow(rows) { NO_SUCH_CURVE } else { "the loss is flat" }));
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return flat();
    };
    let drop = first.fitted(best.beta) - last.fitted(best.beta);
    let deviation = (noise.squares / noise.points).sqrt();
    // A negated comparison would let NaN pass.
    let falls = drop > FALL_MIN && drop > 2.0 * deviation * (4.0 / noise.points).sqrt();
    if !falls {
        return flat();
    }
    let weight: f64 = rows.iter().map(|row| row.weight).sum();
    let mean = rows.iter().map(|row| row.weight * row.y).sum::<f64>() / weight;
    let around: f64 =
        rows.iter().map(|row| row.weight * (row.y - mean) * (row.y - mean)).sum::<f64>();
    let explained = (around - best.squares) / 2.0;
    let left = noise.squares / (noise.points - 3.0).max(1.0);
    if explained > EXPLAINED_MIN * left {
        Ok(())
    } else {
        Err(Unknown::new(if falls_anyhow(rows) {
            NO_SUCH_CURVE
        } else {
            "the loss does not follow a falling curve yet"
        }))
    }
}

/// The loss falls, but as Eqn. (1) cannot: ever faster, say.
const NO_SUCH_CURVE: &str = "the loss falls, but not along a curve of the form 1/(b0*k + b1) + b2, \
     which falls ever more slowly";

/// Whether the last quarter lies below the first by more than chance.
fn falls_anyhow(rows: &[Row]) -> bool {
    let quarter = (rows.len() / 4).max(1);
    let of = |part: &mut dyn Iterator<Item = f64>| median_of(&mut part.collect::<Vec<f64>>());
    let first = of(&mut rows[..quarter].iter().map(|row| row.y));
    let last = of(&mut rows[rows.len() - quarter..].iter().map(|row| row.y));
    let noise = of(&mut rows.windows(2).map(|pair| (pair[1].y - pair[0].y).abs())) / 0.954;
    let error = CHANCE * noise * 1.25 * (2.0 / number(quarter)).sqrt();
    first - last > error.max(FALL_MIN)
}
