//! Which shapes to measure next, so that the speeds of all the others become known best.
//!
//! The logarithm of T is taken as a Gaussian process: the terms of the form with shares of T that
//! are known to a tenth beforehand, the smooth residual on top, and the noise of a sample. How
//! much a sample at a shape lowers the variance at every other one does not depend on what it
//! shows, so it can be asked before: the next shape is the one that lowers the variance summed
//! over all candidates most (the criterion of Cohn, 1996). That spans w/p, w and p by itself:
//! shapes with p = w alone would leave the transfer's coefficient open. To take the shape known
//! worst instead walks along the edges, and errs a tenth to a third more on the measured models.

use std::collections::BTreeSet;

use model::Shape;

use super::residual::{Coordinates, coordinates, likeness};
use super::rows::usable;
use super::{SpeedForm, SpeedModel, SpeedSample, TERMS, fit_full};

/// Standard deviations, relative: of a term's mean share of T beside its own before anything is
/// measured; of the residual; and of a sample. Only their proportions count; these are chosen once
/// by what the samples asked for predict of the measured models, where they matter little.
const SHARE_SPREAD: f64 = 0.1;
const RESIDUAL: f64 = 0.25;
const SAMPLE: f64 = 0.08;
/// Most candidates that are weighed against each other, so that the matrix stays small. Of more
/// the least one is taken from each cell of a grid of logarithms.
const POOL_MAX: usize = 400;
const CELLS_PER_LOG: f64 = 4.0;

/// Of the candidates the `count` shapes to measure next, the most useful first, each given that
/// those before it are measured too. Fewer where there are fewer. No shape that the samples hold
/// already, as long as another is left. Shapes without a server or a worker are passed over.
#[must_use]
pub fn next_shapes(
    form: SpeedForm,
    samples: &[SpeedSample],
    candidates: &[Shape],
    count: usize,
) -> Vec<Shape> {
    let full = |shape: &&Shape| shape.servers > 0 && shape.workers > 0;
    let all: BTreeSet<Shape> = candidates.iter().filter(full).copied().collect();
    let measured: BTreeSet<Shape> =
        samples.iter().filter(|sample| usable(form, sample)).map(|sample| sample.shape).collect();
    let mut open: BTreeSet<Shape> = all.difference(&measured).copied().collect();
    if open.is_empty() {
        open.clone_from(&all);
    }
    let Some(least) = open.iter().min_by_key(|shape| size(**shape)).copied() else {
        return Vec::new();
    };
    let fit = fit_full(form, samples).ok();
    let outliers = fit.as_ref().map_or_else(Vec::new, |fit| fit.outliers.clone());
    let model = fit.map_or_else(|| guess(form, least), |fit| fit.model);
    // What was measured wrongly taught nothing.
    let known = thin(measured.into_iter().filter(|shape| !outliers.contains(shape)));

    let mut points = thin(open.iter().copied());
    let mut left: Vec<usize> = (0..points.len()).collect();
    let others: Vec<Shape> = known.iter().filter(|s| !points.contains(s)).copied().collect();
    points.extend(others);
    let counted: Vec<bool> = points.iter().map(|shape| all.contains(shape)).collect();
    let mut spread = Spread::new(&model, &points, counted);
    for at in (0..points.len()).filter(|at| known.contains(&points[*at])) {
        spread.measure(at);
    }
    let mut chosen = Vec::new();
    while chosen.len() < count {
        // Of equal ones the smaller shape: it disturbs others less.
        let gains = left.iter().map(|at| (*at, spread.gain(*at)));
        let best = gains.max_by(|(a, gain_a), (b, gain_b)| {
            gain_a.total_cmp(gain_b).then(size(points[*b]).cmp(&size(points[*a])))
        });
        let Some((at, _)) = best else { break };
        spread.measure(at);
        left.retain(|other| *other != at);
        open.remove(&points[at]);
        chosen.push(points[at]);
    }
    // More than were weighed: the rest as it comes.
    let missing = count - chosen.len();
    chosen.extend(open.into_iter().take(missing));
    chosen
}

/// By tasks, then by servers.
fn size(shape: Shape) -> (u64, u32) {
    (u64::from(shape.servers) + u64::from(shape.workers), shape.servers)
}

/// The form with the prior's shares at a shape.
fn guess(form: SpeedForm, at: Shape) -> SpeedModel {
    let shares = form.prior().into_iter().zip(form.features(at));
    let theta = shares.map(|(share, x)| if x > 0.0 { share / x } else { 0.0 });
    SpeedModel::of_theta(form, theta.take(form.coefficients()).collect())
}

/// At most `POOL_MAX` of shapes in order, spread over all sizes.
fn thin(shapes: impl Iterator<Item = Shape>) -> Vec<Shape> {
    let mut shapes: Vec<Shape> = shapes.collect();
    if shapes.len() > POOL_MAX {
        let cell = |count: u32| libm::floor(libm::log(f64::from(count)) * CELLS_PER_LOG).to_bits();
        let mut seen = BTreeSet::new();
        shapes.retain(|shape| seen.insert((cell(shape.servers), cell(shape.workers))));
    }
    if shapes.len() > POOL_MAX {
        let count = shapes.len();
        shapes = (0..POOL_MAX).map(|at| shapes[at * count / POOL_MAX]).collect();
    }
    shapes
}

/// Covariances of log T between points, given those measured.
struct Spread {
    covariance: Vec<Vec<f64>>,
    /// Whether a point's variance counts: it is a candidate.
    counted: Vec<bool>,
}

impl Spread {
    fn new(model: &SpeedModel, points: &[Shape], counted: Vec<bool>) -> Self {
        let form = model.form;
        let mut rows: Vec<[f64; TERMS]> = points
            .iter()
            .map(|shape| {
                let x = form.features(*shape);
                let seconds: f64 = model.theta.iter().zip(x).map(|(theta, x)| theta * x).sum();
                x.map(|x| if seconds > 0.0 { x / seconds } else { x })
            })
            .collect();
        let mut mean = [0.0; TERMS];
        for row in rows.iter().zip(&counted).filter(|(_, counted)| **counted).map(|(row, _)| row) {
            for (sum, x) in mean.iter_mut().zip(row) {
                *sum += x;
            }
        }
        let count = counted.iter().filter(|counted| **counted).map(|_| 1.0).sum::<f64>();
        for row in &mut rows {
            for (x, sum) in row.iter_mut().zip(mean) {
                *x = if sum > 0.0 { *x / (sum / count) * SHARE_SPREAD } else { 0.0 };
            }
        }
        let places: Vec<Coordinates> = points.iter().map(|shape| coordinates(*shape)).collect();
        let between = |a: usize, b: usize| {
            let form: f64 = rows[a].iter().zip(rows[b]).map(|(a, b)| a * b).sum();
            form + RESIDUAL * RESIDUAL * likeness(places[a], places[b])
        };
        let line = |a: usize| (0..points.len()).map(|b| between(a, b)).collect();
        Self { covariance: (0..points.len()).map(line).collect(), counted }
    }

    /// By how much a sample at a point lowers the sum of variances.
    fn gain(&self, at: usize) -> f64 {
        let line = &self.covariance[at];
        let counted = line.iter().zip(&self.counted).filter(|(_, counted)| **counted);
        counted.map(|(value, _)| value * value).sum::<f64>() / (line[at] + SAMPLE * SAMPLE)
    }

    /// What is left to know after a sample at a point.
    fn measure(&mut self, at: usize) {
        let line = self.covariance[at].clone();
        let divisor = line[at] + SAMPLE * SAMPLE;
        for (row, a) in self.covariance.iter_mut().zip(&line) {
            let share = a / divisor;
            for (value, b) in row.iter_mut().zip(&line) {
                *value -= share * b;
            }
        }
    }
}
