//! Step times on five nodes and more, tabulated by nodes, replicas and local batch.

use std::path::Path;

use super::profile::{BATCH_MAX, NODE_GPUS, Timing};
use super::read::{columns, whole};

/// Nodes of the smallest placement that is looked up here.
const NODES_MIN: u32 = 5;
/// Nodes of the largest; more count as these.
pub(super) const NODES_MAX: u32 = 16;
/// More rows than a table has: about ten times those of the largest.
const ROWS_MAX: usize = 1 << 22;

/// For each pair of nodes and replicas every local batch from the first to the last.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    /// By nodes, then replicas beyond one for each node.
    runs: Vec<Run>,
    times: Vec<Timing>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    start: usize,
    count: usize,
    local_min: u32,
}

/// The place of a run; none where there is no such pair.
fn place(nodes: u32, replicas: u32) -> Option<usize> {
    let nodes = nodes.min(NODES_MAX);
    if nodes < NODES_MIN || !(nodes..=nodes * NODE_GPUS).contains(&replicas) {
        return None;
    }
    // N nodes carry N to 4·N replicas: 3·N + 1 pairs.
    let before: u32 = (NODES_MIN..nodes).map(|nodes| (NODE_GPUS - 1) * nodes + 1).sum();
    usize::try_from(before + replicas - nodes).ok()
}

impl Tables {
    /// Reads `APP.csv`, or `APP.csv.gz`: `num_nodes,num_replicas,local_bsz,step_time,sync_time`.
    pub(super) fn load(path: &Path) -> Result<Self, String> {
        let names = ["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"];
        let runs = place(NODES_MAX, NODES_MAX * NODE_GPUS).expect("the last pair") + 1;
        let mut tables = Self { runs: vec![Run::default(); runs], times: Vec::new() };
        let mut last = usize::MAX;
        columns(path, names, |[nodes, replicas, local, step_s, sync_s]| {
            let nodes = whole(nodes, "num_nodes", NODES_MIN, NODES_MAX)?;
            let replicas = whole(replicas, "num_replicas", nodes, nodes * NODE_GPUS)?;
            let local = whole(local, "local_bsz", 1, BATCH_MAX)?;
            if step_s <= 0.0 || sync_s > step_s {
                return Err(format!(
                    "column step_time: {step_s} s is no time with {sync_s} s of exchange in it"
                ));
            }
            let at = place(nodes, replicas).expect("both are within bounds");
            let run = &mut tables.runs[at];
            if at != last {
                if run.count > 0 {
                    return Err(format!(
                        "column num_replicas: {replicas} on {nodes} nodes stands in two places"
                    ));
                }
                *run = Run { start: tables.times.len(), count: 0, local_min: local };
                last = at;
            }
            let count = u32::try_from(run.count).unwrap_or(u32::MAX);
            if local != run.local_min.saturating_add(count) || tables.times.len() >= ROWS_MAX {
                return Err(format!("column local_bsz: {local} does not follow the one before"));
            }
            run.count += 1;
            tables.times.push(Timing { step_s, sync_s });
            Ok(())
        })?;
        Ok(tables)
    }

    /// The run of a pair, where it was measured.
    pub(super) fn run(&self, nodes: u32, replicas: u32) -> Option<usize> {
        let at = place(nodes, replicas)?;
        (self.runs.get(at)?.count > 0).then_some(at)
    }

    pub(super) fn timing(&self, run: usize, local: u32) -> Timing {
        let run = self.runs[run];
        let at = usize::try_from(local.saturating_sub(run.local_min)).unwrap_or(usize::MAX);
        if at < run.count {
            return self.times[run.start + at];
        }
        let last = f64::from(run.local_min) + f64::from(u32::try_from(run.count - 1).unwrap_or(0));
        self.times[run.start + run.count - 1].beyond(f64::from(local) / last)
    }
}
