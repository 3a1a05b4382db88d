//! The online fit of the throughput model (Pollux, section 4.1): its seven constants from the
//! times of the shapes that a job was measured at.
//!
//! What was never measured looks perfect, so that it will be tried: constants that no row tells of
//! are held at values that cost nothing, and nodes are taken for a little slower than one node.
//!
//! The objective is a sum of two norms and two squares. Each step takes both residuals as linear,
//! and solves that model of the objective by reweighted least squares: it keeps the norms' kinks,
//! where a norm of zero is the best, which a quadratic model cannot.

mod data;
mod quadratic;

pub use data::Observation;
use data::{Data, Sums};
use quadratic::{Bounds, Matrix, SIZE, Vector, least};

use super::Throughput;

/// Least of α and β, in s: they have logarithms and divide.
const LEAST: f64 = 1e-8;
const GAMMA_MAX: f64 = 10.0;
/// Weights of the priors: γ near 1, and β small beside α.
const GAMMA_WEIGHT: f64 = 1e-3;
const BETA_WEIGHT: f64 = 1e-2;
/// How much slower over nodes than within one, where that was not measured.
const NODES_FACTOR: f64 = 1.1;
/// What the model starts from without data.
const START: Throughput = Throughput {
    alpha_c: 0.1,
    beta_c: 0.01,
    alpha_n: 0.1,
    beta_n: 0.01,
    alpha_r: 0.1,
    beta_r: 0.01,
    gamma: 1.001,
};

/// Most steps of a fit: ten are usual.
const STEPS_MAX: u32 = 60;
/// A step that lowers the objective by no more than this share of it is the last.
const ENOUGH: f64 = 1e-6;
/// Solutions of one linear model, each with weights from the one before.
const REWEIGHTED_MAX: u32 = 8;
/// Norms count as no less than this: a relative error beyond any measurement.
const NORM_MIN: f64 = 1e-9;

/// The model of a job's rows, from the last model where there is one. None where no row holds
/// times that can be.
#[must_use]
pub fn fit(rows: &[Observation], last: Option<&Throughput>) -> Option<Throughput> {
    let data = Data::of(rows)?;
    let frozen = Frozen::of(&data);
    let held = |theta: Throughput| frozen.hold(vector(&theta));
    let guess = held(data.guess(START));
    let mut best = descend(&data, &frozen, guess);
    if let Some(last) = last.filter(|last| vector(last).iter().all(|value| value.is_finite())) {
        let warm = descend(&data, &frozen, held(*last));
        best = if warm.1 < best.1 { warm } else { best };
    }
    if !best.1.is_finite() {
        return None;
    }
    let mut theta = throughput(best.0);
    if !data.spans_nodes {
        theta.alpha_n = theta.alpha_n.max(NODES_FACTOR * theta.alpha_r);
        theta.beta_n = theta.beta_n.max(NODES_FACTOR * theta.beta_r);
    }
    vector(&theta).iter().all(|value| value.is_finite()).then_some(theta)
}

/// The objective that [`fit`] minimises: both root mean square errors of logarithms, and the
/// priors. Infinite where the model tells no time for a row; none without sound rows.
#[must_use]
pub fn objective(theta: &Throughput, rows: &[Observation]) -> Option<f64> {
    Some(Data::of(rows)?.objective(&vector(theta)))
}

fn vector(theta: &Throughput) -> Vector {
    let Throughput { alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma } = *theta;
    [alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma]
}

fn throughput(at: Vector) -> Throughput {
    let [alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma] = at;
    Throughput { alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma }
}

/// Constants that no row tells of, at values at which trying costs nothing.
#[derive(Clone, Copy, Debug)]
struct Frozen([Option<f64>; SIZE]);

impl Frozen {
    fn of(data: &Data) -> Self {
        let mut frozen = [None; SIZE];
        if data.is_one_local {
            frozen[0] = Some((data.grad_mean / 2.0).max(LEAST));
        }
        if !data.spans_nodes {
            frozen[2] = Some(LEAST);
            frozen[3] = Some(LEAST);
        }
        if !data.shares_node {
            frozen[4] = Some(LEAST);
            frozen[5] = Some(LEAST);
        }
        if !data.has_rounds {
            frozen[3] = Some(LEAST);
            frozen[5] = Some(LEAST);
        }
        Self(frozen)
    }

    fn hold(&self, mut at: Vector) -> Vector {
        let bounds = self.bounds();
        for (index, value) in at.iter_mut().enumerate() {
            *value = value.clamp(bounds.low[index], bounds.high[index]);
        }
        at
    }

    fn bounds(&self) -> Bounds {
        let mut bounds = Bounds { low: [LEAST; SIZE], high: [f64::MAX; SIZE] };
        bounds.low[SIZE - 1] = 1.0;
        bounds.high[SIZE - 1] = GAMMA_MAX;
        for (index, value) in self.0.iter().enumerate() {
            if let Some(value) = value {
                bounds.low[index] = *value;
                bounds.high[index] = *value;
            }
        }
        bounds
    }
}

/// The place of a minimum and the objective there.
fn descend(data: &Data, frozen: &Frozen, start: Vector) -> (Vector, f64) {
    let bounds = frozen.bounds();
    let mut at = start;
    let mut here = Model::of(data, &at);
    let mut damping = 1e-3;
    for _ in 0..STEPS_MAX {
        if !here.value.is_finite() {
            break;
        }
        let (step, promised) = here.step(&at, &bounds, damping);
        let mut next = at;
        for (next, step) in next.iter_mut().zip(&step) {
            *next += step;
        }
        let there = Model::of(data, &frozen.hold(next));
        let gained = here.value - there.value;
        if gained > 0.0 {
            let enough = gained <= ENOUGH * here.value;
            // A linear model that told the truth may go further.
            let factor = if gained > 0.5 * promised { 0.1 } else { 1.0 };
            damping = f64::max(damping * factor, 1e-12);
            at = frozen.hold(next);
            here = there;
            if enough {
                break;
            }
        } else if promised <= ENOUGH * here.value || damping > 1e12 {
            break;
        } else {
            damping *= 10.0;
        }
    }
    (at, here.value)
}

/// The objective at a place, with both residuals as linear around it.
struct Model {
    value: f64,
    grad: Sums,
    optim: Sums,
    prior: Sums,
    count: f64,
}

impl Model {
    fn of(data: &Data, at: &Vector) -> Self {
        let (grad, optim) = data.sums(at);
        let prior = prior(at);
        let count = data.count;
        let value = (grad.square / count).sqrt() + (optim.square / count).sqrt() + prior.square;
        let value = if value.is_finite() { value } else { f64::INFINITY };
        Self { value, grad, optim, prior, count }
    }

    /// Where this model is least within the bounds, and by how much it is less there.
    fn step(&self, at: &Vector, bounds: &Bounds, damping: f64) -> (Vector, f64) {
        let mut room = *bounds;
        for (index, at) in at.iter().enumerate() {
            room.low[index] -= at;
            room.high[index] -= at;
        }
        let mut step = Vector::default();
        let mut promised = 0.0;
        for _ in 0..REWEIGHTED_MAX {
            let weight = |sums: &Sums| {
                let norm = sums.square_after(&step).max(0.0) / self.count;
                1.0 / (norm.sqrt().max(NORM_MIN) * self.count)
            };
            let (grad, optim) = (weight(&self.grad), weight(&self.optim));
            let mut slope = Vector::default();
            let mut curve = Matrix::default();
            for (sums, weight) in [(&self.grad, grad), (&self.optim, optim), (&self.prior, 2.0)] {
                sums.add_to(weight, &mut slope, &mut curve);
            }
            for (index, row) in curve.iter_mut().enumerate() {
                row[index] += damping * row[index] + f64::MIN_POSITIVE;
            }
            step = least(&curve, &slope, &room, &step);
            let after = |sums: &Sums| (sums.square_after(&step).max(0.0) / self.count).sqrt();
            let value =
                after(&self.grad) + after(&self.optim) + self.prior.square_after(&step).max(0.0);
            let better = self.value - value;
            let is_settled = (better - promised).abs() <= 1e-3 * better.abs().max(ENOUGH * value);
            promised = better;
            if is_settled {
                break;
            }
        }
        (step, promised)
    }
}

/// The priors as squares of residuals.
fn prior(at: &Vector) -> Sums {
    let mut sums = Sums::default();
    let gamma = GAMMA_WEIGHT.sqrt();
    sums.add(gamma * (at[6] - 1.0), &[(6, gamma)]);
    let beta = BETA_WEIGHT.sqrt();
    for (alpha, slope) in [(2, 3), (4, 5)] {
        let ratio = beta * at[slope] / at[alpha];
        sums.add(ratio, &[(slope, beta / at[alpha]), (alpha, -ratio / at[alpha])]);
    }
    sums
}
