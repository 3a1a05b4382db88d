//! What one round leaves for the next. Where few jobs changed, everything else is taken as it was
//! decided: the books of the nodes, what each job was given, and where a job that has not been
//! started yet is to start.

use std::sync::Arc;

use model::{JobId, Shape};

use crate::goodput::horizon::Memory;
use crate::place::Scratch;
use crate::pollux::Searched;
use crate::print::print_of;
use crate::room::{Hold, Room, Spots, by_id};
use crate::snapshot::{JobInput, NodeInput, Policy, Snapshot};

/// Saves work from round to round; an empty one gives a plan as good.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    pub(crate) scratch: Scratch,
    /// Of the genetic search.
    pub(crate) searched: Searched,
    /// Of the look ahead by goodput.
    pub(crate) foreseen: Memory,
    last: Option<Last>,
    /// Of the present snapshot's jobs, where a warm round was tried.
    prints: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Last {
    nodes: Arc<[NodeInput]>,
    /// The nodes come by id, none twice.
    sorted: bool,
    policy: Policy,
    jobs: Vec<Known>,
    room: Room,
    /// Seconds left as placed over those as allocated.
    loss: f64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    id: JobId,
    print: u64,
    allocated: Shape,
}

/// A round that goes on from the last one.
#[derive(Debug)]
pub(crate) struct Warm {
    pub(crate) room: Room,
    /// What the last round gave each job; none where the job is new or changed.
    pub(crate) allocated: Vec<Option<Shape>>,
    /// What the nodes' boundaries cost in the last round.
    pub(crate) loss: f64,
}

/// With fewer jobs a round from the start costs nothing, and gives the same plan whatever was
/// before it.
const JOBS_MIN: usize = 1000;
/// At most one job in so many may have changed, or a round from the start is as quick.
const CHANGED_SHARE: usize = 16;

impl Cache {
    /// The last round's books with this snapshot's jobs in them, if it differs little. The books
    /// are gone from the cache until [`Cache::keep`].
    pub(crate) fn warm(
        &mut self,
        snapshot: &Snapshot,
        policy: &Policy,
        nodes: &[&NodeInput],
    ) -> Option<Warm> {
        self.prints.clear();
        let last = self.last.take()?;
        let same_nodes = Arc::ptr_eq(&last.nodes, &snapshot.nodes) || last.nodes == snapshot.nodes;
        let sorted = snapshot.jobs.is_sorted_by(|a, b| a.id < b.id);
        let few = snapshot.jobs.len() < JOBS_MIN;
        if few || !same_nodes || last.policy != *policy || !sorted {
            return None;
        }
        let Last { jobs, mut room, loss, .. } = last;
        let from = sources(&jobs, &snapshot.jobs);
        let mut same = 0;
        let mut kept = |at: usize, from: Option<usize>| {
            let job = &snapshot.jobs[at];
            let print = print_of(job);
            self.prints.push(print);
            let from = from.filter(|from| jobs[*from].print == print)?;
            let hold = room.hold(from);
            let after = after(hold, job, nodes);
            let is_still = after.is_some() && hold.current == hold.next;
            same += usize::from(is_still || is_as_seen(hold, job, nodes));
            after.map(|carried_out| (from, carried_out))
        };
        let kept: Vec<Option<(usize, bool)>> =
            from.iter().enumerate().map(|(at, from)| kept(at, *from)).collect();
        let unchanged = kept.iter().flatten().count();
        if same == jobs.len().max(kept.len()) {
            // The very same question gets the very same answer.
            return None;
        }
        let changed = jobs.len().max(kept.len()) - unchanged;
        if changed * CHANGED_SHARE > snapshot.jobs.len() {
            return None;
        }
        // The books have a column for each kind that some job asked for then.
        let new = snapshot.jobs.iter().zip(&kept).filter(|(_, kept)| kept.is_none());
        let asked = new.flat_map(|(job, _)| [&job.worker, &job.server]);
        if !room.kinds.holds_all_of(asked) {
            return None;
        }
        let allocated =
            kept.iter().map(|kept| kept.as_ref().map(|(from, _)| jobs[*from].allocated)).collect();
        room = room.carry_over(&snapshot.jobs, &kept);
        Some(Warm { room, allocated, loss })
    }

    /// The snapshot's nodes by id, of which the very same list need not be looked through again.
    pub(crate) fn nodes<'a>(&self, snapshot: &'a Snapshot) -> Vec<&'a NodeInput> {
        let known = |last: &Last| last.sorted && Arc::ptr_eq(&last.nodes, &snapshot.nodes);
        if self.last.as_ref().is_some_and(known) {
            snapshot.nodes.iter().collect()
        } else {
            by_id(&snapshot.nodes)
        }
    }

    pub(crate) fn keep(
        &mut self,
        snapshot: &Snapshot,
        (policy, nodes): (&Policy, &[&NodeInput]),
        room: Room,
        (allocated, loss): (&[Shape], f64),
    ) {
        if self.prints.len() != snapshot.jobs.len() {
            self.prints = snapshot.jobs.iter().map(print_of).collect();
        }
        let known = |((job, print), allocated): ((&JobInput, &u64), &Shape)| Known {
            id: job.id,
            print: *print,
            allocated: *allocated,
        };
        self.last = Some(Last {
            nodes: Arc::clone(&snapshot.nodes),
            sorted: nodes.len() == snapshot.nodes.len()
                && nodes.iter().zip(snapshot.nodes.iter()).all(|(a, b)| std::ptr::eq(*a, b)),
            policy: policy.clone(),
            jobs: snapshot.jobs.iter().zip(&self.prints).zip(allocated).map(known).collect(),
            room,
            loss,
        });
    }
}

/// Where each job was in the last round; both lists ascend by id.
fn sources(last: &[Known], jobs: &[JobInput]) -> Vec<Option<usize>> {
    let mut at = 0;
    jobs.iter()
        .map(|job| {
            while last.get(at).is_some_and(|known| known.id < job.id) {
                at += 1;
            }
            last.get(at).filter(|known| known.id == job.id).map(|_| at)
        })
        .collect()
}

/// Whether what the last round decided was carried out, for a job that holds what that round saw
/// or decided, at the same charges; none for another.
fn after(hold: &Hold, job: &JobInput, nodes: &[&NodeInput]) -> Option<bool> {
    if hold.goal != hold.next {
        return None;
    }
    let Some(current) = &job.current else {
        return hold.current.is_empty().then_some(false);
    };
    let still = hold.current.is_empty() || hold.current == hold.next;
    let there = still && !hold.next.is_empty() && is_at(&hold.next, &current.placement, nodes);
    there.then_some(true)
}

/// True where a job holds what it held in the last round.
fn is_as_seen(hold: &Hold, job: &JobInput, nodes: &[&NodeInput]) -> bool {
    match &job.current {
        Some(current) => is_at(&hold.current, &current.placement, nodes),
        None => hold.current.is_empty(),
    }
}

fn is_at(spots: &Spots, placement: &model::Placement, nodes: &[&NodeInput]) -> bool {
    spots.len() == placement.0.len()
        && spots.iter().zip(&placement.0).all(|((node, shape), share)| {
            let id = &nodes[*node].id;
            (id.is_same(&share.node) || *id == share.node)
                && shape.servers == share.servers
                && shape.workers == share.workers
        })
}
