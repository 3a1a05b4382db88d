//! What the nodes have left, now and once the plan is carried out.
//!
//! A running job gives up its tasks only after a checkpoint, so each node has two views: **now**,
//! in which a job counts with the larger of what it holds and what it is to hold, kind by kind;
//! and **then**, in which it counts with what it is meant to hold in the end. New tasks must fit
//! in both: in the first so that a plan is valid at once, in the second so that room which is
//! being given up for somebody stays his.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use model::{NodeId, NodeShare, Placement, Resources, Shape};

use crate::allocate::dominant_share;
use crate::snapshot::{JobInput, NodeInput};

/// Tasks of one job on nodes, by index and ascending.
pub(crate) type Spots = Vec<(usize, Shape)>;

/// Amounts by kind, as [`Kinds`] numbers them. Wide and signed: sums of absurd amounts neither
/// wrap nor saturate, so that everything taken can be given back exactly.
pub(crate) type Amounts = Vec<i128>;

/// The kinds of resource that some job asks for.
#[derive(Clone, Debug)]
pub(crate) struct Kinds {
    named: Vec<String>,
}

impl Kinds {
    pub(crate) fn of<'a>(asked: impl Iterator<Item = &'a Resources>) -> Self {
        let named: BTreeSet<&String> = asked
            .flat_map(|resources| &resources.named)
            .filter(|(_, amount)| **amount > 0)
            .map(|(kind, _)| kind)
            .collect();
        Self { named: named.into_iter().cloned().collect() }
    }

    pub(crate) fn count(&self) -> usize {
        3 + self.named.len()
    }

    /// An amount of a kind as people write it: `1.5 CPUs`, `512 MiB of memory`, `2 GPUs`.
    #[expect(clippy::cast_precision_loss, reason = "only shown, to three places")]
    pub(crate) fn shown(&self, kind: usize, amount: i128) -> String {
        match kind {
            0 => format!("{} CPUs", amount as f64 / 1000.0),
            1 => format!("{:.0} MiB of memory", (amount as f64 / f64::from(1 << 20)).ceil()),
            2 => format!("{amount} GPUs"),
            _ => format!("{amount} {}", self.named[kind - 3]),
        }
    }

    /// Back to plain resources; what is below zero is nothing.
    pub(crate) fn resources(&self, amounts: &[i128]) -> Resources {
        let amount = |kind: usize| u64::try_from(amounts[kind].max(0)).unwrap_or(u64::MAX);
        let mut resources = Resources::new(amount(0), amount(1), amount(2));
        resources.named = self
            .named
            .iter()
            .enumerate()
            .map(|(at, kind)| (kind.clone(), amount(at + 3)))
            .collect();
        resources
    }

    pub(crate) fn amounts(&self, resources: &Resources) -> Amounts {
        [resources.cpus_milli, resources.memory_bytes, resources.gpus]
            .into_iter()
            .chain(self.named.iter().map(|kind| resources.named(kind)))
            .map(i128::from)
            .collect()
    }
}

/// What one server and one worker of a job take.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Demand {
    pub(crate) server: Amounts,
    pub(crate) worker: Amounts,
}

impl Demand {
    pub(crate) fn of(&self, shape: Shape) -> impl Iterator<Item = i128> {
        let (servers, workers) = (i128::from(shape.servers), i128::from(shape.workers));
        self.server.iter().zip(&self.worker).map(move |(s, w)| s * servers + w * workers)
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

/// All nodes, with every job's holds charged.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    pub(crate) kinds: Kinds,
    nodes: Vec<&'a NodeInput>,
    index: BTreeMap<&'a NodeId, usize>,
    now: Vec<i128>,
    then: Vec<i128>,
    demands: Vec<Demand>,
    holds: Vec<Hold>,
    lifted: BTreeSet<usize>,
    /// Open nodes by falling amount left then, for CPUs, memory and GPUs; ties by id. Only where
    /// there are too many nodes to look at all of them for each job.
    order: Vec<BTreeSet<(Reverse<i128>, usize)>>,
    /// Sum over the open nodes of what is left then.
    total_then: Vec<i128>,
}

/// With at most this many nodes every one is a candidate for every job.
pub(crate) const NODES_ALL: usize = 16;

impl<'a> Room<'a> {
    /// Empty nodes: capacity without what is held. Nodes may come in any order; of two with one
    /// id the first counts.
    pub(crate) fn new(nodes: &'a [NodeInput], jobs: &[JobInput]) -> Self {
        let kinds = Kinds::of(jobs.iter().flat_map(|job| [&job.worker, &job.server]));
        let by_id: BTreeMap<&NodeId, &NodeInput> =
            nodes.iter().rev().map(|node| (&node.id, node)).collect();
        let nodes: Vec<&NodeInput> = by_id.into_values().collect();
        let mut now = Vec::with_capacity(nodes.len() * kinds.count());
        for node in &nodes {
            let held = kinds.amounts(&node.held);
            now.extend(
                kinds.amounts(&node.capacity).iter().zip(held).map(|(has, held)| has - held),
            );
        }
        let demands = jobs
            .iter()
            .map(|job| Demand {
                server: kinds.amounts(&job.server),
                worker: kinds.amounts(&job.worker),
            })
            .collect();
        let mut room = Self {
            index: nodes.iter().enumerate().map(|(at, node)| (&node.id, at)).collect(),
            then: now.clone(),
            now,
            demands,
            holds: vec![Hold::default(); jobs.len()],
            lifted: (0..jobs.len()).collect(),
            order: Vec::new(),
            total_then: vec![0; kinds.count()],
            nodes,
            kinds,
        };
        if room.nodes.len() > NODES_ALL {
            room.order = vec![BTreeSet::new(); 3];
        }
        for node in 0..room.nodes.len() {
            room.enlist(node);
        }
        room
    }

    pub(crate) fn demand(&self, job: usize) -> &Demand {
        &self.demands[job]
    }

    pub(crate) fn hold(&self, job: usize) -> &Hold {
        &self.holds[job]
    }

    pub(crate) fn node(&self, at: usize) -> &'a NodeInput {
        self.nodes[at]
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
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

    /// Takes a job out of all books while it is placed anew: its own tasks are gone before the
    /// new ones start.
    pub(crate) fn lift(&mut self, job: usize) {
        debug_assert!(!self.lifted.contains(&job), "a job is lifted once");
        self.charge(job, -1);
        self.lifted.insert(job);
    }

    /// Puts a job back into the books.
    pub(crate) fn lower(&mut self, job: usize, next: Spots, goal: Spots) {
        debug_assert!(self.lifted.contains(&job), "only a lifted job is lowered");
        self.holds[job].next = next;
        self.holds[job].goal = goal;
        self.charge(job, 1);
        self.lifted.remove(&job);
    }

    /// Sets what a job is meant to hold, in both senses.
    pub(crate) fn set(&mut self, job: usize, spots: Spots) {
        self.lift(job);
        self.lower(job, spots.clone(), spots);
    }

    /// Puts a running job in at first, as it is.
    pub(crate) fn enter(&mut self, job: usize, current: Spots) {
        self.holds[job].current.clone_from(&current);
        self.lower(job, current.clone(), current);
    }

    fn charge(&mut self, job: usize, sign: i128) {
        let hold = std::mem::take(&mut self.holds[job]);
        let demand = std::mem::take(&mut self.demands[job]);
        let mut touched: BTreeMap<usize, [Shape; 3]> = BTreeMap::new();
        for (which, spots) in [&hold.current, &hold.next, &hold.goal].into_iter().enumerate() {
            for (node, shape) in spots {
                touched.entry(*node).or_default()[which] = *shape;
            }
        }
        for (node, [current, next, goal]) in touched {
            self.delist(node);
            let before = demand.of(current).zip(demand.of(next)).map(|(a, b)| a.max(b));
            let at = node * self.kinds.count();
            for (kind, (now, then)) in before.zip(demand.of(goal)).enumerate() {
                self.now[at + kind] -= sign * now;
                self.then[at + kind] -= sign * then;
            }
            self.enlist(node);
        }
        self.holds[job] = hold;
        self.demands[job] = demand;
    }

    fn delist(&mut self, node: usize) {
        self.list(node, -1);
    }

    fn enlist(&mut self, node: usize) {
        self.list(node, 1);
    }

    fn list(&mut self, node: usize, sign: i128) {
        if !self.nodes[node].open {
            return;
        }
        let at = node * self.kinds.count();
        for kind in 0..self.kinds.count() {
            let left = self.then[at + kind];
            self.total_then[kind] += sign * left.max(0);
            if let Some(order) = self.order.get_mut(kind) {
                if sign > 0 {
                    order.insert((Reverse(left), node));
                } else {
                    order.remove(&(Reverse(left), node));
                }
            }
        }
    }

    /// Open nodes to place a job on: `count` that can take a worker and `count` that can take a
    /// server, those with most left of the kind of which its tasks need the largest share, by
    /// falling amount. In a small cluster all that can take a task. The flag tells that there are
    /// no others.
    pub(crate) fn candidates(&self, job: usize, view: View, count: usize) -> (Vec<usize>, bool) {
        let demand = &self.demands[job];
        let takes = |node: usize| {
            let (mut worker, mut server) = (true, true);
            for (kind, left) in self.left(node, view).enumerate() {
                worker &= demand.worker[kind] <= left || demand.worker[kind] == 0;
                server &= demand.server[kind] <= left || demand.server[kind] == 0;
            }
            (worker, server)
        };
        if self.order.is_empty() {
            let open = (0..self.nodes.len()).filter(|node| self.nodes[*node].open);
            return (open.filter(|node| takes(*node) != (false, false)).collect(), true);
        }
        // Of equal kinds the later one: GPUs before memory before CPUs.
        let share = |kind: usize| {
            let need = demand.worker[kind].max(demand.server[kind]);
            dominant_share(&[need], &[self.total_then[kind]])
        };
        let kind = (0..3).max_by(|a, b| share(*a).total_cmp(&share(*b))).unwrap_or(0);
        // Once a node has not enough of this kind for either task, no later one has.
        let needed = demand.worker[kind].min(demand.server[kind]);
        let (mut for_workers, mut for_servers) = (0, 0);
        let (mut chosen, mut others) = (Vec::new(), false);
        for (left, node) in &self.order[kind] {
            if left.0 < needed {
                break;
            }
            if for_workers >= count && for_servers >= count {
                return (chosen, false);
            }
            let (worker, server) = takes(*node);
            if (worker && for_workers < count) || (server && for_servers < count) {
                for_workers += usize::from(worker);
                for_servers += usize::from(server);
                chosen.push(*node);
            } else if worker || server {
                others = true;
            }
        }
        (chosen, !others)
    }

    /// Spots of a placement; the flag tells that a node of it is not here.
    pub(crate) fn spots(&self, placement: &Placement) -> (Spots, bool) {
        let mut spots: BTreeMap<usize, Shape> = BTreeMap::new();
        let mut lost = false;
        for share in &placement.0 {
            match self.index.get(&share.node) {
                Some(node) => {
                    let shape = spots.entry(*node).or_default();
                    shape.servers = shape.servers.saturating_add(share.servers);
                    shape.workers = shape.workers.saturating_add(share.workers);
                }
                None => lost = true,
            }
        }
        (spots.into_iter().collect(), lost)
    }

    pub(crate) fn placement(&self, spots: &Spots) -> Placement {
        let share = |(node, shape): &(usize, Shape)| NodeShare {
            node: self.nodes[*node].id.clone(),
            servers: shape.servers,
            workers: shape.workers,
        };
        Placement(spots.iter().map(share).collect())
    }
}

/// Numbers of servers and workers over all nodes.
pub(crate) fn shape_of(spots: &Spots) -> Shape {
    spots.iter().fold(Shape::default(), |sum, (_, shape)| {
        Shape::new(
            sum.servers.saturating_add(shape.servers),
            sum.workers.saturating_add(shape.workers),
        )
    })
}
