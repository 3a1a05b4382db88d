//! What `node show` and `node gpus` tell beside a node's row and detail.

use model::nodes::NodeMore;
use model::reason::Schedulability;

use crate::node::Node;
use crate::step::Control;

/// Alerts and rejections that are shown, and how much of each.
const SHOWN_MAX: usize = 64;
const WORDS_CHARS_MAX: usize = 500;

impl Control {
    pub(crate) fn node_more(&self, node: &Node) -> NodeMore {
        let ops = node.ops.as_ref();
        let notes = node.notes.clone().unwrap_or_default();
        let rejects = node.rejects.words();
        NodeMore {
            node: node.id().clone(),
            isolation: notes.isolation,
            known: node.notes.is_some(),
            schedulability: node.schedulability(),
            by: ops.map(|ops| ops.by.clone()),
            since: ops.map(|ops| ops.since),
            reason: ops.map(|ops| ops.reason.clone()).unwrap_or_default(),
            drain: self.drain_view(node.id()),
            gpus: self.gpu_views(node.id()),
            gpu_trouble: self.gpu_trouble(node.id()),
            alerts: self.node_alerts(node),
            certificate_ends: notes.certificate_ends,
            rejects,
        }
    }

    /// What the agent tells, and what it cannot end.
    fn node_alerts(&self, node: &Node) -> Vec<String> {
        let told = node.notes.iter().flat_map(|notes| &notes.alerts).map(|words| plain(words));
        node.stuck_words(None).into_iter().chain(told).take(SHOWN_MAX).collect()
    }

    /// Why a node is not open, in one line; empty where it is.
    pub(crate) fn ops_words(&self, node: &Node) -> String {
        let Some(ops) = node.ops.as_ref() else { return String::new() };
        let reason = match ops.reason.as_str() {
            "" => format!("by {}", ops.by),
            reason => format!("{reason} ({})", ops.by),
        };
        match ops.state {
            Schedulability::Open | Schedulability::Cordoned | Schedulability::Drained => reason,
            Schedulability::Draining => {
                let (left, before) = (self.tasks_here(node.id()), ops.tasks_before);
                format!("{reason}: {left} tasks left of {}", before.max(left))
            }
        }
    }
}

/// Words of an agent in one line.
pub(crate) fn plain(words: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    words.chars().map(plain).take(WORDS_CHARS_MAX).collect()
}
