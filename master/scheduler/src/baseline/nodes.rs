//! Placement of the baselines: each task by itself, by what its node has free.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use model::Shape;
use model::job::TASKS_MAX;

/// Nodes by their places, with amounts by kind, those of a node together.
#[derive(Debug)]
pub struct Nodes<'a> {
    pub kinds: usize,
    pub capacity: &'a [i64],
    pub left: &'a mut [i64],
    /// False where no task may be put.
    pub open: &'a [bool],
}

/// Where a task goes among the nodes that it fits on; of equal ones to the lower place.
///
/// The free share of a node is the mean, over the kinds that it has, of what is left of what it
/// has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// To the largest free share: the default of Kubernetes 1.7, LeastRequestedPriority, with all
    /// kinds in place of CPUs and memory. It balances the load.
    Spread,
    /// To the smallest free share, so that the least is left over beside the task. Tetris gives a
    /// machine the task that is best aligned with what it has free, to leave few fragments; its
    /// dot product alone, asked the other way round for the machine of a given task, would name
    /// the emptiest machine and not pack at all.
    Pack,
    /// To the first.
    FirstFit,
    /// To the node of the task before it while it fits there, else to the largest free share.
    Fill,
}

/// Puts jobs on nodes, one after the other; keeps an index of the nodes in between.
///
/// The index is a binary tree over the nodes, those of one capacity side by side, each inner one
/// with the most that is left of each kind and the range of free shares below it. A search goes
/// where the bound is best and leaves out what cannot be better.
#[derive(Debug)]
pub struct Placer<'a> {
    nodes: Nodes<'a>,
    /// Leaves of the tree, a power of two; the tree's root is 1, and 2·i and 2·i + 1 are below i.
    leaves: usize,
    /// Nodes by leaf, and the other way round. Unlike nodes lack unlike kinds when they are full:
    /// apart, they are left out by the thousand.
    node_of: Vec<usize>,
    leaf_of: Vec<usize>,
    most: Vec<i64>,
    range: Vec<Range>,
    /// The last search in which a tree's node was found to hold nothing that fits. Tasks of one
    /// kind come one after the other and only take, so what they find shut stays shut for them.
    shut: Vec<u64>,
    searches: u64,
}

/// Free shares under a tree's node, and its first open node; empty where there is none.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: f64,
    high: f64,
    first: usize,
}

impl Range {
    const EMPTY: Self = Self { low: f64::INFINITY, high: f64::NEG_INFINITY, first: usize::MAX };

    /// True where something with this score at this node may be bettered here.
    fn may_better(self, rule: Rule, (score, node): (f64, usize)) -> bool {
        match self.bound(rule).total_cmp(&score) {
            Ordering::Greater => true,
            Ordering::Equal => self.first < node,
            Ordering::Less => false,
        }
    }

    /// The bound that counts by a rule: the larger the better.
    fn bound(self, rule: Rule) -> f64 {
        match rule {
            Rule::Spread | Rule::Fill => self.high,
            Rule::Pack => -self.low,
            Rule::FirstFit => 0.0,
        }
    }
}

/// A job on nodes by their places, ascending.
type Spots = Vec<(usize, Shape)>;

impl<'a> Placer<'a> {
    /// # Panics
    /// Where the lists of `nodes` are not of one number of nodes.
    #[must_use]
    pub fn new(nodes: Nodes<'a>) -> Self {
        let count = nodes.open.len();
        let amounts = count.saturating_mul(nodes.kinds);
        assert!(
            nodes.capacity.len() == amounts && nodes.left.len() == amounts,
            "each open flag stands for a node with an amount of each kind"
        );
        let leaves = count.next_power_of_two();
        let capacity = |node: &usize| &nodes.capacity[node * nodes.kinds..][..nodes.kinds];
        let mut node_of: Vec<usize> = (0..count).collect();
        node_of.sort_by(|a, b| capacity(a).cmp(capacity(b)));
        let mut leaf_of = vec![0; count];
        for (leaf, node) in node_of.iter().enumerate() {
            leaf_of[*node] = leaf;
        }
        let mut placer = Self {
            leaves,
            node_of,
            leaf_of,
            most: vec![i64::MIN; 2 * leaves * nodes.kinds],
            range: vec![Range::EMPTY; 2 * leaves],
            shut: vec![0; 2 * leaves],
            searches: 0,
            nodes,
        };
        for node in 0..count {
            placer.set_leaf(node);
        }
        for at in (1..leaves).rev() {
            placer.join(at);
        }
        placer
    }

    /// Places all tasks of a job, the servers first, else the workers first, and takes what they
    /// need; or takes nothing and gives none, where one does not fit either way, where the shape
    /// lacks a server or a worker, or where it has more tasks than a job may have.
    pub fn place(
        &mut self,
        rule: Rule,
        server: &[i64],
        worker: &[i64],
        shape: Shape,
    ) -> Option<Spots> {
        let counts = [shape.servers, shape.workers];
        if counts.iter().any(|count| *count == 0 || *count > TASKS_MAX) {
            return None;
        }
        let servers = (server, Shape::new(1, 0), shape.servers);
        let workers = (worker, Shape::new(0, 1), shape.workers);
        // A small server may stand on the only node that a worker could use.
        [[servers, workers], [workers, servers]]
            .into_iter()
            .find_map(|tasks| self.place_in_order(rule, (server, worker), tasks))
    }

    /// Places all of so many workers without servers, or takes nothing and gives none.
    pub fn place_workers(&mut self, rule: Rule, worker: &[i64], count: u32) -> Option<Spots> {
        let workers = (worker, Shape::new(0, 1), count);
        let none = (worker, Shape::new(1, 0), 0);
        let sound = (1..=TASKS_MAX).contains(&count);
        sound.then(|| self.place_in_order(rule, (worker, worker), [workers, none])).flatten()
    }

    fn place_in_order(
        &mut self,
        rule: Rule,
        (server, worker): (&[i64], &[i64]),
        tasks: [(&[i64], Shape, u32); 2],
    ) -> Option<Spots> {
        let mut spots: BTreeMap<usize, Shape> = BTreeMap::new();
        let mut last = None;
        for (need, one, count) in tasks {
            self.searches += 1;
            for _ in 0..count {
                let stays = last.filter(|node| rule == Rule::Fill && self.fits(*node, need));
                let Some(node) = stays.or_else(|| self.find(rule, need)) else {
                    for (node, here) in spots {
                        self.add(node, server, i64::from(here.servers));
                        self.add(node, worker, i64::from(here.workers));
                    }
                    return None;
                };
                self.add(node, need, -1);
                last = Some(node);
                let here = spots.entry(node).or_default();
                here.servers += one.servers;
                here.workers += one.workers;
            }
        }
        Some(spots.into_iter().collect())
    }

    fn kind(&self, at: usize, kind: usize) -> usize {
        at * self.nodes.kinds + kind
    }

    /// Gives so many times the need back to a node, or takes it.
    fn add(&mut self, node: usize, need: &[i64], times: i64) {
        for (kind, need) in need.iter().enumerate().take(self.nodes.kinds) {
            let at = self.kind(node, kind);
            // What is taken was found to be there, and what is given back was taken.
            self.nodes.left[at] += need.max(&0) * times;
        }
        self.renew(node);
    }

    /// Puts what is left on a node into the tree.
    fn renew(&mut self, node: usize) {
        self.set_leaf(node);
        let mut at = (self.leaves + self.leaf_of[node]) / 2;
        while at > 0 {
            self.join(at);
            at /= 2;
        }
    }

    fn set_leaf(&mut self, node: usize) {
        let at = self.leaves + self.leaf_of[node];
        if !self.nodes.open[node] {
            return;
        }
        for kind in 0..self.nodes.kinds {
            let (to, from) = (self.kind(at, kind), self.kind(node, kind));
            self.most[to] = self.nodes.left[from];
        }
        let share = self.free_share(node);
        self.range[at] = Range { low: share, high: share, first: node };
    }

    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
    fn free_share(&self, node: usize) -> f64 {
        let (mut sum, mut kinds) = (0.0, 0.0);
        for kind in 0..self.nodes.kinds {
            let at = self.kind(node, kind);
            let (has, left) = (self.nodes.capacity[at], self.nodes.left[at]);
            if has > 0 {
                sum += left as f64 / has as f64;
                kinds += 1.0;
            }
        }
        if kinds > 0.0 { sum / kinds } else { 0.0 }
    }

    /// What is known of an inner node, from the two below.
    fn join(&mut self, at: usize) {
        for kind in 0..self.nodes.kinds {
            let below = [2 * at, 2 * at + 1].map(|below| self.most[self.kind(below, kind)]);
            let to = self.kind(at, kind);
            self.most[to] = below[0].max(below[1]);
        }
        let [a, b] = [self.range[2 * at], self.range[2 * at + 1]];
        self.range[at] =
            Range { low: a.low.min(b.low), high: a.high.max(b.high), first: a.first.min(b.first) };
    }

    /// The best node for one task.
    fn find(&mut self, rule: Rule, need: &[i64]) -> Option<usize> {
        let mut best = None;
        self.search(1, (rule, need), &mut best);
        best.map(|(_, node)| node)
    }

    /// Looks under a tree's node for something better than the best; true where nothing fits
    /// there at all.
    fn search(
        &mut self,
        at: usize,
        (rule, need): (Rule, &[i64]),
        best: &mut Option<(f64, usize)>,
    ) -> bool {
        let range = self.range[at];
        let is_open = range.low <= range.high;
        if !is_open || self.shut[at] == self.searches || !self.may_fit(at, need) {
            return true;
        }
        if !best.is_none_or(|best| range.may_better(rule, best)) {
            return false;
        }
        if at >= self.leaves {
            *best = Some((range.bound(rule), self.node_of[at - self.leaves]));
            return false;
        }
        let (left, right) = (2 * at, 2 * at + 1);
        let from_left = (self.range[left].bound(rule), self.range[left].first);
        let is_right = self.range[right].may_better(rule, from_left);
        let order = if is_right { [right, left] } else { [left, right] };
        let are_shut = order.map(|below| self.search(below, (rule, need), best));
        if are_shut == [true; 2] {
            self.shut[at] = self.searches;
        }
        are_shut == [true; 2]
    }

    /// True where one task with this need fits on an open node.
    fn fits(&self, node: usize, need: &[i64]) -> bool {
        self.nodes.open[node] && self.may_fit(self.leaves + self.leaf_of[node], need)
    }

    /// Sets what is left on a node, as something else than [`Placer::place`] changed it.
    ///
    /// # Panics
    /// Where there are other amounts than kinds.
    pub fn set_left(&mut self, node: usize, left: &[i64]) {
        let at = self.kind(node, 0);
        self.nodes.left[at..][..self.nodes.kinds].copy_from_slice(left);
        self.renew(node);
    }

    fn may_fit(&self, at: usize, need: &[i64]) -> bool {
        // A kind that the nodes do not list is not there.
        let most = |kind: usize| {
            if kind < self.nodes.kinds { self.most[self.kind(at, kind)] } else { 0 }
        };
        need.iter().enumerate().all(|(kind, need)| *need <= 0 || *need <= most(kind))
    }
}

/// One job by [`Rule::Spread`]; see [`Placer::place`], which is faster for many.
pub fn spread(
    nodes: &mut Nodes<'_>,
    server: &[i64],
    worker: &[i64],
    shape: Shape,
) -> Option<Spots> {
    one(nodes, Rule::Spread, (server, worker), shape)
}

/// One job by [`Rule::Pack`]; see [`Placer::place`], which is faster for many.
pub fn pack(nodes: &mut Nodes<'_>, server: &[i64], worker: &[i64], shape: Shape) -> Option<Spots> {
    one(nodes, Rule::Pack, (server, worker), shape)
}

/// One job by [`Rule::Fill`]; see [`Placer::place`], which is faster for many.
pub fn fill(nodes: &mut Nodes<'_>, server: &[i64], worker: &[i64], shape: Shape) -> Option<Spots> {
    one(nodes, Rule::Fill, (server, worker), shape)
}

/// One job by [`Rule::FirstFit`]; see [`Placer::place`], which is faster for many.
pub fn first_fit(
    nodes: &mut Nodes<'_>,
    server: &[i64],
    worker: &[i64],
    shape: Shape,
) -> Option<Spots> {
    one(nodes, Rule::FirstFit, (server, worker), shape)
}

fn one(
    nodes: &mut Nodes<'_>,
    rule: Rule,
    (server, worker): (&[i64], &[i64]),
    shape: Shape,
) -> Option<Spots> {
    let Nodes { kinds, capacity, ref mut left, open } = *nodes;
    Placer::new(Nodes { kinds, capacity, left, open }).place(rule, server, worker, shape)
}
