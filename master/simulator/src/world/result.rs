//! What a run comes to.

use model::Millis;

use super::World;
use super::truth::float;
use crate::outcome::{Outcome, Sample, mean};

impl World {
    /// Notes the cluster where it changed.
    pub(super) fn sample(&mut self) {
        if !std::mem::take(&mut self.tally.changed) {
            return;
        }
        let tally = &self.tally;
        let share =
            |used: u64, total: u64| if total == 0 { 0.0 } else { float(used) / float(total) };
        let (used, total) = (&tally.used, &tally.total);
        let plain = [
            share(used.cpus_milli, total.cpus_milli),
            share(used.memory_bytes >> 20, total.memory_bytes >> 20),
            share(used.gpus, total.gpus),
        ];
        let named = total.named.iter().map(|(kind, amount)| share(used.named(kind), *amount));
        let progress = self.progress();
        let sample = Sample {
            at_s: progress.now_s,
            tasks: tally.tasks,
            jobs_running: progress.jobs_running,
            jobs_waiting: progress.jobs_waiting,
            used: named.chain(plain).fold(0.0, f64::max),
        };
        let samples = &mut self.tally.samples;
        match samples.last_mut() {
            Some(last) if last.at_s >= sample.at_s => *last = sample,
            Some(_) | None => samples.push(sample),
        }
    }

    /// What the run has come to by now.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let mut shares = Vec::new();
        let mut jobs = Vec::with_capacity(self.truths.len());
        for truth in &self.truths {
            let held = truth.held_since.map_or(0, |since| self.now.since(since));
            let held_s = Millis(truth.held_ms + held).seconds_since(Millis::default());
            if held_s > 0.0 {
                shares.push((truth.outcome.rescale_s / held_s).min(1.0));
            }
            jobs.push(truth.outcome.clone());
        }
        Outcome {
            policy: self.options.policy_name.clone(),
            seed: self.options.seed,
            jobs,
            samples: self.tally.samples.clone(),
            rescale_share: mean(&shares).unwrap_or(0.0),
            rounds: self.tally.rounds,
        }
    }
}
