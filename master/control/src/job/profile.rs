//! Which shapes a job is still to be measured at.

use model::{JobId, Resources, Shape};
use scheduler::estimate::speed::profile_shapes;

use crate::job::Job;
use crate::record::SpeedKey;
use crate::step::Control;

impl Control {
    /// What all reachable nodes have together.
    pub(crate) fn capacity_up(&self) -> Resources {
        self.nodes
            .values()
            .filter(|node| node.is_up())
            .fold(Resources::default(), |sum, node| sum.plus(&node.record.capacity))
    }

    /// Shapes still to be measured, by usefulness; empty where there are enough. Jobs of one
    /// `model_key` share what was measured.
    pub(crate) fn shapes_wanted(&self, job: &Job, capacity: &Resources) -> Vec<Shape> {
        let spec = job.spec();
        let speed = self.speeds.get(&job.speed_key());
        let shared = speed.map_or_else(Vec::new, |speed| {
            let profiled = speed.samples.iter().filter(|(_, point)| point.profiled);
            profiled.map(|(shape, _)| *shape).collect()
        });
        let is_measured =
            |shape: &Shape| job.record.measured.contains(shape) || shared.contains(shape);
        let measured = job.record.measured.len().max(shared.len());
        let count_max = self.settings.profile_shapes_max;
        let max = Shape::new(spec.servers.max, spec.workers.max);
        let mut shapes = profile_shapes(spec.shape_min(), max, count_max, |shape| {
            capacity.covers(&shape.demand(&spec.worker, &spec.server))
        });
        shapes.retain(|shape| !is_measured(shape));
        shapes.truncate(count_max.saturating_sub(measured));
        shapes
    }

    /// True where the speed function is known well enough from another job of the same key.
    pub(crate) fn key_is_known(&self, job: &Job) -> bool {
        let key = job.speed_key();
        let SpeedKey::Model { .. } = key else { return false };
        let profiled = self
            .speeds
            .get(&key)
            .map_or(0, |speed| speed.samples.values().filter(|point| point.profiled).count());
        // The shapes of that job were not these bounds' own: as many as were wanted of it, or
        // as many as there are terms to tell apart, are enough.
        profiled >= self.settings.profile_shapes_max.min(4)
            || (profiled > 0 && self.key_is_done(&key))
    }

    /// True where some job of the key has finished profiling.
    fn key_is_done(&self, key: &SpeedKey) -> bool {
        self.jobs.values().any(|job| job.record.profiled && job.speed_key() == *key)
    }

    pub(crate) fn on_shape_measured(&mut self, id: JobId, shape: Shape, steps_per_s: f64) {
        self.job_mut(id).record.measured.insert(shape);
        self.touch(id);
        let text = format!("measured {shape}: {steps_per_s:.3} steps/s");
        self.tell(Some(id), None, "profiled", text);
        self.ask_round("a profile step is done");
    }

    /// No more shapes are to be measured: the job is shared out from now on.
    pub(crate) fn end_profiling(&mut self, id: JobId, why: &str) {
        let job = self.job_mut(id);
        if job.record.profiled {
            return;
        }
        job.record.profiled = true;
        let count = job.record.measured.len();
        self.touch(id);
        self.tell(Some(id), None, "profiled", format!("{why}; {count} shapes were measured"));
        self.ask_round("profiling is over");
    }
}
