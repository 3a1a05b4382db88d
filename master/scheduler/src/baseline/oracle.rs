//! Optimus as the Pollux paper has it: GPUs by marginal gain, where an oracle knows how much work
//! each job has left and how fast it is.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::gpus::{self, Replicas, most_free, take};

/// A job as the oracle knows it, in order of submission.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known<'a> {
    /// Seconds of a step with 1, 2, … replicas; it may have no more than these.
    pub step_s: &'a [f64],
    pub remaining_steps: f64,
    /// What it holds, empty where it waits.
    pub held: &'a [Replicas],
}

/// How many replicas each job gets of so many GPUs: one each in the order given, while there are
/// any, then always one more for the job whose remaining time falls by the most, while it falls
/// for any. Of equal ones the earlier comes first.
#[must_use]
pub fn replicas(gpus: u64, jobs: &[Known<'_>]) -> Vec<u32> {
    let mut left = gpus;
    let mut given = vec![0_u32; jobs.len()];
    let mut heap = BinaryHeap::new();
    for (job, known) in jobs.iter().enumerate() {
        if left > 0 && !known.step_s.is_empty() {
            left -= 1;
            given[job] = 1;
            heap.extend(gain(known, job, 1));
        }
    }
    while left > 0 {
        let Some(Gain { job, .. }) = heap.pop() else { break };
        left -= 1;
        given[job] += 1;
        heap.extend(gain(&jobs[job], job, given[job]));
    }
    given
}

/// Gives [`replicas`] places. A job whose number does not change stays where it is; the others
/// are placed by ascending numbers on the nodes with the most free GPUs. `gpus` are those of each
/// node.
#[must_use]
pub fn oracle(gpus: &[u32], jobs: &[Known<'_>]) -> Vec<Vec<Replicas>> {
    let given = replicas(gpus.iter().map(|gpus| u64::from(*gpus)).sum(), jobs);
    let mut free = gpus.to_vec();
    let mut held = vec![Vec::new(); jobs.len()];
    let mut moved = Vec::new();
    for (job, known) in jobs.iter().enumerate() {
        if gpus::count(known.held) == given[job] && take(&mut free, known.held) {
            held[job] = known.held.to_vec();
        } else {
            moved.push(job);
        }
    }
    moved.sort_by_key(|job| given[*job]);
    for job in moved {
        held[job] = most_free(&mut free, given[job]);
    }
    held
}

/// What one more replica than `replicas` saves, in s; none where it saves nothing.
fn gain(known: &Known<'_>, job: usize, replicas: u32) -> Option<Gain> {
    let next = usize::try_from(replicas).ok()?;
    let saved_s = (known.step_s.get(next - 1)? - known.step_s.get(next)?) * known.remaining_steps;
    (saved_s > 0.0).then_some(Gain { saved_s, job })
}

#[derive(Clone, Copy, Debug)]
struct Gain {
    saved_s: f64,
    job: usize,
}

impl Ord for Gain {
    fn cmp(&self, other: &Self) -> Ordering {
        self.saved_s.total_cmp(&other.saved_s).then_with(|| other.job.cmp(&self.job))
    }
}

impl PartialOrd for Gain {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Gain {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Gain {}
