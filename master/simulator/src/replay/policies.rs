//! The baselines of the Pollux paper (section 5.2), as its simulator has them.

use std::collections::BTreeMap;

use scheduler::baseline::gpus::Replicas;
use scheduler::baseline::oracle::{Known, oracle};
use scheduler::baseline::tiresias::{QUEUE_GPU_S, Queued, tiresias};
use scheduler::goodput::batch::{Batch, fixed};

use super::app::App;
use super::planner::{Batching, JobView, Planner, View};
use super::profile::NODE_GPUS;

/// Tiresias: each job all that its owner asks for, in two queues by attained service.
#[derive(Clone, Copy, Debug)]
pub struct Tiresias {
    /// GPU seconds after which a job falls into the second queue.
    pub queue_gpu_s: f64,
}

impl Default for Tiresias {
    fn default() -> Self {
        Self { queue_gpu_s: QUEUE_GPU_S }
    }
}

impl Planner for Tiresias {
    fn name(&self) -> &'static str {
        "tiresias"
    }

    fn batching(&self) -> Batching {
        Batching::Stated
    }

    fn round(&mut self, view: &View<'_>) -> Vec<Vec<Replicas>> {
        let queued = view.jobs.iter().map(|job| Queued {
            requested: job.row.num_replicas.min(job.replicas_max),
            attained_gpu_s: job.attained_gpu_s,
            held: job.held,
        });
        let jobs: Vec<Queued<'_>> = queued.collect();
        tiresias(view.gpus, &jobs, self.queue_gpu_s)
    }
}

/// Optimus with an oracle: it knows the steps that are left and the time of each at the batch that
/// the owner states, on as few nodes as the replicas need.
#[derive(Clone, Debug, Default)]
pub struct OptimusOracle {
    /// Seconds of a step by replicas, from 1, by job.
    step_s: BTreeMap<usize, Vec<f64>>,
}

impl Planner for OptimusOracle {
    fn name(&self) -> &'static str {
        "optimus-oracle"
    }

    fn batching(&self) -> Batching {
        Batching::Stated
    }

    fn round(&mut self, view: &View<'_>) -> Vec<Vec<Replicas>> {
        let is_there = |id: &usize| view.jobs.binary_search_by_key(id, |job| job.id).is_ok();
        self.step_s.retain(|id, _| is_there(id));
        for job in &view.jobs {
            self.step_s.entry(job.id).or_insert_with(|| step_times(job));
        }
        let known = view.jobs.iter().map(|job| Known {
            step_s: &self.step_s[&job.id],
            remaining_steps: remaining_steps(job),
            held: job.held,
        });
        let jobs: Vec<Known<'_>> = known.collect();
        oracle(view.gpus, &jobs)
    }
}

fn stated_batch(job: &JobView<'_>) -> u32 {
    job.app.pinned_batch().unwrap_or(job.row.batch_size)
}

/// Steps that are left at the stated batch; 1 in the last epoch, of which the reference knows no
/// end.
fn remaining_steps(job: &JobView<'_>) -> f64 {
    let (batch, last) = (stated_batch(job), job.epochs - 1);
    if job.epoch >= last {
        return 1.0;
    }
    job.app.iteration(batch, last) - job.app.iteration(batch, job.epoch)
}

/// Seconds of a step with 1, 2, … replicas, up to the most that may be given.
fn step_times(job: &JobView<'_>) -> Vec<f64> {
    let batch = stated_batch(job);
    let most = (batch / job.limits.local_min.max(1)).clamp(1, job.replicas_max);
    (1..=most).map_while(|replicas| step_time(job.app, replicas, batch)).collect()
}

fn step_time(app: &App, replicas: u32, batch: u32) -> Option<f64> {
    let mut counts = Vec::new();
    let mut left = replicas;
    while left > 0 {
        counts.push(left.min(NODE_GPUS));
        left -= left.min(NODE_GPUS);
    }
    let limits = app.limits();
    let mut each = fixed(&limits, replicas, batch)?;
    if replicas == 1 && each.accumulation == 0 {
        // The reference always accumulates on a single replica here.
        each = Batch { local: each.local.div_ceil(2), accumulation: 1 };
    }
    Some(app.timing(app.curve(&counts)?, each.local).iteration_s(each.accumulation))
}
