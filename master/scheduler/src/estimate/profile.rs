//! Which shapes to measure for a new job (section 3.2; the paper pre-runs five).

use model::Shape;

/// Steps of the grid of candidates, as multiples of the least count.
const MULTIPLES: [u32; 7] = [1, 2, 3, 4, 6, 8, 12];
const TERMS: usize = 5;

/// At most `count_max` shapes within the bounds and allowed by `fits`, the least shape first,
/// then by how much each teaches beyond those before it.
///
/// The rows of Eqns. (3) and (4) are (1, w/p, w, p) and 1/w. Each next shape is the one whose
/// row is the worst known from the rows chosen (largest variance, which makes the determinant of
/// the design grow most), so that w/p, w and p are spanned: shapes with p = w throughout would
/// leave the transfer's coefficient open.
pub fn profile_shapes(
    min: Shape,
    max: Shape,
    count_max: usize,
    fits: impl Fn(Shape) -> bool,
) -> Vec<Shape> {
    let least = Shape::new(min.servers.max(1), min.workers.max(1));
    if max.servers < least.servers || max.workers < least.workers || count_max == 0 || !fits(least)
    {
        return Vec::new();
    }
    let counts = |low: u32, high: u32| -> Vec<u32> {
        let mut counts: Vec<u32> =
            MULTIPLES.iter().map(|factor| low.saturating_mul(*factor).min(high)).collect();
        counts.dedup();
        counts
    };
    let mut candidates = Vec::new();
    for servers in counts(least.servers, max.servers) {
        for workers in counts(least.workers, max.workers) {
            let shape = Shape::new(servers, workers);
            if shape != least && fits(shape) {
                candidates.push(shape);
            }
        }
    }
    let mut design = Design::new();
    design.add(least);
    let mut chosen = vec![least];
    while chosen.len() < count_max {
        // Of equal ones the smaller shape: it disturbs others less.
        let best = candidates.iter().enumerate().max_by(|(_, a), (_, b)| {
            design.variance(**a).total_cmp(&design.variance(**b)).then(b.cmp(a))
        });
        let Some((at, _)) = best else { break };
        let shape = candidates.remove(at);
        design.add(shape);
        chosen.push(shape);
    }
    chosen
}

/// Inverse of the information that the rows chosen so far hold.
struct Design {
    inverse: [[f64; TERMS]; TERMS],
}

impl Design {
    fn new() -> Self {
        let mut inverse = [[0.0; TERMS]; TERMS];
        for (k, row) in inverse.iter_mut().enumerate() {
            // Little is known beforehand: a variance far above that of a row.
            row[k] = 100.0;
        }
        Self { inverse }
    }

    /// A row divided by a typical T, as relative errors count.
    fn row(shape: Shape) -> [f64; TERMS] {
        let (p, w) = (f64::from(shape.servers), f64::from(shape.workers));
        let seconds = 0.4 + 0.2 * w / p + 0.01 * w + 0.01 * p + 0.4 / w;
        [1.0 / seconds, w / p / seconds, w / seconds, p / seconds, 1.0 / w / seconds]
    }

    fn times(&self, row: &[f64; TERMS]) -> [f64; TERMS] {
        self.inverse.map(|line| line.iter().zip(row).map(|(a, b)| a * b).sum())
    }

    fn variance(&self, shape: Shape) -> f64 {
        let row = Self::row(shape);
        self.times(&row).iter().zip(row).map(|(a, b)| a * b).sum()
    }

    /// Sherman and Morrison's update of an inverse.
    fn add(&mut self, shape: Shape) {
        let row = Self::row(shape);
        let spread = self.times(&row);
        let divisor = 1.0 + spread.iter().zip(row).map(|(a, b)| a * b).sum::<f64>();
        for (line, a) in self.inverse.iter_mut().zip(spread) {
            for (value, b) in line.iter_mut().zip(spread) {
                *value -= a * b / divisor;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_shapes_span_the_terms() {
        let shapes = profile_shapes(Shape::new(1, 1), Shape::new(8, 8), 5, |_| true);
        assert_eq!(shapes.len(), 5);
        assert_eq!(shapes[0], Shape::new(1, 1));
        let mut ratios: Vec<u32> = shapes.iter().map(|s| 1000 * s.workers / s.servers).collect();
        ratios.sort_unstable();
        ratios.dedup();
        assert!(ratios.len() >= 3, "{shapes:?}");
        for count in [|s: &Shape| s.workers, |s: &Shape| s.servers] {
            let mut counts: Vec<u32> = shapes.iter().map(count).collect();
            counts.sort_unstable();
            counts.dedup();
            assert!(counts.len() >= 2, "{shapes:?}");
        }
    }

    #[test]
    fn bounds_and_room_are_kept() {
        let (min, max) = (Shape::new(2, 3), Shape::new(3, 5));
        let shapes = profile_shapes(min, max, 9, |shape| shape.workers < 5);
        assert_eq!(shapes[0], min);
        for (at, shape) in shapes.iter().enumerate() {
            assert!((2..=3).contains(&shape.servers) && (3..=4).contains(&shape.workers));
            assert!(!shapes[..at].contains(shape), "{shape} twice");
        }
        assert_eq!(profile_shapes(min, min, 5, |_| true), [min]);
        assert_eq!(profile_shapes(min, max, 5, |_| false), []);
        assert_eq!(profile_shapes(max, min, 5, |_| true), []);
        let wide = profile_shapes(Shape::new(1, 1), Shape::new(u32::MAX, u32::MAX), 5, |_| true);
        assert_eq!(wide.len(), 5);
    }
}
