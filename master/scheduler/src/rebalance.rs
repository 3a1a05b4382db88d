//! Moves of running jobs towards their allocation, where they are worth their price.

use model::Shape;

use crate::allocate::within;
use crate::entry::Standing;
use crate::hysteresis::Change;
use crate::place::{Effort, Shrink, find_extra, find_first};
use crate::room::{Spots, View, shape_of};
use crate::round::Round;

/// Most attempts in one round to let jobs shrink for another's growth, and most jobs in each:
/// bounds the cost of a round in a large cluster.
const BUNDLES_MAX: usize = 64;
const GIVERS_MAX: usize = 8;
/// In a warm round most others were tried in the last one.
const WARM_BUNDLES_MAX: usize = 4;
const WARM_GROWTHS_MAX: usize = 16;

impl Round<'_> {
    /// A change of one job's shape, for its own sake.
    pub(crate) fn change(&self, job: usize, to: Shape) -> Option<Change> {
        let entry = &self.entries[job];
        Some(Change {
            before_s: entry.seconds_left(self.current_shape(job))?,
            after_s: entry.seconds_left(to)?,
            cost_s: entry.cost_s,
            since_change_ms: entry.since_change_ms,
        })
    }

    /// Running sharing jobs that this plan has not touched yet and whose allocation differs.
    fn untouched(&self) -> Vec<usize> {
        let differs = |job: &usize| {
            let hold = self.room.hold(*job);
            let entry = &self.entries[*job];
            entry.is_share()
                && entry.standing == Standing::Running
                && entry.since_change_ms >= self.policy.change_spacing_ms
                && hold.next == hold.current
                && !self.allocated[*job].is_empty()
                && self.allocated[*job] != shape_of(&hold.current)
        };
        self.order.iter().copied().filter(differs).collect()
    }

    /// Moves running jobs towards their allocation where that is worth it, the largest surplus
    /// first; ties by arrival.
    pub(crate) fn rebalance(&mut self) {
        let untouched = self.untouched();
        let mut growing: Vec<(f64, usize)> = untouched
            .iter()
            .filter_map(|job| {
                let change = self.change(*job, self.allocated[*job])?;
                change.is_worth_it(self.policy).then(|| (change.surplus_s(self.policy), *job))
            })
            .collect();
        growing.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut givers: Vec<(f64, usize)> = untouched
            .into_iter()
            .filter(|job| within(self.allocated[*job], self.current_shape(*job)))
            .filter(|job| {
                self.room.hold(*job).current.iter().all(|(node, _)| self.room.is_open(*node))
            })
            .filter_map(|job| Some((self.weighted_surplus(job, self.allocated[job])?, job)))
            .collect();
        givers.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut bundles_left = if self.warm.is_some() { WARM_BUNDLES_MAX } else { BUNDLES_MAX };
        let growths = if self.warm.is_some() { WARM_GROWTHS_MAX } else { growing.len() };
        for (_, job) in growing.into_iter().take(growths) {
            if self.giving.contains_key(&job) {
                continue;
            }
            let alone = self.grow_alone(job);
            let complete = alone.as_ref().is_some_and(|(shape, _)| *shape == self.allocated[job]);
            let surplus = alone
                .as_ref()
                .and_then(|(shape, _)| self.weighted_surplus(job, *shape))
                .unwrap_or(0.0);
            if !complete && bundles_left > 0 {
                bundles_left -= 1;
                if self.grow_together(job, &givers, surplus) {
                    continue;
                }
            }
            if let Some((_, spots)) = alone {
                self.room.set(job, spots);
            }
        }
    }

    /// Surplus of a change, times the job's weight: what a bundle of changes adds up.
    fn weighted_surplus(&self, job: usize, to: Shape) -> Option<f64> {
        let surplus = self.change(job, to)?.surplus_s(self.policy) * self.entries[job].gains.weight;
        (!surplus.is_nan()).then_some(surplus)
    }

    /// The best shape on the way to the allocation that fits in what is free and is worth it.
    fn grow_alone(&mut self, job: usize) -> Option<(Shape, Spots)> {
        let (whole, gains) = (self.allocated[job], &self.entries[job].gains);
        let current = self.room.hold(job).current.clone();
        self.room.lift(job);
        let shapes = (whole, Shrink::ByLoss(gains));
        let found = find_first(&self.room, job, shapes, Effort::Little, self.scratch);
        self.room.lower(job, current.clone(), current);
        let worth = |shape: Shape| {
            self.change(job, shape).is_some_and(|change| change.is_worth_it(self.policy))
        };
        found.filter(|(shape, _)| worth(*shape))
    }

    /// Lets other jobs shrink to their allocations until this one fits at its own, if all that
    /// together is worth more than `alone`. This one moves once the room is really free; until
    /// then it is kept for it.
    fn grow_together(&mut self, job: usize, givers: &[(f64, usize)], alone: f64) -> bool {
        let shape = self.allocated[job];
        let Some(mut surplus) = self.weighted_surplus(job, shape) else { return false };
        let current = self.room.hold(job).current.clone();
        self.room.lift(job);
        let mut given = Vec::new();
        let mut found = None;
        for (giver_surplus, giver) in givers {
            let hold = self.room.hold(*giver);
            if *giver == job || hold.goal != hold.current || given.len() == GIVERS_MAX {
                continue;
            }
            surplus += giver_surplus;
            if surplus <= alone.max(0.0) {
                break;
            }
            self.shrink_in_place(*giver, self.allocated[*giver], job, shape);
            given.push(*giver);
            found = find_extra(&self.room, job, shape, View::Then, self.scratch);
            if found.is_some() {
                break;
            }
        }
        let accepted = found.is_some();
        if accepted {
            self.giving.extend(given.into_iter().map(|giver| (giver, job)));
        } else {
            for giver in given {
                let back = self.room.hold(giver).current.clone();
                self.room.set(giver, back);
            }
        }
        self.room.lower(job, current.clone(), found.unwrap_or(current));
        accepted
    }
}
