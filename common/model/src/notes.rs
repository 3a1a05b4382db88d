//! What a master and an agent tell each other from protocol 3 on, beside the sets of [`crate::agent`].
//!
//! Both are whole and idempotent: the newest one replaces all before it, and one that is lost
//! costs nothing that the next one does not bring.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{CheckpointId, Generation, JobId};
use crate::options::DataSpec;

/// The first protocol with these messages.
pub const PROTOCOL_OF_NOTES: u16 = 3;

/// What an agent saw of its local jobs, beside its heartbeat: after the introduction and whenever
/// something of it changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Notes {
    pub blocks: Vec<BlocksReport>,
    /// How gradients arrive at each local server of a synchronous job.
    pub arrivals: Vec<ArrivalReport>,
    /// Where the local workers' connections come from, so that their gradients can be told apart
    /// at the servers.
    pub links: Vec<LinkReport>,
    pub troubles: Vec<TroubleReport>,
    pub data: Vec<DataReport>,
    pub begun: Vec<BegunReport>,
    pub waits: Vec<WaitReport>,
}

/// What the workers of a job on this node wait for, where the agent cannot bring it yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitReport {
    pub job: JobId,
    pub generation: Generation,
    /// At most 500 bytes.
    pub words: String,
}

/// How often a server was seen to wait for a worker's gradients alone, by the kernel's counters
/// of its connections (section 5.2). Counts grow over the generation, and begin anew with each
/// life of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalReport {
    pub job: JobId,
    pub generation: Generation,
    pub server: u32,
    /// Looks at the server's connections in which all workers' could be told.
    pub looks: u64,
    /// The far end of each connection that was behind, and in how many of the looks.
    pub behind: Vec<(SocketAddr, u64)>,
}

/// The near ends of the connections that a worker made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    pub job: JobId,
    pub generation: Generation,
    pub worker: u32,
    pub from: Vec<SocketAddr>,
}

/// Why a checkpoint cannot be completed on a node: also on one that has servers only, whose
/// trouble no worker could tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TroubleReport {
    pub job: JobId,
    pub generation: Generation,
    pub checkpoint: CheckpointId,
    /// At most 500 bytes.
    pub words: String,
}

/// What the data set of a job holds, from an agent that has its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataReport {
    pub job: JobId,
    pub generation: Generation,
    pub chunks: u64,
    pub records: u64,
    pub bytes: u64,
}

/// How a worker began in this generation, in s: its script until it asked for the store, meeting
/// the others there, parameters until the training loop, its first step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BegunReport {
    pub job: JobId,
    pub generation: Generation,
    pub worker: u32,
    pub script_s: f64,
    pub connect_s: f64,
    pub restore_s: f64,
    pub step_s: f64,
}

/// The parameter blocks of a model, in the order of their initialisation, from the worker of
/// rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlocksReport {
    pub job: JobId,
    pub generation: Generation,
    /// Parameters (elements) of each block.
    pub blocks: Vec<u64>,
}

/// What a node should know beside its desired set, before it obeys that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extras {
    /// Of generations in the desired set; one that is missing has nothing special.
    pub jobs: Vec<JobExtras>,
    /// Jobs of which tasks are likely to start here soon.
    pub warm: Vec<Warm>,
}

/// More about one generation of the desired set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobExtras {
    pub job: JobId,
    pub generation: Generation,
    pub assignment: AssignmentOrder,
    pub data: Option<DataSpec>,
    /// Base URL of the job's checkpoints, where the index of its data set is kept; empty without a
    /// data set.
    pub index_base: String,
}

/// Where a generation's parameter blocks lie (section 5.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AssignmentOrder {
    /// As MXNet does by itself.
    #[default]
    Stock,
    /// The workers wait for an assignment, which follows once the blocks are known.
    Wait,
    /// The parts of each block, in the order of its elements.
    Given(Vec<Vec<BlockPart>>),
}

/// Most blocks of a model of which anyone makes an assignment: models of today have some thousand.
pub const BLOCKS_MAX: usize = 16_384;

/// More parameters than any block of a model.
pub const BLOCK_PARAMETERS_MAX: u64 = 1 << 40;

/// A part of a block on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockPart {
    pub server: u32,
    pub parameters: u64,
}

/// What an agent needs to prepare for tasks of a job that may start soon. Nothing runs by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warm {
    pub job: JobId,
    pub command: Vec<String>,
    pub working_directory: String,
    pub environment: std::collections::BTreeMap<String, String>,
    /// CPUs of a worker and of a server, in thousandths: the threads of their computation.
    pub worker_cpus_milli: u64,
    pub server_cpus_milli: u64,
}
