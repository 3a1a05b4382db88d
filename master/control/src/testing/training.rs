//! Training processes of one generation: they step together, save at the named step, and hang
//! when a member is gone.

use std::collections::BTreeSet;

use model::agent::{
    CheckpointOrder, CheckpointReport, CheckpointState, DesiredGeneration, EpochReport, LossWindow,
    Part, WorkerReport,
};
use model::{CheckpointId, Generation, JobId, Mode, NodeId, Role, Shape, Task};

use super::agent::Reports;
use super::{TICK_MS, World};

pub(crate) const STEPS_PER_EPOCH: u64 = 40;
const BATCH: u64 = 64;

#[derive(Clone)]
pub(crate) struct Training {
    shape: Shape,
    mode: Mode,
    /// Job-wide step at the start, and steps of each worker since.
    base: u64,
    pub(crate) done: u64,
    steps_max: u64,
    /// Seconds of training left over, and total.
    rest_s: f64,
    steps_s: f64,
    loss_sum: f64,
    first: (u32, f64),
    /// Loss sum and samples of one worker in the epoch now open, and of those finished.
    open: (f64, u64),
    epochs: Vec<(u32, u64, f64, u64)>,
    stand: Stand,
    over: BTreeSet<CheckpointId>,
    missed: Option<CheckpointId>,
    pub(crate) nan_from: Option<u64>,
    /// Reports do not tell of it.
    pub(crate) nan_hidden: bool,
    pub(crate) stuck: bool,
    /// Speed of each worker as a share of its usual one; seconds of its own computing; and, in
    /// async mode, steps that it is behind by.
    speeds: Vec<f64>,
    computed_s: Vec<f64>,
    lags: Vec<f64>,
}

/// Whether the workers train or wait.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stand {
    Train,
    Save { checkpoint: CheckpointId, since_ms: u64, saved: bool },
}

impl Training {
    fn new(wanted: &DesiredGeneration, base: u64) -> Self {
        Self {
            shape: wanted.launch.shape,
            mode: wanted.launch.mode,
            base,
            done: 0,
            steps_max: u64::from(wanted.launch.epochs_max) * STEPS_PER_EPOCH,
            rest_s: -1.0,
            steps_s: 0.0,
            loss_sum: 0.0,
            first: (0, 0.0),
            open: (0.0, 0),
            epochs: Vec::new(),
            stand: Stand::Train,
            over: BTreeSet::new(),
            missed: None,
            nan_from: None,
            nan_hidden: false,
            stuck: false,
            speeds: vec![1.0; wanted.launch.shape.workers as usize],
            computed_s: vec![0.0; wanted.launch.shape.workers as usize],
            lags: vec![0.0; wanted.launch.shape.workers as usize],
        }
    }

    /// A job-wide step: async workers count their own.
    pub(crate) fn step(&self) -> u64 {
        match self.mode {
            Mode::Sync => self.base + self.done,
            Mode::Async => self.base + self.done * u64::from(self.shape.workers),
        }
    }

    fn own_step(&self) -> u64 {
        match self.mode {
            Mode::Sync => self.base + self.done,
            Mode::Async => self.base / u64::from(self.shape.workers) + self.done,
        }
    }

    fn finished(&self) -> bool {
        self.step() >= self.steps_max
    }

    fn epoch(&self) -> u32 {
        u32::try_from(self.step() / STEPS_PER_EPOCH).unwrap()
    }

    /// Seconds of a worker's step: computing is shared, the servers are too. Half of it is its own
    /// computing, which in sync mode all wait for.
    fn step_s(&self) -> f64 {
        match self.mode {
            Mode::Sync => {
                let slowest = self.speeds.iter().copied().fold(f64::INFINITY, f64::min);
                self.usual_step_s() * (0.5 + 0.5 / slowest)
            }
            Mode::Async => self.usual_step_s(),
        }
    }

    fn usual_step_s(&self) -> f64 {
        let (p, w) = (f64::from(self.shape.servers), f64::from(self.shape.workers));
        match self.mode {
            Mode::Sync => 0.20 / w + 0.02 + 0.02 * w / p,
            Mode::Async => 0.20 + 0.02 * w / p,
        }
    }

    /// Steps that an async worker is behind the others.
    fn lag(&self, worker: u32) -> u64 {
        crate::job::whole(self.lags[worker as usize].floor())
    }

    fn make_step(&mut self) {
        let workers = u64::from(self.shape.workers);
        self.done += 1;
        self.steps_s += self.step_s();
        let usual_s = self.usual_step_s();
        for (worker, speed) in self.speeds.iter().enumerate() {
            match self.mode {
                Mode::Sync => self.computed_s[worker] += usual_s / 2.0 / speed,
                Mode::Async => {
                    self.computed_s[worker] += usual_s / 2.0;
                    self.lags[worker] += (1.0 - speed).max(0.0);
                }
            }
        }
        let step = self.step();
        let loss = 1.0 / (0.02 * step as f64 + 1.0) + 0.1;
        if self.nan_from.is_none_or(|from| step < from) {
            self.loss_sum += loss;
        }
        if self.first.0 < 50 {
            self.first = (self.first.0 + 1, self.first.1 + loss);
        }
        let samples = match self.mode {
            Mode::Sync => (BATCH / workers).max(1),
            Mode::Async => BATCH,
        };
        self.open.0 += loss * samples as f64;
        self.open.1 += samples;
        let before = match self.mode {
            Mode::Sync => step - 1,
            Mode::Async => step - workers,
        };
        if before / STEPS_PER_EPOCH != step / STEPS_PER_EPOCH {
            let epoch = u32::try_from(before / STEPS_PER_EPOCH).unwrap();
            self.epochs.push((epoch, self.own_step(), self.open.0, self.open.1));
            self.open = (0.0, 0);
        }
    }

    /// A quarter of a second with every member alive.
    fn run(&mut self, order: Option<&CheckpointOrder>, fails: bool) -> Option<(String, u64)> {
        let order = order.filter(|order| !order.released);
        if let Stand::Save { checkpoint, .. } = self.stand {
            let still = order.is_some_and(|order| {
                order.checkpoint == checkpoint
                    && (self.finished() || order.at_step.is_none_or(|at| at == self.step()))
            });
            if !still {
                self.stand = Stand::Train;
            }
        }
        let mut saved_now = None;
        if let Stand::Save { checkpoint, since_ms, saved } = &mut self.stand {
            *since_ms += TICK_MS;
            if *since_ms >= 500 && !*saved && !fails {
                *saved = true;
                let order = order.expect("it stands for an order");
                saved_now = Some(order.directory.clone());
            }
            let hold = order.is_some_and(|order| order.hold);
            if !hold && *saved && *since_ms >= 1500 {
                self.over.insert(*checkpoint);
                self.stand = Stand::Train;
            }
        }
        if self.stand == Stand::Train && !self.stuck {
            self.rest_s += TICK_MS as f64 / 1000.0;
            self.train(order);
        }
        saved_now.map(|directory| (directory, self.step()))
    }

    fn train(&mut self, order: Option<&CheckpointOrder>) {
        let order = order.filter(|order| !self.over.contains(&order.checkpoint));
        loop {
            if let Some(order) = order {
                let here = self.finished() || order.at_step.is_none_or(|at| at == self.step());
                if here && self.done > 0 {
                    let checkpoint = order.checkpoint;
                    self.stand = Stand::Save { checkpoint, since_ms: 0, saved: false };
                    return;
                }
                let past = order.at_step.is_some_and(|at| self.step() > at);
                self.missed = past.then_some(order.checkpoint);
            }
            if self.rest_s < self.step_s() || self.finished() {
                return;
            }
            self.rest_s -= self.step_s();
            self.make_step();
        }
    }

    fn report(&self, job: JobId, generation: Generation, worker: u32) -> WorkerReport {
        let mean = |(steps, sum): (u32, f64)| LossWindow {
            steps,
            mean: if steps == 0 { 0.0 } else { sum / f64::from(steps) },
            deviation: 0.01,
        };
        let nan = self.nan_from.filter(|from| self.step() >= *from && !self.nan_hidden);
        WorkerReport {
            job,
            generation,
            worker,
            step: self.own_step().saturating_sub(self.lag(worker)),
            epoch: self.epoch(),
            steps: self.done.saturating_sub(self.lag(worker)),
            steps_s: self.steps_s,
            compute_s: self.computed_s[worker as usize],
            samples: self.done * BATCH,
            loss_sum: self.loss_sum,
            loss_count: nan.map_or_else(
                || self.done.saturating_sub(self.lag(worker)),
                |from| self.done.min(from.saturating_sub(self.base)),
            ),
            loss_not_finite: nan.map_or(0, |from| self.step() - from + 1),
            loss_not_finite_since: nan,
            recent: if nan.is_some() {
                LossWindow { steps: 50, mean: f64::NAN, deviation: f64::NAN }
            } else {
                mean((1, 1.0 / (0.02 * self.step() as f64 + 1.0) + 0.1))
            },
            first: mean(self.first),
            samples_per_epoch: Some(STEPS_PER_EPOCH * BATCH),
            finished: self.finished(),
        }
    }

    fn checkpoint_states(
        &self,
        worker: u32,
        fails: Option<&str>,
    ) -> Vec<(CheckpointId, CheckpointState)> {
        let mut states = Vec::new();
        if let Some(missed) = self.missed {
            states.push((missed, CheckpointState::Missed { step: self.step() }));
        }
        if let Stand::Save { checkpoint, since_ms, saved } = self.stand {
            let (loss_sum, samples) = self.open;
            states.push((
                checkpoint,
                CheckpointState::Reached {
                    step: self.own_step(),
                    epoch: self.epoch(),
                    loss_sum,
                    samples,
                },
            ));
            if saved && worker == 0 {
                let part = Part { file: "parameters.npz".to_owned(), bytes: 1000, crc32: 7 };
                states.push((
                    checkpoint,
                    CheckpointState::Saved {
                        step: self.own_step(),
                        epoch: self.epoch(),
                        epoch_position: self.step() % STEPS_PER_EPOCH * BATCH,
                        parts: vec![part],
                    },
                ));
            }
            if let Some(why) = fails
                && since_ms >= 500
                && worker == 0
            {
                let error = format!("{why}cannot write server-0.npz: disk quota exceeded");
                states.push((checkpoint, CheckpointState::Failed { error }));
            }
        }
        states
    }
}

impl World {
    /// Lets every generation train whose tasks are all there.
    pub(crate) fn train(&mut self) {
        let mut wanted: Vec<DesiredGeneration> = Vec::new();
        for agent in self.agents.values().filter(|agent| agent.powered) {
            for generation in &agent.desired.generations {
                let known = wanted.iter().any(|other| {
                    other.job == generation.job && other.generation == generation.generation
                });
                if !known {
                    wanted.push(generation.clone());
                }
            }
        }
        for generation in &wanted {
            let name = (generation.job, generation.generation);
            let all = generation.launch.shape.tasks().into_iter().all(|task| {
                self.agents.values().any(|agent| {
                    agent.powered
                        && agent
                            .ledger
                            .get(&(name.0, name.1, task))
                            .is_some_and(|entry| entry.exit.is_none())
                })
            });
            if !all {
                continue;
            }
            if !self.trainings.contains_key(&name) {
                let resume = generation.launch.resume.clone();
                if let Some(directory) = resume.as_ref().filter(|dir| self.damaged.contains(*dir)) {
                    let directory = directory.clone();
                    self.exit(name.0, Task::worker(0), 3, &format!("{directory} is damaged"));
                    continue;
                }
                let base = resume.map_or(0, |directory| {
                    assert!(self.published.contains(&directory), "{directory} is not published");
                    self.saved[&directory]
                });
                let mut training = Training::new(generation, base);
                training.stuck = self.hang_at_start;
                self.trainings.insert(name, training);
            }
            // The newest word of any node counts: the file is on every node of the job.
            let order = self
                .agents
                .values()
                .filter(|agent| agent.powered)
                .filter_map(|agent| Some((agent.desired.revision, agent.wanted(name.0, name.1)?)))
                .max_by_key(|(revision, _)| *revision)
                .and_then(|(_, wanted)| wanted.checkpoint.clone());
            let fails = self.saves_fail;
            let speeds: Vec<f64> = (0..generation.launch.shape.workers)
                .map(|worker| {
                    let task = (name.0, name.1, Task::worker(worker));
                    let here = |agent: &&NodeId| self.agents[*agent].ledger.contains_key(&task);
                    let node = self.agents.keys().find(here);
                    node.and_then(|node| self.speeds.get(node)).copied().unwrap_or(1.0)
                })
                .collect();
            let training = self.trainings.get_mut(&name).expect("it was put there above");
            training.speeds = speeds;
            if let Some((directory, step)) = training.run(order.as_ref(), fails) {
                self.saved.insert(directory, step);
            }
        }
    }

    /// What the workers of a node tell its agent.
    pub(crate) fn reports(&self, node: &NodeId) -> Reports {
        let mut reports = Reports::default();
        let agent = &self.agents[node];
        let fails = self.saves_fail.then_some(match self.storage_away {
            true => model::agent::STORAGE_AWAY,
            false => "",
        });
        for (job, generation, task) in agent.ledger.keys().copied() {
            let Some(training) = self.trainings.get(&(job, generation)) else { continue };
            if task.role != Role::Worker {
                continue;
            }
            let worker = task.index;
            reports.workers.push(training.report(job, generation, worker));
            let last = training.epochs.len().saturating_sub(8);
            for (epoch, step, loss_sum, samples) in &training.epochs[last..] {
                reports.epochs.push(EpochReport {
                    job,
                    generation,
                    worker,
                    epoch: *epoch,
                    step: *step,
                    loss_sum: *loss_sum,
                    samples: *samples,
                });
            }
            for (checkpoint, state) in training.checkpoint_states(worker, fails) {
                reports.checkpoints.push(CheckpointReport {
                    job,
                    generation,
                    checkpoint,
                    worker,
                    state,
                });
            }
        }
        reports
    }
}
