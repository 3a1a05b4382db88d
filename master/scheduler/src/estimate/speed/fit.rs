//! Non-negative least squares on relative errors, and the residual on top.

use std::collections::BTreeSet;

use super::super::nnls::Problem;
use super::outlier::outliers;
use super::residual::{self, Point};
use super::rows::{Row, Taken, consistent, rows, taken};
use super::{NoFit, SpeedFit, SpeedForm, SpeedModel, SpeedSample, TERMS};

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
/// **θ** is found by non-negative least squares on relative errors of T: each row is divided by its
/// T. Samples of one shape count as their weighted median, without those that contradict it: of
/// samples that differ by more than a factor of two those are left out that most of the others of
/// the shape, or else the fit of the other shapes, disagree with. Terms lean on a prior: each
/// term's share of T, measured at the samples' own T, is drawn to `SpeedForm::prior`. With fewer
/// shapes than coefficients all do, with the weight of a hundredth of a sample. The two linear
/// overheads always do, as strongly as the samples' error is large beside the spread of these
/// shares from model to model (ridge regression as the mode of a Gaussian posterior): enough
/// samples of the form itself give its coefficients back exactly.
///
/// **Outliers**: with five or more shapes, gross ones, at most one sample in five, are left out:
/// those that a fit of the others misses by more than a factor of two, where it agrees with the
/// others far better.
///
/// **The model** is θ with a smooth [`super::Residual`] of what θ leaves over.
///
/// # Errors
/// Where no sample has a finite positive speed and at least one server and one worker.
pub fn fit_full(form: SpeedForm, samples: &[SpeedSample]) -> Result<SpeedFit, NoFit> {
    let all = taken(form, samples);
    if all.is_empty() {
        return Err(NoFit { reason: none_usable(samples) });
    }
    let kept = consistent(form, &all);
    let mut rows = rows(form, &kept);
    let outliers = outliers(form, &rows, kept.len());
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
    // Told of every sample that is kept, not of the shapes' medians.
    let in_fit = |shape| rows.binary_search_by(|row| row.shape.cmp(&shape)).is_ok();
    let singles: Vec<Row> =
        kept.iter().filter(|one| in_fit(one.shape)).map(|one| one.row(form)).collect();
    let theta_rmse_relative = rmse(&singles, |row| predicted(&theta, row));
    let rmse_relative = residual.as_ref().map_or(theta_rmse_relative, |residual| {
        rmse(&singles, |row| predicted(&theta, row) * residual.factor(row.shape))
    });
    let model = SpeedModel { form, theta: theta.clone(), rmse_relative, residual };
    let kept: BTreeSet<usize> = kept.iter().map(|one| one.at).collect();
    let is_wrong = |one: &&Taken| !kept.contains(&one.at) || outliers.contains(&one.shape);
    let mut outlier_rows: Vec<usize> = all.iter().filter(is_wrong).map(|one| one.at).collect();
    outlier_rows.sort_unstable();
    Ok(SpeedFit { theta, theta_rmse_relative, model, outliers, outlier_rows })
}

/// Why no sample can be used.
fn none_usable(samples: &[SpeedSample]) -> String {
    let count = samples.len();
    let extreme = samples.iter().any(|sample| {
        let fits = |value: f64| value.is_finite() && value > 0.0;
        let positive = fits(sample.steps_per_s) && fits(sample.weight);
        positive && sample.shape.servers > 0 && sample.shape.workers > 0
    });
    if extreme {
        format!("none of {count} samples has a step of 1e-12 to 1e12 seconds: out of range")
    } else {
        format!("none of {count} samples has a positive speed with a server and a worker")
    }
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
