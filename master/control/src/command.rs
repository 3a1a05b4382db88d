//! Everything that the control state machine asks of its hands, in order.

use model::agent::{Desired, Part};
use model::client::Reply;
use model::nodes::NodeOrders;
use model::notes::Extras;
use model::{CheckpointId, Generation, JobId, NodeId};
use scheduler::snapshot::{Policy, Snapshot};

use crate::event::{RequestKey, SessionId};
use crate::record::Write;

/// Commands are carried out in the order of the list. A `Persist` is on stable storage before
/// anything after it is begun: a client that was told "accepted" may delete its copy.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// All of these or none, flushed and synced.
    Persist(Vec<Write>),
    Reply {
        request: RequestKey,
        reply: Box<Reply>,
    },
    SendDesired {
        node: NodeId,
        session: SessionId,
        desired: Desired,
        /// To be sent first, to an agent that knows the message.
        extras: Extras,
        /// As the extras.
        orders: NodeOrders,
    },
    /// Close a connection, in words: a second agent of one name, say.
    Disconnect {
        session: SessionId,
        reason: String,
    },
    /// Run `scheduler::plan` and the checker on a thread of their own.
    Plan {
        snapshot: Box<Snapshot>,
        policy: Policy,
    },
    /// Verify the parts, then publish the manifest.
    Publish(Box<Publish>),
    /// Remove a checkpoint's manifest, then its folder.
    RemoveCheckpoint {
        job: JobId,
        manifest_url: Option<String>,
        directory: String,
    },
}

/// What a manifest says.
#[derive(Clone, Debug, PartialEq)]
pub struct Publish {
    pub job: JobId,
    pub generation: Generation,
    pub checkpoint: CheckpointId,
    /// Base URL of the job's checkpoints, and the folder of this one.
    pub base: String,
    pub directory: String,
    pub step: u64,
    pub epoch: u32,
    pub epoch_position: u64,
    pub parts: Vec<Part>,
}
