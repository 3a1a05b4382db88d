//! The best placement of a job on a few nodes.
//!
//! A transfer distance D (the transfer time times p) is kept where every node with a server has
//! at least w − D workers and every node with a worker at least p − D servers. For one D a table
//! over (nodes left, servers left, workers left) gives the fewest nodes and, among those, the
//! most even counts; D is found by halving, as a larger one allows everything that a smaller one
//! does.

use model::Shape;

use super::{Offer, Scratch};
use crate::room::Spots;

/// Most table steps for one D: about a millisecond.
pub(crate) const WORK_MAX: u64 = 500_000;

/// No way. Prices may be added to it without overflow, so the inner loop needs no branch.
const NEVER: u64 = 1 << 62;
/// One node more weighs over any sum of squares: 2·4096² is 2^25, for 2^12 nodes 2^37.
const NODE: u64 = 1 << 40;

/// Table steps that one D would take at most.
pub(crate) fn work(shape: Shape, offers: &[Offer]) -> u64 {
    let cells = (u64::from(shape.servers) + 1).saturating_mul(u64::from(shape.workers) + 1);
    let options: u64 = offers
        .iter()
        .flat_map(|offer| &offer.workers)
        .map(|workers| u64::from(*workers) + 1)
        .fold(0, u64::saturating_add);
    cells.saturating_mul(options)
}

pub(crate) fn choose(shape: Shape, offers: &[Offer], scratch: &mut Scratch) -> Option<Spots> {
    let mut high = shape.servers.max(shape.workers);
    let mut low = least_distance(shape, offers);
    while low < high {
        let middle = u32::midpoint(low, high);
        if Table::fill(shape, offers, middle, scratch).is_possible() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    // The largest distance was not tried yet: it may be that nothing fits at all.
    let table = Table::fill(shape, offers, high, scratch);
    table.is_possible().then(|| table.read())
}

/// No distance is smaller than what the fullest node leaves: some node has a server, and beside
/// it at most so many workers, and the other way round.
fn least_distance(shape: Shape, offers: &[Offer]) -> u32 {
    let workers_most = offers.iter().filter_map(|offer| offer.workers.get(1)).max();
    let servers_most = offers
        .iter()
        .filter_map(|offer| offer.workers.iter().rposition(|workers| *workers > 0))
        .max()
        .and_then(|most| u32::try_from(most).ok());
    let far = |count: u32, most: Option<u32>| count.saturating_sub(most.unwrap_or(0));
    far(shape.workers, workers_most.copied())
        .max(far(shape.servers, servers_most))
        .min(shape.servers.max(shape.workers))
}

struct Table<'a> {
    shape: Shape,
    offers: &'a [Offer],
    distance: u32,
    /// By nodes from the last on, then servers left, then workers left.
    cells: &'a [u64],
}

fn size(count: u32) -> usize {
    usize::try_from(count).expect("the work was bounded before")
}

/// Counts that a node may carry at this distance, by falling servers, then workers.
fn options(offer: &Offer, left: Shape, whole: Shape, distance: u32) -> impl Iterator<Item = Shape> {
    let servers_least = whole.servers.saturating_sub(distance);
    let workers_least = whole.workers.saturating_sub(distance);
    let servers_most = u32::try_from(offer.workers.len() - 1).unwrap_or(u32::MAX).min(left.servers);
    (0..=servers_most).rev().flat_map(move |servers| {
        let most = offer.workers[size(servers)].min(left.workers);
        let least = if servers > 0 { workers_least } else { 0 };
        (least..=most)
            .rev()
            .map(move |workers| Shape::new(servers, workers))
            .filter(move |here| here.workers == 0 || here.servers >= servers_least)
    })
}

/// What a node with these counts adds to the sum that is made least.
fn price(here: Shape) -> u64 {
    let square = |count: u32| u64::from(count) * u64::from(count);
    if here.is_empty() { 0 } else { NODE + square(here.servers) + square(here.workers) }
}

impl<'a> Table<'a> {
    fn fill(shape: Shape, offers: &'a [Offer], distance: u32, scratch: &'a mut Scratch) -> Self {
        let width = size(shape.workers) + 1;
        let layer = (size(shape.servers) + 1) * width;
        scratch.table.clear();
        scratch.table.resize(layer * (offers.len() + 1), NEVER);
        // With no nodes left only nothing left is possible.
        scratch.table[layer * offers.len()] = 0;
        for (at, offer) in offers.iter().enumerate().rev() {
            let (head, tail) = scratch.table.split_at_mut(layer * (at + 1));
            let (cells, after) = (&mut head[layer * at..], &tail[..layer]);
            for here in options(offer, shape, shape, distance) {
                let (price, first) = (price(here), size(here.workers));
                let rows = cells.chunks_exact_mut(width).skip(size(here.servers));
                for (cells, after) in rows.zip(after.chunks_exact(width)) {
                    for (cell, rest) in cells[first..].iter_mut().zip(after) {
                        *cell = (*cell).min(rest + price);
                    }
                }
            }
        }
        Table { shape, offers, distance, cells: &scratch.table }
    }

    fn cell(&self, at: usize, left: Shape) -> u64 {
        let width = size(self.shape.workers) + 1;
        let layer = (size(self.shape.servers) + 1) * width;
        self.cells[layer * at + size(left.servers) * width + size(left.workers)]
    }

    fn is_possible(&self) -> bool {
        self.cell(0, self.shape) < NEVER
    }

    /// Walks the best way, giving the earliest nodes the most.
    fn read(&self) -> Spots {
        let mut left = self.shape;
        let mut spots = Vec::new();
        for (at, offer) in self.offers.iter().enumerate() {
            let best = self.cell(at, left);
            let rest =
                |here: Shape| Shape::new(left.servers - here.servers, left.workers - here.workers);
            let here = options(offer, left, self.shape, self.distance)
                .find(|here| self.cell(at + 1, rest(*here)).saturating_add(price(*here)) == best)
                .expect("the table's value came from one of these options");
            left = rest(here);
            if !here.is_empty() {
                spots.push((offer.node, here));
            }
        }
        spots.into()
    }
}
