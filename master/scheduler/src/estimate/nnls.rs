//! Non-negative least squares for a handful of unknowns, exactly and without ever failing.
//!
//! The solution of a least-squares problem under x >= 0 is the plain solution on the set of
//! unknowns that are not zero. All rows are held as a triangle, however many there are. Starting
//! from all unknowns, negative ones are taken out and those that would lower the squares put back;
//! where nothing is left to change, the conditions of Karush, Kuhn and Tucker hold, which is
//! enough in a convex problem. Such walks can turn in a circle on a tie in rounding (the crate
//! `nnls` (0.5.0) then panics, as it does for one in 3,000 small whole-numbered problems); after a
//! few turns every one of the at most 2^[`UNKNOWNS_MAX`] sets is tried instead, as numbers from
//! outside must not be able to stop a round. That crate serves the tests as a second opinion.

/// Most unknowns: 2^5 sets are tried.
pub const UNKNOWNS_MAX: usize = 5;
/// A larger number, or many of them, would overflow when squared.
const MAGNITUDE_MAX: f64 = 1e140;
/// A column with less than this share of its length outside the others' span is not told apart.
const INDEPENDENT_MIN: f64 = 1e-9;

/// Rows of a least-squares problem in `N` unknowns, folded into a triangle as they come.
#[derive(Clone, Debug)]
pub struct Problem<const N: usize> {
    /// Upper triangle by rows, with the right side behind.
    triangle: [[f64; N]; N],
    right: [f64; N],
    /// Squared part of the right side that no unknowns can reach.
    rest: f64,
    usable: bool,
}

impl<const N: usize> Default for Problem<N> {
    fn default() -> Self {
        Self { triangle: [[0.0; N]; N], right: [0.0; N], rest: 0.0, usable: N <= UNKNOWNS_MAX }
    }
}

/// The unknowns, none negative, and the sum of squared residuals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Solution<const N: usize> {
    pub x: [f64; N],
    pub squares: f64,
}

impl<const N: usize> Problem<N> {
    /// Adds `row · x = target`. A number that is not finite makes the problem unsolvable.
    pub fn push(&mut self, mut row: [f64; N], mut target: f64) {
        let fine = |value: &f64| value.abs() <= MAGNITUDE_MAX;
        if !row.iter().all(fine) || !fine(&target) {
            self.usable = false;
            return;
        }
        for at in 0..N {
            rotate(&mut self.triangle[at], &mut self.right[at], &mut row, &mut target, at);
        }
        self.rest += target * target;
    }

    /// The least-squares solution with no negative unknown; none where a row was not finite.
    #[must_use]
    pub fn solve(&self) -> Option<Solution<N>> {
        if !self.usable {
            return None;
        }
        self.walk().or_else(|| self.try_all())
    }

    /// From set to set until nothing is to be changed; none where it goes in a circle, or where
    /// unknowns cannot be told apart.
    fn walk(&self) -> Option<Solution<N>> {
        let mut set = (1_u32 << N) - 1;
        for _ in 0..2 * N {
            let found = self.solve_on(set)?;
            let negative = (0..N).filter(|k| found.x[*k] < 0.0).fold(0, |bits, k| bits | 1 << k);
            if negative == 0 {
                match self.missing(set, &found.x) {
                    None => return found.squares.is_finite().then_some(found),
                    Some(column) => set |= 1 << column,
                }
            } else {
                set &= !negative;
            }
        }
        None
    }

    /// Of the unknowns outside `set` the one whose growth would lower the squares most.
    fn missing(&self, set: u32, x: &[f64; N]) -> Option<usize> {
        let mut rest = self.right;
        for (value, row) in rest.iter_mut().zip(&self.triangle) {
            *value -= row.iter().zip(x).map(|(a, x)| a * x).sum::<f64>();
        }
        let target = self.right.iter().map(|value| value * value).sum::<f64>().sqrt();
        let pull = |column: usize| {
            let dot: f64 = self.triangle.iter().zip(rest).map(|(row, b)| row[column] * b).sum();
            dot / self.length(column)
        };
        let outside = (0..N).filter(|column| set & (1 << column) == 0);
        let pulls = outside.map(|column| (column, pull(column)));
        // Below this it is rounding; a zero column's is not a number and so left out as well.
        pulls
            .filter(|(_, pull)| *pull > 1e-10 * target)
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(column, _)| column)
    }

    fn length(&self, column: usize) -> f64 {
        self.triangle.iter().map(|row| row[column] * row[column]).sum::<f64>().sqrt()
    }

    /// The best of all sets.
    fn try_all(&self) -> Option<Solution<N>> {
        let nothing = self.rest + self.right.iter().map(|value| value * value).sum::<f64>();
        let mut best = Solution { x: [0.0; N], squares: nothing };
        for set in 1_u32..1 << N {
            let Some(found) = self.solve_on(set) else { continue };
            let allowed = found.x.iter().all(|value| *value >= 0.0);
            // Strictly better only: of equal ones the first set stays.
            if allowed && found.squares < best.squares {
                best = found;
            }
        }
        best.squares.is_finite().then_some(best)
    }

    /// The plain solution with the unknowns of `set`, negative ones too; none where they cannot
    /// be told apart.
    fn solve_on(&self, set: u32) -> Option<Solution<N>> {
        let mut columns = [0; N];
        let mut lengths = [0.0; N];
        let mut count = 0;
        for column in (0..N).filter(|column| set & (1 << column) != 0) {
            (columns[count], lengths[count]) = (column, self.length(column));
            if lengths[count] <= 0.0 {
                return None;
            }
            count += 1;
        }
        let mut small = [[0.0; N]; N];
        let mut right = [0.0; N];
        let mut squares = self.rest;
        for (source, value) in self.triangle.iter().zip(self.right) {
            let mut row = [0.0; N];
            let mut target = value;
            for at in 0..count {
                row[at] = source[columns[at]] / lengths[at];
            }
            for at in 0..count {
                rotate(&mut small[at], &mut right[at], &mut row, &mut target, at);
            }
            squares += target * target;
        }
        let mut x = [0.0; N];
        let mut scaled = [0.0; N];
        for at in (0..count).rev() {
            let pivot = small[at][at];
            if pivot.abs() < INDEPENDENT_MIN {
                return None;
            }
            let known: f64 = (at + 1..count).map(|k| small[at][k] * scaled[k]).sum();
            scaled[at] = (right[at] - known) / pivot;
            x[columns[at]] = scaled[at] / lengths[at];
        }
        x.iter().all(|value| value.is_finite()).then_some(Solution { x, squares })
    }
}

/// Turns `row` into the triangle's row `at` so that its entry `at` becomes zero (Givens).
fn rotate<const N: usize>(
    upper: &mut [f64; N],
    right: &mut f64,
    row: &mut [f64; N],
    target: &mut f64,
    at: usize,
) {
    if row[at] == 0.0 {
        return;
    }
    // No overflow: magnitudes are bounded above.
    let length = (upper[at] * upper[at] + row[at] * row[at]).sqrt();
    if length <= 0.0 {
        return;
    }
    let (cosine, sine) = (upper[at] / length, row[at] / length);
    let turn = |a: f64, b: f64| (cosine * a + sine * b, cosine * b - sine * a);
    for k in at..N {
        (upper[k], row[k]) = turn(upper[k], row[k]);
    }
    row[at] = 0.0;
    (*right, *target) = turn(*right, *target);
}

#[cfg(test)]
mod tests {
    use ndarray::{Array1, Array2};
    use proptest::prelude::*;

    use super::*;

    fn problem(rows: &[([f64; 3], f64)]) -> Problem<3> {
        let mut problem = Problem::default();
        for (row, target) in rows {
            problem.push(*row, *target);
        }
        problem
    }

    #[test]
    fn a_negative_unknown_becomes_zero() {
        // Plain least squares gives x1 = -1; the best with x1 = 0 is x0 = 1.5.
        let mut problem = Problem::<2>::default();
        problem.push([1.0, 1.0], 1.0);
        problem.push([1.0, 0.0], 2.0);
        let solution = problem.solve().unwrap();
        assert!((solution.x[0] - 1.5).abs() < 1e-12, "{solution:?}");
        assert!(solution.x[1].abs() < 1e-12);
        assert!((solution.squares - 0.5).abs() < 1e-12);
    }

    /// Its iterative solution panics in `nnls` 0.5.0: a coefficient meets zero exactly.
    #[test]
    fn a_tie_is_no_trouble() {
        let rows = [([0.0, 3.0, 1.0], 2.0), ([0.0, 1.0, 1.0], 2.0), ([-3.0, 2.0, 0.0], 0.0)];
        let solution = problem(&rows).solve().unwrap();
        // By hand: x2 = 2 and nothing else.
        assert!((solution.x[2] - 2.0).abs() < 1e-12, "{solution:?}");
        assert!(solution.x[0].abs() + solution.x[1].abs() < 1e-12, "{solution:?}");
        assert!(solution.squares < 1e-20, "{solution:?}");
    }

    #[test]
    fn what_is_not_finite_has_no_solution() {
        for wrong in [f64::NAN, f64::INFINITY, -1e300] {
            assert_eq!(problem(&[([1.0, wrong, 0.0], 1.0)]).solve(), None);
            assert_eq!(problem(&[([1.0, 0.0, 0.0], wrong)]).solve(), None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// The widely used iterative solver finds the same sum of squares.
        #[test]
        fn agrees_with_the_iterative_solver(
            rows in proptest::collection::vec((prop::array::uniform3(-4.0..4.0), -4.0..4.0), 4..12)
        ) {
            let flat = rows.iter().flat_map(|(row, _): &([f64; 3], f64)| row.to_vec()).collect();
            let a = Array2::from_shape_vec((rows.len(), 3), flat).unwrap();
            let b = Array1::from_iter(rows.iter().map(|(_, target)| *target));
            let (_, norm) = ::nnls::nnls(a.view(), b.view());
            let ours = problem(&rows).solve().unwrap();
            prop_assert!((ours.squares - norm * norm).abs() < 1e-8 * (1.0 + norm * norm));
        }

        /// No unknown can be moved, up or down to zero, so that the squares fall.
        #[test]
        fn is_optimal(
            rows in proptest::collection::vec((prop::array::uniform3(0.0..4.0), -1.0..4.0), 1..8)
        ) {
            let solution = problem(&rows).solve().unwrap();
            let squares = |x: [f64; 3]| rows.iter().map(|(row, target): &([f64; 3], f64)| {
                let miss = row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>() - target;
                miss * miss
            }).sum::<f64>();
            prop_assert!((squares(solution.x) - solution.squares).abs() < 1e-9);
            for k in 0..3 {
                for delta in [-1e-3, 1e-3] {
                    let mut other = solution.x;
                    other[k] = (other[k] + delta).max(0.0);
                    prop_assert!(squares(other) >= solution.squares - 1e-9);
                }
            }
        }
    }
}
