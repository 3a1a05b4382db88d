//! One scheduling round, as in section 4: estimate, allocate, place, and then hold back what is
//! not worth its price.
//!
//! 1. Where jobs are being profiled or pinned, every job that has nothing gets its least shape, in
//!    order of arrival, and then these get their shapes from what is left.
//! 2. The cluster's total is allocated anew among all sharing jobs by marginal gain.
//! 3. Jobs that start are placed, smallest first, shrunk from their allocation until they fit.
//! 4. Who found no room for even its least shape takes it from jobs that were just placed. Where
//!    that is not enough and somebody who came later got something, everything is undone, and all
//!    get their least shapes by arrival before any gets more. Running jobs give up the tasks whose
//!    loss matters least; such room is free only once they have stopped: until then the job waits,
//!    and its room is kept.
//! 5. Jobs that had to shrink go to their allocation at once: they pay for the move anyway.
//! 6. Other running jobs move only where that saves more than it costs, alone, or together with
//!    jobs that shrink for them.

use std::collections::BTreeMap;

use model::{JobId, Millis, Shape};

use crate::allocate::horizon::Given;
use crate::allocate::{Sharing, dominant_share, within};
use crate::cache::{Cache, Warm};
use crate::entry::{Aim, Entry, Standing, entries};
use crate::explain;
use crate::hysteresis::sound;
use crate::place::{Effort, NODES_FEW, Scratch, Shrink, find, find_first};
use crate::plan::{Decision, Plan, Words};
use crate::pollux::planned_by_goodput;
use crate::refusals::Refusals;
use crate::room::{Kinds, Room, Spots, View, shape_of, sum_of};
use crate::snapshot::{Allocation, NodeInput, Policy, Snapshot};
use crate::worth::plan_ahead;

/// What a round has just finished: for whoever measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Numbers of tasks were given to jobs.
    Allocated,
    /// Tasks were given to nodes.
    Placed,
}

/// A decision for every job of the snapshot.
#[must_use]
pub fn plan(snapshot: &Snapshot, policy: &Policy, cache: &mut Cache) -> Plan {
    plan_watched(snapshot, policy, cache, &mut |_| ())
}

/// As [`plan`]; `watch` is called at the end of each stage, which may come more than once.
#[must_use]
pub fn plan_watched(
    snapshot: &Snapshot,
    policy: &Policy,
    cache: &mut Cache,
    watch: &mut dyn FnMut(Stage),
) -> Plan {
    let policy = sound(policy);
    let nodes = cache.nodes(snapshot);
    if snapshot.goes_by_goodput(&policy) {
        let decisions = planned_by_goodput(snapshot, (&nodes, &policy), cache, watch);
        return Plan { revision: snapshot.revision, decisions };
    }
    if !policy.is_papers() {
        let scratch = &mut cache.scratch;
        let made = if policy.allocation == Allocation::Horizon {
            plan_ahead(snapshot, (&nodes, &policy), scratch, watch)
        } else {
            Round::estimate(snapshot, (&nodes, &policy), None, scratch).run_rival(watch)
        };
        watch(Stage::Placed);
        return Plan { revision: snapshot.revision, decisions: made.decisions };
    }
    if let Some(warm) = cache.warm(snapshot, &policy, &nodes) {
        let round = Round::estimate(snapshot, (&nodes, &policy), Some(warm), &mut cache.scratch);
        if let Some(made) = round.run(watch) {
            return made.finish(snapshot, (&policy, &nodes), cache, watch);
        }
    }
    let round = Round::estimate(snapshot, (&nodes, &policy), None, &mut cache.scratch);
    let made = round.run(watch).expect("only a warm round gives up");
    made.finish(snapshot, (&policy, &nodes), cache, watch)
}

/// What a round arrived at.
pub(crate) struct Made {
    pub(crate) decisions: Vec<Decision>,
    room: Room,
    allocated: Vec<Shape>,
    loss: f64,
}

impl Made {
    fn finish(
        self,
        snapshot: &Snapshot,
        policy_and_nodes: (&Policy, &[&NodeInput]),
        cache: &mut Cache,
        watch: &mut dyn FnMut(Stage),
    ) -> Plan {
        cache.keep(snapshot, policy_and_nodes, self.room, (&self.allocated, self.loss));
        watch(Stage::Placed);
        Plan { revision: snapshot.revision, decisions: self.decisions }
    }
}

/// A round on its way.
pub(crate) struct Round<'a> {
    pub(crate) policy: &'a Policy,
    /// By id; nodes go by their place here.
    pub(crate) nodes: &'a [&'a NodeInput],
    /// In the snapshot's order; jobs are named by their index in it.
    pub(crate) entries: Vec<Entry<'a>>,
    pub(crate) room: Room,
    /// Jobs by arrival, then id.
    pub(crate) order: Vec<usize>,
    /// What the allocation gave each job.
    pub(crate) allocated: Vec<Shape>,
    /// In a warm round what the nodes' boundaries cost in the last one.
    warm_loss: Option<f64>,
    /// Jobs among which the total was shared out, by arrival.
    claimed: Vec<usize>,
    /// In a warm round what the last one gave each job that has not changed.
    pub(crate) warm: Option<Vec<Option<Shape>>>,
    /// Jobs whose least shape was looked for before all others.
    pub(crate) admitted: Vec<bool>,
    /// Jobs that had to shrink, and for whom.
    pub(crate) forced: BTreeMap<usize, usize>,
    /// Jobs that shrink so that another can grow, and for whom.
    pub(crate) giving: BTreeMap<usize, usize>,
    /// What is to be said of jobs beside what the books show.
    pub(crate) notes: BTreeMap<usize, Words>,
    /// Tasks that this round may still take away to see whether that makes room.
    pub(crate) takes_left: u32,
    /// Under FIFO the first job that has to wait.
    pub(crate) head: Option<usize>,
    /// When the snapshot was taken.
    pub(crate) now: Millis,
    /// Under the look ahead what it says of each job, and for how long its choice holds, in s.
    pub(crate) outlook: Vec<(usize, Given)>,
    pub(crate) span_s: f64,
    /// What a unit of each job's work was worth before anybody was left out.
    pub(crate) prices: Vec<(usize, f64)>,
    /// Whether jobs are shared out by goodput.
    pub(crate) by_goodput: bool,
    pub(crate) scratch: &'a mut Scratch,
}

/// Bounds the cost of a round with many jobs that wait and many that could give up tasks.
const TAKES_MAX: u32 = 4096;
/// A warm round may place this much worse than the last one.
const LOSS_MORE_MAX: f64 = 1.0003;
/// Times that jobs which start with less than their allocation are looked at again, as others
/// moved meanwhile: so that the next round finds nothing better at once.
const SETTLING_MAX: usize = 3;

impl<'a> Round<'a> {
    pub(crate) fn estimate(
        snapshot: &'a Snapshot,
        (nodes, policy): (&'a [&'a NodeInput], &'a Policy),
        warm: Option<Warm>,
        scratch: &'a mut Scratch,
    ) -> Self {
        let warm_loss = warm.as_ref().map(|warm| warm.loss);
        let (mut room, warm) = match warm {
            Some(warm) => (warm.room, Some(warm.allocated)),
            None => {
                let asked = snapshot.jobs.iter().flat_map(|job| [&job.worker, &job.server]);
                (Room::new(nodes, &snapshot.jobs, Kinds::of(asked)), None)
            }
        };
        let entries = entries(snapshot, nodes, policy, &mut room);
        let mut order: Vec<usize> = (0..entries.len()).collect();
        let key = |job: &usize| (entries[*job].input.arrival, entries[*job].input.id);
        if !order.is_sorted_by_key(key) {
            order.sort_by_key(key);
        }
        Self {
            policy,
            nodes,
            allocated: vec![Shape::default(); entries.len()],
            claimed: Vec::new(),
            warm_loss,
            warm,
            admitted: vec![false; entries.len()],
            forced: BTreeMap::new(),
            giving: BTreeMap::new(),
            notes: BTreeMap::new(),
            takes_left: TAKES_MAX,
            head: None,
            now: snapshot.now,
            outlook: Vec::new(),
            span_s: 0.0,
            prices: Vec::new(),
            by_goodput: snapshot.goes_by_goodput(policy),
            scratch,
            entries,
            room,
            order,
        }
    }

    /// The whole round. None where a warm one would do worse than one from the start.
    fn run(mut self, watch: &mut dyn FnMut(Stage)) -> Option<Made> {
        self.steps(watch)?;
        Some(self.made())
    }

    /// The round up to its decisions.
    pub(crate) fn steps(&mut self, watch: &mut dyn FnMut(Stage)) -> Option<()> {
        if self.warm.is_some() && self.has_fixed() {
            return None;
        }
        self.serve_fixed(|_| true);
        self.keep_starts();
        self.share_out(watch)?;
        // In a large cluster everything else was tried in the last round, or costs too much.
        let passes = if self.warm.is_some() { 1 } else { SETTLING_MAX };
        if self.warm.is_some() || self.room.node_count() <= NODES_FEW {
            for _ in 0..passes {
                let short = self.short_starts();
                if !self.regrow(short.into_iter()) {
                    break;
                }
            }
        }
        self.reshape_forced();
        self.rebalance();
        // Where more of what was given finds no place than in the last round, it is better to
        // place everything anew.
        if let Some(known) = self.warm_loss
            && self.loss() > known * LOSS_MORE_MAX
        {
            return None;
        }
        Some(())
    }

    pub(crate) fn made(mut self) -> Made {
        let decisions = explain::decisions(&mut self);
        let loss = self.loss();
        let Self { room, allocated, .. } = self;
        Made { decisions, room, allocated, loss }
    }

    fn has_fixed(&self) -> bool {
        self.entries.iter().any(|entry| !entry.is_share() && entry.may_get())
    }

    /// Jobs that are profiled or pinned get their shapes, once each of these has its least.
    pub(crate) fn serve_fixed(&mut self, first: impl Fn(&Entry<'_>) -> bool) {
        if self.has_fixed() {
            let first = self.left_out(first);
            self.admit(&first);
            self.profile_and_pin();
        }
    }

    /// Jobs that need a place and were not admitted yet, by arrival.
    pub(crate) fn left_out(&self, of: impl Fn(&Entry<'_>) -> bool) -> Vec<usize> {
        let out = |job: &usize| {
            let entry = &self.entries[*job];
            entry.needs_place() && !self.admitted[*job] && of(entry)
        };
        self.order.iter().copied().filter(out).collect()
    }

    /// Allocates and places. Where a job found nothing at all and somebody who came after it got
    /// something, everything is undone: then all get their least shapes by arrival before any
    /// gets more.
    fn share_out(&mut self, watch: &mut dyn FnMut(Stage)) -> Option<()> {
        loop {
            self.allocate();
            watch(Stage::Allocated);
            let mut started = self.start();
            self.spare(&mut started);
            let out = self.left_out(|entry| entry.is_share() && !entry.placed);
            watch(Stage::Placed);
            let Some(first) = out.first().map(|job| self.arrived(*job)) else { break };
            if self.warm.is_some() {
                return None;
            }
            if started.iter().all(|(job, _)| self.arrived(*job) < first) {
                self.admit(&out);
                break;
            }
            for (job, before) in started {
                self.entries[job].placed = false;
                self.room.lift(job);
                self.room.lower(job, before.clone(), before);
            }
            // Nobody is left out of the next turn: it is the last.
            let all = self.left_out(|entry| entry.is_share());
            self.admit(&all);
        }
        // Jobs stand elsewhere than when these were looked at.
        let waits = |job: &usize| {
            let entry = &self.entries[*job];
            let nothing = self.room.hold(*job).goal.is_empty();
            entry.is_share() && entry.needs_place() && self.admitted[*job] && nothing
        };
        let waiting: Vec<usize> = self.order.iter().copied().filter(waits).collect();
        self.admit(&waiting);
        Some(())
    }

    pub(crate) fn arrived(&self, job: usize) -> (Millis, JobId) {
        (self.entries[job].input.arrival, self.entries[job].input.id)
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

    /// Shares the cluster's total out anew among the sharing jobs that have or may get anything.
    pub(crate) fn allocate(&mut self) {
        let claiming = |job: &usize| {
            let entry = &self.entries[*job];
            let has = match entry.standing {
                Standing::Running => true,
                Standing::Waiting | Standing::Displaced { .. } => {
                    !self.admitted[*job] || !self.room.hold(*job).goal.is_empty()
                }
                Standing::Fixed | Standing::Unfit { .. } => false,
            };
            entry.is_share() && has
        };
        let jobs: Vec<usize> = self.order.iter().copied().filter(claiming).collect();
        if self.claimed == jobs && !jobs.is_empty() {
            // The same claims on the same total: placing anew changes nothing here.
            return;
        }
        let mut free = self.room.total_left().to_vec();
        for job in &jobs {
            let open =
                self.room.hold(*job).goal.iter().filter(|(node, _)| self.room.is_open(*node));
            let held = sum_of(open.map(|(_, here)| *here));
            for (free, more) in free.iter_mut().zip(self.room.demand(*job).of(held)) {
                *free += more;
            }
        }
        let given = match self.policy.allocation {
            Allocation::MarginalGain => self.share_by_gain(&jobs, free),
            Allocation::Horizon => self.share_by_outlook(&jobs, &free),
            Allocation::Drf
            | Allocation::Tetris
            | Allocation::Fifo
            | Allocation::Tiresias
            | Allocation::Pollux => self.share_simply(&jobs, &free),
        };
        self.allocated.fill(Shape::default());
        for (job, shape) in jobs.iter().zip(given) {
            self.allocated[*job] = shape;
        }
        self.claimed = jobs;
        self.lift_changed_starts();
    }

    fn share_by_gain(&self, jobs: &[usize], free: Vec<i128>) -> Vec<Shape> {
        let claims =
            jobs.iter().map(|job| (&self.entries[*job].gains, self.room.demand(*job))).collect();
        let mut sharing = Sharing::new(free, claims);
        match &self.warm {
            Some(known) => {
                let known: Vec<Option<Shape>> = jobs.iter().map(|job| known[*job]).collect();
                sharing.give_again(&known);
            }
            None => {
                sharing.give_least();
                sharing.give_rest();
            }
        }
        sharing.into_given()
    }

    /// Sharing jobs that this round may start or move, the smallest allocation first; ties by
    /// arrival.
    pub(crate) fn starting(&self) -> Vec<usize> {
        let mut starting: Vec<(f64, usize)> = self
            .order
            .iter()
            .copied()
            .filter(|job| {
                let entry = &self.entries[*job];
                let free = !self.admitted[*job] || self.is_placed_anew(*job);
                entry.is_share() && entry.needs_place() && free && !entry.placed
            })
            .map(|job| {
                let demand = self.room.demand(job);
                let shares = demand.of(self.allocated[job]).zip(self.room.total());
                let share = shares.map(|(need, total)| dominant_share(&[need], &[*total]));
                (share.fold(0.0, f64::max), job)
            })
            .collect();
        starting.sort_by(|a, b| a.0.total_cmp(&b.0));
        starting.into_iter().map(|(_, job)| job).collect()
    }

    /// Places what starts. Returns the jobs that got a place, with what they held before.
    fn start(&mut self) -> Vec<(usize, Spots)> {
        let mut started = Vec::new();
        let mut refusals = Refusals::default();
        for job in self.starting() {
            let (whole, least) = (self.allocated[job], self.entries[job].gains.least);
            if whole.is_empty() || refusals.knows(&self.room, job, least) {
                continue;
            }
            let before = self.room.hold(job).next.clone();
            self.room.lift(job);
            let gains = &self.entries[job].gains;
            let shapes = (whole, Shrink::ByLoss(gains));
            match find_first(&self.room, job, shapes, Effort::Full, self.scratch) {
                Some((_, spots)) => {
                    self.room.lower(job, spots.clone(), spots);
                    self.entries[job].placed = true;
                    started.push((job, before));
                }
                None => {
                    self.room.lower(job, before.clone(), before);
                    refusals.add(&self.room, job, least);
                }
            }
        }
        started
    }

    /// Jobs that must move anyway move to their allocation, as far as it fits.
    fn reshape_forced(&mut self) {
        for job in self.forced.keys().copied().collect::<Vec<_>>() {
            let shrunk = self.room.hold(job).goal.clone();
            if self.allocated[job].is_empty() {
                continue;
            }
            let (whole, gains) = (self.allocated[job], &self.entries[job].gains);
            self.room.lift(job);
            let shapes = (whole, Shrink::ByLoss(gains));
            let found = find_first(&self.room, job, shapes, Effort::Full, self.scratch);
            let found = found.filter(|(shape, _)| {
                let entry = &self.entries[job];
                let seconds = |shape| entry.seconds_left(shape).unwrap_or(0.0);
                *shape == self.allocated[job] || seconds(*shape) < seconds(shape_of(&shrunk))
            });
            let spots = found.map_or(shrunk, |(_, spots)| spots);
            self.room.lower(job, spots.clone(), spots);
        }
    }
}
