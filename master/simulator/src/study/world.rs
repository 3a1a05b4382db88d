//! The pool from event to event.

use scheduler::allocate::horizon::{Room, Rung, Stake, horizon};

use super::greedy::{Seen, marginal_gain};
use super::{Job, Kind, Workload};
use crate::outcome::{JobOutcome, Outcome, Sample, Span, mean};

/// With no slots, or where rescales take longer than rounds, jobs may never end.
const ROUNDS_MAX: u64 = 100_000;

/// Slots, servers and workers, and the rate of a size.
type Size = (u32, (u32, u32), f64);

/// How a job stands.
#[derive(Clone, Debug, Default)]
struct Live {
    left: f64,
    shape: (u32, u32),
    /// No progress before.
    blocked_s: f64,
    started: bool,
    /// Slot seconds that it had.
    had: f64,
}

struct World<'a> {
    workload: &'a Workload,
    kind: Kind,
    now_s: f64,
    /// Jobs that have come.
    come: usize,
    /// Those of them that have not ended, by arrival.
    here: Vec<usize>,
    live: Vec<Live>,
    outcome: Outcome,
    round_s: f64,
    /// For each model the best shapes by slots, each faster than the one before.
    ladders: Vec<Vec<Size>>,
}

enum Event {
    Arrival,
    Completion(usize),
    Round,
}

/// Runs a workload to its end. The bytes depend on nothing but the arguments.
#[must_use]
pub fn run(workload: &Workload, kind: Kind) -> Outcome {
    let live = |job: &Job| Live { left: job.work, ..Live::default() };
    let outcome = |(at, job): (usize, &Job)| JobOutcome {
        id: format!("j{at}"),
        model: job.model.name.to_owned(),
        arrival_s: job.arrival_s,
        ..JobOutcome::default()
    };
    let mut world = World {
        workload,
        kind,
        now_s: 0.0,
        come: 0,
        here: Vec::new(),
        live: workload.jobs.iter().map(live).collect(),
        outcome: Outcome {
            policy: kind.name(),
            seed: workload.seed,
            jobs: workload.jobs.iter().enumerate().map(outcome).collect(),
            ..Outcome::default()
        },
        round_s: 0.0,
        ladders: workload.jobs.iter().map(|job| ladder(job, workload.setting.slots)).collect(),
    };
    while let Some((at_s, event)) = world.next() {
        world.advance(at_s);
        world.handle(&event);
    }
    let shares: Vec<f64> = world
        .outcome
        .jobs
        .iter()
        .filter_map(|job| Some(job.rescale_s / (job.completion_s? - job.started_s?)))
        .filter(|share| share.is_finite())
        .collect();
    world.outcome.rescale_share = mean(&shares).unwrap_or(0.0);
    world.outcome
}

/// Slots, shape and rate of a job's sizes worth having.
fn ladder(job: &Job, slots: u32) -> Vec<Size> {
    let mut ladder: Vec<Size> = Vec::new();
    for size in 2..=slots {
        let rates = (1..size).map(|p| ((p, size - p), job.model.rate(p, size - p)));
        let best = rates.reduce(|best, next| if next.1 > best.1 { next } else { best });
        let Some((shape, rate)) = best else { continue };
        if ladder.last().is_none_or(|(_, _, below)| rate > *below) {
            ladder.push((size, shape, rate));
        }
    }
    ladder
}

/// Slots that are left, with what each job's rungs take.
struct Pool<'a> {
    left: u32,
    sizes: Vec<&'a [Size]>,
}

impl Room for Pool<'_> {
    fn moves(&mut self, job: usize, from: Option<usize>, to: Option<usize>) -> bool {
        let size = |rung: Option<usize>| rung.map_or(0, |rung| self.sizes[job][rung].0);
        let left = self.left + size(from);
        let fits = size(to) <= left;
        if fits {
            self.left = left - size(to);
        }
        fits
    }
}

impl World<'_> {
    fn rate(&self, job: usize) -> f64 {
        let (servers, workers) = self.live[job].shape;
        self.workload.jobs[job].model.rate(servers, workers)
    }

    /// What comes next. At one instant completions come first, then arrivals, then rounds.
    fn next(&self) -> Option<(f64, Event)> {
        let mut next: Option<(f64, Event)> = None;
        let mut offer = |at_s: f64, event: Event| {
            if at_s.is_finite() && next.as_ref().is_none_or(|(known, _)| at_s < *known) {
                next = Some((at_s, event));
            }
        };
        for job in &self.here {
            let live = &self.live[*job];
            let end_s = self.now_s.max(live.blocked_s) + live.left / self.rate(*job);
            offer(end_s, Event::Completion(*job));
        }
        if let Some(job) = self.workload.jobs.get(self.come) {
            offer(job.arrival_s.max(self.now_s), Event::Arrival);
        }
        if matches!(self.kind, Kind::Optimus { period_s: Some(_) })
            && (!self.here.is_empty() || self.come < self.workload.jobs.len())
            && self.outcome.rounds < ROUNDS_MAX
        {
            offer(self.round_s, Event::Round);
        }
        next
    }

    fn advance(&mut self, to_s: f64) {
        for job in &self.here {
            let rate = self.rate(*job);
            let live = &mut self.live[*job];
            let worked_s = (to_s - self.now_s.max(live.blocked_s)).max(0.0);
            live.left -= worked_s * rate;
            live.had += (to_s - self.now_s) * f64::from(live.shape.0 + live.shape.1);
        }
        self.now_s = to_s;
    }

    fn handle(&mut self, event: &Event) {
        match event {
            Event::Arrival => {
                self.here.push(self.come);
                self.come += 1;
            }
            Event::Completion(job) => {
                self.here.retain(|other| other != job);
                self.set(*job, (0, 0));
                self.outcome.jobs[*job].completion_s = Some(self.now_s);
            }
            Event::Round => {}
        }
        let shapes = match (self.kind, event) {
            (Kind::Optimus { period_s: Some(period_s) }, Event::Round) => {
                self.round_s += period_s.max(1.0);
                self.by_gain()
            }
            (Kind::Optimus { period_s: None }, Event::Arrival | Event::Completion(_)) => {
                self.by_gain()
            }
            (Kind::Horizon { fairness }, Event::Arrival | Event::Completion(_)) => {
                self.by_horizon(fairness)
            }
            (Kind::Optimus { period_s: Some(_) }, Event::Arrival | Event::Completion(_))
            | (Kind::Optimus { period_s: None } | Kind::Horizon { .. }, Event::Round) => return,
        };
        self.outcome.rounds += 1;
        for (job, shape) in self.here.clone().into_iter().zip(shapes) {
            self.set(job, shape);
        }
        self.sample();
    }

    /// Work left and the factor on the rate, as the policy sees them.
    fn seen(&self, job: usize) -> Seen {
        let Job { model, work, signs, .. } = self.workload.jobs[job];
        let left = self.live[job].left.max(1e-9);
        let [by_work, by_speed] =
            [self.workload.setting.work_error, self.workload.setting.speed_error];
        Seen {
            model,
            work: left * (1.0 + signs[0] * by_work * left / work),
            factor: 1.0 + signs[1] * by_speed * left / work,
        }
    }

    fn by_gain(&self) -> Vec<(u32, u32)> {
        let seen: Vec<Seen> = self.here.iter().map(|job| self.seen(*job)).collect();
        marginal_gain(&seen, self.workload.setting.slots)
    }

    fn by_horizon(&self, fairness: f64) -> Vec<(u32, u32)> {
        let slots = self.workload.setting.slots;
        let seen: Vec<Seen> = self.here.iter().map(|job| self.seen(*job)).collect();
        let rung = |factor: f64| {
            move |(size, _, rate): &Size| Rung {
                share: f64::from(*size) / f64::from(slots),
                rate: rate * factor,
            }
        };
        let rungs: Vec<Vec<Rung>> = self
            .here
            .iter()
            .zip(&seen)
            .map(|(job, seen)| self.ladders[*job].iter().map(rung(seen.factor)).collect())
            .collect();
        let mut stakes: Vec<Stake<'_>> = Vec::with_capacity(seen.len());
        for ((job, seen), rungs) in self.here.iter().zip(&seen).zip(&rungs) {
            let live = &self.live[*job];
            stakes.push(Stake {
                rungs,
                work: seen.work,
                rescale_s: self.workload.setting.rescale_cost_s,
                held: self.ladders[*job].iter().position(|(_, shape, _)| *shape == live.shape),
                started: live.started,
                age_s: self.now_s - self.workload.jobs[*job].arrival_s,
                had: live.had / f64::from(slots),
                priority: 1.0,
            });
        }
        let sizes = self.here.iter().map(|job| self.ladders[*job].as_slice()).collect();
        let choice = horizon(&stakes, 1.0, fairness, &mut Pool { left: slots, sizes });
        let shape = |(job, rung): (&usize, Option<usize>)| {
            rung.map_or((0, 0), |rung| self.ladders[*job][rung].1)
        };
        self.here.iter().zip(choice.given.iter().map(|given| given.rung)).map(shape).collect()
    }

    /// A job goes to a shape: another one costs a rescale, unless it is the first.
    fn set(&mut self, job: usize, shape: (u32, u32)) {
        let (live, outcome) = (&mut self.live[job], &mut self.outcome.jobs[job]);
        if live.shape == shape {
            return;
        }
        live.shape = shape;
        if shape.0 > 0 {
            if live.started {
                let cost_s = self.workload.setting.rescale_cost_s;
                // One that was still under way starts again.
                outcome.rescale_s += cost_s - (live.blocked_s - self.now_s).max(0.0);
                outcome.restarts += 1;
                live.blocked_s = self.now_s + cost_s;
            }
            live.started = true;
            outcome.started_s.get_or_insert(self.now_s);
        }
        let nodes = u32::from(shape.0 > 0);
        outcome.timeline.push(Span { at_s: self.now_s, servers: shape.0, workers: shape.1, nodes });
    }

    fn sample(&mut self) {
        let shapes = self.here.iter().map(|job| self.live[*job].shape);
        let tasks = shapes.clone().map(|(servers, workers)| servers + workers).sum();
        let count = |runs: bool| {
            let found = shapes.clone().filter(|shape| (shape.0 > 0) == runs).count();
            u32::try_from(found).unwrap_or(u32::MAX)
        };
        assert!(tasks <= self.workload.setting.slots, "more tasks than slots");
        self.outcome.samples.push(Sample {
            at_s: self.now_s,
            tasks,
            jobs_running: count(true),
            jobs_waiting: count(false),
            used: f64::from(tasks) / f64::from(self.workload.setting.slots.max(1)),
        });
    }
}

/// Each ended job's finish-time ratio: its JCT over what it would have been alone on 1/n of the
/// slots, n the mean number of jobs present while it was (Themis, NSDI'20, section 3, with the
/// contention as it was). Between two sizes the slots go by turns; below the least for a part of
/// the time.
#[must_use]
pub fn finish_time_ratios(workload: &Workload, outcome: &Outcome) -> Vec<f64> {
    let slots = workload.setting.slots;
    let spans: Vec<(f64, f64)> =
        outcome.jobs.iter().filter_map(|job| Some((job.arrival_s, job.completion_s?))).collect();
    let ratio = |(job, outcome): (&Job, &JobOutcome)| {
        let (from, to) = (outcome.arrival_s, outcome.completion_s?);
        let together: f64 =
            spans.iter().map(|span| (span.1.min(to) - span.0.max(from)).max(0.0)).sum();
        let share = f64::from(slots) / (together / (to - from)).max(1.0);
        let (mut below, mut rate) = (0.0, 0.0);
        for (size, _, faster) in ladder(job, slots) {
            let size = f64::from(size);
            if size > share {
                rate += (faster - rate) * (share - below) / (size - below);
                break;
            }
            (below, rate) = (size, faster);
        }
        Some((to - from) * rate / job.work)
    };
    workload.jobs.iter().zip(&outcome.jobs).filter_map(ratio).collect()
}

/// A policy against [`Kind::PAPERS`] over many seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Met {
    /// Mean over seeds of the ratio of mean JCTs, and the ratio of the means over all seeds.
    pub jct: f64,
    pub jct_of_means: f64,
    /// The same of the makespans.
    pub makespan: f64,
    pub makespan_of_means: f64,
    /// The finish-time ratio's 99th percentile and largest over all jobs of all seeds.
    pub ratio_p99: f64,
    pub ratio_max: f64,
    /// Mean JCT in s.
    pub mean_s: f64,
    /// Mean seconds that a job spent on rescales.
    pub rescale_s: f64,
}

impl Met {
    /// Of a policy's runs and the paper's on the same workloads, in the same order; none where
    /// there are none or one did not end.
    #[must_use]
    pub fn of(workloads: &[Workload], runs: &[Outcome], papers: &[Outcome]) -> Option<Self> {
        let jct = |run: &Outcome| mean(&run.completion_times());
        let jcts: Vec<(f64, f64)> = runs
            .iter()
            .zip(papers)
            .map(|(run, paper)| Some((jct(run)?, jct(paper)?)))
            .collect::<Option<_>>()?;
        let makespans: Vec<(f64, f64)> = runs
            .iter()
            .zip(papers)
            .map(|(run, paper)| Some((run.makespan_s()?, paper.makespan_s()?)))
            .collect::<Option<_>>()?;
        let ratios: Vec<f64> = workloads
            .iter()
            .zip(runs)
            .flat_map(|(load, run)| finish_time_ratios(load, run))
            .collect();
        let of_ratios =
            |pairs: &[(f64, f64)]| mean(&pairs.iter().map(|(a, b)| a / b).collect::<Vec<_>>());
        let of_means = |pairs: &[(f64, f64)]| {
            let sum = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
            sum(&|pair| pair.0) / sum(&|pair| pair.1)
        };
        let lost: Vec<f64> =
            runs.iter().flat_map(|run| run.jobs.iter().map(|job| job.rescale_s)).collect();
        Some(Self {
            jct: of_ratios(&jcts)?,
            jct_of_means: of_means(&jcts),
            makespan: of_ratios(&makespans)?,
            makespan_of_means: of_means(&makespans),
            ratio_p99: crate::outcome::percentile(&ratios, 0.99)?,
            ratio_max: crate::outcome::percentile(&ratios, 1.0)?,
            mean_s: mean(&jcts.iter().map(|(jct, _)| *jct).collect::<Vec<_>>())?,
            rescale_s: mean(&lost)?,
        })
    }
}
