//! Training speed from numbers of servers and workers: Eqns. (3) and (4), section 3.2.
//!
//! Both are linear in their coefficients once turned round: with T the seconds that one worker
//! takes for a step,
//!
//! - async: `T = w/f = θ0 + θ1·w/p + θ2·w + θ3·p`, f in steps of all workers together;
//! - sync, the global batch M fixed: `T = 1/f = θ0·M/w + θ1 + θ2·w/p + θ3·w + θ4·p`;
//! - sync, each worker's batch m fixed: `T = 1/f = θ0·m + θ1 + θ2·w/p + θ3·w + θ4·p`, θ1 = 0 by
//!   convention as it cannot be told from θ0.
//!
//! A row is divided by its T, so that relative errors count.

use model::{Batch, Mode, Shape};
use serde::{Deserialize, Serialize};

use super::nnls::Problem;
pub use super::profile::profile_shapes;

/// Which of the forms a job obeys, with its batch in samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpeedForm {
    Async,
    SyncGlobal { batch: u32 },
    SyncPerWorker { batch: u32 },
}

/// Most coefficients of a form.
const TERMS: usize = 5;

impl SpeedForm {
    #[must_use]
    pub const fn of(mode: Mode, batch: Batch) -> Self {
        match (mode, batch) {
            (Mode::Async, _) => Self::Async,
            (Mode::Sync, Batch::Global(batch)) => Self::SyncGlobal { batch },
            (Mode::Sync, Batch::PerWorker(batch)) => Self::SyncPerWorker { batch },
        }
    }

    /// Numbers of coefficients as written: 4 for async, else 5.
    #[must_use]
    pub const fn coefficients(self) -> usize {
        match self {
            Self::Async => 4,
            Self::SyncGlobal { .. } | Self::SyncPerWorker { .. } => TERMS,
        }
    }

    /// Coefficients that samples can tell apart.
    const fn free(self) -> usize {
        match self {
            Self::Async | Self::SyncPerWorker { .. } => 4,
            Self::SyncGlobal { .. } => TERMS,
        }
    }

    /// What each coefficient is multiplied with at a shape; zeros behind those of the form.
    fn features(self, shape: Shape) -> [f64; TERMS] {
        let (p, w) = (f64::from(shape.servers), f64::from(shape.workers));
        match self {
            Self::Async => [1.0, w / p, w, p, 0.0],
            Self::SyncGlobal { batch } => [f64::from(batch.max(1)) / w, 1.0, w / p, w, p],
            Self::SyncPerWorker { batch } => [f64::from(batch.max(1)), 0.0, w / p, w, p],
        }
    }

    /// The share of T that each term is taken to have where nothing was measured: computing
    /// most of it, the transfer by w/p a quarter, the linear overheads little. These are rounded
    /// means over the paper's Table 2 and the models measured for it.
    const fn prior(self) -> [f64; TERMS] {
        match self {
            Self::Async => [0.65, 0.28, 0.04, 0.03, 0.0],
            Self::SyncGlobal { .. } => [0.60, 0.10, 0.24, 0.03, 0.03],
            Self::SyncPerWorker { .. } => [0.68, 0.0, 0.26, 0.03, 0.03],
        }
    }

    /// Seconds of one worker's step from steps a second of the job.
    fn seconds(self, shape: Shape, steps_per_s: f64) -> f64 {
        match self {
            Self::Async => f64::from(shape.workers) / steps_per_s,
            Self::SyncGlobal { .. } | Self::SyncPerWorker { .. } => 1.0 / steps_per_s,
        }
    }
}

/// A measured speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedSample {
    pub shape: Shape,
    /// Async: steps of all workers together. Sync: global steps.
    pub steps_per_s: f64,
    /// Relative trust, such as the seconds measured; only ratios count.
    pub weight: f64,
}

/// A fitted speed function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedModel {
    pub form: SpeedForm,
    /// θ in seconds, in the order of the equation.
    pub theta: Vec<f64>,
    /// Root of the mean squared relative error of T over the samples kept.
    pub rmse_relative: f64,
}

/// Why there is no speed function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoFit {
    pub reason: String,
}

impl std::fmt::Display for NoFit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot fit the speed function: {}", self.reason)
    }
}

impl std::error::Error for NoFit {}

impl SpeedModel {
    /// Steps a second at a shape; 0 for an empty kind of task, or where the coefficients say
    /// nothing.
    #[must_use]
    pub fn steps_per_s(&self, shape: Shape) -> f64 {
        if shape.servers == 0 || shape.workers == 0 || self.theta.len() != self.form.coefficients()
        {
            return 0.0;
        }
        let seconds: f64 =
            self.theta.iter().zip(self.form.features(shape)).map(|(theta, x)| theta * x).sum();
        let speed = match self.form {
            SpeedForm::Async => f64::from(shape.workers) / seconds,
            SpeedForm::SyncGlobal { .. } | SpeedForm::SyncPerWorker { .. } => 1.0 / seconds,
        };
        if speed.is_finite() && speed > 0.0 { speed } else { 0.0 }
    }

    /// Work a second in the unit of remaining work: samples where each worker keeps its own
    /// batch (a step is then more work with more workers), else steps.
    #[must_use]
    pub fn work_per_s(&self, shape: Shape) -> f64 {
        let steps_per_s = self.steps_per_s(shape);
        match self.form {
            SpeedForm::SyncPerWorker { batch } => {
                steps_per_s * f64::from(batch.max(1)) * f64::from(shape.workers)
            }
            SpeedForm::Async | SpeedForm::SyncGlobal { .. } => steps_per_s,
        }
    }
}

/// One shape's samples as one row: x/T and its weight; the target is 1.
#[derive(Clone, Copy, Debug)]
struct Row {
    shape: Shape,
    seconds: f64,
    relative: [f64; TERMS],
    weight: f64,
}

/// Most shapes that enter a fit: bounds its cost.
const SHAPES_MAX: usize = 128;
/// Weight of the prior beside rows of mean weight 1, while there are fewer shapes than
/// coefficients, and after. The second only decides what the shapes leave open, as when all
/// have p = w.
const PRIOR_FEW: f64 = 0.1;
const PRIOR_ENOUGH: f64 = 1e-4;
/// A sample is a gross outlier where the fit of the others is off by more than this factor from
/// it, and is this many times closer to the others without it.
const OUTLIER_FACTOR: f64 = 2.0;
const OUTLIER_RELIEF: f64 = 3.0;
/// With at most this many rows each is left out in turn.
const LEAVE_OUT_MAX: usize = 16;
/// Repetitions of the robust fit of more rows.
const ROBUST_STEPS: usize = 20;
/// Fewest shapes with which one can be called an outlier.
const OUTLIER_SHAPES_MIN: usize = 5;

/// Fits the speed function to samples by non-negative least squares on relative errors.
///
/// Samples of one shape count as their weighted median. With fewer shapes than coefficients the
/// terms lean on a prior: each term's share of T, measured at the samples' own T, is drawn to
/// `SpeedForm::prior` with the weight of a hundredth of a sample. With five or more shapes, gross
/// outliers, at most one in five, are left out: those that a fit of the others misses by more
/// than a factor of two, where it agrees with the others far better.
///
/// # Errors
/// Where no sample has a finite positive speed and at least one server and one worker.
pub fn fit(form: SpeedForm, samples: &[SpeedSample]) -> Result<SpeedModel, NoFit> {
    fit_marking(form, samples).map(|(model, _)| model)
}

/// As [`fit`], with the shapes whose samples were left out as gross outliers.
///
/// # Errors
/// As [`fit`].
pub fn fit_marking(
    form: SpeedForm,
    samples: &[SpeedSample],
) -> Result<(SpeedModel, Vec<Shape>), NoFit> {
    let mut rows = rows(form, samples);
    if rows.is_empty() {
        return Err(NoFit {
            reason: format!(
                "none of {} samples has a positive speed with a server and a worker",
                samples.len()
            ),
        });
    }
    let unsolved = || NoFit { reason: "the samples' sizes differ too much".to_owned() };
    let mut theta = solve(form, &rows).ok_or_else(unsolved)?.0;
    let outliers =
        if rows.len() > LEAVE_OUT_MAX { far_from_most(form, &rows) } else { left_out(form, &rows) };
    if !outliers.is_empty() {
        rows.retain(|row| !outliers.contains(&row.shape));
        theta = solve(form, &rows).ok_or_else(unsolved)?.0;
    }
    let theta = theta[..form.coefficients()].to_vec();
    let rmse_relative = rmse(&theta, &rows);
    Ok((SpeedModel { form, theta, rmse_relative }, outliers))
}

/// Gross outliers among few rows: each is left out in turn. One of several hides behind the
/// others, so more and more are left out, and the last number counts after which the rest agreed
/// far better than with any of them.
fn left_out(form: SpeedForm, rows: &[Row]) -> Vec<Shape> {
    let Some((_, mut agreed)) = solve(form, rows) else { return Vec::new() };
    let (mut others, mut left_out, mut outliers) = (rows.to_vec(), Vec::new(), Vec::new());
    let outliers_max = if rows.len() < OUTLIER_SHAPES_MIN { 0 } else { rows.len() / 5 };
    while left_out.len() < outliers_max {
        let tries = (0..others.len()).filter_map(|at| {
            let mut rest = others.clone();
            let row = rest.remove(at);
            let (theta, loss) = solve(form, &rest)?;
            (miss(&theta, &row) > libm::log(OUTLIER_FACTOR)).then_some((at, loss))
        });
        let best = tries.min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let Some((at, loss)) = best else { break };
        left_out.push(others.remove(at).shape);
        if loss * OUTLIER_RELIEF * OUTLIER_RELIEF <= agreed {
            outliers.clone_from(&left_out);
            agreed = loss;
        }
    }
    outliers
}

/// Gross outliers among many rows: those far from what most rows agree on. A sample that is too
/// fast draws a fit of relative errors to itself, one that is too slow a fit of plain errors, so
/// both are starts, and the one counts that ends closer to all rows, far ones cut off.
fn far_from_most(form: SpeedForm, rows: &[Row]) -> Vec<Shape> {
    let cut = libm::log(OUTLIER_FACTOR);
    let ends = [false, true].into_iter().filter_map(|plain| majority(form, rows, plain));
    let sum = |misses: &[f64]| misses.iter().map(|miss| miss.min(cut)).sum::<f64>();
    let Some((misses, middle)) = ends.min_by(|a, b| sum(&a.0).total_cmp(&sum(&b.0))) else {
        return Vec::new();
    };
    let far = cut.max(6.0 * middle);
    let mut outliers: Vec<(f64, Shape)> = misses
        .into_iter()
        .zip(rows)
        .filter(|(miss, _)| *miss > far)
        .map(|(miss, row)| (miss, row.shape))
        .collect();
    outliers.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    outliers.truncate(rows.len() / 5);
    outliers.into_iter().map(|(_, shape)| shape).collect()
}

/// Fits again and again with each row's weight lowered by its distance (Cauchy's weights), from
/// relative or plain errors. Returns the distances and their median.
fn majority(form: SpeedForm, rows: &[Row], plain: bool) -> Option<(Vec<f64>, f64)> {
    let mut weighted = rows.to_vec();
    for row in weighted.iter_mut().filter(|_| plain) {
        row.weight *= row.seconds * row.seconds;
    }
    let mut end = None;
    for _ in 0..ROBUST_STEPS {
        let (theta, _) = solve(form, &weighted)?;
        let misses: Vec<f64> = rows.iter().map(|row| miss(&theta, row)).collect();
        let mut sorted = misses.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted[sorted.len() / 2].max(1e-6);
        for ((weighted, row), miss) in weighted.iter_mut().zip(rows).zip(&misses) {
            let distance = miss / (2.0 * middle);
            weighted.weight = row.weight / (1.0 + distance * distance);
        }
        end = Some((misses, middle));
    }
    end
}

/// How far a model is from a sample, as the logarithm of a factor; infinite for a model of zero.
fn miss(theta: &[f64], row: &Row) -> f64 {
    libm::log(predicted(theta, row).max(0.0)).abs()
}

/// T of the model over T of the sample.
fn predicted(theta: &[f64], row: &Row) -> f64 {
    theta.iter().zip(row.relative).map(|(theta, x)| theta * x).sum()
}

fn rmse(theta: &[f64], rows: &[Row]) -> f64 {
    let total: f64 = rows.iter().map(|row| row.weight).sum();
    let squares: f64 = rows
        .iter()
        .map(|row| {
            let miss = predicted(theta, row) - 1.0;
            row.weight * miss * miss
        })
        .sum();
    (squares / total).sqrt()
}

/// The coefficients and the mean squared error, the prior's part included.
fn solve(form: SpeedForm, rows: &[Row]) -> Option<([f64; TERMS], f64)> {
    let mut problem = Problem::<TERMS>::default();
    let count = f64::from(u32::try_from(rows.len()).ok()?);
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
    let strength = if rows.len() < form.free() { PRIOR_FEW } else { PRIOR_ENOUGH };
    for (term, share) in form.prior().into_iter().enumerate() {
        let mut row = [0.0; TERMS];
        row[term] = mean[term] * strength;
        problem.push(row, share * strength);
    }
    let solution = problem.solve()?;
    Some((solution.x, solution.squares / count))
}

/// One row for each shape: the weighted median of its T.
fn rows(form: SpeedForm, samples: &[SpeedSample]) -> Vec<Row> {
    let mut usable: Vec<(Shape, f64, f64)> = samples
        .iter()
        .filter(|sample| sample.shape.servers > 0 && sample.shape.workers > 0)
        .map(|sample| {
            let seconds = form.seconds(sample.shape, sample.steps_per_s);
            let trusted = sample.weight.is_finite() && sample.weight > 0.0;
            (sample.shape, seconds, if trusted { sample.weight.clamp(1e-6, 1e9) } else { 0.0 })
        })
        .filter(|(_, seconds, weight)| (1e-12..1e12).contains(seconds) && *weight > 0.0)
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
