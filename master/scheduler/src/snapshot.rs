//! The only input of a round: the cluster and its jobs as plain values.

use std::sync::Arc;

use model::{JobId, Millis, Mode, NodeId, Placement, Resources, Shape};

use crate::estimate::speed::SpeedModel;
use crate::goodput::Elastic;

/// The state of the cluster at one instant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Version of the state that this was taken from; a plan carries it back.
    pub revision: u64,
    pub now: Millis,
    /// Nodes that take new tasks, sorted by id. Capacity includes what running jobs use here.
    /// Shared: a round that sees the very same list as the one before need not compare it.
    pub nodes: Arc<[NodeInput]>,
    /// Jobs that want to run or do run, sorted by id.
    pub jobs: Vec<JobInput>,
}

impl Snapshot {
    /// Whether jobs are shared out by their goodput, without servers: by Pollux always, by the
    /// look ahead where every job states one.
    pub(crate) fn goes_by_goodput(&self, policy: &Policy) -> bool {
        let states = || !self.jobs.is_empty() && self.jobs.iter().all(|job| job.goodput.is_some());
        policy.allocation == Allocation::Pollux
            || (policy.allocation == Allocation::Horizon && states())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeInput {
    pub id: NodeId,
    pub capacity: Resources,
    /// Used by tasks that the round cannot move: of jobs that are stopping, say.
    pub held: Resources,
    /// False where running tasks may stay and none may be added: SUSPECT, DOWN or cordoned.
    pub open: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobInput {
    pub id: JobId,
    pub mode: Mode,
    pub worker: Resources,
    pub server: Resources,
    pub min: Shape,
    pub max: Shape,
    /// Multiplies the marginal gain.
    pub priority: f64,
    pub arrival: Millis,
    pub current: Option<Current>,
    pub want: Want,
    /// What its owner asked for: what a scheduler without estimates gives.
    pub requested: Option<Shape>,
    /// GPU seconds (or server and worker seconds, where there are no GPUs) that it had so far.
    pub attained_s: f64,
    /// What is known of a job whose batch size may change with its workers: for policies by
    /// goodput.
    pub goodput: Option<Arc<Elastic>>,
    /// What the job's own rescales cost so far, in s of training; an estimate where none was
    /// measured yet.
    pub rescale_cost_s: f64,
}

/// What a running job holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Current {
    pub placement: Placement,
    /// False while it starts, checkpoints or stops: then the round must keep it as it is.
    pub movable: bool,
    /// Milliseconds since its last start or rescale.
    pub since_change_ms: u64,
}

/// What the round is to do for a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Want {
    /// Share out by marginal gain. `remaining` in steps of the job's present unit: sync with a
    /// fixed global batch and async count steps, sync with a fixed worker batch samples.
    Share { speed: SpeedModel, remaining: Option<Remaining> },
    /// The job is being profiled: give it the first of these shapes that fits in what the other
    /// jobs' present or least shapes leave, else its least shape. Never shrinks another job
    /// below what it holds, except to start a job that has nothing.
    Profile { shapes: Vec<Shape> },
    /// An operator's shape: exactly this, or nothing.
    Pinned { shape: Shape },
}

/// Work left, with its central 80 % range, in the unit of [`Want::Share`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remaining {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// How tasks are shared out among jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// By marginal gain (section 4.1).
    #[default]
    MarginalGain,
    /// Dominant resource fairness, one server to one worker (section 6.1).
    Drf,
    /// Short and small jobs first, one server to one worker (section 6.1).
    Tetris,
    /// By arrival, each what it requested.
    Fifo,
    /// Least attained service first, in two queues, each what it requested; others give way.
    Tiresias,
    /// By what each job's progress is worth to the ends of all ([`crate::allocate::horizon`]).
    /// Where every job states its goodput they get workers by it, and no servers, as under
    /// Pollux ([`crate::goodput::horizon`]).
    Horizon,
    /// By goodput: workers and their nodes together, by genetic search (Pollux, section 4.2). Jobs
    /// state their goodput and have no servers. The other half of the policy plays no part.
    Pollux,
}

/// How a job's tasks are put on nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placing {
    /// For the least transfer across nodes (section 4.2).
    #[default]
    Transfer,
    /// Each task on the node with the largest free share: Kubernetes' default.
    Spread,
    /// Each task on the node that it leaves least fragmented: Tetris.
    Pack,
    /// Each task on the first node with room.
    FirstFit,
    /// As many tasks as fit on the node with the largest free share, then on the next.
    Fill,
}

/// The knobs of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The two halves of a policy; any pair goes together.
    pub allocation: Allocation,
    pub placing: Placing,
    /// A change of shape must save this many times its cost.
    pub hysteresis_factor: f64,
    /// Least time between two changes of a job's shape that the policy asks for, in ms.
    pub change_spacing_ms: u64,
    /// Factor on the gain of a job whose remaining work is not known yet (paper, section 4.1).
    pub young_factor: f64,
    /// Seconds of work assumed for a job whose remaining work is unknown.
    pub unknown_remaining_s: f64,
    /// Tiresias: GPU seconds that a job may have had before all others come first.
    pub queue_gpu_s: f64,
    /// Of the allocation that looks ahead: the weight that a job gains with each time that its
    /// finish-time ratio is over 1. 0 is for the mean completion time alone; beyond 2 the mean
    /// suffers and nobody gains (table in [`crate::allocate::horizon`]). Nobody starves at any.
    pub fairness: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            allocation: Allocation::default(),
            placing: Placing::default(),
            hysteresis_factor: 1.5,
            change_spacing_ms: 60_000,
            young_factor: 0.95,
            unknown_remaining_s: 600.0,
            queue_gpu_s: crate::baseline::tiresias::QUEUE_GPU_S,
            fairness: 0.5,
        }
    }
}

impl Policy {
    /// True for the paper's own pair of allocation and placement.
    #[must_use]
    pub fn is_papers(&self) -> bool {
        self.allocation == Allocation::MarginalGain && self.placing == Placing::Transfer
    }

    /// A policy by the name that people give it; none where there is no such policy.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let (_, allocation, placing) = *NAMES.iter().find(|(known, ..)| *known == name)?;
        Some(Self { allocation, placing, ..Self::default() })
    }

    /// The name of this pair of an allocation and a placement.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let named = NAMES.iter().find(|(_, allocation, placing)| {
            (*allocation, *placing) == (self.allocation, self.placing)
        });
        named.map_or("a pair of its own", |(name, ..)| name)
    }
}

/// Policies by name.
const NAMES: [(&str, Allocation, Placing); 7] = [
    ("horizon", Allocation::Horizon, Placing::Transfer),
    ("optimus", Allocation::MarginalGain, Placing::Transfer),
    ("drf", Allocation::Drf, Placing::Spread),
    ("tetris", Allocation::Tetris, Placing::Pack),
    ("fifo", Allocation::Fifo, Placing::FirstFit),
    ("tiresias", Allocation::Tiresias, Placing::Fill),
    ("pollux", Allocation::Pollux, Placing::Transfer),
];
