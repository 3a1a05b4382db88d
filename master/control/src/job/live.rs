//! What was seen of a job's present generation. Nothing of it is kept on disk: agents report
//! sums, so that a new master has it again after one heartbeat.

use std::collections::BTreeMap;

use model::agent::{TaskState, WorkerReport};
use model::{Generation, Millis, Mode, Shape, Task};

use crate::job::float;
use crate::slow::links::Links;
use crate::slow::watch::Watch;

#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) generation: Generation,
    /// When it began, or was taken up again.
    pub(crate) begun: Millis,
    pub(crate) tasks: BTreeMap<Task, TaskState>,
    pub(crate) workers: BTreeMap<u32, Worker>,
    /// Every worker has reported a step: measuring counts from there.
    pub(crate) based: bool,
    /// The newest step of any worker was reported then.
    pub(crate) last_step_at: Option<Millis>,
    /// The last sign of progress, or the end of a wait that was ordered.
    pub(crate) progress_at: Millis,
    /// Parts of epochs that are not complete yet, by epoch and worker.
    pub(crate) epochs: BTreeMap<u32, BTreeMap<u32, EpochPart>>,
    /// The PS scheduler was given up without proof of death: it may hold its port still.
    pub(crate) fenced: bool,
    /// Speed over the last stretch that was measured, and over the whole generation with its
    /// seconds.
    pub(crate) recent_steps_per_s: Option<f64>,
    pub(crate) measured: Option<(f64, f64)>,
    /// No checkpoint is begun before, after one that failed.
    pub(crate) save_not_before: Millis,
    /// Workers compared with each other, whose gradients the servers wait for, and those found
    /// slow.
    pub(crate) watch: Watch,
    pub(crate) links: Links,
    pub(crate) named: BTreeMap<u32, Named>,
    /// Moves of slow workers that came to nothing.
    pub(crate) moves_failed: u32,
    /// The newest speed sample that was taken, for the case that it shows a straggler.
    pub(crate) sampled: Option<Sampled>,
    /// Checkpoints in a row that failed because storage was away.
    pub(crate) storage_away: u32,
    /// What workers wait for, by node, where the agent there cannot bring it yet.
    pub(crate) waits: BTreeMap<model::NodeId, String>,
}

/// A worker that was found slow in enough windows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Named {
    /// By how much.
    pub(crate) words: String,
    /// What is done about it.
    pub(crate) fate: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sampled {
    pub(crate) at: Millis,
    pub(crate) shape: Shape,
    pub(crate) steps_per_s: f64,
    pub(crate) seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EpochPart {
    pub(crate) step: u64,
    pub(crate) loss_sum: f64,
    pub(crate) samples: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) report: WorkerReport,
    /// Sums where measuring began, where the last speed sample ended, and where the last loss
    /// point did.
    pub(crate) base: Sums,
    pub(crate) banked: Sums,
    pub(crate) pointed: Sums,
}

/// The growing sums of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    pub(crate) steps: u64,
    pub(crate) steps_s: f64,
    pub(crate) compute_s: f64,
    pub(crate) loss_sum: f64,
    pub(crate) loss_count: u64,
}

impl Sums {
    pub(crate) fn of(report: &WorkerReport) -> Self {
        Self {
            steps: report.steps,
            steps_s: report.steps_s,
            compute_s: report.compute_s,
            loss_sum: report.loss_sum,
            loss_count: report.loss_count,
        }
    }
}

impl Worker {
    pub(crate) fn new(report: WorkerReport) -> Self {
        let sums = Sums::of(&report);
        Self { report, base: sums, banked: sums, pointed: sums }
    }

    pub(crate) fn rebase(&mut self) {
        let sums = Sums::of(&self.report);
        (self.base, self.banked, self.pointed) = (sums, sums, sums);
    }

    /// Steps a second and seconds of steps since `from`; none before a whole step.
    pub(crate) fn speed_since(&self, from: &Sums) -> Option<(f64, f64)> {
        let steps = self.report.steps.checked_sub(from.steps).filter(|steps| *steps > 0)?;
        let seconds = self.report.steps_s - from.steps_s;
        // Ten steps in one millisecond, or a clock that stood still, say nothing.
        let speed = float(steps) / seconds;
        (seconds > 0.0 && speed.is_finite() && speed <= STEPS_PER_S_MAX).then_some((speed, seconds))
    }
}

/// Faster than any training step that crosses a network.
pub(crate) const STEPS_PER_S_MAX: f64 = 1e6;

impl Live {
    pub(crate) fn new(generation: Generation, now: Millis) -> Self {
        Self {
            generation,
            begun: now,
            tasks: BTreeMap::new(),
            workers: BTreeMap::new(),
            based: false,
            last_step_at: None,
            progress_at: now,
            epochs: BTreeMap::new(),
            fenced: false,
            recent_steps_per_s: None,
            measured: None,
            save_not_before: now,
            watch: Watch::default(),
            links: Links::default(),
            named: BTreeMap::new(),
            moves_failed: 0,
            sampled: None,
            storage_away: 0,
            waits: BTreeMap::new(),
        }
    }

    /// True where every one of `workers` workers has reported a step of this generation, or that
    /// there is none left to make: it resumed at the very end.
    pub(crate) fn all_stepped(&self, workers: u32) -> bool {
        u32::try_from(self.workers.len()) == Ok(workers)
            && self.workers.values().all(|w| w.report.steps > 0 || w.report.finished)
    }

    /// The job's step as far as known: in sync mode the newest, in async the sum of the workers'.
    pub(crate) fn step(&self, mode: Mode) -> u64 {
        let steps = self.workers.values().map(|worker| worker.report.step);
        match mode {
            Mode::Sync => steps.max().unwrap_or(0),
            Mode::Async => steps.fold(0, u64::saturating_add),
        }
    }

    pub(crate) fn finished(&self) -> bool {
        self.workers.values().any(|worker| worker.report.finished)
    }

    /// Steps a second of the job since the sums that `from` picks, and the least seconds of steps
    /// measured by any worker: sync jobs as the mean over workers, async ones as the sum. None
    /// until every worker has measured something.
    pub(crate) fn speed(
        &self,
        mode: Mode,
        workers: u32,
        from: impl Fn(&Worker) -> Sums,
    ) -> Option<(f64, f64)> {
        if !self.based || u32::try_from(self.workers.len()) != Ok(workers) || workers == 0 {
            return None;
        }
        let (mut sum, mut least) = (0.0, f64::INFINITY);
        for worker in self.workers.values() {
            let (speed, seconds) = worker.speed_since(&from(worker))?;
            sum += speed;
            least = least.min(seconds);
        }
        let speed = match mode {
            Mode::Sync => sum / f64::from(workers),
            Mode::Async => sum,
        };
        speed.is_finite().then_some((speed, least))
    }

    /// Mean and deviation of the loss over the windows that `of` picks, each weighted by its
    /// steps; none where there is nothing finite.
    pub(crate) fn loss(
        &self,
        of: impl Fn(&WorkerReport) -> model::agent::LossWindow,
    ) -> Option<(f64, f64)> {
        let windows: Vec<_> = self
            .workers
            .values()
            .map(|worker| of(&worker.report))
            .filter(|window| {
                window.steps > 0 && window.mean.is_finite() && window.deviation.is_finite()
            })
            .collect();
        let steps: f64 = windows.iter().map(|window| f64::from(window.steps)).sum();
        if steps <= 0.0 {
            return None;
        }
        let weighted = |value: &dyn Fn(&model::agent::LossWindow) -> f64| -> f64 {
            windows.iter().map(|window| f64::from(window.steps) * value(window)).sum::<f64>()
                / steps
        };
        let mean = weighted(&|window| window.mean);
        let variance = weighted(&|window| window.deviation.powi(2) + (window.mean - mean).powi(2));
        let deviation = variance.max(0.0).sqrt();
        (mean.is_finite() && deviation.is_finite()).then_some((mean, deviation))
    }
}
