//! A good placement of a job that is too wide for the exact table: the paper's rule, the fewest
//! of the roomiest nodes with counts as even as they go. It finds a placement whenever there is
//! one.

use model::Shape;

use super::Offer;
use crate::room::{Spot, Spots};

pub(crate) fn choose(shape: Shape, offers: &[Offer]) -> Option<Spots> {
    let roomiest = roomiest(shape, offers);
    let packed = Packing::fill(shape, &roomiest)?;
    let nodes = packed.nodes;
    // Uneven counts can need less room than even ones: try a few more nodes before giving up on
    // an even split.
    let even = (nodes..=(nodes + 2).min(roomiest.len()))
        .find_map(|nodes| even_split(shape, &roomiest[..nodes]));
    let mut spots = even.unwrap_or_else(|| packed.read(&roomiest));
    spots.sort_unstable_by_key(|(node, _)| *node);
    Some(spots.into())
}

/// The roomiest offers, by node: as many as are needed and a few more; none where all do not
/// suffice.
pub(crate) fn fewest(shape: Shape, offers: Vec<Offer>, more: usize) -> Option<Vec<Offer>> {
    let sorted = roomiest(shape, &offers);
    let needed = Packing::fill(shape, &sorted)?.nodes;
    let mut kept: Vec<Offer> = sorted.into_iter().take(needed + more).cloned().collect();
    kept.sort_unstable_by_key(|offer| offer.node);
    Some(kept)
}

/// The most workers that fit beside 0, 1, 2, … servers on all nodes together; none where so many
/// servers do not fit themselves.
pub(super) fn frontier(shape: Shape, offers: &[Offer]) -> Vec<Option<u32>> {
    let width = usize::try_from(shape.servers).unwrap_or(usize::MAX).saturating_add(1);
    let mut most: Vec<Option<u32>> = vec![None; width];
    most[0] = Some(0);
    for offer in offers {
        let mut next = vec![None; width];
        for (before, sum) in most.iter().enumerate() {
            let Some(sum) = sum else { continue };
            for (here, workers) in offer.workers.iter().enumerate().take(width - before) {
                let sum = sum.saturating_add(*workers).min(shape.workers);
                let cell: &mut Option<u32> = &mut next[before + here];
                *cell = Some(cell.map_or(sum, |best| best.max(sum)));
            }
        }
        most = next;
    }
    most
}

/// Offers by the most that they could carry of the shape, in a rough measure.
fn roomiest(shape: Shape, offers: &[Offer]) -> Vec<&Offer> {
    let (p, w) = (u64::from(shape.servers), u64::from(shape.workers));
    let most = |offer: &Offer| {
        let counts = offer.workers.iter().zip(0_u64..);
        counts.map(|(workers, servers)| u64::from(*workers) * p + servers * w).max()
    };
    let mut sorted: Vec<&Offer> = offers.iter().collect();
    sorted.sort_by_cached_key(|offer| (std::cmp::Reverse(most(offer)), offer.node));
    sorted
}

/// The `at`-th of `parts` parts of `total` that differ by at most one, larger first.
pub(super) fn part(total: u32, parts: u32, at: u32) -> u32 {
    total / parts + u32::from(at < total % parts)
}

fn even_split(shape: Shape, offers: &[&Offer]) -> Option<Vec<Spot>> {
    let count = u32::try_from(offers.len()).ok().filter(|count| *count > 0)?;
    // Wherever one server more stands, one worker less is asked, as far as both are uneven.
    let mut spots = Vec::new();
    for (at, offer) in (0..count).zip(offers) {
        let here =
            Shape::new(part(shape.servers, count, at), part(shape.workers, count, count - 1 - at));
        let most = offer.workers.get(usize::try_from(here.servers).ok()?)?;
        if here.workers > *most {
            return None;
        }
        if !here.is_empty() {
            spots.push((offer.node, here));
        }
    }
    Some(spots)
}

/// Servers given to each of the first nodes so that most workers fit beside them.
struct Packing {
    nodes: usize,
    /// For each node and number of servers on the nodes up to it: servers on this one.
    choices: Vec<Vec<u32>>,
    shape: Shape,
}

impl Packing {
    /// Adds nodes until all servers and workers fit: `most[s]` is the most workers beside s
    /// servers on the nodes so far.
    fn fill(shape: Shape, offers: &[&Offer]) -> Option<Self> {
        let width = usize::try_from(shape.servers).ok()? + 1;
        let mut most: Vec<Option<u32>> = vec![None; width];
        most[0] = Some(0);
        let mut choices = Vec::new();
        for (at, offer) in offers.iter().enumerate() {
            let mut next: Vec<Option<u32>> = vec![None; width];
            let mut choice = vec![0_u32; width];
            for (servers, cell) in next.iter_mut().enumerate() {
                for (here, workers) in offer.workers.iter().take(servers + 1).enumerate() {
                    let Some(before) = most[servers - here] else { continue };
                    let sum = before.saturating_add(*workers).min(shape.workers);
                    if cell.is_none_or(|best| sum > best) {
                        *cell = Some(sum);
                        choice[servers] = u32::try_from(here).ok()?;
                    }
                }
            }
            most = next;
            choices.push(choice);
            if most[width - 1].is_some_and(|workers| workers >= shape.workers) {
                return Some(Self { nodes: at + 1, choices, shape });
            }
        }
        None
    }

    /// The servers as chosen, the workers dealt out one by one to the node with the fewest.
    fn read(&self, offers: &[&Offer]) -> Vec<Spot> {
        let mut left = self.shape.servers;
        let mut servers = vec![0_u32; self.nodes];
        for at in (0..self.nodes).rev() {
            servers[at] = self.choices[at][usize::try_from(left).expect("indexed before")];
            left -= servers[at];
        }
        let most =
            |at: usize| offers[at].workers[usize::try_from(servers[at]).expect("indexed before")];
        // The level to which all nodes are filled, as far as each can: found by halving.
        let filled =
            |level: u32| -> u64 { (0..self.nodes).map(|at| u64::from(most(at).min(level))).sum() };
        let (mut low, mut high) = (0, self.shape.workers);
        while low < high {
            let middle = u32::midpoint(low, high);
            if filled(middle) >= u64::from(self.shape.workers) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let mut surplus = filled(high) - u64::from(self.shape.workers);
        let mut spots = Vec::new();
        for (at, here) in servers.iter().enumerate() {
            let mut workers = most(at).min(high);
            // Only nodes at the level have one to spare, and there are enough of them: one level
            // lower would have been too little.
            if surplus > 0 && workers == high && workers > 0 {
                workers -= 1;
                surplus -= 1;
            }
            if *here + workers > 0 {
                spots.push((offers[at].node, Shape::new(*here, workers)));
            }
        }
        spots
    }
}
