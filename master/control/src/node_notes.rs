//! What agents tell of their servers themselves.

use model::NodeId;
use model::nodes::NodeNotes;

use crate::event::SessionId;
use crate::step::Control;

impl Control {
    /// The newest notes replace those before.
    pub(crate) fn on_node_notes(&mut self, id: &NodeId, session: SessionId, mut notes: NodeNotes) {
        crate::gpu::clean(&mut notes);
        match self.nodes.get_mut(id).filter(|node| node.session == Some(session)) {
            Some(node) => {
                let before = node.notes.replace(notes);
                self.on_gpu_notes(id, before.and_then(|notes| notes.gpu_trouble));
            }
            None => self.count("notes of an old connection"),
        }
    }
}
