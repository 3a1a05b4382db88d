//! What one state is worth, counted plainly.

use super::worth::{FLOOR, Goodputs, Worth, ratio};
use super::{Candidate, Settings};

/// A state's worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Of each job: goodput over that of a fair share.
    pub speedups: Vec<f64>,
    /// The power mean of speedups with p = -1, where a change costs its restart.
    pub fitness: f64,
    /// Speedups for each GPU of the nodes in use.
    pub utility: f64,
}

/// Judges a state that obeys the cluster's limits: `state` holds each job's replicas on each node.
/// None where a job has more replicas than the cluster, or than it may have.
#[must_use]
pub fn judge(
    gpus: &[u16],
    jobs: &[Candidate<'_>],
    state: &[Vec<u16>],
    settings: &Settings,
) -> Option<Judged> {
    let jobs: Vec<&Candidate<'_>> = jobs.iter().collect();
    let mut goodputs = Goodputs::default();
    goodputs.renew(&jobs);
    let worth = Worth::of(gpus, &jobs, settings.rescale_s, &mut goodputs);
    let (mut speedups, mut inverse) = (Vec::new(), 0.0);
    for (job, row) in state.iter().enumerate().take(jobs.len()) {
        let replicas = row.iter().map(|here| usize::from(*here)).sum();
        if replicas > worth.most(job) {
            return None;
        }
        let several = row.iter().filter(|here| **here > 0).count() > 1;
        let changed = row != jobs[job].current;
        let entry = worth.at(job, replicas, (several, changed));
        speedups.push(entry.speedup);
        inverse += if replicas > 0 { entry.inverse } else { 1.0 / FLOOR };
    }
    let in_use =
        |node: &usize| state.iter().any(|row| row.get(*node).is_some_and(|here| *here > 0));
    let used: u64 = (0..gpus.len()).filter(in_use).map(|node| u64::from(gpus[node])).sum();
    let count = u64::try_from(speedups.len()).unwrap_or(u64::MAX);
    let utility = speedups.iter().sum::<f64>() / ratio(used.max(1), 1);
    let fitness = if count > 0 { ratio(count, 1) / inverse } else { 0.0 };
    Some(Judged { speedups, fitness, utility })
}
