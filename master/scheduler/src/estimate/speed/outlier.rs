//! Samples that are grossly wrong: measured speeds hold some that are eight times too fast.

use model::Shape;

use super::fit::{miss, solve};
use super::rows::Row;
use super::{SpeedForm, TERMS};

/// A sample is a gross outlier where the fit of the others is off by more than this factor from
/// it, and is this many times closer to the others without it.
pub(super) const OUTLIER_FACTOR: f64 = 2.0;
const OUTLIER_RELIEF: f64 = 3.0;
/// Where one fit agrees with every sample to within this factor, none is called wrong.
pub(super) const AGREED_FACTOR: f64 = 1.5;
/// Fewest shapes with which one can be called an outlier, and fewest samples, and the shapes that
/// they must be of at least, with which two can.
pub(super) const OUTLIER_SHAPES_MIN: usize = 5;
const TWO_OUTLIERS_MIN: usize = 10;
const TWO_OUTLIERS_SHAPES_MIN: usize = 8;
/// Starts of the search for what most rows agree on, and rows in each. With one row in five wrong
/// a start is free of them with a probability of a third, with two of eight of a fifth: one of 24
/// is as good as certain.
const STARTS: u32 = 24;
const START_ROWS: usize = 4;
/// Concentrations from a start; few change anything after the second.
const CONCENTRATIONS: usize = 3;

/// The shapes among these whose samples are gross outliers, at most one in five of the `samples`
/// that the rows were made of, in order.
pub(super) fn outliers(form: SpeedForm, rows: &[Row], samples: usize) -> Vec<Shape> {
    let mut found = if rows.len() < OUTLIER_SHAPES_MIN {
        Vec::new()
    } else if samples < TWO_OUTLIERS_MIN || rows.len() < TWO_OUTLIERS_SHAPES_MIN {
        left_out(form, rows).into_iter().collect()
    } else {
        far_from_most(form, rows)
    };
    found.sort_unstable();
    found
}

/// A single gross outlier among few rows: each is left out in turn.
fn left_out(form: SpeedForm, rows: &[Row]) -> Option<Shape> {
    let (_, all) = solve(form, rows)?;
    let tries = (0..rows.len()).filter_map(|at| {
        let mut rest = rows.to_vec();
        let row = rest.remove(at);
        let (theta, loss) = solve(form, &rest)?;
        (miss(&theta, &row) > libm::log(OUTLIER_FACTOR)).then_some((row.shape, loss))
    });
    let (shape, loss) = tries.min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))?;
    (loss * OUTLIER_RELIEF * OUTLIER_RELIEF <= all).then_some(shape)
}

/// Gross outliers among more rows. Several hide behind each other, and one that is too fast draws
/// a fit of relative errors to itself, so first those four fifths of the rows (all but two of few)
/// are looked for that agree best with one fit (least trimmed squares of the errors' logarithms,
/// by concentration from small random sets: Rousseeuw and Van Driessen, 2006). The far ones of the
/// others are outliers.
fn far_from_most(form: SpeedForm, rows: &[Row]) -> Vec<Shape> {
    let Some((all, _)) = solve(form, rows) else { return Vec::new() };
    let before = Misses::of(&all, rows);
    if before.0.iter().all(|(miss, _)| *miss <= libm::log(AGREED_FACTOR)) {
        return Vec::new();
    }
    let most = rows.len() - (rows.len() / 5).max(2);
    let starts = std::iter::once(Some(all)).chain((0..STARTS).map(|at| start(form, rows, at)));
    let ends = starts.flatten().map(|theta| concentrated(form, rows, theta, most));
    let Some(misses) = ends.min_by(|a, b| a.squares(most).total_cmp(&b.squares(most))) else {
        return Vec::new();
    };
    let middle = misses.0[rows.len() / 2].0;
    let far = libm::log(OUTLIER_FACTOR).max(6.0 * middle);
    let outliers: Vec<Shape> = misses.0[most..]
        .iter()
        .filter(|(miss, _)| *miss > far)
        .map(|(_, at)| rows[*at].shape)
        .collect();
    // A form that fits no better without them is what is wrong.
    let relief = OUTLIER_RELIEF * OUTLIER_RELIEF * misses.squares(most);
    if relief <= before.squares(rows.len()) { outliers } else { Vec::new() }
}

/// A fit to a few rows by a fixed rule.
fn start(form: SpeedForm, rows: &[Row], number: u32) -> Option<[f64; TERMS]> {
    let count = u64::try_from(rows.len()).ok()?;
    let mut state = u64::from(number);
    let mut few: Vec<Row> = Vec::with_capacity(START_ROWS);
    while few.len() < START_ROWS {
        // Knuth's linear congruence; its high bits are random enough for a choice.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let row = rows[usize::try_from((state >> 33) % count).ok()?];
        // The rows are of different shapes, and more than are wanted.
        if few.iter().all(|other| other.shape != row.shape) {
            few.push(row);
        }
    }
    solve(form, &few).map(|(theta, _)| theta)
}

/// Fits the rows that a fit agrees with best, again and again.
fn concentrated(form: SpeedForm, rows: &[Row], theta: [f64; TERMS], most: usize) -> Misses {
    let mut misses = Misses::of(&theta, rows);
    for _ in 0..CONCENTRATIONS {
        let best: Vec<Row> = misses.0[..most].iter().map(|(_, at)| rows[*at]).collect();
        let Some((next, _)) = solve(form, &best) else { break };
        let after = Misses::of(&next, rows);
        if after.squares(most) >= misses.squares(most) {
            break;
        }
        misses = after;
    }
    misses
}

/// How far a fit is from each row, with the row's position, the closest first.
struct Misses(Vec<(f64, usize)>);

impl Misses {
    fn of(theta: &[f64; TERMS], rows: &[Row]) -> Self {
        let mut misses: Vec<(f64, usize)> =
            rows.iter().enumerate().map(|(at, row)| (miss(theta, row), at)).collect();
        misses.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        Self(misses)
    }

    /// The sum of squares of the closest.
    fn squares(&self, count: usize) -> f64 {
        self.0[..count].iter().map(|(miss, _)| miss * miss).sum()
    }
}
