//! What agents note of a job beside its progress.

use model::NodeId;
use model::notes::Notes;

use crate::event::SessionId;
use crate::step::Control;

impl Control {
    pub(crate) fn on_notes(&mut self, id: &NodeId, session: SessionId, notes: Notes) {
        if self.nodes.get(id).is_none_or(|node| node.session != Some(session)) {
            self.count("notes of an old connection");
            return;
        }
        if let Some(node) = self.nodes.get_mut(id) {
            node.tells_notes = true;
        }
        for report in notes.blocks {
            self.on_blocks(id, report);
        }
        for report in notes.begun {
            self.on_begun(report);
        }
    }
}
