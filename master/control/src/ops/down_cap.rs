//! Many nodes that fall silent at once are more likely the master's own network than so many dead
//! servers: then none of them is DOWN, and no job is moved, until an operator or one of them says
//! more.
//!
//! Silent *at once* are nodes whose last heartbeats lie less than a minute apart. At most
//! `nodes.down_share_max` of the nodes that are not GONE may be, rounded down, but always one: of
//! one to five nodes a lone one that falls silent is DOWN, two are not. Where one of those that
//! were held is heard again, the others have the whole time of `nodes.down` once more, and the
//! rule is asked anew without the one that is back.

use model::{Millis, NodeId};

use crate::node::Node;
use crate::step::Control;

/// Silences that begin within this time belong together.
const AT_ONCE_MS: u64 = 60_000;

impl Control {
    /// Silent nodes that fell silent together with one, itself included, and all that count.
    fn silent_with(&self, id: &NodeId) -> (usize, usize) {
        let Some(node) = self.nodes.get(id) else { return (0, 0) };
        let heard = |node: &Node| node.received.unwrap_or(self.started.mono);
        let since = heard(node);
        let counted = self.nodes.values().filter(|node| node.record.gone.is_none());
        let silent = |node: &&Node| {
            let other = heard(node);
            let apart = since.since(other).max(other.since(since));
            !node.is_up() && apart < AT_ONCE_MS
        };
        (counted.clone().filter(silent).count(), counted.count())
    }

    /// True where a node that has been silent for long enough is not to be DOWN for now. Tells so
    /// when that begins.
    pub(crate) fn holds_down(&mut self, id: &NodeId) -> bool {
        let (silent, all) = self.silent_with(id);
        let most = most_down(self.settings.down_share_max, all);
        let holds = silent > most;
        let first = !self.nodes.values().any(|node| node.held);
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let begins = holds && !std::mem::replace(&mut node.held, holds);
        if begins && first {
            let text = held_words(silent, all);
            self.tell(None, None, "network", text);
        }
        if begins {
            self.fence_held(id);
        }
        holds
    }

    /// A node is heard again. Where it was one of those that are held, the others get another
    /// chance to come back too.
    pub(crate) fn end_hold(&mut self, id: &NodeId) {
        let now: Millis = self.now.mono;
        let Some(node) = self.nodes.get_mut(id) else { return };
        if !std::mem::take(&mut node.held) {
            return;
        }
        for node in self.nodes.values_mut().filter(|node| node.held) {
            node.held = false;
            node.spared = Some(now);
        }
    }

    /// A job that is to end needs no proof of death, whoever is silent.
    fn fence_held(&mut self, id: &NodeId) {
        let Some(node) = self.nodes.get(id) else { return };
        self.out.settle.extend(node.lives.iter().copied());
    }

    /// What an operator should know while nodes are held.
    pub(crate) fn held_alert(&self) -> Option<String> {
        let held: Vec<&NodeId> =
            self.nodes.iter().filter(|(_, node)| node.held).map(|(id, _)| id).collect();
        let first = held.first()?;
        let (silent, all) = self.silent_with(first);
        Some(held_words(silent.max(held.len()), all))
    }
}

fn held_words(silent: usize, all: usize) -> String {
    format!(
        "{silent} of {all} nodes fell silent at once: assuming the master's own network failed; \
         no job is moved until one is heard again (optimus node lost NODE for those that are dead)"
    )
}

/// How many of so many nodes may be DOWN at once.
fn most_down(share: f64, all: usize) -> usize {
    let all = crate::job::float(u64::try_from(all).unwrap_or(u64::MAX));
    usize::try_from(crate::job::whole(share * all)).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_a_third_may_be_down_at_once_and_always_one() {
        let most = |all| most_down(0.34, all);
        assert_eq!([0, 1, 2, 3, 5, 6, 9, 90, 1000].map(most), [1, 1, 1, 1, 1, 2, 3, 30, 340]);
        assert_eq!(most_down(1.0, 7), 7, "no limit");
        assert_eq!(most_down(f64::NAN, 7), 1);
    }
}
