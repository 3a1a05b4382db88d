//! Measured times, and how far a model is from them.

use super::quadratic::{Matrix, SIZE, Vector};
use crate::goodput::throughput::{Link, link, rounds};
use crate::goodput::{Spread, Throughput};

/// Times of one shape and local batch, each the mean of what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    pub spread: Spread,
    /// m, in samples.
    pub local: u32,
    /// `T_grad` in s: of a pass that only accumulates, or what a step takes but for the sum.
    pub grad_s: f64,
    /// `T_optim` in s: of a pass after which the optimiser steps.
    pub optim_s: f64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    /// Places in the lists of local batches and of exchanges.
    local: usize,
    exchange: usize,
    grad_ln: f64,
    optim_ln: f64,
}

/// Who exchanges gradients in how many rounds: what `T_sync` depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Exchange {
    link: Link,
    rounds: f64,
}

/// The sound rows, with what they tell of.
#[derive(Clone, Debug)]
pub(super) struct Data {
    rows: Vec<Row>,
    locals: Vec<f64>,
    exchanges: Vec<Exchange>,
    pub count: f64,
    pub grad_mean: f64,
    pub is_one_local: bool,
    pub spans_nodes: bool,
    pub shares_node: bool,
    /// More than two replicas were seen.
    pub has_rounds: bool,
}

/// Times outside of this are no measurements: from below a cycle to above a year.
const TIMES_S: std::ops::RangeInclusive<f64> = 1e-9..=1e8;

impl Data {
    pub(super) fn of(rows: &[Observation]) -> Option<Self> {
        let sound = |row: &&Observation| {
            let Spread { nodes, replicas } = row.spread;
            let times = TIMES_S.contains(&row.grad_s) && TIMES_S.contains(&row.optim_s);
            times && row.local > 0 && nodes > 0 && replicas >= nodes
        };
        let sound: Vec<&Observation> = rows.iter().filter(sound).collect();
        let count = f64::from(u32::try_from(sound.len()).ok().filter(|count| *count > 0)?);
        let mut locals: Vec<u32> = sound.iter().map(|row| row.local).collect();
        locals.sort_unstable();
        locals.dedup();
        let key = |row: &Observation| {
            let replicas = row.spread.replicas.max(2);
            let link = link(row.spread);
            // Alone there is nothing to exchange, whatever K.
            (link, if link == Link::None { 0 } else { replicas })
        };
        let mut exchanges: Vec<(Link, u32)> = sound.iter().map(|row| key(row)).collect();
        exchanges.sort_unstable();
        exchanges.dedup();
        let place = |row: &&Observation| Row {
            local: locals.binary_search(&row.local).expect("listed just before"),
            exchange: exchanges.binary_search(&key(row)).expect("listed just before"),
            grad_ln: libm::log(row.grad_s),
            optim_ln: libm::log(row.optim_s),
        };
        Some(Self {
            rows: sound.iter().map(place).collect(),
            count,
            grad_mean: sound.iter().map(|row| row.grad_s).sum::<f64>() / count,
            is_one_local: locals.len() == 1,
            spans_nodes: sound.iter().any(|row| row.spread.nodes > 1),
            shares_node: exchanges.iter().any(|(link, _)| *link == Link::Local),
            has_rounds: sound.iter().any(|row| row.spread.replicas > 2),
            locals: locals.into_iter().map(f64::from).collect(),
            exchanges: exchanges
                .into_iter()
                .map(|(link, replicas)| Exchange { link, rounds: rounds(replicas) })
                .collect(),
        })
    }

    /// A model from straight lines through the times, each weighted by one over its square: near
    /// enough that steps by linear models end well.
    pub(super) fn guess(&self, start: Throughput) -> Throughput {
        let mut guess = Throughput { gamma: 1.05, ..start };
        let mut grad = Line::default();
        let mut ways = [Line::default(); 2];
        for row in &self.rows {
            let (grad_s, optim_s) = (libm::exp(row.grad_ln), libm::exp(row.optim_ln));
            grad.add(self.locals[row.local], grad_s);
            let Exchange { link, rounds } = self.exchanges[row.exchange];
            let sync_s = (optim_s - grad_s).max(1e-3 * optim_s);
            match link {
                Link::None => {}
                Link::Nodes => ways[0].add(rounds, sync_s),
                Link::Local => ways[1].add(rounds, sync_s),
            }
        }
        if let Some((alpha, beta)) = grad.fit() {
            (guess.alpha_c, guess.beta_c) = (alpha, beta);
        }
        if let Some((alpha, beta)) = ways[0].fit() {
            (guess.alpha_n, guess.beta_n) = (alpha, beta);
        }
        if let Some((alpha, beta)) = ways[1].fit() {
            (guess.alpha_r, guess.beta_r) = (alpha, beta);
        }
        if self.is_one_local {
            guess.alpha_c = self.grad_mean / 2.0;
            guess.beta_c = guess.alpha_c / self.locals[0];
        }
        guess
    }

    /// The errors of both times as sums around a model.
    pub(super) fn sums(&self, at: &Vector) -> (Sums, Sums) {
        let (mut grad, mut optim) = (Sums::default(), Sums::default());
        let gamma = at[6];
        let passes: Vec<(f64, f64)> = self
            .locals
            .iter()
            .map(|local| at[0] + at[1] * local)
            .map(|grad_s| (grad_s, libm::log(grad_s)))
            .collect();
        let syncs: Vec<(f64, f64)> = self
            .exchanges
            .iter()
            .map(|exchange| sync_s(exchange, at))
            .map(|sync_s| (sync_s, libm::log(sync_s)))
            .collect();
        for row in &self.rows {
            let (grad_s, grad_ln) = passes[row.local];
            let (sync_s, sync_ln) = syncs[row.exchange];
            let local = self.locals[row.local];
            grad.add(grad_ln - row.grad_ln, &[(0, 1.0 / grad_s), (1, local / grad_s)]);
            let apart = gamma * (sync_ln - grad_ln);
            // The smaller over the larger, each to the power of γ.
            let less = libm::exp(-apart.abs());
            let (more_ln, sync_share) = if apart > 0.0 {
                (sync_ln, 1.0 / (1.0 + less))
            } else {
                (grad_ln, less / (1.0 + less))
            };
            let overlap = libm::log1p(less) / gamma;
            let optim_ln = more_ln + overlap;
            let of_grad = (1.0 - sync_share) / grad_s;
            // With an error of γ's logarithm only where both are alike.
            let of_gamma = ((1.0 - sync_share) * grad_ln + sync_share * sync_ln - optim_ln) / gamma;
            let error = optim_ln - row.optim_ln;
            let Exchange { link, rounds } = self.exchanges[row.exchange];
            let of_sync = sync_share / sync_s;
            let (alpha, of_alpha) = match link {
                Link::None => (4, 0.0),
                Link::Local => (4, of_sync),
                Link::Nodes => (2, of_sync),
            };
            optim.add(
                error,
                &[
                    (0, of_grad),
                    (1, of_grad * local),
                    (alpha, of_alpha),
                    (alpha + 1, of_alpha * rounds),
                    (6, of_gamma),
                ],
            );
        }
        (grad, optim)
    }

    pub(super) fn objective(&self, at: &Vector) -> f64 {
        super::Model::of(self, at).value
    }
}

fn sync_s(exchange: &Exchange, at: &Vector) -> f64 {
    match exchange.link {
        Link::None => 1e-8 + 1e-8 * exchange.rounds,
        Link::Local => at[4] + at[5] * exchange.rounds,
        Link::Nodes => at[2] + at[3] * exchange.rounds,
    }
}

/// Sums over residuals r with slopes J: `Σr²`, `Jᵀr` and `JᵀJ`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub square: f64,
    slope: Vector,
    curve: Matrix,
}

impl Sums {
    /// One more residual; its slopes by ascending place, none twice, but for places of slope 0.
    pub(super) fn add(&mut self, residual: f64, slopes: &[(usize, f64)]) {
        self.square += residual * residual;
        for (at, (row, slope)) in slopes.iter().enumerate() {
            self.slope[*row] += residual * slope;
            for (column, other) in &slopes[..=at] {
                self.curve[(*row).max(*column)][(*row).min(*column)] += slope * other;
            }
        }
    }

    /// `Σ(r + J·step)²`.
    pub(super) fn square_after(&self, step: &Vector) -> f64 {
        let mut square = self.square;
        for row in 0..SIZE {
            let mut along = self.slope[row] + 0.5 * self.curve[row][row] * step[row];
            for (curve, step) in self.curve[row].iter().zip(&step[..row]) {
                along += curve * step;
            }
            square += 2.0 * step[row] * along;
        }
        square
    }

    pub(super) fn add_to(&self, weight: f64, slope: &mut Vector, curve: &mut Matrix) {
        for row in 0..SIZE {
            slope[row] += weight * self.slope[row];
            for (sum, curve) in curve[row].iter_mut().zip(&self.curve[row]).take(row + 1) {
                *sum += weight * curve;
            }
        }
    }
}

/// A straight line through points, each weighted by one over the square of its height.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    weights: f64,
    xs: f64,
    squares: f64,
    heights: f64,
    products: f64,
}

impl Line {
    fn add(&mut self, x: f64, height: f64) {
        let weight = 1.0 / (height * height);
        self.weights += weight;
        self.xs += weight * x;
        self.squares += weight * x * x;
        self.heights += weight * height;
        self.products += weight * x * height;
    }

    /// Its height at 0 and its slope, both above 0; none without points.
    fn fit(&self) -> Option<(f64, f64)> {
        if self.weights <= 0.0 {
            return None;
        }
        let under = self.weights * self.squares - self.xs * self.xs;
        let mean = self.heights / self.weights;
        let at = self.xs / self.weights;
        let mut slope = 0.0;
        if under > 1e-9 * self.weights * self.squares {
            slope = (self.weights * self.products - self.xs * self.heights) / under;
        }
        // A little of each, so that the logarithm of neither is far away.
        let slope = slope.clamp(0.01 * mean / at.max(1.0), 0.99 * mean / at.max(1e-8));
        let height = (mean - slope * at).max(1e-3 * mean);
        Some((height, slope))
    }
}
