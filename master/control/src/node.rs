//! A server as the master knows it.

use std::collections::{BTreeMap, BTreeSet};

use model::agent::{DesiredGeneration, GpuReport, NodeLoad, TaskReport};
use model::nodes::{NodeNotes, NodeOrders};
use model::notes::Extras;
use model::reason::Reachability;
use model::{Generation, JobId, Millis, NodeId, Resources, Revision, Shape, Task, UnixMs};

use crate::event::SessionId;
use crate::ops::{Ops, Rejects};
use crate::record::NodeRecord;
use crate::settings::Settings;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) record: NodeRecord,
    pub(crate) reach: Reachability,
    pub(crate) session: Option<SessionId>,
    /// Number of the newest heartbeat of this session.
    pub(crate) sequence: Option<u64>,
    /// Receipt of the newest heartbeat, on this master's clock; none before the first.
    pub(crate) received: Option<Millis>,
    pub(crate) silent_since: Option<UnixMs>,
    pub(crate) obeyed: Revision,
    pub(crate) load: NodeLoad,
    pub(crate) gpus: Vec<GpuReport>,
    pub(crate) tasks: Vec<TaskReport>,
    pub(crate) reports_dropped: u64,
    pub(crate) clock_skew_ms: i64,
    /// Jobs with a generation here that is not proved dead, and what these take.
    pub(crate) lives: BTreeSet<JobId>,
    pub(crate) used: Resources,
    /// Places that they take: see [`crate::told`].
    pub(crate) places: u64,
    /// Processes here that no phase knows: they take room until the agent has stopped them.
    pub(crate) strangers: BTreeMap<(JobId, Generation), Shape>,
    pub(crate) strangers_use: Resources,
    /// Its agent knows the messages of protocol 3: notes came in this session.
    pub(crate) tells_notes: bool,
    /// What was last sent in this session.
    pub(crate) sent: Option<(Revision, Vec<DesiredGeneration>)>,
    /// What came with it.
    pub(crate) sent_extras: Extras,
    pub(crate) sent_orders: NodeOrders,
    /// Jobs whose start it was not told yet, as its message was full; and whether more is to
    /// follow once it has done what it was told.
    pub(crate) left_out: BTreeSet<JobId>,
    pub(crate) crowded: bool,
    /// What its agent told of the server itself in this session; none before, and from an agent
    /// older than protocol 4.
    pub(crate) notes: Option<NodeNotes>,
    /// When a refusal of its agent was last told.
    pub(crate) refusal_told: Option<Millis>,
    /// When each of its alerts was last told, by the alert's words before the first colon.
    pub(crate) alerts_told: BTreeMap<String, Millis>,
    /// First revision that told the agent to stop a job's present generation.
    pub(crate) stop_told: BTreeMap<JobId, (Generation, Revision)>,
    /// Slowness that follows the node, and until when it is held against it.
    pub(crate) slow: Option<Slow>,
    /// Why it takes no new tasks; none where it is open.
    pub(crate) ops: Option<Ops>,
    /// What it could not start lately.
    pub(crate) rejects: Rejects,
    /// Tasks here that outlive their KILL, until their last process is gone.
    pub(crate) stuck: BTreeMap<(JobId, Generation, Task), String>,
    /// It has been silent for long enough to be DOWN, and with it too many others.
    pub(crate) held: bool,
    /// Its silence counts from here on, as others that fell silent with it are back.
    pub(crate) spared: Option<Millis>,
    /// Jobs with a slow worker here, and until when that counts.
    pub(crate) slow_for: BTreeMap<JobId, Millis>,
}

/// Why a node counts as slow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slow {
    pub(crate) since: UnixMs,
    pub(crate) until: Millis,
    pub(crate) words: String,
}

impl Node {
    pub(crate) fn new(record: NodeRecord) -> Self {
        let reach = if record.gone.is_some() { Reachability::Gone } else { Reachability::Suspect };
        Self {
            record,
            reach,
            session: None,
            sequence: None,
            received: None,
            silent_since: None,
            obeyed: Revision::default(),
            load: NodeLoad::default(),
            gpus: Vec::new(),
            tasks: Vec::new(),
            reports_dropped: 0,
            clock_skew_ms: 0,
            lives: BTreeSet::new(),
            used: Resources::default(),
            places: 0,
            strangers: BTreeMap::new(),
            strangers_use: Resources::default(),
            tells_notes: false,
            sent: None,
            sent_extras: Extras::default(),
            sent_orders: NodeOrders::default(),
            left_out: BTreeSet::new(),
            crowded: false,
            notes: None,
            refusal_told: None,
            alerts_told: BTreeMap::new(),
            stop_told: BTreeMap::new(),
            slow: None,
            ops: None,
            rejects: Rejects::default(),
            stuck: BTreeMap::new(),
            held: false,
            spared: None,
            slow_for: BTreeMap::new(),
        }
    }

    pub(crate) fn id(&self) -> &NodeId {
        &self.record.id
    }

    pub(crate) fn is_up(&self) -> bool {
        self.reach == Reachability::Up
    }

    /// From when on its silence counts.
    fn heard(&self, judge_from: Millis) -> Millis {
        let heard = self.received.map_or(judge_from, |received| received.max(judge_from));
        self.spared.map_or(heard, |spared| spared.max(heard))
    }

    /// Judges the node's age. `judge_from` is when judging began: a start of the master, or the
    /// end of a pause of its own, in which it could not have heard anyone.
    pub(crate) fn judged(
        &self,
        now: Millis,
        judge_from: Millis,
        grace_until: Millis,
        settings: &Settings,
    ) -> Reachability {
        if self.reach == Reachability::Gone {
            return Reachability::Gone;
        }
        let heard = self.heard(judge_from);
        let age = now.since(heard);
        if age >= settings.down_ms && now >= grace_until {
            Reachability::Down
        } else if age >= settings.suspect_ms || self.received.is_none() {
            Reachability::Suspect
        } else {
            Reachability::Up
        }
    }

    /// When the judgement could next change by silence alone.
    pub(crate) fn next_judgement(
        &self,
        now: Millis,
        judge_from: Millis,
        grace_until: Millis,
        settings: &Settings,
    ) -> Option<Millis> {
        let heard = self.heard(judge_from);
        let suspect = heard.plus(settings.suspect_ms);
        let down = heard.plus(settings.down_ms).max(grace_until);
        [suspect, down].into_iter().find(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_judged_from_receipt_and_not_during_the_grace() {
        let record = NodeRecord {
            id: "n1".parse().unwrap(),
            incarnation: model::Incarnation(1),
            boot_id: model::BootId::default(),
            software: String::new(),
            task_address: "127.0.0.1".to_owned(),
            beat_ms: 2000,
            capacity: Resources::default(),
            gone: None,
        };
        let mut node = Node::new(record);
        let settings = Settings::default();
        let judge = |node: &Node, now: u64, grace: u64| {
            node.judged(Millis(now), Millis(0), Millis(grace), &settings)
        };
        assert_eq!(judge(&node, 0, 60_000), Reachability::Suspect, "not heard yet");
        assert_eq!(judge(&node, 59_999, 60_000), Reachability::Suspect);
        assert_eq!(judge(&node, 60_000, 60_000), Reachability::Down);
        node.received = Some(Millis(100_000));
        assert_eq!(judge(&node, 109_999, 0), Reachability::Up);
        assert_eq!(judge(&node, 110_000, 0), Reachability::Suspect);
        assert_eq!(judge(&node, 160_000, 0), Reachability::Down);
        assert_eq!(judge(&node, 160_000, 170_000), Reachability::Suspect, "grace");
        let next = node.next_judgement(Millis(100_000), Millis(0), Millis(0), &settings);
        assert_eq!(next, Some(Millis(110_000)));
    }
}
