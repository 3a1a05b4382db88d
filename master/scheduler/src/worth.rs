//! What the outlook of a round is worth on the nodes, and what becomes of it where their boundaries
//! leave little of it.
//!
//! The outlook counts with the cluster's total. Where GPUs stand in nodes whose CPUs are taken by
//! servers, or shapes do not fit side by side, some of what it gave finds no place, and the paper's
//! round, which gives every job its least shape and takes tasks back until they fit, may leave less
//! room idle. Both are then worked out, and the one whose progress is worth more by the outlook's own
//! prices is taken.

use model::Shape;

use crate::entry::Entry;
use crate::place::Scratch;
use crate::room::shape_of;
use crate::round::{Made, Round, Stage};
use crate::snapshot::{Allocation, NodeInput, Policy, Snapshot};

/// A round must leave everything worth more than it was: rounding only.
const BETTER: f64 = 1e-9;
/// The paper's round must leave so much more: a change of mind is never free.
const OTHER_BETTER: f64 = 0.01;

/// A round of the policy that looks ahead.
pub(crate) fn plan_ahead(
    snapshot: &Snapshot,
    (nodes, policy): (&[&NodeInput], &Policy),
    scratch: &mut Scratch,
    watch: &mut dyn FnMut(Stage),
) -> Made {
    let mut round = Round::estimate(snapshot, (nodes, policy), None, scratch);
    round.look_ahead(watch);
    if round.is_hemmed_in() {
        let papers = Policy { allocation: Allocation::MarginalGain, ..policy.clone() };
        let mut scratch = Scratch::default();
        let mut other = Round::estimate(snapshot, (nodes, &papers), None, &mut scratch);
        other.steps(watch).expect("only a warm round gives up");
        (other.prices, other.span_s) = (round.prices.clone(), round.span_s);
        if other.worth() > round.worth() * (1.0 + OTHER_BETTER) {
            return other.made();
        }
    }
    round.say_why();
    round.made()
}

impl Round<'_> {
    /// True where a job was given a part and found no place at all, or a smaller one.
    fn is_hemmed_in(&self) -> bool {
        self.entries.iter().enumerate().any(|(job, entry)| {
            let goal = shape_of(&self.room.hold(job).goal);
            entry.is_share() && entry.needs_place() && goal != self.allocated[job]
        })
    }

    /// What a second of what everybody is to hold in the end is worth.
    fn worth(&self) -> f64 {
        let of = |(job, price): &(usize, f64)| {
            let goal = shape_of(&self.room.hold(*job).goal);
            let moves = self.held(*job).is_some_and(|held| held != goal);
            let kept = if moves { 1.0 - self.lost(*job) } else { 1.0 };
            price * kept * self.work_rate(*job, goal)
        };
        self.prices.iter().map(of).sum()
    }

    /// Work a second.
    fn work_rate(&self, job: usize, shape: Shape) -> f64 {
        let gains = &self.entries[job].gains;
        let seconds = gains.seconds_left(shape);
        let work = gains.progress.map_or(1.0, |pace| pace.work);
        if seconds > 0.0 && seconds.is_finite() { work / seconds } else { 0.0 }
    }

    /// Part of the span that a running job loses by a change.
    pub(crate) fn lost(&self, job: usize) -> f64 {
        let cost_s = self.entries[job].cost_s;
        if self.span_s > cost_s { cost_s / self.span_s } else { 1.0 }
    }

    /// True where what everybody is to hold in the end is worth more than what runs now: what
    /// the nodes' boundaries left of the choice may not be. One measure for all rounds, so that
    /// none undoes what another did.
    pub(crate) fn is_better(&self) -> bool {
        if self.owes_room() {
            return true;
        }
        let now: f64 = self
            .prices
            .iter()
            .map(|(job, price)| price * self.work_rate(*job, self.held(*job).unwrap_or_default()))
            .sum();
        self.worth() > now * (1.0 + BETTER)
    }

    /// True where a job waits for room that others give up and is to have it whatever it is worth:
    /// one that is to be measured, that an operator gave a shape, or that was there for too long.
    fn owes_room(&self) -> bool {
        let overdue = |job| self.outlook.iter().any(|(one, given)| *one == job && given.overdue);
        let waits = |(job, entry): (usize, &Entry<'_>)| {
            let hold = self.room.hold(job);
            let kept = hold.next.is_empty() && !hold.goal.is_empty();
            kept && (!entry.is_share() || overdue(job))
        };
        self.entries.iter().enumerate().any(waits)
    }
}
