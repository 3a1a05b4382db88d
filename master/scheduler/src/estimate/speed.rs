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
//! The forms are right to some 5 % of measured speeds even where every shape was measured. What
//! they leave over is smooth, so a [`Residual`] on top of θ takes a part of it off near the
//! samples: [`fit_full`] gives both the form alone and the better predictor.

mod best;
mod fit;
mod next;
mod outlier;
mod residual;
mod rows;

use model::{Batch, Mode, Shape};
use serde::{Deserialize, Serialize};

pub use self::best::best_shape;
pub use self::fit::{fit, fit_full};
pub use self::next::next_shapes;
pub use self::residual::Residual;
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

    /// Coefficients that samples can tell apart: 4, or 5 where the global batch is fixed. That
    /// many shapes are needed to tell them.
    #[must_use]
    pub const fn free(self) -> usize {
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

    /// The share of T that each term is taken to have where nothing was measured: computing and
    /// what is constant most of it, the transfer by w/p a quarter, the linear overheads little.
    /// These lie between the shares of the paper's Table 2 and those of the measured models of
    /// `tests/data`.
    const fn prior(self) -> [f64; TERMS] {
        match self {
            Self::Async => [0.65, 0.28, 0.04, 0.03, 0.0],
            Self::SyncGlobal { .. } => [0.35, 0.35, 0.24, 0.04, 0.02],
            Self::SyncPerWorker { .. } => [0.68, 0.0, 0.26, 0.03, 0.03],
        }
    }

    /// Positions of the linear overheads: the terms in w and in p.
    const fn overheads(self) -> [usize; 2] {
        match self {
            Self::Async => [2, 3],
            Self::SyncGlobal { .. } | Self::SyncPerWorker { .. } => [3, 4],
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
    /// Root of the mean squared relative error of T over the samples kept, the residual's factor
    /// included.
    pub rmse_relative: f64,
    /// What the samples say beyond θ; none where it is nothing. Left out of text formats then, so
    /// a positional format cannot hold a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<Residual>,
}

/// A speed function with what it was made of.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeedFit {
    /// The best of the paper's form, in seconds: non-negative, by relative errors.
    pub theta: Vec<f64>,
    /// Root of the mean squared relative error of T by θ alone over the samples kept.
    pub theta_rmse_relative: f64,
    /// The best predictor: θ and a residual.
    pub model: SpeedModel,
    /// Shapes whose samples were left out as gross outliers, in order of shape.
    pub outliers: Vec<Shape>,
    /// Positions in what was fitted of those samples, and of any that contradict the others of
    /// their shape by more than a factor of two.
    pub outlier_rows: Vec<usize>,
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
    /// The paper's form with coefficients that are known.
    #[must_use]
    pub const fn of_theta(form: SpeedForm, theta: Vec<f64>) -> Self {
        Self { form, theta, rmse_relative: 0.0, residual: None }
    }

    /// Steps a second at a shape; 0 for an empty kind of task, or where the coefficients say
    /// nothing.
    #[must_use]
    pub fn steps_per_s(&self, shape: Shape) -> f64 {
        if shape.servers == 0 || shape.workers == 0 {
            return 0.0;
        }
        let (p, w) = (f64::from(shape.servers), f64::from(shape.workers));
        // This is the inner loop of a round's allocation: the fractions are expanded by p and w so
        // that one division is left.
        let speed = match (self.form, self.theta.as_slice()) {
            (SpeedForm::Async, &[base, ratio, by_w, by_p]) => {
                w * p / (p * (base + by_w * w + by_p * p) + ratio * w)
            }
            (SpeedForm::SyncGlobal { batch }, &[compute, base, ratio, by_w, by_p]) => {
                let compute = compute * f64::from(batch.max(1));
                w * p / (p * (compute + w * (base + by_w * w + by_p * p)) + ratio * w * w)
            }
            (SpeedForm::SyncPerWorker { batch }, &[compute, _, ratio, by_w, by_p]) => {
                let compute = compute * f64::from(batch.max(1));
                p / (p * (compute + by_w * w + by_p * p) + ratio * w)
            }
            (
                SpeedForm::Async | SpeedForm::SyncGlobal { .. } | SpeedForm::SyncPerWorker { .. },
                _,
            ) => return 0.0,
        };
        let speed = match &self.residual {
            Some(residual) => speed / residual.factor(shape),
            None => speed,
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
