//! What agents tell of their servers themselves.

use model::nodes::NodeNotes;
use model::{NodeId, UnixMs};

use crate::event::SessionId;
use crate::step::Control;

impl Control {
    /// When the certificates end that connected agents show from their next connection on.
    pub fn certificate_ends(&self) -> impl Iterator<Item = (&NodeId, UnixMs)> {
        self.nodes.iter().filter_map(|(id, node)| {
            let notes = node.notes.as_ref().filter(|_| node.session.is_some())?;
            Some((id, notes.certificate_ends?))
        })
    }

    /// The newest notes replace those before.
    pub(crate) fn on_node_notes(&mut self, id: &NodeId, session: SessionId, mut notes: NodeNotes) {
        crate::gpu::clean(&mut notes);
        let Some(node) = self.nodes.get_mut(id).filter(|node| node.session == Some(session)) else {
            self.count("notes of an old connection");
            return;
        };
        let before = node.notes.replace(notes.clone());
        self.note_rejects(id, &notes);
        self.note_stuck(id, &notes);
        self.tell_peers(id, before.as_ref());
        self.on_gpu_notes(id, before.and_then(|notes| notes.gpu_trouble));
    }

    /// Servers that share a job with this one let its tasks in by its addresses.
    fn tell_peers(&mut self, id: &NodeId, before: Option<&NodeNotes>) {
        let Some(node) = self.nodes.get(id) else { return };
        let of = |notes: Option<&NodeNotes>| notes.map(|notes| notes.addresses.clone());
        if of(before) != of(node.notes.as_ref()) {
            for job in node.lives.clone() {
                self.mark_desired(job);
            }
        }
    }
}
