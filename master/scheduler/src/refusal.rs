//! Why the nodes have no room for a job, and the cheapest change that would start it.

use std::collections::BTreeMap;

use model::Shape;

use crate::plan::Refused;
use crate::room::View;
use crate::round::Round;

/// Most reasons listed for the nodes that refuse a job; the rest are added up.
const REFUSALS_MAX: usize = 8;

/// Open nodes with the same capacity and the same left: in a full cluster there are few kinds.
struct Class {
    left: Vec<i128>,
    capacity: Vec<i128>,
    /// The first of them by id, and how many there are.
    first: usize,
    count: u32,
}

/// All open nodes, those that are alike together.
pub(crate) struct Alike {
    classes: Vec<Class>,
    /// The largest capacity of each kind.
    largest: Vec<i128>,
    closed: u32,
}

impl Alike {
    pub(crate) fn of(round: &Round<'_>) -> Self {
        let room = &round.room;
        let mut nodes: Vec<(Vec<i128>, Vec<i128>, usize)> = (0..room.node_count())
            .filter(|node| room.is_open(*node))
            .map(|node| {
                let left = room.left(node, View::Both).map(|left| left.max(0)).collect();
                (left, room.kinds.amounts(&round.nodes[node].capacity), node)
            })
            .collect();
        nodes.sort_unstable();
        let closed = u32::try_from(room.node_count() - nodes.len()).unwrap_or(u32::MAX);
        let mut largest = vec![0; room.kinds.count()];
        let classes = nodes
            .chunk_by(|a, b| a.0 == b.0 && a.1 == b.1)
            .map(|same| {
                let (left, capacity, first) = same[0].clone();
                for (largest, has) in largest.iter_mut().zip(&capacity) {
                    *largest = (*largest).max(*has);
                }
                let count = u32::try_from(same.len()).unwrap_or(u32::MAX);
                Class { left, capacity, first, count }
            })
            .collect();
        Self { classes, largest, closed }
    }
}

/// The first kind of which a node has too little, and how much it has.
fn lacks(left: &[i128], need: &[i128]) -> Option<(usize, i128)> {
    let mut kinds = left.iter().zip(need).enumerate();
    kinds.find(|(_, (left, need))| left < need).map(|(kind, (left, _))| (kind, *left))
}

/// Asks every node about one task of the job: a server where no node has room for one, else a
/// worker.
pub(crate) fn refusal(round: &Round<'_>, alike: &Alike, job: usize, shape: Shape) -> Refused {
    let kinds = &round.room.kinds;
    let demand = round.room.demand(job);
    let server_fits =
        alike.classes.iter().any(|class| lacks(&class.left, demand.server()).is_none());
    let (what, need) =
        if server_fits { ("worker", demand.worker()) } else { ("server", demand.server()) };
    let mut counts: BTreeMap<(usize, i128), u32> = BTreeMap::new();
    for class in &alike.classes {
        if let Some(key) = lacks(&class.left, need) {
            *counts.entry(key).or_default() += class.count;
        }
    }
    let mut counts: Vec<((usize, i128), u32)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let others: u32 = counts.drain(counts.len().min(REFUSALS_MAX)..).map(|(_, count)| count).sum();
    let mut nodes: Vec<(String, u32)> = counts
        .into_iter()
        .map(|((kind, left), count)| {
            let (need, left) = (kinds.shown(kind, need[kind]), kinds.shown(kind, left));
            (format!("{what} needs {need}, {left} free"), count)
        })
        .collect();
    if others > 0 {
        nodes.push((format!("{what} needs more than is free, in other ways"), others));
    }
    if alike.closed > 0 {
        nodes.push(("not open for new tasks".to_owned(), alike.closed));
    }
    Refused { nodes, remedy: remedy(round, alike, job, shape) }
}

/// A task that no node could take even when empty is not helped by more nodes of the same kind.
fn larger_than_any_node(round: &Round<'_>, alike: &Alike, job: usize) -> Option<String> {
    let kinds = &round.room.kinds;
    let demand = round.room.demand(job);
    [("worker", demand.worker()), ("server", demand.server())].into_iter().find_map(
        |(what, needs)| {
            let (kind, largest) = lacks(&alike.largest, needs)?;
            let (need, largest) = (kinds.shown(kind, needs[kind]), kinds.shown(kind, largest));
            Some(format!("one {what} needs a node with {need}, the largest has {largest}"))
        },
    )
}

/// What is missing of each kind.
fn missing(left: &[i128], needs: &[i128]) -> Vec<(usize, i128)> {
    let lacking = left.iter().zip(needs).enumerate();
    lacking
        .filter(|(_, (left, need))| left < need)
        .map(|(kind, (left, need))| (kind, need - left))
        .collect()
}

/// The least that would let the job start: an amount to free on the node that is closest to
/// taking the whole shape, else more capacity.
#[expect(clippy::cast_precision_loss, reason = "only compared")]
fn remedy(round: &Round<'_>, alike: &Alike, job: usize, shape: Shape) -> String {
    let room = &round.room;
    let needs: Vec<i128> = room.demand(job).of(shape).collect();
    let words = |missing: &[(usize, i128)]| -> String {
        let parts: Vec<String> =
            missing.iter().map(|(kind, more)| room.kinds.shown(*kind, *more)).collect();
        parts.join(" and ")
    };
    if alike.classes.is_empty() {
        return "no node is open: start an agent, or open a node again".to_owned();
    }
    if let Some(words) = larger_than_any_node(round, alike, job) {
        return words;
    }
    let price = |missing: &[(usize, i128)]| -> f64 {
        let share = |(kind, more): &(usize, i128)| *more as f64 / room.total()[*kind].max(1) as f64;
        missing.iter().map(share).sum()
    };
    let closest = alike
        .classes
        .iter()
        .filter(|class| lacks(&class.capacity, &needs).is_none())
        .map(|class| (class.first, missing(&class.left, &needs)))
        .filter(|(_, missing)| !missing.is_empty())
        .min_by(|a, b| price(&a.1).total_cmp(&price(&b.1)).then(a.0.cmp(&b.0)));
    if let Some((node, missing)) = closest {
        return format!("free {} on {}", words(&missing), round.nodes[node].id);
    }
    let short = missing(room.total(), &needs);
    if short.is_empty() {
        let left = missing(room.total_left(), &needs);
        if left.is_empty() {
            return format!("free room on one node: what is free is spread too thinly for {shape}");
        }
        return format!("free {} in all", words(&left));
    }
    format!("add a node: the whole cluster lacks {}, or ask for less", words(&short))
}
