//! Non-negative least squares on relative errors, and the residual on top.

use model::Shape;

use super::super::nnls::Problem;
use super::outlier::{OUTLIER_FACTOR, outliers};
use super::residual::{self, Point};
use super::{NoFit, SpeedFit, SpeedForm, SpeedModel, SpeedSample, TERMS};

/// One shape's samples as one row: x/T and its weight; the target is 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) shape: Shape,
    pub(super) seconds: f64,
    pub(super) relative: [f64; TERMS],
    pub(super) weight: f64,
}

/// Most shapes that enter a fit: bounds its cost.
const SHAPES_MAX: usize = 128;
/// Weight of the prior beside rows of mean weight 1, while there are fewer shapes than
/// coefficients, and after. The second only decides what the shapes leave open, as when all
/// have p = w.
const PRIOR_FEW: f64 = 0.1;
const PRIOR_ENOUGH: f64 = 1e-4;
/// How far the shares of T of the terms in w and in p are spread around the prior's, by the
/// models of the measured data and Figure 9. Ten samples with an error of a tenth know them
/// little better than this, so the fit leans on it as far as the samples are inexact.
const OVERHEAD_SPREAD: [f64; 2] = [0.2, 0.06];
/// The relative error of samples where they are too few to show it, and the most it counts as.
const ERROR_ASSUMED: f64 = 0.05;
const ERROR_MAX: f64 = 0.2;

/// The best predictor for samples; as [`fit_full`], of which it is the `model`.
///
/// # Errors
/// Where no sample has a finite positive speed and at least one server and one worker.
pub fn fit(form: SpeedForm, samples: &[SpeedSample]) -> Result<SpeedModel, NoFit> {
    fit_full(form, samples).map(|fit| fit.model)
}

/// Fits the speed function to samples.
///
/// **θ** is found by non-negative least squares on relative errors of T: each row is divided by
/// its T. Samples of one shape count as their weighted median. Terms lean on a prior: each term's
/// share of T, measured at the samples' own T, is drawn to `SpeedForm::prior`. With fewer shapes
/// than coefficients all do, with the weight of a hundredth of a sample. The two linear overheads
/// always do, as strongly as the samples' error is large beside the spread of these shares from
/// model to model (ridge regression as the mode of a Gaussian posterior): enough samples of the
/// form itself give its coefficients back exactly.
///
/// **Outliers**: with five or more shapes, gross ones, at most one in five, are left out: those
/// that a fit of the others misses by more than a factor of two, where it agrees with the others
/// far better.
///
/// **The model** is θ with a smooth [`super::Residual`] of what θ leaves over.
///
/// # Errors
/// Where no sample has a finite positive speed and at least one server and one worker.
pub fn fit_full(form: SpeedForm, samples: &[SpeedSample]) -> Result<SpeedFit, NoFit> {
    let mut rows = rows(form, samples);
    if rows.is_empty() {
        return Err(NoFit {
            reason: format!(
                "none of {} samples has a positive speed with a server and a worker",
                samples.len()
            ),
        });
    }
    let outliers = outliers(form, &rows);
    rows.retain(|row| !outliers.contains(&row.shape));
    let Some(theta) = theta(form, &rows) else {
        return Err(NoFit { reason: "the samples' sizes differ too much".to_owned() });
    };
    let theta = theta[..form.coefficients()].to_vec();
    let points: Vec<Point> = rows
        .iter()
        .map(|row| {
            let left = -libm::log(predicted(&theta, row));
            Point { shape: row.shape, left, weight: row.weight }
        })
        .collect();
    let residual = residual::smooth(&points);
    let theta_rmse_relative = rmse(&rows, |row| predicted(&theta, row));
    let rmse_relative = residual.as_ref().map_or(theta_rmse_relative, |residual| {
        rmse(&rows, |row| predicted(&theta, row) * residual.factor(row.shape))
    });
    let model = SpeedModel { form, theta: theta.clone(), rmse_relative, residual };
    let outlier_rows = outlier_rows(form, samples, &rows, &outliers);
    Ok(SpeedFit { theta, theta_rmse_relative, model, outliers, outlier_rows })
}

/// The coefficients: a first fit tells how exact the samples are, a second one leans on the prior
/// by that.
fn theta(form: SpeedForm, rows: &[Row]) -> Option<[f64; TERMS]> {
    let (first, _) = solve(form, rows)?;
    let error = match rows.len().checked_sub(form.free()) {
        None | Some(0) => ERROR_ASSUMED,
        Some(spare) => {
            // Of n rows the form's free coefficients take that many errors away.
            let share = (count(rows.len()) / count(spare)).sqrt();
            (rmse(rows, |row| predicted(&first, row)) * share).min(ERROR_MAX)
        }
    };
    let mut strengths = [prior_strength(form, rows); TERMS];
    for (at, spread) in form.overheads().into_iter().zip(OVERHEAD_SPREAD) {
        strengths[at] = (error / spread).max(strengths[at]);
    }
    solve_leaning(form, rows, strengths).map(|(theta, _)| theta)
}

/// How far a model is from a sample, as the logarithm of a factor; infinite for a model of zero.
pub(super) fn miss(theta: &[f64], row: &Row) -> f64 {
    libm::log(predicted(theta, row).max(0.0)).abs()
}

/// T of the coefficients over T of the sample.
fn predicted(theta: &[f64], row: &Row) -> f64 {
    theta.iter().zip(row.relative).map(|(theta, x)| theta * x).sum()
}

/// `ratio` gives T predicted over T measured.
fn rmse(rows: &[Row], ratio: impl Fn(&Row) -> f64) -> f64 {
    let total: f64 = rows.iter().map(|row| row.weight).sum();
    let squares: f64 = rows
        .iter()
        .map(|row| {
            let miss = ratio(row) - 1.0;
            row.weight * miss * miss
        })
        .sum();
    (squares / total).sqrt()
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

/// The coefficients and the mean squared error, the prior's part included.
pub(super) fn solve(form: SpeedForm, rows: &[Row]) -> Option<([f64; TERMS], f64)> {
    solve_leaning(form, rows, [prior_strength(form, rows); TERMS])
}

const fn prior_strength(form: SpeedForm, rows: &[Row]) -> f64 {
    if rows.len() < form.free() { PRIOR_FEW } else { PRIOR_ENOUGH }
}

/// As [`solve`], each term's share of T held to the prior's with the strength given, in rows.
fn solve_leaning(
    form: SpeedForm,
    rows: &[Row],
    strengths: [f64; TERMS],
) -> Option<([f64; TERMS], f64)> {
    let mut problem = Problem::<TERMS>::default();
    let count = count(rows.len());
    let scale = count / rows.iter().map(|row| row.weight).sum::<f64>();
    let mut mean = [0.0; TERMS];
    for row in rows {
        let weight = row.weight * scale;
        let root = weight.sqrt();
        problem.push(row.relative.map(|x| x * root), root);
        for (sum, x) in mean.iter_mut().zip(row.relative) {
            *sum += weight * x / count;
        }
    }
    for (term, (share, strength)) in form.prior().into_iter().zip(strengths).enumerate() {
        let mut row = [0.0; TERMS];
        row[term] = mean[term] * strength;
        problem.push(row, share * strength);
    }
    let solution = problem.solve()?;
    Some((solution.x, solution.squares / count))
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

/// Samples of the shapes left out, and those that the others of their shape voted down.
fn outlier_rows(
    form: SpeedForm,
    samples: &[SpeedSample],
    kept: &[Row],
    outliers: &[Shape],
) -> Vec<usize> {
    let is_far = |sample: &SpeedSample, seconds: f64| {
        let row = kept.binary_search_by(|row| row.shape.cmp(&sample.shape));
        row.is_ok_and(|at| libm::log(seconds / kept[at].seconds).abs() > libm::log(OUTLIER_FACTOR))
    };
    (0..samples.len())
        .filter(|at| {
            let sample = &samples[*at];
            measured(form, sample).is_some_and(|(seconds, _)| {
                outliers.contains(&sample.shape) || is_far(sample, seconds)
            })
        })
        .collect()
}

/// One row for each shape: the weighted median of its T.
fn rows(form: SpeedForm, samples: &[SpeedSample]) -> Vec<Row> {
    let mut usable: Vec<(Shape, f64, f64)> = samples
        .iter()
        .filter_map(|sample| {
            measured(form, sample).map(|(seconds, weight)| (sample.shape, seconds, weight))
        })
        .collect();
    usable.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2)));
    let mut rows: Vec<Row> = usable
        .chunk_by(|a, b| a.0 == b.0)
        .map(|same| {
            let total: f64 = same.iter().map(|(_, _, weight)| weight).sum();
            let seconds = weighted_median(same, total);
            Row {
                shape: same[0].0,
                seconds,
                relative: form.features(same[0].0).map(|x| x / seconds),
                weight: total,
            }
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
fn weighted_median(sorted: &[(Shape, f64, f64)], total: f64) -> f64 {
    let mut below = 0.0;
    for (at, (_, seconds, weight)) in sorted.iter().enumerate() {
        below += weight;
        if below * 2.0 > total * (1.0 + 1e-12) {
            return *seconds;
        }
        if below * 2.0 >= total * (1.0 - 1e-12) {
            return sorted.get(at + 1).map_or(*seconds, |next| f64::midpoint(*seconds, next.1));
        }
    }
    sorted.last().map_or(0.0, |last| last.1)
}
