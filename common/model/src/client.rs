//! What an operator's command asks of the master, one request and one answer a stream.

use serde::{Deserialize, Serialize};

use crate::diverged::OnNan;
use crate::ids::{JobId, NodeId, RoundId};
use crate::job::{Bounds, Fault, JobSpec};
use crate::nodes::{AuditView, CertificateCall, CertificateView, Finding, NodeMore};
use crate::options::JobOptions;
use crate::shape::{Shape, Task};
use crate::view::{
    EventView, JobDetail, JobMore, JobRow, NodeDetail, NodeRow, RoundDetail, RoundRow, Status,
    WhyView,
};

/// A request, with what holds for every change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Check and answer, change nothing.
    pub dry_run: bool,
    /// The operator's reason, kept with the event.
    pub reason: Option<String>,
    pub call: Call,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a few a second; a box would only be noise")]
pub enum Call {
    Change(Change),
    Read(Read),
    /// From protocol 4 on.
    Certificate(CertificateCall),
}

/// Everything that changes state: one event of `control` each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Change {
    Submit {
        spec: JobSpec,
        /// A repeated id returns the first job.
        request_id: Option<String>,
    },
    Cancel {
        job: JobId,
        /// Do not wait for a final checkpoint or the grace.
        now: bool,
    },
    Pause {
        job: JobId,
    },
    Resume {
        job: JobId,
    },
    Checkpoint {
        job: JobId,
    },
    Resize {
        job: JobId,
        shape: Shape,
        pin: bool,
    },
    Unpin {
        job: JobId,
    },
    Update {
        job: JobId,
        workers: Option<Bounds>,
        servers: Option<Bounds>,
        priority: Option<f64>,
    },
    NodeLost {
        node: NodeId,
    },
    /// From protocol 3 on: as `Submit`, with options that are not all at their defaults.
    SubmitWith {
        spec: JobSpec,
        request_id: Option<String>,
        options: JobOptions,
    },
    /// From protocol 4 on, as all below: no new tasks on a node; what runs goes on.
    NodeCordon {
        node: NodeId,
    },
    /// Jobs move away by checkpoint; what is left at the deadline is stopped.
    NodeDrain {
        node: NodeId,
        /// From now, in ms; none waits for ever.
        deadline_ms: Option<u64>,
    },
    /// Takes back a cordon or a drain.
    NodeUndrain {
        node: NodeId,
    },
    /// Takes a GPU out for good, or lets a bad or retired one be probed.
    Gpu {
        node: NodeId,
        uuid: String,
        retire: bool,
    },
    /// As `SubmitWith`, of a job that asks what is done once its loss is no number any more.
    SubmitWatched {
        spec: JobSpec,
        request_id: Option<String>,
        options: JobOptions,
        on_nan: OnNan,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Read {
    Jobs,
    Job {
        job: JobId,
    },
    Why {
        job: JobId,
    },
    Events {
        job: Option<JobId>,
        after: u64,
        limit: u32,
    },
    Rounds {
        limit: u32,
    },
    Round {
        round: RoundId,
    },
    Nodes,
    Node {
        node: NodeId,
    },
    Status,
    /// The end of a task's output, from its agent.
    Log {
        job: JobId,
        generation: Option<u64>,
        task: Task,
        bytes_max: u32,
    },
    /// A consistent copy of the master's store, in its own checked format.
    Snapshot,
    /// From protocol 3 on: what [`Read::Job`] does not tell.
    JobMore {
        job: JobId,
    },
    /// From protocol 4 on, as all below: what [`Read::Node`] does not tell.
    NodeMore {
        node: NodeId,
    },
    /// What an operator should look at.
    Doctor,
    Audit {
        after: u64,
        limit: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// A job was accepted, or had been under the same request id.
    Submitted {
        job: JobId,
        created: bool,
        submitted_s_ago: f64,
    },
    /// The change is stored and under way.
    Accepted {
        job: Option<JobId>,
        node: Option<NodeId>,
        note: String,
    },
    Jobs(Vec<JobRow>),
    Job(Box<JobDetail>),
    Why(Box<WhyView>),
    Events(Vec<EventView>),
    Rounds(Vec<RoundRow>),
    Round(Box<RoundDetail>),
    Nodes(Vec<NodeRow>),
    Node(Box<NodeDetail>),
    Status(Box<Status>),
    Log {
        generation: u64,
        text: Vec<u8>,
    },
    /// One of several pieces of a snapshot; the last is empty.
    SnapshotPiece(Vec<u8>),
    JobMore(Box<JobMore>),
    NodeMore(Box<NodeMore>),
    Doctor(Vec<Finding>),
    Audit(Vec<AuditView>),
    Certificates(Vec<CertificateView>),
    /// A request for a certificate, in PEM.
    CertificateRequest(String),
    /// One of several pieces of an answer that is longer than a frame, put together the body of
    /// its frame; the last is empty. From protocol 4 on.
    Piece(Vec<u8>),
}

/// Why a request was not done. Each kind is one exit code of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// 2: the request itself is wrong; see the faults.
    Invalid,
    /// 3
    NotFound,
    /// 4
    NotAllowed,
    /// 5: the present state does not admit it.
    Conflict,
    /// 6: the master cannot take it now.
    Unavailable,
    /// 8: valid, but cannot be placed.
    CannotPlace,
}

/// Message of a master that refuses because it ends: it is worth asking again.
pub const STOPPING: &str = "the master is stopping";
/// Message of a master that cannot say whether a change was made: the same holds.
pub const UNANSWERED: &str = "the master did not answer in time; a change may still be carried out";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: ErrorKind,
    pub message: String,
    pub hint: String,
    pub faults: Vec<Fault>,
}

impl Refusal {
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: hint.into(), faults: Vec::new() }
    }
}

/// An answer or a refusal, as it crosses the wire.
pub type Reply = Result<Answer, Refusal>;
