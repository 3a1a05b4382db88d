//! The least of a quadratic function within bounds.

pub(super) const SIZE: usize = 7;
pub(super) type Vector = [f64; SIZE];
/// Symmetric; only its lower half is read.
pub(super) type Matrix = [[f64; SIZE]; SIZE];

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub low: Vector,
    pub high: Vector,
}

/// Times that the set of variables at their bounds may change.
const CHANGES_MAX: u32 = 21;

/// Where `xᵀAx/2 + bᵀx` is least within the bounds, from a first guess; A is positive
/// semidefinite. A set of active bounds is changed until no multiplier asks for more, or for so
/// long: then what was found so far is within the bounds, and not worse than the start.
pub(super) fn least(a: &Matrix, b: &Vector, bounds: &Bounds, start: &Vector) -> Vector {
    let scale = scales(a);
    let mut x = *start;
    let mut bound = [false; SIZE];
    for index in 0..SIZE {
        x[index] = x[index].clamp(bounds.low[index], bounds.high[index]);
        let is_fixed = bounds.high[index] <= bounds.low[index];
        bound[index] = is_fixed || scale[index] <= 0.0;
    }
    for _ in 0..CHANGES_MAX {
        let slope = gradient(a, b, &x);
        let step = newton(a, &slope, &scale, &bound);
        // As far as the first bound.
        let mut share = 1.0;
        let mut first = None;
        for index in (0..SIZE).filter(|index| !bound[*index]) {
            let target = x[index] + step[index];
            let limit = target.clamp(bounds.low[index], bounds.high[index]);
            if (limit - target).abs() > 0.0 && step[index].abs() > 0.0 {
                let to_limit = (limit - x[index]) / step[index];
                if to_limit < share {
                    (share, first) = (to_limit.max(0.0), Some((index, limit)));
                }
            }
        }
        for index in (0..SIZE).filter(|index| !bound[*index]) {
            let value = x[index] + share * step[index];
            x[index] = value.clamp(bounds.low[index], bounds.high[index]);
        }
        if let Some((index, limit)) = first {
            x[index] = limit;
            bound[index] = true;
            continue;
        }
        let slope = gradient(a, b, &x);
        // The bound variable that gains most by leaving its bound, in the curve's own scale.
        let asks = |index: &usize| {
            let index = *index;
            let is_free = bounds.low[index] < bounds.high[index] && scale[index] > 0.0;
            let slope = slope[index];
            let inward = if x[index] <= bounds.low[index] { -slope } else { slope };
            (bound[index] && is_free).then_some(inward * scale[index])
        };
        let most = (0..SIZE).filter_map(|index| Some((asks(&index)?, index)));
        match most.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(gain, _)| *gain > 1e-12) {
            Some((_, index)) => bound[index] = false,
            None => break,
        }
    }
    x
}

/// One over the square root of each diagonal entry; 0 where there is none: that variable does not
/// matter.
fn scales(a: &Matrix) -> Vector {
    let mut scale = Vector::default();
    for (index, scale) in scale.iter_mut().enumerate() {
        let diagonal = a[index][index];
        if diagonal.is_finite() && diagonal > 1e-280 {
            *scale = 1.0 / diagonal.sqrt();
        }
    }
    scale
}

fn gradient(a: &Matrix, b: &Vector, x: &Vector) -> Vector {
    let mut slope = *b;
    for row in 0..SIZE {
        for column in 0..row {
            slope[row] += a[row][column] * x[column];
            slope[column] += a[row][column] * x[row];
        }
        slope[row] += a[row][row] * x[row];
    }
    slope
}

/// The step to the least of the free variables: Cholesky's factor of their scaled matrix, where
/// what depends on the others stays.
fn newton(a: &Matrix, slope: &Vector, scale: &Vector, bound: &[bool; SIZE]) -> Vector {
    /// Least share of a variable that the ones before it leave unexplained.
    const PIVOT_MIN: f64 = 1e-13;
    let mut lower = Matrix::default();
    let mut step = Vector::default();
    let mut used = [false; SIZE];
    for row in (0..SIZE).filter(|row| !bound[*row]) {
        let mut left = 1.0;
        let mut known = 0.0;
        for column in (0..row).filter(|column| used[*column]) {
            let mut sum = a[row][column] * scale[row] * scale[column];
            for (a, b) in lower[row].iter().zip(&lower[column]).take(column) {
                sum -= a * b;
            }
            let value = sum / lower[column][column];
            lower[row][column] = value;
            left -= value * value;
            known += value * step[column];
        }
        if left > PIVOT_MIN {
            let pivot = left.sqrt();
            lower[row][row] = pivot;
            used[row] = true;
            step[row] = (-slope[row] * scale[row] - known) / pivot;
        } else {
            lower[row] = Vector::default();
        }
    }
    for row in (0..SIZE).rev().filter(|row| used[*row]) {
        let mut sum = step[row];
        for after in (row + 1..SIZE).filter(|after| used[*after]) {
            sum -= lower[after][row] * step[after];
        }
        step[row] = sum / lower[row][row];
    }
    for (step, scale) in step.iter_mut().zip(scale) {
        *step *= scale;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(a: &Matrix, b: &Vector, x: &Vector) -> f64 {
        let slope = gradient(a, b, x);
        x.iter().zip(slope.iter().zip(b)).map(|(x, (slope, b))| x * (slope + b) / 2.0).sum()
    }

    /// Against every choice of bounds, each solved as if nothing else mattered: coordinate descent
    /// from many starts is slow, and finds the same.
    #[test]
    fn is_as_low_as_coordinate_descent() {
        for seed in 1_u32..200 {
            let mut state = seed.wrapping_mul(2_654_435_761);
            let mut chance = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f64::from(state >> 8) / f64::from(1 << 24) - 0.5
            };
            let factor: Vec<Vector> = (0..9).map(|_| std::array::from_fn(|_| chance())).collect();
            let mut a = Matrix::default();
            for (row, values) in a.iter_mut().enumerate() {
                for (column, value) in values.iter_mut().enumerate() {
                    *value = factor.iter().map(|f| f[row] * f[column]).sum();
                }
            }
            let b: Vector = std::array::from_fn(|_| chance());
            let bounds = Bounds { low: [-0.3; SIZE], high: [0.4; SIZE] };
            let found = least(&a, &b, &bounds, &[0.0; SIZE]);
            let mut slow = Vector::default();
            for _ in 0..20_000 {
                for index in 0..SIZE {
                    let slope = gradient(&a, &b, &slow)[index];
                    let next = slow[index] - slope / a[index][index];
                    slow[index] = next.clamp(-0.3, 0.4);
                }
            }
            let (fast, slow) = (function(&a, &b, &found), function(&a, &b, &slow));
            assert!(fast <= slow + 1e-9, "{seed}: {fast} over {slow}");
            assert!(found.iter().all(|x| (-0.3..=0.4).contains(x)));
        }
    }
}
