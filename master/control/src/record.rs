//! What is kept on disk. Types here are append-only: a changed one becomes a new variant of
//! [`Record`], and the old one stays readable.

use std::collections::{BTreeMap, BTreeSet};

use model::nodes::GpuHealth;
use model::reason::Schedulability;
use model::view::{DecisionView, EventView, FaultView};
use model::{
    BootId, CheckpointId, Generation, Incarnation, JobId, JobOptions, JobSpec, NodeId, Placement,
    Resources, RoundId, Shape, UnixMs,
};
use serde::{Deserialize, Serialize};

use crate::job::diverged::Diverging;
use crate::job::phase::{Partial, Phase};
use crate::ports::HostPorts;

/// One change of the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    Put(Record),
    Delete(Key),
}

/// One entry of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    MetaV1(Meta),
    JobV1(Box<JobRecord>),
    EventV1(EventView),
    RoundV1(Box<RoundRecord>),
    NodeV1(NodeRecord),
    SpeedV1(SpeedRecord),
    PortsV1 { host: String, ports: HostPorts },
    RatesV1(RateRecord),
    OptionsV1(Box<OptionsRecord>),
    BlocksV1(BlocksRecord),
    SlowJobV1(Box<SlowJobRecord>),
    SlowNodeV1(SlowNodeRecord),
    GpuV1(Box<GpuRecord>),
    NodeOpsV1(NodeOpsRecord),
    DivergingV1(DivergingRecord),
}

/// Where an entry lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    Meta,
    Job(JobId),
    Event(u64),
    Round(RoundId),
    Node(NodeId),
    Speed(SpeedKey),
    Ports(String),
    Rates(JobId),
    Options(JobId),
    Blocks(JobId),
    SlowJob(JobId),
    SlowNode(NodeId),
    /// By its node and its UUID.
    Gpu(NodeId, String),
    NodeOps(NodeId),
    Diverging(JobId),
}

impl Key {
    /// A table's byte, then the id so that bytes sort as ids do.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let text = |table: u8, text: &str| [&[table], text.as_bytes()].concat();
        let number = |table: u8, id: u64| [&[table], id.to_be_bytes().as_slice()].concat();
        match self {
            Self::Meta => vec![0],
            Self::Job(job) => number(1, job.0),
            Self::Event(event) => number(2, *event),
            Self::Round(round) => number(3, round.0),
            Self::Node(node) => text(4, node.as_str()),
            Self::Speed(SpeedKey::Job(job)) => number(5, job.0),
            Self::Speed(SpeedKey::Model { key, rule }) => text(6, &format!("{rule} {key}")),
            Self::Ports(host) => text(7, host),
            Self::Rates(job) => number(8, job.0),
            Self::Options(job) => number(9, job.0),
            Self::Blocks(job) => number(12, job.0),
            Self::SlowJob(job) => number(10, job.0),
            Self::SlowNode(node) => text(11, node.as_str()),
            // A node's name has no blank.
            Self::Gpu(node, uuid) => text(14, &format!("{node} {uuid}")),
            Self::NodeOps(node) => text(13, node.as_str()),
            Self::Diverging(job) => number(40, job.0),
        }
    }
}

impl Record {
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            Self::MetaV1(_) => Key::Meta,
            Self::JobV1(job) => Key::Job(job.id),
            Self::EventV1(event) => Key::Event(event.number),
            Self::RoundV1(round) => Key::Round(round.id),
            Self::NodeV1(node) => Key::Node(node.id.clone()),
            Self::SpeedV1(speed) => Key::Speed(speed.key.clone()),
            Self::PortsV1 { host, .. } => Key::Ports(host.clone()),
            Self::RatesV1(rates) => Key::Rates(rates.job),
            Self::OptionsV1(options) => Key::Options(options.job),
            Self::BlocksV1(blocks) => Key::Blocks(blocks.job),
            Self::SlowJobV1(slow) => Key::SlowJob(slow.job),
            Self::SlowNodeV1(slow) => Key::SlowNode(slow.node.clone()),
            Self::GpuV1(gpu) => Key::Gpu(gpu.node.clone(), gpu.uuid.clone()),
            Self::NodeOpsV1(ops) => Key::NodeOps(ops.node.clone()),
            Self::DivergingV1(record) => Key::Diverging(record.job),
        }
    }
}

/// Options of a job that are not all at their defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptionsRecord {
    pub job: JobId,
    pub options: JobOptions,
}

/// What a job asks for where its loss is no number any more, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DivergingRecord {
    pub job: JobId,
    pub diverging: Diverging,
}

/// The parameter blocks of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlocksRecord {
    pub job: JobId,
    /// Parameters of each block, in the order of initialisation; empty until they are known.
    pub sizes: Vec<u64>,
    /// The newest generation whose workers are told where blocks lie.
    pub assigned: Option<Generation>,
}

/// What is kept of a job's slow workers (section 5.2).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlowJob {
    /// A worker that was put elsewhere, until it is known how it does there.
    pub case: Option<SlowCase>,
    /// Why a worker of this job is never moved for slowness again: it was slow on two nodes.
    pub own: Option<String>,
    /// Times that a worker was put elsewhere, lately.
    pub moves: u32,
}

/// A slow worker's replacement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowCase {
    /// Its number in the generation that was left.
    pub worker: u32,
    pub generation: Generation,
    pub from: NodeId,
    pub to: NodeId,
    pub words: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowJobRecord {
    pub job: JobId,
    pub slow: SlowJob,
}

/// A node that slowness follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowNodeRecord {
    pub node: NodeId,
    pub since: UnixMs,
    /// When the flag ends by itself.
    pub until: UnixMs,
    pub words: String,
}

/// What is held against a GPU, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuRecord {
    pub node: NodeId,
    pub uuid: String,
    pub health: GpuHealth,
    /// When it came to that state, why, and by whose word where it was an operator's.
    pub since: Option<UnixMs>,
    pub reason: String,
    pub by: Option<String>,
    pub cause: Option<GpuCause>,
    /// Its last events, oldest first.
    pub history: Vec<(UnixMs, String)>,
    /// The newest event that was judged, by the life of the agent and its number in it.
    pub xid_seen: (Incarnation, u64),
    /// When it was suspect lately, oldest first.
    pub suspicions: Vec<UnixMs>,
    /// What it would be, had not too many been taken out.
    pub kept: Option<GpuKept>,
}

/// Why a GPU is in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuCause {
    Silent,
    Lost,
    Xid(u64),
    /// An Xid after which it wants a reset.
    Reset(u64),
    /// Uncorrected memory errors.
    Ecc(u64),
    /// Suspect too often.
    Often,
    Operator,
}

/// A state that a limit keeps a GPU from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuKept {
    pub health: GpuHealth,
    pub cause: GpuCause,
    pub reason: String,
}

/// A node that takes no new tasks; there is none for an open one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOpsRecord {
    pub node: NodeId,
    pub state: Schedulability,
    pub by: String,
    pub since: UnixMs,
    pub reason: String,
    /// Of a drain: when what is left is stopped.
    pub deadline: Option<UnixMs>,
    pub tasks_before: u32,
}

/// Counters that must never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Starts of a master on this store: the upper half of every revision.
    pub starts: u64,
    pub jobs: u64,
    pub rounds: u64,
    pub events: u64,
}

/// An operator's wish that outlives a restart of the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    Pause,
    Cancel,
    /// A checkpoint, then train on.
    Checkpoint,
}

/// Everything about a job that is worth keeping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    pub id: JobId,
    pub spec: JobSpec,
    pub user: String,
    pub request_id: Option<String>,
    pub submitted: UnixMs,
    pub started: Option<UnixMs>,
    pub ended: Option<UnixMs>,
    pub phase: Phase,
    /// Newest generation ever started.
    pub last: Option<Generation>,
    /// The operator's shape until `unpin`, or until it runs.
    pub pinned: Option<Shape>,
    pub once: Option<Shape>,
    pub wish: Option<Wish>,
    /// Shapes measured for the speed model; `profiled` once no more are wanted.
    pub profiled: bool,
    pub measured: BTreeSet<Shape>,
    pub progress: Progress,
    /// Oldest first; only ones with a manifest.
    pub checkpoints: Vec<CheckpointRecord>,
    pub checkpoint_next: CheckpointId,
    /// Folders of checkpoints that came to nothing, to be removed with the generation's end.
    pub litter: Vec<String>,
    pub decisions: Vec<DecisionView>,
    pub faults: Vec<FaultView>,
    /// Faults since the job last made progress that survived: all, and those that count towards
    /// `restarts_max`.
    pub faults_in_row: u32,
    pub failures_in_row: u32,
    pub port_retries: u32,
    pub restarts: u32,
    pub rescales: u32,
    pub paused_s: f64,
    /// Failed tries of the checkpoint that the job's end or pause waits for.
    pub save_tries: u32,
    /// Rounds for which no change is asked after a failed checkpoint.
    pub barred_rounds: u32,
    /// What people should know beside the phase.
    pub note: Option<String>,
    /// Where the last generations stood, oldest first.
    pub history: Vec<(Generation, Placement)>,
}

/// How far the training has come. *Work* is steps of all workers together, or samples where each
/// worker has its own batch size in sync mode, so that it does not depend on the shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub step: u64,
    pub work: f64,
    pub epoch: u32,
    pub loss: Option<f64>,
    pub samples_per_epoch: Option<u64>,
    pub loss_not_finite_since: Option<u64>,
    pub epochs: Vec<EpochMark>,
    /// Means of the training loss over stretches of work: (work, loss).
    pub points: Vec<(f64, f64)>,
}

/// A whole epoch as measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochMark {
    pub epoch: u32,
    pub step: u64,
    pub work: f64,
    pub loss: f64,
}

/// Learning rates that a job announced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateRecord {
    pub job: JobId,
    pub marks: Vec<RateMark>,
}

/// A learning rate, and the work from which it holds, in the unit of [`Progress::work`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateMark {
    pub work: f64,
    pub rate: f64,
    /// Far from the one before: the loss falls along another curve from here.
    pub stepped: bool,
}

/// A checkpoint that can be resumed from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    pub id: CheckpointId,
    pub generation: Generation,
    pub step: u64,
    pub work: f64,
    pub epoch: u32,
    pub bytes: u64,
    pub at: UnixMs,
    pub directory: String,
    pub manifest_url: String,
    pub partial: Option<Partial>,
}

/// What must be known of a node that does not answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub id: NodeId,
    pub incarnation: Incarnation,
    pub boot_id: BootId,
    pub software: String,
    pub task_address: String,
    pub beat_ms: u64,
    pub capacity: Resources,
    /// Why an operator declared it lost.
    pub gone: Option<String>,
}

/// Whose speed a model tells: one job's, or that of every job with one `model_key`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SpeedKey {
    Job(JobId),
    /// `rule` is mode and batch in words: another one has another speed function.
    Model {
        key: String,
        rule: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedRecord {
    pub key: SpeedKey,
    pub samples: BTreeMap<Shape, SpeedPoint>,
}

/// Speed at a shape, measured over `seconds` of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedPoint {
    pub steps_per_s: f64,
    pub seconds: f64,
    pub profiled: bool,
}

/// One scheduling decision as it was made and applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    pub id: RoundId,
    pub at: UnixMs,
    pub cause: String,
    pub policy: String,
    pub elapsed_s: f64,
    /// Jobs in the snapshot; `jobs` below holds at most [`ROUND_JOBS_MAX`] of them, changes first.
    pub jobs_seen: u32,
    pub started: u32,
    pub rescaled: u32,
    pub waiting: u32,
    pub jobs: Vec<RoundJob>,
    pub dropped: Vec<String>,
    pub used: Vec<(String, f64)>,
}

/// Decisions kept of one round: 1,000 rounds of 4,000 jobs would fill the disk.
pub const ROUND_JOBS_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundJob {
    pub job: JobId,
    pub verb: String,
    pub from: Shape,
    pub to: Shape,
    pub reason: String,
    pub predicted_steps_per_s: Option<f64>,
    /// Filled once the job has run at this shape for a while.
    pub measured_steps_per_s: Option<f64>,
    pub remaining_s: Option<f64>,
    pub placement: Placement,
    pub nodes_refused: Vec<(String, u32)>,
    pub remedy: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_sort_as_ids_do() {
        let model = |rule: &str, key: &str| {
            Key::Speed(SpeedKey::Model { key: key.to_owned(), rule: rule.to_owned() })
        };
        let keys = [
            Key::Meta,
            Key::Job(JobId(2)),
            Key::Job(JobId(10)),
            Key::Job(JobId(300)),
            Key::Event(2),
            Key::Round(RoundId(2)),
            Key::Node("n1".parse().unwrap()),
            Key::Speed(SpeedKey::Job(JobId(2))),
            model("async global 64", "a"),
            model("sync global 64", "a"),
            model("sync global 64", "b"),
            Key::Ports("10.0.0.1".to_owned()),
            Key::Rates(JobId(2)),
            Key::Options(JobId(2)),
            Key::SlowJob(JobId(2)),
            Key::SlowNode("n1".parse().unwrap()),
            Key::Blocks(JobId(2)),
            Key::Gpu("n1".parse().unwrap(), "GPU-1".to_owned()),
            Key::Gpu("n1".parse().unwrap(), "GPU-2".to_owned()),
            Key::Diverging(JobId(2)),
        ];
        let bytes: Vec<_> = keys.iter().map(Key::bytes).collect();
        assert!(bytes.windows(2).all(|pair| pair[0] < pair[1]), "{bytes:?}");
    }
}
