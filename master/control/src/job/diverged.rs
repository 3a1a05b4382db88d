//! A loss that is no number any more: everything after it is work for nothing.

use model::diverged::OnNan;
use model::{Generation, JobId};
use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::job::phase::{Next, Phase};
use crate::job::restart::Blame;
use crate::record::CheckpointRecord;
use crate::step::Control;

/// Steps without a finite loss after which it is no slip of a few batches.
const STEPS: u64 = 10;
/// Times that a job goes back: training that is the same again diverges again.
const ROLL_BACKS: usize = 2;

/// What a job asks for, and where it diverged so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diverging {
    pub on_nan: OnNan,
    /// Each time that it went back: the newest generation until then, and the first step without a
    /// finite loss. What such generations saved from that step on is never resumed from.
    pub back: Vec<(Generation, u64)>,
}

impl Diverging {
    /// Whether a checkpoint was written before any divergence that is known.
    pub(crate) fn admits(&self, checkpoint: &CheckpointRecord) -> bool {
        !self.back.iter().any(|(generation, since)| {
            checkpoint.generation <= *generation && *since <= checkpoint.step
        })
    }
}

/// The first step without a finite loss, where that goes on.
fn diverged(job: &Job) -> Option<u64> {
    let reports = job.live.as_ref()?.workers.values().map(|worker| &worker.report);
    let first = reports.filter_map(|report| {
        let since = report.loss_not_finite_since?;
        let steps = report.step.saturating_sub(since).saturating_add(1);
        let lost = report.loss_not_finite;
        (STEPS <= lost && steps <= lost.saturating_mul(2)).then_some(since)
    });
    // An earlier generation may have seen it before this one.
    let first = first.min()?;
    Some(job.progress().loss_not_finite_since.map_or(first, |known| known.min(first)))
}

impl Control {
    /// Does what a job asks for once its loss stays not finite.
    pub(crate) fn watch_loss(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if !matches!(job.phase(), Phase::Running { .. } | Phase::Checkpointing { .. }) {
            return;
        }
        let (Some(since), Some(life)) = (diverged(job), job.life()) else { return };
        let cause = format!("the loss is not finite since step {since}");
        let generation = life.generation;
        let grace_ms = self.settings.stop_grace_ms;
        let gives_up = |control: &mut Self, why: &str| {
            let cause = format!("{cause}: {why}");
            control.tell(Some(id), None, "loss", cause.clone());
            control.stop(id, Next::Fail { cause }, grace_ms);
        };
        match job.diverging.on_nan {
            OnNan::Alert => {}
            OnNan::Stop => gives_up(self, "on_nan = \"stop\""),
            OnNan::RollBack if ROLL_BACKS <= job.diverging.back.len() => {
                gives_up(self, &format!("it went back {ROLL_BACKS} times"));
            }
            OnNan::RollBack => {
                let job = self.job_mut(id);
                job.diverging.back.push((generation, since));
                let good = job.newest_checkpoint().map(|good| (good.id, good.step));
                self.out.diverging.insert(id);
                match good {
                    None => gives_up(self, "no checkpoint from before that is left"),
                    Some((good, step)) => {
                        let cause = format!("{cause}: back to {good} at step {step}");
                        self.fault(id, cause, Blame::Node);
                    }
                }
            }
        }
    }
}
