//! What a master and an agent tell each other of a server itself from protocol 4 on: what it can
//! enforce, its GPUs, and who may reach a task.
//!
//! As the notes and extras of [`crate::notes`], these are whole and idempotent: the newest one
//! replaces all before it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{Generation, JobId, NodeId};
use crate::reason::Schedulability;
use crate::shape::Task;
use crate::time::UnixMs;

/// The first protocol with these messages.
pub const PROTOCOL_OF_NODES: u16 = 4;

/// What an agent tells of its server: after the introduction and whenever something in it changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeNotes {
    pub isolation: Isolation,
    /// What was seen of each GPU; a health state is the master's judgement, never here.
    pub gpus: Vec<GpuNote>,
    /// What is wrong with all GPUs of the server: NVML that hangs, a library that does not fit the
    /// driver, a device on the PCI bus without NVML.
    pub gpu_trouble: Option<GpuTrouble>,
    /// GPUs that each local task was given.
    pub held: Vec<HeldReport>,
    pub ends: Vec<EndReport>,
    /// Tasks that could not be started here.
    pub rejects: Vec<RejectReport>,
    /// For the operator: each at most 500 bytes.
    pub alerts: Vec<String>,
    /// When the certificate that the agent shows ends.
    pub certificate_ends: Option<UnixMs>,
    /// Addresses of the server, loopback aside, that its tasks' connections may come from.
    pub addresses: Vec<IpAddr>,
    /// Tasks with processes that outlive their KILL.
    pub stuck: Vec<StuckReport>,
    /// The one user that all tasks run as, whoever submitted them; none where each runs as the
    /// user of its submitter.
    pub one_user: Option<String>,
}

/// A task that the server cannot end: it counts as running until its last process is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckReport {
    pub job: JobId,
    pub generation: Generation,
    pub task: Task,
    /// Its processes by id, state and what they wait in; at most 500 bytes.
    pub words: String,
}

/// What a server enforces of each task's limits, and why not where it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    pub cpu: bool,
    pub memory: bool,
    pub pids: bool,
    /// Tasks lie in control groups of their own, so that "stopped" is proved by an empty one.
    pub groups: bool,
    /// Only peers of a generation reach its ports.
    pub filter: bool,
    /// In words, what is not enforced and the remedy; empty where all is.
    pub missing: Vec<String>,
}

/// What was seen of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuNote {
    pub uuid: String,
    /// NVML answered for it at the newest look.
    pub answers: bool,
    /// In words, why not, or which reading is bad.
    pub fault: Option<String>,
    /// Uncorrected memory errors since the driver was loaded; none where it does not count.
    pub ecc_uncorrected: Option<u64>,
    /// The newest Xid events of it, oldest first, at most 16.
    pub xids: Vec<XidReport>,
    /// Processes with memory of it that are none of our tasks': their pids, at most 16.
    pub strangers: Vec<u32>,
    /// It has fallen off the bus, or NVML lists it no more: who computed on it does so no longer.
    pub lost: bool,
    /// What was asked by [`NodeOrders::gpus_probed`] was done while it was idle, and found nothing.
    pub probed: bool,
}

/// An error event of a GPU, by NVIDIA's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct XidReport {
    /// Counts the events of this life of the agent, so that a repeated report is known.
    pub number: u64,
    pub xid: u64,
    pub at: UnixMs,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuTrouble {
    /// A call of NVML has not returned within its deadline.
    Hangs(String),
    /// The driver was changed under its library: running jobs go on, new ones would fail.
    Mismatch(String),
    /// A device is on the PCI bus, and NVML is not to be had.
    Unseen(String),
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReport {
    pub job: JobId,
    pub generation: Generation,
    pub task: Task,
    pub gpus: Vec<String>,
}

/// Why a task ended, where the server knows more than its exit says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndReport {
    pub job: JobId,
    pub generation: Generation,
    pub task: Task,
    pub cause: EndCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndCause {
    /// Most memory that it had, and what it may have, in bytes.
    OutOfMemory { peak: Option<u64>, limit: u64 },
    /// Killed by the server's own out-of-memory guard, not for a limit of the task.
    OutOfMemoryHost,
}

/// A task that the server did not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectReport {
    pub job: JobId,
    pub generation: Generation,
    pub task: Task,
    pub errno: Option<i32>,
    /// At most 500 bytes.
    pub words: String,
    /// The server is at fault, not the job: no process could be made, no control group, no space.
    pub server: bool,
}

/// What a server should know beside its desired set, before it obeys that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOrders {
    /// Of generations in the desired set.
    pub jobs: Vec<JobOrders>,
    /// GPUs that new tasks do not get.
    pub gpus_out: Vec<String>,
    /// GPUs to look at anew while they are idle.
    pub gpus_probed: Vec<String>,
    /// The master judges by what it is told of GPUs; an agent that no such master speaks to takes
    /// GPUs with memory errors out by itself.
    pub judges_gpus: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOrders {
    pub job: JobId,
    pub generation: Generation,
    /// Who submitted it.
    pub user: String,
    /// Addresses of all servers that have tasks of it.
    pub peers: Vec<IpAddr>,
}

/// A GPU's health, as the master judges it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GpuHealth {
    #[default]
    Ok,
    /// Something was seen; it takes no new work while that is open.
    Suspect,
    /// It is looked at, idle, before it may work again.
    Probing,
    /// The hardware failed.
    Bad,
    /// By an operator's word.
    Retired,
}

impl GpuHealth {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Suspect => "SUSPECT",
            Self::Probing => "PROBING",
            Self::Bad => "BAD",
            Self::Retired => "RETIRED",
        }
    }
}

/// What `node show` and `node gpus` show beside [`crate::view::NodeDetail`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeMore {
    pub node: NodeId,
    pub isolation: Isolation,
    /// None where its agent is older than protocol 4.
    pub known: bool,
    pub schedulability: Schedulability,
    /// Who made it so, when, and why.
    pub by: Option<String>,
    pub since: Option<UnixMs>,
    pub reason: String,
    pub drain: Option<DrainView>,
    pub gpus: Vec<GpuView>,
    pub gpu_trouble: Option<String>,
    pub alerts: Vec<String>,
    pub certificate_ends: Option<UnixMs>,
    pub rejects: Vec<String>,
}

/// How far a drain has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainView {
    /// When what is left is stopped without a checkpoint; none waits for ever.
    pub deadline: Option<UnixMs>,
    /// Tasks at its begin and now.
    pub tasks_before: u32,
    pub tasks_left: u32,
    /// For each job that is still there, what it waits for.
    pub jobs: Vec<(JobId, String)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuView {
    pub uuid: String,
    pub name: String,
    pub health: GpuHealth,
    pub since: Option<UnixMs>,
    pub reason: String,
    pub memory_bytes_total: u64,
    pub memory_bytes_used: u64,
    pub utilisation: Option<f64>,
    pub ecc_uncorrected: Option<u64>,
    /// The task that has it.
    pub job: Option<(JobId, Generation, String)>,
    /// Its last events, oldest first.
    pub history: Vec<(UnixMs, String)>,
}

/// One finding of `doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub severity: Severity,
    /// What it is about: a node, a job, a certificate, the store.
    pub subject: String,
    pub words: String,
    pub remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Severity {
    Note,
    Warning,
    Fault,
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditView {
    pub number: u64,
    pub at: UnixMs,
    pub user: String,
    /// The role of the certificate.
    pub role: String,
    pub address: String,
    /// What was asked, in one line, without secrets.
    pub request: String,
    pub reason: Option<String>,
    /// `done`, or why it was refused.
    pub outcome: String,
    /// Nothing was to be changed.
    pub dry_run: bool,
}

/// Whose certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Holder {
    Master,
    Agent(NodeId),
}

/// Renewing certificates over the master, with the CA's key on the operator's side only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificateCall {
    /// Make a new key there and answer with a request for a certificate of it (PEM).
    Ask { holder: Holder },
    /// The certificate for the newest request (PEM): used for every connection from now on.
    Install { holder: Holder, pem: String },
    /// The CA's list of revoked certificates (PEM).
    Revocations { pem: String },
    /// What is known of all certificates in use.
    Status,
}

/// A certificate in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateView {
    /// Such as `agent/node-7`.
    pub identity: String,
    pub serial: String,
    pub ends: UnixMs,
    pub connected: bool,
    pub revoked: bool,
    /// When the one ends that an agent shows from its next connection on: another after a renewal.
    pub next_ends: Option<UnixMs>,
}
