//! The convergence curve of section 3.1: outliers, normalisation and the fit of Eqn. (1),
//! `loss = 1/(β0·k + β1) + β2` with k in steps.
//!
//! For a fixed β2 the curve is linear in (β0, β1) once turned round: `1/(l − β2) = β0·k + β1`,
//! each row weighted by (l − β2)², so that errors count as errors in loss and not in their
//! inverse; a few Gauss-Newton steps then make the squared error in loss itself least. β2 is
//! searched in [0, least loss).

use serde::{Deserialize, Serialize};

pub use super::remaining::{RemainingEpochs, converged, remaining_epochs};

/// A measured loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossPoint {
    pub step: f64,
    pub loss: f64,
}

/// A fitted convergence curve, in the units of the points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossFit {
    /// β of Eqn. (1), for losses as they came and k in their steps.
    pub beta: [f64; 3],
    /// Largest loss kept: drops are counted as shares of it.
    pub scale: f64,
    /// Root of the mean squared error in loss over the points kept.
    pub rmse: f64,
    /// Points that entered the fit, after thinning.
    pub points: u32,
    /// Steps of the points that were replaced as outliers.
    pub outliers: Vec<f64>,
    /// β of refits to the curve with the residuals' signs turned in blocks, and to the first
    /// part of the points only: what else the same noise could have shown.
    pub spread: Vec<[f64; 3]>,
}

/// Why there is no estimate: an honest answer, never a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    pub reason: String,
}

impl Unknown {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unknown {}

/// Loss by Eqn. (1).
#[must_use]
pub fn curve(beta: [f64; 3], step: f64) -> f64 {
    1.0 / (beta[0] * step + beta[1]) + beta[2]
}

/// Most points of a fit: it costs the same at step 100 and at step 10 million.
const POINTS_MAX: usize = 400;
/// Fewest points for three coefficients with anything left to judge them by.
const POINTS_MIN: usize = 5;
/// Neighbours on each side that tell an outlier (the paper takes 5 epochs).
const NEIGHBOURS: usize = 5;
/// Beyond these a number is an accident.
const LOSS_MAX: f64 = 1e30;
const STEP_MAX: f64 = 1e15;

/// Points with steps in 0 to 1 and losses as shares of the largest.
#[derive(Clone, Debug, Default)]
struct Data {
    steps: Vec<f64>,
    losses: Vec<f64>,
}

/// Fits Eqn. (1) to points in any order. Points that are not finite are left out; more than 400
/// are thinned to the medians of equal parts.
///
/// # Errors
/// [`Unknown`] where fewer than 5 points are usable, where the loss is negative, flat or rising,
/// or where it does not follow the curve at all.
pub fn fit(points: &[LossPoint]) -> Result<LossFit, Unknown> {
    let points = usable(points)?;
    refuse_rising(&points)?;
    let (points, outliers) = without_outliers(points);
    let scale = points.iter().map(|point| point.loss).fold(0.0, f64::max);
    let step_scale = points.iter().map(|point| point.step).fold(0.0, f64::max);
    if scale <= 0.0 || step_scale <= 0.0 {
        return Err(Unknown::new("the loss is zero throughout"));
    }
    let data = Data {
        steps: points.iter().map(|point| point.step / step_scale).collect(),
        losses: points.iter().map(|point| point.loss / scale).collect(),
    };
    let none = || Unknown::new("no curve of the form 1/(b0*k + b1) + b2 fits the losses");
    let best = search(&data, GRID).ok_or_else(none)?;
    refuse_flat(&data, &best)?;
    let raw = |beta: [f64; 3]| [beta[0] / scale / step_scale, beta[1] / scale, beta[2] * scale];
    let count = u32::try_from(points.len()).expect("at most 400 points");
    let fit = LossFit {
        beta: raw(best.beta),
        scale,
        rmse: (best.squares / f64::from(count)).sqrt() * scale,
        points: count,
        outliers,
        spread: spread(&data, &best).into_iter().map(raw).collect(),
    };
    let fine = fit.spread.iter().chain([&fit.beta]).flatten().all(|value| value.is_finite());
    if fine { Ok(fit) } else { Err(none()) }
}

/// Finite points by step, one for each step, at most [`POINTS_MAX`].
fn usable(points: &[LossPoint]) -> Result<Vec<LossPoint>, Unknown> {
    let mut kept: Vec<LossPoint> = points
        .iter()
        .filter(|point| point.loss.abs() <= LOSS_MAX && (0.0..=STEP_MAX).contains(&point.step))
        .copied()
        .collect();
    if kept.is_empty() && !points.is_empty() {
        return Err(Unknown::new(format!("none of {} losses is finite", points.len())));
    }
    kept.sort_by(|a, b| a.step.total_cmp(&b.step).then(a.loss.total_cmp(&b.loss)));
    if kept.iter().any(|point| point.loss < 0.0) {
        return Err(Unknown::new("the loss goes below zero, where Eqn. (1) cannot follow"));
    }
    let mut merged: Vec<LossPoint> = Vec::with_capacity(kept.len());
    for same in kept.chunk_by(|a, b| a.step.total_cmp(&b.step).is_eq()) {
        merged.push(LossPoint { step: same[0].step, loss: median(same) });
    }
    if merged.len() < POINTS_MIN {
        return Err(Unknown::new(format!(
            "{} usable losses at different steps, {POINTS_MIN} are needed",
            merged.len()
        )));
    }
    if merged.len() > POINTS_MAX {
        let part = merged.len().div_ceil(POINTS_MAX);
        merged = merged
            .chunks(part)
            .map(|chunk| {
                let mut sorted = chunk.to_vec();
                sorted.sort_by(|a, b| a.loss.total_cmp(&b.loss));
                let middle = f64::midpoint(chunk[0].step, chunk[chunk.len() - 1].step);
                LossPoint { step: middle, loss: median(&sorted) }
            })
            .collect();
    }
    Ok(merged)
}

/// Of points sorted by loss.
fn median(sorted: &[LossPoint]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle].loss
    } else {
        f64::midpoint(sorted[middle - 1].loss, sorted[middle].loss)
    }
}

/// The paper's rule: a loss outside the range from the least of the next 5 to the largest of the
/// last 5 is replaced by the mean of its neighbours. The ones before count as replaced; a next
/// one that is out of range itself does not count as neighbour. Returns the steps replaced too.
fn without_outliers(mut points: Vec<LossPoint>) -> (Vec<LossPoint>, Vec<f64>) {
    let mut outliers = Vec::new();
    for at in 0..points.len() {
        let loss = points[at].loss;
        let before = &points[at.saturating_sub(NEIGHBOURS)..at];
        let after = &points[at + 1..(at + 1 + NEIGHBOURS).min(points.len())];
        let highest = before.iter().map(|point| point.loss).reduce(f64::max);
        let lowest = after.iter().map(|point| point.loss).reduce(f64::min);
        let spike = highest.is_some_and(|highest| loss > highest);
        let dip = lowest.map_or_else(|| is_last_dip(before, loss), |lowest| loss < lowest);
        if !spike && !dip {
            continue;
        }
        let next = after.first().map(|point| point.loss).filter(|next| {
            highest.is_none_or(|highest| *next <= highest)
                && after[1..].iter().map(|point| point.loss).reduce(f64::min) <= Some(*next)
        });
        let previous = before.last().map(|point| point.loss);
        let replacement = match (previous, next) {
            (Some(previous), Some(next)) => f64::midpoint(previous, next),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => continue,
        };
        outliers.push(points[at].step);
        points[at].loss = replacement;
    }
    (points, outliers)
}

/// The last point has nothing after it: it is an outlier where it falls below the ones before by
/// more than three times their whole range. It would otherwise bound β2 all alone.
fn is_last_dip(before: &[LossPoint], loss: f64) -> bool {
    let losses = || before.iter().map(|point| point.loss);
    let (lowest, highest) = (losses().fold(f64::INFINITY, f64::min), losses().fold(0.0, f64::max));
    before.len() == NEIGHBOURS && lowest - loss > 3.0 * (highest - lowest)
}

/// The share of the quarters' range by which the last may lie over the third before the loss
/// counts as rising.
const RISE_MAX: f64 = 0.1;

/// Judged on medians before outliers are replaced: the rule for these takes each point of a rise
/// for a spike.
fn refuse_rising(points: &[LossPoint]) -> Result<(), Unknown> {
    let middle = |mut losses: Vec<f64>| {
        losses.sort_by(f64::total_cmp);
        losses[losses.len() / 2]
    };
    let of = |part: &[LossPoint]| middle(part.iter().map(|point| point.loss).collect());
    let count = points.len();
    let quarters: Vec<f64> =
        (0..4).map(|at| of(&points[at * count / 4..(at + 1) * count / 4])).collect();
    let highest = quarters.iter().copied().fold(0.0, f64::max);
    let lowest = quarters.iter().copied().fold(f64::INFINITY, f64::min);
    let (first_half, second_half) = points.split_at(count / 2);
    // A rise within the noise from point to point is none.
    let noise = middle(points.windows(2).map(|pair| (pair[1].loss - pair[0].loss).abs()).collect());
    let late = quarters[3] - quarters[2];
    if of(second_half) - of(first_half) > noise || late > noise.max(RISE_MAX * (highest - lowest)) {
        return Err(Unknown::new("the loss is rising"));
    }
    Ok(())
}

/// Refuses a fall that is lost in the noise: the curve must fall by more than twice the error of
/// a mean over a quarter of the points, and explain half of the losses' spread.
fn refuse_flat(data: &Data, best: &Found) -> Result<(), Unknown> {
    let count = f64::from(u32::try_from(data.steps.len()).expect("at most 400 points"));
    let (Some(first), Some(last)) = (data.steps.first(), data.steps.last()) else {
        return Err(Unknown::new("there are no losses"));
    };
    let drop = curve(best.beta, *first) - curve(best.beta, *last);
    let noise = (best.squares / count).sqrt();
    if drop <= 1e-9 || drop < 2.0 * noise * (4.0 / count).sqrt() {
        return Err(Unknown::new("the loss is flat"));
    }
    let mean = data.losses.iter().sum::<f64>() / count;
    let variance: f64 = data.losses.iter().map(|loss| (loss - mean) * (loss - mean)).sum();
    if best.squares > 0.5 * variance {
        return Err(Unknown::new("the loss does not follow a falling curve yet"));
    }
    Ok(())
}

/// β for scaled data, and the sum of squared errors.
#[derive(Clone, Copy, Debug)]
struct Found {
    beta: [f64; 3],
    squares: f64,
}

/// Values of β2 tried over [0, least loss) before the best is closed in on.
const GRID: u32 = 24;
/// Steps of the golden section: it shrinks the bracket by 10^8.
const SECTIONS: u32 = 40;

/// The β of least squared error in loss.
fn search(data: &Data, grid: u32) -> Option<Found> {
    let least = data.losses.iter().copied().fold(f64::INFINITY, f64::min);
    // Half of the grid evenly, half ever closer to the least loss, where curves end that are
    // almost down.
    let mut floors: Vec<f64> = (0..grid)
        .map(|k| least * f64::from(k) / f64::from(grid))
        .chain((1..=grid / 2).map(|k| least * (1.0 - libm::exp2(-f64::from(k) - 3.0))))
        .collect();
    floors.sort_by(f64::total_cmp);
    let tried: Vec<Option<Found>> = floors.iter().map(|floor| at_floor(data, *floor)).collect();
    let squares = |found: &Option<Found>| found.map_or(f64::INFINITY, |found| found.squares);
    let best_at = (0..floors.len())
        .min_by(|a, b| squares(&tried[*a]).total_cmp(&squares(&tried[*b])).then(a.cmp(b)))?;
    let mut low = floors[best_at.saturating_sub(1)];
    let mut high = floors.get(best_at + 1).copied().unwrap_or(least * (1.0 - 1e-12));
    let mut best = tried[best_at]?;
    let ratio = 0.618_033_988_749_894_9;
    let (mut left, mut right) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut at_left, mut at_right) = (at_floor(data, left), at_floor(data, right));
    for _ in 0..SECTIONS {
        if squares(&at_left) <= squares(&at_right) {
            (high, right, at_right) = (right, left, at_left);
            left = high - ratio * (high - low);
            at_left = at_floor(data, left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + ratio * (high - low);
            at_right = at_floor(data, right);
        }
        for found in [at_left, at_right].into_iter().flatten() {
            if found.squares < best.squares {
                best = found;
            }
        }
    }
    Some(best)
}

/// Gauss-Newton steps at one β2: they converge quadratically from the weighted start.
const NEWTON_STEPS: usize = 4;

/// The best (β0, β1), none negative, for one β2.
fn at_floor(data: &Data, floor: f64) -> Option<Found> {
    let points = || data.steps.iter().copied().zip(data.losses.iter().copied());
    let rows = points().filter(|(_, loss)| *loss > floor).map(|(step, loss)| {
        let above = loss - floor;
        // Row 1/(l − β2) = β0·k + β1 times (l − β2)².
        ([step * above * above, above * above], above)
    });
    let mut pair = two_unknowns(rows)?;
    let error = |pair: [f64; 2]| {
        points()
            .map(|(step, loss)| loss - curve([pair[0], pair[1], floor], step))
            .map(|e| e * e)
            .sum::<f64>()
    };
    let mut squares = error(pair);
    for _ in 0..NEWTON_STEPS {
        let rows = points().map(|(step, loss)| {
            let inverse = 1.0 / (pair[0] * step + pair[1]);
            // 1/g around the present g, solved for the new coefficients.
            let weight = inverse * inverse;
            ([step * weight, weight], 2.0 * inverse - (loss - floor))
        });
        let Some(next) = two_unknowns(rows) else { break };
        let next_squares = error(next);
        if next_squares.is_nan() || next_squares >= squares {
            break;
        }
        (pair, squares) = (next, next_squares);
    }
    let beta = [pair[0], pair[1], floor];
    (squares.is_finite() && beta.iter().all(|value| value.is_finite()))
        .then_some(Found { beta, squares })
}

/// Non-negative least squares in two unknowns in closed form; none where nothing positive fits.
fn two_unknowns(rows: impl Iterator<Item = ([f64; 2], f64)>) -> Option<[f64; 2]> {
    let (mut aa, mut ab, mut bb, mut ay, mut by) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for ([a, b], y) in rows {
        aa += a * a;
        ab += a * b;
        bb += b * b;
        ay += a * y;
        by += b * y;
    }
    let determinant = aa * bb - ab * ab;
    let both = [(ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant];
    if determinant > 1e-14 * aa * bb && both[0] >= 0.0 && both[1] > 0.0 {
        return Some(both);
    }
    // On the edge: the constant alone, as a curve without β1 is infinite at step 0.
    let constant = by / bb;
    (constant.is_finite() && constant > 0.0).then_some([0.0, constant])
}

/// Blocks whose residuals turn their sign together: neighbours err alike.
const BLOCKS: usize = 8;
/// Most points of each refit.
const SPREAD_POINTS_MAX: usize = 100;

/// What other noise of the same size would have given: the fitted curve with the residuals added
/// back, their signs turned block by block in the patterns of the Walsh functions (orthogonal,
/// so that a few cover all directions; no chance is involved), and refits to the first 70 % and
/// 85 % of the points, which show where the curve itself is wrong.
fn spread(data: &Data, best: &Found) -> Vec<[f64; 3]> {
    let part = data.steps.len().div_ceil(SPREAD_POINTS_MAX);
    let thin = |values: &[f64]| -> Vec<f64> {
        values
            .chunks(part)
            .map(|chunk| {
                chunk.iter().sum::<f64>() / f64::from(u32::try_from(chunk.len()).unwrap_or(1))
            })
            .collect()
    };
    let (steps, losses) = (thin(&data.steps), thin(&data.losses));
    let count = steps.len();
    let mut refits = Vec::new();
    for pattern in 1..2 * BLOCKS {
        let losses = (0..count).map(|at| {
            let block = at * BLOCKS / count;
            let odd = ((pattern % BLOCKS) & block).count_ones() % 2 == 1;
            let sign = if odd == (pattern < BLOCKS) { -1.0 } else { 1.0 };
            let fitted = curve(best.beta, steps[at]);
            (fitted + sign * (losses[at] - fitted)).max(0.0)
        });
        refits.push(Data { steps: steps.clone(), losses: losses.collect() });
    }
    for share in [70, 85] {
        let kept = count * share / 100;
        if kept >= POINTS_MIN {
            refits.push(Data { steps: steps[..kept].to_vec(), losses: losses[..kept].to_vec() });
        }
    }
    refits.iter().filter_map(|data| search(data, GRID / 2)).map(|found| found.beta).collect()
}
