//! A least shape for every job that has nothing, in order of arrival: with the room there is, and
//! else with room that running jobs give up.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use model::Shape;

use crate::allocate::{Kind, within};
use crate::entry::{Aim, Standing};
use crate::place::{find, find_on};
use crate::refusals::Refusals;
use crate::room::{Spots, View, shape_of};
use crate::round::Round;

/// A task taken from a job to make room.
#[derive(Clone, Copy, Debug)]
struct Taken {
    from: usize,
    node: usize,
    kind: Kind,
}

/// A task that could be taken. Jobs that are being profiled come last, then the least loss first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Offered {
    profiled: bool,
    loss: Loss,
    from: usize,
    kind: Kind,
}

/// Nodes with room for each kind of task that are looked at beside those on which tasks are taken.
const CANDIDATES: usize = 16;

/// Nodes on which room is made for one job, or as many as it has tasks.
const NEAR_MAX: usize = 64;

/// A loss that can be ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loss(f64);

impl Eq for Loss {}

impl PartialOrd for Loss {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Loss {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Round<'_> {
    /// Gives or reserves the least shape of each of these jobs in turn. Each later job sees what
    /// the earlier ones were given, so that nobody overtakes.
    pub(crate) fn admit(&mut self, jobs: &[usize]) {
        let mut refusals = Refusals::default();
        let any_gives = (0..self.entries.len()).any(|giver| self.can_give(giver));
        for job in jobs.iter().copied() {
            self.admitted[job] = true;
            let least = self.entries[job].gains.least;
            self.room.lift(job);
            if !refusals.knows(&self.room, job, least)
                && let Some(spots) = find(&self.room, job, least, View::Both, self.scratch)
            {
                self.room.lower(job, spots.clone(), spots);
                continue;
            }
            let idle = self.idle(job);
            let reserved = if refusals.knows(&self.room, job, least) {
                None
            } else {
                let then = self.room.awaits_room();
                then.then(|| find(&self.room, job, least, View::Then, self.scratch))
                    .flatten()
                    .or_else(|| any_gives.then(|| self.make_room(job, least)).flatten())
            };
            if reserved.is_none() {
                refusals.add(&self.room, job, least);
            }
            match reserved {
                // Made by jobs that have not started yet: it is free at once.
                Some(spots) if self.is_free(job, &spots) => {
                    self.room.lower(job, spots.clone(), spots);
                }
                Some(spots) => self.room.lower(job, idle, spots),
                None => self.room.lower(job, idle.clone(), idle),
            }
        }
    }

    /// True where spots of a lifted job are free of what is there now.
    fn is_free(&self, job: usize, spots: &Spots) -> bool {
        spots.iter().all(|(node, here)| {
            let needs = self.room.demand(job).of(*here);
            let mut left = self.room.left(*node, View::Both).zip(needs);
            left.all(|(left, need)| need == 0 || need <= left)
        })
    }

    /// What a job that needs a place holds while it gets none.
    pub(crate) fn idle(&self, job: usize) -> Spots {
        match self.entries[job].standing {
            Standing::Displaced { lost: false, .. } => self.room.hold(job).current.clone(),
            Standing::Displaced { lost: true, .. }
            | Standing::Waiting
            | Standing::Running
            | Standing::Fixed
            | Standing::Unfit { .. } => Spots::default(),
        }
    }

    /// True where a job could give up tasks: it runs on open nodes above its least shape, or is to
    /// start like that. A job on a closed node would have to start all its tasks elsewhere.
    fn can_give(&self, job: usize) -> bool {
        let entry = &self.entries[job];
        let goal = &self.room.hold(job).goal;
        let starts = entry.placed && self.room.hold(job).current.is_empty();
        (entry.standing == Standing::Running || starts)
            && !matches!(entry.aim, Aim::Pinned(_))
            && shape_of(goal) != entry.gains.least
            && within(entry.gains.least, shape_of(goal))
            && goal.iter().all(|(node, _)| self.room.is_open(*node))
    }

    /// Takes tasks from running jobs, the least loss first, until `shape` of the lifted job fits
    /// then; gives back what was not needed after all. Jobs that are being profiled come last:
    /// nobody knows what they lose. Returns the reserved spots.
    fn make_room(&mut self, job: usize, shape: Shape) -> Option<Spots> {
        let givers: Vec<usize> =
            (0..self.entries.len()).filter(|giver| self.can_give(*giver)).collect();
        if givers.is_empty() || !self.could_suffice(job, shape, &givers) {
            return None;
        }
        let each = givers.iter().flat_map(|giver| Kind::BOTH.map(|kind| (*giver, kind)));
        let mut heap: BinaryHeap<Reverse<Offered>> =
            each.filter_map(|(giver, kind)| self.offered(giver, kind)).map(Reverse).collect();
        let (candidates, _) = self.room.candidates(job, View::Then, CANDIDATES, usize::MAX);
        let mut near: BTreeSet<usize> = candidates.into_iter().collect();
        let tasks = usize::try_from(shape.servers.saturating_add(shape.workers));
        let near_max = NEAR_MAX.max(tasks.unwrap_or(usize::MAX));
        let mut taken = Vec::new();
        let mut found = None;
        while let Some(Reverse(offered)) = heap.pop() {
            if near.len() > near_max || self.takes_left == 0 {
                break;
            }
            let Offered { from, kind, .. } = offered;
            let Some(now) = self.offered(from, kind) else { continue };
            // The job may have given another task since.
            if now != offered {
                heap.push(Reverse(now));
                continue;
            }
            let Some(node) = self.best_node(from, kind, job, shape) else { continue };
            self.takes_left -= 1;
            self.take(Taken { from, node, kind });
            taken.push(Taken { from, node, kind });
            near.insert(node);
            found = self.find_near(job, shape, &near);
            if found.is_some() {
                break;
            }
            heap.extend(self.offered(from, kind).map(Reverse));
        }
        if found.is_none() {
            // Nodes that were not near may help where all has been given.
            found = find(&self.room, job, shape, View::Then, self.scratch);
        }
        let found = self.keep_needed(job, shape, &taken, found, &near);
        for one in taken {
            if shape_of(&self.room.hold(one.from).goal) != self.current_shape(one.from) {
                self.forced.entry(one.from).or_insert(job);
            }
        }
        found
    }

    /// Gives back every task without which the lifted job fits as well, the last taken first; all
    /// of them where it does not fit in any way.
    fn keep_needed(
        &mut self,
        job: usize,
        shape: Shape,
        taken: &[Taken],
        found: Option<Spots>,
        near: &BTreeSet<usize>,
    ) -> Option<Spots> {
        let mut found = found;
        for one in taken.iter().rev() {
            // A task on another node than the reserved ones is not in the way.
            let spots =
                found.iter().flat_map(|spots| spots.iter()).any(|(node, _)| *node == one.node);
            self.give_back(*one);
            if !spots {
                continue;
            }
            match self.find_near(job, shape, near) {
                Some(spots) => found = Some(spots),
                None => self.take(*one),
            }
        }
        found
    }

    /// Places the lifted job on nodes that were roomy before, or on which tasks were taken.
    fn find_near(&mut self, job: usize, shape: Shape, near: &BTreeSet<usize>) -> Option<Spots> {
        let nodes: Vec<usize> = near.iter().copied().collect();
        find_on(&self.room, job, shape, (View::Then, &nodes), self.scratch)
    }

    /// False where not even all that could be given up would be enough for the whole shape.
    fn could_suffice(&self, job: usize, shape: Shape, givers: &[usize]) -> bool {
        let mut most: Vec<i128> = self.room.total_left().to_vec();
        for giver in givers {
            let (held, least) =
                (shape_of(&self.room.hold(*giver).goal), self.entries[*giver].gains.least);
            let spare = Shape::new(held.servers - least.servers, held.workers - least.workers);
            for (most, spare) in most.iter_mut().zip(self.room.demand(*giver).of(spare)) {
                *most += spare;
            }
        }
        self.room.demand(job).of(shape).zip(&most).all(|(need, most)| need <= *most)
    }

    fn offered(&self, from: usize, kind: Kind) -> Option<Offered> {
        let entry = &self.entries[from];
        let loss = entry.gains.loss(shape_of(&self.room.hold(from).goal), kind)?;
        Some(Offered { profiled: !entry.is_share(), loss: Loss(loss), from, kind })
    }

    /// The node on which a task of `giver` helps the lifted job most: where its whole shape then
    /// is closest to fitting; then where the giver has most tasks of the kind. None where it
    /// helps nowhere, as it frees nothing that is short.
    pub(crate) fn best_node(
        &self,
        giver: usize,
        kind: Kind,
        job: usize,
        shape: Shape,
    ) -> Option<usize> {
        let demand = self.room.demand(giver);
        let freed = if kind == Kind::Server { demand.server() } else { demand.worker() };
        let count = |here: &Shape| if kind == Kind::Server { here.servers } else { here.workers };
        let spots = self.room.hold(giver).goal.iter().filter(|(_, here)| count(here) > 0);
        spots
            .filter_map(|(node, here)| Some((self.help(*node, freed, job, shape)?, here, *node)))
            .max_by(|a, b| {
                a.0.total_cmp(&b.0).then(count(a.1).cmp(&count(b.1))).then(a.2.cmp(&b.2))
            })
            .map(|(_, _, node)| node)
    }

    /// Where a job has most tasks of a kind.
    fn fullest_node(&self, giver: usize, kind: Kind) -> Option<usize> {
        let spots = self.room.hold(giver).goal.iter();
        let count = |here: Shape| if kind == Kind::Server { here.servers } else { here.workers };
        spots.map(|(node, here)| (count(*here), *node)).max().map(|(_, node)| node)
    }

    /// How much of the scarcest kind for `shape` a node has once `freed` is given up there, in 0
    /// to 1; none where the node lacks nothing that is freed.
    #[expect(clippy::cast_precision_loss, reason = "only compared")]
    fn help(&self, node: usize, freed: &[i128], job: usize, shape: Shape) -> Option<f64> {
        let (mut scarcest, mut helps) = (1.0_f64, false);
        let needs = self.room.demand(job).of(shape);
        for ((left, more), need) in self.room.left(node, View::Then).zip(freed).zip(needs) {
            if need > 0 {
                helps |= *more > 0 && left < need;
                scarcest = scarcest.min((left + more) as f64 / need as f64);
            }
        }
        helps.then_some(scarcest)
    }

    fn take(&mut self, one: Taken) {
        let mut spots = self.room.hold(one.from).goal.to_vec();
        for (node, here) in &mut spots {
            if *node == one.node {
                *here = one.kind.taken_from(*here);
            }
        }
        spots.retain(|(_, here)| !here.is_empty());
        self.room.set(one.from, spots.into());
    }

    fn give_back(&mut self, one: Taken) {
        let mut spots = self.room.hold(one.from).goal.to_vec();
        match spots.iter_mut().find(|(node, _)| *node == one.node) {
            Some((_, here)) => *here = one.kind.added_to(*here),
            None => {
                spots.push((one.node, one.kind.added_to(Shape::default())));
                spots.sort_unstable_by_key(|(node, _)| *node);
            }
        }
        self.room.set(one.from, spots.into());
    }

    /// Shrinks a job where it stands to a shape within its own, in favour of the lifted job.
    pub(crate) fn shrink_in_place(&mut self, giver: usize, to: Shape, job: usize, shape: Shape) {
        for kind in [Kind::Server, Kind::Worker] {
            loop {
                let held = shape_of(&self.room.hold(giver).goal);
                if !within(to, kind.taken_from(held)) || kind.taken_from(held) == held {
                    break;
                }
                let best = self.best_node(giver, kind, job, shape);
                let Some(node) = best.or_else(|| self.fullest_node(giver, kind)) else { break };
                self.take(Taken { from: giver, node, kind });
            }
        }
    }
}
