//! What one worker's steps of one generation add up to.

use std::collections::VecDeque;

use model::Millis;
use model::agent::{LossWindow, WorkerReport};

use super::report::Step;
use crate::ledger::Key;

/// Steps in the windows of the first and of the last losses.
const WINDOW_STEPS: usize = 50;
/// No mini-batch takes under 50 us: what comes faster is not training.
const STEPS_PER_S_MAX: u64 = 20_000;
/// Steps that may come at once, so that a burst after a pause of the agent is taken.
const STEPS_BURST: u64 = 20_000;

/// Sums that only grow, so that a lost heartbeat loses nothing.
///
/// They start from zero with each life of the agent: they are not kept on disk, as a step is
/// worth no fsync. The incarnation in the introduction is new then, and the master takes a sum
/// that shrank as a new base rather than as a difference. What must not be lost comes again by
/// itself: the package repeats its last epochs, its checkpoint reports and `samples_per_epoch`.
#[derive(Debug)]
pub(crate) struct Sums {
    last_step: Option<u64>,
    epoch: u32,
    steps: u64,
    steps_s: f64,
    compute_s: f64,
    samples: u64,
    loss_sum: f64,
    loss_count: u64,
    loss_not_finite: u64,
    loss_not_finite_since: Option<u64>,
    recent: VecDeque<f64>,
    first: Vec<f64>,
    /// False in a later life of the agent: the generation's first steps were not seen.
    first_known: bool,
    pub(crate) samples_per_epoch: Option<u64>,
    finished: bool,
    allowance: u64,
    allowance_at: Millis,
}

/// Why a step was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Odd {
    /// Its number, or its epoch, is not after the last.
    Backward,
    /// More steps, or a larger jump, than the time since the last allows.
    TooFast,
}

impl Sums {
    /// `from_birth`: whether this life of the agent started the generation.
    pub(crate) fn new(now: Millis, from_birth: bool) -> Self {
        Self {
            last_step: None,
            epoch: 0,
            steps: 0,
            steps_s: 0.0,
            compute_s: 0.0,
            samples: 0,
            loss_sum: 0.0,
            loss_count: 0,
            loss_not_finite: 0,
            loss_not_finite_since: None,
            recent: VecDeque::new(),
            first: Vec::new(),
            first_known: from_birth,
            samples_per_epoch: None,
            finished: false,
            allowance: STEPS_BURST,
            allowance_at: now,
        }
    }

    /// True once a step was taken.
    pub(crate) fn has_stepped(&self) -> bool {
        self.last_step.is_some()
    }

    /// True where the master can learn something from these sums. Those of a later life of the
    /// agent say nothing before the first step: the worker is not back at step 0.
    pub(crate) fn is_known(&self) -> bool {
        self.first_known || self.has_stepped()
    }

    /// The worker's loop is over at this step. True where that is news.
    pub(crate) fn finish(&mut self, step: u64) -> bool {
        self.last_step.get_or_insert(step);
        !std::mem::replace(&mut self.finished, true)
    }

    /// Takes a step.
    ///
    /// # Errors
    /// Where it cannot be true after what came before.
    pub(crate) fn take(&mut self, step: &Step, now: Millis) -> Result<(), Odd> {
        if self.last_step.is_some_and(|last| step.step <= last) || step.epoch < self.epoch {
            return Err(Odd::Backward);
        }
        let passed = now.since(self.allowance_at);
        self.allowance = self
            .allowance
            .saturating_add(passed.saturating_mul(STEPS_PER_S_MAX / 1000))
            .min(STEPS_BURST.max(passed.saturating_mul(STEPS_PER_S_MAX / 1000)));
        self.allowance_at = now;
        // A gap of lost datagrams is a jump, too; the first step may have any number.
        let advance = self.last_step.map_or(1, |last| step.step - last);
        self.allowance = self.allowance.checked_sub(advance).ok_or(Odd::TooFast)?;
        self.last_step = Some(step.step);
        self.epoch = step.epoch;
        self.steps += 1;
        self.steps_s += step.duration_s;
        self.compute_s += step.compute_s;
        self.samples = self.samples.saturating_add(step.samples);
        self.take_loss(step);
        Ok(())
    }

    fn take_loss(&mut self, step: &Step) {
        let Some(loss) = step.loss else {
            self.loss_not_finite += 1;
            self.loss_not_finite_since.get_or_insert(step.step);
            return;
        };
        self.loss_sum += loss;
        self.loss_count += 1;
        if self.recent.len() == WINDOW_STEPS {
            self.recent.pop_front();
        }
        self.recent.push_back(loss);
        if self.first_known && self.first.len() < WINDOW_STEPS {
            self.first.push(loss);
        }
    }

    pub(crate) fn report(&self, key: Key, worker: u32) -> WorkerReport {
        WorkerReport {
            job: key.job,
            generation: key.generation,
            worker,
            step: self.last_step.unwrap_or(0),
            epoch: self.epoch,
            steps: self.steps,
            steps_s: self.steps_s,
            compute_s: self.compute_s,
            samples: self.samples,
            loss_sum: self.loss_sum,
            loss_count: self.loss_count,
            loss_not_finite: self.loss_not_finite,
            loss_not_finite_since: self.loss_not_finite_since,
            recent: window(self.recent.iter().copied()),
            first: window(self.first.iter().copied()),
            samples_per_epoch: self.samples_per_epoch,
            finished: self.finished,
        }
    }
}

/// Mean, and the deviation with n - 1 in the divisor (0 for fewer than two).
fn window(losses: impl Iterator<Item = f64> + Clone) -> LossWindow {
    let steps = u32::try_from(losses.clone().count()).unwrap_or(u32::MAX);
    if steps == 0 {
        return LossWindow::default();
    }
    let count = f64::from(steps);
    let mean = losses.clone().sum::<f64>() / count;
    let squares: f64 = losses.map(|loss| (loss - mean).powi(2)).sum();
    let deviation = if steps < 2 { 0.0 } else { (squares / (count - 1.0)).sqrt() };
    // Losses of 1e100 have squares beyond any number.
    LossWindow { steps, mean, deviation: if deviation.is_finite() { deviation } else { 0.0 } }
}

#[cfg(test)]
mod tests {
    use model::{Generation, JobId};
    use proptest::prelude::*;

    use super::*;

    fn step(step: u64, loss: Option<f64>) -> Step {
        Step { step, epoch: 0, loss, duration_s: 0.5, compute_s: 0.25, samples: 32 }
    }

    fn report(sums: &Sums) -> WorkerReport {
        sums.report(Key { job: JobId(1), generation: Generation(1) }, 0)
    }

    #[test]
    fn sums_and_windows_follow_the_steps() {
        let mut sums = Sums::new(Millis(0), true);
        for k in 1..=100_u32 {
            sums.take(&step(u64::from(k) + 40, Some(f64::from(k))), Millis(0)).unwrap();
        }
        let found = report(&sums);
        assert_eq!((found.step, found.steps, found.samples), (140, 100, 3200));
        assert!((found.steps_s - 50.0).abs() < 1e-9 && (found.compute_s - 25.0).abs() < 1e-9);
        assert!((found.loss_sum - 5050.0).abs() < 1e-9);
        assert_eq!((found.first.steps, found.recent.steps), (50, 50));
        assert!((found.first.mean - 25.5).abs() < 1e-9, "{found:?}");
        assert!((found.recent.mean - 75.5).abs() < 1e-9);
        // Of 50 consecutive numbers: sqrt(50 * 51 / 12).
        assert!((found.recent.deviation - (50.0_f64 * 51.0 / 12.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn losses_that_are_no_numbers_are_marked_and_do_not_enter_a_sum() {
        let mut sums = Sums::new(Millis(0), true);
        for (k, loss) in [(1, Some(1.0)), (2, None), (3, None), (4, Some(3.0))] {
            sums.take(&step(k, loss), Millis(0)).unwrap();
        }
        let found = report(&sums);
        assert_eq!((found.steps, found.loss_count, found.loss_not_finite), (4, 2, 2));
        assert_eq!(found.loss_not_finite_since, Some(2));
        assert!((found.loss_sum - 4.0).abs() < 1e-12);
    }

    #[test]
    fn backward_and_repeated_steps_are_refused() {
        let mut sums = Sums::new(Millis(0), true);
        sums.take(&step(10, Some(1.0)), Millis(0)).unwrap();
        assert_eq!(sums.take(&step(10, Some(1.0)), Millis(5)), Err(Odd::Backward));
        assert_eq!(sums.take(&step(9, Some(1.0)), Millis(5)), Err(Odd::Backward));
        sums.take(&Step { epoch: 2, ..step(11, None) }, Millis(5)).unwrap();
        assert_eq!(sums.take(&Step { epoch: 1, ..step(12, None) }, Millis(5)), Err(Odd::Backward));
        assert_eq!(report(&sums).steps, 2);
    }

    #[test]
    fn ten_steps_in_one_millisecond_are_taken_and_a_million_are_not() {
        let mut sums = Sums::new(Millis(0), true);
        for k in 1..=10 {
            sums.take(&step(k, Some(1.0)), Millis(7)).unwrap();
        }
        assert_eq!(sums.take(&step(1_000_000, Some(1.0)), Millis(8)), Err(Odd::TooFast));
        // After a pause of the agent the worker may be far ahead.
        sums.take(&step(1_000_000, Some(1.0)), Millis(60_000)).unwrap();
        let taken = (1_000_001..2_000_000)
            .take_while(|k| sums.take(&step(*k, Some(1.0)), Millis(60_000)).is_ok())
            .count();
        assert!(taken < 300_000, "{taken} steps in no time");
    }

    #[test]
    fn a_later_life_does_not_claim_to_have_seen_the_first_steps() {
        let mut sums = Sums::new(Millis(0), false);
        sums.take(&step(500, Some(1.0)), Millis(0)).unwrap();
        assert_eq!((report(&sums).first.steps, report(&sums).recent.steps), (0, 1));
    }

    #[test]
    fn a_finished_worker_is_known_to_a_later_life_without_any_step() {
        let mut sums = Sums::new(Millis(0), false);
        assert!(!sums.is_known());
        assert!(sums.finish(900) && !sums.finish(900));
        assert!(sums.is_known() && report(&sums).finished);
        assert_eq!((report(&sums).step, report(&sums).steps), (900, 0));
    }

    proptest! {
        #[test]
        fn whatever_comes_the_sums_stay_finite_and_grow(
            rows in prop::collection::vec(
                (any::<u64>(), any::<u32>(), prop::option::of(-1e100..1e100), 0.0..86_400.0), 0..200),
        ) {
            let mut sums = Sums::new(Millis(0), true);
            let mut before = report(&sums);
            for (n, (step, epoch, loss, duration_s)) in rows.into_iter().enumerate() {
                let step = Step { step, epoch, loss, duration_s, compute_s: 0.0, samples: step };
                let now = Millis(u64::try_from(n).unwrap() * 100);
                let _ = sums.take(&step, now);
                let found = report(&sums);
                prop_assert!(before.steps <= found.steps && before.steps_s <= found.steps_s);
                prop_assert!(before.step <= found.step && before.epoch <= found.epoch);
                for value in [found.loss_sum, found.steps_s, found.recent.mean,
                    found.recent.deviation, found.first.mean] {
                    prop_assert!(value.is_finite());
                }
                before = found;
            }
        }
    }
}
