//! Least shapes for jobs that found no place because others were given more than theirs in this
//! very round: where a cluster is full, what is left over in the end is scattered.

use std::collections::BTreeSet;

use model::Shape;

use crate::allocate::{Kind, within};
use crate::place::{Effort, find_first};
use crate::room::{Spot, Spots, View, shape_of};
use crate::round::{Refusals, Round};

/// Jobs that are asked in turn for one that needs room, nodes looked at for one that needs a
/// special kind, and the tasks that each giver gives at most.
const GIVERS_MAX: usize = 32;
const NODES_MAX: usize = 64;
const TASKS_MAX: u32 = 8;

/// Jobs that were just placed, in the order in which they are asked.
#[derive(Debug, Default)]
struct Givers {
    jobs: Vec<usize>,
    next: usize,
    /// Where they stand, by node; filled where it is first asked for.
    by_node: Vec<(usize, usize)>,
    /// Nodes that helped nobody.
    useless: BTreeSet<usize>,
}

impl Round<'_> {
    /// Every job that is left out, by arrival, gets its least shape on a node on which a job that
    /// was just placed gives up as few tasks as it takes. Each giver is asked once before any is
    /// asked again, the largest first: after an allocation all lose about the same.
    pub(crate) fn spare(&mut self, started: &mut Vec<(usize, Spots)>) {
        let out = self.left_out(|entry| entry.is_share() && !entry.placed);
        // What a running job holds is free only once it has stopped.
        let fresh = |job: &usize| self.room.hold(*job).current.is_empty();
        let jobs: Vec<usize> = started.iter().rev().map(|(job, _)| *job).filter(fresh).collect();
        if out.is_empty() || jobs.is_empty() {
            return;
        }
        let mut givers = Givers { jobs, ..Givers::default() };
        let mut refusals = Refusals::default();
        let (mut shrunk, mut spared) = (BTreeSet::new(), Vec::new());
        for job in out {
            let least = self.entries[job].gains.least;
            if refusals.knows(&self.room, job, least) {
                continue;
            }
            let before = self.room.hold(job).next.clone();
            self.room.lift(job);
            let given = match self.room.special_kind(job) {
                Some(kind) => self.ask_on_nodes(&mut givers, kind, job, least),
                None => self.ask_in_turn(&mut givers, job, least),
            };
            match given {
                Some((giver, node)) => {
                    let spots = Spots::from(vec![(node, least)]);
                    self.room.lower(job, spots.clone(), spots);
                    self.entries[job].placed = true;
                    started.push((job, before));
                    shrunk.insert(giver);
                    spared.push(job);
                }
                None => {
                    self.room.lower(job, before.clone(), before);
                    refusals.add(&self.room, job, least);
                }
            }
        }
        self.regrow(shrunk.into_iter().chain(spared));
    }

    /// Any node will do: asks one giver after another. Returns who gave, and on which node.
    fn ask_in_turn(
        &mut self,
        givers: &mut Givers,
        job: usize,
        shape: Shape,
    ) -> Option<(usize, usize)> {
        let count = givers.jobs.len();
        let at = (givers.next..givers.next + GIVERS_MAX.min(count)).find_map(|at| {
            let giver = givers.jobs[at % count];
            self.give_up(giver, job, shape).map(|node| (at, giver, node))
        });
        at.map(|(at, giver, node)| {
            givers.next = (at + 1) % count;
            (giver, node)
        })
    }

    /// Only nodes with a special kind help: asks those who stand there.
    fn ask_on_nodes(
        &mut self,
        givers: &mut Givers,
        kind: usize,
        job: usize,
        shape: Shape,
    ) -> Option<(usize, usize)> {
        if givers.by_node.is_empty() {
            let spots = |job: &usize| {
                let job = *job;
                self.room.hold(job).next.iter().map(move |(node, _)| (*node, job))
            };
            givers.by_node = givers.jobs.iter().flat_map(spots).collect();
            givers.by_node.sort_unstable();
        }
        let nodes: Vec<usize> = self
            .room
            .having(kind)
            .filter(|node| !givers.useless.contains(node))
            .take(NODES_MAX)
            .collect();
        for node in nodes {
            let from = givers.by_node.partition_point(|(at, _)| *at < node);
            let here = givers.by_node[from..].iter().take_while(|(at, _)| *at == node);
            for (_, giver) in here {
                if self.give_up_on(*giver, node, job, shape) {
                    return Some((*giver, node));
                }
            }
            givers.useless.insert(node);
        }
        None
    }

    /// Lets a job give up tasks on one of its nodes until the other fits there; returns the node.
    fn give_up(&mut self, giver: usize, job: usize, shape: Shape) -> Option<usize> {
        let nodes: Vec<usize> =
            self.room.hold(giver).next.iter().rev().map(|(node, _)| *node).collect();
        nodes.into_iter().find(|node| self.give_up_on(giver, *node, job, shape))
    }

    /// Lets a job give up tasks on this node until the other fits there, if that is enough.
    fn give_up_on(&mut self, giver: usize, node: usize, job: usize, shape: Shape) -> bool {
        let spots = self.room.hold(giver).next.clone();
        let Some(at) = spots.iter().position(|(here, _)| *here == node) else { return false };
        self.room.lift(giver);
        let fewer = self.smaller(giver, &spots, at, job, shape);
        let enough = fewer.is_some();
        let spots = fewer.unwrap_or(spots);
        self.room.lower(giver, spots.clone(), spots);
        enough
    }

    /// Who gave tasks may find a better place elsewhere, and leave room for who got them.
    pub(crate) fn regrow(&mut self, jobs: impl Iterator<Item = usize>) {
        for job in jobs {
            let (whole, gains) = (self.allocated[job], &self.entries[job].gains);
            let before = self.room.hold(job).next.clone();
            self.room.lift(job);
            let smaller = || gains.shrinking(whole);
            let shapes = (whole, smaller);
            let found = find_first(&self.room, job, shapes, Effort::Little, self.scratch);
            let held_s = gains.seconds_left(shape_of(&before));
            let better = found.filter(|(shape, _)| gains.seconds_left(*shape) < held_s);
            let spots = better.map_or(before, |(_, spots)| spots);
            self.room.lower(job, spots.clone(), spots);
        }
    }

    /// The lifted giver's spots with fewer tasks on one node, so that the other job fits there.
    fn smaller(
        &self,
        giver: usize,
        spots: &[Spot],
        at: usize,
        job: usize,
        shape: Shape,
    ) -> Option<Spots> {
        let (node, mut here) = spots[at];
        let gains = &self.entries[giver].gains;
        let mut whole = shape_of(spots);
        let needs = self.room.demand(job).of(shape);
        for _ in 0..=TASKS_MAX {
            let beside = self.room.demand(giver).of(here);
            let mut left = self.room.left(node, View::Both).zip(beside).zip(needs.clone());
            if left.all(|((left, beside), need)| need == 0 || need + beside <= left) {
                let mut spots = spots.to_vec();
                spots[at].1 = here;
                spots.retain(|(_, here)| !here.is_empty());
                return Some(spots.into());
            }
            let kinds = Kind::BOTH.into_iter().filter(|kind| kind.taken_from(here) != here);
            let losses = kinds.filter_map(|kind| Some((gains.loss(whole, kind)?, kind)));
            let (_, kind) = losses.min_by(|a, b| a.0.total_cmp(&b.0))?;
            (here, whole) = (kind.taken_from(here), kind.taken_from(whole));
            debug_assert!(within(gains.least, whole), "a loss is only told above the least shape");
        }
        None
    }
}
