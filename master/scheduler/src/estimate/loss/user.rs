//! The least squares of a user's curve: Levenberg and Marquardt's method from many starts, the
//! free constants not negative.

use super::beta::too_small;
use super::bins::Bin;
use super::curve::{CONSTANTS_MAX, Curve};
use super::stream::{Kept, Stream};
use super::{
    Coefficients, LossFit, POINTS_MIN, SCALE_MIN, Unknown, Variant, Variants, assemble, coarse,
    number,
};

type Constants = [f64; CONSTANTS_MAX];
type Matrix = [[f64; CONSTANTS_MAX]; CONSTANTS_MAX];

/// Starts whose squares are looked at, and those that are followed down.
const STARTS_MAX: usize = 4096;
const FOLLOWED: usize = 16;
/// Steps of one descent.
const STEPS_MAX: u32 = 200;
/// Steps across the range at which the curve is checked to fall.
const CHECKS: u32 = 256;
/// Alternatives for the range.
const DRAWS: u32 = 63;

struct Problem<'a> {
    curve: &'a Curve,
    bins: &'a [Bin],
    free: usize,
}

/// Squares, half their gradient, and Σ w·J·Jᵀ.
struct Local {
    squares: f64,
    gradient: Constants,
    normal: Matrix,
}

impl Problem<'_> {
    /// Mean of the curve over a bin: at two steps with the bin's mean and variance.
    fn steps(bin: &Bin) -> [f64; 2] {
        let apart = (bin.step_sums[0] / bin.count).sqrt();
        [bin.step - apart, bin.step + apart]
    }

    fn squares(&self, constants: &Constants) -> f64 {
        self.bins
            .iter()
            .map(|bin| {
                let at = |step: f64| self.curve.at(step, constants.iter().copied());
                let [low, high] = Self::steps(bin);
                let error = if high > low {
                    f64::midpoint(at(low), at(high)) - bin.loss
                } else {
                    at(bin.step) - bin.loss
                };
                bin.count * error * error
            })
            .sum()
    }

    /// Squares within the bins that the curve, a line there, does not explain.
    fn within(&self, constants: &Constants) -> f64 {
        self.bins
            .iter()
            .filter(|bin| bin.count > 1.0)
            .map(|bin| {
                let [low, high] = Self::steps(bin);
                let at = |step: f64| self.curve.at(step, constants.iter().copied());
                let slope = if high > low { (at(high) - at(low)) / (high - low) } else { 0.0 };
                let own = slope * slope * bin.step_sums[0];
                (bin.loss_squares + own - 2.0 * slope * bin.cross[0]).max(0.0)
            })
            .sum()
    }

    /// Error of each bin's mean, times the root of its points.
    fn errors(&self, constants: &Constants) -> Vec<f64> {
        let at = |step: f64| self.curve.at(step, constants.iter().copied());
        let mean = |bin: &Bin| {
            let [low, high] = Self::steps(bin);
            f64::midpoint(at(low), at(high))
        };
        self.bins.iter().map(|bin| (bin.loss - mean(bin)) * bin.count.sqrt()).collect()
    }

    fn local(&self, constants: &Constants) -> Local {
        let mut here = Local {
            squares: 0.0,
            gradient: [0.0; CONSTANTS_MAX],
            normal: [[0.0; CONSTANTS_MAX]; CONSTANTS_MAX],
        };
        for bin in self.bins {
            let [low, high] = Self::steps(bin);
            let (a, b) =
                (self.curve.derivatives(low, constants), self.curve.derivatives(high, constants));
            let error = f64::midpoint(a.value, b.value) - bin.loss;
            here.squares += bin.count * error * error;
            for i in 0..self.free {
                let by = f64::midpoint(a.by[i], b.by[i]);
                here.gradient[i] += bin.count * error * by;
                for j in 0..=i {
                    let other = f64::midpoint(a.by[j], b.by[j]);
                    here.normal[i][j] += bin.count * by * other;
                    here.normal[j][i] = here.normal[i][j];
                }
            }
        }
        here
    }

    fn descend(&self, start: Constants, steps: u32) -> (f64, Constants) {
        let mut constants = start;
        let mut here = self.local(&constants);
        let mut damping = 1e-3;
        for _ in 0..steps {
            let mut moves = [false; CONSTANTS_MAX];
            for (i, slot) in moves.iter_mut().enumerate().take(self.free) {
                *slot = constants[i] > 0.0 || here.gradient[i] < 0.0;
            }
            let down = here.gradient.map(|value| -value);
            let mut next = None;
            // Ten times tenfold: past that the step is lost in rounding.
            for _ in 0..20 {
                let Some(lower) = cholesky(&here.normal, damping, &moves) else {
                    damping *= 10.0;
                    continue;
                };
                let change = substitute(&lower, &moves, down);
                let mut tried = constants;
                for (value, change) in tried.iter_mut().zip(change) {
                    *value = (*value + change).max(0.0);
                }
                let squares = self.squares(&tried);
                if squares < here.squares {
                    next = Some(tried);
                    damping = (damping * 0.1).max(1e-15);
                    break;
                }
                damping *= 10.0;
            }
            let Some(next) = next else { break };
            let there = self.local(&next);
            if !there.squares.is_finite() {
                break;
            }
            (constants, here) = (next, there);
        }
        (here.squares, constants)
    }
}

/// Lower triangle of the rows that move, with Marquardt's damping; none where not positive.
fn cholesky(matrix: &Matrix, damping: f64, moves: &[bool; CONSTANTS_MAX]) -> Option<Matrix> {
    let mut lower = [[0.0; CONSTANTS_MAX]; CONSTANTS_MAX];
    for i in (0..CONSTANTS_MAX).filter(|i| moves[*i]) {
        for j in (0..=i).filter(|j| moves[*j]) {
            let known: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            if i == j {
                let rest = matrix[i][i] * (1.0 + damping) - known;
                let positive = rest > 1e-15 * matrix[i][i];
                if !positive {
                    return None;
                }
                lower[i][i] = rest.sqrt();
            } else {
                lower[i][j] = (matrix[i][j] - known) / lower[j][j];
            }
        }
    }
    Some(lower)
}

fn substitute(lower: &Matrix, moves: &[bool; CONSTANTS_MAX], right: Constants) -> Constants {
    let mut solved = [0.0; CONSTANTS_MAX];
    for i in (0..CONSTANTS_MAX).filter(|i| moves[*i]) {
        let known: f64 = (0..i).map(|k| lower[i][k] * solved[k]).sum();
        solved[i] = (right[i] - known) / lower[i][i];
    }
    backwards(lower, moves, solved)
}

/// Solves by the transposed triangle.
fn backwards(lower: &Matrix, moves: &[bool; CONSTANTS_MAX], right: Constants) -> Constants {
    let mut solved = right;
    for i in (0..CONSTANTS_MAX).rev().filter(|i| moves[*i]) {
        let known: f64 = (i + 1..CONSTANTS_MAX).map(|k| lower[k][i] * solved[k]).sum();
        solved[i] = (solved[i] - known) / lower[i][i];
    }
    solved
}

/// A stream of numbers in [0, 1) that is the same everywhere (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        f64::from(u32::try_from(mixed >> 32).expect("32 bits")) / 4_294_967_296.0
    }

    /// Normal enough for a range of 80 %: a sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

/// Starts of each constant: what units of loss and of step it could have.
fn starts(free: usize, loss: f64, step: f64) -> Vec<Constants> {
    let magnitudes = [1.0, loss, step, 1.0 / step, loss * step, 1.0 / loss, 1.0 / (loss * step)];
    let all = magnitudes.len().pow(u32::try_from(free).expect("at most eight"));
    let mut numbers = Numbers(1);
    let mut chosen = |index: usize, all: bool| {
        let mut constants = [0.0; CONSTANTS_MAX];
        let mut rest = index;
        for constant in constants.iter_mut().take(free) {
            let at = if all {
                let at = rest % magnitudes.len();
                rest /= magnitudes.len();
                at
            } else {
                let place = numbers.next() * number(magnitudes.len());
                (0..magnitudes.len()).take_while(|at| number(*at) < place).count().max(1) - 1
            };
            // Half and a quarter: powers of 1 would make terms that cancel.
            *constant = magnitudes[at] * if all { 0.4 } else { 0.1 + numbers.next() };
        }
        constants
    };
    if all <= STARTS_MAX {
        (0..all).map(|index| chosen(index, true)).collect()
    } else {
        (0..STARTS_MAX).map(|index| chosen(index, false)).collect()
    }
}

/// Least squares from many starts.
fn best(curve: &Curve, bins: &[Bin]) -> Option<(f64, Constants)> {
    let free = curve.names().len();
    let loss = bins.iter().map(|bin| bin.loss.abs()).fold(0.0, f64::max);
    let last = bins.iter().map(|bin| bin.last).fold(0.0, f64::max);
    let few = coarse(bins);
    let rough = Problem { curve, bins: &few, free };
    let mut tried: Vec<(f64, Constants)> = starts(free, loss, last)
        .into_iter()
        .map(|start| (rough.squares(&start), start))
        .filter(|(squares, _)| squares.is_finite())
        .collect();
    tried.sort_by(|a, b| a.0.total_cmp(&b.0));
    let full = Problem { curve, bins, free };
    tried
        .into_iter()
        .take(FOLLOWED)
        .map(|(_, start)| rough.descend(start, STEPS_MAX))
        .filter(|(squares, _)| squares.is_finite())
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, constants)| full.descend(constants, STEPS_MAX))
        .filter(|(squares, _)| squares.is_finite())
}

/// Fits the user's curve to what the stream kept.
pub(super) fn solve(stream: &Stream, kept: &Kept, curve: &Curve) -> Result<LossFit, Unknown> {
    let mut bins = kept.bins.as_slice();
    let free = curve.names().len();
    let loss = bins.iter().map(|bin| bin.loss.abs()).fold(0.0, f64::max);
    let last = bins.iter().map(|bin| bin.last).fold(0.0, f64::max);
    if loss < SCALE_MIN {
        return Err(too_small(loss));
    }
    if last < SCALE_MIN {
        return Err(Unknown::new("all steps are the same"));
    }
    if bins.len() <= free {
        return Err(Unknown::new(format!(
            "{} usable losses for {free} free constants: more losses are needed",
            bins.len()
        )));
    }
    let not_finite = || Unknown::new("the curve is not finite at the losses' steps");
    let mut found = best(curve, bins);
    let mut gross = None;
    if let Some((without, others)) = without_low_first(curve, bins, free) {
        (found, gross, bins) = (Some(without), Some(bins[0].step), others);
    }
    let (squares, constants) = found.ok_or_else(not_finite)?;
    refuse_rising(curve, &constants, bins, loss)?;
    let full = Problem { curve, bins, free };
    let squares = squares + full.within(&constants);
    refuse_unlike(&full, &constants, squares)?;
    let mut fit = assemble(stream, kept, bins, gross.into_iter());
    if fit.scale < SCALE_MIN {
        return Err(Unknown::new("no loss is above zero"));
    }
    let points: f64 = bins.iter().map(|bin| bin.count).sum();
    fit.rmse = (squares / points).sqrt();
    fit.constants = curve.names().iter().cloned().zip(constants).collect();
    fit.variants = Variants(draws(&full, &constants, squares / (points - number(free)).max(1.0)));
    fit.curve = Some(curve.clone());
    Ok(fit)
}

/// A first loss below this share of the second one is at odds with any falling curve.
const RISE_MIN: f64 = 0.9;
/// It is a gross error where it is this many deviations off the curve through the others.
const GROSS_DEVIATIONS: f64 = 6.0;

/// The fit without a first loss that is far too low, and the bins of that fit.
fn without_low_first<'a>(
    curve: &Curve,
    bins: &'a [Bin],
    free: usize,
) -> Option<((f64, Constants), &'a [Bin])> {
    let (first, others) = bins.split_first()?;
    if others.len() <= free.max(POINTS_MIN) || first.loss >= RISE_MIN * others[0].loss {
        return None;
    }
    let found = best(curve, others)?;
    let points: f64 = others.iter().map(|bin| bin.count).sum();
    let deviation = (found.0 / points).sqrt();
    let fitted = curve.at(first.step, found.1);
    // A curve that is infinite at the first step is as far off.
    let near = fitted - first.loss <= GROSS_DEVIATIONS * deviation;
    (!near && fitted > first.loss).then_some((found, others))
}

/// Least ratio of what the curve explains to what it leaves (F of the constants but one).
const EXPLAINED_MIN: f64 = 7.0;

/// Refuses a curve that leaves the losses as they were: neighbouring errors that are alike count
/// for fewer points.
fn refuse_unlike(
    problem: &Problem<'_>,
    constants: &Constants,
    squares: f64,
) -> Result<(), Unknown> {
    let bins = problem.bins;
    let points: f64 = bins.iter().map(|bin| bin.count).sum();
    let mean = bins.iter().map(|bin| bin.count * bin.loss).sum::<f64>() / points;
    let apart = |bin: &Bin| bin.loss_squares + bin.count * (bin.loss - mean) * (bin.loss - mean);
    let around: f64 = bins.iter().map(apart).sum();
    let errors = problem.errors(constants);
    let own: f64 = errors.iter().map(|error| error * error).sum();
    let alike = errors.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / own;
    let alike = if alike.is_finite() { alike.clamp(0.0, 0.99) } else { 0.0 };
    let free = number(problem.free);
    let left = (points * (1.0 - alike) / (1.0 + alike) - free).max(1.0);
    let explained = (around - squares) / (free - 1.0).max(1.0);
    if explained * left > EXPLAINED_MIN * squares {
        Ok(())
    } else {
        Err(Unknown::new("the losses do not follow the curve: it explains little of their fall"))
    }
}

/// A curve that rises somewhere, or does not fall, has no end to predict.
fn refuse_rising(
    curve: &Curve,
    constants: &Constants,
    bins: &[Bin],
    loss: f64,
) -> Result<(), Unknown> {
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else {
        return Err(Unknown::new("there are no losses"));
    };
    let (first, last) = (first.first, last.last);
    let at = |step: f64| curve.at(step, constants.iter().copied());
    let step_of = |check: u32| first + (last - first) * f64::from(check) / f64::from(CHECKS);
    let mut steps: Vec<f64> = (0..=CHECKS).map(step_of).collect();
    // A pole between two of the losses' own steps is no curve either.
    steps.extend(bins.iter().flat_map(|bin| [bin.first, bin.last]));
    steps.sort_by(f64::total_cmp);
    for pair in steps.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let falls = at(to) <= at(from) + 1e-12 * loss;
        if !falls {
            return Err(Unknown::new(format!(
                "the fitted curve is not decreasing between step {from:.0} and step {to:.0}"
            )));
        }
    }
    if at(first) - at(last) > 1e-9 * loss {
        Ok(())
    } else {
        Err(Unknown::new("the fitted curve is not decreasing: it is flat"))
    }
}

/// Constants around the best ones by their covariance.
fn draws(problem: &Problem<'_>, constants: &Constants, variance: f64) -> Vec<Variant> {
    let mut moves = [false; CONSTANTS_MAX];
    for (i, slot) in moves.iter_mut().enumerate().take(problem.free) {
        *slot = constants[i] > 0.0;
    }
    let lower = cholesky(&problem.local(constants).normal, 1e-12, &moves);
    let mut numbers = Numbers(2);
    let mut variants = Vec::new();
    for _ in 0..DRAWS {
        let Some(lower) = lower.as_ref() else { break };
        let mut normal = [0.0; CONSTANTS_MAX];
        for slot in normal.iter_mut().take(problem.free) {
            *slot = numbers.normal() * variance.sqrt();
        }
        let change = backwards(lower, &moves, normal);
        let values = (0..problem.free).map(|i| {
            let moved = if moves[i] { change[i] } else { 0.0 };
            (constants[i] + moved).max(0.0)
        });
        variants.push(Variant { coefficients: Coefficients::User(values.collect()), weight: 1.0 });
    }
    variants
}
