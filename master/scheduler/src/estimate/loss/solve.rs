//! The least squares of Eqn. (1) in loss: `1/(β0·x + β1) + β2`, no coefficient negative.
//!
//! For a fixed β2 the curve is linear in (β0, β1) once turned round: `1/(l − β2) = β0·x + β1`,
//! each row weighted by (l − β2)², so that errors count as errors in loss and not in their
//! inverse. That starts Newton's method in all three (damped, on the bounds where it must be),
//! which ends at the least squared error in loss itself. From which β2 to start is found by a
//! search; from the last fit the method needs a step or two.

use super::bins::Bin;

/// A bin in units that make steps and losses about 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) weight: f64,
    /// Second, third and fourth central moment of x, means and not sums.
    moments: [f64; 3],
}

/// Rows in steps from `origin` counted in `step_scale`, losses in `loss_scale`.
pub(super) fn rows(bins: &[Bin], origin: f64, step_scale: f64, loss_scale: f64) -> Vec<Row> {
    bins.iter()
        .map(|bin| {
            let square = step_scale * step_scale;
            let [second, third, fourth] = bin.step_sums.map(|sum| sum / bin.count);
            Row {
                x: (bin.step - origin) / step_scale,
                y: bin.loss / loss_scale,
                weight: bin.count,
                moments: [second / square, third / square / step_scale, fourth / square / square],
            }
        })
        .collect()
}

/// β for scaled rows, and the sum of squared errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) beta: [f64; 3],
    pub(super) squares: f64,
}

/// β1 may not be 0 where there is a loss at step 0: the curve would be infinite there.
const BETA1_MIN: f64 = 1e-12;

/// The curve at a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    /// Mean of the curve over the bin.
    fitted: f64,
    /// Its derivatives by β0, β1 and β2.
    by: [f64; 3],
    /// 1/(β0·x + β1).
    inverse: f64,
}

impl Row {
    /// Mean of the curve over the bin.
    pub(super) fn fitted(&self, beta: [f64; 3]) -> f64 {
        let inverse = 1.0 / (beta[0] * self.x + beta[1]);
        let t = beta[0] * inverse;
        let [second, third, fourth] = self.moments;
        (1.0 + t * t * (second - t * (third - t * fourth))) * inverse + beta[2]
    }

    fn at(&self, beta: [f64; 3]) -> At {
        let inverse = 1.0 / (beta[0] * self.x + beta[1]);
        let square = inverse * inverse;
        let t = beta[0] * inverse;
        let [second, third, fourth] = self.moments;
        let fitted = (1.0 + t * t * (second - t * (third - t * fourth))) * inverse + beta[2];
        let by_u = -(1.0 + t * t * (3.0 * second - t * (4.0 * third - 5.0 * t * fourth))) * square;
        let width = t * (2.0 * second - t * (3.0 * third - 4.0 * t * fourth)) * square;
        At { fitted, by: [by_u * self.x + width, by_u, 1.0], inverse }
    }

    /// The curve's derivatives by the three coefficients.
    pub(super) fn derivatives(&self, beta: [f64; 3]) -> [f64; 3] {
        self.at(beta).by
    }

    /// The curve's first and second derivative by the step.
    pub(super) fn bend(&self, beta: [f64; 3]) -> [f64; 2] {
        let inverse = 1.0 / (beta[0] * self.x + beta[1]);
        let slope = -beta[0] * inverse * inverse;
        [slope, -2.0 * slope * beta[0] * inverse]
    }
}

pub(super) fn squares(rows: &[Row], beta: [f64; 3]) -> f64 {
    rows.iter()
        .map(|row| {
            let error = row.y - row.fitted(beta);
            row.weight * error * error
        })
        .sum()
}

type Matrix = [[f64; 3]; 3];

/// What a step needs to know.
struct Local {
    squares: f64,
    /// Half the gradient of the squares.
    gradient: [f64; 3],
    /// Σ w·J·Jᵀ.
    normal: Matrix,
    /// The same with the curve's own bend, so that Newton's method converges in a few steps even
    /// where the noise is large.
    full: Matrix,
}

fn local(rows: &[Row], beta: [f64; 3]) -> Local {
    let mut here =
        Local { squares: 0.0, gradient: [0.0; 3], normal: [[0.0; 3]; 3], full: [[0.0; 3]; 3] };
    let mut bend = [0.0; 3];
    for row in rows {
        let At { fitted, by, inverse } = row.at(beta);
        let error = fitted - row.y;
        let weighted = row.weight * error;
        here.squares += weighted * error;
        for i in 0..3 {
            here.gradient[i] += weighted * by[i];
            for j in 0..=i {
                here.normal[i][j] += row.weight * by[i] * by[j];
            }
        }
        let second = 2.0 * weighted * inverse * inverse * inverse;
        bend[0] += second * row.x * row.x;
        bend[1] += second * row.x;
        bend[2] += second;
    }
    for i in 0..3 {
        for j in 0..i {
            here.normal[j][i] = here.normal[i][j];
        }
    }
    here.full = here.normal;
    here.full[0][0] += bend[0];
    here.full[0][1] += bend[1];
    here.full[1][0] += bend[1];
    here.full[1][1] += bend[2];
    here
}

/// Σ w·J·Jᵀ of (β0, β1).
pub(super) fn normal(rows: &[Row], beta: [f64; 3]) -> [[f64; 2]; 2] {
    let here = local(rows, beta).normal;
    [[here[0][0], here[0][1]], [here[1][0], here[1][1]]]
}

/// How many times the variance of β0 is what even noise of this variance would make it: noise
/// that grows with the loss weighs where β0 is told. White's estimate over the usual one.
pub(super) fn unevenness(rows: &[Row], beta: [f64; 3], variance: f64) -> f64 {
    let moves = [beta[0] > 0.0, beta[1] > BETA1_MIN, beta[2] > 0.0];
    let normal = local(rows, beta).normal;
    let Some(direction) = cholesky(&normal, 0.0, moves, [1.0, 0.0, 0.0]) else { return 1.0 };
    let white: f64 = rows
        .iter()
        .map(|row| {
            let by = row.derivatives(beta);
            let along: f64 = by.iter().zip(direction).map(|(by, direction)| by * direction).sum();
            let score = row.weight * (row.y - row.fitted(beta)) * along;
            score * score
        })
        .sum();
    let count = f64::from(u32::try_from(rows.len()).unwrap_or(u32::MAX));
    let ratio = white * count / (count - 3.0).max(1.0) / (variance * direction[0]);
    if ratio.is_finite() && moves[0] { ratio } else { 1.0 }
}

/// Solves the free rows of a symmetric matrix by Cholesky; none where it is not positive.
fn cholesky(matrix: &Matrix, damping: f64, free: [bool; 3], right: [f64; 3]) -> Option<[f64; 3]> {
    let mut lower = [[0.0; 3]; 3];
    let mut solved = [0.0; 3];
    for i in (0..3).filter(|i| free[*i]) {
        for j in (0..=i).filter(|j| free[*j]) {
            let known: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let damped = if i == j { 1.0 + damping } else { 1.0 };
            let rest = matrix[i][j] * damped - known;
            if i == j {
                // A negated comparison would take a NaN for positive.
                let positive = rest > 1e-15 * matrix[i][i].abs();
                if !positive {
                    return None;
                }
                lower[i][i] = rest.sqrt();
            } else {
                lower[i][j] = rest / lower[j][j];
            }
        }
    }
    for i in (0..3).filter(|i| free[*i]) {
        let known: f64 = (0..i).map(|k| lower[i][k] * solved[k]).sum();
        solved[i] = (right[i] - known) / lower[i][i];
    }
    for i in (0..3).rev().filter(|i| free[*i]) {
        let known: f64 = (i + 1..3).map(|k| lower[k][i] * solved[k]).sum();
        solved[i] = (solved[i] - known) / lower[i][i];
    }
    Some(solved)
}

/// Which coefficients may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Free {
    All,
    /// β2 stays.
    Pair,
}

/// Dampings tried in one step before it counts as arrived.
const DAMPINGS: u32 = 12;
/// Relative change of β below which a step is the last: Newton's next error is its square.
const ARRIVED: f64 = 1e-9;

/// Share of the squares that a step must promise to save: less is rounding.
const GAIN_MIN: f64 = 1e-15;

/// From a start down to where no step lowers the squares. At most `steps` steps.
pub(super) fn polish(rows: &[Row], start: [f64; 3], free: Free, steps: u32) -> Option<Found> {
    let least = [0.0, BETA1_MIN, 0.0];
    let mut beta = [0, 1, 2].map(|i: usize| start[i].max(least[i]));
    let mut here = local(rows, beta);
    if !here.squares.is_finite() {
        return None;
    }
    for _ in 0..steps {
        let moves = [0, 1, 2].map(|i: usize| {
            let bound = beta[i] <= least[i] && here.gradient[i] > 0.0;
            !bound && (i < 2 || free == Free::All)
        });
        let Some((next, there)) = step(rows, beta, &here, moves) else { break };
        let change = (0..3)
            .map(|i| (next[i] - beta[i]).abs() / (next[i].abs() + f64::MIN_POSITIVE.sqrt()))
            .fold(0.0, f64::max);
        (beta, here) = (next, there);
        if change < ARRIVED {
            break;
        }
    }
    let fine = here.squares.is_finite() && beta.iter().all(|value| value.is_finite());
    fine.then_some(Found { beta, squares: here.squares })
}

/// One step that does not raise the squares beyond rounding: Newton's, else one of Gauss-Newton
/// that is damped until it helps.
fn step(rows: &[Row], beta: [f64; 3], here: &Local, moves: [bool; 3]) -> Option<([f64; 3], Local)> {
    let down = here.gradient.map(|value| -value);
    let mut damping = 0.0;
    for attempt in 0..DAMPINGS {
        let matrix = if attempt == 0 { &here.full } else { &here.normal };
        if let Some(change) = cholesky(matrix, damping, moves, down) {
            let gain: f64 = change.iter().zip(down).map(|(change, down)| change * down).sum();
            if attempt == 0 && gain <= GAIN_MIN * here.squares {
                return None;
            }
            let next = bounded(beta, change);
            let there = local(rows, next);
            // Near the end the squares differ by rounding only; Newton's step is still right.
            let slack = if attempt == 0 { 1e-14 * here.squares } else { 0.0 };
            if there.squares < here.squares + slack {
                return Some((next, there));
            }
        }
        damping = match attempt {
            0 => 0.0,
            1 => 1e-4,
            _ => damping * 10.0,
        };
    }
    None
}

/// A step may take a coefficient to its bound, but β0 and β1 not by more than nine tenths at
/// once: on the way they must not make the curve infinite.
fn bounded(beta: [f64; 3], change: [f64; 3]) -> [f64; 3] {
    let least = [0.0, BETA1_MIN, 0.0];
    [0, 1, 2].map(|i: usize| {
        let next = beta[i] + change[i];
        let floor = if i == 1 { (0.1 * beta[1]).max(least[1]) } else { least[i] };
        next.max(floor)
    })
}

/// (β0, β1) for a fixed β2 by the weighted rows turned round: exact without noise.
pub(super) fn turned_round(rows: &[Row], floor: f64) -> Option<[f64; 3]> {
    let (mut aa, mut ab, mut bb, mut ay, mut by) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for row in rows.iter().filter(|row| row.y > floor) {
        let above = row.y - floor;
        // Row 1/(l − β2) = β0·x + β1 times (l − β2)².
        let (b, y) = (above * above, above);
        let a = b * row.x;
        aa += row.weight * a * a;
        ab += row.weight * a * b;
        bb += row.weight * b * b;
        ay += row.weight * a * y;
        by += row.weight * b * y;
    }
    let determinant = aa * bb - ab * ab;
    let pair = [(ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant];
    if determinant > 1e-14 * aa * bb && pair[0] >= 0.0 && pair[1] > 0.0 {
        return Some([pair[0], pair[1], floor]);
    }
    // On an edge: the slope alone, or the constant alone.
    let (slope, constant) = (ay / aa, by / bb);
    if slope.is_finite() && slope > 0.0 && pair[1] <= 0.0 {
        return Some([slope, 1e-3 * slope, floor]);
    }
    (constant.is_finite() && constant > 0.0).then_some([0.0, constant, floor])
}

/// Values of β2 that the search looks at, evenly from 0 to the least loss and ever closer to it,
/// where curves end that are almost down.
const EVEN: u32 = 16;
const CLOSE: u32 = 6;
/// Newton steps at one β2: they only have to tell the valleys apart.
const STEPS_EACH: u32 = 4;
/// Valleys that are followed to the bottom.
const VALLEYS: usize = 3;
/// Steps to the bottom; the method takes 5 to 20.
const STEPS_MAX: u32 = 100;

/// The β of least squared error in loss over `rows`; `coarse` are the same points in fewer rows,
/// on which the valleys are looked for.
pub(super) fn search(rows: &[Row], coarse: &[Row]) -> Option<Found> {
    let least = coarse.iter().map(|row| row.y).fold(f64::INFINITY, f64::min).max(0.0);
    let even = (0..EVEN).map(|k| least * f64::from(k) / f64::from(EVEN));
    let close = (0..CLOSE).map(|k| least * (1.0 - libm::exp2(-f64::from(k) - 5.0)));
    let tried: Vec<Found> = even
        .chain(close)
        .filter_map(|floor| turned_round(coarse, floor))
        .filter_map(|start| polish(coarse, start, Free::Pair, STEPS_EACH))
        .collect();
    let mut valleys: Vec<usize> = (0..tried.len())
        .filter(|at| {
            let lower = |other: Option<&Found>| {
                other.is_none_or(|other| tried[*at].squares <= other.squares)
            };
            lower(at.checked_sub(1).and_then(|at| tried.get(at))) && lower(tried.get(at + 1))
        })
        .collect();
    valleys.sort_by(|a, b| tried[*a].squares.total_cmp(&tried[*b].squares).then(a.cmp(b)));
    valleys
        .into_iter()
        .take(VALLEYS)
        .filter_map(|at| polish(coarse, tried[at].beta, Free::All, STEPS_MAX))
        .filter_map(|found| polish(rows, found.beta, Free::All, STEPS_MAX))
        .min_by(|a, b| a.squares.total_cmp(&b.squares))
        .map(|found| sharpened(rows, found))
}

/// Mean squared error, in squares of the largest loss, below which the losses count as exact.
const EXACT: f64 = 1e-9;
/// Golden sections: they narrow β2 to its last digit.
const SECTIONS: u32 = 80;
/// The golden section.
const GOLDEN: f64 = 0.618_033_988_749_894_9;
/// Half of the first bracket of β2.
const BRACKET: f64 = 0.02;

/// Losses without noise that have hardly fallen yet: the three coefficients nearly make up for
/// each other, and Newton's method crawls. Along the rows turned round only β2 is left to find.
fn sharpened(rows: &[Row], found: Found) -> Found {
    let weight: f64 = rows.iter().map(|row| row.weight).sum();
    let least = rows.iter().map(|row| row.y).fold(f64::INFINITY, f64::min);
    if found.squares > EXACT * weight || least <= 0.0 {
        return found;
    }
    let at = |floor: f64| turned_round(rows, floor).map(|beta| (squares(rows, beta), beta));
    let worth = |floor: f64| at(floor).map_or(f64::INFINITY, |(squares, _)| squares);
    let (mut low, mut high) =
        ((found.beta[2] - BRACKET).max(0.0), (found.beta[2] + BRACKET).min(least));
    let (mut a, mut b) = (high - GOLDEN * (high - low), low + GOLDEN * (high - low));
    let (mut at_a, mut at_b) = (worth(a), worth(b));
    for _ in 0..SECTIONS {
        if at_a < at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - GOLDEN * (high - low);
            at_a = worth(a);
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + GOLDEN * (high - low);
            at_b = worth(b);
        }
    }
    at(f64::midpoint(low, high))
        .filter(|(squares, _)| *squares < found.squares)
        .map_or(found, |(squares, beta)| Found { beta, squares })
}

/// From the last fit's β down; none where that leads nowhere.
pub(super) fn follow(rows: &[Row], last: [f64; 3]) -> Option<Found> {
    polish(rows, last, Free::All, STEPS_MAX)
}
