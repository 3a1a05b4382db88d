//! Nodes by name.

use model::{NodeId, Placement, Shape};

use super::{Spot, Spots};
use crate::snapshot::NodeInput;

/// Nodes by ascending id, of two with one id the first.
pub(crate) fn by_id(nodes: &[NodeInput]) -> Vec<&NodeInput> {
    let mut sorted: Vec<&NodeInput> = nodes.iter().collect();
    if !sorted.is_sorted_by(|a, b| a.id < b.id) {
        sorted.sort_by(|a, b| a.id.cmp(&b.id));
        sorted.dedup_by(|later, first| later.id == first.id);
    }
    sorted
}

/// Finds nodes by name, quickly where one is asked for after another in order.
#[derive(Debug)]
pub(crate) struct Finder<'a> {
    nodes: &'a [&'a NodeInput],
    next: usize,
}

impl<'a> Finder<'a> {
    pub(crate) const fn new(nodes: &'a [&'a NodeInput]) -> Self {
        Self { nodes, next: 0 }
    }

    fn find(&mut self, id: &NodeId) -> Option<usize> {
        let here = self.nodes.get(self.next).is_some_and(|node| node.id.is_same(id));
        let found = if here {
            Some(self.next)
        } else {
            self.nodes.binary_search_by(|node| node.id.cmp(id)).ok()
        };
        self.next = found.map_or(self.next, |at| at + 1);
        found
    }

    /// Spots of a placement; the flag tells that a node of it is not here.
    pub(crate) fn spots(&mut self, placement: &Placement) -> (Spots, bool) {
        let mut spots: Vec<Spot> = Vec::with_capacity(placement.0.len());
        let mut lost = false;
        for share in &placement.0 {
            match self.find(&share.node) {
                Some(node) => spots.push((node, Shape::new(share.servers, share.workers))),
                None => lost = true,
            }
        }
        if !spots.is_sorted_by(|a, b| a.0 < b.0) {
            spots.sort_unstable_by_key(|(node, _)| *node);
            spots.dedup_by(|later, first| {
                let same = later.0 == first.0;
                if same {
                    first.1.servers = first.1.servers.saturating_add(later.1.servers);
                    first.1.workers = first.1.workers.saturating_add(later.1.workers);
                }
                same
            });
        }
        (spots.into(), lost)
    }
}
