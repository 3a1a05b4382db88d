//! Cholesky's factor of small positive definite matrices.

/// L of `L·Lᵀ`, lower triangle by rows.
#[derive(Clone, Debug)]
pub(super) struct Lower {
    rows: Vec<Vec<f64>>,
}

impl Lower {
    /// The factor of a symmetric matrix, its lower half given by rows, with `ridge` added to the
    /// diagonal; none where that is not positive definite or not finite.
    pub(super) fn of(mut rows: Vec<Vec<f64>>, ridge: f64) -> Option<Self> {
        for at in 0..rows.len() {
            let (above, rest) = rows.split_at_mut(at);
            let row = &mut rest[0];
            row.truncate(at + 1);
            for (column, upper) in above.iter().enumerate() {
                let known: f64 = row[..column].iter().zip(upper).map(|(a, b)| a * b).sum();
                row[column] = (row[column] - known) / upper[column];
            }
            let known: f64 = row[..at].iter().map(|a| a * a).sum();
            let pivot = row[at] + ridge - known;
            if !pivot.is_finite() || pivot <= 0.0 {
                return None;
            }
            row[at] = pivot.sqrt();
        }
        Some(Self { rows })
    }

    /// Puts the solution of `L·x = b` in the place of b.
    pub(super) fn forward(&self, b: &mut [f64]) {
        for (at, row) in self.rows.iter().enumerate() {
            let known: f64 = row[..at].iter().zip(&*b).map(|(a, x)| a * x).sum();
            b[at] = (b[at] - known) / row[at];
        }
    }

    /// Puts the solution of `Lᵀ·x = b` in the place of b.
    pub(super) fn backward(&self, b: &mut [f64]) {
        for at in (0..self.rows.len()).rev() {
            let known: f64 = (at + 1..self.rows.len()).map(|k| self.rows[k][at] * b[k]).sum();
            b[at] = (b[at] - known) / self.rows[at][at];
        }
    }

    /// Half the logarithm of the matrix's determinant.
    pub(super) fn log_diagonal(&self) -> f64 {
        self.rows.iter().enumerate().map(|(at, row)| libm::log(row[at])).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: [[4, 2], [2, 5]] is L·Lᵀ of [[2], [1, 2]], and its determinant 16.
    #[test]
    fn solves_a_matrix_by_hand() {
        let lower = Lower::of(vec![vec![3.0], vec![2.0, 4.0]], 1.0).unwrap();
        assert!((lower.rows[1][0] - 1.0).abs() < 1e-15 && (lower.rows[1][1] - 2.0).abs() < 1e-15);
        let mut b = [8.0, 12.0];
        lower.forward(&mut b);
        lower.backward(&mut b);
        assert!((b[0] - 1.0).abs() < 1e-14 && (b[1] - 2.0).abs() < 1e-14, "{b:?}");
        assert!((lower.log_diagonal() - libm::log(4.0)).abs() < 1e-14);
    }

    #[test]
    fn what_is_not_positive_definite_has_none() {
        assert!(Lower::of(vec![vec![1.0], vec![2.0, 1.0]], 0.0).is_none());
        assert!(Lower::of(vec![vec![f64::NAN]], 1.0).is_none());
        assert!(Lower::of(vec![vec![f64::INFINITY]], 1.0).is_none());
    }
}
