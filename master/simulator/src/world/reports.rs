//! What a node's training processes tell their agent: steps, losses as they are seen, checkpoints.

use model::agent::{
    CheckpointReport, CheckpointState, EpochReport, LossWindow, Part, WorkerReport,
};
use model::{Generation, JobId, Mode, Role, Task};

use super::agent::Name;
use super::chance::normal;
use super::training::{SaveState, Training};
use super::truth::{Truth, count, float, samples_per_epoch};
use crate::workload::Job;

/// Steps that a window of recent losses covers at most.
const WINDOW: u64 = 50;
/// Epochs that are told again with each heartbeat.
const EPOCHS_TOLD: usize = 16;
/// Epochs of one generation that are remembered.
const EPOCHS_KEPT: usize = 32;

/// Everything of one heartbeat.
#[derive(Debug, Default)]
pub(super) struct Reports {
    pub(super) workers: Vec<WorkerReport>,
    pub(super) epochs: Vec<EpochReport>,
    pub(super) checkpoints: Vec<CheckpointReport>,
}

/// The mean of Eqn. (1) over a stretch of epochs.
fn mean_loss(beta: [f64; 3], from: f64, to: f64) -> f64 {
    let [b0, b1, b2] = beta;
    if to - from <= 1e-9 {
        return 1.0 / (b0 * from + b1) + b2;
    }
    libm::log((b0 * to + b1) / (b0 * from + b1)) / b0 / (to - from) + b2
}

/// Takes what was trained since the last look into the sums that workers report.
pub(super) fn observe(training: &mut Training, truth: &Truth, speed_noise: f64) {
    let steps_s = training.steps_s();
    let grown = steps_s - training.sums.told_s;
    if grown > 0.0 {
        let noise = if speed_noise > 0.0 {
            (1.0 + speed_noise * normal(&mut training.sums.stream)).max(0.05)
        } else {
            1.0
        };
        training.sums.seen_s += grown * noise;
        training.compute(grown * noise);
        training.sums.told_s = steps_s;
    }
    if let Some(epoch) = truth.epoch {
        while observe_part(training, truth, epoch) {}
    }
}

/// Up to the next end of an epoch; true where there may be more.
fn observe_part(training: &mut Training, truth: &Truth, epoch: f64) -> bool {
    let work = training.work;
    let from = training.sums.told_work;
    if work <= from {
        return false;
    }
    // Which epoch is open is known from the work told: an end that was met exactly begins the
    // next one.
    let open = (from / epoch + 1e-9).floor();
    let end = (open + 1.0) * epoch;
    let to = work.min(end);
    let is_end = work + epoch * 1e-9 >= end;
    let steps = (to - from) / training.step_work;
    let loss = truth.loss.map_or(1.0 / (1.0 + from / epoch), |loss| {
        let mean = mean_loss(loss.beta, from / epoch, to / epoch);
        let deviation = loss.noise / steps.max(1.0).sqrt();
        (mean * (1.0 + deviation * normal(&mut training.sums.stream))).max(mean * 0.01)
    });
    let told = training.part(training.steps(), 0);
    let sums = &mut training.sums;
    let fresh = told.saturating_sub(sums.loss_count);
    sums.loss_sum += float(fresh) * loss;
    sums.loss_count += fresh;
    let window = u32::try_from(fresh.clamp(1, WINDOW)).unwrap_or(1);
    sums.recent = Some((window, loss));
    sums.first = sums.first.or(Some((window, loss)));
    let part = to - from;
    let whole = sums.open.1 + part;
    sums.open.0 = (sums.open.0 * sums.open.1 + loss * part) / whole;
    sums.open.1 = whole;
    sums.told_work = if is_end { end.max(to) } else { to };
    if is_end {
        let (mean, part) = std::mem::take(&mut sums.open);
        let number = u32::try_from(count(open)).unwrap_or(u32::MAX);
        let done = (end - training.base_work) / training.step_work;
        let step = training.base_step.saturating_add(count(done.round()));
        let epochs = &mut training.sums.epochs;
        epochs.push((number, step, mean, part));
        if epochs.len() > EPOCHS_KEPT {
            epochs.remove(0);
        }
    }
    is_end
}

/// What stands for a worker's samples in a stretch of work, at least 1.
fn samples(job: &Job, training: &Training, work: f64) -> u64 {
    let all = match (job.mode, job.batch) {
        (Mode::Sync, model::Batch::PerWorker(_)) => work,
        (_, model::Batch::Global(batch) | model::Batch::PerWorker(batch)) => {
            work * f64::from(batch)
        }
    };
    count((all / f64::from(training.shape.workers.max(1))).round()).max(1)
}

/// A worker's own step: in sync mode the job's.
fn own_step(training: &Training, step: u64, worker: u32) -> u64 {
    match training.mode {
        Mode::Sync => step,
        Mode::Async => training.part(step, worker),
    }
}

fn window(told: Option<(u32, f64)>) -> LossWindow {
    told.map_or_else(LossWindow::default, |(steps, mean)| LossWindow {
        steps,
        mean,
        deviation: 0.01 * mean.abs(),
    })
}

fn worker_report(job: &Job, truth: &Truth, training: &Training, task: Task) -> WorkerReport {
    let worker = task.index;
    let steps = match training.mode {
        Mode::Sync => training.steps(),
        Mode::Async => training.part(training.steps(), worker),
    };
    let sums = &training.sums;
    // Each async worker's step takes the time of all: it makes a share of the steps.
    let (loss_sum, loss_count) = if sums.loss_count <= steps {
        (sums.loss_sum, sums.loss_count)
    } else {
        let each = sums.loss_sum / float(sums.loss_count);
        (each * float(steps), steps)
    };
    let epoch = truth.epoch.map_or(0.0, |epoch| {
        let begun = (training.work / epoch + 1e-9).floor();
        if training.finished { begun - 1.0 } else { begun }
    });
    WorkerReport {
        job: JobId(0),
        generation: Generation(0),
        worker,
        step: own_step(training, training.step(), worker),
        epoch: u32::try_from(count(epoch)).unwrap_or(u32::MAX),
        steps,
        steps_s: sums.seen_s,
        compute_s: usize::try_from(worker)
            .ok()
            .and_then(|at| sums.computed_s.get(at).copied())
            .unwrap_or(0.0),
        samples: 0,
        loss_sum,
        loss_count,
        loss_not_finite: 0,
        loss_not_finite_since: None,
        recent: window(sums.recent),
        first: window(sums.first),
        samples_per_epoch: samples_per_epoch(job, truth),
        finished: training.finished,
    }
}

/// Adds what the workers on a node tell of a generation.
pub(super) fn tell(
    reports: &mut Reports,
    name: Name,
    tasks: impl Iterator<Item = Task>,
    (job, truth): (&Job, &Truth),
    training: &Training,
) {
    let (id, generation) = name;
    if !training.ready {
        return;
    }
    for task in tasks.filter(|task| task.role == Role::Worker) {
        let worker = task.index;
        let mut report = worker_report(job, truth, training, task);
        (report.job, report.generation) = name;
        reports.workers.push(report);
        let from = training.sums.epochs.len().saturating_sub(EPOCHS_TOLD);
        for (epoch, step, mean, part) in &training.sums.epochs[from..] {
            let samples = samples(job, training, *part);
            reports.epochs.push(EpochReport {
                job: id,
                generation,
                worker,
                epoch: *epoch,
                step: own_step(training, *step, worker),
                loss_sum: mean * float(samples),
                samples,
            });
        }
        for state in states(job, truth, training, worker) {
            let Some(save) = training.save else { continue };
            let checkpoint = save.checkpoint;
            let report = CheckpointReport { job: id, generation, checkpoint, worker, state };
            reports.checkpoints.push(report);
        }
    }
}

/// How far a checkpoint has come for one worker.
fn states(job: &Job, truth: &Truth, training: &Training, worker: u32) -> Vec<CheckpointState> {
    let Some(save) = training.save else { return Vec::new() };
    let epoch_work = truth.epoch.unwrap_or(f64::INFINITY);
    let stood = match save.state {
        SaveState::Saved { step, .. } => step,
        SaveState::Writes { .. } | SaveState::Failed => training.step(),
        SaveState::Missed { step } => {
            return vec![CheckpointState::Missed { step: own_step(training, step, worker) }];
        }
    };
    let step = own_step(training, stood, worker);
    let work = training.base_work + (float(stood) - float(training.base_step)) * training.step_work;
    let epoch = (work / epoch_work + 1e-9).floor();
    let (mean, part) = training.sums.open;
    let open = if part > 0.0 { samples(job, training, part) } else { 0 };
    let number = u32::try_from(count(epoch)).unwrap_or(u32::MAX);
    let reached = CheckpointState::Reached {
        step,
        epoch: number,
        loss_sum: mean * float(open),
        samples: open,
    };
    let mut states = vec![reached];
    match save.state {
        SaveState::Saved { .. } if worker == 0 => states.push(CheckpointState::Saved {
            step,
            epoch: number,
            epoch_position: 0,
            parts: vec![Part { file: "parameters".to_owned(), bytes: 1, crc32: 1 }],
        }),
        SaveState::Failed if worker == 0 => states.push(CheckpointState::Failed {
            error: "cannot write: no space left on device".to_owned(),
        }),
        SaveState::Saved { .. }
        | SaveState::Failed
        | SaveState::Writes { .. }
        | SaveState::Missed { .. } => {}
    }
    states
}
