//! Our own policy: goodput as each job's agent has learned it, and what is left of the epochs that
//! its owner states. It acts at every arrival and completion, and at a job's first report.

use std::collections::BTreeMap;

use model::JobId;
use scheduler::baseline::gpus::{self, Replicas};
use scheduler::goodput::Elastic;
use scheduler::goodput::batch::{Batch, candidates, fixed};
use scheduler::goodput::horizon::{Candidate, Memory, Rates, Settings, plan, sizes};
use scheduler::goodput::shared::Shared;

use super::planner::{Batching, JobView, Planner, View};
use super::profile::NODE_GPUS;

/// What the policy knows of the jobs' goodput.
#[derive(Clone, Debug)]
enum Knowledge {
    /// What each job's agent has measured.
    Own,
    /// What was measured of all jobs of an application so far.
    Shared(BTreeMap<String, Shared>),
    /// Everything, whatever was measured: a bound for the others. Rates by application, sizes,
    /// and epoch.
    Truth(BTreeMap<(String, u32, bool), Vec<f64>>),
}

/// Our own policy.
#[derive(Debug)]
pub struct Horizon {
    settings: Settings,
    memory: Memory,
    knowledge: Knowledge,
}

impl Horizon {
    fn of(settings: Settings, knowledge: Knowledge) -> Self {
        Self { settings, memory: Memory::default(), knowledge }
    }

    /// It knows what Pollux knows, and how many epochs each job is to run.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::of(settings, Knowledge::Own)
    }

    /// Jobs of one application share what was measured.
    #[must_use]
    pub fn sharing(settings: Settings) -> Self {
        Self::of(settings, Knowledge::Shared(BTreeMap::new()))
    }

    /// It knows the jobs' step times and gradients beforehand.
    #[must_use]
    pub fn with_oracle(settings: Settings) -> Self {
        Self::of(settings, Knowledge::Truth(BTreeMap::new()))
    }
}

impl Planner for Horizon {
    fn name(&self) -> &'static str {
        match self.knowledge {
            Knowledge::Own => "horizon",
            Knowledge::Shared(_) => "horizon-shared",
            Knowledge::Truth(_) => "horizon-oracle",
        }
    }

    fn batching(&self) -> Batching {
        Batching::Goodput
    }

    fn acts_at_events(&self) -> bool {
        true
    }

    fn round(&mut self, view: &View<'_>) -> Vec<Vec<Replicas>> {
        let narrow = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        let gpus: Vec<u16> = view.gpus.iter().map(|gpus| narrow(*gpus)).collect();
        let rates = self.knowledge.rates(view, &self.settings);
        let mut currents = vec![vec![0; gpus.len()]; view.jobs.len()];
        for (current, job) in currents.iter_mut().zip(&view.jobs) {
            job.held.iter().for_each(|here| current[here.node] = narrow(here.count));
        }
        let known: Vec<(usize, &Elastic)> = view
            .jobs
            .iter()
            .enumerate()
            .filter_map(|(at, job)| Some((at, job.elastic.as_ref()?)))
            .collect();
        let asked: Vec<Candidate<'_>> = known
            .iter()
            .map(|(at, elastic)| (&view.jobs[*at], &currents[*at], rates[*at].as_ref(), *elastic))
            .map(|(job, current, rates, elastic)| Candidate {
                id: JobId(u64::try_from(job.id).unwrap_or(u64::MAX)),
                elastic,
                current,
                work_done: job.progress,
                work_left: job.work_left,
                replicas_min: 1,
                replicas_max: job.replicas_max,
                attained_gpu_s: job.attained_gpu_s,
                rescale_s: view.restart_s,
                restart_left_s: job.restart_left_s,
                priority: 1.0,
                rates,
            })
            .collect();
        let rows = plan(&gpus, &asked, &mut self.memory, &self.settings).rows;
        let mut given = vec![Vec::new(); view.jobs.len()];
        for ((at, _), row) in known.iter().zip(rows) {
            let held = row.iter().enumerate().filter(|(_, count)| **count > 0);
            given[*at] =
                held.map(|(node, count)| Replicas { node, count: u32::from(*count) }).collect();
        }
        given
    }
}

impl Knowledge {
    /// What is known of each job beyond its own measurements.
    fn rates(&mut self, view: &View<'_>, settings: &Settings) -> Vec<Option<Rates>> {
        match self {
            Self::Own => vec![None; view.jobs.len()],
            Self::Shared(models) => {
                view.jobs.iter().for_each(|job| learn(models, job));
                view.jobs.iter().map(|job| shared_rates(models, job, settings)).collect()
            }
            Self::Truth(known) => {
                view.jobs.iter().map(|job| Some(true_rates(known, job))).collect()
            }
        }
    }
}

/// Share of a job's work that is done.
fn done(job: &JobView<'_>) -> f64 {
    job.progress / (job.progress + job.work_left)
}

/// Sizes, each on one node and on several as far as that can be.
fn ways(job: &JobView<'_>) -> impl Iterator<Item = (u32, bool)> {
    let most = job.replicas_max.min(job.limits.batch_max / job.limits.local_min.max(1)).max(1);
    let sizes = sizes(most, NODE_GPUS, gpus::count(job.held));
    let both = sizes.flat_map(|size| [(size, false), (size, true)]);
    both.filter(|(size, is_wide)| if *is_wide { *size > 1 } else { *size <= NODE_GPUS })
}

fn learn(models: &mut BTreeMap<String, Shared>, job: &JobView<'_>) {
    if let Some(elastic) = job.elastic.as_ref().filter(|_| !job.timed.is_empty()) {
        let shared = models.entry(job.row.application.clone()).or_default();
        shared.time(job.timed);
        // Just restarted, its gradients are still those of before.
        if job.restart_left_s <= 0.0 {
            shared.see(done(job), elastic.gradient);
        }
    }
}

fn shared_rates(
    models: &mut BTreeMap<String, Shared>,
    job: &JobView<'_>,
    settings: &Settings,
) -> Option<Rates> {
    let own = job.elastic.as_ref().filter(|_| !job.timed.is_empty());
    let at = (done(job), own.map(|own| own.gradient));
    models.get_mut(&job.row.application)?.rates(ways(job), &job.limits, at, settings)
}

fn true_rates(known: &mut BTreeMap<(String, u32, bool), Vec<f64>>, job: &JobView<'_>) -> Rates {
    let rates = ways(job).map(|(size, is_wide)| {
        let key = (job.row.application.clone(), size, is_wide);
        let epochs = known.entry(key).or_insert_with(|| {
            (0..job.epochs).map(|epoch| true_rate(job, (size, is_wide), epoch)).collect()
        });
        let (mut seconds, mut from) = (0.0, job.progress);
        for (epoch, rate) in epochs.iter().enumerate().skip(job.epoch) {
            let target = job.app.target(epoch);
            seconds += (target - from).max(0.0) / rate;
            from = target;
        }
        let now = epochs[job.epoch.min(epochs.len() - 1)];
        let later = if seconds > 0.0 { job.work_left / seconds } else { now };
        ((size, is_wide), (now, later))
    });
    rates.collect()
}

/// Progress a second in an epoch with the best batch; 0 where that was not measured.
fn true_rate(job: &JobView<'_>, (size, is_wide): (u32, bool), epoch: usize) -> f64 {
    let mut counts = Vec::new();
    let mut left = size;
    if is_wide && size <= NODE_GPUS {
        counts.push(1);
        left -= 1;
    } else if !size.is_multiple_of(NODE_GPUS) {
        counts.push(size % NODE_GPUS);
        left -= size % NODE_GPUS;
    }
    while left > 0 {
        counts.push(left.min(NODE_GPUS));
        left -= left.min(NODE_GPUS);
    }
    let Some(curve) = job.app.curve(&counts) else { return 0.0 };
    let rate = |batch: Batch| {
        let whole = batch.total(size);
        let gradient = job.app.gradient(super::read::narrow(whole), epoch);
        let gain = gradient.gain(whole / f64::from(job.limits.initial));
        gain / job.app.timing(curve, batch.local).iteration_s(batch.accumulation)
    };
    match job.app.pinned_batch() {
        Some(batch) => fixed(&job.limits, size, batch).map_or(0.0, rate),
        None => candidates(job.limits, size).map(rate).fold(0.0, f64::max),
    }
}
