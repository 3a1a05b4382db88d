//! What is simulated: the servers, the jobs, and the truth about them that no scheduler sees.

use model::{Batch, Mode, NodeId, Resources, Shape};
use scheduler::estimate::speed::SpeedModel;

/// The servers, each with what it has, sorted by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    pub nodes: Vec<(NodeId, Resources)>,
}

/// Jobs by arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    pub jobs: Vec<Job>,
}

/// A job and the truth about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub id: String,
    pub arrival_s: f64,
    /// Jobs of one model share what was measured.
    pub model: String,
    pub mode: Mode,
    pub batch: Batch,
    pub worker: Resources,
    pub server: Resources,
    pub min: Shape,
    pub max: Shape,
    /// What its owner asks for, where a scheduler without estimates is to give just that.
    pub requested: Option<Shape>,
    pub priority: f64,
    /// True speed, where all tasks share one network.
    pub speed: Speed,
    /// True work: steps, or samples where each worker keeps its batch.
    pub work: f64,
    /// Training time that a rescale costs, in s.
    pub rescale_cost_s: f64,
    /// The loss by epochs, where the scheduler has to find out itself what is left.
    pub loss: Option<Loss>,
}

/// True speed of a job, in the unit of its work a second.
#[derive(Clone, Debug, PartialEq)]
pub enum Speed {
    /// Eqns. (3) and (4).
    Theta(SpeedModel),
    /// Measured at some shapes; between them interpolated.
    Table(Vec<(Shape, f64)>),
}

/// l = 1/(b0·k + b1) + b2, Eqn. (1), with k in epochs, and how it is seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    pub beta: [f64; 3],
    /// Relative noise of an observed loss.
    pub noise: f64,
    pub steps_per_epoch: f64,
    /// The owner's threshold, and for how many epochs.
    pub threshold: f64,
    pub patience: u32,
}
