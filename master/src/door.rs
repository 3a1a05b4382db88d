//! What lies between the sessions and the loop that owns the state: bounded queues inwards,
//! latest-wins slots outwards, and counters of what was turned away.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use control::event::SessionId;
use model::access::Asker;
use model::agent::{AgentQuery, Desired, Heartbeat, Introduction, RateReport};
use model::client::{Call, Change, Read, Refusal, Reply};
use model::nodes::{NodeNotes, NodeOrders};
use model::notes::{Extras, Notes};
use model::{BootId, JobId, NodeId, UnixMs};
use net::Connection;
use storage::snapshot::Header;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::audit::Audit;
use crate::clock::Clock;
use crate::pki::Certificates;
use crate::room::Room;

/// Events that wait for the loop. One round of thousands of agents fits; beyond that a session
/// waits, and its peer with it.
pub(crate) const INPUTS_MAX: usize = 8_192;
/// Reads that wait: a few ms of work.
pub(crate) const QUERIES_MAX: usize = 512;

/// The daemon's side of an agent's session.
#[derive(Debug)]
pub(crate) struct AgentHandle {
    pub(crate) node: NodeId,
    pub(crate) connection: Connection,
    /// The host's boot: nodes of one host share it.
    pub(crate) boot: BootId,
    pub(crate) protocol: u16,
    /// Only the newest desired set is of use, so a slow agent costs one slot.
    pub(crate) desired: watch::Sender<Option<(Desired, Extras, NodeOrders)>>,
}

/// What a session tells the loop.
#[derive(Debug)]
pub(crate) enum Input {
    Connected { session: SessionId, handle: AgentHandle, introduction: Box<Introduction> },
    Heartbeat { node: NodeId, session: SessionId, heartbeat: Box<Heartbeat> },
    Rates { node: NodeId, session: SessionId, rates: Vec<RateReport> },
    Notes { node: NodeId, session: SessionId, notes: Box<Notes> },
    NodeNotes { node: NodeId, session: SessionId, notes: Box<NodeNotes> },
    Disconnected { node: NodeId, session: SessionId },
    Change(Box<ChangeRequest>),
}

#[derive(Debug)]
pub(crate) struct ChangeRequest {
    pub(crate) asker: Asker,
    pub(crate) dry_run: bool,
    pub(crate) reason: Option<String>,
    pub(crate) change: Change,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// A running connection to the agent that has a log, and what to ask it.
pub(crate) type LogRoute = Result<(Connection, AgentQuery), Refusal>;

/// A connected agent: its node, its host's boot, its protocol, and the way to ask it.
pub(crate) type Peer = (NodeId, BootId, u16, Connection);

/// A store's bytes, once the store's thread has written them.
pub(crate) type Export = oneshot::Receiver<Result<Vec<u8>, String>>;

/// What a session asks of the loop and that changes nothing. Served even while changes wait.
#[derive(Debug)]
pub(crate) enum Query {
    Read {
        asker: Asker,
        read: Box<Read>,
        reply: oneshot::Sender<Reply>,
    },
    LogRoute {
        asker: Asker,
        job: JobId,
        generation: Option<u64>,
        task: model::Task,
        bytes_max: u32,
        reply: oneshot::Sender<LogRoute>,
    },
    /// The agents that are connected.
    Agents {
        reply: oneshot::Sender<Vec<Peer>>,
    },
    /// Whether one may ask for what the loop does not answer.
    Admit {
        asker: Asker,
        call: Box<Call>,
        reply: oneshot::Sender<Result<(), Refusal>>,
    },
    /// When the certificates end that connected agents show from their next connection on.
    CertificateEnds {
        reply: oneshot::Sender<Vec<(NodeId, UnixMs)>>,
    },
    Export {
        header: Header,
        reply: oneshot::Sender<Export>,
    },
}

/// What was turned away before it reached the state.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) heartbeats_over_rate: AtomicU64,
    pub(crate) frames_malformed: AtomicU64,
    pub(crate) handshakes_failed: AtomicU64,
    pub(crate) requests_not_allowed: AtomicU64,
}

impl Counters {
    /// Counts one.
    ///
    /// # Returns
    /// How many there are now.
    pub(crate) fn add(counter: &AtomicU64) -> u64 {
        counter.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Those that are not zero, with their names for `status`.
    pub(crate) fn named(&self) -> Vec<(String, u64)> {
        [
            ("heartbeats over the rate", &self.heartbeats_over_rate),
            ("malformed frames", &self.frames_malformed),
            ("failed handshakes", &self.handshakes_failed),
            ("requests of a wrong role", &self.requests_not_allowed),
        ]
        .into_iter()
        .map(|(name, counter)| (name.to_owned(), counter.load(Ordering::Relaxed)))
        .filter(|(_, count)| *count > 0)
        .collect()
    }
}

/// What every session holds.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) queries: mpsc::Sender<Query>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Clock,
    pub(crate) cluster: Arc<str>,
    /// One snapshot at a time: it is held in memory while it is sent.
    pub(crate) snapshots: Arc<Semaphore>,
    /// Numbers sessions as they are welcomed.
    pub(crate) sessions: Arc<AtomicU64>,
    /// A permit for each request that is being answered: at the end they get their last words.
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) audit: Audit,
    pub(crate) shares: Arc<Shares>,
    pub(crate) certificates: Arc<Certificates>,
    /// How HDFS is reached.
    pub(crate) hdfs: storage::HdfsSettings,
    pub(crate) room: Room,
}

/// Requests answered at a time, of all operators together.
pub(crate) const REQUESTS_MAX: u32 = 1_024;
/// Of these, of one person over all connections: each may hold a request of 1 MiB for half a
/// minute, and nobody may hold all places.
const REQUESTS_OF_ONE: usize = 128;

/// The part of the places for requests that each person may take.
#[derive(Debug, Default)]
pub(crate) struct Shares(Mutex<BTreeMap<String, Arc<Semaphore>>>);

impl Shares {
    /// Held by each connection of the person as long as it lasts.
    pub(crate) fn of(&self, user: &str) -> Arc<Semaphore> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        let fresh = || Arc::new(Semaphore::new(REQUESTS_OF_ONE));
        Arc::clone(shares.entry(user.to_owned()).or_insert_with(fresh))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_person_cannot_take_every_place_and_is_forgotten_when_gone() {
        let shares = Shares::default();
        let (first, second) = (shares.of("mallory"), shares.of("mallory"));
        let held: Vec<_> = std::iter::from_fn(|| first.try_acquire().ok()).collect();
        assert!(held.len() < usize::try_from(REQUESTS_MAX).unwrap());
        assert!(second.try_acquire().is_err(), "another connection of the same person");
        assert!(shares.of("ada").try_acquire().is_ok());
        drop(held);
        drop((first, second));
        shares.of("bob");
        assert_eq!(shares.0.lock().unwrap().len(), 1, "only who is connected is remembered");
    }
}
