//! A generation in training: it goes on at a steady rate from one event to the next, stands for
//! checkpoints, and hangs once a member is gone.

use std::collections::{BTreeMap, BTreeSet};

use model::agent::CheckpointOrder;
use model::{CheckpointId, Millis, Mode, Placement, Revision, Shape, Task};
use rand_pcg::Pcg64Mcg;

use super::truth::{ceil_ms, count, float};

/// Slack in steps for rounding.
const CLOSE: f64 = 1e-7;

#[derive(Clone, Debug)]
pub(super) struct Training {
    /// Position in the workload.
    pub(super) job: usize,
    pub(super) shape: Shape,
    pub(super) mode: Mode,
    /// Tasks that live, by the node that they live on.
    pub(super) alive: BTreeMap<Task, usize>,
    pub(super) nodes: BTreeSet<usize>,
    pub(super) placement: Placement,
    pub(super) begun: Millis,
    /// Set once all tasks were there.
    pub(super) ready_at: Option<Millis>,
    pub(super) ready: bool,
    /// Some task is gone, or it never makes a step: the rest hangs.
    pub(super) broken: bool,
    pub(super) base_step: u64,
    pub(super) base_work: f64,
    pub(super) step_work: f64,
    pub(super) total: f64,
    /// Work at `since`, and work a second with and without slow nodes.
    pub(super) work: f64,
    pub(super) since: Millis,
    pub(super) rate: f64,
    pub(super) slow: f64,
    /// Speed of each worker's node.
    pub(super) speeds: Vec<f64>,
    /// Seconds that it trained.
    pub(super) moved_s: f64,
    pub(super) stepped: bool,
    pub(super) finished: bool,
    pub(super) resume: Option<String>,
    pub(super) order: Option<(Revision, CheckpointOrder)>,
    /// The newest set of any node that said anything of checkpoints, were it that there is none.
    pub(super) heard: Revision,
    pub(super) save: Option<Save>,
    /// When it stood to leave for good.
    pub(super) left_at: Option<Millis>,
    pub(super) sums: Sums,
    /// When the present appointment is; only the newest one counts.
    pub(super) appointed: Option<Millis>,
    pub(super) version: u64,
}

/// What the workers have told so far. All of them tell the same.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    pub(super) stream: Pcg64Mcg,
    pub(super) told_work: f64,
    pub(super) told_s: f64,
    pub(super) seen_s: f64,
    /// Of each worker, in s: its own computing.
    pub(super) computed_s: Vec<f64>,
    pub(super) loss_sum: f64,
    pub(super) loss_count: u64,
    pub(super) recent: Option<(u32, f64)>,
    pub(super) first: Option<(u32, f64)>,
    /// Mean loss over the part of the open epoch in this generation, with that part's work.
    pub(super) open: (f64, f64),
    /// Epoch, step at its end, mean loss, and the part of it that was done here.
    pub(super) epochs: Vec<(u32, u64, f64, f64)>,
}

/// A checkpoint under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Save {
    pub(super) checkpoint: CheckpointId,
    pub(super) state: SaveState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SaveState {
    /// It stands at the step and writes until then.
    Writes {
        until: Millis,
    },
    Failed,
    /// Written; it stands on where it was told to hold.
    Saved {
        step: u64,
        hold: bool,
    },
    Missed {
        step: u64,
    },
}

/// What the appointment brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    Ready,
    FirstStep,
    Stands,
    Missed,
    Written,
    Finished,
}

impl Sums {
    pub(super) fn new(stream: Pcg64Mcg, work: f64) -> Self {
        Self {
            stream,
            told_work: work,
            told_s: 0.0,
            seen_s: 0.0,
            computed_s: Vec::new(),
            loss_sum: 0.0,
            loss_count: 0,
            recent: None,
            first: None,
            open: (0.0, 0.0),
            epochs: Vec::new(),
        }
    }
}

impl Training {
    fn moves(&self) -> bool {
        let stands = self.save.is_some_and(|save| match save.state {
            SaveState::Writes { .. } | SaveState::Failed => true,
            SaveState::Saved { hold, .. } => hold,
            SaveState::Missed { .. } => false,
        });
        self.ready && !self.broken && !self.finished && !stands
    }

    /// Takes the speeds of the nodes as they are: all wait for the slowest.
    pub(super) fn take_speeds(&mut self, speed_of: impl Fn(usize) -> f64) {
        self.slow = self.nodes.iter().map(|node| speed_of(*node)).fold(f64::INFINITY, f64::min);
        self.speeds = (0..self.shape.workers)
            .map(|worker| self.alive.get(&Task::worker(worker)).map_or(1.0, |node| speed_of(*node)))
            .collect();
    }

    /// Counts a stretch of training to each worker's own computing: half of a step where nobody is
    /// slow, and as much longer as its node is slower. The rest of the step is waiting.
    pub(super) fn compute(&mut self, seconds: f64) {
        self.sums.computed_s.resize(self.speeds.len(), 0.0);
        for (sum, speed) in self.sums.computed_s.iter_mut().zip(&self.speeds) {
            // In async mode each worker's step is told as equally long.
            let share = if self.mode == Mode::Sync { self.slow / speed } else { 1.0 };
            *sum += seconds * 0.5 * share;
        }
    }

    /// Brings the work up to now.
    pub(super) fn accrue(&mut self, now: Millis) {
        if self.moves() {
            let seconds = now.seconds_since(self.since);
            self.work = (self.work + self.rate * self.slow * seconds).min(self.total);
            self.moved_s += seconds;
        }
        self.since = now;
    }

    /// Work up to now, without bringing anything up.
    pub(super) fn work_at(&self, now: Millis) -> f64 {
        if !self.moves() {
            return self.work;
        }
        let seconds = now.seconds_since(self.since);
        (self.work + self.rate * self.slow * seconds).min(self.total)
    }

    /// Whole steps of this generation.
    pub(super) fn steps(&self) -> u64 {
        count(((self.work - self.base_work) / self.step_work + CLOSE).floor())
    }

    /// The job's step: in async mode of all workers together.
    pub(super) fn step(&self) -> u64 {
        self.base_step.saturating_add(self.steps())
    }

    /// Seconds that the whole steps took.
    pub(super) fn steps_s(&self) -> f64 {
        let rest = self.work - self.base_work - float(self.steps()) * self.step_work;
        let rate = self.rate * self.slow;
        if rate > 0.0 { (self.moved_s - rest.max(0.0) / rate).max(0.0) } else { 0.0 }
    }

    /// The part of a count of all workers that is one worker's.
    pub(super) fn part(&self, all: u64, worker: u32) -> u64 {
        let workers = u64::from(self.shape.workers.max(1));
        let more = u64::from(u64::from(worker) < all % workers);
        all / workers + more
    }

    /// Work by which every worker has made a step: only then may a job be moved.
    fn first_steps(&self) -> f64 {
        let steps = match self.mode {
            Mode::Sync => 1,
            Mode::Async => self.shape.workers.max(1),
        };
        self.base_work + f64::from(steps) * self.step_work
    }

    fn work_of_step(&self, step: u64) -> f64 {
        self.base_work + (float(step) - float(self.base_step)) * self.step_work
    }

    /// The step where an order wants it to stand; none where there is no such order.
    fn target(&self) -> Option<f64> {
        let (_, order) = self.order.as_ref().filter(|_| self.stepped || self.finished)?;
        let is_new = self.save.is_none_or(|save| save.checkpoint != order.checkpoint);
        if order.released || !is_new {
            return None;
        }
        Some(match order.at_step {
            Some(at) if !self.finished => self.work_of_step(at),
            Some(_) | None => self.work,
        })
    }

    /// When something happens next; none where it waits for others.
    pub(super) fn next(&self, now: Millis) -> Option<Millis> {
        if !self.ready {
            return self.ready_at.filter(|_| !self.broken);
        }
        if let Some(Save { state: SaveState::Writes { until }, .. }) = self.save
            && !self.broken
        {
            return Some(until);
        }
        let target = self.target().filter(|_| !self.broken);
        if self.finished || target.is_some_and(|target| target <= self.work) {
            return target.map(|_| now);
        }
        if !self.moves() {
            return None;
        }
        let first = (!self.stepped).then(|| self.first_steps());
        let until =
            [Some(self.total), first, target].into_iter().flatten().fold(f64::INFINITY, f64::min);
        let seconds = (until - self.work) / (self.rate * self.slow);
        Some(self.since.plus(ceil_ms(seconds)).max(now))
    }

    /// Takes up what is due now, once the work was brought up.
    pub(super) fn take(&mut self, now: Millis, save_ms: u64) -> Option<Happened> {
        if self.broken {
            return None;
        }
        if !self.ready {
            self.ready = self.ready_at.is_some_and(|at| at <= now);
            return self.ready.then_some(Happened::Ready);
        }
        if let Some(Save { state: SaveState::Writes { until }, .. }) = self.save {
            return (until <= now).then_some(Happened::Written);
        }
        let slack = self.step_work * CLOSE + self.rate * self.slow * 2e-9;
        if !self.finished && self.work + slack >= self.total {
            self.work = self.total;
            self.finished = true;
            self.stepped = true;
            return Some(Happened::Finished);
        }
        if !self.stepped && self.work + slack >= self.first_steps() {
            self.stepped = true;
            return Some(Happened::FirstStep);
        }
        let target = self.target()?;
        let order = self.order.as_ref().map(|(_, order)| order.clone())?;
        let checkpoint = order.checkpoint;
        // A step's end that fell within this very millisecond is met.
        let met = self.rate * self.slow * 0.001 + slack;
        if order.at_step.is_some() && !self.finished && self.work > target + met {
            let step = self.step();
            self.save = Some(Save { checkpoint, state: SaveState::Missed { step } });
            return Some(Happened::Missed);
        }
        if self.work + slack < target {
            return None;
        }
        self.work = target;
        if order.hold {
            self.left_at = Some(now);
        }
        let state = SaveState::Writes { until: now.plus(save_ms) };
        self.save = Some(Save { checkpoint, state });
        Some(Happened::Stands)
    }

    /// A word about a checkpoint; the newest revision of any node counts, as the file lies on
    /// every node of the job.
    pub(super) fn hear(&mut self, revision: Revision, order: Option<&CheckpointOrder>) {
        if revision < self.heard {
            return;
        }
        self.heard = revision;
        let Some(order) = order.filter(|order| !order.released) else {
            self.order = None;
            self.save = None;
            self.left_at = None;
            return;
        };
        let renamed = self.order.as_ref().is_some_and(|(_, old)| {
            old.checkpoint == order.checkpoint && old.at_step != order.at_step
        });
        let missed = self.save.is_some_and(|save| {
            save.checkpoint != order.checkpoint || matches!(save.state, SaveState::Missed { .. })
        });
        if missed && (renamed || self.save.is_none_or(|s| s.checkpoint != order.checkpoint)) {
            self.save = None;
        }
        self.order = Some((revision, order.clone()));
    }
}
