//! What nodes carry by a plan, counted in flat lists.

use model::{NodeId, Placement, Resources, Shape};

use crate::snapshot::{JobInput, NodeInput, Snapshot};

/// Finds nodes by their ids.
///
/// Ids of a cluster often begin alike and differ soon after: what follows the common beginning is
/// packed into a number. A table of guesses by that number finds most nodes at once; where it
/// does not, which names made to collide can force, a search among the sorted numbers does.
pub(super) struct Index<'a> {
    nodes: &'a [NodeInput],
    /// Places of nodes by id; of several with one id, the first.
    pub(super) sorted: Vec<usize>,
    prefix: &'a [u8],
    /// Of the sorted nodes.
    keys: Vec<u128>,
    /// Places in `keys`, plus one; 0 where nothing is. A power of two long.
    guesses: Vec<u32>,
    /// Where the last search ended: the nodes of a placement often follow each other.
    last: usize,
}

/// Bytes of an id in its number.
const KEY_BYTES: usize = 16;

/// Most guesses for one number.
const GUESSES_MAX: usize = 8;

/// The first bytes as a number that sorts as they do; ids hold no zero bytes.
fn key(rest: &[u8]) -> u128 {
    let mut bytes = [0; KEY_BYTES];
    let length = rest.len().min(KEY_BYTES);
    bytes[..length].copy_from_slice(&rest[..length]);
    u128::from_be_bytes(bytes)
}

/// Where the guesses for a number begin, in a table of this length, a power of two.
fn guess(key: u128, length: usize) -> usize {
    // Odd, with bits all over: the high bits of a product depend on every bit of the number.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let half = |key: u128| u64::try_from(key & u128::from(u64::MAX)).expect("only so many bits");
    let mixed = half(key).wrapping_mul(SPREAD).rotate_left(32) ^ half(key >> 64);
    let high = mixed.wrapping_mul(SPREAD) >> 32;
    usize::try_from(high).expect("32 bits fit a usize") & (length - 1)
}

impl<'a> Index<'a> {
    pub(super) fn of(nodes: &'a [NodeInput]) -> Self {
        let mut sorted: Vec<usize> = (0..nodes.len()).collect();
        if !nodes.is_sorted_by(|a, b| a.id < b.id) {
            // Stable, so that the first of equal ids stays the first.
            sorted.sort_by(|a, b| nodes[*a].id.cmp(&nodes[*b].id));
            sorted.dedup_by(|a, b| nodes[*a].id == nodes[*b].id);
        }
        let bytes = |at: Option<&usize>| -> &'a [u8] {
            at.map_or(&[], |node| nodes[*node].id.as_str().as_bytes())
        };
        // What the first and the last begin with, all between begin with too.
        let (first, last) = (bytes(sorted.first()), bytes(sorted.last()));
        let length = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let keys: Vec<u128> = sorted.iter().map(|node| key(&bytes(Some(node))[length..])).collect();
        let mut guesses = vec![0; (keys.len() * 2).next_power_of_two() + GUESSES_MAX];
        for (at, key) in (1..).zip(&keys) {
            let from = guess(*key, guesses.len() - GUESSES_MAX);
            let mut places = guesses[from..from + GUESSES_MAX].iter_mut();
            if let Some(place) = places.find(|place| **place == 0) {
                *place = at;
            }
        }
        Self { nodes, sorted, prefix: &first[..length], keys, guesses, last: 0 }
    }

    /// The node's place in the snapshot.
    pub(super) fn find(&mut self, id: &NodeId) -> Option<usize> {
        let rest = id.as_str().as_bytes().strip_prefix(self.prefix)?;
        let wanted = key(rest);
        // Numbers of shorter ids end in a zero byte, so that equal ones are of equal ids.
        let is_it = |at: usize| {
            self.keys.get(at) == Some(&wanted)
                && (rest.len() < KEY_BYTES || self.nodes[self.sorted[at]].id == *id)
        };
        let at = [self.last, self.last + 1].into_iter().find(|at| is_it(*at));
        self.last =
            at.or_else(|| self.guessed(wanted, is_it)).or_else(|| self.searched(wanted, id))?;
        Some(self.sorted[self.last])
    }

    fn guessed(&self, wanted: u128, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let from = guess(wanted, self.guesses.len() - GUESSES_MAX);
        let guesses = self.guesses[from..from + GUESSES_MAX].iter();
        let places = guesses.map_while(|guess| usize::try_from(guess.checked_sub(1)?).ok());
        places.into_iter().find(|at| is_it(*at))
    }

    fn searched(&self, wanted: u128, id: &NodeId) -> Option<usize> {
        let from = self.keys.partition_point(|key| *key < wanted);
        let alike = self.keys[from..].partition_point(|key| *key == wanted);
        let found = self.sorted[from..from + alike]
            .binary_search_by(|node| self.nodes[*node].id.as_str().cmp(id.as_str()));
        found.ok().map(|at| from + at)
    }
}

/// The tasks of a job on nodes by their places, ascending, none twice.
pub(super) type Spots = Vec<(usize, Shape)>;

/// Looks a placement's nodes up; `found` says for each share where its node is.
pub(super) fn look_up(
    placement: &Placement,
    index: &mut Index<'_>,
    found: &mut Vec<Option<usize>>,
    spots: &mut Spots,
) {
    found.clear();
    found.extend(placement.0.iter().map(|share| index.find(&share.node)));
    spots.clear();
    for (share, node) in placement.0.iter().zip(found.iter()) {
        if let Some(node) = node {
            spots.push((*node, Shape::new(share.servers, share.workers)));
        }
    }
    if !spots.is_sorted_by(|a, b| a.0 < b.0) {
        spots.sort_by_key(|(node, _)| *node);
        spots.dedup_by(|(node, more), (kept, shape)| {
            let is_same = node == kept;
            if is_same {
                shape.servers = shape.servers.saturating_add(more.servers);
                shape.workers = shape.workers.saturating_add(more.workers);
            }
            is_same
        });
    }
}

/// What a node carries of one kind. Wide enough never to wrap: an amount of 64 bits times a count
/// of 32, over fewer than 2^32 jobs.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// What is there now, at once during the plan, and in the end.
    present: u128,
    at_once: u128,
    at_end: u128,
    /// True where a new placement takes some of it that does not only give up tasks here.
    is_taken: bool,
}

pub(super) struct Books<'a> {
    /// Kinds beyond CPUs, memory and GPUs that some job asks for.
    named: Vec<&'a str>,
    /// By node, then kind.
    sums: Vec<Sums>,
    /// What a task of the present job takes, by kind.
    server: Vec<u64>,
    worker: Vec<u64>,
}

impl<'a> Books<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let tasks = snapshot.jobs.iter().flat_map(|job| [&job.server, &job.worker]);
        let mut named: Vec<&str> =
            tasks.flat_map(|task| task.named.keys()).map(String::as_str).collect();
        named.sort_unstable();
        named.dedup();
        let kinds = 3 + named.len();
        Self {
            named,
            sums: vec![Sums::default(); snapshot.nodes.len().saturating_mul(kinds)],
            server: vec![0; kinds],
            worker: vec![0; kinds],
        }
    }

    fn kinds(&self) -> usize {
        3 + self.named.len()
    }

    fn amount(&self, resources: &Resources, kind: usize) -> u64 {
        match kind {
            0 => resources.cpus_milli,
            1 => resources.memory_bytes,
            2 => resources.gpus,
            _ => resources.named(self.named[kind - 3]),
        }
    }

    /// Counts one job, from what it holds to what it is to hold.
    pub(super) fn charge(
        &mut self,
        job: &JobInput,
        held: &[(usize, Shape)],
        next: &[(usize, Shape)],
        is_new: bool,
    ) {
        for kind in 0..self.kinds() {
            self.server[kind] = self.amount(&job.server, kind);
            self.worker[kind] = self.amount(&job.worker, kind);
        }
        let (mut held, mut next) = (held.iter().peekable(), next.iter().peekable());
        loop {
            let node = match (held.peek(), next.peek()) {
                (Some((a, _)), Some((b, _))) => *a.min(b),
                (Some((node, _)), None) | (None, Some((node, _))) => *node,
                (None, None) => return,
            };
            let now = held.next_if(|(at, _)| *at == node).map(|(_, shape)| *shape);
            let then = next.next_if(|(at, _)| *at == node).map(|(_, shape)| *shape);
            self.charge_node(node, now.unwrap_or_default(), then.unwrap_or_default(), is_new);
        }
    }

    fn charge_node(&mut self, node: usize, now: Shape, then: Shape, is_new: bool) {
        let is_more = is_new && (then.servers > now.servers || then.workers > now.workers);
        let kinds = self.kinds();
        let sums = &mut self.sums[node * kinds..(node + 1) * kinds];
        for ((sums, server), worker) in sums.iter_mut().zip(&self.server).zip(&self.worker) {
            let held = need(*server, now.servers) + need(*worker, now.workers);
            let next = need(*server, then.servers) + need(*worker, then.workers);
            sums.present += held;
            sums.at_once += held.max(next);
            sums.at_end += next;
            sums.is_taken |= is_more && next > 0;
        }
    }

    /// Nodes that are pushed over what they have, in the order of their ids.
    pub(super) fn faults(&self, index: &Index<'_>) -> Vec<String> {
        let mut faults = Vec::new();
        let kinds = self.kinds();
        for place in &index.sorted {
            let node = &index.nodes[*place];
            let sums = &self.sums[place * kinds..(place + 1) * kinds];
            // A kind of which nothing is newly taken here may be over for older reasons.
            for (kind, sums) in sums.iter().enumerate().filter(|(_, sums)| sums.is_taken) {
                let has = u128::from(self.amount(&node.capacity, kind));
                let held = u128::from(self.amount(&node.held, kind));
                let (at_once, at_end) = (held + sums.at_once, held + sums.at_end);
                let name = ["cpus", "memory", "gpus"].get(kind).copied();
                let name = || name.unwrap_or_else(|| self.named[kind - 3]);
                if at_once > has.max(held + sums.present) {
                    faults.push(format!("{}: {at_once} {} at once, it has {has}", node.id, name()));
                }
                if at_end > has {
                    let end = "in the end, it has";
                    faults.push(format!("{}: {at_end} {} {end} {has}", node.id, name()));
                }
            }
        }
        faults
    }
}

/// A product of 64 and 32 bits fits in 128; a check for more would cost most of the time here.
fn need(amount: u64, count: u32) -> u128 {
    u128::from(amount).wrapping_mul(u128::from(count))
}
