//! What the agent's loop is told.

use model::agent::{AgentAnswer, AgentQuery, Desired, Introduction, RateReport};
use model::nodes::{NodeNotes, NodeOrders};
use model::notes::{Extras, Notes};
use model::{CheckpointId, JobId};
use tokio::sync::oneshot;

use crate::dataset::Known;
use crate::ledger::Key;
use crate::probe::nvml::Reading;
use crate::procfs::Mark;
use crate::task::forkserver::Gone;
use crate::task::process::Started;
use crate::telemetry::Datagram;

#[derive(Debug)]
pub(crate) enum Event {
    /// A connection stands; it needs the introduction, the learning rates and the notes known.
    Introduce(oneshot::Sender<(Introduction, Vec<RateReport>, Notes, NodeNotes)>),
    /// Something came from the master, if only an acknowledgement.
    Contact,
    Disconnected,
    Desired(Desired, Extras, NodeOrders),
    Query(AgentQuery, oneshot::Sender<AgentAnswer>),
    /// A task was started, or could not be.
    Started {
        mark: Mark,
        started: Started,
    },
    /// The first process of a task ended.
    Ended {
        mark: Mark,
        code: Option<i32>,
        signal: Option<i32>,
    },
    /// The first process of a task lives on, and nobody will tell of its end.
    Orphaned {
        mark: Mark,
    },
    /// `start` is the number of the start that it was.
    ForkServerEnded {
        job: JobId,
        threads: u64,
        start: u32,
        gone: Gone,
    },
    Report {
        key: Key,
        datagram: Datagram,
    },
    Folder {
        key: Key,
        checkpoint: CheckpointId,
        made: Result<(), String>,
    },
    /// A part of a checkpoint could not be stored, and no task waits for the answer.
    Part {
        key: Key,
        checkpoint: CheckpointId,
        why: String,
    },
    /// The index of a generation's data set cannot be had yet.
    DatasetWaits {
        key: Key,
        why: String,
    },
    /// The index of a generation's data set is in its folder, or why it cannot be.
    Dataset {
        key: Key,
        brought: Result<Known, String>,
    },
    Gpus(Reading),
    /// What was found of the logs of running tasks.
    Looked(super::outputs::Looks),
}
