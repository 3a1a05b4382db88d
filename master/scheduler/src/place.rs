//! Where a job's tasks stand (section 4.2 and the appendix).
//!
//! The aim is the least cross-server transfer time of a step,
//! `(1/p)·max over nodes of {w − w_k where p_k > 0; p − p_k where w_k > 0}`; among equal ones the
//! fewest nodes, then the most even counts (least sum of squares), then the lowest ids. The PS
//! scheduler stands with the first server and costs nothing of its own.

mod exact;
mod quick;
mod wide;

use model::{NodeId, NodeShare, Placement, Resources, Shape};

use self::quick::Near;
use crate::allocate::{Gains, Kind, within};
use crate::room::{Demand, Kinds, Room, Spot, Spots, View};

/// What one node could carry of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) node: usize,
    /// Most workers beside 0, 1, 2, … servers; its length is one more than the most servers.
    pub(crate) workers: Vec<u32>,
}

/// Memory that is used again from job to job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) table: Vec<u64>,
    near: Near,
}

/// The distance of spots.
fn spread_of(shape: Shape, spots: &[Spot]) -> u32 {
    distance(shape, spots.iter().map(|(_, here)| *here))
}

/// Transfer time of a step in units of S/B, by the appendix. 0 on one node; finite for every
/// placement with a server.
#[must_use]
pub fn transfer_time(placement: &Placement) -> f64 {
    transfer_of(placement.shape(), placement.0.iter().map(share_of))
}

/// The share of all pairs of a server and a worker that talk across nodes:
/// `1 − Σ p_k·w_k/(p·w)`, in 0 to 1.
#[must_use]
pub fn cross_node_share(placement: &Placement) -> f64 {
    cross_of(placement.shape(), placement.0.iter().map(share_of))
}

fn share_of(share: &NodeShare) -> Shape {
    Shape::new(share.servers, share.workers)
}

pub(crate) fn transfer_of(shape: Shape, shares: impl Iterator<Item = Shape>) -> f64 {
    f64::from(distance(shape, shares)) / f64::from(shape.servers.max(1))
}

pub(crate) fn cross_of(shape: Shape, shares: impl Iterator<Item = Shape>) -> f64 {
    let pairs = f64::from(shape.servers) * f64::from(shape.workers);
    if pairs <= 0.0 {
        return 0.0;
    }
    let near: f64 = shares.map(|here| f64::from(here.servers) * f64::from(here.workers)).sum();
    (1.0 - near / pairs).max(0.0)
}

/// The transfer time times the number of servers.
fn distance(shape: Shape, shares: impl Iterator<Item = Shape>) -> u32 {
    let far = shares.map(|here| {
        let workers = if here.servers > 0 { shape.workers - here.workers } else { 0 };
        let servers = if here.workers > 0 { shape.servers - here.servers } else { 0 };
        workers.max(servers)
    });
    far.max().unwrap_or(0)
}

/// Places one job of a shape on nodes with these amounts left; none where it does not fit.
#[must_use]
pub fn place(
    shape: Shape,
    server: &Resources,
    worker: &Resources,
    nodes: &[(NodeId, Resources)],
) -> Option<Placement> {
    let kinds = Kinds::of([server, worker].into_iter());
    let demand = Demand::new(&kinds, server, worker);
    let mut sorted: Vec<&(NodeId, Resources)> = nodes.iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    let offers: Vec<Offer> = sorted
        .iter()
        .enumerate()
        .filter_map(|(node, (_, left))| offer(shape, &demand, node, &kinds.amounts(left)))
        .collect();
    let spots = choose(shape, &offers, &mut Scratch::default())?;
    let share = |(node, shape): &Spot| NodeShare {
        node: sorted[*node].0.clone(),
        servers: shape.servers,
        workers: shape.workers,
    };
    Some(Placement(spots.iter().map(share).collect()))
}

/// Candidates looked at first; four times as many each time they do not suffice.
const CANDIDATES_FIRST: usize = crate::room::NODES_ALL;
/// In a larger cluster the table gets as many nodes as the job needs and these more, so that
/// uneven counts can still be beaten.
const CANDIDATES_MORE: usize = 2;

/// With at most this many nodes the table is asked; with more, a few quick ways are tried first.
pub(crate) const NODES_FEW: usize = 64;

/// Candidates where tasks beyond the least shape are placed, or as many as there are tasks: in a
/// large cluster that is almost full it costs too much to search every node for the last gaps.
const CANDIDATES_EXTRA: usize = 64;

/// Nodes looked at for each candidate wanted: where most of the roomiest nodes lack another kind
/// of resource, the search must not look at all of them for each job.
const VISITS_EACH: usize = 4;

/// Places a lifted job; takes nothing. With at most [`CANDIDATES_FIRST`] nodes the result is the
/// best of all; with more, a good one on the roomiest nodes. A place is found whenever there is
/// one.
pub(crate) fn find(
    room: &Room,
    job: usize,
    shape: Shape,
    view: View,
    scratch: &mut Scratch,
) -> Option<Spots> {
    if lacks(room, job, shape) {
        return None;
    }
    if room.node_count() > NODES_FEW {
        for count in [CANDIDATES_FIRST, CANDIDATES_EXTRA] {
            scratch.look_near(room, job, view, count);
            if let Some(spots) = scratch.near.place(shape) {
                return Some(spots);
            }
        }
    }
    if !room.has_node_for_each(job, view) {
        return None;
    }
    find_among(room, job, shape, (view, room.node_count()), scratch)
}

/// As [`find`], for a shape that may be shrunk instead: among more than [`CANDIDATES_EXTRA`]
/// nodes a place can be missed.
pub(crate) fn find_extra(
    room: &Room,
    job: usize,
    shape: Shape,
    view: View,
    scratch: &mut Scratch,
) -> Option<Spots> {
    if lacks(room, job, shape) {
        return None;
    }
    let most = extra(shape);
    if room.node_count() > NODES_FEW {
        scratch.look_near(room, job, view, most);
        if scratch.near.is_exact() {
            return scratch.near.place(shape);
        }
    }
    find_among(room, job, shape, (view, most), scratch)
}

/// How far a search in a large cluster goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The roomiest nodes only.
    Little,
    Full,
}

/// How a shape is made smaller until it fits.
#[derive(Debug)]
pub(crate) enum Shrink<'a> {
    /// By the tasks whose loss matters least.
    ByLoss(&'a Gains<'a>),
    /// Along these shapes, of which each lies within the one before.
    Along(Vec<Shape>),
}

/// The whole shape of a lifted job, or else a smaller one that fits, and its place. Among few
/// nodes the one of the least loss; in a large cluster what is found nearby.
pub(crate) fn find_first(
    room: &Room,
    job: usize,
    (whole, shrink): (Shape, Shrink<'_>),
    effort: Effort,
    scratch: &mut Scratch,
) -> Option<(Shape, Spots)> {
    if room.node_count() > NODES_FEW {
        // The largest first, among few candidates: it often fits.
        scratch.look_near(room, job, View::Both, CANDIDATES_FIRST);
        if scratch.near.is_exact() {
            if effort == Effort::Full {
                if let Some(spots) = scratch.near.place(whole) {
                    return Some((whole, spots));
                }
                scratch.look_near(room, job, View::Both, extra(whole));
            }
            return find_near(whole, shrink, &scratch.near);
        }
    }
    if let Some(spots) = find_extra(room, job, whole, View::Both, scratch) {
        return Some((whole, spots));
    }
    let shapes = match shrink {
        Shrink::Along(shapes) => shapes,
        Shrink::ByLoss(gains) => match least_loss(room, job, whole, gains) {
            Some(shape) => vec![shape],
            None => gains.shrinking(whole),
        },
    };
    halve(&shapes, |shape| find_extra(room, job, shape, View::Both, scratch))
}

/// The largest of ever smaller shapes that has a place. A shape within one that fits, fits too,
/// so halving finds it.
fn halve(
    shapes: &[Shape],
    mut attempt: impl FnMut(Shape) -> Option<Spots>,
) -> Option<(Shape, Spots)> {
    let (mut low, mut high) = (0, shapes.len());
    let mut best = None;
    while low < high {
        let middle = usize::midpoint(low, high);
        match attempt(shapes[middle]) {
            Some(spots) => {
                best = Some((shapes[middle], spots));
                high = middle;
            }
            None => low = middle + 1,
        }
    }
    best
}

fn find_near(whole: Shape, shrink: Shrink<'_>, near: &Near) -> Option<(Shape, Spots)> {
    if let Some(spots) = near.place(whole) {
        return Some((whole, spots));
    }
    match shrink {
        Shrink::Along(shapes) => halve(&shapes, |shape| near.place(shape)),
        Shrink::ByLoss(gains) => {
            let (mut shape, mut spots) = halve(&gains.shrinking(whole), |shape| near.place(shape))?;
            // What does not fit of one kind need not keep out the other.
            let mut kinds = vec![Kind::Server, Kind::Worker];
            while let Some(kind) = gains.best_of(&kinds, shape) {
                let more = kind.added_to(shape);
                match within(more, whole).then(|| near.place(more)).flatten() {
                    Some(found) => (shape, spots) = (more, found),
                    None => kinds.retain(|other| *other != kind),
                }
            }
            Some((shape, spots))
        }
    }
}

/// Most steps of the search for the least loss.
const LOSS_WORK_MAX: u64 = 2_000_000;

/// Of all shapes between the least and the whole that fit on the nodes, the one with the fewest
/// seconds left; of equal ones the smallest. None where nothing fits, or where that is too much
/// to search.
fn least_loss(room: &Room, job: usize, whole: Shape, gains: &Gains<'_>) -> Option<Shape> {
    let demand = room.demand(job);
    let (candidates, _) = room.candidates(job, View::Both, usize::MAX, usize::MAX);
    let offers: Vec<Offer> = candidates
        .iter()
        .filter_map(|node| {
            let left: Vec<i128> = room.left(*node, View::Both).collect();
            offer(whole, demand, *node, &left)
        })
        .collect();
    let rows: usize = offers.iter().map(|offer| offer.workers.len()).sum();
    let servers = u64::from(whole.servers);
    let work = u64::try_from(rows).ok()?.saturating_mul(servers);
    if work.saturating_add(servers.saturating_mul(u64::from(whole.workers))) > LOSS_WORK_MAX {
        return None;
    }
    let most = wide::frontier(whole, &offers);
    let beside = |servers: u32| {
        let most = usize::try_from(servers).ok().and_then(|at| most.get(at).copied().flatten());
        gains.least.workers..=most.unwrap_or(0).min(whole.workers)
    };
    let shapes = (gains.least.servers..=whole.servers)
        .flat_map(|servers| beside(servers).map(move |workers| Shape::new(servers, workers)));
    let timed = shapes.map(|shape| (gains.seconds_left(shape), shape));
    timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, shape)| shape)
}

fn extra(shape: Shape) -> usize {
    let tasks = shape.servers.saturating_add(shape.workers);
    CANDIDATES_EXTRA.max(usize::try_from(tasks).unwrap_or(usize::MAX))
}

/// True where the whole cluster has not got enough: most refusals end here.
fn lacks(room: &Room, job: usize, shape: Shape) -> bool {
    room.demand(job).of(shape).zip(room.total_left()).any(|(need, left)| need > *left)
}

impl Scratch {
    fn look_near(&mut self, room: &Room, job: usize, view: View, count: usize) {
        let visits = count.saturating_mul(VISITS_EACH);
        let (candidates, _) = room.candidates(job, view, count, visits);
        self.near.clear(room.demand(job));
        for node in candidates {
            self.near.push(node, room.left(node, view));
        }
    }
}

fn find_among(
    room: &Room,
    job: usize,
    shape: Shape,
    (view, most): (View, usize),
    scratch: &mut Scratch,
) -> Option<Spots> {
    let mut count = CANDIDATES_FIRST;
    loop {
        let (candidates, are_all) = room.candidates(job, view, count, usize::MAX);
        let found = find_on(room, job, shape, (view, &candidates), scratch);
        let most = room.node_count().min(most);
        if found.is_some() || are_all || count >= most {
            return found;
        }
        count = count.saturating_mul(4).min(most);
    }
}

/// Places a lifted job on some of the nodes only.
pub(crate) fn find_on(
    room: &Room,
    job: usize,
    shape: Shape,
    (view, nodes): (View, &[usize]),
    scratch: &mut Scratch,
) -> Option<Spots> {
    let demand = room.demand(job);
    let mut offers: Vec<Offer> = nodes
        .iter()
        .filter_map(|node| {
            let left: Vec<i128> = room.left(*node, view).collect();
            offer(shape, demand, *node, &left)
        })
        .collect();
    offers.sort_unstable_by_key(|offer| offer.node);
    if room.node_count() > CANDIDATES_FIRST && !is_alone(shape, &offers) {
        offers = wide::fewest(shape, offers, CANDIDATES_MORE)?;
    }
    choose(shape, &offers, scratch)
}

/// True where one node could carry all.
fn is_alone(shape: Shape, offers: &[Offer]) -> bool {
    offers.iter().any(|offer| carries(offer, shape))
}

fn carries(offer: &Offer, shape: Shape) -> bool {
    usize::try_from(shape.servers)
        .is_ok_and(|servers| offer.workers.get(servers).is_some_and(|most| *most >= shape.workers))
}

/// What a node can carry, up to the shape; none where that is nothing.
fn offer(shape: Shape, demand: &Demand, node: usize, left: &[i128]) -> Option<Offer> {
    // Most workers beside so many servers; none where these do not fit themselves.
    let workers_beside = |servers: u32| {
        let mut most = shape.workers;
        for (left, (server, worker)) in left.iter().zip(demand.server().iter().zip(demand.worker()))
        {
            let after = left - server * i128::from(servers);
            if after < 0 && *server > 0 && servers > 0 {
                return None;
            }
            if *worker > 0 {
                // Both are amounts of one node and one task; narrow numbers divide faster.
                let (after, each) = (u64::try_from(after.max(0)), u64::try_from(*worker));
                let room = after.unwrap_or(u64::MAX) / each.unwrap_or(u64::MAX);
                most = most.min(u32::try_from(room).unwrap_or(u32::MAX));
            }
        }
        Some(most)
    };
    // Most nodes of a full cluster end here, before anything is allocated.
    if workers_beside(0) == Some(0) && workers_beside(1).is_none() {
        return None;
    }
    let workers = (0..=shape.servers).map_while(workers_beside).collect();
    Some(Offer { node, workers })
}

/// Chooses spots among offers sorted by node.
fn choose(shape: Shape, offers: &[Offer], scratch: &mut Scratch) -> Option<Spots> {
    if shape.servers == 0 || shape.workers == 0 {
        return None;
    }
    if let Some(offer) = offers.iter().find(|offer| carries(offer, shape)) {
        return Some(vec![(offer.node, shape)].into());
    }
    if exact::work(shape, offers) <= exact::WORK_MAX {
        exact::choose(shape, offers, scratch)
    } else {
        wide::choose(shape, offers)
    }
}
