//! Rules that every plan obeys, whatever policy made it. Written apart from the planner and from
//! its books: everything is counted again from the snapshot and the plan alone.
//!
//! The rules that need two plans, such as that one snapshot gives one plan, are for tests.

mod books;

use model::{Placement, Shape};

use crate::plan::{Decision, Plan, Reason, Verb};
use crate::snapshot::{JobInput, NodeInput, Snapshot, Want};
use books::{Books, Index, Spots, look_up};

/// Everything that is wrong with a plan, in words; empty where it obeys all rules:
///
/// - it is of the snapshot's revision, with exactly one decision for each job, in order;
/// - what holds nothing only starts or waits; what runs is kept, moved or evicted; what must not
///   be moved is kept;
/// - a new placement is sorted, without empty or double shares, on open nodes only, and its
///   shape is within the job's bounds, among the shapes offered, or the one pinned; workers without
///   servers only where the job states a goodput;
/// - at once, with every job counted by the larger of what it holds and what it is to hold, no
///   node on which a job gets more than it held is pushed over its capacity; and in the end, with
///   what each job is to hold, none of these is over;
/// - the allocation told is nothing, or no more than what is held, or within the job's bounds; a
///   sharing job that starts gets no more of either kind than that;
/// - the transfer time and the share of pairs across nodes that are told are those of the
///   placement (the appendix), and none is told where there is no placement;
/// - every number is finite and every decision has its sentence.
///
/// Costs a look at each node and a search in their ids for each share of a placement.
#[must_use]
pub fn check(snapshot: &Snapshot, plan: &Plan) -> Vec<String> {
    let mut faults = Vec::new();
    if plan.revision != snapshot.revision {
        faults.push(format!(
            "the plan is of revision {}, the snapshot of {}",
            plan.revision, snapshot.revision
        ));
    }
    let wanted = snapshot.jobs.iter().map(|job| job.id);
    let decided = plan.decisions.iter().map(|decision| decision.job);
    if !wanted.clone().eq(decided.clone()) {
        let (decided, wanted): (Vec<_>, Vec<_>) = (decided.collect(), wanted.collect());
        faults.push(format!("decisions are for {decided:?}, the jobs are {wanted:?}"));
        return faults;
    }
    let mut index = Index::of(&snapshot.nodes);
    let mut books = Books::of(snapshot);
    let (mut held, mut next) = (Spots::new(), Spots::new());
    let (mut held_found, mut next_found) = (Vec::new(), Vec::new());
    for (job, decision) in snapshot.jobs.iter().zip(&plan.decisions) {
        let mut fault = |text: String| faults.push(format!("{}: {text}", job.id));
        check_verb(job, &decision.verb).map(&mut fault);
        held.clear();
        held_found.clear();
        if let Some(current) = &job.current {
            look_up(&current.placement, &mut index, &mut held_found, &mut held);
        }
        let (after, is_whole): (&Spots, bool) = match &decision.verb {
            Verb::Start { placement } | Verb::Rescale { placement } => {
                look_up(placement, &mut index, &mut next_found, &mut next);
                check_placement(job, placement, &next_found, &snapshot.nodes, &mut fault);
                (&next, next_found.iter().all(Option::is_some))
            }
            Verb::Keep => (&held, held_found.iter().all(Option::is_some)),
            Verb::Evict | Verb::Wait => (const { &Spots::new() }, true),
        };
        check_reason(&decision.reason).map(&mut fault);
        check_allocated(job, decision).map(&mut fault);
        // What is told of a placement on nodes that are not here cannot be judged.
        if is_whole {
            check_costs(decision, after).map(&mut fault);
        }
        books.charge(job, &held, after, new_placement(decision).is_some());
    }
    faults.extend(books.faults(&index));
    faults
}

fn new_placement(decision: &Decision) -> Option<&Placement> {
    match &decision.verb {
        Verb::Start { placement } | Verb::Rescale { placement } => Some(placement),
        Verb::Keep | Verb::Evict | Verb::Wait => None,
    }
}

fn check_verb(job: &JobInput, verb: &Verb) -> Option<String> {
    let name = verb.name();
    match (&job.current, verb) {
        (None, Verb::Rescale { .. } | Verb::Evict) => Some(format!("{name}, but it holds nothing")),
        (Some(_), Verb::Start { .. } | Verb::Wait) => Some(format!("{name}, but it runs")),
        (Some(current), Verb::Rescale { .. } | Verb::Evict) if !current.movable => {
            Some(format!("{name}, but it must not be moved"))
        }
        (Some(current), Verb::Rescale { placement }) if *placement == current.placement => {
            Some("is moved to where it stands".to_owned())
        }
        (None, Verb::Keep | Verb::Start { .. } | Verb::Wait)
        | (Some(_), Verb::Keep | Verb::Rescale { .. } | Verb::Evict) => None,
    }
}

fn check_placement(
    job: &JobInput,
    placement: &Placement,
    found: &[Option<usize>],
    nodes: &[NodeInput],
    fault: &mut impl FnMut(String),
) {
    if !placement.0.windows(2).all(|pair| pair[0].node < pair[1].node) {
        fault("its nodes are not sorted, or one comes twice".to_owned());
    }
    let (mut servers, mut workers) = (0_u64, 0_u64);
    for (share, node) in placement.0.iter().zip(found) {
        servers += u64::from(share.servers);
        workers += u64::from(share.workers);
        if share.servers == 0 && share.workers == 0 {
            fault(format!("nothing of it stands on {}", share.node));
        }
        match node.map(|node| &nodes[node]) {
            None => fault(format!("{} is not in the snapshot", share.node)),
            Some(node) if !node.open => fault(format!("{} is not open", share.node)),
            Some(_) => {}
        }
    }
    let (Ok(servers), Ok(workers)) = (u32::try_from(servers), u32::try_from(workers)) else {
        fault(format!("{servers} servers and {workers} workers"));
        return;
    };
    let shape = Shape::new(servers, workers);
    // Workers of a job with a goodput exchange gradients among themselves.
    let is_elastic = servers == 0 && job.goodput.is_some();
    if workers == 0 || (servers == 0 && !is_elastic) {
        fault(format!("{shape} lacks a server or a worker"));
    }
    let (min, max) = (job.min, job.max);
    let min = if is_elastic { Shape::new(0, min.workers) } else { min };
    let is_inside = no_more(min, shape) && no_more(shape, max);
    let least = Shape::new(min.servers.max(1), min.workers.max(1));
    match &job.want {
        Want::Pinned { shape: pinned } if *pinned != shape => {
            fault(format!("{shape}, but it is pinned to {pinned}"));
        }
        Want::Pinned { .. } => {}
        Want::Share { .. } | Want::Profile { .. } if !is_inside => {
            fault(format!("{shape} is outside its bounds {min} to {max}"));
        }
        Want::Profile { shapes } if shape != least && !is_elastic && !shapes.contains(&shape) => {
            // A job that must give way may stop anywhere above its least shape.
            let held = job.current.as_ref().map(|current| current.placement.shape());
            if !held.is_some_and(|held| no_more(shape, held)) {
                fault(format!("{shape} was not offered for its profile"));
            }
        }
        Want::Share { .. } | Want::Profile { .. } => {}
    }
}

/// True where `a` has no more than `b` of either kind.
fn no_more(a: Shape, b: Shape) -> bool {
    a.servers <= b.servers && a.workers <= b.workers
}

fn check_reason(reason: &Reason) -> Option<String> {
    if reason.words.is_blank() {
        return Some("has no reason in words".to_owned());
    }
    let numbers = [
        ("speed_before", reason.speed_before),
        ("speed_after", reason.speed_after),
        ("remaining_s", reason.remaining_s),
        ("gain_s", reason.gain_s),
        ("cost_s", reason.cost_s),
        ("transfer_time", reason.transfer_time),
        ("cross_node_share", reason.cross_node_share),
    ];
    numbers.into_iter().find_map(|(name, value)| {
        value.filter(|value| !value.is_finite()).map(|value| format!("{name} is {value}"))
    })
}

fn check_allocated(job: &JobInput, decision: &Decision) -> Option<String> {
    let allocated = decision.reason.allocated;
    if allocated.is_empty() {
        return None;
    }
    let (min, max) = match &job.want {
        Want::Pinned { shape } => (*shape, *shape),
        Want::Share { .. } | Want::Profile { .. } => (job.min, job.max),
    };
    let is_elastic = allocated.servers == 0 && job.goodput.is_some();
    let min = if is_elastic { Shape::new(0, min.workers) } else { min };
    let is_shape = (allocated.servers > 0 || is_elastic) && allocated.workers > 0;
    let is_inside = is_shape && no_more(min, allocated) && no_more(allocated, max);
    let held = job.current.as_ref().map(|current| current.placement.shape());
    let placed = new_placement(decision).map(Placement::shape);
    let is_held = held.is_some_and(|held| no_more(allocated, held)) || placed == Some(allocated);
    if !is_inside && !is_held {
        return Some(format!("its allocation {allocated} is outside its bounds {min} to {max}"));
    }
    match (&decision.verb, &job.want, placed) {
        (Verb::Start { .. }, Want::Share { .. }, Some(placed)) if !no_more(placed, allocated) => {
            Some(format!("{placed} is more than its allocation {allocated}"))
        }
        _ => None,
    }
}

/// Told numbers may differ from ours by the order of their sums.
const NEAR: f64 = 1e-9;

/// The transfer time of a step and the share of pairs across nodes, told against counted.
fn check_costs(decision: &Decision, after: &[(usize, Shape)]) -> Option<String> {
    let told = [
        ("transfer time", decision.reason.transfer_time),
        ("cross-node share", decision.reason.cross_node_share),
    ];
    if after.is_empty() {
        let told = told.into_iter().find(|(_, told)| told.is_some());
        return told.map(|(name, _)| format!("tells a {name}, but has no place"));
    }
    let must_tell = new_placement(decision).is_some();
    let counted = costs(after)?;
    told.into_iter().zip(counted).find_map(|((name, told), counted)| match told {
        Some(told) if (told - counted).abs() <= NEAR * counted.max(1.0) => None,
        Some(told) => Some(format!("its {name} is told as {told}, it is {counted}")),
        None if must_tell => Some(format!("its {name} of {counted} is not told")),
        None => None,
    })
}

/// By the appendix for S = B = 1: the most parameters that some node has to send or get over the
/// network in a step; and the pairs of a server and a worker that are not on one node, of all.
/// None without a server or a worker.
#[expect(clippy::cast_precision_loss, reason = "compared up to a part in 10^9")]
fn costs(spots: &[(usize, Shape)]) -> Option<[f64; 2]> {
    let sum = |of: fn(&Shape) -> u32| spots.iter().map(|(_, here)| u64::from(of(here))).sum();
    let servers: u64 = sum(|here| here.servers);
    let workers: u64 = sum(|here| here.workers);
    if servers == 0 || workers == 0 {
        return None;
    }
    let (mut most, mut near) = (0, 0_u128);
    for (_, here) in spots {
        if here.servers > 0 {
            most = most.max(workers - u64::from(here.workers));
        }
        if here.workers > 0 {
            most = most.max(servers - u64::from(here.servers));
        }
        near += u128::from(here.servers) * u128::from(here.workers);
    }
    let pairs = u128::from(servers) * u128::from(workers);
    Some([most as f64 / servers as f64, (pairs - near) as f64 / pairs as f64])
}
