//! What is done to nodes and not to jobs: cordons and drains by operators, nodes that start
//! nothing, and many that fall silent at once.

mod change;
mod down_cap;
pub(crate) mod drain;
mod rejects;
mod stuck;
mod superseded;

pub(crate) use rejects::Rejects;

use model::reason::Schedulability;
use model::{Millis, NodeId, UnixMs};

use crate::node::Node;
use crate::record::NodeOpsRecord;
use crate::step::Control;

/// Why a node takes no new tasks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ops {
    /// Never [`Schedulability::Open`].
    pub(crate) state: Schedulability,
    pub(crate) by: String,
    pub(crate) since: UnixMs,
    pub(crate) reason: String,
    /// When what is left is stopped without a checkpoint: for people, and on this master's clock.
    pub(crate) deadline: Option<(UnixMs, Millis)>,
    /// Tasks at the drain's begin.
    pub(crate) tasks_before: u32,
}

impl Node {
    /// True where nobody closed it.
    pub(crate) fn is_open(&self) -> bool {
        self.ops.is_none()
    }

    pub(crate) fn schedulability(&self) -> Schedulability {
        self.ops.as_ref().map_or(Schedulability::Open, |ops| ops.state)
    }

    /// True where nothing may stay: jobs leave, or have left.
    pub(crate) fn is_emptied(&self) -> bool {
        matches!(self.schedulability(), Schedulability::Draining | Schedulability::Drained)
    }

    /// Why no new task may be started here, as `n3 is DRAINING`.
    pub(crate) fn takes_nothing(&self) -> Option<String> {
        let id = self.id();
        if !self.is_up() {
            return Some(format!("{id} is {}", self.reach.name()));
        }
        (!self.is_open()).then(|| format!("{id} is {}", self.schedulability().name()))
    }
}

impl Control {
    /// Why a node takes no new task; none where it does.
    pub(crate) fn takes_nothing(&self, id: &NodeId) -> Option<String> {
        match self.nodes.get(id) {
            Some(node) => node.takes_nothing(),
            None => Some(format!("{id} is not known")),
        }
    }

    /// What is to be kept of a node that is closed.
    pub(crate) fn ops_record(&self, id: &NodeId) -> Option<NodeOpsRecord> {
        let ops = self.nodes.get(id)?.ops.as_ref()?;
        Some(NodeOpsRecord {
            node: id.clone(),
            state: ops.state,
            by: ops.by.clone(),
            since: ops.since,
            reason: ops.reason.clone(),
            deadline: ops.deadline.map(|(unix, _)| unix),
            tasks_before: ops.tasks_before,
        })
    }

    /// A node stays closed over restarts.
    pub(crate) fn restore_ops(&mut self, record: NodeOpsRecord) {
        if record.state == Schedulability::Open {
            return;
        }
        let now = self.now;
        let id = record.node;
        let node = self.nodes.entry(id.clone());
        let node = node.or_insert_with(|| Node::new(crate::restore::unheard(id.clone())));
        let at =
            |deadline: UnixMs| (deadline, now.mono.plus(deadline.0.saturating_sub(now.unix.0)));
        node.ops = Some(Ops {
            state: record.state,
            by: record.by,
            since: record.since,
            reason: record.reason,
            deadline: record.deadline.map(at),
            tasks_before: record.tasks_before,
        });
        self.closed.insert(id.clone());
        if record.state == Schedulability::Draining {
            self.begin_drain(&id);
        }
    }
}
