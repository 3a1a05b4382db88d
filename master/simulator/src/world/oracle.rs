//! What the scheduler is told of speeds and of the work that is left, where it does not find out
//! by itself.

use model::{Generation, JobId, Shape};
use scheduler::estimate::speed::SpeedModel;
use scheduler::snapshot::{Remaining, Snapshot, Want};

use super::{Estimates, World};

/// The same speed function, so many times as fast.
fn scaled(model: &SpeedModel, factor: f64) -> SpeedModel {
    let mut model = model.clone();
    for theta in &mut model.theta {
        *theta /= factor;
    }
    model
}

/// A speed function each of whose coefficients is wrong by itself.
fn scattered(model: &SpeedModel, error: f64, signs: &[f64]) -> SpeedModel {
    let mut model = model.clone();
    for (theta, sign) in model.theta.iter_mut().zip(signs) {
        *theta /= 1.0 + sign * error;
    }
    model
}

impl World {
    /// Puts the truth, or the truth with errors, in place of what control knows.
    ///
    /// With errors e the value v is seen as v·(1 ± e·left/total) (section 6.3), and the range
    /// holds every truth that could be behind it.
    pub(super) fn tell_truth(&self, snapshot: &mut Snapshot) {
        for input in &mut snapshot.jobs {
            let Some(job) = self.job_of(input.id) else { continue };
            let (truth, job) = (&self.truths[job], &self.workload.jobs[job]);
            // An owner who changes the bounds changes what he asks for.
            input.requested = job.requested.map(|Shape { servers, workers }| {
                let within = |count: u32, least: u32, most: u32| count.min(most).max(least);
                Shape::new(
                    within(servers, input.min.servers, input.max.servers),
                    within(workers, input.min.workers, input.max.workers),
                )
            });
            let (work, speed) = match self.options.estimates {
                Estimates::Oracle => (0.0, 0.0),
                Estimates::Errors { work, speed } | Estimates::Scattered { work, speed } => {
                    (work, speed)
                }
                Estimates::Fitted => continue,
            };
            input.rescale_cost_s = job.rescale_cost_s;
            if let Want::Pinned { .. } = input.want {
                continue;
            }
            let left = (truth.total - self.work_of(input.id)).max(0.0);
            let share = left / truth.total;
            // What is running is never quite done: a zero would make its speed worth nothing.
            let left = left.max(truth.total * 1e-9);
            let value = left * (1.0 + truth.signs.0 * work * share);
            let remaining = Remaining {
                value,
                low: value / (1.0 + work * share),
                high: value / (1.0 - work * share),
            };
            let model = truth.rates.model();
            let (off, of_each) = (speed * share, &truth.coefficient_signs);
            let speed = match self.options.estimates {
                _ if speed <= 0.0 => model.clone(),
                Estimates::Scattered { .. } => scattered(model, off, of_each),
                Estimates::Oracle | Estimates::Errors { .. } | Estimates::Fitted => {
                    scaled(model, 1.0 + truth.signs.1 * off)
                }
            };
            input.want = Want::Share { speed, remaining: Some(remaining) };
        }
    }

    /// Work that a job has done by now, as far as it would not be lost.
    pub(super) fn work_of(&self, id: JobId) -> f64 {
        let kept = self.job_of(id).map_or(0.0, |job| self.truths[job].kept());
        let lives = (id, Generation(0))..=(id, Generation(u64::MAX));
        let present = self.trainings.range(lives).next_back();
        let live = present.filter(|(_, training)| training.ready && !training.broken);
        live.map_or(kept, |(_, training)| training.work_at(self.now))
    }
}
