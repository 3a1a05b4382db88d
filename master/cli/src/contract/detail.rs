//! The answer of `show`.

use std::collections::BTreeMap;

use model::view::{
    AssignmentView, CheckpointView, DataView, DecisionView, EpochView, Estimate, FaultView,
    JobDetail, JobMore, PauseView, SpeedSampleView, TaskView,
};
use model::{Batch, Bounds, Finish, Framework, JobSpec};
use serde::Serialize;

use super::job::JobJson;
use super::{ResourcesJson, ShapeJson, ShareJson, Time, placement};
use crate::listing::Item;

/// A number with its central 80 % range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct EstimateJson {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl From<Estimate> for EstimateJson {
    fn from(estimate: Estimate) -> Self {
        Self { value: estimate.value, low: estimate.low, high: estimate.high }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BoundsJson {
    pub min: u32,
    pub max: u32,
}

impl From<Bounds> for BoundsJson {
    fn from(bounds: Bounds) -> Self {
        Self { min: bounds.min, max: bounds.max }
    }
}

/// The job as submitted. Of `batch_global` and `batch_per_worker` one is null, and of
/// `convergence` and `epochs`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SpecJson {
    pub command: Vec<String>,
    pub working_directory: String,
    pub framework: &'static str,
    pub mode: &'static str,
    pub batch_global: Option<u32>,
    pub batch_per_worker: Option<u32>,
    pub worker: ResourcesJson,
    pub server: ResourcesJson,
    pub workers: BoundsJson,
    pub servers: BoundsJson,
    pub convergence: Option<ConvergenceJson>,
    pub epochs: Option<u32>,
    pub epochs_max: u32,
    pub checkpoint: String,
    pub checkpoint_interval_s: u32,
    pub environment: BTreeMap<String, String>,
    pub priority: f64,
    pub on_disconnect: &'static str,
    pub restarts_max: u32,
    pub model_key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ConvergenceJson {
    pub threshold: f64,
    pub patience: u32,
    /// The user's own curve in place of Eqn. (1).
    pub curve: Option<String>,
}

impl From<&JobSpec> for SpecJson {
    fn from(spec: &JobSpec) -> Self {
        let (batch_global, batch_per_worker) = match spec.batch {
            Batch::Global(samples) => (Some(samples), None),
            Batch::PerWorker(samples) => (None, Some(samples)),
        };
        let convergence = spec.finish.convergence().map(|(threshold, patience)| {
            let curve = spec.finish.curve().map(str::to_owned);
            ConvergenceJson { threshold, patience, curve }
        });
        let epochs = match spec.finish {
            Finish::Epochs(epochs) => Some(epochs),
            Finish::Convergence { .. } | Finish::ConvergenceBy { .. } => None,
        };
        Self {
            command: spec.command.clone(),
            working_directory: spec.working_directory.clone(),
            framework: match spec.framework {
                Framework::Mxnet => "mxnet",
            },
            mode: spec.mode.name(),
            batch_global,
            batch_per_worker,
            worker: (&spec.worker).into(),
            server: (&spec.server).into(),
            workers: spec.workers.into(),
            servers: spec.servers.into(),
            convergence,
            epochs,
            epochs_max: spec.epochs_max,
            checkpoint: spec.checkpoint.clone(),
            checkpoint_interval_s: spec.checkpoint_interval_s,
            environment: spec.environment.clone(),
            priority: spec.priority,
            on_disconnect: spec.on_disconnect.name(),
            restarts_max: spec.restarts_max,
            model_key: spec.model_key.clone(),
        }
    }
}

/// Eqn. (1) as fitted; `beta` is zeros where the job has a curve of its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct LossFitJson {
    pub beta: [f64; 3],
    pub scale: f64,
    pub rmse: f64,
    pub points: u32,
}

/// Eqn. (3) or (4) as fitted, and what it was fitted to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SpeedFitJson {
    pub theta: Vec<f64>,
    pub rmse_relative: f64,
    pub samples: Vec<SpeedSampleJson>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SpeedSampleJson {
    pub servers: u32,
    pub workers: u32,
    pub steps_per_s: f64,
    pub seconds: f64,
    pub profiled: bool,
}

impl From<&SpeedSampleView> for SpeedSampleJson {
    fn from(sample: &SpeedSampleView) -> Self {
        Self {
            servers: sample.shape.servers,
            workers: sample.shape.workers,
            steps_per_s: sample.steps_per_s,
            seconds: sample.seconds,
            profiled: sample.profiled,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct EpochJson {
    pub epoch: u32,
    pub step: u64,
    pub loss: f64,
}

impl From<&EpochView> for EpochJson {
    fn from(epoch: &EpochView) -> Self {
        Self { epoch: epoch.epoch, step: epoch.step, loss: epoch.loss }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TaskJson {
    pub task: String,
    pub node: String,
    pub state: String,
    pub pid: Option<u32>,
    pub steps_per_s: Option<f64>,
    pub compute_share: Option<f64>,
}

impl From<&TaskView> for TaskJson {
    fn from(task: &TaskView) -> Self {
        Self {
            task: task.task.clone(),
            node: task.node.to_string(),
            state: task.state.clone(),
            pid: task.pid,
            steps_per_s: task.steps_per_s,
            compute_share: task.compute_share,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CheckpointJson {
    pub id: String,
    pub generation: String,
    pub step: u64,
    pub epoch: u32,
    pub bytes: u64,
    pub at: Time,
    pub url: String,
}

impl From<&CheckpointView> for CheckpointJson {
    fn from(checkpoint: &CheckpointView) -> Self {
        Self {
            id: checkpoint.id.to_string(),
            generation: checkpoint.generation.to_string(),
            step: checkpoint.step,
            epoch: checkpoint.epoch,
            bytes: checkpoint.bytes,
            at: Time(checkpoint.at),
            url: checkpoint.url.clone(),
        }
    }
}

/// A change of shape: what was expected and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DecisionJson {
    pub at: Time,
    pub round: Option<String>,
    pub from: ShapeJson,
    pub to: ShapeJson,
    pub reason: String,
    pub predicted_before: Option<f64>,
    pub predicted_after: Option<f64>,
    pub predicted_gain_s: Option<f64>,
    pub cost_s: Option<f64>,
    pub measured_after: Option<f64>,
    pub loss_before: Option<f64>,
    pub loss_before_deviation: Option<f64>,
    pub loss_after: Option<f64>,
    pub while_running: bool,
    pub profiling: bool,
}

impl From<&DecisionView> for DecisionJson {
    fn from(decision: &DecisionView) -> Self {
        Self {
            at: Time(decision.at),
            round: decision.round.map(|round| round.to_string()),
            from: decision.from.into(),
            to: decision.to.into(),
            reason: decision.reason.clone(),
            predicted_before: decision.predicted_before,
            predicted_after: decision.predicted_after,
            predicted_gain_s: decision.predicted_gain_s,
            cost_s: decision.cost_s,
            measured_after: decision.measured_after,
            loss_before: decision.loss_before,
            loss_before_deviation: decision.loss_before_deviation,
            loss_after: decision.loss_after,
            while_running: decision.while_running,
            profiling: decision.profiling,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FaultJson {
    pub at: Time,
    pub generation: String,
    pub cause: String,
    pub step: u64,
    pub resumed_from: Option<u64>,
    pub lost_s: Option<f64>,
}

impl From<&FaultView> for FaultJson {
    fn from(fault: &FaultView) -> Self {
        Self {
            at: Time(fault.at),
            generation: fault.generation.to_string(),
            cause: fault.cause.clone(),
            step: fault.step,
            resumed_from: fault.resumed_from,
            lost_s: fault.lost_s,
        }
    }
}

/// How parameter blocks are spread over the servers; requests are those of one worker and step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AssignmentJson {
    pub algorithm: String,
    pub blocks: u64,
    pub servers: u32,
    pub parameters: u64,
    pub parameters_largest: u64,
    /// Parameters of the fullest server over the mean.
    pub largest_over_mean: f64,
    pub requests: u64,
    pub requests_largest: u64,
}

impl From<&AssignmentView> for AssignmentJson {
    fn from(view: &AssignmentView) -> Self {
        let exact = crate::grid::float;
        let mean = exact(view.parameters) / f64::from(view.servers.max(1));
        Self {
            algorithm: view.algorithm.clone(),
            blocks: view.blocks,
            servers: view.servers,
            parameters: view.parameters,
            parameters_largest: view.parameters_largest,
            largest_over_mean: if mean > 0.0 { exact(view.parameters_largest) / mean } else { 1.0 },
            requests: view.requests,
            requests_largest: view.requests_largest,
        }
    }
}

/// The data set that agents serve to the workers; sizes are null until an agent has its index.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DataJson {
    pub url: String,
    pub format: String,
    pub record_bytes: Option<u32>,
    pub chunk_bytes: u64,
    pub chunks: Option<u64>,
    pub records: Option<u64>,
    pub bytes: Option<u64>,
}

impl From<&DataView> for DataJson {
    fn from(view: &DataView) -> Self {
        Self {
            url: view.spec.url.clone(),
            format: view.spec.format.name().to_owned(),
            record_bytes: view.spec.format.record_bytes(),
            chunk_bytes: view.spec.chunk_bytes,
            chunks: view.found.map(|found| found.chunks),
            records: view.found.map(|found| found.records),
            bytes: view.found.map(|found| found.bytes),
        }
    }
}

/// The parts of a pause, in s: from the last step of one generation to the first of `generation`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PauseJson {
    pub generation: String,
    pub from: ShapeJson,
    pub to: ShapeJson,
    pub total_s: f64,
    pub save_s: f64,
    pub publish_s: f64,
    pub stop_s: f64,
    pub launch_s: f64,
    pub begin_s: f64,
    pub script_s: Option<f64>,
    pub connect_s: Option<f64>,
    pub restore_s: Option<f64>,
    pub step_s: Option<f64>,
}

impl From<&PauseView> for PauseJson {
    fn from(view: &PauseView) -> Self {
        Self {
            generation: view.generation.to_string(),
            from: view.from.into(),
            to: view.to.into(),
            total_s: view.total_s,
            save_s: view.save_s,
            publish_s: view.publish_s,
            stop_s: view.stop_s,
            launch_s: view.launch_s,
            begin_s: view.begin_s,
            script_s: view.script_s,
            connect_s: view.connect_s,
            restore_s: view.restore_s,
            step_s: view.step_s,
        }
    }
}

/// `optimus.job/1` with everything that is known of the job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct JobDetailJson {
    #[serde(flatten)]
    pub row: JobJson,
    pub spec: SpecJson,
    pub placement: Vec<ShareJson>,
    pub pinned: bool,
    pub cross_node_share: f64,
    pub remaining_epochs: Option<EstimateJson>,
    pub remaining_steps: Option<EstimateJson>,
    pub remaining_s_range: Option<EstimateJson>,
    pub remaining_unknown: Option<String>,
    pub loss_fit: Option<LossFitJson>,
    pub speed_fit: Option<SpeedFitJson>,
    pub steps_per_s_predicted: Option<f64>,
    pub steps_per_s_measured: Option<f64>,
    pub samples_per_epoch: Option<u64>,
    pub loss_not_finite_since: Option<u64>,
    pub paused_s: f64,
    pub epochs: Vec<EpochJson>,
    pub tasks: Vec<TaskJson>,
    pub checkpoints: Vec<CheckpointJson>,
    pub decisions: Vec<DecisionJson>,
    pub faults: Vec<FaultJson>,
    pub assignment: Option<AssignmentJson>,
    pub data: Option<DataJson>,
    pub pauses: Vec<PauseJson>,
}

impl JobDetailJson {
    pub(crate) fn new(detail: &JobDetail, more: &JobMore) -> Self {
        let loss_fit = |fit: model::view::LossFitView| LossFitJson {
            beta: fit.beta,
            scale: fit.scale,
            rmse: fit.rmse,
            points: fit.points,
        };
        let speed_fit = |fit: &model::view::SpeedFitView| SpeedFitJson {
            theta: fit.theta.clone(),
            rmse_relative: fit.rmse_relative,
            samples: fit.samples.iter().map(Into::into).collect(),
        };
        Self {
            row: (&detail.row).into(),
            spec: (&detail.spec).into(),
            placement: placement(&detail.placement),
            pinned: detail.pinned,
            cross_node_share: detail.cross_node_share,
            remaining_epochs: detail.remaining_epochs.map(Into::into),
            remaining_steps: detail.remaining_steps.map(Into::into),
            remaining_s_range: detail.remaining_s.map(Into::into),
            remaining_unknown: detail.remaining_unknown.clone(),
            loss_fit: detail.loss_fit.map(loss_fit),
            speed_fit: detail.speed_fit.as_ref().map(speed_fit),
            steps_per_s_predicted: detail.steps_per_s_predicted,
            steps_per_s_measured: detail.steps_per_s_measured,
            samples_per_epoch: detail.samples_per_epoch,
            loss_not_finite_since: detail.loss_not_finite_since,
            paused_s: detail.paused_s,
            epochs: detail.epochs.iter().map(Into::into).collect(),
            tasks: detail.tasks.iter().map(Into::into).collect(),
            checkpoints: detail.checkpoints.iter().map(Into::into).collect(),
            decisions: detail.decisions.iter().map(Into::into).collect(),
            faults: detail.faults.iter().map(Into::into).collect(),
            assignment: more.assignment.as_ref().map(Into::into),
            data: more.data.as_ref().map(Into::into),
            pauses: more.pauses.iter().map(Into::into).collect(),
        }
    }
}

impl Item for JobDetailJson {
    fn key(&self) -> String {
        self.row.id.clone()
    }

    fn settled(&self) -> Self {
        Self { row: self.row.settled(), ..self.clone() }
    }
}
