//! Ends of tasks that their GPU caused: whichever comes first, the exit or what the GPU tells, the
//! job is not to blame, and its history says why.

use model::NodeId;
use model::agent::TaskReport;
use model::nodes::GpuHealth;

use super::{HOLDER_MS, Turn};
use crate::job::restart::Blame;
use crate::record::GpuCause;
use crate::step::Control;

/// Jobs remembered with what happened to their GPUs.
const EXCUSED_MAX: usize = 1024;

impl Control {
    /// A GPU is out: whoever has it, or had it just before, did not end by its own fault.
    pub(super) fn excuse_holder(&mut self, id: &NodeId, uuid: &str, turn: &Turn) {
        let out = matches!(turn.health, GpuHealth::Suspect | GpuHealth::Bad);
        let told = match turn.cause {
            Some(GpuCause::Lost | GpuCause::Xid(_) | GpuCause::Reset(_) | GpuCause::Ecc(_)) => true,
            Some(GpuCause::Often | GpuCause::Silent | GpuCause::Operator) | None => false,
        };
        let Some(holder) = self.holder_of(id, uuid).filter(|_| out && told) else { return };
        let what = if turn.cause == Some(GpuCause::Lost) { "lost" } else { "bad" };
        let words = format!("gpu {what} {uuid} on {id}: {}", turn.reason);
        let now = self.now;
        let excused = &mut self.gpus.excused;
        excused.retain(|_, (_, at, _)| now.mono.since(*at) <= HOLDER_MS);
        if excused.len() < EXCUSED_MAX {
            excused.insert(holder.job, (holder.generation, now.mono, words.clone()));
        }
        let Some(job) = self.jobs.get_mut(&holder.job) else { return };
        // Its end may have been told before.
        let fresh = |fault: &&mut model::view::FaultView| {
            fault.generation == holder.generation
                && now.unix.0.saturating_sub(fault.at.0) <= HOLDER_MS
                && !fault.cause.contains("gpu ")
        };
        let record = &mut job.record;
        if let Some(fault) = record.faults.last_mut().filter(fresh) {
            fault.cause = format!("{words}; {}", fault.cause);
            record.failures_in_row = record.failures_in_row.saturating_sub(1);
            self.touch(holder.job);
        }
    }

    /// The cause of a task's end with what its GPU has to do with it.
    pub(crate) fn with_gpu(
        &self,
        report: &TaskReport,
        words: String,
        blame: Blame,
    ) -> (String, Blame) {
        let now = self.now.mono;
        if blame != Blame::Job {
            return (words, blame);
        }
        if let Some((generation, at, excuse)) = self.gpus.excused.get(&report.job)
            && *generation == report.generation
            && now.since(*at) <= HOLDER_MS
        {
            return (format!("{excuse}; {words}"), Blame::Node);
        }
        let told = self.gpus.blamed.get(&report.job);
        match told.filter(|(at, _)| now.since(*at) <= HOLDER_MS) {
            Some((_, told)) => (format!("{words}; {told}"), blame),
            None => (words, blame),
        }
    }
}
