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
    pub(crate) fn on_node_notes(&mut self, id: &NodeId, session: SessionId, notes: NodeNotes) {
        match self.nodes.get_mut(id).filter(|node| node.session == Some(session)) {
            Some(node) => node.notes = Some(notes),
            None => self.count("notes of an old connection"),
        }
    }
}
