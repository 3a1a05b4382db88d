//! A least shape for every job that has nothing, in order of arrival: with the room there is, and
//! else with room that running jobs give up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use model::Shape;

use crate::allocate::{Kind, within};
use crate::entry::{Aim, Standing};
use crate::place::find;
use crate::room::{Spots, View, shape_of};
use crate::round::Round;

/// A task taken from a job to make room.
#[derive(Clone, Copy, Debug)]
struct Taken {
    from: usize,
    node: usize,
    kind: Kind,
}

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
    /// Gives or reserves the least shape of every job that needs a place. Each later job sees
    /// what the earlier ones were given, so that nobody overtakes.
    pub(crate) fn admit(&mut self) {
        for job in self.order.clone() {
            if !self.entries[job].needs_place() {
                continue;
            }
            let least = self.entries[job].gains.least;
            self.room.lift(job);
            if let Some(spots) = find(&self.room, job, least, View::Both, self.scratch) {
                self.room.lower(job, spots.clone(), spots);
                continue;
            }
            let idle = self.idle(job);
            let reserved = find(&self.room, job, least, View::Then, self.scratch)
                .or_else(|| self.make_room(job, least));
            let goal = reserved.unwrap_or_else(|| idle.clone());
            self.room.lower(job, idle, goal);
        }
    }

    /// What a job that needs a place holds while it gets none.
    fn idle(&self, job: usize) -> Spots {
        match self.entries[job].standing {
            Standing::Displaced { lost: false, .. } => self.room.hold(job).current.clone(),
            Standing::Displaced { lost: true, .. }
            | Standing::Waiting
            | Standing::Running
            | Standing::Fixed
            | Standing::Unfit { .. } => Spots::new(),
        }
    }

    /// True where a job could give up tasks: it runs on open nodes above its least shape. A job
    /// on a closed node would have to start all its tasks elsewhere.
    fn can_give(&self, job: usize) -> bool {
        let entry = &self.entries[job];
        let goal = &self.room.hold(job).goal;
        entry.standing == Standing::Running
            && !matches!(entry.aim, Aim::Pinned(_))
            && shape_of(goal) != entry.gains.least
            && within(entry.gains.least, shape_of(goal))
            && goal.iter().all(|(node, _)| self.room.node(*node).open)
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
        let mut heap: BinaryHeap<Reverse<(bool, Loss, usize)>> =
            givers.iter().filter_map(|giver| self.next_loss(*giver)).map(Reverse).collect();
        let mut taken = Vec::new();
        let mut found = None;
        while let Some(Reverse((_, _, giver))) = heap.pop() {
            let held = shape_of(&self.room.hold(giver).goal);
            let Some((kind, _)) = self.entries[giver].gains.least_loss(held) else { continue };
            let Some(node) = self.best_node(giver, kind, job, shape) else { continue };
            self.take(Taken { from: giver, node, kind });
            taken.push(Taken { from: giver, node, kind });
            found = find(&self.room, job, shape, View::Then, self.scratch);
            if found.is_some() {
                break;
            }
            heap.extend(self.next_loss(giver).map(Reverse));
        }
        for one in taken.iter().rev() {
            self.give_back(*one);
            match find(&self.room, job, shape, View::Then, self.scratch) {
                Some(spots) if found.is_some() => found = Some(spots),
                None if found.is_some() => self.take(*one),
                // Nothing would have sufficed: everything goes back.
                Some(_) | None => {}
            }
        }
        for one in taken {
            if shape_of(&self.room.hold(one.from).goal) != self.current_shape(one.from) {
                self.forced.entry(one.from).or_insert(job);
            }
        }
        found
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

    fn next_loss(&self, giver: usize) -> Option<(bool, Loss, usize)> {
        let entry = &self.entries[giver];
        let (_, loss) = entry.gains.least_loss(shape_of(&self.room.hold(giver).goal))?;
        Some((!entry.is_share(), Loss(loss), giver))
    }

    /// The node on which a task of `giver` helps the lifted job most: where its whole shape is
    /// closest to fitting; then where the giver has most tasks of the kind.
    #[expect(clippy::cast_precision_loss, reason = "only compared")]
    pub(crate) fn best_node(
        &self,
        giver: usize,
        kind: Kind,
        job: usize,
        shape: Shape,
    ) -> Option<usize> {
        let demand = self.room.demand(giver);
        let freed = if kind == Kind::Server { &demand.server } else { &demand.worker };
        let count = |here: &Shape| if kind == Kind::Server { here.servers } else { here.workers };
        let fit = |node: usize| {
            let left = self.room.left(node, View::Then).zip(freed).map(|(left, more)| left + more);
            let needs = self.room.demand(job).of(shape);
            let parts = left.zip(needs).filter(|(_, need)| *need > 0);
            parts.map(|(left, need)| left as f64 / need as f64).fold(1.0, f64::min)
        };
        let spots = self.room.hold(giver).goal.iter().filter(|(_, here)| count(here) > 0);
        spots
            .map(|(node, here)| (fit(*node), count(here), *node))
            .max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)))
            .map(|(_, _, node)| node)
    }

    fn take(&mut self, one: Taken) {
        let mut spots = self.room.hold(one.from).goal.clone();
        for (node, here) in &mut spots {
            if *node == one.node {
                *here = one.kind.taken_from(*here);
            }
        }
        spots.retain(|(_, here)| !here.is_empty());
        self.room.set(one.from, spots);
    }

    fn give_back(&mut self, one: Taken) {
        let mut spots = self.room.hold(one.from).goal.clone();
        match spots.iter_mut().find(|(node, _)| *node == one.node) {
            Some((_, here)) => *here = one.kind.added_to(*here),
            None => {
                spots.push((one.node, one.kind.added_to(Shape::default())));
                spots.sort_unstable_by_key(|(node, _)| *node);
            }
        }
        self.room.set(one.from, spots);
    }

    /// Shrinks a job where it stands to a shape within its own, in favour of the lifted job.
    pub(crate) fn shrink_in_place(&mut self, giver: usize, to: Shape, job: usize, shape: Shape) {
        for kind in [Kind::Server, Kind::Worker] {
            loop {
                let held = shape_of(&self.room.hold(giver).goal);
                if !within(to, kind.taken_from(held)) || kind.taken_from(held) == held {
                    break;
                }
                let Some(node) = self.best_node(giver, kind, job, shape) else { break };
                self.take(Taken { from: giver, node, kind });
            }
        }
    }
}
