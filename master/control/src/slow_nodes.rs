//! Nodes that slowness follows: flagged, told, and avoided by later placements until a quiet time
//! has passed or a worker is seen at speed there.

use std::collections::BTreeSet;

use model::{JobId, Millis, NodeId, UnixMs};

use crate::job::phase::{Phase, Wait};
use crate::node::Slow;
use crate::record::{Key, Record, SlowJobRecord, SlowNodeRecord};
use crate::step::Control;

impl Control {
    pub(crate) fn blame_node(&mut self, id: &NodeId, words: String) {
        let until = self.now.mono.plus(self.settings.slow_node_ms);
        let since = self.now.unix;
        let Some(node) = self.nodes.get_mut(id) else { return };
        self.out.slow_nodes.insert(id.clone());
        if let Some(slow) = &mut node.slow {
            // A new sign of what is known.
            slow.until = until;
            return;
        }
        node.slow = Some(Slow { since, until, words: words.clone() });
        self.tell(None, Some(id), "slow", format!("{id} is flagged slow: {words}"));
    }

    /// Nothing is held against the node any more.
    pub(crate) fn clear_node(&mut self, id: &NodeId, why: &str) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.slow_for.clear();
        if node.slow.take().is_some() {
            self.out.slow_nodes.remove(id);
            self.out.deleted.push(Key::SlowNode(id.clone()));
            self.tell(None, Some(id), "slow", format!("{id} is not flagged any more: {why}"));
            self.out.room_freed = true;
        }
    }

    /// Ends the flags whose time is over.
    pub(crate) fn expire_slow_nodes(&mut self) {
        let now = self.now.mono;
        let over = self
            .nodes
            .iter()
            .filter(|(_, node)| node.slow.as_ref().is_some_and(|slow| slow.until <= now));
        let over: Vec<NodeId> = over.map(|(id, _)| id.clone()).collect();
        for id in over {
            self.clear_node(&id, "no new sign of it came in time");
        }
    }

    /// What is to be kept of these jobs' slow workers and of these nodes.
    pub(crate) fn slow_records(
        &self,
        jobs: &BTreeSet<JobId>,
        nodes: &BTreeSet<NodeId>,
    ) -> Vec<Record> {
        let jobs = jobs.iter().filter_map(|id| {
            let slow = self.jobs.get(id)?.slow.clone();
            Some(Record::SlowJobV1(Box::new(SlowJobRecord { job: *id, slow })))
        });
        let nodes = nodes.iter().filter_map(|id| self.slow_node_record(id));
        jobs.chain(nodes.map(Record::SlowNodeV1)).collect()
    }

    fn slow_node_record(&self, id: &NodeId) -> Option<SlowNodeRecord> {
        let slow = self.nodes.get(id)?.slow.as_ref()?;
        let left_ms = slow.until.since(self.now.mono);
        let until = UnixMs(self.now.unix.0.saturating_add(left_ms));
        let (node, since, words) = (id.clone(), slow.since, slow.words.clone());
        Some(SlowNodeRecord { node, since, until, words })
    }

    pub(crate) fn restore_slow(&mut self, jobs: Vec<SlowJobRecord>, nodes: Vec<SlowNodeRecord>) {
        let now = self.now;
        for SlowJobRecord { job, slow } in jobs {
            if let Some(job) = self.jobs.get_mut(&job) {
                // When the last move was is not known any more: as if it had just been.
                job.slow_moved = (slow.moves > 0).then_some(now.mono);
                job.slow = slow;
            }
        }
        for SlowNodeRecord { node, since, until, words } in nodes {
            // The wall clock may have been set meanwhile.
            let left_ms = until.0.saturating_sub(now.unix.0).min(self.settings.slow_node_ms);
            if let Some(node) = self.nodes.get_mut(&node) {
                node.slow = Some(Slow { since, until: now.mono.plus(left_ms), words });
            }
        }
    }

    /// Nodes on which nothing new is placed: flagged ones, those that a slow worker was just taken
    /// from, and those that have just rejected a start. None where some job waits for room, or where no other node is open.
    pub(crate) fn avoided(&self) -> BTreeSet<NodeId> {
        let now = self.now.mono;
        let mut avoided: BTreeSet<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| {
                let slow = node.slow.as_ref().is_some_and(|slow| slow.until > now);
                slow || node.rejects.are_fresh(now)
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in &self.unfinished {
            let job = self.job(*id);
            avoided.extend(job.slow.case.iter().map(|case| case.from.clone()));
        }
        if avoided.is_empty() {
            return avoided;
        }
        let starved = self.unfinished.iter().any(|id| {
            let job = self.job(*id);
            let waits = matches!(job.phase(), Phase::Queued { wait: Wait::Round { .. }, .. });
            waits && job.decision.as_ref().is_some_and(|(_, _, entry)| entry.verb == "wait")
        });
        let open = |id: &&NodeId| {
            let node = self.nodes.get(*id);
            node.is_some_and(|node| node.takes_nothing().is_none() && node.session.is_some())
        };
        let others = self.nodes.keys().filter(open).any(|id| !avoided.contains(id));
        if starved || !others { BTreeSet::new() } else { avoided }
    }

    /// Why a node counts as slow, and for how long still.
    pub(crate) fn slow_reason(&self, slow: &Slow, now: Millis) -> String {
        let left_s = slow.until.since(now) / 1000;
        format!("slow: {} (avoided for {left_s} s more)", slow.words)
    }
}
