//! Workers' reports: refused where they are not possible, and turned into steps, speed and loss.

use model::agent::{LossWindow, WorkerReport};
use model::{Batch, JobId, Mode, NodeId, Task};

use crate::job::live::{Sampled, Sums, Worker};
use crate::job::phase::{Goal, Life, Origin, Phase};
use crate::job::{Job, float, whole};
use crate::record::Progress;
use crate::step::Control;
use crate::timers::{JobTimer, Timer};

/// Measurements of one job are looked at once in this time, however many nodes report.
const LOOK_MS: u64 = 1_000;
/// More steps than any training: keeps sums of 4,096 workers far from 2^64.
const STEPS_MAX: u64 = 1 << 40;
/// Losses past this are noise of a diverged model; their squares still fit an f64.
const LOSS_MAX: f64 = 1e100;
/// Loss points kept; when full, neighbours are merged.
const POINTS_MAX: usize = 256;

/// Work of one step at a number of workers, in the unit of [`Progress::work`].
pub(crate) fn work_per_step(job: &Job, workers: u32) -> f64 {
    match (job.spec().mode, job.spec().batch) {
        (Mode::Sync, Batch::PerWorker(batch)) => f64::from(batch) * f64::from(workers),
        (Mode::Sync, Batch::Global(_)) | (Mode::Async, _) => 1.0,
    }
}

/// Work done once a generation stands at a step.
pub(crate) fn work_at(job: &Job, life: &Life, step: u64) -> f64 {
    let steps = step.saturating_sub(life.base_step);
    life.base_work + float(steps) * work_per_step(job, life.shape().workers)
}

/// What is wrong with a report in itself.
fn impossible(report: &WorkerReport, epochs_max: u32) -> Option<&'static str> {
    let seconds = |x: f64| x.is_finite() && (0.0..1e12).contains(&x);
    if !seconds(report.steps_s) || !seconds(report.compute_s) {
        return Some("worker report with impossible times");
    }
    if report.step > STEPS_MAX || report.steps > STEPS_MAX || report.loss_count > report.steps {
        return Some("worker report with impossible counts");
    }
    if report.epoch > epochs_max {
        return Some("worker report past epochs_max");
    }
    if !report.loss_sum.is_finite() {
        return Some("worker report with a loss that is not finite");
    }
    None
}

fn usable(window: LossWindow) -> LossWindow {
    let fits = window.mean.abs() <= LOSS_MAX && (0.0..=LOSS_MAX).contains(&window.deviation);
    if fits { window } else { LossWindow::default() }
}

impl Control {
    pub(crate) fn on_worker_report(&mut self, node: &NodeId, mut report: WorkerReport) {
        let Some(job) = self.jobs.get_mut(&report.job) else {
            self.count("worker report of an unknown job");
            return;
        };
        let id = report.job;
        let epochs_max = job.spec().epochs_max;
        let known = job.life().is_some_and(|life| {
            life.generation == report.generation
                && life.placement.node_of(Task::worker(report.worker)) == Some(node)
        });
        if !known {
            self.count("worker report of another generation");
            return;
        }
        if let Some(kind) = impossible(&report, epochs_max) {
            self.count(kind);
            return;
        }
        report.recent = usable(report.recent);
        report.first = usable(report.first);
        report.samples_per_epoch =
            report.samples_per_epoch.filter(|samples| (1..=STEPS_MAX).contains(samples));
        let now = self.now.mono;
        let runs = matches!(job.phase(), Phase::Running { .. });
        let Some(live) = job.live.as_mut() else { return };
        if runs && live.based {
            live.watch.report(now, report.worker, Sums::of(&report));
        } else {
            live.watch.pause();
        }
        let mut went_back = false;
        let grew = match live.workers.get_mut(&report.worker) {
            Some(worker) => {
                let grew = report.steps > worker.report.steps;
                went_back = report.steps < worker.report.steps;
                let finished = report.finished && !worker.report.finished;
                worker.report = report;
                if went_back {
                    // An agent that restarted counts anew.
                    worker.rebase();
                }
                grew || finished
            }
            None => {
                let grew = report.steps > 0 || report.finished;
                live.workers.insert(report.worker, Worker::new(report));
                grew
            }
        };
        if grew {
            live.progress_at = now;
            live.last_step_at = Some(now);
            self.timers.set_earliest(Timer::Job(id, JobTimer::Look), now.plus(LOOK_MS));
            self.on_steps(id);
        }
        if went_back {
            self.count("worker sums that went back");
        }
    }

    /// Some worker made a step.
    fn on_steps(&mut self, id: JobId) {
        let job = self.job_mut(id);
        let workers = job.shape().workers;
        let Some(live) = job.live.as_mut() else { return };
        if !live.based && live.all_stepped(workers) {
            live.based = true;
            for worker in live.workers.values_mut() {
                worker.rebase();
            }
            self.on_all_up(id);
            self.ask_for_unmet_shape(id);
            self.out.settle.insert(id);
        }
        let job = self.job(id);
        if job.live.as_ref().is_some_and(crate::job::live::Live::finished) {
            self.out.settle.insert(id);
        }
    }

    /// Every worker has made a step: a starting generation runs.
    fn on_all_up(&mut self, id: JobId) {
        let Phase::Starting { life } = self.job(id).phase() else { return };
        let (generation, origin, shape) = (life.generation, life.origin, life.shape());
        let now = self.now.mono;
        self.transit(id, crate::job::phase::JobEvent::AllUp { generation });
        let job = self.job_mut(id);
        job.changed = now;
        job.record.port_retries = 0;
        job.record.note = None;
        if job.record.once == Some(shape) {
            job.record.once = None;
        }
        let gap_since = job.gap_since.take();
        let gap_s = gap_since.map(|since| now.seconds_since(since));
        if let (Origin::Rescale, Some(since)) = (origin, gap_since) {
            job.pauses.end(generation, shape, since, now);
        }
        match origin {
            Origin::Queue => {}
            Origin::Rescale => {
                job.record.rescales = job.record.rescales.saturating_add(1);
                job.record.paused_s += gap_s.unwrap_or(0.0);
                if let Some(decision) = job.record.decisions.last_mut() {
                    decision.cost_s = gap_s;
                }
            }
            Origin::Fault => {
                job.record.paused_s += gap_s.unwrap_or(0.0);
                if let Some(fault) = job.record.faults.last_mut() {
                    fault.lost_s = gap_s;
                }
            }
        }
        self.touch(id);
        let text = format!("{generation} runs with {shape}");
        self.tell(Some(id), None, "running", text);
    }

    /// Rounds pass over a job that starts, saves, or was not heard of since the master began: what
    /// an operator asked for meanwhile must not wait for the next interval.
    pub(crate) fn ask_for_unmet_shape(&mut self, id: JobId) {
        let job = self.job(id);
        let runs = matches!(job.phase(), Phase::Running { .. });
        if runs && job.wanted_shape().is_some_and(|wanted| wanted != job.shape()) {
            self.ask_round("an operator's shape waits");
        }
    }

    /// Turns what workers reported since the last look into progress, speed and loss.
    pub(crate) fn look(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let (Some(live), Some(life)) = (job.live.as_ref(), job.record.phase.life()) else { return };
        if live.workers.is_empty() {
            return;
        }
        let step = live.step(job.record.spec.mode).max(life.base_step);
        let work = work_at(job, life, step);
        let epoch = live.workers.values().map(|worker| worker.report.epoch).max().unwrap_or(0);
        let loss = live.loss(|report| report.recent).map(|(mean, _)| mean);
        let samples = live.workers.values().find_map(|worker| worker.report.samples_per_epoch);
        let not_finite =
            live.workers.values().filter_map(|worker| worker.report.loss_not_finite_since).min();
        let progress = &mut job.record.progress;
        progress.step = step;
        progress.work = work;
        progress.epoch = progress.epoch.max(epoch);
        progress.loss = loss.or(progress.loss);
        progress.samples_per_epoch = samples.or(progress.samples_per_epoch);
        let told = progress.loss_not_finite_since.is_some();
        if !told && not_finite.is_some() {
            progress.loss_not_finite_since = not_finite;
            self.touch(id);
            let since = not_finite.unwrap_or(0);
            self.tell(Some(id), None, "loss", format!("the loss is not finite since step {since}"));
        }
        self.take_loss_point(id);
        self.refit_loss(id);
        self.take_speed(id);
        self.note_measured(id);
        self.watch_workers(id);
    }

    /// The mean loss over the steps since the last point, at the middle of that stretch.
    fn take_loss_point(&mut self, id: JobId) {
        let job = self.job_mut(id);
        let work = job.progress().work;
        let Some(live) = job.live.as_mut() else { return };
        if !live.based {
            return;
        }
        let (mut sum, mut count) = (0.0, 0_u64);
        for worker in live.workers.values() {
            let from = &worker.pointed;
            let Some(steps) = worker.report.loss_count.checked_sub(from.loss_count) else { return };
            if steps == 0 {
                return;
            }
            sum += worker.report.loss_sum - from.loss_sum;
            count = count.saturating_add(steps);
        }
        for worker in live.workers.values_mut() {
            worker.pointed = Sums::of(&worker.report);
        }
        let mean = sum / float(count.max(1));
        if mean.is_finite() && mean.abs() <= LOSS_MAX {
            add_point(&mut job.record.progress, work, mean);
        }
    }

    /// A new sample of the speed function once enough was measured.
    fn take_speed(&mut self, id: JobId) {
        let profile_s = model::time::seconds(self.settings.profile_ms);
        let now = self.now.mono;
        let spoiled = self.is_spoiled(self.job(id));
        let job = self.job_mut(id);
        let (mode, shape) = (job.spec().mode, job.shape());
        let is_training = matches!(
            job.phase(),
            Phase::Running { .. } | Phase::Checkpointing { goal: Goal::Continue, .. }
        );
        let Some(live) = job.live.as_mut() else { return };
        live.measured = live.speed(mode, shape.workers, |worker| worker.base).or(live.measured);
        let Some((speed, seconds)) = live.speed(mode, shape.workers, |worker| worker.banked) else {
            return;
        };
        let steps_min = live
            .workers
            .values()
            .map(|worker| worker.report.steps.saturating_sub(worker.banked.steps))
            .min()
            .unwrap_or(0);
        // One step may hold a hiccup; and the last stretch before a stop is not typical.
        if seconds < profile_s || steps_min < 2 || !is_training {
            return;
        }
        for worker in live.workers.values_mut() {
            worker.banked = Sums::of(&worker.report);
        }
        live.recent_steps_per_s = Some(speed);
        if spoiled {
            return;
        }
        let steps_per_s = speed;
        live.sampled = Some(Sampled { at: now, shape, steps_per_s, seconds });
        self.add_speed(id, shape, speed, seconds);
    }

    /// Fills what was measured since into the job's last decision and the round that made it.
    fn note_measured(&mut self, id: JobId) {
        let profile_s = model::time::seconds(self.settings.profile_ms);
        let job = self.job_mut(id);
        let shape = job.shape();
        let Some(live) = job.live.as_ref() else { return };
        let loss_after = live.loss(|report| report.first).map(|(mean, _)| mean);
        let measured = live.measured.filter(|(_, seconds)| *seconds >= profile_s);
        let (Some(decision), Some((speed, _))) = (job.record.decisions.last_mut(), measured) else {
            return;
        };
        if decision.to != shape {
            return;
        }
        let first = decision.measured_after.is_none();
        decision.measured_after = Some(speed);
        if decision.loss_before.is_some() {
            decision.loss_after = loss_after.or(decision.loss_after);
        }
        let round = decision.round;
        if first {
            self.touch(id);
        }
        let Some(round) = round.and_then(|round| self.rounds.get_mut(&round)) else { return };
        if let Some(entry) = round.jobs.iter_mut().find(|entry| entry.job == id) {
            entry.measured_steps_per_s = Some(speed);
            if first {
                self.out.rounds.insert(round.id);
            }
        }
    }
}

fn add_point(progress: &mut Progress, work: f64, loss: f64) {
    let points = &mut progress.points;
    if points.last().is_some_and(|(last, _)| work <= *last) {
        return;
    }
    points.push((work, loss));
    if points.len() > POINTS_MAX {
        // Halving keeps the shape of the whole curve, where dropping the oldest would lose the
        // steep part that Eqn. (1) is fitted on.
        *points = points
            .chunks(2)
            .map(|pair| {
                let count = float(u64::try_from(pair.len()).unwrap_or(1));
                let sum = pair.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
                (sum.0 / count, sum.1 / count)
            })
            .collect();
    }
}

/// Puts progress back to where a generation resumes.
pub(crate) fn rewind(progress: &mut Progress, step: u64, work: f64, epoch: u32) {
    progress.step = step;
    progress.work = work;
    progress.epoch = epoch;
    // A checkpoint at the very end of an epoch may still name that epoch.
    progress.epochs.retain(|mark| mark.epoch < epoch || mark.step <= step);
    progress.points.retain(|(at, _)| *at <= work);
    if progress.loss_not_finite_since.is_some_and(|since| since >= step) {
        progress.loss_not_finite_since = None;
    }
}

/// The step by which a checkpoint ordered now can be reached by every worker: at least
/// `STEPS_AHEAD` and `ahead_s` of training past the newest step known, doubled with each miss.
pub(crate) fn step_ahead(newest: u64, steps_per_s: f64, ahead_s: f64, misses: u32) -> u64 {
    const STEPS_AHEAD: f64 = 3.0;
    let speed = if steps_per_s.is_finite() { steps_per_s.max(0.0) } else { 0.0 };
    let margin = (speed * ahead_s).ceil().max(STEPS_AHEAD) * f64::from(1_u32 << misses.min(6));
    newest.saturating_add(whole(margin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_points_stay_bounded_and_ordered() {
        let mut progress = Progress::default();
        for step in 0..10_000_u32 {
            add_point(&mut progress, f64::from(step), 1.0 / f64::from(step + 1));
            add_point(&mut progress, f64::from(step), f64::NAN);
        }
        assert!(progress.points.len() <= POINTS_MAX);
        assert!(progress.points.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(progress.points.iter().all(|(_, loss)| loss.is_finite()));
        rewind(&mut progress, 10, 10.0, 0);
        assert!(progress.points.iter().all(|(at, _)| *at <= 10.0));
    }

    #[test]
    fn the_step_ahead_leaves_time_and_steps() {
        assert_eq!(step_ahead(100, 0.1, 5.0, 0), 103);
        assert_eq!(step_ahead(100, 50.0, 5.0, 0), 350);
        assert_eq!(step_ahead(100, 50.0, 5.0, 1), 600);
        assert_eq!(step_ahead(100, f64::NAN, 5.0, 0), 103);
    }
}
