//! The loop over rounds.

use scheduler::baseline::gpus::{self, Replicas};
use scheduler::goodput::genetic::Settings;
use scheduler::goodput::horizon::Settings as Knobs;

use super::app::Profiles;
use super::horizon::Horizon;
use super::job::Job;
use super::planner::{Planner, View};
use super::policies::{OptimusOracle, Tiresias};
use super::pollux::Pollux;
use super::profile::NODE_GPUS;
use super::rows::{Row, TIME_MAX};
use crate::outcome::{Outcome, Sample};

/// Policies by name.
pub const POLICIES: [&str; 6] =
    ["horizon", "horizon-shared", "horizon-oracle", "pollux", "tiresias", "optimus-oracle"];
/// A run is given up so long after the last submission.
const AFTER_LAST_S: f64 = 365.0 * 86_400.0;
/// More nodes than are simulated.
const NODES_MAX: u32 = 4096;

/// How a workload is replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// One of [`POLICIES`].
    pub policy: String,
    pub seed: u64,
    /// Between rounds, in s.
    pub interval_s: f64,
    /// Whether there is also a round at each submission and at the end of each job: the reference
    /// has none.
    pub at_events: bool,
    /// What each start and restart costs, in s.
    pub restart_s: f64,
    /// Share of its speed that a job on several nodes loses where it shares one of them with
    /// another such job.
    pub interference: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: "optimus-oracle".to_owned(),
            seed: 0,
            interval_s: 60.0,
            at_events: false,
            restart_s: 30.0,
            interference: 0.0,
        }
    }
}

/// Replays a workload on so many nodes of four GPUs.
///
/// # Errors
/// Where a policy or an application is not known, an option makes no sense, or a job asks for more
/// than the cluster has.
pub fn run(
    profiles: &Profiles,
    rows: &[Row],
    nodes: u32,
    options: &Options,
) -> Result<Outcome, String> {
    let mut planner: Box<dyn Planner> = match options.policy.as_str() {
        "horizon" => Box::new(Horizon::new(Knobs::default())),
        "horizon-shared" => Box::new(Horizon::sharing(Knobs::default())),
        "horizon-oracle" => Box::new(Horizon::with_oracle(Knobs::default())),
        "pollux" => Box::new(Pollux::new(options.seed, Settings::default())),
        "tiresias" => Box::new(Tiresias::default()),
        "optimus-oracle" => Box::new(OptimusOracle::default()),
        other => {
            let there = POLICIES.join(", ");
            return Err(format!(
                "there is no policy {other:?} for such a workload: there are {there}"
            ));
        }
    };
    run_with(profiles, rows, nodes, options, &mut *planner)
}

/// [`run`] under a policy of one's own; `options.policy` is not looked at.
///
/// # Errors
/// As [`run`]; also where the policy gives GPUs that are not there, or a placement that was not
/// measured.
pub fn run_with(
    profiles: &Profiles,
    rows: &[Row],
    nodes: u32,
    options: &Options,
    planner: &mut dyn Planner,
) -> Result<Outcome, String> {
    check(rows, nodes, options)?;
    let gpus = vec![NODE_GPUS; usize::try_from(nodes).map_err(|error| error.to_string())?];
    let mut replay = Replay::new(profiles, rows, options, gpus, planner)?;
    let last = rows.iter().map(|row| row.time).fold(0.0, f64::max);
    while replay.jobs.iter().any(|job| !job.has_ended()) && replay.now_s < last + AFTER_LAST_S {
        replay.round(planner)?;
    }
    Ok(replay.outcome(planner.name()))
}

/// The whole number next to one of at least 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times are bounded, so that the number of intervals is"
)]
fn count(value: f64) -> u64 {
    libm::rint(value).max(0.0) as u64
}

fn check(rows: &[Row], nodes: u32, options: &Options) -> Result<(), String> {
    let Options { interval_s, restart_s, interference, .. } = options;
    if !(1..=NODES_MAX).contains(&nodes) {
        return Err(format!("{nodes} nodes: from 1 to {NODES_MAX} are simulated"));
    }
    if !(1.0..=86_400.0).contains(interval_s) {
        return Err(format!("{interval_s} s between rounds: from 1 s to a day are simulated"));
    }
    if !(0.0..=86_400.0).contains(restart_s) {
        return Err(format!("{restart_s} s for a restart: from 0 s to a day are simulated"));
    }
    if !(0.0..1.0).contains(interference) {
        return Err(format!("an interference of {interference} is no share from 0 to below 1"));
    }
    let is_sound = |row: &&Row| {
        (0.0..=TIME_MAX).contains(&row.time) && row.num_replicas > 0 && row.batch_size > 0
    };
    if let Some(row) = rows.iter().find(|row| !is_sound(row)) {
        return Err(format!("{} is no job: {row:?}", row.name));
    }
    let gpus = nodes.saturating_mul(NODE_GPUS);
    match rows.iter().find(|row| row.num_replicas > gpus) {
        Some(Row { name, num_replicas, .. }) => {
            Err(format!("{name} asks for {num_replicas} replicas on a cluster of {gpus} GPUs"))
        }
        None => Ok(()),
    }
}

struct Replay<'a> {
    options: &'a Options,
    gpus: Vec<u32>,
    jobs: Vec<Job<'a>>,
    /// Places of the jobs that were submitted and have not ended, in order of submission.
    active: Vec<usize>,
    /// Jobs by submission, the last first.
    coming: Vec<usize>,
    now_s: f64,
    /// Intervals that have begun, also those in which nothing happened.
    interval: u64,
    rounds: u64,
    samples: Vec<Sample>,
}

impl<'a> Replay<'a> {
    fn new(
        profiles: &'a Profiles,
        rows: &'a [Row],
        options: &'a Options,
        gpus: Vec<u32>,
        planner: &dyn Planner,
    ) -> Result<Self, String> {
        let job = |row: &'a Row| {
            let app = profiles.app(&row.application).ok_or_else(|| {
                format!("{}: application {:?} was not loaded", row.name, row.application)
            })?;
            Ok(Job::new(row, app, planner.batching()))
        };
        let jobs = rows.iter().map(job).collect::<Result<Vec<_>, String>>()?;
        let mut coming: Vec<usize> = (0..rows.len()).collect();
        coming.sort_by(|a, b| rows[*b].time.total_cmp(&rows[*a].time).then(b.cmp(a)));
        Ok(Self {
            options,
            gpus,
            jobs,
            active: Vec::new(),
            coming,
            now_s: 0.0,
            interval: 0,
            rounds: 0,
            samples: Vec::new(),
        })
    }

    /// Lets all jobs run for an interval, then the policy act.
    fn round(&mut self, planner: &mut dyn Planner) -> Result<(), String> {
        let slowed = self.interfered();
        let (from_s, until_s) = (self.now_s, self.next_s(&slowed, planner.acts_at_events()));
        for (job, slowed) in self.active.iter().zip(slowed) {
            self.jobs[*job].advance(from_s, until_s - from_s, slowed);
        }
        self.now_s = until_s;
        for job in &self.active {
            self.jobs[*job].release();
        }
        self.active.retain(|job| !self.jobs[*job].has_ended());
        while let Some(job) = self.coming.pop() {
            if self.jobs[job].row().time > self.now_s {
                self.coming.push(job);
                break;
            }
            self.active.push(job);
        }
        if !self.active.is_empty() {
            self.rounds += 1;
            let given = planner.round(&self.view());
            self.apply(given, planner.name())?;
        }
        self.sample();
        Ok(())
    }

    /// When the next round is.
    #[expect(clippy::cast_precision_loss, reason = "intervals of a run are far below 2^52")]
    fn next_s(&mut self, slowed: &[f64], acts_at_events: bool) -> f64 {
        let interval_s = self.options.interval_s;
        let coming_s = self.coming.last().map(|job| self.jobs[*job].row().time);
        if let Some(coming_s) = coming_s.filter(|_| self.active.is_empty()) {
            // Nothing happens before.
            let before = count(libm::ceil(coming_s / interval_s)).saturating_sub(1);
            self.interval = self.interval.max(before);
        }
        let tick_s = (self.interval + 1) as f64 * interval_s;
        let mut until_s = tick_s;
        if self.options.at_events || acts_at_events {
            until_s = coming_s.map_or(until_s, |at_s| at_s.min(until_s));
            for (job, slowed) in self.active.iter().zip(slowed) {
                let end_s = self.jobs[*job].end_before(self.now_s, until_s, *slowed);
                // An end at this instant is seen in whatever time comes next.
                let end_s = end_s.filter(|at_s| *at_s > self.now_s);
                until_s = end_s.map_or(until_s, |at_s| at_s.min(until_s));
            }
        }
        if acts_at_events {
            let first = |job: &usize| self.jobs[*job].until_report_s();
            let reports = self.active.iter().filter_map(first);
            until_s = reports.map(|in_s| self.now_s + in_s).fold(until_s, f64::min);
        }
        if until_s >= tick_s {
            self.interval += 1;
        }
        until_s
    }

    fn view(&self) -> View<'_> {
        View {
            now_s: self.now_s,
            gpus: &self.gpus,
            restart_s: self.options.restart_s,
            interval_s: self.options.interval_s,
            jobs: self.active.iter().map(|job| self.jobs[*job].view(*job, self.now_s)).collect(),
        }
    }

    /// What each active job loses by others on its nodes.
    fn interfered(&self) -> Vec<f64> {
        let interference = self.options.interference;
        if interference <= 0.0 {
            return vec![0.0; self.active.len()];
        }
        let mut wide = vec![0_u32; self.gpus.len()];
        let held = |job: &usize| self.jobs[*job].held();
        for held in self.active.iter().map(held).filter(|held| held.len() > 1) {
            for here in held {
                wide[here.node] += 1;
            }
        }
        let slowed = |held: &[Replicas]| {
            let shares = held.len() > 1 && held.iter().any(|here| wide[here.node] > 1);
            if shares { interference } else { 0.0 }
        };
        self.active.iter().map(held).map(slowed).collect()
    }

    fn apply(&mut self, given: Vec<Vec<Replicas>>, policy: &str) -> Result<(), String> {
        let mut free = self.gpus.clone();
        if given.len() != self.active.len() {
            return Err(format!(
                "policy {policy} gave {} of {} jobs",
                given.len(),
                self.active.len()
            ));
        }
        for (job, held) in self.active.iter().zip(given) {
            let name = &self.jobs[*job].row().name;
            let is_sound = held.iter().all(|here| here.count > 0) && gpus::take(&mut free, &held);
            if !is_sound {
                return Err(format!("policy {policy} gave {name} GPUs that are not there"));
            }
            if held == self.jobs[*job].held() {
                continue;
            }
            let nodes = held.len();
            if !self.jobs[*job].reallocate(held, self.now_s, self.options.restart_s) {
                let name = &self.jobs[*job].row().name;
                return Err(format!(
                    "policy {policy} put {name} on {nodes} nodes in a way that was not measured"
                ));
            }
        }
        Ok(())
    }

    fn sample(&mut self) {
        let mut sample = Sample { at_s: self.now_s, ..Sample::default() };
        for job in &self.active {
            let replicas = gpus::count(self.jobs[*job].held());
            sample.tasks += replicas;
            if replicas > 0 {
                sample.jobs_running += 1;
            } else {
                sample.jobs_waiting += 1;
            }
        }
        sample.used = f64::from(sample.tasks) / f64::from(self.gpus.iter().sum::<u32>());
        let last = self.samples.last().copied().unwrap_or_default();
        if last != (Sample { at_s: last.at_s, ..sample }) {
            self.samples.push(sample);
        }
    }

    fn outcome(self, policy: &str) -> Outcome {
        let shares: Vec<f64> = self.jobs.iter().filter_map(Job::rescale_share).collect();
        Outcome {
            policy: policy.to_owned(),
            seed: self.options.seed,
            rescale_share: crate::outcome::mean(&shares).unwrap_or(0.0),
            jobs: self.jobs.into_iter().map(Job::outcome).collect(),
            samples: self.samples,
            rounds: self.rounds,
        }
    }
}
