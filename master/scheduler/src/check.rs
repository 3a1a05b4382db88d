//! Rules that every plan obeys, whatever policy made it. Written apart from the planner and from
//! its books: everything is counted again from the snapshot and the plan alone.

use std::collections::BTreeMap;

use model::{NodeId, Placement, Resources, Shape};

use crate::plan::{Decision, Plan, Reason, Verb};
use crate::snapshot::{JobInput, NodeInput, Snapshot, Want};

/// Everything that is wrong with a plan, in words; empty where it obeys all rules:
///
/// - it is of the snapshot's revision, with exactly one decision for each job, in order;
/// - what holds nothing only starts or waits; what runs is kept, moved or evicted; what must not
///   be moved is kept;
/// - a new placement is sorted, without empty or double shares, on open nodes only, and its
///   shape is within the job's bounds, among the shapes offered, or the one pinned;
/// - at once, with every job counted by the larger of what it holds and what it is to hold, no
///   node on which a job gets more than it held is pushed over its capacity; and in the end, with
///   what each job is to hold, none of these is over;
/// - every number is finite and every decision has its sentence.
#[must_use]
pub fn check(snapshot: &Snapshot, plan: &Plan) -> Vec<String> {
    let mut faults = Vec::new();
    if plan.revision != snapshot.revision {
        faults.push(format!(
            "the plan is of revision {}, the snapshot of {}",
            plan.revision, snapshot.revision
        ));
    }
    let wanted: Vec<_> = snapshot.jobs.iter().map(|job| job.id).collect();
    let decided: Vec<_> = plan.decisions.iter().map(|decision| decision.job).collect();
    if wanted != decided {
        faults.push(format!("decisions are for {decided:?}, the jobs are {wanted:?}"));
        return faults;
    }
    let nodes: BTreeMap<&NodeId, &NodeInput> =
        snapshot.nodes.iter().rev().map(|node| (&node.id, node)).collect();
    for (job, decision) in snapshot.jobs.iter().zip(&plan.decisions) {
        let id = job.id;
        faults.extend(check_verb(job, &decision.verb).map(|fault| format!("{id}: {fault}")));
        if let Some(placement) = new_placement(decision) {
            let found = check_placement(job, placement, &nodes);
            faults.extend(found.into_iter().map(|fault| format!("{id}: {fault}")));
        }
        faults.extend(check_reason(&decision.reason).map(|fault| format!("{id}: {fault}")));
    }
    faults.extend(check_capacity(snapshot, plan, &nodes));
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
    nodes: &BTreeMap<&NodeId, &NodeInput>,
) -> Vec<String> {
    let mut faults = Vec::new();
    if !placement.0.windows(2).all(|pair| pair[0].node < pair[1].node) {
        faults.push("its nodes are not sorted, or one comes twice".to_owned());
    }
    let (mut servers, mut workers) = (0_u64, 0_u64);
    for share in &placement.0 {
        servers += u64::from(share.servers);
        workers += u64::from(share.workers);
        if share.servers == 0 && share.workers == 0 {
            faults.push(format!("nothing of it stands on {}", share.node));
        }
        match nodes.get(&share.node) {
            None => faults.push(format!("{} is not in the snapshot", share.node)),
            Some(node) if !node.open => faults.push(format!("{} is not open", share.node)),
            Some(_) => {}
        }
    }
    let (Ok(servers), Ok(workers)) = (u32::try_from(servers), u32::try_from(workers)) else {
        faults.push(format!("{servers} servers and {workers} workers"));
        return faults;
    };
    let shape = Shape::new(servers, workers);
    if servers == 0 || workers == 0 {
        faults.push(format!("{shape} lacks a server or a worker"));
    }
    let (min, max) = (job.min, job.max);
    let inside = (min.servers..=max.servers).contains(&servers)
        && (min.workers..=max.workers).contains(&workers);
    let least = Shape::new(min.servers.max(1), min.workers.max(1));
    match &job.want {
        Want::Pinned { shape: pinned } if *pinned != shape => {
            faults.push(format!("{shape}, but it is pinned to {pinned}"));
        }
        Want::Pinned { .. } => {}
        Want::Share { .. } | Want::Profile { .. } if !inside => {
            faults.push(format!("{shape} is outside its bounds {min} to {max}"));
        }
        Want::Profile { shapes } if shape != least && !shapes.contains(&shape) => {
            // A job that must give way may stop anywhere above its least shape.
            let gives_way = job.current.as_ref().is_some_and(|current| {
                let held = current.placement.shape();
                servers <= held.servers && workers <= held.workers
            });
            if !gives_way {
                faults.push(format!("{shape} was not offered for its profile"));
            }
        }
        Want::Share { .. } | Want::Profile { .. } => {}
    }
    faults
}

fn check_reason(reason: &Reason) -> Option<String> {
    if reason.text().trim().is_empty() {
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

/// Sums of one node, in kinds by name; wide enough never to wrap.
#[derive(Debug, Default)]
struct Load {
    /// What is there now, at once during the plan, and in the end.
    present: BTreeMap<String, u128>,
    at_once: BTreeMap<String, u128>,
    at_end: BTreeMap<String, u128>,
    /// Of the new placements alone that do not only give up tasks here.
    new: BTreeMap<String, u128>,
}

/// What tasks of these counts take, by kind.
fn need(job: &JobInput, here: Shape) -> BTreeMap<String, u128> {
    let mut sums = BTreeMap::new();
    for (resources, count) in [(&job.server, here.servers), (&job.worker, here.workers)] {
        for kind in resources.kinds() {
            let amount = u128::from(resources.amount(&kind)) * u128::from(count);
            *sums.entry(kind).or_insert(0) += amount;
        }
    }
    sums
}

fn add(to: &mut BTreeMap<String, u128>, more: &BTreeMap<String, u128>) {
    for (kind, amount) in more {
        *to.entry(kind.clone()).or_insert(0) += amount;
    }
}

fn larger(a: &BTreeMap<String, u128>, b: &BTreeMap<String, u128>) -> BTreeMap<String, u128> {
    let mut most = a.clone();
    for (kind, amount) in b {
        let here = most.entry(kind.clone()).or_insert(0);
        *here = (*here).max(*amount);
    }
    most
}

fn shares(placement: Option<&Placement>) -> BTreeMap<&NodeId, Shape> {
    let mut shares: BTreeMap<&NodeId, Shape> = BTreeMap::new();
    for share in placement.iter().flat_map(|placement| &placement.0) {
        let here = shares.entry(&share.node).or_default();
        here.servers = here.servers.saturating_add(share.servers);
        here.workers = here.workers.saturating_add(share.workers);
    }
    shares
}

fn loads<'a>(snapshot: &'a Snapshot, plan: &'a Plan) -> BTreeMap<&'a NodeId, Load> {
    let mut loads: BTreeMap<&NodeId, Load> = BTreeMap::new();
    for (job, decision) in snapshot.jobs.iter().zip(&plan.decisions) {
        let current = job.current.as_ref().map(|current| &current.placement);
        let next = match &decision.verb {
            Verb::Keep => current,
            Verb::Start { placement } | Verb::Rescale { placement } => Some(placement),
            Verb::Evict | Verb::Wait => None,
        };
        let (before, after) = (shares(current), shares(next));
        let is_new = new_placement(decision).is_some();
        let touched: std::collections::BTreeSet<&NodeId> =
            before.keys().chain(after.keys()).copied().collect();
        for node in touched {
            let of = |shares: &BTreeMap<&NodeId, Shape>| {
                need(job, shares.get(node).copied().unwrap_or_default())
            };
            let (now, later) = (of(&before), of(&after));
            let load = loads.entry(node).or_default();
            add(&mut load.present, &now);
            add(&mut load.at_once, &larger(&now, &later));
            add(&mut load.at_end, &later);
            let share =
                |shares: &BTreeMap<&NodeId, Shape>| shares.get(node).copied().unwrap_or_default();
            let (held, gets) = (share(&before), share(&after));
            if is_new && (gets.servers > held.servers || gets.workers > held.workers) {
                add(&mut load.new, &later);
            }
        }
    }
    loads
}

fn check_capacity(
    snapshot: &Snapshot,
    plan: &Plan,
    nodes: &BTreeMap<&NodeId, &NodeInput>,
) -> Vec<String> {
    let mut faults = Vec::new();
    for (id, load) in loads(snapshot, plan) {
        let Some(node) = nodes.get(id) else { continue };
        let amount = |resources: &Resources, kind: &str| u128::from(resources.amount(kind));
        let sum = |sums: &BTreeMap<String, u128>, kind: &str| sums.get(kind).copied().unwrap_or(0);
        // A kind of which nothing is newly taken here may be over for older reasons.
        for (kind, _) in load.new.iter().filter(|(_, new)| **new > 0) {
            let (has, held) = (amount(&node.capacity, kind), amount(&node.held, kind));
            let present = held + sum(&load.present, kind);
            let at_once = held + sum(&load.at_once, kind);
            let at_end = held + sum(&load.at_end, kind);
            if at_once > has.max(present) {
                faults.push(format!("{id}: {at_once} {kind} at once, it has {has}"));
            }
            if at_end > has {
                faults.push(format!("{id}: {at_end} {kind} in the end, it has {has}"));
            }
        }
    }
    faults
}
