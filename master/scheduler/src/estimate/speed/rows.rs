//! Samples as rows of a fit, one for each shape; samples of a shape that contradict each other.

use model::Shape;

use super::fit::solve;
use super::outlier::{AGREED_FACTOR, OUTLIER_FACTOR, OUTLIER_SHAPES_MIN, outliers};
use super::{SpeedForm, SpeedSample, TERMS};

/// One shape's samples, or a single sample, as one row: x/T and its weight; the target is 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) shape: Shape,
    pub(super) relative: [f64; TERMS],
    pub(super) weight: f64,
}

/// Most shapes that enter a fit: bounds its cost.
const SHAPES_MAX: usize = 128;

/// A sample that a fit takes, with its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) at: usize,
    pub(super) shape: Shape,
    pub(super) seconds: f64,
    pub(super) weight: f64,
}

impl Taken {
    pub(super) fn row(&self, form: SpeedForm) -> Row {
        let Self { shape, seconds, weight, .. } = *self;
        Row { shape, relative: form.features(shape).map(|x| x / seconds), weight }
    }

    /// True where two T differ by no more than a gross outlier's factor.
    fn agrees(&self, seconds: f64) -> bool {
        apart(self.seconds, seconds) <= libm::log(OUTLIER_FACTOR)
    }
}

/// The factor between two T as a logarithm.
fn apart(a: f64, b: f64) -> f64 {
    libm::log(a / b).abs()
}

/// T of a sample in seconds and its weight, where both can be used.
fn measured(form: SpeedForm, sample: &SpeedSample) -> Option<(f64, f64)> {
    let shape = sample.shape;
    let seconds = form.seconds(shape, sample.steps_per_s);
    let trusted = sample.weight.is_finite() && sample.weight > 0.0;
    (shape.servers > 0 && shape.workers > 0 && (1e-12..1e12).contains(&seconds) && trusted)
        .then(|| (seconds, sample.weight.clamp(1e-6, 1e9)))
}

/// True for a sample that a fit takes.
pub(super) fn usable(form: SpeedForm, sample: &SpeedSample) -> bool {
    measured(form, sample).is_some()
}

/// The samples that a fit takes, by shape, then by T.
pub(super) fn taken(form: SpeedForm, samples: &[SpeedSample]) -> Vec<Taken> {
    let one = |(at, sample): (usize, &SpeedSample)| {
        let (seconds, weight) = measured(form, sample)?;
        Some(Taken { at, shape: sample.shape, seconds, weight })
    };
    let mut taken: Vec<Taken> = samples.iter().enumerate().filter_map(one).collect();
    taken.sort_by(|a, b| {
        let by_time = a.seconds.total_cmp(&b.seconds).then(a.weight.total_cmp(&b.weight));
        a.shape.cmp(&b.shape).then(by_time)
    });
    taken
}

/// Those of the samples that do not contradict the others of their shape.
///
/// Where a shape's samples differ by more than a factor of two, those are kept that more than half
/// of the weight agrees with. Where no half agrees, the fit of the other shapes decides: the
/// sample closest to it is kept with those that agree with that one. It also overrules a majority
/// that is off by more than a factor of two from it, where there are enough other shapes and a
/// minority agrees well. With no other shape to go by all are kept.
pub(super) fn consistent(form: SpeedForm, taken: &[Taken]) -> Vec<Taken> {
    let mut kept = Vec::with_capacity(taken.len());
    let mut split: Vec<(&[Taken], Option<f64>)> = Vec::new();
    for same in taken.chunk_by(|a, b| a.shape == b.shape) {
        let whole = same.first().zip(same.last()).is_none_or(|(a, b)| a.agrees(b.seconds));
        if whole {
            kept.extend_from_slice(same);
        } else {
            split.push((same, majority(same)));
        }
    }
    if split.is_empty() {
        return kept;
    }
    let mut others = rows(form, &kept);
    let wrong = outliers(form, &others, kept.len());
    others.retain(|row| !wrong.contains(&row.shape));
    if others.is_empty() {
        // Every shape contradicts itself: those with a majority stand for it.
        let voted = split.iter().flat_map(|(same, majority)| {
            same.iter().filter(move |one| majority.is_some_and(|middle| one.agrees(middle)))
        });
        others = rows(form, &voted.copied().collect::<Vec<Taken>>());
    }
    let theta = if others.is_empty() { None } else { solve(form, &others).map(|(theta, _)| theta) };
    for (same, majority) in split {
        let elsewhere = others.iter().filter(|row| row.shape != same[0].shape).count();
        let x = form.features(same[0].shape);
        let expected = theta
            .filter(|_| elsewhere > 0)
            .map(|theta| theta.iter().zip(x).map(|(theta, x)| theta * x).sum::<f64>());
        let centre = centre(same, majority, expected, elsewhere);
        let agrees = |one: &&Taken| centre.is_none_or(|centre| one.agrees(centre));
        kept.extend(same.iter().filter(agrees));
    }
    kept.sort_by(|a, b| a.shape.cmp(&b.shape).then(a.seconds.total_cmp(&b.seconds)));
    kept
}

/// The T around which a shape's samples are kept; none where nothing tells which are right.
fn centre(
    same: &[Taken],
    majority: Option<f64>,
    expected: Option<f64>,
    others: usize,
) -> Option<f64> {
    let Some(expected) = expected.filter(|expected| *expected > 0.0) else { return majority };
    let close =
        |a: &&Taken, b: &&Taken| apart(a.seconds, expected).total_cmp(&apart(b.seconds, expected));
    let closest = same.iter().min_by(close)?.seconds;
    let Some(majority) = majority else { return Some(closest) };
    let overruled = others + 1 >= OUTLIER_SHAPES_MIN
        && apart(majority, expected) > libm::log(OUTLIER_FACTOR)
        && apart(closest, expected) <= libm::log(AGREED_FACTOR);
    Some(if overruled { closest } else { majority })
}

/// The T of a sample that more than half of the weight agrees with: the median's.
fn majority(same: &[Taken]) -> Option<f64> {
    let total: f64 = same.iter().map(|one| one.weight).sum();
    let mut below = 0.0;
    let middle = same.iter().find(|one| {
        below += one.weight;
        below * 2.0 > total * (1.0 - 1e-12)
    })?;
    let agreed: f64 =
        same.iter().filter(|one| one.agrees(middle.seconds)).map(|one| one.weight).sum();
    (agreed * 2.0 > total * (1.0 + 1e-12)).then_some(middle.seconds)
}

/// One row for each shape: the weighted median of its T.
pub(super) fn rows(form: SpeedForm, taken: &[Taken]) -> Vec<Row> {
    let mut rows: Vec<Row> = taken
        .chunk_by(|a, b| a.shape == b.shape)
        .map(|same| {
            let total: f64 = same.iter().map(|one| one.weight).sum();
            let seconds = weighted_median(same, total);
            Taken { at: 0, shape: same[0].shape, seconds, weight: total }.row(form)
        })
        .collect();
    if rows.len() > SHAPES_MAX {
        let count = rows.len();
        rows = (0..SHAPES_MAX).map(|at| rows[at * count / SHAPES_MAX]).collect();
    }
    // No shape drowns the others: the fit is there for the shapes that were not measured.
    let heaviest = rows.iter().map(|row| row.weight).fold(0.0, f64::max);
    for row in &mut rows {
        row.weight = row.weight.max(heaviest / 20.0);
    }
    rows
}

/// Of samples sorted by T: the T at half the weight, the mean of two where it falls between.
fn weighted_median(sorted: &[Taken], total: f64) -> f64 {
    let mut below = 0.0;
    for (at, one) in sorted.iter().enumerate() {
        below += one.weight;
        if below * 2.0 > total * (1.0 + 1e-12) {
            return one.seconds;
        }
        if below * 2.0 >= total * (1.0 - 1e-12) {
            let next = sorted.get(at + 1);
            return next.map_or(one.seconds, |next| f64::midpoint(one.seconds, next.seconds));
        }
    }
    sorted.last().map_or(0.0, |last| last.seconds)
}
