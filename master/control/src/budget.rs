//! The time that a job may lose to changes of its shape (section 7).
//!
//! A change must be worth its cost: that is the round's rule, and it trusts predictions. This one
//! does not: whatever they promise, a job stands still for a bounded share of its time, and a
//! large one, of which a pause idles more processes, for a smaller share.

use model::view::DecisionView;

use crate::job::{Job, float};
use crate::step::Control;

/// Pauses are counted over the last hour.
const WINDOW_MS: u64 = 3_600_000;
/// A job that has just begun is taken for this old, or it could not grow before it is.
const YOUNG_MS: u64 = 600_000;
/// With more tasks than this the share shrinks, so that the time lost by all of them does not grow.
const TASKS_USUAL: u32 = 16;

/// Seconds that a job of this age and size may lose within the window.
fn budget_s(share: f64, age_ms: u64, tasks: u32) -> f64 {
    let size = f64::from(TASKS_USUAL) / f64::from(tasks.max(TASKS_USUAL));
    share * size * float(age_ms.clamp(YOUNG_MS, WINDOW_MS)) / 1000.0
}

/// Seconds lost to moves since a moment; one that is under way counts as usual.
fn spent_s<'a>(
    moves: impl Iterator<Item = &'a DecisionView>,
    since_unix_ms: u64,
    usual_s: f64,
) -> f64 {
    moves
        .filter(|one| one.while_running && !one.profiling && since_unix_ms <= one.at.0)
        .map(|one| one.cost_s.unwrap_or(usual_s))
        .sum()
}

impl Control {
    /// Why a round must not move a job again now; none where it may. What an operator asks for is
    /// not asked about, nor what a job is measured with.
    pub(crate) fn over_budget(&self, job: &Job) -> Option<String> {
        if job.is_profiling() || job.wanted_shape().is_some() {
            return None;
        }
        let now = self.now.unix.0;
        let age_ms = job.record.started.map_or(0, |started| now.saturating_sub(started.0));
        let shape = job.shape();
        let tasks = shape.servers.saturating_add(shape.workers);
        let budget_s = budget_s(self.settings.pause_share, age_ms, tasks);
        let usual_s = self.rescale_cost_s(job);
        let since = now.saturating_sub(WINDOW_MS);
        let spent_s = spent_s(job.record.decisions.iter(), since, usual_s);
        (budget_s < spent_s + usual_s).then(|| {
            format!(
                "a change would pause it for {usual_s:.1} s more, and {spent_s:.1} s of the \
                 {budget_s:.1} s that it may lose in an hour are spent"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use model::client::Change;
    use model::{Shape, UnixMs};
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{World, job};

    fn paused(at: u64, cost_s: Option<f64>) -> DecisionView {
        let mut world = World::new(2, 8);
        let id = world.running(job("one"), Shape::new(1, 2));
        world.pin(id, Shape::new(1, 3));
        world.run(60);
        let decision = world.detail(id).decisions.last().unwrap().clone();
        DecisionView { at: UnixMs(at), cost_s, ..decision }
    }

    #[test]
    fn large_and_young_jobs_may_lose_less() {
        assert!((budget_s(0.025, 0, 3) - 15.0).abs() < 1e-9, "a young one may grow");
        assert!((budget_s(0.025, 3_600_000, 3) - 90.0).abs() < 1e-9);
        assert!((budget_s(0.025, 3_600_000, 160) - 9.0).abs() < 1e-9);
        let one = paused(5_000, Some(3.0));
        let under_way = DecisionView { at: UnixMs(6_000), cost_s: None, ..one.clone() };
        let profiling = DecisionView { profiling: true, ..one.clone() };
        let all = [one, under_way, profiling];
        assert!((spent_s(all.iter(), 5_000, 2.0) - 5.0).abs() < 1e-9);
        assert!((spent_s(all.iter(), 6_000, 2.0) - 2.0).abs() < 1e-9, "the old one is forgotten");
    }

    #[test]
    fn a_job_that_has_spent_its_budget_stays_and_why_says_so() {
        let mut settings = crate::testing::settings();
        settings.policy.change_spacing_ms = 0;
        // Nothing at all.
        settings.pause_share = 1e-9;
        let mut world = World::with(settings, 2, 8);
        let mut spec = job("stays");
        spec.finish = model::Finish::Epochs(100_000);
        spec.epochs_max = 100_000;
        let id = world.submit(spec);
        world.until(180, "its profiling is over", |world| {
            world.detail(id).decisions.iter().any(|one| one.while_running)
                && world.control.jobs[&id].record.profiled
        });
        let before = world.row(id).rescales;
        world.run(90);
        assert_eq!(world.row(id).rescales, before, "no round moves it");
        let why = world.control.why(id).unwrap();
        assert!(why.notes.iter().any(|note| note.contains("that it may lose")), "{why:?}");
        // An operator's word is not a round's.
        let other = world.row(id).shape.workers % 4 + 1;
        let shape = Shape::new(1, other);
        world.change(Change::Resize { job: id, shape, pin: true }).unwrap();
        world.until(60, "the operator's shape", |world| world.row(id).shape == shape);
    }

    proptest! {
        /// Moves that are let through one after another never lose more than the budget and the
        /// last move's surprise.
        #[test]
        fn what_is_let_through_stays_within_the_budget(
            share in 0.001_f64..0.2,
            tasks in 2_u32..200,
            gaps_s in prop::collection::vec((0_u64..900, 0.1_f64..20.0), 1..200),
        ) {
            let (mut now, mut moves): (u64, Vec<(u64, f64)>) = (0, Vec::new());
            for (gap_s, cost_s) in gaps_s {
                now += gap_s * 1000;
                let since = now.saturating_sub(WINDOW_MS);
                let spent: f64 =
                    moves.iter().filter(|(at, _)| since <= *at).map(|(_, cost_s)| cost_s).sum();
                if spent + cost_s <= budget_s(share, now, tasks) {
                    moves.push((now, cost_s));
                }
                let lost: f64 =
                    moves.iter().filter(|(at, _)| since <= *at).map(|(_, cost_s)| cost_s).sum();
                let hour_s = share * 3600.0;
                prop_assert!(lost <= hour_s + 1e-6, "{lost} of {hour_s}");
                if tasks > TASKS_USUAL {
                    let idle = lost * f64::from(tasks);
                    prop_assert!(idle <= hour_s * f64::from(TASKS_USUAL) + 1e-6);
                }
            }
        }
    }
}
