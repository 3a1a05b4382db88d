//! One scheduling round, as in section 4: estimate, allocate, place, and then hold back what is
//! not worth its price.
//!
//! 1. Every job that has nothing gets its least shape, in order of arrival; where there is no
//!    room, running jobs give up the tasks whose loss matters least. Such room is free only once
//!    they have stopped: until then the job waits, and its room is kept.
//! 2. Jobs being profiled and pinned jobs get their shapes from what is left.
//! 3. The cluster's total is allocated anew among all sharing jobs by marginal gain.
//! 4. Jobs that start are placed, smallest first, shrunk from their allocation until they fit.
//!    Jobs that had to shrink go to their allocation at once: they pay for the move anyway.
//! 5. Other running jobs move only where that saves more than it costs, alone, or together with
//!    jobs that shrink for them.

use std::collections::BTreeMap;

use model::Shape;

use crate::allocate::{Claim, allocate, dominant_share, within};
use crate::entry::{Aim, Entry, Standing, entries};
use crate::explain;
use crate::hysteresis::{Change, sound};
use crate::place::{Scratch, find, find_extra};
use crate::plan::Plan;
use crate::room::{Room, Spots, View, shape_of};
use crate::snapshot::{Policy, Snapshot};

/// Saves work from round to round; an empty one gives the same plan.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    scratch: Scratch,
}

/// A decision for every job of the snapshot.
#[must_use]
pub fn plan(snapshot: &Snapshot, policy: &Policy, cache: &mut Cache) -> Plan {
    let policy = sound(policy);
    let mut round = Round::estimate(snapshot, policy, &mut cache.scratch);
    round.admit();
    round.profile_and_pin();
    round.allocate();
    round.start();
    round.reshape_forced();
    round.rebalance();
    Plan { revision: snapshot.revision, decisions: explain::decisions(&mut round) }
}

/// A round on its way.
pub(crate) struct Round<'a> {
    pub(crate) policy: Policy,
    /// In the snapshot's order; jobs are named by their index in it.
    pub(crate) entries: Vec<Entry<'a>>,
    pub(crate) room: Room<'a>,
    /// Jobs by arrival, then id.
    pub(crate) order: Vec<usize>,
    /// Of the open nodes together.
    pub(crate) total: Vec<i128>,
    /// What the allocation gave each job.
    pub(crate) allocated: Vec<Shape>,
    /// Jobs that had to shrink, and for whom.
    pub(crate) forced: BTreeMap<usize, usize>,
    /// Jobs that shrink so that another can grow, and for whom.
    pub(crate) giving: BTreeMap<usize, usize>,
    pub(crate) scratch: &'a mut Scratch,
}

/// Most attempts in one round to let jobs shrink for another's growth, and most jobs in each:
/// bounds the cost of a round in a large cluster.
const BUNDLES_MAX: usize = 64;
const GIVERS_MAX: usize = 8;

impl<'a> Round<'a> {
    fn estimate(snapshot: &'a Snapshot, policy: Policy, scratch: &'a mut Scratch) -> Self {
        let mut room = Room::new(&snapshot.nodes, &snapshot.jobs);
        let mut total = vec![0_i128; room.kinds.count()];
        for node in snapshot.nodes.iter().filter(|node| node.open) {
            for (sum, has) in total.iter_mut().zip(room.kinds.amounts(&node.capacity)) {
                *sum += has;
            }
        }
        let entries = entries(snapshot, &policy, &mut room, &total);
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by_key(|job| (entries[*job].input.arrival, entries[*job].input.id));
        let allocated = vec![Shape::default(); entries.len()];
        let (forced, giving) = (BTreeMap::new(), BTreeMap::new());
        Self { policy, entries, room, order, total, allocated, forced, giving, scratch }
    }

    pub(crate) fn current_shape(&self, job: usize) -> Shape {
        shape_of(&self.room.hold(job).current)
    }

    /// True where the job gets new tasks by this plan so far.
    fn is_placed_anew(&self, job: usize) -> bool {
        let hold = self.room.hold(job);
        !hold.next.is_empty() && hold.next != hold.current
    }

    /// Offers profiling jobs their shapes in turn and pinned jobs the one they are pinned to.
    fn profile_and_pin(&mut self) {
        for job in self.order.clone() {
            let entry = &self.entries[job];
            let free = match entry.standing {
                Standing::Running => !self.forced.contains_key(&job),
                Standing::Waiting | Standing::Displaced { .. } => self.is_placed_anew(job),
                Standing::Fixed | Standing::Unfit { .. } => false,
            };
            let current = self.current_shape(job);
            let shapes = match entry.aim {
                Aim::Profile(shapes) => shapes.to_vec(),
                Aim::Pinned(shape) if entry.standing == Standing::Running => vec![shape],
                Aim::Pinned(_) | Aim::Share => continue,
            };
            let (least, max) = (entry.gains.least, entry.gains.max);
            let stays = entry.standing == Standing::Running;
            if !free {
                continue;
            }
            let before = self.room.hold(job).next.clone();
            self.room.lift(job);
            let mut chosen = None;
            for shape in shapes {
                if stays && shape == current {
                    break;
                }
                if within(least, shape) && within(shape, max) {
                    chosen = find(&self.room, job, shape, View::Both, self.scratch);
                }
                if chosen.is_some() {
                    break;
                }
            }
            let spots = chosen.unwrap_or(before);
            self.room.lower(job, spots.clone(), spots);
        }
    }

    /// Shares the cluster's total out anew among the sharing jobs that have or get anything.
    fn allocate(&mut self) {
        let claiming = |job: &usize| {
            let entry = &self.entries[*job];
            let has = match entry.standing {
                Standing::Running => true,
                Standing::Waiting | Standing::Displaced { .. } => {
                    !self.room.hold(*job).goal.is_empty()
                }
                Standing::Fixed | Standing::Unfit { .. } => false,
            };
            entry.is_share() && has
        };
        let jobs: Vec<usize> = self.order.iter().copied().filter(claiming).collect();
        let mut free = self.room.total_left().to_vec();
        for job in &jobs {
            for (node, here) in &self.room.hold(*job).goal {
                if self.room.node(*node).open {
                    for (free, more) in free.iter_mut().zip(self.room.demand(*job).of(*here)) {
                        *free += more;
                    }
                }
            }
        }
        let claims: Vec<Claim<'_>> = jobs
            .iter()
            .map(|job| {
                let entry = &self.entries[*job];
                Claim {
                    least: entry.gains.least,
                    max: entry.gains.max,
                    server: &entry.input.server,
                    worker: &entry.input.worker,
                    weight: entry.gains.weight,
                    progress: entry.gains.progress,
                }
            })
            .collect();
        let kinds = &self.room.kinds;
        let given = allocate(&kinds.resources(&self.total), &kinds.resources(&free), &claims);
        for (job, shape) in jobs.into_iter().zip(given) {
            self.allocated[job] = shape;
        }
    }

    /// Places what starts, smallest allocation first.
    fn start(&mut self) {
        let mut starting: Vec<(f64, usize)> = self
            .order
            .iter()
            .copied()
            .filter(|job| {
                let entry = &self.entries[*job];
                entry.is_share() && entry.needs_place() && self.is_placed_anew(*job)
            })
            .map(|job| {
                let need: Vec<i128> = self.room.demand(job).of(self.allocated[job]).collect();
                (dominant_share(&need, &self.total), job)
            })
            .collect();
        starting.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, job) in starting {
            let before = self.room.hold(job).next.clone();
            let shapes = self.entries[job].gains.shrinking(self.allocated[job]);
            self.room.lift(job);
            let spots = self.first_that_fits(job, &shapes).map_or(before, |(_, spots)| spots);
            self.room.lower(job, spots.clone(), spots);
        }
    }

    /// Of shapes that each lie within the one before: the first with a place for the lifted job.
    /// A shape within one that fits, fits too, so halving finds it.
    fn first_that_fits(&mut self, job: usize, shapes: &[Shape]) -> Option<(Shape, Spots)> {
        let (mut low, mut high) = (0, shapes.len());
        let mut best = None;
        while low < high {
            // The largest first: it often fits.
            let middle =
                if low == 0 && high == shapes.len() { 0 } else { usize::midpoint(low, high) };
            match find_extra(&self.room, job, shapes[middle], View::Both, self.scratch) {
                Some(spots) => {
                    best = Some((shapes[middle], spots));
                    high = middle;
                }
                None => low = middle + 1,
            }
        }
        best
    }

    /// Jobs that must move anyway move to their allocation, as far as it fits.
    fn reshape_forced(&mut self) {
        for job in self.forced.keys().copied().collect::<Vec<_>>() {
            let shrunk = self.room.hold(job).goal.clone();
            if self.allocated[job].is_empty() {
                continue;
            }
            let shapes = self.entries[job].gains.shrinking(self.allocated[job]);
            self.room.lift(job);
            let found = self.first_that_fits(job, &shapes).filter(|(shape, _)| {
                let entry = &self.entries[job];
                let seconds = |shape| entry.seconds_left(shape).unwrap_or(0.0);
                *shape == self.allocated[job] || seconds(*shape) < seconds(shape_of(&shrunk))
            });
            let spots = found.map_or(shrunk, |(_, spots)| spots);
            self.room.lower(job, spots.clone(), spots);
        }
    }

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
    fn rebalance(&mut self) {
        let untouched = self.untouched();
        let mut growing: Vec<(f64, usize)> = untouched
            .iter()
            .filter_map(|job| {
                let change = self.change(*job, self.allocated[*job])?;
                change.is_worth_it(&self.policy).then(|| (change.surplus_s(&self.policy), *job))
            })
            .collect();
        growing.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut givers: Vec<(f64, usize)> = untouched
            .into_iter()
            .filter(|job| within(self.allocated[*job], self.current_shape(*job)))
            .filter(|job| {
                self.room.hold(*job).current.iter().all(|(node, _)| self.room.node(*node).open)
            })
            .filter_map(|job| Some((self.weighted_surplus(job, self.allocated[job])?, job)))
            .collect();
        givers.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut bundles_left = BUNDLES_MAX;
        for (_, job) in growing {
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
        let surplus =
            self.change(job, to)?.surplus_s(&self.policy) * self.entries[job].gains.weight;
        (!surplus.is_nan()).then_some(surplus)
    }

    /// The best shape on the way to the allocation that fits in what is free and is worth it.
    fn grow_alone(&mut self, job: usize) -> Option<(Shape, Spots)> {
        let mut shapes = self.entries[job].gains.shrinking(self.allocated[job]);
        shapes.retain(|shape| {
            self.change(job, *shape).is_some_and(|change| change.is_worth_it(&self.policy))
        });
        let current = self.room.hold(job).current.clone();
        self.room.lift(job);
        let found = self.first_that_fits(job, &shapes);
        self.room.lower(job, current.clone(), current);
        found
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
