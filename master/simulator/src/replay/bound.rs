//! What no policy can beat on a workload whose jobs choose their batches, whatever it knows.

use std::collections::BTreeMap;

use scheduler::goodput::batch::{Batch, candidates, first, fixed};

use super::app::{App, Profiles};
use super::profile::NODE_GPUS;
use super::read::narrow;
use super::rows::Row;
use crate::study::shortest_first_s;

/// Lower bounds on the mean completion time, in s; the larger one counts.
///
/// Both rest on each job's fastest progress in each of its epochs, over all placements that were
/// measured and all batches that a job may choose. They hold because
/// - a job that holds GPUs makes no more progress in an epoch than at its best rate there, and pays
///   for its first start on one GPU at least: so its time is no less than `alone_s` has it;
/// - its progress in an epoch costs no fewer GPU seconds than at its least GPU seconds for a unit
///   of progress there. Any schedule hands out at most all GPUs at once, so it is also a schedule of one
///   machine that does GPU seconds as fast as all GPUs together, shares itself out among jobs as
///   it likes, and finds each job's work no larger than it is. On that machine shortest remaining
///   first has the least sum of completion times.
///
/// Ends are rounded to whole seconds in a replay, which may be half a second early: that is taken
/// off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Each job alone on the whole cluster, at its best in each epoch.
    pub alone_s: f64,
    /// Each job at its least GPU seconds for its work, as if any number of GPUs worked that well.
    pub pooled_s: f64,
}

impl Bounds {
    #[must_use]
    pub fn mean_s(&self) -> f64 {
        self.alone_s.max(self.pooled_s)
    }
}

/// What a job of an application needs at least.
#[derive(Clone, Copy, Debug)]
struct Needs {
    alone_s: f64,
    gpu_s: f64,
}

/// What rounding may take off an end, in s.
const ROUNDED_S: f64 = 0.5;
/// On so many nodes the number of replicas on each counts, on more only their sum.
const PLACED_NODES: u32 = 4;
/// Most nodes of a job.
const JOB_NODES_MAX: u32 = 16;

/// The bounds of a workload on so many nodes of four GPUs, where a start takes `restart_s`.
///
/// # Errors
/// Where an application is not known, or cannot run at all.
pub fn bounds(
    profiles: &Profiles,
    rows: &[Row],
    nodes: u32,
    restart_s: f64,
) -> Result<Bounds, String> {
    let placements = placements(nodes);
    let mut known: BTreeMap<&str, Needs> = BTreeMap::new();
    let mut jobs: Vec<(f64, Needs)> = Vec::with_capacity(rows.len());
    for row in rows {
        let name = row.application.as_str();
        let needs = match known.get(name) {
            Some(needs) => *needs,
            None => {
                let app = profiles
                    .app(name)
                    .ok_or_else(|| format!("{}: application {name:?} was not loaded", row.name))?;
                let needs = needs(app, &placements)
                    .ok_or_else(|| format!("{name} runs on none of {nodes} nodes"))?;
                *known.entry(name).or_insert(needs)
            }
        };
        jobs.push((row.time, needs));
    }
    jobs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let gpus = f64::from(nodes) * f64::from(NODE_GPUS);
    let alone: Vec<f64> = jobs.iter().map(|(_, needs)| needs.alone_s + restart_s).collect();
    let arrivals: Vec<f64> = jobs.iter().map(|(time, _)| *time).collect();
    let pooled = jobs.iter().map(|(_, needs)| (needs.gpu_s + restart_s) / gpus).collect();
    Ok(Bounds {
        alone_s: crate::outcome::mean(&alone).unwrap_or(0.0) - ROUNDED_S,
        pooled_s: shortest_first_s(&arrivals, pooled) - ROUNDED_S,
    })
}

/// Every way to put replicas on nodes that was measured apart.
fn placements(nodes: u32) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> = Vec::new();
    let mut last: Vec<Vec<u32>> = vec![Vec::new()];
    for _ in 0..nodes.min(PLACED_NODES) {
        let longer = |counts: &Vec<u32>| -> Vec<Vec<u32>> {
            (1..=NODE_GPUS).map(|count| [counts.as_slice(), &[count]].concat()).collect()
        };
        last = last.iter().flat_map(longer).collect();
        all.extend(last.iter().cloned());
    }
    for wide in PLACED_NODES + 1..=nodes.min(JOB_NODES_MAX) {
        for mut more in 0..=wide * (NODE_GPUS - 1) {
            let fill = |_| {
                let here = more.min(NODE_GPUS - 1);
                more -= here;
                1 + here
            };
            all.push((0..wide).map(fill).collect());
        }
    }
    all
}

/// None where nothing was measured that the job could run on.
fn needs(app: &App, placements: &[Vec<u32>]) -> Option<Needs> {
    let steps = steps(app, placements);
    let mut needs = Needs { alone_s: 0.0, gpu_s: 0.0 };
    let mut before = 0.0;
    for epoch in 0..app.epochs() {
        let (mut rate, mut rate_each) = (0.0_f64, 0.0_f64);
        for ((replicas, whole), seconds) in &steps {
            let gain = app.gradient(*whole, epoch);
            let scale = f64::from(*whole) / f64::from(app.limits().initial);
            let here = gain.gain(scale) / seconds;
            rate = rate.max(here);
            rate_each = rate_each.max(here / f64::from(*replicas));
        }
        let work = (app.target(epoch) - before).max(0.0);
        before = app.target(epoch).max(before);
        needs.alone_s += work / rate;
        needs.gpu_s += work / rate_each;
    }
    (needs.alone_s.is_finite() && needs.gpu_s.is_finite()).then_some(needs)
}

/// Least seconds of a step by replicas and whole batch.
fn steps(app: &App, placements: &[Vec<u32>]) -> BTreeMap<(u32, u32), f64> {
    let limits = app.limits();
    let mut steps = BTreeMap::new();
    for counts in placements {
        let replicas = counts.iter().sum();
        let curve = app.curve(counts).filter(|_| replicas <= app.replicas_max());
        let Some(curve) = curve else { continue };
        // Before a job has a model it trains with its initial batch.
        let first = fixed(&limits, replicas, first(&limits, replicas));
        let batches: Vec<Batch> = match app.pinned_batch() {
            Some(pinned) => fixed(&limits, replicas, pinned).into_iter().collect(),
            None => candidates(limits, replicas).chain(first).collect(),
        };
        for batch in batches {
            let seconds = app.timing(curve, batch.local).iteration_s(batch.accumulation);
            let whole = narrow(batch.total(replicas));
            let least = steps.entry((replicas, whole)).or_insert(f64::INFINITY);
            *least = seconds.min(*least);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_stand_on_nodes_is_looked_at() {
        assert_eq!(placements(1), [[1], [2], [3], [4]]);
        assert_eq!(placements(4).len(), 4 + 16 + 64 + 256);
        let wide = placements(6);
        assert!(wide.contains(&vec![1; 6]) && wide.contains(&vec![4; 6]));
        assert!(wide.iter().all(|counts| counts.iter().all(|count| (1..=4).contains(count))));
    }
}
