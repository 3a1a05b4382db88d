//! What the command line shows. JSON fields are a contract: only added to.
//!
//! Times are Unix milliseconds here and become RFC 3339 at the output; durations are seconds,
//! sizes bytes.

use serde::{Deserialize, Serialize};

use crate::ids::{CheckpointId, Generation, JobId, NodeId, RoundId};
use crate::job::JobSpec;
use crate::options::DataSpec;
use crate::reason::{PhaseName, Reachability, Schedulability};
use crate::resources::Resources;
use crate::shape::{Placement, Shape};
use crate::time::UnixMs;

/// A line of `ps`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRow {
    pub id: JobId,
    pub name: String,
    pub user: String,
    pub phase: PhaseName,
    pub reason: String,
    pub generation: Option<Generation>,
    pub shape: Shape,
    pub step: u64,
    pub epoch: u32,
    pub loss: Option<f64>,
    pub steps_per_s: Option<f64>,
    pub remaining_s: Option<f64>,
    pub rescales: u32,
    pub restarts: u32,
    pub submitted: UnixMs,
    pub started: Option<UnixMs>,
    pub ended: Option<UnixMs>,
    /// From submission to completion, or until now.
    pub age_s: f64,
}

/// A number with its central 80 % range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// `show`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDetail {
    pub row: JobRow,
    pub spec: JobSpec,
    pub placement: Placement,
    pub pinned: bool,
    pub cross_node_share: f64,
    /// Work left, in epochs and in steps at the present shape; none with the reason below.
    pub remaining_epochs: Option<Estimate>,
    pub remaining_steps: Option<Estimate>,
    pub remaining_s: Option<Estimate>,
    pub remaining_unknown: Option<String>,
    pub loss_fit: Option<LossFitView>,
    pub speed_fit: Option<SpeedFitView>,
    pub steps_per_s_predicted: Option<f64>,
    pub steps_per_s_measured: Option<f64>,
    pub samples_per_epoch: Option<u64>,
    pub loss_not_finite_since: Option<u64>,
    pub epochs: Vec<EpochView>,
    pub tasks: Vec<TaskView>,
    pub checkpoints: Vec<CheckpointView>,
    pub decisions: Vec<DecisionView>,
    pub faults: Vec<FaultView>,
    /// Seconds without training: total of all rescales and restarts.
    pub paused_s: f64,
}

/// What else `show` shows, from protocol 3 on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobMore {
    /// None while the job has no servers, or its blocks are not known.
    pub assignment: Option<AssignmentView>,
    /// None where the job's file names no data set.
    pub data: Option<DataView>,
    /// The newest pauses that moves took, oldest first.
    pub pauses: Vec<PauseView>,
}

/// A job's data set (section 5.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataView {
    pub spec: DataSpec,
    /// Chunks, records and bytes; none until an agent has its index.
    pub found: Option<DataSize>,
}

/// What a data set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSize {
    pub chunks: u64,
    pub records: u64,
    pub bytes: u64,
}

/// The parts of a pause, in s: from the last step of one generation to the first of the next, as
/// the master heard of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PauseView {
    /// The generation after it.
    pub generation: Generation,
    pub from: Shape,
    pub to: Shape,
    pub total_s: f64,
    /// Parameters and states to disk.
    pub save_s: f64,
    /// Their proof, and the manifest.
    pub publish_s: f64,
    /// Until no process was left.
    pub stop_s: f64,
    /// Until every new process had said hello.
    pub launch_s: f64,
    /// From there to the first step of every worker.
    pub begin_s: f64,
    /// What the slowest worker did from its hello on: its script, meeting the others, restoring,
    /// the first step. None where it did not tell.
    pub script_s: Option<f64>,
    pub connect_s: Option<f64>,
    pub restore_s: Option<f64>,
    pub step_s: Option<f64>,
}

/// How a job's parameter blocks are spread over its servers (section 5.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentView {
    /// `best` where the master assigned them, `mxnet` where MXNet's own rule did.
    pub algorithm: String,
    pub blocks: u64,
    pub servers: u32,
    /// In all, and on the server with the most.
    pub parameters: u64,
    pub parameters_largest: u64,
    /// Requests of each worker in a step: in all, and to the server with the most.
    pub requests: u64,
    pub requests_largest: u64,
}

/// Eqn. (1) as fitted, k in steps; `beta` is zeros where the job has a curve of its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossFitView {
    pub beta: [f64; 3],
    pub scale: f64,
    pub rmse: f64,
    pub points: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedFitView {
    pub theta: Vec<f64>,
    pub rmse_relative: f64,
    pub samples: Vec<SpeedSampleView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedSampleView {
    pub shape: Shape,
    pub steps_per_s: f64,
    pub seconds: f64,
    pub profiled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochView {
    pub epoch: u32,
    pub step: u64,
    pub loss: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    pub task: String,
    pub node: NodeId,
    pub state: String,
    pub pid: Option<u32>,
    pub steps_per_s: Option<f64>,
    pub compute_share: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointView {
    pub id: CheckpointId,
    pub generation: Generation,
    pub step: u64,
    pub epoch: u32,
    pub bytes: u64,
    pub at: UnixMs,
    pub url: String,
}

/// A change of a job's shape: what was expected and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionView {
    pub at: UnixMs,
    pub round: Option<RoundId>,
    pub from: Shape,
    pub to: Shape,
    pub reason: String,
    /// Predicted steps a second before and after.
    pub predicted_before: Option<f64>,
    pub predicted_after: Option<f64>,
    /// Predicted seconds saved, net of the cost.
    pub predicted_gain_s: Option<f64>,
    /// Seconds from the last step of the old shape to the first of the new, once measured.
    pub cost_s: Option<f64>,
    pub measured_after: Option<f64>,
    /// Loss over the last 50 steps before (mean, deviation), and the first ones after.
    pub loss_before: Option<f64>,
    pub loss_before_deviation: Option<f64>,
    pub loss_after: Option<f64>,
    /// Whether the job was training when it was moved, rather than starting or coming back from
    /// a fault.
    pub while_running: bool,
    /// Part of profiling, not of a round's allocation.
    pub profiling: bool,
}

/// A fault that ended a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultView {
    pub at: UnixMs,
    pub generation: Generation,
    pub cause: String,
    /// Step reached, and step resumed from: the work lost.
    pub step: u64,
    pub resumed_from: Option<u64>,
    /// Seconds from the last step before to the first step after.
    pub lost_s: Option<f64>,
}

/// `why`: what the last round recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhyView {
    pub id: JobId,
    pub name: String,
    pub phase: PhaseName,
    pub reason: String,
    pub round: Option<RoundId>,
    pub round_at: Option<UnixMs>,
    /// The decision in numbers.
    pub decision: String,
    /// How many nodes could not take a task, by reason.
    pub nodes_refused: Vec<(String, u32)>,
    /// The cheapest change that would start it.
    pub remedy: Option<String>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventView {
    pub number: u64,
    pub at: UnixMs,
    pub job: Option<JobId>,
    pub node: Option<NodeId>,
    pub kind: String,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRow {
    pub id: RoundId,
    pub at: UnixMs,
    pub cause: String,
    pub jobs: u32,
    pub started: u32,
    pub rescaled: u32,
    pub waiting: u32,
    pub elapsed_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundDetail {
    pub row: RoundRow,
    pub policy: String,
    pub jobs: Vec<RoundJobView>,
    /// Decisions that no longer fitted the present state, or that the checker refused.
    pub dropped: Vec<String>,
    /// Share of the cluster's total in use after the round, by kind.
    pub used: Vec<(String, f64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundJobView {
    pub id: JobId,
    pub verb: String,
    pub from: Shape,
    pub to: Shape,
    pub reason: String,
    pub predicted_steps_per_s: Option<f64>,
    pub measured_steps_per_s: Option<f64>,
    pub remaining_s: Option<f64>,
    pub placement: Placement,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    pub id: NodeId,
    pub reachability: Reachability,
    pub schedulability: Schedulability,
    pub reason: String,
    pub capacity: Resources,
    pub used: Resources,
    pub tasks: u32,
    pub heartbeat_age_s: Option<f64>,
    pub cpu_share: f64,
    pub gpus_ok: u32,
    pub software: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeDetail {
    pub row: NodeRow,
    pub boot_id: String,
    pub incarnation: u64,
    pub task_address: String,
    pub clock_skew_s: f64,
    pub memory_bytes_used: u64,
    pub disk_bytes_free: u64,
    pub reports_dropped: u64,
    pub gpus: Vec<(String, String, String)>,
    pub tasks: Vec<(JobId, Generation, String, String)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub cluster: String,
    pub started: UnixMs,
    pub uptime_s: f64,
    pub policy: String,
    pub round_interval_s: f64,
    pub last_round: Option<RoundId>,
    pub last_round_age_s: Option<f64>,
    pub jobs_by_phase: Vec<(PhaseName, u32)>,
    pub nodes_by_state: Vec<(Reachability, u32)>,
    pub capacity: Resources,
    pub used: Resources,
    /// Reports that were refused where they entered: stale generation, not finite, unknown task.
    pub reports_refused: Vec<(String, u64)>,
    pub alerts: Vec<String>,
    pub oldest_agent: Option<String>,
}
