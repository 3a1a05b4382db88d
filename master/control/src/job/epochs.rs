//! Whole-epoch losses: the sample-weighted mean over all workers' parts, with the part that was
//! done before the checkpoint resumed from.

use model::agent::EpochReport;
use model::{Finish, JobId, NodeId, Task};
use scheduler::estimate::loss::converged;

use crate::job::live::EpochPart;
use crate::job::progress::work_at;
use crate::job::{Job, float};
use crate::record::{EpochMark, Progress};
use crate::step::Control;

/// Epochs kept whole; above, every second of the older half goes, but never the largest loss,
/// which convergence is measured by. The newer half is more than the longest patience.
const EPOCHS_KEPT: usize = 2_400;
/// Unfinished epochs of one generation whose parts are held.
const EPOCHS_OPEN: usize = 32;
/// Samples of one worker's part; sums of 4,096 of them stay below 2^64.
const SAMPLES_MAX: u64 = 1 << 50;

impl Control {
    pub(crate) fn on_epoch_report(&mut self, node: &NodeId, report: EpochReport) {
        let Some(job) = self.jobs.get_mut(&report.job) else {
            self.count("epoch report of an unknown job");
            return;
        };
        let Some(life) = job.record.phase.life() else {
            self.count("epoch report of another generation");
            return;
        };
        let worker = Task::worker(report.worker);
        if life.generation != report.generation || life.placement.node_of(worker) != Some(node) {
            self.count("epoch report of another generation");
            return;
        }
        let done = job.record.progress.epochs.last().is_some_and(|last| last.epoch >= report.epoch);
        if done {
            // Sent again: the agent cannot know that it counts already.
            return;
        }
        let absurd = report.epoch > job.spec().epochs_max || report.samples > SAMPLES_MAX;
        if absurd {
            self.count("epoch report past the job's bounds");
            return;
        }
        if !report.loss_sum.is_finite() {
            self.count("epoch loss that is not finite");
            return;
        }
        let part =
            EpochPart { step: report.step, loss_sum: report.loss_sum, samples: report.samples };
        let workers = life.shape().workers;
        let Some(live) = job.live.as_mut() else { return };
        let parts = live.epochs.entry(report.epoch).or_default();
        parts.insert(report.worker, part);
        let complete = u32::try_from(parts.len()) == Ok(workers);
        if live.epochs.len() > EPOCHS_OPEN {
            live.epochs.pop_first();
        }
        if complete {
            self.on_epoch_complete(report.job, report.epoch);
        }
    }

    fn on_epoch_complete(&mut self, id: JobId, epoch: u32) {
        let job = self.job_mut(id);
        let Some(parts) = job.live.as_mut().and_then(|live| live.epochs.remove(&epoch)) else {
            return;
        };
        let Some(life) = job.record.phase.life() else { return };
        let (mut sum, mut samples) = life
            .partial
            .filter(|partial| partial.epoch == epoch)
            .map_or((0.0, 0), |partial| (partial.loss_sum, partial.samples));
        let mut step = life.base_step;
        for part in parts.values() {
            sum += part.loss_sum;
            samples += part.samples;
            step = match job.record.spec.mode {
                model::Mode::Sync => step.max(part.step),
                model::Mode::Async => step,
            };
        }
        if job.record.spec.mode == model::Mode::Async {
            step = parts.values().fold(0_u64, |sum, part| sum.saturating_add(part.step));
        }
        let loss = sum / float(samples);
        if samples == 0 || !loss.is_finite() {
            self.count("epoch without samples");
            return;
        }
        let mark = EpochMark { epoch, step, work: work_at(job, life, step), loss };
        let progress = &mut job.record.progress;
        let at = progress.epochs.partition_point(|known| known.epoch < epoch);
        progress.epochs.insert(at, mark);
        progress.epoch = progress.epoch.max(epoch);
        thin(progress);
        self.touch(id);
        self.out.settle.insert(id);
    }
}

fn thin(progress: &mut Progress) {
    let marks = &mut progress.epochs;
    if marks.len() <= EPOCHS_KEPT {
        return;
    }
    let largest = marks.iter().map(|mark| mark.loss).fold(f64::MIN, f64::max);
    let half = EPOCHS_KEPT / 2;
    let mut at = 0;
    marks.retain(|mark| {
        at += 1;
        at > half || at % 2 == 1 || mark.loss >= largest
    });
}

/// Epochs finished. They are counted from 0, and some may be missing in between: reports get lost
/// where a node is cut off for long.
pub(crate) fn epochs_done(progress: &Progress) -> u32 {
    progress.epochs.last().map_or(0, |last| last.epoch.saturating_add(1))
}

/// Why the measured epochs end the job, if they do.
pub(crate) fn ended_by_epochs(job: &Job) -> Option<String> {
    let progress = job.progress();
    let last = progress.epochs.last()?;
    match &job.spec().finish {
        Finish::Convergence { threshold, patience }
        | Finish::ConvergenceBy { threshold, patience, .. } => {
            let losses: Vec<f64> = progress.epochs.iter().map(|mark| mark.loss).collect();
            converged(&losses, *threshold, *patience).then(|| {
                format!(
                    "converged: for {patience} epochs the loss fell by less than {threshold} of \
                     its largest; loss {:.6} after epoch {}",
                    last.loss, last.epoch
                )
            })
        }
        Finish::Epochs(epochs) => (epochs_done(progress) >= *epochs)
            .then(|| format!("ran its {epochs} epochs; loss {:.6}", last.loss)),
    }
}

/// Why a job without processes is done, if it is: its newest checkpoint holds the end, so that
/// nothing is left to train.
pub(crate) fn ended_on_disk(job: &Job) -> Option<String> {
    let end = job.progress().epochs.last()?.step;
    let saved = job.newest_checkpoint()?.step;
    if saved >= end { ended_by_epochs(job) } else { None }
}

/// Why the job is done, if it is: by its measured epochs, or as the script's loop is over.
pub(crate) fn ended(job: &Job) -> Option<String> {
    ended_by_epochs(job).or_else(|| {
        let live = job.live.as_ref().filter(|live| live.finished())?;
        let reports = live.workers.values().map(|worker| &worker.report);
        let epoch = reports.map(|report| report.epoch).max().unwrap_or(0);
        let reached = |epochs: u32| epoch.saturating_add(1) >= epochs;
        Some(match &job.spec().finish {
            Finish::Convergence { .. } | Finish::ConvergenceBy { .. }
                if reached(job.spec().epochs_max) =>
            {
                "epochs_max reached without convergence".to_owned()
            }
            Finish::Epochs(epochs) if reached(*epochs) => format!("ran its {epochs} epochs"),
            Finish::Convergence { .. } | Finish::ConvergenceBy { .. } | Finish::Epochs(_) => {
                format!("the script ended its training by itself in epoch {epoch}")
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_largest_loss_and_the_newest_epochs() {
        let mut progress = Progress::default();
        for epoch in 0..20_000_u32 {
            let loss = if epoch == 7 { 9.0 } else { 1.0 };
            let mark = EpochMark { epoch, step: u64::from(epoch), work: f64::from(epoch), loss };
            progress.epochs.push(mark);
            thin(&mut progress);
        }
        assert!(progress.epochs.len() <= EPOCHS_KEPT);
        assert!(progress.epochs.iter().any(|mark| mark.loss > 8.0));
        let newest: Vec<u32> = progress.epochs.iter().rev().take(1001).map(|m| m.epoch).collect();
        assert_eq!(newest, (18_999..20_000).rev().collect::<Vec<_>>());
        assert_eq!(epochs_done(&progress), 20_000);
    }
}
