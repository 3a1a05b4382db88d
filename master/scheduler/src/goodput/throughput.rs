//! How long an iteration takes (Pollux, section 3.2).

use super::{Batch, Throughput};

/// Over how many nodes how many replicas are spread: N and K.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spread {
    pub nodes: u32,
    pub replicas: u32,
}

impl Spread {
    #[must_use]
    pub const fn new(nodes: u32, replicas: u32) -> Self {
        Self { nodes, replicas }
    }
}

/// What a sum of gradients takes where there is nobody to exchange them with, in s: above zero, so
/// that it has a logarithm.
const ALONE_S: f64 = 1e-8;

impl Throughput {
    /// `T_grad` in s: gradients of `local` samples on one replica.
    #[must_use]
    pub fn grad_s(&self, local: u32) -> f64 {
        self.alpha_c + self.beta_c * f64::from(local)
    }

    /// `T_sync` in s: gradients are summed over all replicas. It depends on N only by whether the
    /// replicas leave one node.
    #[must_use]
    pub fn sync_s(&self, spread: Spread) -> f64 {
        let rounds = rounds(spread.replicas);
        match link(spread) {
            Link::None => ALONE_S + ALONE_S * rounds,
            Link::Local => self.alpha_r + self.beta_r * rounds,
            Link::Nodes => self.alpha_n + self.beta_n * rounds,
        }
    }

    /// `T_optim` in s: the pass after which the optimiser steps, its gradients overlapping with
    /// their sum as γ has it, from 1 (one after the other) to infinity (all at once).
    #[must_use]
    pub fn optim_s(&self, spread: Spread, local: u32) -> f64 {
        overlapped(self.grad_s(local), self.sync_s(spread), self.gamma)
    }

    /// `T_iter` in s: the passes that only accumulate, and the last.
    #[must_use]
    pub fn iteration_s(&self, spread: Spread, batch: Batch) -> f64 {
        f64::from(batch.accumulation) * self.grad_s(batch.local) + self.optim_s(spread, batch.local)
    }

    /// THROUGHPUT in samples per s; 0 where the model tells no sound time.
    #[must_use]
    pub fn samples_per_s(&self, spread: Spread, batch: Batch) -> f64 {
        let per_s = batch.total(spread.replicas) / self.iteration_s(spread, batch);
        if per_s.is_finite() && per_s > 0.0 { per_s } else { 0.0 }
    }
}

/// Who sums gradients with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Link {
    None,
    Local,
    Nodes,
}

pub(super) fn link(spread: Spread) -> Link {
    match spread {
        Spread { replicas: 0 | 1, .. } => Link::None,
        Spread { nodes: 0 | 1, .. } => Link::Local,
        Spread { .. } => Link::Nodes,
    }
}

/// Replicas beyond the two that an exchange takes anyway.
pub(super) fn rounds(replicas: u32) -> f64 {
    f64::from(replicas.saturating_sub(2)).max(1e-8)
}

/// `(a^γ + b^γ)^(1/γ)`, without overflow on the way.
fn overlapped(a: f64, b: f64, gamma: f64) -> f64 {
    let (more, less) = if a >= b { (a, b) } else { (b, a) };
    let share = libm::exp(gamma * libm::log(less / more));
    more * libm::exp(libm::log1p(share) / gamma)
}
