//! What replicas are worth to a job, and a state to the cluster (Pollux, sections 4.2 and 5.2).

use model::JobId;

use super::{Candidate, replicas_max};
use crate::goodput::batch::{best_of, candidates};
use crate::goodput::{Batch, Elastic, Gradient, Limits, Spread, Throughput};

/// What a job without anything is worth: keeps the power mean of p = -1 above 0.
pub(super) const FLOOR: f64 = 1e-3;

/// The spread whose goodput is a speedup of 1: an even share of the GPUs, on a node while one GPU
/// is on one.
#[must_use]
pub fn fair_share(nodes: u32, gpus: u64, jobs: u32) -> Spread {
    let replicas = gpus.div_ceil(u64::from(jobs.max(1)));
    let nodes = u64::from(nodes).div_ceil(gpus.max(1));
    let number = |value: u64| u32::try_from(value.max(1)).unwrap_or(u32::MAX);
    Spread::new(number(nodes), number(replicas))
}

/// What a change costs as a factor: the share of its life that a job has trained and not
/// restarted, if it restarts once more.
pub(super) fn restart_factor(elastic: &Elastic, rescale_s: f64) -> f64 {
    let age_s = elastic.age_s.max(0.0);
    let trained = (age_s - f64::from(elastic.restarts) * rescale_s).max(0.0);
    let factor = trained / (age_s + rescale_s);
    if factor.is_finite() { factor } else { 0.0 }
}

/// Goodputs of jobs, kept while what they follow from stays.
#[derive(Clone, Debug, Default)]
pub(super) struct Goodputs {
    /// By id.
    jobs: Vec<Known>,
    batches: Batches,
}

#[derive(Clone, Debug)]
struct Known {
    id: JobId,
    of: (Option<Throughput>, Gradient, Limits),
    /// By K on one node, and over several; not a number where it was not asked for yet.
    by_replicas: [Vec<f64>; 2],
}

impl Goodputs {
    /// Forgets jobs that are gone, and what is known of those that have changed.
    pub(super) fn renew(&mut self, jobs: &[&Candidate<'_>]) {
        let mut last = std::mem::take(&mut self.jobs);
        let mut known: Vec<Known> = jobs
            .iter()
            .map(|job| {
                let Elastic { throughput, gradient, limits, .. } = *job.elastic;
                let of = (throughput, gradient, limits);
                let found = last.binary_search_by_key(&job.id, |known| known.id);
                match found.ok().map(|at| &mut last[at]).filter(|known| known.of == of) {
                    Some(known) => {
                        let by_replicas = std::mem::take(&mut known.by_replicas);
                        Known { id: job.id, of, by_replicas }
                    }
                    None => Known { id: job.id, of, by_replicas: Default::default() },
                }
            })
            .collect();
        known.sort_by_key(|known| known.id);
        self.jobs = known;
    }

    /// The goodput of the best batch; 0 where there is none. The job was named to `renew`.
    fn of(&mut self, id: JobId, spread: Spread) -> f64 {
        let found = self.jobs.binary_search_by_key(&id, |known| known.id);
        let Some(known) = found.ok().map(|at| &mut self.jobs[at]) else { return 0.0 };
        let (Some(throughput), gradient, limits) = known.of else { return 0.0 };
        let list = &mut known.by_replicas[usize::from(spread.nodes > 1)];
        let at = usize::try_from(spread.replicas).unwrap_or(usize::MAX);
        let batches = &mut self.batches;
        let mut ask = || {
            let batches = batches.of(limits, spread.replicas);
            let best = best_of(batches.iter().copied(), &throughput, &gradient, (&limits, spread));
            best.map_or(0.0, |best| best.goodput)
        };
        if at >= REPLICAS_KEPT {
            return ask();
        }
        if list.len() <= at {
            list.resize(at + 1, f64::NAN);
        }
        if list[at].is_nan() {
            list[at] = ask();
        }
        list[at]
    }
}

/// Goodputs are kept up to so many replicas: beyond it they are rare.
const REPLICAS_KEPT: usize = 4096;
/// Lists of batches are begun anew beyond so many batches: a few megabytes.
const BATCHES_MAX: usize = 1 << 19;

/// The batches to try, by limits and replicas.
#[derive(Clone, Debug, Default)]
struct Batches {
    /// Sorted; where each list lies among the batches.
    lists: Vec<(Key, usize, usize)>,
    batches: Vec<Batch>,
}

type Key = (u32, u32, u32, u32, bool, u32);

impl Batches {
    fn of(&mut self, limits: Limits, replicas: u32) -> &[Batch] {
        let Limits { initial, batch_max, local_min, local_max, accumulation } = limits;
        let key = (initial, batch_max, local_min, local_max, accumulation, replicas);
        let at = match self.lists.binary_search_by_key(&key, |list| list.0) {
            Ok(at) => at,
            Err(_) if self.batches.len() > BATCHES_MAX => {
                *self = Self::default();
                return self.of(limits, replicas);
            }
            Err(at) => {
                let from = self.batches.len();
                self.batches.extend(candidates(limits, replicas));
                self.lists.insert(at, (key, from, self.batches.len()));
                at
            }
        };
        let (_, from, to) = self.lists[at];
        &self.batches[from..to]
    }
}

/// What one row is worth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub speedup: f64,
    /// One over what the row adds to the power mean.
    pub inverse: f64,
}

/// What every row of every job is worth: it depends on K, on whether the row leaves one node, and
/// on whether it is what the job has now.
#[derive(Clone, Debug, Default)]
pub(super) struct Worth {
    entries: Vec<Entry>,
    /// Where each job's entries begin, and the most replicas it may have.
    jobs: Vec<(usize, usize)>,
}

impl Worth {
    /// Of jobs in their order, on nodes of so many GPUs.
    pub(super) fn of(
        gpus: &[u16],
        jobs: &[&Candidate<'_>],
        rescale_s: f64,
        goodputs: &mut Goodputs,
    ) -> Self {
        let total: u64 = gpus.iter().map(|gpus| u64::from(*gpus)).sum();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let nodes = count(gpus.iter().filter(|gpus| **gpus > 0).count());
        let fair = fair_share(nodes, total, count(jobs.len()));
        let largest = gpus.iter().copied().max().unwrap_or(0);
        // One node's worth of a fair share is worth 1.
        let factor = ratio(u64::from(nodes), total.max(1));
        let mut worth = Self::default();
        for job in jobs {
            let elastic = job.elastic;
            let most = u64::from(replicas_max(elastic)).min(total);
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let restart = restart_factor(elastic, rescale_s);
            let base = Base::of(job, fair, goodputs);
            let from = worth.entries.len();
            worth.jobs.push((from, most));
            let speedups: Vec<[f64; 2]> = (0..=count(most))
                .map(|replicas| {
                    let local = if replicas <= u32::from(largest) {
                        base.speedup(Spread::new(1, replicas), goodputs)
                    } else {
                        0.0
                    };
                    [local, base.speedup(Spread::new(2, replicas), goodputs)]
                })
                .collect();
            for changed in [1.0, restart] {
                for way in 0..2 {
                    worth.entries.extend(speedups.iter().map(|speedups| {
                        let speedup = speedups[way];
                        Entry { speedup, inverse: 1.0 / (speedup * factor * changed + FLOOR) }
                    }));
                }
            }
        }
        worth
    }

    pub(super) fn most(&self, job: usize) -> usize {
        self.jobs[job].1
    }

    /// Of a row of no more than the job's most replicas.
    pub(super) fn at(
        &self,
        job: usize,
        replicas: usize,
        (several, changed): (bool, bool),
    ) -> Entry {
        let (from, most) = self.jobs[job];
        let way = usize::from(changed) * 2 + usize::from(several);
        self.entries[from + way * (most + 1) + replicas]
    }
}

/// A job's goodput at the fair share.
#[derive(Clone, Copy, Debug)]
struct Base {
    id: JobId,
    fair: Spread,
    /// None where nothing is known of the job's speed.
    goodput: Option<f64>,
}

impl Base {
    fn of(job: &Candidate<'_>, fair: Spread, goodputs: &mut Goodputs) -> Self {
        let Limits { batch_max, local_min, .. } = job.elastic.limits;
        // A job that cannot use its share is measured by the most it can use.
        let most = fair.replicas.min(batch_max / local_min.max(1)).max(1);
        let goodput = goodputs.of(job.id, Spread::new(fair.nodes, most));
        Self { id: job.id, fair, goodput: (goodput > 0.0).then_some(goodput) }
    }

    fn speedup(&self, spread: Spread, goodputs: &mut Goodputs) -> f64 {
        if spread.replicas == 0 || (spread.nodes > 1 && spread.replicas < 2) {
            return 0.0;
        }
        let speedup = match self.goodput {
            Some(base) => goodputs.of(self.id, spread) / base,
            None => f64::from(spread.replicas) / f64::from(self.fair.replicas),
        };
        if speedup.is_finite() { speedup } else { 0.0 }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
