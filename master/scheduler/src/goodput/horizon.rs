//! Our own policy for jobs whose batch grows with their replicas.

pub(super) mod outlook;
mod place;

use std::collections::BTreeMap;

use model::JobId;

use super::Elastic;
use crate::allocate::horizon::{Room, Rung, Stake, horizon};
use outlook::Known;

/// A job that takes part in a round.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub id: JobId,
    pub elastic: &'a Elastic,
    /// Replicas that it has now on each node.
    pub current: &'a [u16],
    /// Steps at the initial batch that it has behind it, and before it: the epochs that its owner
    /// states times the steps of each.
    pub work_done: f64,
    pub work_left: f64,
    /// Most replicas that it may ever have.
    pub replicas_max: u32,
    /// GPU seconds that it has had.
    pub attained_gpu_s: f64,
    /// What is still to be paid of its last start.
    pub restart_left_s: f64,
    pub priority: f64,
    /// Progress a second now and later by replicas and whether they leave one node, where these are known.
    pub rates: Option<&'a BTreeMap<(u32, bool), (f64, f64)>>,
}

/// The rules of the cluster, and the knobs of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Most nodes of one job.
    pub job_nodes_max: u32,
    /// What a restart takes, in s.
    pub rescale_s: f64,
    /// The weight that a job gains with each time that its finish-time ratio is over 1.
    pub fairness: f64,
    /// What is taken for the time of a job on one replica before it was timed, in s.
    pub unknown_s: f64,
    /// The share of a job's work after which its present gradients tell as much of its later ones
    /// as the batch that its owner allows.
    pub early: f64,
    /// Most replicas of a job that was not timed.
    pub first_max: u32,
    /// Power of a prior rate.
    pub first_power: f64,
    /// How much longer an exchange between nodes takes than one within, before it was timed.
    pub nodes_factor: f64,
    /// What an exchange within a node takes of a pass, before it was timed.
    pub local_part: f64,
    /// A job is given at most so many times the replicas that it was timed with.
    pub grow: f64,
    /// Seconds from its start on in which a job is not changed for what it is found to do.
    pub settle_s: f64,
    pub sunk: f64,
    pub evict: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            job_nodes_max: 16,
            rescale_s: 30.0,
            fairness: 0.0,
            unknown_s: 1000.0,
            early: 0.1,
            first_max: 4,
            first_power: 0.8,
            nodes_factor: 2.0,
            local_part: 0.1,
            grow: 1000.0,
            settle_s: 0.0,
            sunk: 1.0,
            evict: 1.0,
        }
    }
}

/// What was computed of jobs, and still holds while nothing new was learned of them.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    known: BTreeMap<JobId, Known>,
}

/// Replicas for each job on each node, in the order of `jobs`; `gpus` are what each node has for
/// them. The answer follows from the arguments alone: the memory only saves work.
#[must_use]
pub fn plan(
    gpus: &[u16],
    jobs: &[Candidate<'_>],
    memory: &mut Memory,
    settings: &Settings,
) -> Vec<Vec<u16>> {
    let total: u32 = gpus.iter().map(|gpus| u32::from(*gpus)).sum();
    let node = gpus.iter().copied().max().map_or(0, u32::from);
    if total == 0 || jobs.is_empty() {
        return vec![vec![0; gpus.len()]; jobs.len()];
    }
    let mut there: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    there.sort_unstable();
    memory.known.retain(|id, _| there.binary_search(id).is_ok());
    let ladders: Vec<Ladder> =
        jobs.iter().map(|job| Ladder::of(job, (total, node), memory, settings)).collect();
    let stakes: Vec<Stake<'_>> = jobs
        .iter()
        .zip(&ladders)
        .map(|(job, ladder)| Stake {
            rungs: &ladder.rungs,
            now: Some(&ladder.nows),
            work: job.work_left.max(ladder.rungs.first().map_or(0.0, |rung| rung.rate)),
            rescale_s: settings.rescale_s,
            held: ladder.held,
            keep_s: settings.sunk * job.restart_left_s,
            evict_s: settings.evict * (settings.rescale_s - settings.sunk * job.restart_left_s).max(0.0),
            started: job.elastic.restarts > 0 || ladder.held.is_some(),
            age_s: job.elastic.age_s,
            had: job.attained_gpu_s / f64::from(total),
            priority: job.priority,
        })
        .collect();
    let mut free = Free { left: total, ladders: &ladders };
    let choice = horizon(&stakes, 1.0, settings.fairness, &mut free);
    let chosen: Vec<u32> = choice
        .given
        .iter()
        .zip(&ladders)
        .map(|(given, ladder)| given.rung.map_or(0, |rung| ladder.replicas[rung]))
        .collect();
    place::place(gpus, jobs, &chosen)
}

/// The sizes that a job may have.
struct Ladder {
    replicas: Vec<u32>,
    rungs: Vec<Rung>,
    /// Progress a second for now.
    nows: Vec<f64>,
    held: Option<usize>,
}

impl Ladder {
    fn of(
        job: &Candidate<'_>,
        (total, node): (u32, u32),
        memory: &mut Memory,
        settings: &Settings,
    ) -> Self {
        let held: u32 = job.current.iter().map(|here| u32::from(*here)).sum();
        let held_nodes = u32::try_from(job.current.iter().filter(|here| **here > 0).count());
        let limits = job.elastic.limits;
        let fill = limits.batch_max / limits.local_min.max(1);
        let most = job.replicas_max.min(total).min(fill).min(settings.job_nodes_max * node).max(1);
        let most = if job.elastic.throughput.is_none() && job.rates.is_none() {
            most.min(settings.first_max)
        } else {
            most
        };
        let timed = job.elastic.replicas_max.div_ceil(2).max(1);
        let most = if job.rates.is_none() && job.elastic.throughput.is_some() {
            let most = f64::from(most).min(settings.grow * f64::from(timed.max(4)));
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "WIP")]
            (most as u32)
        } else {
            most
        };
        let mut replicas: Vec<u32> = (1..=most).filter(|k| *k <= node || k % node == 0).collect();
        if held > 0 && !replicas.contains(&held) {
            replicas.push(held);
            replicas.sort_unstable();
        }
        let known = memory.known.entry(job.id).or_default();
        known.refresh(job);
        let mut kept = Vec::new();
        let (mut rungs, mut nows) = (Vec::new(), Vec::new());
        let mut best = (0.0, 0.0);
        for k in replicas {
            let nodes = if k == held { held_nodes.unwrap_or(1) } else { k.div_ceil(node) };
            let (now, later) = known.rates(job, (k, nodes), settings);
            if now <= 0.0 || later <= 0.0 || (k != held && later <= best.0 && now <= best.1) {
                continue;
            }
            best = (later.max(best.0), now.max(best.1));
            kept.push(k);
            rungs.push(Rung { share: f64::from(k) / f64::from(total), rate: later });
            nows.push(now);
        }
        let held = kept.iter().position(|k| *k == held);
        Self { replicas: kept, rungs, nows, held }
    }
}

struct Free<'a> {
    left: u32,
    ladders: &'a [Ladder],
}

impl Room for Free<'_> {
    fn moves(&mut self, job: usize, from: Option<usize>, to: Option<usize>) -> bool {
        let replicas = |rung: Option<usize>| rung.map_or(0, |rung| self.ladders[job].replicas[rung]);
        let (from, to) = (replicas(from), replicas(to));
        if to > self.left + from {
            return false;
        }
        self.left = self.left + from - to;
        true
    }
}
