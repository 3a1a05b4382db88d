//! What agents tell of their servers themselves.

use model::nodes::NodeNotes;
use model::{JobId, NodeId, UnixMs};

use crate::event::SessionId;
use crate::node_more::plain;
use crate::step::Control;

/// Alerts of one node's notes that are read.
const ALERTS_MAX: usize = 16;
/// Different ones that are told within the time below: an agent that makes up more is not heard.
const ALERTS_TOLD_MAX: usize = 32;
const TOLD_AGAIN_MS: u64 = 15 * 60_000;

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
        self.tell_alerts(id, &notes);
        self.note_stuck(id, &notes);
        self.tell_peers(id, before.as_ref());
        self.on_gpu_notes(id, before.and_then(|notes| notes.gpu_trouble));
    }

    /// Tells of new alerts, in the events of each job that an alert names too. The words behind the
    /// first colon are figures and may change; and what comes and goes is not told each time.
    fn tell_alerts(&mut self, id: &NodeId, notes: &NodeNotes) {
        for words in notes.alerts.iter().take(ALERTS_MAX) {
            let words = plain(words);
            let head = words.split(':').next().unwrap_or_default().to_owned();
            let now = self.now.mono;
            let Some(node) = self.nodes.get_mut(id) else { return };
            node.alerts_told.retain(|_, at| now.since(*at) < TOLD_AGAIN_MS);
            if ALERTS_TOLD_MAX <= node.alerts_told.len() || node.alerts_told.contains_key(&head) {
                continue;
            }
            node.alerts_told.insert(head, now);
            let named = |job: &&JobId| words.contains(&format!("{job}-g"));
            let jobs: Vec<JobId> = node.lives.iter().filter(named).copied().collect();
            let text = format!("{id}: {words}");
            if jobs.is_empty() {
                self.tell(None, Some(id), "alert", text);
            } else {
                for job in jobs {
                    self.tell(Some(job), Some(id), "alert", text.clone());
                }
            }
        }
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
