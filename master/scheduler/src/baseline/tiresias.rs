//! Tiresias: least attained service first, in two steps.

use model::Shape;

use super::gpus::{Replicas, most_free, take};
use super::{Ask, Free};

/// GPU seconds after which a job falls into the second queue: 16 GPU hours.
pub const QUEUE_GPU_S: f64 = 57_600.0;

/// A job as Tiresias sees it, in order of submission.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queued<'a> {
    /// What its owner asked for.
    pub requested: u32,
    /// What it had so far.
    pub attained_gpu_s: f64,
    /// What it holds, empty where it waits.
    pub held: &'a [Replicas],
}

/// Jobs in the order in which they are served: who had less than `queue_gpu_s` GPU seconds before
/// all others, each of the two queues in the order given (Gu et al., "Tiresias", NSDI 2019,
/// discretized least attained service). Nobody comes back from the second queue.
#[must_use]
pub fn order(attained_gpu_s: &[f64], queue_gpu_s: f64) -> Vec<usize> {
    let is_second = |job: &usize| attained_gpu_s[*job] >= queue_gpu_s;
    let (second, first): (Vec<usize>, Vec<usize>) = (0..attained_gpu_s.len()).partition(is_second);
    first.into_iter().chain(second).collect()
}

/// Gives each job, in [`order`], all that it requested or, where so many GPUs are not left,
/// nothing; a later and smaller job may still get some. `gpus` are those of each node. Who runs
/// and is served stays on its nodes; the others go to the nodes with the most free GPUs.
#[must_use]
pub fn tiresias(gpus: &[u32], jobs: &[Queued<'_>], queue_gpu_s: f64) -> Vec<Vec<Replicas>> {
    let attained: Vec<f64> = jobs.iter().map(|job| job.attained_gpu_s).collect();
    let mut left: u64 = gpus.iter().map(|gpus| u64::from(*gpus)).sum();
    let mut served = Vec::new();
    for job in order(&attained, queue_gpu_s) {
        let requested = u64::from(jobs[job].requested);
        if requested > 0 && requested <= left {
            left -= requested;
            served.push(job);
        }
    }
    let mut free = gpus.to_vec();
    let mut held = vec![Vec::new(); jobs.len()];
    let stays = |job: &usize| super::gpus::count(jobs[*job].held) == jobs[*job].requested;
    let (stay, start): (Vec<usize>, Vec<usize>) = served.into_iter().partition(stays);
    let mut moved = Vec::new();
    for job in stay {
        if take(&mut free, jobs[job].held) {
            held[job] = jobs[job].held.to_vec();
        } else {
            // A node lost some of its GPUs.
            moved.push(job);
        }
    }
    for job in moved.into_iter().chain(start) {
        held[job] = most_free(&mut free, jobs[job].requested);
    }
    held
}

/// Gives each job, in [`order`] by arrival, the shape that it requested where that fits in what is
/// left of `free`, and goes on to the next where it does not.
///
/// A job without a request, with one outside its bounds, or with one that even the whole cluster
/// could not hold gets nothing.
#[must_use]
pub fn shapes(total: &[i64], free: &[i64], asks: &[Ask<'_>], queue_gpu_s: f64) -> Vec<Shape> {
    let mut free = Free::of(free);
    let mut given = vec![Shape::default(); asks.len()];
    for at in queued(asks, queue_gpu_s) {
        if let Some(shape) = asks[at].sound_request(total)
            && free.take(&asks[at], Shape::default(), shape)
        {
            given[at] = shape;
        }
    }
    given
}

fn queued(asks: &[Ask<'_>], queue_gpu_s: f64) -> Vec<usize> {
    let mut by_arrival: Vec<usize> = (0..asks.len()).collect();
    by_arrival.sort_by_key(|ask| asks[*ask].arrival_ms);
    let attained: Vec<f64> = by_arrival.iter().map(|ask| asks[*ask].attained_gpu_s).collect();
    order(&attained, queue_gpu_s).into_iter().map(|at| by_arrival[at]).collect()
}
