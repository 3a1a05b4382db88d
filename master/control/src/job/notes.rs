//! What agents note of a job beside its progress.

use model::NodeId;
use model::notes::{Notes, TroubleReport};

use crate::event::SessionId;
use crate::job::phase::Phase;
use crate::step::Control;

impl Control {
    pub(crate) fn on_notes(&mut self, id: &NodeId, session: SessionId, notes: Notes) {
        if self.nodes.get(id).is_none_or(|node| node.session != Some(session)) {
            self.count("notes of an old connection");
            return;
        }
        for trouble in notes.troubles {
            self.on_trouble(id, &trouble);
        }
    }

    /// A node cannot complete a checkpoint: it fails now rather than at its deadline.
    fn on_trouble(&mut self, node: &NodeId, trouble: &TroubleReport) {
        let Some(job) = self.jobs.get(&trouble.job) else { return };
        let Phase::Checkpointing { life, save, .. } = job.phase() else { return };
        let ours = life.generation == trouble.generation
            && save.order.checkpoint == trouble.checkpoint
            && life.placement.0.iter().any(|share| share.node == *node);
        if ours && !save.publishing {
            let words: String = trouble.words.chars().take(500).collect();
            self.save_failed(trouble.job, &format!("{node}: {words}"));
        }
    }
}
