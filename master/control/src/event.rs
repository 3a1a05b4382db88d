//! Everything that can happen to the control state machine.

use std::collections::BTreeMap;

use model::access::Rank;
use model::agent::{Heartbeat, Introduction, RateReport};
use model::client::Change;
use model::nodes::NodeNotes;
use model::notes::Notes;
use model::{CheckpointId, Generation, JobId, NodeId, UnixMs};
use scheduler::plan::Plan;

/// Names a connection of an agent; a later connection of the same node has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Names a client's request that awaits a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey(pub u64);

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Time has passed: some timer may be due.
    Tick,
    /// An agent connected and introduced itself.
    NodeConnected {
        node: NodeId,
        session: SessionId,
        introduction: Box<Introduction>,
    },
    Heartbeat {
        node: NodeId,
        session: SessionId,
        heartbeat: Box<Heartbeat>,
    },
    /// Learning rates of the jobs on a node.
    Rates {
        node: NodeId,
        session: SessionId,
        rates: Vec<RateReport>,
    },
    /// What an agent noted of its jobs beside their progress.
    Notes {
        node: NodeId,
        session: SessionId,
        notes: Box<Notes>,
    },
    /// What an agent noted of its server itself.
    NodeNotes {
        node: NodeId,
        session: SessionId,
        notes: Box<NodeNotes>,
    },
    NodeDisconnected {
        node: NodeId,
        session: SessionId,
    },
    /// An operator's change.
    Change {
        request: RequestKey,
        /// Who asks: the name in the client's certificate.
        user: String,
        /// What its role entitles to.
        rank: Rank,
        dry_run: bool,
        reason: Option<String>,
        change: Box<Change>,
    },
    /// The planning thread is done. `refused` holds the checker's findings, empty where the plan
    /// is sound; a plan with findings is not applied.
    RoundFinished {
        plan: Plan,
        refused: Vec<String>,
        elapsed_s: f64,
    },
    /// The manifest of a checkpoint is on stable storage, or could not be written.
    Published {
        job: JobId,
        generation: Generation,
        checkpoint: CheckpointId,
        outcome: Result<Published, String>,
    },
}

/// A checkpoint that can be resumed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub manifest_url: String,
    pub bytes: u64,
}

/// The two clocks, read once for each event by the daemon or the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub mono: model::Millis,
    pub unix: UnixMs,
}

/// Counters of what was refused where it entered, by kind.
pub type Refused = BTreeMap<&'static str, u64>;
