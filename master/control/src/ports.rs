//! Root ports of PS schedulers.
//!
//! A port is never given out twice on a host while a generation that got it is not proved dead: a
//! server that takes 30 s to die would make the next generation's bind fail. The cursor moves on
//! with each start, so that a port comes round again only after the whole range. Hosts are told
//! apart by the address that tasks bind, as several agents may share one machine.

use std::collections::BTreeMap;

use model::{Generation, JobId, NodeId};
use serde::{Deserialize, Serialize};

/// The ports of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPorts {
    /// Ports given out so far, in the range's own count; none before the first.
    pub cursor: Option<u16>,
    /// Ports of generations not proved dead.
    pub held: BTreeMap<u16, Holder>,
}

/// The generation that a port was given to, and the node that its PS scheduler stands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub job: JobId,
    pub generation: Generation,
    pub node: NodeId,
}

impl HostPorts {
    /// The next port of `range`, both ends included; none where all are held.
    pub(crate) fn take(&mut self, range: (u16, u16), holder: Holder) -> Option<u16> {
        let (first, last) = range;
        let span = u32::from(last.saturating_sub(first)) + 1;
        let mut port = self.cursor.filter(|port| (first..=last).contains(port)).unwrap_or(last);
        for _ in 0..span {
            port = if port >= last { first } else { port + 1 };
            if !self.held.contains_key(&port) {
                self.cursor = Some(port);
                self.held.insert(port, holder);
                return Some(port);
            }
        }
        None
    }

    /// True where [`Self::take`] would give none.
    pub(crate) fn is_full(&self, (first, last): (u16, u16)) -> bool {
        let span = usize::from(last.saturating_sub(first)) + 1;
        self.held.range(first..=last).count() >= span
    }

    /// Frees the ports whose holders are proved dead. True where there was one.
    pub(crate) fn free(&mut self, dead: impl Fn(&Holder) -> bool) -> bool {
        let before = self.held.len();
        self.held.retain(|_, holder| !dead(holder));
        self.held.len() != before
    }
}

/// True where an agent's words say that the port could not be bound.
#[must_use]
pub fn says_port_busy(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    reason.contains("address already in use")
        || reason.contains("bind failed")
        || (reason.contains("port")
            && ["busy", "in use", "taken", "cannot bind"].iter().any(|word| reason.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_comes_back_only_after_the_range_and_never_while_held() {
        let mut ports = HostPorts::default();
        let range = (100, 103);
        let node: NodeId = "n1".parse().unwrap();
        let owner = |n| Holder { job: JobId(n), generation: Generation(1), node: node.clone() };
        let taken: Vec<_> = (0..3).filter_map(|n| ports.take(range, owner(n))).collect();
        assert_eq!(taken, [100, 101, 102]);
        assert!(ports.free(|held| held.job != JobId(1)));
        assert!(!ports.free(|held| held.job != JobId(1)));
        assert_eq!(ports.take(range, owner(4)), Some(103));
        assert_eq!(ports.take(range, owner(5)), Some(100));
        assert_eq!(ports.take(range, owner(6)), Some(102), "101 is held");
        assert!(ports.is_full(range) && !ports.is_full((100, 104)));
        assert_eq!(ports.take(range, owner(7)), None);
    }

    #[test]
    fn words_for_a_busy_port_are_known() {
        assert!(says_port_busy("cannot start: root port 21004 is in use"));
        assert!(says_port_busy("van.cc: bind failed"));
        assert!(!says_port_busy("imported module transport failed"));
    }
}
