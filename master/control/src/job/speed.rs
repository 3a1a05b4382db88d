//! Samples of the speed function, of one job or of every job with one `model_key`, and its fit.

use std::collections::BTreeMap;

use model::{JobId, Shape};
use scheduler::estimate::speed::{SpeedForm, SpeedModel, SpeedSample, fit};

use crate::job::Job;
use crate::record::{SpeedKey, SpeedPoint, SpeedRecord};
use crate::step::Control;

/// Shapes whose speed is kept; as many as a fit takes.
const SHAPES_MAX: usize = 64;
/// Seconds that old measurements count at most beside new ones, so that a cluster that became
/// slower shows within minutes.
const MEMORY_S: f64 = 600.0;
/// Models of `model_key`s kept in all.
const SHARED_MAX: usize = 4_096;

#[derive(Clone, Debug, Default)]
pub(crate) struct Speed {
    pub(crate) samples: BTreeMap<Shape, SpeedPoint>,
    pub(crate) model: Option<Result<SpeedModel, String>>,
    /// The samples changed since they were fitted, or written.
    pub(crate) unfitted: bool,
    pub(crate) unsaved: bool,
}

impl Speed {
    pub(crate) fn restored(samples: BTreeMap<Shape, SpeedPoint>) -> Self {
        Self { samples, model: None, unfitted: true, unsaved: false }
    }

    pub(crate) fn record(&mut self, key: SpeedKey) -> SpeedRecord {
        self.unsaved = false;
        SpeedRecord { key, samples: self.samples.clone() }
    }

    pub(crate) fn add(&mut self, shape: Shape, steps_per_s: f64, seconds: f64, profiled: bool) {
        let point = self.samples.entry(shape).or_default();
        let old = point.seconds.min(MEMORY_S);
        point.steps_per_s = (point.steps_per_s * old + steps_per_s * seconds) / (old + seconds);
        point.seconds = (point.seconds + seconds).min(1e9);
        point.profiled |= profiled;
        self.unfitted = true;
        self.unsaved = true;
        if self.samples.len() > SHAPES_MAX {
            let least = self
                .samples
                .iter()
                .filter(|(other, _)| **other != shape)
                .min_by(|a, b| {
                    a.1.profiled.cmp(&b.1.profiled).then(a.1.seconds.total_cmp(&b.1.seconds))
                })
                .map(|(least, _)| *least);
            if let Some(least) = least {
                self.samples.remove(&least);
            }
        }
    }

    /// Takes the newest sample of a shape out again. True where nothing of the shape is left.
    pub(crate) fn remove(&mut self, shape: Shape, steps_per_s: f64, seconds: f64) -> bool {
        let Some(point) = self.samples.get_mut(&shape) else { return true };
        let weight = point.seconds.min(MEMORY_S + seconds);
        let left = weight - seconds;
        let sum = point.steps_per_s * weight - steps_per_s * seconds;
        self.unfitted = true;
        self.unsaved = true;
        if left > 1e-3 && sum > 0.0 {
            point.steps_per_s = sum / left;
            point.seconds = (point.seconds - seconds).max(left);
            return false;
        }
        self.samples.remove(&shape);
        true
    }

    pub(crate) fn fit(&mut self, form: SpeedForm) -> Option<&SpeedModel> {
        if self.unfitted || self.model.is_none() {
            let samples: Vec<SpeedSample> = self
                .samples
                .iter()
                .map(|(shape, point)| SpeedSample {
                    shape: *shape,
                    steps_per_s: point.steps_per_s,
                    weight: point.seconds.min(MEMORY_S),
                })
                .collect();
            self.model = Some(fit(form, &samples).map_err(|error| error.to_string()));
            self.unfitted = false;
        }
        self.model.as_ref().and_then(|model| model.as_ref().ok())
    }
}

impl Control {
    /// Takes a measured speed into the job's speed function.
    pub(crate) fn add_speed(&mut self, id: JobId, shape: Shape, steps_per_s: f64, seconds: f64) {
        let job = self.job(id);
        let key = job.speed_key();
        let profiling = job.is_profiling() && !job.record.measured.contains(&shape);
        let speed = self.speeds.entry(key.clone()).or_default();
        speed.add(shape, steps_per_s, seconds, profiling);
        if profiling {
            self.out.speeds.insert(key);
            self.on_shape_measured(id, shape, steps_per_s);
        }
        self.forget_speeds();
    }

    /// A straggler slowed the job down while its speed was measured: the sample is none.
    pub(crate) fn take_back_speed(
        &mut self,
        id: JobId,
        shape: Shape,
        (speed, seconds): (f64, f64),
    ) {
        let key = self.job(id).speed_key();
        let Some(known) = self.speeds.get_mut(&key) else { return };
        let gone = known.remove(shape, speed, seconds);
        self.out.speeds.insert(key);
        let job = self.job_mut(id);
        if gone && !job.record.profiled && job.record.measured.remove(&shape) {
            self.touch(id);
        }
    }

    /// Shared models that no job uses make room for new ones.
    fn forget_speeds(&mut self) {
        while self.speeds.len() > SHARED_MAX + self.jobs.len() {
            let used: std::collections::BTreeSet<SpeedKey> =
                self.jobs.values().map(Job::speed_key).collect();
            let Some(old) = self.speeds.keys().find(|key| !used.contains(*key)).cloned() else {
                return;
            };
            self.speeds.remove(&old);
            self.out.speeds.remove(&old);
            self.out.deleted.push(crate::record::Key::Speed(old));
        }
    }

    /// The job's fitted speed function, fitted anew where samples came.
    pub(crate) fn fitted(&mut self, id: JobId) -> Option<SpeedModel> {
        let (key, form) = self.speed_of(id);
        self.speeds.get_mut(&key)?.fit(form).cloned()
    }

    /// The speed function as last fitted.
    pub(crate) fn speed_model(&self, job: &Job) -> Option<&SpeedModel> {
        self.speeds.get(&job.speed_key())?.model.as_ref()?.as_ref().ok()
    }

    fn speed_of(&self, id: JobId) -> (SpeedKey, SpeedForm) {
        let job = self.job(id);
        (job.speed_key(), SpeedForm::of(job.spec().mode, job.spec().batch))
    }

    /// Refinements of running jobs are written with the next round: no heartbeat costs a write.
    pub(crate) fn save_speeds(&mut self) {
        let unsaved = self.speeds.iter().filter(|(_, speed)| speed.unsaved);
        let keys: Vec<SpeedKey> = unsaved.map(|(key, _)| key.clone()).collect();
        self.out.speeds.extend(keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_bounded_and_profiled_ones_stay() {
        let mut speed = Speed::default();
        speed.add(Shape::new(1, 1), 2.0, 10.0, true);
        for workers in 2..300 {
            speed.add(Shape::new(1, workers), 3.0, 20.0, false);
        }
        assert!(speed.samples.len() <= SHAPES_MAX);
        assert!(speed.samples[&Shape::new(1, 1)].profiled);
        speed.add(Shape::new(1, 1), 4.0, 10.0, false);
        assert!((speed.samples[&Shape::new(1, 1)].steps_per_s - 3.0).abs() < 1e-9);
        assert!(speed.fit(SpeedForm::Async).is_some());
        speed.add(Shape::new(1, 1), 0.3, 20.0, false);
        assert!(!speed.remove(Shape::new(1, 1), 0.3, 20.0), "the others stay");
        assert!((speed.samples[&Shape::new(1, 1)].steps_per_s - 3.0).abs() < 1e-9);
        speed.add(Shape::new(7, 7), 2.0, 10.0, true);
        assert!(speed.remove(Shape::new(7, 7), 2.0, 10.0));
        assert!(!speed.samples.contains_key(&Shape::new(7, 7)));
    }
}
