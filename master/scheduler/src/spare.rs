//! Least shapes for jobs that found no place because others were given more than theirs in this
//! very round: where a cluster is full, what is left over in the end is scattered.

use std::collections::BTreeSet;

use model::Shape;

use crate::allocate::Kind;
use crate::place::{Effort, Shrink, find_first};
use crate::refusals::Refusals;
use crate::room::{Room, Spots, View, shape_of};
use crate::round::Round;

/// Jobs that are asked in turn for one that needs room, nodes looked at for one that needs a
/// special kind, and the tasks that are given up on one node at most.
const GIVERS_MAX: usize = 32;
const NODES_MAX: usize = 64;
const TASKS_MAX: usize = 8;

/// Jobs that were just placed, in the order in which they are asked.
#[derive(Debug, Default)]
struct Givers {
    jobs: Vec<usize>,
    next: usize,
    /// Where they stood at first, by node.
    by_node: Vec<(usize, usize)>,
    /// Who gave anything.
    shrunk: BTreeSet<usize>,
    /// Nodes with a special kind that helped nobody: there are enough others.
    useless: BTreeSet<usize>,
}

impl Givers {
    fn on(&self, node: usize) -> impl Iterator<Item = usize> {
        let from = self.by_node.partition_point(|(at, _)| *at < node);
        let here = self.by_node[from..].iter().take_while(move |(at, _)| *at == node);
        here.map(|(_, job)| *job)
    }
}

impl Round<'_> {
    /// Every job that is left out, by arrival, gets its least shape on a node on which jobs that
    /// were just placed give up as few tasks as it takes. Each giver is asked once before any is
    /// asked again, the largest first: after an allocation all lose about the same.
    pub(crate) fn spare(&mut self, started: &mut Vec<(usize, Spots)>) {
        let out = self.left_out(|entry| entry.is_share() && !entry.placed);
        // What a running job holds is free only once it has stopped.
        let fresh = |job: &usize| {
            let hold = self.room.hold(*job);
            hold.current.is_empty() && shape_of(&hold.next) != self.entries[*job].gains.least
        };
        let jobs: Vec<usize> = started.iter().rev().map(|(job, _)| *job).filter(fresh).collect();
        if out.is_empty() || jobs.is_empty() {
            return;
        }
        let mut givers = Givers { jobs, ..Givers::default() };
        for job in &givers.jobs {
            givers.by_node.extend(self.room.hold(*job).next.iter().map(|(node, _)| (*node, *job)));
        }
        givers.by_node.sort_unstable();
        let mut refusals = Refusals::default();
        let mut spared = Vec::new();
        for job in out {
            let least = self.entries[job].gains.least;
            if refusals.knows(&self.room, job, least) {
                continue;
            }
            let before = self.room.hold(job).next.clone();
            self.room.lift(job);
            match self.spared_spots(&mut givers, job, least) {
                Some(spots) => {
                    self.room.lower(job, spots.clone(), spots);
                    self.entries[job].placed = true;
                    started.push((job, before));
                    spared.push(job);
                }
                None => {
                    self.room.lower(job, before.clone(), before);
                    refusals.add(&self.room, job, least);
                }
            }
        }
        let shrunk = std::mem::take(&mut givers.shrunk);
        self.regrow(shrunk.into_iter().chain(spared));
    }

    /// All on one node, or else the workers on one and the servers on another.
    fn spared_spots(&mut self, givers: &mut Givers, job: usize, least: Shape) -> Option<Spots> {
        if let Some(node) = self.ask(givers, job, least) {
            return Some(vec![(node, least)].into());
        }
        let (servers, workers) = (Shape::new(least.servers, 0), Shape::new(0, least.workers));
        let near = self.ask(givers, job, workers)?;
        let workers = Spots::from(vec![(near, workers)]);
        self.room.lower(job, workers.clone(), workers.clone());
        let far = self.ask(givers, job, servers);
        self.room.lift(job);
        let far = far?;
        let mut spots = vec![(near, workers[0].1), (far, servers)];
        if near == far {
            spots = vec![(near, least)];
        }
        spots.sort_unstable_by_key(|(node, _)| *node);
        Some(spots.into())
    }

    /// A node on which these tasks of the job fit, if need be once others have given up theirs.
    fn ask(&mut self, givers: &mut Givers, job: usize, shape: Shape) -> Option<usize> {
        let demand = self.room.demand(job);
        let special = if shape.workers > 0 { demand.worker() } else { demand.server() };
        match Room::special_kind(special) {
            Some(kind) => {
                let useful = self.room.having(kind).filter(|node| !givers.useless.contains(node));
                let nodes: Vec<usize> = useful.take(NODES_MAX).collect();
                for node in nodes {
                    if self.free_up(givers, node, job, shape) {
                        return Some(node);
                    }
                    givers.useless.insert(node);
                }
                None
            }
            None => self.ask_in_turn(givers, job, shape),
        }
    }

    /// Any node will do: asks one giver after another.
    fn ask_in_turn(&mut self, givers: &mut Givers, job: usize, shape: Shape) -> Option<usize> {
        let count = givers.jobs.len();
        for at in givers.next..givers.next + GIVERS_MAX.min(count) {
            let giver = givers.jobs[at % count];
            let nodes: Vec<usize> =
                self.room.hold(giver).next.iter().rev().map(|(node, _)| *node).collect();
            if let Some(node) =
                nodes.into_iter().find(|node| self.free_up(givers, *node, job, shape))
            {
                givers.next = (at + 1) % count;
                return Some(node);
            }
        }
        None
    }

    /// Lets jobs give up tasks on a node, the least loss first, until these tasks of the lifted
    /// job fit there; false, and nothing given up, where that does not help.
    fn free_up(&mut self, givers: &mut Givers, node: usize, job: usize, shape: Shape) -> bool {
        let needs: Vec<i128> = self.room.demand(job).of(shape).collect();
        let mut left: Vec<i128> = self.room.left(node, View::Both).collect();
        let fits =
            |left: &[i128]| left.iter().zip(&needs).all(|(left, need)| need <= left || *need == 0);
        let mut here: Vec<(usize, Shape, Shape)> = Vec::new();
        if !fits(&left) {
            for giver in givers.on(node) {
                let spots = &self.room.hold(giver).next;
                let shape = spots.iter().find(|(at, _)| *at == node).map(|(_, shape)| *shape);
                here.extend(shape.map(|shape| (giver, shape, shape_of(spots))));
            }
        }
        let before = here.clone();
        for _ in 0..TASKS_MAX {
            if fits(&left) {
                break;
            }
            let Some((at, kind)) = self.least_loss_of(&here) else { return false };
            let (giver, held, whole) = &mut here[at];
            let demand = self.room.demand(*giver);
            let freed = if kind == Kind::Server { demand.server() } else { demand.worker() };
            for (left, freed) in left.iter_mut().zip(freed) {
                *left += freed;
            }
            (*held, *whole) = (kind.taken_from(*held), kind.taken_from(*whole));
        }
        if !fits(&left) {
            return false;
        }
        for ((giver, held, _), (_, original, _)) in here.into_iter().zip(before) {
            if held != original {
                let mut spots = self.room.hold(giver).next.to_vec();
                spots.iter_mut().filter(|(at, _)| *at == node).for_each(|(_, here)| *here = held);
                spots.retain(|(_, here)| !here.is_empty());
                self.room.set(giver, spots.into());
                givers.shrunk.insert(giver);
            }
        }
        true
    }

    /// Of jobs with what each has on a node and in all: whose task matters least.
    fn least_loss_of(&self, here: &[(usize, Shape, Shape)]) -> Option<(usize, Kind)> {
        let losses = here.iter().enumerate().flat_map(|(at, (giver, held, whole))| {
            let gains = &self.entries[*giver].gains;
            let kinds = Kind::BOTH.into_iter().filter(|kind| kind.taken_from(*held) != *held);
            kinds.filter_map(move |kind| Some((gains.loss(*whole, kind)?, at, kind)))
        });
        losses.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, at, kind)| (at, kind))
    }

    /// Who gave tasks may find a better place elsewhere, and leave room for who got them. True
    /// where somebody did.
    pub(crate) fn regrow(&mut self, jobs: impl Iterator<Item = usize>) -> bool {
        let mut any = false;
        for job in jobs {
            let (whole, gains) = (self.allocated[job], &self.entries[job].gains);
            let before = self.room.hold(job).next.clone();
            self.room.lift(job);
            let shapes = (whole, Shrink::ByLoss(gains));
            let found = find_first(&self.room, job, shapes, Effort::Little, self.scratch);
            let held_s = gains.seconds_left(shape_of(&before));
            let better = found.filter(|(shape, _)| gains.seconds_left(*shape) < held_s);
            any |= better.is_some();
            let spots = better.map_or(before, |(_, spots)| spots);
            self.room.lower(job, spots.clone(), spots);
        }
        any
    }
}
