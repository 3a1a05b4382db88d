//! What the tasks of the jobs priced so far are worth, best first.
//!
//! A concave function of the share of the cluster: the most progress, in value a second, that
//! these jobs make together of so much of it. It is kept as the widths of its pieces by slope in
//! buckets under 1 % wide, each with its exact worth, in a tree of prefix sums: adding a piece and
//! reading a value take a dozen steps however many jobs there are.

/// Buckets of slopes: 128 to a doubling, from 2^-14 to 2^50. Slopes are jobs over shares of the
/// cluster; beyond these ends they are counted as the ends are.
const BUCKETS: usize = 1 << 13;
const PER_DOUBLING_BITS: u32 = 7;
const LOWEST: f64 = 1.0 / 16384.0;

#[derive(Clone, Debug)]
pub(super) struct Supply {
    /// Prefix sums of (share, worth), steepest bucket first; the first entry is not used.
    tree: Vec<(f64, f64)>,
}

impl Supply {
    pub(super) fn new() -> Self {
        Self { tree: vec![(0.0, 0.0); BUCKETS + 1] }
    }

    /// Place of a slope's bucket, from 1 for the steepest.
    fn place(slope: f64) -> usize {
        let step = |slope: f64| slope.to_bits() >> (f64::MANTISSA_DIGITS - 1 - PER_DOUBLING_BITS);
        let above = step(slope.max(LOWEST)) - step(LOWEST);
        BUCKETS - usize::try_from(above).unwrap_or(BUCKETS).min(BUCKETS - 1)
    }

    /// Adds a piece; both are positive and finite.
    pub(super) fn add(&mut self, share: f64, worth: f64) {
        let mut at = Self::place(worth / share);
        while at <= BUCKETS {
            let (shares, worths) = &mut self.tree[at];
            (*shares, *worths) = (*shares + share, *worths + worth);
            at += at & at.wrapping_neg();
        }
    }

    /// The most that these jobs make of a share.
    pub(super) fn worth(&self, mut share: f64) -> f64 {
        if share <= 0.0 {
            return 0.0;
        }
        let (mut at, mut worth, mut step) = (0, 0.0, BUCKETS);
        while step > 0 {
            if let Some((shares, worths)) = self.tree.get(at + step)
                && *shares <= share
            {
                at += step;
                share -= shares;
                worth += worths;
            }
            step /= 2;
        }
        // What is left goes into a part of the next bucket.
        match self.bucket(at + 1) {
            Some((shares, worths)) if shares > 0.0 => worth + worths * (share / shares).min(1.0),
            _ => worth,
        }
    }

    /// Share and worth of one bucket.
    fn bucket(&self, at: usize) -> Option<(f64, f64)> {
        let (mut shares, mut worths) = *self.tree.get(at)?;
        let stop = at - (at & at.wrapping_neg());
        let mut below = at - 1;
        while below > stop {
            let (share, worth) = self.tree[below];
            (shares, worths) = (shares - share, worths - worth);
            below -= below & below.wrapping_neg();
        }
        Some((shares, worths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_pieces_come_first() {
        let mut supply = Supply::new();
        for (share, worth) in [(0.5, 1.0), (0.25, 2.0), (0.25, 0.25)] {
            supply.add(share, worth);
        }
        for (share, worth) in [
            (0.0, 0.0),
            (0.125, 1.0),
            (0.25, 2.0),
            (0.5, 2.5),
            (0.75, 3.0),
            (1.0, 3.25),
            (9.0, 3.25),
        ] {
            assert!((supply.worth(share) - worth).abs() < 1e-9, "{share}: {}", supply.worth(share));
        }
    }

    #[test]
    fn slopes_beyond_the_ends_count_as_the_ends() {
        let mut supply = Supply::new();
        supply.add(1e-300, 1e300);
        supply.add(1.0, 1e-300);
        assert!(supply.worth(1.0) >= 1e300);
        assert!(supply.worth(f64::NAN) >= 0.0);
    }
}
