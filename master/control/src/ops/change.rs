//! Operators' words about nodes.

use model::NodeId;
use model::client::{Answer, ErrorKind, Refusal, Reply};
use model::reason::Schedulability;

use super::Ops;
use crate::change::{Asked, DRY_RUN, conflict};
use crate::node::Node;
use crate::record::Key;
use crate::step::Control;

/// The longest deadline of a drain: a longer one is a slip.
const DEADLINE_MS_MAX: u64 = 30 * 24 * 3_600_000;
/// Longest reason that is kept.
const REASON_CHARS_MAX: usize = 500;

/// An operator's reason in one line.
fn reason_of(asked: &Asked) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let reason = asked.reason.as_deref().unwrap_or_default();
    let reason: String = reason.chars().map(plain).take(REASON_CHARS_MAX).collect();
    reason.trim().to_owned()
}

fn accepted(id: &NodeId, note: impl Into<String>) -> Reply {
    Ok(Answer::Accepted { job: None, node: Some(id.clone()), note: note.into() })
}

impl Control {
    /// A node that an operator named.
    fn asked_node(&self, id: &NodeId) -> Result<&Node, Refusal> {
        self.nodes.get(id).ok_or_else(|| {
            Refusal::new(ErrorKind::NotFound, format!("no node {id}"), "see optimus nodes")
        })
    }

    /// No new tasks; what runs goes on.
    pub(crate) fn node_cordon(&mut self, asked: &Asked, id: &NodeId) -> Reply {
        let state = self.asked_node(id)?.schedulability();
        let reason = reason_of(asked);
        match state {
            Schedulability::Open => {}
            Schedulability::Cordoned => {
                if !reason.is_empty() && !asked.dry_run {
                    self.explain_anew(asked, id, reason);
                }
                return accepted(id, "it is CORDONED already");
            }
            Schedulability::Draining | Schedulability::Drained => {
                return accepted(id, format!("it is {}: no new tasks already", state.name()));
            }
        }
        if asked.dry_run {
            return accepted(id, DRY_RUN);
        }
        self.told(asked, None, Some(id), &format!("cordoned {id}"));
        self.cordon(id, asked.user.clone(), reason);
        accepted(id, "it takes no new tasks; those that run there go on")
    }

    /// Closes an open node to new tasks.
    pub(crate) fn cordon(&mut self, id: &NodeId, by: String, reason: String) {
        let since = self.now.unix;
        let state = Schedulability::Cordoned;
        self.close(id, Ops { state, by, since, reason, deadline: None, tasks_before: 0 });
        self.ask_round("a node was cordoned");
    }

    fn close(&mut self, id: &NodeId, ops: Ops) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.ops = Some(ops);
        self.closed.insert(id.clone());
        self.out.node_ops.insert(id.clone());
        // Places on it that were given are to be given back.
        self.out.room_freed = true;
    }

    fn explain_anew(&mut self, asked: &Asked, id: &NodeId, reason: String) {
        let state = self.nodes.get(id).map_or(Schedulability::Open, Node::schedulability);
        let Some(ops) = self.nodes.get_mut(id).and_then(|node| node.ops.as_mut()) else { return };
        ops.reason = reason;
        ops.by.clone_from(&asked.user);
        self.out.node_ops.insert(id.clone());
        self.told(asked, None, Some(id), &format!("left {id} {}", state.name()));
    }

    /// Jobs move away by checkpoint; what is left at the deadline is stopped.
    pub(crate) fn node_drain(
        &mut self,
        asked: &Asked,
        id: &NodeId,
        deadline_ms: Option<u64>,
    ) -> Reply {
        let node = self.asked_node(id)?;
        let state = node.schedulability();
        let reason = reason_of(asked);
        if reason.is_empty() {
            return Err(Refusal::new(
                ErrorKind::Invalid,
                format!("the drain of {id} has no reason"),
                "give one with --reason: whoever finds the node empty asks why",
            ));
        }
        if deadline_ms.is_some_and(|ms| ms > DEADLINE_MS_MAX) {
            return Err(Refusal::new(
                ErrorKind::Invalid,
                "the deadline lies more than 30 days ahead",
                "give a shorter one, or none",
            ));
        }
        if state == Schedulability::Drained {
            if !asked.dry_run {
                self.explain_anew(asked, id, reason);
            }
            return accepted(id, "it is DRAINED already");
        }
        let now = self.now;
        let jobs = self.nodes.get(id).map_or(0, |node| node.lives.len());
        let tasks = self.tasks_here(id);
        let what = match (jobs, deadline_ms) {
            (0, _) => "nothing runs there".to_owned(),
            (_, None) => format!("{tasks} tasks of {jobs} jobs move away by checkpoint"),
            (_, Some(ms)) => {
                let limit = model::units::DurationMs(ms);
                format!("{tasks} tasks of {jobs} jobs move away by checkpoint within {limit}")
            }
        };
        if asked.dry_run {
            return accepted(id, format!("{DRY_RUN}; {what}"));
        }
        let deadline =
            deadline_ms.map(|ms| (model::UnixMs(now.unix.0.saturating_add(ms)), now.mono.plus(ms)));
        self.told(asked, None, Some(id), &format!("drains {id}"));
        let by = asked.user.clone();
        let again = state == Schedulability::Draining;
        let before = self.nodes.get(id).and_then(|node| node.ops.clone());
        let (since, tasks_before) = match before.filter(|_| again) {
            Some(before) => (before.since, before.tasks_before),
            None => (now.unix, tasks),
        };
        let state = Schedulability::Draining;
        self.close(id, Ops { state, by, since, reason, deadline, tasks_before });
        self.begin_drain(id);
        self.ask_round("a node is drained");
        accepted(id, if again { format!("it is DRAINING already; {what}") } else { what })
    }

    /// Takes back a cordon or a drain.
    pub(crate) fn node_undrain(&mut self, asked: &Asked, id: &NodeId) -> Reply {
        let state = self.asked_node(id)?.schedulability();
        if state == Schedulability::Open {
            return accepted(id, "it is OPEN already");
        }
        if asked.dry_run {
            return accepted(id, format!("{DRY_RUN}; it is {}", state.name()));
        }
        self.told(asked, None, Some(id), &format!("opened {id}, which was {}", state.name()));
        self.open(id);
        accepted(id, "it takes tasks again")
    }

    /// Lets a closed node take tasks again.
    pub(super) fn open(&mut self, id: &NodeId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.ops = None;
        node.rejects.clear();
        self.closed.remove(id);
        self.end_drain(id);
        self.out.node_ops.remove(id);
        self.out.deleted.push(Key::NodeOps(id.clone()));
        self.out.room_freed = true;
        self.ask_round("a node was opened");
    }

    /// An operator's word that a node is dead.
    pub(crate) fn node_lost(&mut self, asked: &Asked, id: &NodeId) -> Reply {
        let node = self.asked_node(id)?;
        if node.record.gone.is_some() {
            return accepted(id, "it is GONE already");
        }
        if node.is_up() {
            return Err(conflict(
                format!("{id} is UP: its tasks are alive"),
                "power it off, or stop its agent, and wait until it is SUSPECT",
            ));
        }
        if asked.dry_run {
            return accepted(id, DRY_RUN);
        }
        self.told(asked, None, Some(id), &format!("declared {id} lost"));
        let words = asked.reason.clone().unwrap_or_else(|| format!("by {}", asked.user));
        self.declare_lost(id, words.chars().take(500).collect());
        accepted(id, "its tasks count as dead; their jobs restart elsewhere")
    }
}
