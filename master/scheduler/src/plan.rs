//! The only output of a round: what each job gets, and why.

use model::{JobId, Placement, Shape};

/// One decision for each job of the snapshot, in the snapshot's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub revision: u64,
    pub decisions: Vec<Decision>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub job: JobId,
    pub verb: Verb,
    pub reason: Reason,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// Stays exactly as it is (running or waiting with nothing).
    Keep,
    /// Has nothing, gets this.
    Start { placement: Placement },
    /// Runs, moves to this other shape or placement by checkpoint and restart.
    Rescale { placement: Placement },
    /// Runs, must give up everything by checkpoint and wait.
    Evict,
    /// Has nothing and gets nothing.
    Wait,
}

impl Verb {
    /// The word for tables and JSON.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Start { .. } => "start",
            Self::Rescale { .. } => "rescale",
            Self::Evict => "evict",
            Self::Wait => "wait",
        }
    }
}

/// A decision in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reason {
    /// One sentence for people, with the numbers in it.
    pub text: String,
    /// What the allocation gave from the cluster's total, before placement.
    pub allocated: Shape,
    /// Steps a second that the model predicts for the shape held before and after.
    pub speed_before: Option<f64>,
    pub speed_after: Option<f64>,
    /// Seconds left at the shape after.
    pub remaining_s: Option<f64>,
    /// Seconds saved by the change, and what it costs.
    pub gain_s: Option<f64>,
    pub cost_s: Option<f64>,
    pub transfer_time: Option<f64>,
    pub cross_node_share: Option<f64>,
    /// For a job that waits: how many nodes could not take its first task, by reason
    /// ("worker needs 1 CPUs, 0.25 CPUs free").
    pub nodes_refused: Vec<(String, u32)>,
    /// The cheapest change that would start it, in words.
    pub remedy: Option<String>,
}
