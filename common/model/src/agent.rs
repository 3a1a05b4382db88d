//! What a master and an agent say to each other.
//!
//! The master writes what is desired, the agent what is observed. Both are whole sets, sent
//! again after every reconnection, so that a lost message can never leave a ghost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{BootId, CheckpointId, Generation, Incarnation, JobId, Revision};
use crate::job::{Batch, Mode, OnDisconnect};
use crate::nodes::{NodeNotes, NodeOrders};
use crate::notes::{Extras, Notes};
use crate::resources::Resources;
use crate::shape::{Shape, Task};

/// From an agent to the master, in order, on the connection's first stream after the handshake.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromAgent {
    /// The first frame of every connection.
    Introduction(Introduction),
    Heartbeat(Heartbeat),
    /// From protocol 2 on: the newest learning rate of each local job that tells one, after the
    /// introduction and whenever one changes.
    Rates(Vec<RateReport>),
    /// From protocol 3 on: after the introduction and whenever something in them changes.
    Notes(Notes),
    /// From protocol 4 on: as the notes.
    Node(NodeNotes),
}

/// A learning rate that a job trains with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateReport {
    pub job: JobId,
    pub generation: Generation,
    /// Who tells it.
    pub worker: u32,
    /// The first step with this rate, counted as in [`WorkerReport::step`].
    pub step: u64,
    pub rate: f64,
}

/// Who an agent is and what it holds. Its name comes from its certificate, never from here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Introduction {
    pub incarnation: Incarnation,
    pub boot_id: BootId,
    pub software: String,
    /// The agent's wall clock, to tell the operator of a skew.
    pub unix_ms: u64,
    /// Numeric address at which other nodes' tasks reach tasks here (`DMLC_NODE_HOST`).
    pub task_address: String,
    /// Longest time between heartbeats that the agent intends, in ms.
    pub beat_ms: u64,
    pub first: Heartbeat,
}

/// The present state of a node: never a difference, so any one of them may be lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Counts the heartbeats of one connection from 0; a lower number than seen is stale.
    pub sequence: u64,
    /// The desired set that the agent last obeyed.
    pub obeyed: Revision,
    pub capacity: Resources,
    pub load: NodeLoad,
    pub gpus: Vec<GpuReport>,
    /// Every task that the ledger holds, the dead ones included until the master drops their
    /// generation from the desired set.
    pub tasks: Vec<TaskReport>,
    pub workers: Vec<WorkerReport>,
    /// The last epochs of each local worker (at most 16 each; all that are kept in an
    /// introduction): idempotent by job, worker and epoch.
    pub epochs: Vec<EpochReport>,
    pub checkpoints: Vec<CheckpointReport>,
    /// Reports of training processes that were malformed and dropped, since the agent started.
    pub reports_dropped: u64,
}

/// Load of a node from sysinfo. Shares in 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeLoad {
    pub cpu_share: f64,
    pub memory_bytes_used: u64,
    pub memory_bytes_total: u64,
    pub disk_bytes_free: u64,
    pub load_1m: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReport {
    pub uuid: String,
    pub name: String,
    pub memory_bytes_total: u64,
    pub memory_bytes_used: u64,
    /// In 0 to 1; none where the driver does not say.
    pub utilisation: Option<f64>,
    /// Why the GPU cannot be used, from NVML.
    pub fault: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskReport {
    pub job: JobId,
    pub generation: Generation,
    pub task: Task,
    pub state: TaskState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskState {
    /// A process is there; `ready` once its package said hello.
    Running { pid: u32, ready: bool },
    /// No process of the task is left, children included.
    Exited(Exit),
}

/// How a task ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code; none for a signal, or where the agent restarted in between and cannot know.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// In words, at most 2,000 bytes: the training script's own error, "cannot start: …",
    /// "vanished while the agent was down", "stopped as told", …
    pub reason: String,
    /// Whether the master's order was the cause.
    pub ordered: bool,
}

/// Progress of one worker in one generation. Sums grow over the generation, so that a lost
/// heartbeat loses nothing; the master takes differences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    pub job: JobId,
    pub generation: Generation,
    pub worker: u32,
    /// Last finished step: sync the job's global step, async this worker's own.
    pub step: u64,
    pub epoch: u32,
    /// Steps of this generation that were reported.
    pub steps: u64,
    /// Sum of their wall times, and of their own compute times, in s.
    pub steps_s: f64,
    pub compute_s: f64,
    pub samples: u64,
    /// Sum over steps of the finite losses, and how many steps those are.
    pub loss_sum: f64,
    pub loss_count: u64,
    /// Steps whose loss was not finite, and the first of them.
    pub loss_not_finite: u64,
    pub loss_not_finite_since: Option<u64>,
    /// Mean and standard deviation of the loss over the last (at most 50) steps.
    pub recent: LossWindow,
    /// Mean over the first (at most 50) steps of this generation.
    pub first: LossWindow,
    /// Samples in one epoch of the job's data, once the script said it.
    pub samples_per_epoch: Option<u64>,
    /// The script's loop is over; it waits for the final checkpoint.
    pub finished: bool,
}

/// Mean and standard deviation of the loss over some steps; zeros where `steps` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossWindow {
    pub steps: u32,
    pub mean: f64,
    pub deviation: f64,
}

/// One worker's part of one finished epoch, or of the part of it in this generation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    pub job: JobId,
    pub generation: Generation,
    pub worker: u32,
    pub epoch: u32,
    /// The step at its end.
    pub step: u64,
    /// Sum of the loss over its samples, and their number.
    pub loss_sum: f64,
    pub samples: u64,
}

/// How far a checkpoint of a generation has come on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointReport {
    pub job: JobId,
    pub generation: Generation,
    pub checkpoint: CheckpointId,
    pub worker: u32,
    pub state: CheckpointState,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CheckpointState {
    /// The worker stands at the step, with its sums of the unfinished epoch.
    Reached {
        step: u64,
        epoch: u32,
        loss_sum: f64,
        samples: u64,
    },
    /// The named step had already passed; the worker trains on.
    Missed {
        step: u64,
    },
    /// All parts are on disk; from rank 0 only.
    Saved {
        step: u64,
        epoch: u32,
        epoch_position: u64,
        parts: Vec<Part>,
    },
    Failed {
        error: String,
    },
}

/// Start of the words of a failure that passes by itself, or once somebody frees space: storage
/// answers not, or takes nothing more.
pub const STORAGE_AWAY: &str = "storage is away: ";

/// True where words about a failure say that storage was away.
#[must_use]
pub fn says_storage_away(words: &str) -> bool {
    words.contains(STORAGE_AWAY)
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    pub file: String,
    pub bytes: u64,
    pub crc32: u32,
}

/// From the master to an agent, on the same stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The whole desired set, whenever it changes and after every introduction.
    Desired(Desired),
    /// From protocol 3 on: before every desired set.
    Extras(Extras),
    /// From protocol 4 on: before every desired set.
    Orders(NodeOrders),
}

/// Everything that a node should run. What is not in it must not run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Desired {
    pub revision: Revision,
    pub generations: Vec<DesiredGeneration>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DesiredGeneration {
    pub job: JobId,
    pub generation: Generation,
    pub order: Order,
    pub launch: Launch,
    pub checkpoint: Option<CheckpointOrder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Start the tasks that the ledger does not hold yet.
    Start,
    /// Start nothing: a task that the ledger does not hold is reported as exited.
    Keep,
    /// TERM now, KILL after the grace.
    Stop { grace_ms: u64 },
}

/// All that an agent needs to start a generation's tasks on its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub job_name: String,
    pub command: Vec<String>,
    pub working_directory: String,
    pub environment: BTreeMap<String, String>,
    pub mode: Mode,
    pub batch: Batch,
    pub epochs_max: u32,
    pub shape: Shape,
    /// Tasks of this node.
    pub tasks: Vec<Task>,
    pub worker: Resources,
    pub server: Resources,
    /// Where the PS scheduler listens.
    pub root_host: String,
    pub root_port: u16,
    /// Folder of the published checkpoint to resume from, as a URL.
    pub resume: Option<String>,
    pub on_disconnect: OnDisconnect,
}

/// Asks a generation's workers for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOrder {
    pub checkpoint: CheckpointId,
    /// Sync: the global step after which every worker stops. Async: none.
    pub at_step: Option<u64>,
    /// A fresh folder, as a URL; the agent of each worker makes it for the task's user.
    pub directory: String,
    /// Whether the workers wait after the save until released or stopped.
    pub hold: bool,
    pub released: bool,
}

/// What the master asks of an agent on a stream of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentQuery {
    /// The end of a task's output.
    Log { job: JobId, generation: Option<Generation>, task: Task, bytes_max: u32 },
    /// From protocol 3 on: whether a `file://` folder is the same one here as elsewhere. `folder`
    /// is its URL, `name` one that nobody else has.
    Probe { folder: String, name: String, act: ProbeAct },
    /// From protocol 4 on: make a new key, and answer with a request for a certificate of it.
    CertificateRequest,
    /// From protocol 4 on: the certificate for the newest request, in PEM.
    CertificateInstall { pem: String },
}

/// A proof that folders of several nodes are one: what one of them makes, all others see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeAct {
    /// Make a folder of the name, as the tasks' user.
    Make,
    Look,
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentAnswer {
    Log {
        generation: Generation,
        text: Vec<u8>,
    },
    /// In words.
    Refused(String),
    /// To a probe: whether the name is there now.
    Probed(bool),
    /// A request for a certificate, in PEM.
    CertificateRequest(String),
    Installed,
}
