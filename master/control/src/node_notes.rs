//! What agents tell of their servers themselves.

use model::NodeId;
use model::nodes::NodeNotes;

use crate::event::SessionId;
use crate::step::Control;

impl Control {
    /// The newest notes replace those before.
    pub(crate) fn on_node_notes(&mut self, id: &NodeId, session: SessionId, notes: NodeNotes) {
        match self.nodes.get_mut(id).filter(|node| node.session == Some(session)) {
            Some(node) => {
                node.notes = Some(notes.clone());
                self.note_rejects(id, &notes);
            }
            None => self.count("notes of an old connection"),
        }
    }
}
