//! Learning rates that a job announces: where one steps, the loss falls along another curve, and
//! its fit starts anew.

use model::agent::RateReport;
use model::{JobId, Mode, NodeId, Task};

use crate::event::SessionId;
use crate::job::progress::work_at;
use crate::record::RateMark;
use crate::step::Control;

/// A rate steps where it changes at once by this factor or more. Step schedules divide by 2 to
/// 10; a decay of some percent each epoch bends the curve and is part of it.
const STEP_FACTOR: f64 = 1.5;
/// Rates kept of a job. The fit starts at the newest step, and needs the one before it.
const MARKS_MAX: usize = 64;
/// Beyond this a rate is an accident.
const RATE_MAX: f64 = 1e30;
/// More steps than any training.
const STEPS_MAX: u64 = 1 << 40;

/// The rates of one job, in order of the work from which each holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rates(Vec<RateMark>);

impl Rates {
    pub(crate) fn restored(marks: Vec<RateMark>) -> Self {
        Self(marks)
    }

    pub(crate) fn marks(&self) -> &[RateMark] {
        &self.0
    }

    /// Work from which another rate holds, by a step and not little by little.
    pub(crate) fn steps(&self) -> Vec<f64> {
        self.0.iter().filter(|mark| mark.stepped).map(|mark| mark.work).collect()
    }

    /// Takes the rate that holds from `work` on. True where that is news.
    fn take(&mut self, work: f64, rate: f64) -> bool {
        let mut stepped = false;
        if let Some(newest) = self.0.last() {
            // Agents repeat what they know.
            if newest.rate.to_bits() == rate.to_bits() || work < newest.work {
                return false;
            }
            stepped = rate / newest.rate >= STEP_FACTOR || newest.rate / rate >= STEP_FACTOR;
        }
        if self.0.len() >= MARKS_MAX {
            // A step must outlive the small changes after it.
            let small = self.0.iter().position(|mark| !mark.stepped).unwrap_or(0);
            self.0.remove(small);
        }
        self.0.push(RateMark { work, rate, stepped });
        true
    }

    /// Forgets what came after a checkpoint. True where something did.
    pub(crate) fn rewind(&mut self, work: f64) -> bool {
        let before = self.0.len();
        self.0.retain(|mark| mark.work <= work);
        self.0.len() < before
    }
}

impl Control {
    pub(crate) fn on_rates(&mut self, id: &NodeId, session: SessionId, reports: Vec<RateReport>) {
        if self.nodes.get(id).is_none_or(|node| node.session != Some(session)) {
            self.count("learning rates of an old connection");
            return;
        }
        for report in reports {
            self.on_rate_report(id, &report);
        }
    }

    fn on_rate_report(&mut self, node: &NodeId, report: &RateReport) {
        let Some(job) = self.jobs.get_mut(&report.job) else {
            self.count("learning rate of an unknown job");
            return;
        };
        let life = job.record.phase.life().filter(|life| {
            life.generation == report.generation
                && life.placement.node_of(Task::worker(report.worker)) == Some(node)
        });
        let Some(life) = life else {
            self.count("learning rate of another generation");
            return;
        };
        let sane = report.rate > 0.0 && report.rate <= RATE_MAX && report.step <= STEPS_MAX;
        if !sane {
            self.count("learning rate out of range");
            return;
        }
        let step = match job.record.spec.mode {
            Mode::Sync => report.step,
            // A worker counts its own: the others are about as far.
            Mode::Async => report.step.saturating_mul(u64::from(life.shape().workers)),
        };
        let work = work_at(job, life, step);
        if job.rates.take(work, report.rate) {
            // The fit is no longer that of these points.
            job.loss_fit_points = usize::MAX;
            self.out.rates.insert(report.job);
        }
    }

    /// A generation starts from a checkpoint at `work`: rates from later on come again.
    pub(crate) fn rewind_rates(&mut self, id: JobId, work: f64) {
        if self.job_mut(id).rates.rewind(work) {
            self.out.rates.insert(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_jump_is_a_step_and_it_outlives_small_changes() {
        let mut rates = Rates::default();
        assert!(rates.take(0.0, 0.1));
        assert!(!rates.take(5.0, 0.1), "said again");
        let mut rate = 0.1;
        for epoch in 1..=1000_u32 {
            rate *= if epoch == 10 { 0.1 } else { 0.95 };
            assert!(rates.take(f64::from(epoch), rate));
        }
        assert_eq!(rates.steps(), [10.0]);
        assert!(rates.marks().len() <= MARKS_MAX);
        assert!(!rates.take(3.0, 7.0), "late word of the past");
        assert!(rates.rewind(9.0));
        assert!(rates.steps().is_empty() && !rates.rewind(9.0));
        assert!(rates.take(9.5, 1.0) && rates.take(20.0, 0.5));
        assert!(rates.rewind(15.0));
        assert!(rates.take(16.0, 0.5));
        assert_eq!(rates.steps().last(), Some(&16.0), "stepped again after the rewind");
    }
}
