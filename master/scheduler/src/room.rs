//! What the nodes have left, now and once the plan is carried out.
//!
//! A running job gives up its tasks only after a checkpoint, so each node has two views: **now**,
//! in which a job counts with the larger of what it holds and what it is to hold, kind by kind;
//! and **then**, in which it counts with what it is meant to hold in the end. New tasks must fit
//! in both: in the first so that a plan is valid at once, in the second so that room which is
//! being given up for somebody stays his.

mod kinds;
mod names;

use std::ops::Deref;
use std::sync::Arc;

use model::{NodeShare, Placement, Shape};

pub(crate) use self::kinds::{Amounts, Demand, Kinds};
pub(crate) use self::names::{Finder, by_id};
use crate::ranks::Rank;
use crate::snapshot::{JobInput, NodeInput};

/// Tasks of one job on one node, which goes by its index.
pub(crate) type Spot = (usize, Shape);

/// Tasks of one job on nodes, ascending. Clones share the list: a job that stays holds the same
/// three times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spots(Option<Arc<[Spot]>>);

impl Deref for Spots {
    type Target = [Spot];

    fn deref(&self) -> &[Spot] {
        self.0.as_deref().unwrap_or(&[])
    }
}

impl From<Vec<Spot>> for Spots {
    fn from(spots: Vec<Spot>) -> Self {
        Self((!spots.is_empty()).then(|| spots.into()))
    }
}

impl<'a> IntoIterator for &'a Spots {
    type Item = &'a Spot;
    type IntoIter = std::slice::Iter<'a, Spot>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Which of the views new tasks must fit in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Both,
    Then,
}

/// What one job holds, is told to hold by this plan, and is meant to hold in the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hold {
    pub(crate) current: Spots,
    pub(crate) next: Spots,
    pub(crate) goal: Spots,
}

/// All nodes, with every job's holds charged. Nodes go by their place in the order of ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    pub(crate) kinds: Kinds,
    open: Vec<bool>,
    now: Vec<i128>,
    then: Vec<i128>,
    demands: Vec<Demand>,
    /// The dominant share of a server and of a worker of each job.
    dominant: Vec<[f64; 2]>,
    holds: Vec<Hold>,
    /// Of the open nodes together, empty.
    total: Vec<i128>,
    /// Jobs that are out of the books.
    lifted: Vec<bool>,
    /// Jobs in the books whose goal is not all they hold now or next.
    apart: usize,
    /// Open nodes, kind by kind: by what they have left then of CPUs and of memory; for every
    /// other kind those that have any of it left, by their CPUs, as such a node without CPUs is
    /// of no use; last those that have nothing of any such kind, by their CPUs. Only where there
    /// are too many nodes to look at all of them for each job.
    ranks: Vec<Rank>,
    /// Sum over the open nodes of what is left then.
    total_then: Vec<i128>,
}

/// Kinds by which nodes are sorted.
const CPUS: usize = 0;
const MEMORY: usize = 1;

/// With at most this many nodes every one is a candidate for every job.
pub(crate) const NODES_ALL: usize = 16;

impl Room {
    /// Empty nodes: capacity without what is held. `nodes` as [`by_id`] gives them.
    pub(crate) fn new(nodes: &[&NodeInput], jobs: &[JobInput], kinds: Kinds) -> Self {
        let mut now = Vec::with_capacity(nodes.len() * kinds.count());
        for node in nodes {
            if node.held.is_zero() {
                kinds.push_amounts(&node.capacity, &mut now);
            } else {
                let held = kinds.amounts(&node.held);
                now.extend(
                    kinds.amounts(&node.capacity).iter().zip(held).map(|(has, held)| has - held),
                );
            }
        }
        let mut room = Self {
            open: nodes.iter().map(|node| node.open).collect(),
            then: now.clone(),
            now,
            demands: jobs.iter().map(|job| Demand::of_job(&kinds, job)).collect(),
            holds: vec![Hold::default(); jobs.len()],
            lifted: vec![true; jobs.len()],
            apart: 0,
            ranks: Vec::new(),
            total_then: vec![0; kinds.count()],
            dominant: Vec::with_capacity(jobs.len()),
            total: vec![0; kinds.count()],
            kinds,
        };
        for node in nodes.iter().filter(|node| node.open) {
            room.kinds.add_amounts(&node.capacity, &mut room.total);
        }
        room.dominant.extend(room.demands.iter().map(|demand| demand.dominant(&room.total)));
        room.sum_up();
        if nodes.len() > NODES_ALL {
            room.rank();
        }
        room
    }

    fn sum_up(&mut self) {
        let count = self.kinds.count();
        for (left, open) in self.then.chunks_exact(count).zip(&self.open) {
            if *open {
                for (sum, left) in self.total_then.iter_mut().zip(left) {
                    *sum += *left.max(&0);
                }
            }
        }
    }

    fn rank(&mut self) {
        let count = self.kinds.count();
        for kind in 0..=count {
            let sorted_by = if kind == MEMORY { MEMORY } else { CPUS };
            let most = self.then.iter().skip(sorted_by).step_by(count).copied().max();
            self.ranks.push(Rank::new(self.open.len(), most.unwrap_or(0)));
        }
        for node in 0..self.open.len() {
            if self.open[node] {
                self.rank_node(node);
            }
        }
    }

    fn rank_node(&mut self, node: usize) {
        let left = &self.then[node * self.kinds.count()..][..self.kinds.count()];
        let is_plain = left[MEMORY + 1..].iter().all(|left| *left <= 0);
        for (kind, rank) in self.ranks.iter_mut().enumerate() {
            let key = match left.get(kind) {
                Some(left) if kind == CPUS || kind == MEMORY => Some(*left),
                Some(special) => (*special > 0).then_some(left[CPUS]),
                None => is_plain.then_some(left[CPUS]),
            };
            rank.update(node, key);
        }
    }

    pub(crate) fn demand(&self, job: usize) -> &Demand {
        &self.demands[job]
    }

    pub(crate) fn dominant(&self, job: usize) -> [f64; 2] {
        self.dominant[job]
    }

    /// Of the open nodes together, whatever stands on them.
    pub(crate) fn total(&self) -> &[i128] {
        &self.total
    }

    pub(crate) fn hold(&self, job: usize) -> &Hold {
        &self.holds[job]
    }

    pub(crate) fn is_open(&self, node: usize) -> bool {
        self.open[node]
    }

    pub(crate) fn node_count(&self) -> usize {
        self.open.len()
    }

    /// What is left on a node, kind by kind; below zero where capacity shrank under its tasks.
    pub(crate) fn left(&self, node: usize, view: View) -> impl Iterator<Item = i128> {
        let range = node * self.kinds.count()..(node + 1) * self.kinds.count();
        let now = &self.now[range.clone()];
        let both = view == View::Both;
        self.then[range]
            .iter()
            .zip(now)
            .map(move |(then, now)| if both { *then.min(now) } else { *then })
    }

    /// Of the open nodes together, then.
    pub(crate) fn total_left(&self) -> &[i128] {
        &self.total_then
    }

    /// The same nodes with another list of jobs. `kept` tells which job of this room each one is,
    /// and whether it holds now what it was to hold; a job without is empty and lifted. What the
    /// others of this room held is free.
    pub(crate) fn carry_over(mut self, jobs: &[JobInput], kept: &[Option<(usize, bool)>]) -> Self {
        let mut goes = vec![true; self.holds.len()];
        for (from, carried_out) in kept.iter().flatten() {
            goes[*from] = false;
            if *carried_out {
                let hold = &mut self.holds[*from];
                hold.current = hold.next.clone();
            }
        }
        for job in (0..goes.len()).filter(|job| goes[*job]) {
            if !self.lifted[job] {
                self.charge(job, -1);
            }
        }
        for (job, kept) in jobs.iter().zip(kept).filter(|(_, kept)| kept.is_none()) {
            debug_assert!(kept.is_none(), "only these are new");
            let demand = Demand::of_job(&self.kinds, job);
            self.dominant.push(demand.dominant(&self.total));
            self.demands.push(demand);
            self.holds.push(Hold::default());
        }
        let mut new = goes.len()..;
        let mut sources = Vec::with_capacity(kept.len());
        for kept in kept {
            let fresh = if kept.is_none() { new.next() } else { None };
            sources.push(kept.map_or_else(|| fresh.unwrap_or_default(), |(from, _)| from));
        }
        self.lifted = kept.iter().map(Option::is_none).collect();
        if !sources.iter().enumerate().all(|(at, from)| at == *from) || sources.len() != goes.len()
        {
            self.demands = moved(&mut self.demands, &sources);
            self.holds = moved(&mut self.holds, &sources);
            self.dominant = moved(&mut self.dominant, &sources);
        }
        self
    }

    pub(crate) fn is_lifted(&self, job: usize) -> bool {
        self.lifted[job]
    }

    /// Takes a job out of all books while it is placed anew: its own tasks are gone before the
    /// new ones start.
    pub(crate) fn lift(&mut self, job: usize) {
        debug_assert!(!self.lifted[job], "a job is lifted once");
        self.charge(job, -1);
        self.lifted[job] = true;
    }

    /// Puts a job back into the books.
    pub(crate) fn lower(&mut self, job: usize, next: Spots, goal: Spots) {
        debug_assert!(self.lifted[job], "only a lifted job is lowered");
        self.holds[job].next = next;
        self.holds[job].goal = goal;
        self.charge(job, 1);
        self.lifted[job] = false;
    }

    /// Sets what a job is meant to hold, in both senses.
    pub(crate) fn set(&mut self, job: usize, spots: Spots) {
        self.lift(job);
        self.lower(job, spots.clone(), spots);
    }

    /// Puts a running job in at first, as it is.
    pub(crate) fn enter(&mut self, job: usize, current: Spots) {
        self.holds[job].current = current.clone();
        self.lower(job, current.clone(), current);
    }

    fn charge(&mut self, job: usize, sign: i128) {
        let hold = std::mem::take(&mut self.holds[job]);
        let demand = std::mem::take(&mut self.demands[job]);
        let is_one =
            hold.next == hold.goal && (hold.current.is_empty() || hold.current == hold.goal);
        if !is_one {
            self.apart = if sign > 0 { self.apart + 1 } else { self.apart - 1 };
        }
        for (node, [current, next, goal]) in together(&hold) {
            self.charge_node(node, &demand, [current, next, goal], sign);
        }
        self.holds[job] = hold;
        self.demands[job] = demand;
    }

    fn charge_node(&mut self, node: usize, demand: &Demand, held: [Shape; 3], sign: i128) {
        let [current, next, goal] = held;
        let count = self.kinds.count();
        let at = node * count;
        let open = self.open[node];
        for kind in 0..count {
            let before = demand.of_kind(kind, next);
            let now = if current.is_empty() || current == next {
                before
            } else {
                before.max(demand.of_kind(kind, current))
            };
            self.now[at + kind] -= sign * now;
            let then = if goal == next { before } else { demand.of_kind(kind, goal) };
            if then == 0 {
                continue;
            }
            let (old, new) = (self.then[at + kind], self.then[at + kind] - sign * then);
            self.then[at + kind] = new;
            if open {
                self.total_then[kind] += new.max(0) - old.max(0);
            }
        }
        if open && !goal.is_empty() && !self.ranks.is_empty() {
            self.rank_node(node);
        }
    }

    /// False where no open node has room for one worker of the job, or none for one server.
    pub(crate) fn has_node_for_each(&self, job: usize, view: View) -> bool {
        let demand = &self.demands[job];
        [demand.worker(), demand.server()].into_iter().all(|need| {
            let takes = |node: &usize| {
                self.left(*node, view).zip(need).all(|(left, need)| *need <= left || *need == 0)
            };
            if self.ranks.is_empty() {
                return (0..self.open.len()).any(|node| self.open[node] && takes(&node));
            }
            let kind = self.sorting_kind(need);
            let least = need[if kind == MEMORY { MEMORY } else { CPUS }];
            self.ranks[kind].descending_to(least).any(|node| takes(&node))
        })
    }

    /// True where some job is told to hold something else than what it is to hold in the end:
    /// only then is there room that is not free yet.
    pub(crate) const fn awaits_room(&self) -> bool {
        self.apart > 0
    }

    /// Open nodes to place a job on: first `count` that can take a worker, then `count` that can
    /// take a server, each time those with most left of one kind first. In a small cluster all
    /// that can take a task. The flag tells that there are no others; it is false where `visits`
    /// nodes were looked at before.
    pub(crate) fn candidates(
        &self,
        job: usize,
        view: View,
        count: usize,
        visits: usize,
    ) -> (Vec<usize>, bool) {
        let demand = &self.demands[job];
        let takes = |node: usize, need: &[i128]| {
            self.left(node, view).zip(need).all(|(left, need)| *need <= left || *need == 0)
        };
        if self.ranks.is_empty() {
            let open = (0..self.open.len()).filter(|node| self.open[*node]);
            let either =
                |node: &usize| takes(*node, demand.worker()) || takes(*node, demand.server());
            return (open.filter(either).collect(), true);
        }
        let mut chosen = Vec::with_capacity(count.saturating_mul(2).min(self.open.len()));
        let mut are_all = true;
        for need in [demand.worker(), demand.server()] {
            // Who needs nothing special leaves nodes that have it to those who do, if it can.
            let needs_special = need[MEMORY + 1..].iter().any(|need| *need > 0);
            let plain = (!needs_special).then_some(self.kinds.count());
            let before = chosen.len();
            for rank in plain.into_iter().chain([self.sorting_kind(need)]) {
                let first = chosen.len();
                let least = need[if rank == MEMORY { MEMORY } else { CPUS }];
                for (visited, node) in self.ranks[rank].descending_to(least).enumerate() {
                    if chosen.len() - before >= count || visited >= visits {
                        are_all = false;
                        break;
                    }
                    if takes(node, need) {
                        chosen.push(node);
                    }
                }
                drop_repeated(&mut chosen, first);
            }
        }
        (chosen, are_all)
    }

    /// A kind beyond CPUs and memory of which a task needs any.
    pub(crate) fn special_kind(need: &[i128]) -> Option<usize> {
        (MEMORY + 1..need.len()).find(|kind| need[*kind] > 0)
    }

    /// Open nodes that have any of a special kind left.
    pub(crate) fn having(&self, kind: usize) -> impl Iterator<Item = usize> {
        let ranked = self.ranks.get(kind).map(|rank| rank.descending_to(0));
        let count = if self.ranks.is_empty() { self.open.len() } else { 0 };
        let has =
            move |node: &usize| self.open[*node] && self.then[node * self.kinds.count() + kind] > 0;
        ranked.into_iter().flatten().chain((0..count).filter(has))
    }

    /// The kind whose order a task follows: the one in which fewest nodes can be meant.
    fn sorting_kind(&self, need: &[i128]) -> usize {
        let having = |kind: usize| match kind {
            CPUS | MEMORY => self.ranks[kind].count_from(need[kind]),
            _ if need[kind] == 0 => usize::MAX,
            _ => self.ranks[kind].count_from(need[CPUS]),
        };
        (0..need.len()).min_by_key(|kind| having(*kind)).unwrap_or(CPUS)
    }
}

/// Picks values by their places, each once.
fn moved<T: Default>(values: &mut [T], sources: &[usize]) -> Vec<T> {
    sources.iter().map(|from| std::mem::take(&mut values[*from])).collect()
}

/// Of what was added from `first` on, drops what was there before: who takes both tasks comes in
/// once, where it came first.
fn drop_repeated(chosen: &mut Vec<usize>, first: usize) {
    if first == 0 || first == chosen.len() {
        return;
    }
    let mut known = chosen[..first].to_vec();
    known.sort_unstable();
    let added = chosen.split_off(first);
    chosen.extend(added.iter().filter(|node| known.binary_search(node).is_err()));
}

/// The three lists of a hold, merged node by node: what is held now, next and in the end.
fn together(hold: &Hold) -> impl Iterator<Item = (usize, [Shape; 3])> {
    let lists = [&hold.current, &hold.next, &hold.goal];
    let mut at = [0_usize; 3];
    std::iter::from_fn(move || {
        let heads = lists.iter().zip(at).filter_map(|(list, at)| list.get(at));
        let node = heads.map(|(node, _)| *node).min()?;
        let mut held = [Shape::default(); 3];
        for (which, list) in lists.iter().enumerate() {
            if let Some((_, shape)) = list.get(at[which]).filter(|(head, _)| *head == node) {
                held[which] = *shape;
                at[which] += 1;
            }
        }
        Some((node, held))
    })
}

pub(crate) fn placement(nodes: &[&NodeInput], spots: &Spots) -> Placement {
    let share = |(node, shape): &Spot| NodeShare {
        node: nodes[*node].id.clone(),
        servers: shape.servers,
        workers: shape.workers,
    };
    Placement(spots.iter().map(share).collect())
}

/// Numbers of servers and workers over all nodes.
pub(crate) fn shape_of(spots: &[Spot]) -> Shape {
    sum_of(spots.iter().map(|(_, shape)| *shape))
}

pub(crate) fn sum_of(shapes: impl Iterator<Item = Shape>) -> Shape {
    shapes.fold(Shape::default(), |sum, shape| {
        Shape::new(
            sum.servers.saturating_add(shape.servers),
            sum.workers.saturating_add(shape.workers),
        )
    })
}
