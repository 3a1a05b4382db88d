//! Whose gradients the servers of a generation waited for: connections, named by their far ends
//! on the servers' nodes, and resolved by what the workers' own nodes say.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use model::NodeId;
use model::notes::{ArrivalReport, LinkReport};

use super::judge::Arrivals;

/// Connections of one generation that are known: each worker makes one to each server, and a few
/// more.
const LINKS_MAX: usize = 65_536;
/// Far ends in one report: as many as a server has workers.
const ENDS_MAX: usize = 4_096;
/// More looks than any generation lives for.
const LOOKS_MAX: u64 = 1 << 40;

/// Looks, and far ends that were behind in how many of them.
type Counts = (u64, Vec<(SocketAddr, u64)>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Links {
    workers: BTreeMap<SocketAddr, u32>,
    servers: BTreeMap<(NodeId, u32), Counts>,
}

impl Links {
    /// Takes where a worker's connections come from; the newest word counts.
    pub(crate) fn link(&mut self, report: &LinkReport) {
        self.workers.retain(|_, worker| *worker != report.worker);
        let room = LINKS_MAX.saturating_sub(self.workers.len());
        self.workers.extend(report.from.iter().take(room).map(|end| (*end, report.worker)));
    }

    /// Takes what a server's node counted. False where the counts cannot be.
    pub(crate) fn arrived(&mut self, node: &NodeId, report: ArrivalReport) -> bool {
        let ArrivalReport { server, looks, behind, .. } = report;
        let sane = looks <= LOOKS_MAX
            && behind.len() <= ENDS_MAX
            && behind.iter().all(|(_, count)| *count <= looks);
        if sane {
            self.servers.insert((node.clone(), server), (looks, behind));
        }
        sane
    }

    /// Totals of each worker that some server has a connection of.
    pub(crate) fn totals(&self) -> BTreeMap<u32, Arrivals> {
        let looks =
            self.servers.values().fold(0, |sum: u64, (looks, _)| sum.saturating_add(*looks));
        let mut totals: BTreeMap<u32, Arrivals> =
            self.workers.values().map(|worker| (*worker, Arrivals { looks, behind: 0 })).collect();
        for (_, behind) in self.servers.values() {
            for (end, count) in behind {
                let worker = self.workers.get(end);
                if let Some(total) = worker.and_then(|worker| totals.get_mut(worker)) {
                    total.behind = total.behind.saturating_add(*count);
                }
            }
        }
        totals
    }
}
