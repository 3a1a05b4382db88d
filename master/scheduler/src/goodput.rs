//! Goodput: throughput times statistical efficiency (Pollux, OSDI'21, section 3), for jobs whose
//! batch size changes with their replicas.
//!
//! A replica is a worker with one GPU; such a job has no parameter servers. N counts the nodes
//! that it spans, K its replicas, m the batch of one replica, s the accumulation steps, so that
//! the whole batch is M = K·m·(s+1).

pub mod batch;
pub mod efficiency;
pub mod fit;
pub mod genetic;
pub mod horizon;
pub mod shared;
pub mod throughput;

pub use batch::{Batch, Choice};
pub use throughput::Spread;

/// Seconds of an iteration as a function of N, K and m: the seven constants of the throughput
/// model, in s and s per sample (Pollux, section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throughput {
    pub alpha_c: f64,
    pub beta_c: f64,
    pub alpha_n: f64,
    pub beta_n: f64,
    pub alpha_r: f64,
    pub beta_r: f64,
    pub gamma: f64,
}

/// Moments of the gradient at the initial batch: squared norm of its mean, and its variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient {
    pub sqr: f64,
    pub var: f64,
}

/// Within what a job's batch may change, in samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// M0, which its owner set: also the least.
    pub initial: u32,
    pub batch_max: u32,
    /// Of one replica.
    pub local_min: u32,
    pub local_max: u32,
    /// Whether gradients may be accumulated over several passes.
    pub accumulation: bool,
}

/// A job as a policy by goodput sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Elastic {
    /// None before anything was measured.
    pub throughput: Option<Throughput>,
    pub gradient: Gradient,
    pub limits: Limits,
    /// Most replicas that may be given now: twice the most that were ever measured, say.
    pub replicas_max: u32,
    pub restarts: u32,
    /// Since its submission, in s.
    pub age_s: f64,
}
