//! Tasks that outlive their KILL, such as one that waits for a mount that hangs: their server takes
//! no new tasks until the last process is gone. What else runs there goes on.

use model::agent::TaskState;
use model::nodes::NodeNotes;
use model::reason::Schedulability;
use model::{JobId, NodeId};

use super::Ops;
use crate::job::phase::Life;
use crate::node::Node;
use crate::node_more::plain;
use crate::step::Control;

/// Whose cordon it is, and how its reason begins: only such a one is taken back by itself.
const BY: &str = "the master";
const REASON: &str = "cannot be killed: ";
/// Of one report.
const REPORTS_MAX: usize = 64;

impl Ops {
    /// A cordon for a task that cannot be killed.
    fn is_for_stuck(&self) -> bool {
        self.state == Schedulability::Cordoned && self.by == BY && self.reason.starts_with(REASON)
    }
}

impl Node {
    /// True while the agent's whole state shows a process of it.
    fn runs(&self, (job, generation, task): (JobId, model::Generation, model::Task)) -> bool {
        self.tasks.iter().any(|report| {
            (report.job, report.generation, report.task) == (job, generation, task)
                && matches!(report.state, TaskState::Running { .. })
        })
    }

    /// In words, what of a job cannot be killed here; of any job without one.
    pub(crate) fn stuck_words(&self, job: Option<JobId>) -> Vec<String> {
        let of = self.stuck.iter().filter(|((of, _, _), _)| job.is_none_or(|job| job == *of));
        let words = of.map(|((job, generation, task), words)| {
            format!("{task} of {job} {generation} on {} cannot be killed: {words}", self.id())
        });
        words.collect()
    }
}

impl Control {
    /// What an agent tells of tasks that it cannot end.
    pub(crate) fn note_stuck(&mut self, id: &NodeId, notes: &NodeNotes) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let mut first = None;
        for report in notes.stuck.iter().take(REPORTS_MAX) {
            let key = (report.job, report.generation, report.task);
            // One that is gone by now is told of by a queue of old notes.
            if !node.runs(key) {
                continue;
            }
            let words = plain(&report.words);
            if node.stuck.insert(key, words.clone()).is_none() {
                let (job, generation, task) = key;
                first = first.or_else(|| Some(format!("{task} of {job} {generation}, {words}")));
            }
        }
        // An operator who opens it again is not overruled until another one is stuck.
        if let Some(words) = first.filter(|_| node.is_open()) {
            let reason = format!("{REASON}{words}");
            let text = format!("{id} is CORDONED: {reason}; it opens by itself once that is gone");
            self.cordon(id, BY.to_owned(), reason);
            self.tell(None, Some(id), "cordoned", text);
        }
        self.tend_stuck(id);
    }

    /// Opens a node once nothing is stuck there any more.
    pub(crate) fn tend_stuck(&mut self, id: &NodeId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let closed = node.ops.as_ref().is_some_and(Ops::is_for_stuck);
        if node.stuck.is_empty() && !closed {
            return;
        }
        let mut stuck = std::mem::take(&mut node.stuck);
        stuck.retain(|key, _| node.runs(*key));
        node.stuck = stuck;
        // After a start of the master, the agent's own word is awaited.
        if closed && node.stuck.is_empty() && node.notes.is_some() {
            self.open(id);
            let text = format!("{id} is OPEN: what could not be killed there is gone");
            self.tell(None, Some(id), "opened", text);
        }
    }

    /// What keeps a job from going out, for its reason.
    pub(crate) fn stuck_of(&self, job: JobId, life: &Life) -> Option<String> {
        let nodes = life.placement.0.iter().filter_map(|share| self.nodes.get(&share.node));
        nodes.flat_map(|node| node.stuck_words(Some(job))).next()
    }
}
