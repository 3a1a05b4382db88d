//! The genetic search of Pollux (section 4.2.1): which replicas of which jobs stand on which
//! nodes, so that the jobs' mean speedup over a fair share is largest.
//!
//! A state is a matrix of replicas, a row for each job and a column for each node. A population of
//! states is bred for so many generations: parents win binary tournaments, two children swap their
//! first rows at a random cut, mutate, are repaired until they obey the cluster's limits, and the
//! best of old and new live on (NSGA-II). The first objective is the fitness, the power mean of
//! speedups with p = -1, in which a change of a running job counts less by what restarts took of
//! its life; the second, speedup for each GPU of the nodes in use, only keeps the population
//! diverse. The state of the largest fitness is the answer, and the population is where the next
//! round starts from.
//!
//! Rows are words with a byte for each node, and a row's worth is looked up by its number of
//! replicas, so that a child of forty jobs on sixteen nodes costs about a microsecond.

mod breed;
mod chance;
mod evolve;
mod judge;
mod population;
mod row;
mod survive;
mod worth;

use model::JobId;
use model::job::TASKS_MAX;
use rand_pcg::Pcg64Mcg;

use super::Elastic;
pub use judge::{Judged, judge};
pub use population::Population;
pub use worth::fair_share;

/// A job that takes part in the search.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub id: JobId,
    pub elastic: &'a Elastic,
    /// Replicas that it has now on each node.
    pub current: &'a [u16],
    /// GPU seconds that it has had: who had less comes first where not all have room.
    pub attained_gpu_s: f64,
    /// Decides between jobs that had as much.
    pub submitted_s: f64,
}

/// The size of the search, and the rules of the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// States that live on, and children of a generation.
    pub population: usize,
    pub generations: u32,
    /// Most nodes of one job.
    pub job_nodes_max: u32,
    /// What a restart takes, in s.
    pub rescale_s: f64,
    /// At most one job that stands on several nodes on each node: such jobs slow each other down.
    pub avoids_interference: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            population: 100,
            generations: 100,
            job_nodes_max: 16,
            rescale_s: 30.0,
            avoids_interference: true,
        }
    }
}

/// Most nodes of a search.
pub const NODES_MAX: usize = 8192;
/// Most words of a state: 32 MiB.
const STATE_WORDS_MAX: usize = 1 << 22;

/// How many jobs take part in a search on so many nodes; of more, only the first in the order of
/// GPU seconds had and of submission do.
#[must_use]
pub fn jobs_max(nodes: usize) -> usize {
    STATE_WORDS_MAX / words(nodes)
}

/// Words of a row: each number of them is compiled apart.
const fn words(nodes: usize) -> usize {
    match nodes {
        0..=16 => 2,
        17..=128 => 16,
        129..=1024 => 128,
        _ => NODES_MAX / 8,
    }
}

/// [`search_within`] without least numbers of replicas, as Pollux has it.
#[must_use]
pub fn search(
    gpus: &[u16],
    jobs: &[Candidate<'_>],
    population: &mut Population,
    stream: &mut Pcg64Mcg,
    settings: &Settings,
) -> Vec<Vec<u16>> {
    search_within(gpus, (jobs, &[]), population, stream, settings)
}

/// Replicas for each job on each node, in the order of `jobs`; `gpus` are what each node has for
/// them. A job gets no fewer replicas than `least` states for it, 0 where that is missing, or none.
/// A node is taken to have at most 42 GPUs, a job at most 4096 replicas, and only the first
/// [`NODES_MAX`] nodes and [`jobs_max`] jobs are shared out: the rest get nothing.
///
/// The answer follows from the arguments alone; with an empty population it starts from what jobs
/// have now. The population is left as the next round wants it.
#[must_use]
pub fn search_within(
    gpus: &[u16],
    (jobs, least): (&[Candidate<'_>], &[u32]),
    population: &mut Population,
    stream: &mut Pcg64Mcg,
    settings: &Settings,
) -> Vec<Vec<u16>> {
    let nodes = gpus.len().min(NODES_MAX);
    let sought: Vec<u16> = gpus[..nodes].iter().map(|gpus| (*gpus).min(row::CELL_MAX)).collect();
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|a, b| {
        let (x, y) = (&jobs[*a], &jobs[*b]);
        let by_had = x.attained_gpu_s.total_cmp(&y.attained_gpu_s);
        by_had.then(x.submitted_s.total_cmp(&y.submitted_s)).then(x.id.cmp(&y.id))
    });
    order.truncate(jobs_max(nodes));
    let ordered: Vec<&Candidate<'_>> = order.iter().map(|job| &jobs[*job]).collect();
    let least: Vec<u32> =
        order.iter().map(|job| least.get(*job).copied().unwrap_or_default()).collect();
    let mut answer = vec![vec![0; gpus.len()]; jobs.len()];
    if ordered.is_empty() || sought.iter().all(|gpus| *gpus == 0) {
        return answer;
    }
    let run = match words(nodes) {
        2 => evolve::run::<2>,
        16 => evolve::run::<16>,
        128 => evolve::run::<128>,
        _ => evolve::run::<{ NODES_MAX / 8 }>,
    };
    let found = run(&sought, (&ordered, &least), population, stream, settings);
    for (job, row) in order.into_iter().zip(found) {
        answer[job][..nodes].copy_from_slice(&row);
    }
    answer
}

/// Replicas that a job may have at most.
fn replicas_max(elastic: &Elastic) -> u32 {
    elastic.replicas_max.min(TASKS_MAX)
}
