//! What is held in memory of the generations on this node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use model::agent::Exit;
use model::notes::BlockPart;
use model::{CheckpointId, Task};

use super::data::Data;
use super::reader::Reader;
use super::sockets;
use crate::gateway::Served;
use crate::task::stop::Stop;
use crate::telemetry::Telemetry;

/// What is known in memory of a held generation.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) telemetry: Option<Telemetry>,
    pub(super) reader: Reader,
    /// The tasks' way to storage; none where it could not be opened again.
    pub(super) files: Option<Served>,
    pub(super) tasks: BTreeMap<Task, LiveTask>,
    /// Set to keep a launch under way from starting more.
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) folder: Folder,
    /// Why the present checkpoint fails here.
    pub(super) trouble: Option<(CheckpointId, String)>,
    /// `control.json` shows the ledger's order.
    pub(super) control_written: bool,
    /// What `assignment.json` says, once it is there.
    pub(super) assignment: Option<Vec<Vec<BlockPart>>>,
    pub(super) seen: sockets::Seen,
    pub(super) data: Data,
    /// Why the index of the data set cannot be had yet.
    pub(super) data_waits: Option<String>,
}

/// How far the folder of the present checkpoint has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Folder {
    #[default]
    None,
    Making(CheckpointId),
    Made(CheckpointId),
    Failed(CheckpointId),
}

/// A task that may have processes.
#[derive(Debug, Default)]
pub(super) struct LiveTask {
    /// Its process group, where that is proved to be its own: the leader lived when it was last
    /// looked up, and the group has not been seen empty since.
    pub(super) group: Option<i32>,
    /// Started by an earlier life of the agent, or by a fork server that has ended: nobody tells
    /// of its end.
    pub(super) adopted: bool,
    /// How its first process ended.
    pub(super) ended: Option<Ended>,
    pub(super) stop: Option<Stop>,
    /// A process of it that lives on after the first one.
    pub(super) survivor: Option<i32>,
}

#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) exit: Exit,
    /// Before anybody asked for it.
    pub(super) by_itself: bool,
}
