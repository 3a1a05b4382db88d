//! Our own policy: goodput as each job's agent has learned it, and what is left of the epochs that
//! its owner states.

use std::collections::BTreeMap;

use model::JobId;
use scheduler::baseline::gpus::{self, Replicas};
use scheduler::goodput::shared::Shared;
use scheduler::goodput::{Elastic, Spread};
use scheduler::goodput::batch::{Batch, candidates, fixed};
use scheduler::goodput::horizon::{Candidate, Memory, Settings, plan};

use super::planner::{Batching, JobView, Planner, View};

/// Our own policy, with its knobs.
#[derive(Debug, Default)]
pub struct Horizon {
    settings: Settings,
    memory: Memory,
    oracle: bool,
    shares: bool,
    shared: BTreeMap<String, Shared>,
    truth: BTreeMap<(String, u32, bool, usize), f64>,
}

impl Horizon {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    pub fn sharing(settings: Settings) -> Self {
        Self { settings, shares: true, ..Self::default() }
    }

    pub fn oracle(settings: Settings) -> Self {
        Self { settings, oracle: true, ..Self::default() }
    }
}

impl Horizon {
    fn learn(&mut self, view: &View<'_>) {
        for job in &view.jobs {
            if let Some(elastic) = job.elastic.as_ref().filter(|_| !job.timed.is_empty()) {
                let shared = self.shared.entry(job.app.name().to_owned()).or_default();
                shared.time(job.timed);
                if job.restart_left_s <= 0.0 {
                    shared.see(job.progress / (job.progress + job.work_left), elastic.gradient);
                }
            }
        }
    }

    fn known(&mut self, job: &JobView<'_>) -> Option<BTreeMap<(u32, bool), (f64, f64)>> {
        let shared = self.shared.get_mut(job.app.name())?;
        let most = job.replicas_max.min(job.limits.batch_max / job.limits.local_min);
        let mut rates = BTreeMap::new();
        let done = job.progress / (job.progress + job.work_left);
        let own = job.elastic.as_ref().filter(|_| !job.timed.is_empty());
        let at = (done, own.map(|own| own.gradient));
        for k in (1..=most).filter(|k| *k <= 4 || k % 4 == 0 || gpus::count(job.held) == *k) {
            for wide in [false, true] {
                if (k > 4 && !wide) || (k == 1 && wide) {
                    continue;
                }
                let spread = Spread::new(if wide { k.div_ceil(4).max(2) } else { 1 }, k);
                rates.insert((k, wide), shared.rates(&job.limits, spread, at, &self.settings)?);
            }
        }
        Some(rates)
    }

    fn truth(&mut self, job: &JobView<'_>) -> BTreeMap<(u32, bool), (f64, f64)> {
        let most = job.replicas_max.min(job.limits.batch_max / job.limits.local_min);
        let mut rates = BTreeMap::new();
        for k in (1..=most).filter(|k| *k <= 4 || k % 4 == 0 || gpus::count(job.held) == *k) {
            for wide in [false, true] {
                if (k > 4 && !wide) || (k == 1 && wide) {
                    continue;
                }
                let mut at = |epoch: usize| {
                    let key = (job.app.name().to_owned(), k, wide, epoch);
                    *self.truth.entry(key).or_insert_with(|| true_rate(job, k, wide, epoch))
                };
                let now = at(job.epoch);
                let mut seconds = 0.0;
                let mut from = job.progress;
                for epoch in job.epoch..job.epochs {
                    seconds += (job.app.target(epoch) - from).max(0.0) / at(epoch);
                    from = job.app.target(epoch);
                }
                rates.insert((k, wide), (now, job.work_left.max(1e-9) / seconds.max(1e-9)));
            }
        }
        rates
    }
}

fn true_rate(job: &JobView<'_>, k: u32, wide: bool, epoch: usize) -> f64 {
    let mut way = vec![4; usize::try_from(k / 4).unwrap_or(0)];
    if k % 4 > 0 {
        way.insert(0, k % 4);
    }
    if wide && k <= 4 {
        way = vec![1, k - 1];
    }
    let Some(curve) = job.app.curve(&way) else { return 0.0 };
    let rate = |batch: Batch| {
        let time = job.app.timing(curve, batch.local);
        let whole = batch.total(k);
        let gradient = job.app.gradient(super::read::narrow(whole), epoch);
        gradient.gain(whole / f64::from(job.limits.initial)) / time.iteration_s(batch.accumulation)
    };
    match job.app.pinned_batch() {
        Some(batch) => fixed(&job.limits, k, batch).map_or(0.0, rate),
        None => candidates(job.limits, k).map(rate).fold(0.0, f64::max),
    }
}

impl Planner for Horizon {
    fn name(&self) -> &'static str {
        "horizon"
    }

    fn batching(&self) -> Batching {
        Batching::Goodput
    }

    fn acts_at_events(&self) -> bool {
        true
    }

    fn round(&mut self, view: &View<'_>) -> Vec<Vec<Replicas>> {
        let gpus: Vec<u16> = view.gpus.iter().map(|gpus| narrow(*gpus)).collect();
        let known: Vec<(usize, &Elastic, Vec<u16>)> = view
            .jobs
            .iter()
            .enumerate()
            .filter_map(|(at, job)| {
                let mut current = vec![0; gpus.len()];
                for here in job.held {
                    current[here.node] = narrow(here.count);
                }
                Some((at, job.elastic.as_ref()?, current))
            })
            .collect();
        let rates: Vec<Option<BTreeMap<(u32, bool), (f64, f64)>>> =
            {
                if self.shares {
                    self.learn(view);
                }
                let mut known = |job| match (self.oracle, self.shares) {
                    (true, _) => Some(self.truth(job)),
                    (false, true) => self.known(job),
                    (false, false) => None,
                };
                view.jobs.iter().map(&mut known).collect()
            };
        let asked: Vec<Candidate<'_>> = known
            .iter()
            .map(|(at, elastic, current)| {
                let job = &view.jobs[*at];
                Candidate {
                    id: JobId(u64::try_from(job.id).unwrap_or(u64::MAX)),
                    elastic,
                    current,
                    work_done: job.progress,
                    work_left: job.work_left,
                    replicas_max: job.replicas_max,
                    attained_gpu_s: job.attained_gpu_s,
                    restart_left_s: job.restart_left_s,
                    priority: 1.0,
                    rates: rates[*at].as_ref(),
                }
            })
            .collect();
        let settings = Settings { rescale_s: view.restart_s, ..self.settings };
        let rows = plan(&gpus, &asked, &mut self.memory, &settings);
        let mut given = vec![Vec::new(); view.jobs.len()];
        for ((at, ..), row) in known.iter().zip(rows) {
            let held = row.iter().enumerate().filter(|(_, count)| **count > 0);
            given[*at] =
                held.map(|(node, count)| Replicas { node, count: u32::from(*count) }).collect();
        }
        given
    }
}

fn narrow(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}
