//! Verbs from what the round arrived at, and the numbers and one sentence behind each.

use std::collections::BTreeMap;

use model::Shape;

use crate::allocate::within;
use crate::entry::{Aim, Standing};
use crate::place::{cross_of, transfer_of};
use crate::plan::{Decision, Reason, Refused, Verb, Words};
use crate::refusal::{Alike, refusal};
use crate::room::{Demand, placement, shape_of};
use crate::round::Round;

/// Most different demands whose refusal is explained node by node in one round: a thousand unlike
/// jobs that wait would otherwise cost more than the round.
const REFUSALS_MAX: usize = 256;

/// One decision for each job, in the snapshot's order.
pub(crate) fn decisions(round: &mut Round<'_>) -> Vec<Decision> {
    // Waiting jobs often ask for the same: each question is answered once.
    let mut refusals: BTreeMap<(Demand, Shape), Refused> = BTreeMap::new();
    let mut alike = None;
    (0..round.entries.len())
        .map(|job| {
            let verb = verb(round, job);
            let mut reason = numbers(round, job, &verb);
            if refused(round, job, &verb) {
                let shape = round.entries[job].gains.least;
                let key = (round.room.demand(job).clone(), shape);
                if !refusals.contains_key(&key) && refusals.len() < REFUSALS_MAX {
                    let alike = alike.get_or_insert_with(|| Alike::of(round));
                    refusals.insert(key.clone(), refusal(round, alike, job, shape));
                }
                reason.refused = refusals.get(&key).cloned().map(Box::new);
            }
            reason.words = words(round, job, &verb, &reason);
            let entry = &round.entries[job];
            let counts = !matches!(verb, Verb::Wait | Verb::Evict)
                && matches!(entry.standing, Standing::Running | Standing::Waiting);
            reason.young = counts && entry.young && entry.gains.progress.is_some();
            Decision { job: round.entries[job].input.id, verb, reason }
        })
        .collect()
}

fn verb(round: &Round<'_>, job: usize) -> Verb {
    let hold = round.room.hold(job);
    let runs = round.entries[job].input.current.is_some();
    let placed = || placement(round.nodes, &hold.next);
    match (runs, hold.next.is_empty()) {
        (false, true) => Verb::Wait,
        (false, false) => Verb::Start { placement: placed() },
        (true, _) if !is_moved(round, job) => Verb::Keep,
        (true, true) => Verb::Evict,
        (true, false) => Verb::Rescale { placement: placed() },
    }
}

/// True where a running job is not to stay as it is. One on a lost node stays if it must not be
/// touched, though its spots here are not all it holds.
fn is_moved(round: &Round<'_>, job: usize) -> bool {
    let hold = round.room.hold(job);
    let lost = matches!(round.entries[job].standing, Standing::Displaced { lost: true, .. });
    hold.next != hold.current || lost
}

/// True where the job wanted a place that it did not get.
fn refused(round: &Round<'_>, job: usize, verb: &Verb) -> bool {
    let entry = &round.entries[job];
    let pinned_elsewhere = matches!(entry.aim, Aim::Pinned(shape)
        if entry.standing == Standing::Running && shape != round.current_shape(job));
    let reserved = round.room.hold(job).goal != round.room.hold(job).next;
    // The search leaves a job out for others' sake, unless no node could ever take it.
    if round.by_goodput && !round.fits_nowhere(job) {
        return false;
    }
    match verb {
        Verb::Wait | Verb::Evict => entry.needs_place() && !reserved,
        Verb::Keep => (entry.needs_place() && !reserved) || pinned_elsewhere,
        Verb::Start { .. } | Verb::Rescale { .. } => false,
    }
}

fn numbers(round: &Round<'_>, job: usize, verb: &Verb) -> Reason {
    let entry = &round.entries[job];
    let hold = round.room.hold(job);
    let (before, after) = (shape_of(&hold.current), shape_of(&hold.next));
    let finite = |value: f64| value.is_finite().then_some(value);
    let speed = |shape: Shape| {
        let speed = entry.gains.progress?.speed.steps_per_s(shape);
        finite(speed).filter(|_| !shape.is_empty())
    };
    let change = matches!(verb, Verb::Rescale { .. }).then(|| round.change(job, after)).flatten();
    let shares = || hold.next.iter().map(|(_, here)| *here);
    let placed = !hold.next.is_empty();
    let allocated = if entry.is_share() { round.allocated[job] } else { after };
    Reason {
        words: Words::default(),
        young: false,
        allocated: if allocated.is_empty() { after } else { allocated },
        speed_before: speed(before),
        speed_after: speed(after),
        remaining_s: entry.seconds_left(after).filter(|_| placed).and_then(finite),
        gain_s: change.and_then(|change| finite(change.before_s - change.after_s)),
        cost_s: matches!(verb, Verb::Rescale { .. }).then_some(entry.cost_s),
        // Without servers there is nobody to send to.
        transfer_time: (placed && after.servers > 0)
            .then(|| transfer_of(after, shares()))
            .and_then(finite),
        cross_node_share: (placed && after.servers > 0)
            .then(|| cross_of(after, shares()))
            .and_then(finite),
        refused: None,
    }
}

fn words(round: &Round<'_>, job: usize, verb: &Verb, reason: &Reason) -> Words {
    let hold = round.room.hold(job);
    if let Some(note) = round.notes.get(&job) {
        return note.clone();
    }
    Words::Plain(match verb {
        Verb::Keep => return words_keep(round, job, reason),
        Verb::Start { .. } => return words_start(round, job),
        Verb::Rescale { .. } => text_rescale(round, job, reason),
        Verb::Evict => format!("gives everything up: {}", displaced(round, job)),
        Verb::Wait => match &round.entries[job].standing {
            Standing::Unfit { why } => why.clone(),
            Standing::Waiting
            | Standing::Running
            | Standing::Fixed
            | Standing::Displaced { .. } => {
                if hold.goal.is_empty() {
                    no_room(round, job, reason)
                } else {
                    waits_for(round, job)
                }
            }
        },
    })
}

fn displaced(round: &Round<'_>, job: usize) -> String {
    match &round.entries[job].standing {
        Standing::Displaced { why, .. } | Standing::Unfit { why } => why.clone(),
        Standing::Waiting | Standing::Running | Standing::Fixed => "it must move".to_owned(),
    }
}

fn no_room(round: &Round<'_>, job: usize, reason: &Reason) -> String {
    let least = round.entries[job].gains.least;
    match reason.nodes_refused().first() {
        Some((why, nodes)) => {
            let nodes = count(usize::try_from(*nodes).unwrap_or(usize::MAX), "node");
            format!("no room for its least shape {least}: {why} on {nodes}")
        }
        None => format!("no room for its least shape {least}"),
    }
}

/// Names the jobs that give up tasks on the nodes kept for this one.
fn waits_for(round: &Round<'_>, job: usize) -> String {
    let goal = &round.room.hold(job).goal;
    let gives = |giver: &usize| {
        let hold = round.room.hold(*giver);
        let on = |spots: &[(usize, Shape)], node: usize| {
            spots.iter().find(|(at, _)| *at == node).map_or_else(Shape::default, |(_, here)| *here)
        };
        hold.next != hold.current
            && goal.iter().any(|(node, _)| !within(on(&hold.current, *node), on(&hold.next, *node)))
    };
    let names: Vec<String> = (0..round.entries.len())
        .filter(|giver| *giver != job)
        .filter(gives)
        .map(|giver| round.entries[giver].input.id.to_string())
        .collect();
    let what = shape_of(goal);
    match names.as_slice() {
        [] => format!("waits until the room kept for its {what} is free"),
        [one] => format!("waits for room that {one} is giving up"),
        many => format!("waits for room that {} are giving up", many.join(" and ")),
    }
}

fn words_keep(round: &Round<'_>, job: usize, reason: &Reason) -> Words {
    let entry = &round.entries[job];
    let hold = round.room.hold(job);
    let shape = shape_of(&hold.current);
    Words::Plain(match &entry.standing {
        Standing::Fixed => format!("stays at {shape} until it has started, saved or stopped"),
        Standing::Unfit { why } => format!("stays at {shape}: {why}"),
        Standing::Displaced { why, .. } if hold.goal == hold.current => {
            format!("stays at {shape} though {why}: {}", no_room(round, job, reason))
        }
        Standing::Running | Standing::Waiting | Standing::Displaced { .. } => {
            if hold.goal != hold.current {
                format!("stays at {shape} for now: {}", waits_for(round, job))
            } else {
                match entry.aim {
                    Aim::Pinned(pinned) if pinned == shape => format!("pinned to {shape}"),
                    Aim::Pinned(pinned) => {
                        format!("stays at {shape}: no room for its pinned {pinned}")
                    }
                    Aim::Profile(_) => format!("is measured at {shape}"),
                    Aim::Share => return words_keep_share(round, job, shape),
                }
            }
        }
    })
}

fn words_keep_share(round: &Round<'_>, job: usize, shape: Shape) -> Words {
    let entry = &round.entries[job];
    let allocated = round.allocated[job];
    if allocated == shape || allocated.is_empty() {
        return Words::Stays { shape };
    }
    if entry.since_change_ms < round.policy.change_spacing_ms {
        return Words::Plain(format!(
            "stays at {shape}: its last change was {:.0} s ago, {:.0} s are asked",
            model::time::seconds(entry.since_change_ms),
            model::time::seconds(round.policy.change_spacing_ms)
        ));
    }
    match round.change(job, allocated) {
        Some(change) if change.is_worth_it(round.policy) => Words::NoRoomYet { shape, allocated },
        Some(change) if change.before_s.is_finite() && change.after_s.is_finite() => {
            Words::NotWorth {
                shape,
                allocated,
                saved_s: change.before_s - change.after_s,
                cost_s: entry.cost_s,
                factor: round.policy.hysteresis_factor,
            }
        }
        Some(_) | None => Words::Plain(format!("stays at {shape}: its speed is not known")),
    }
}

fn words_start(round: &Round<'_>, job: usize) -> Words {
    let entry = &round.entries[job];
    let hold = round.room.hold(job);
    let (shape, nodes) = (shape_of(&hold.next), hold.next.len());
    let allocated = round.allocated[job];
    let on = || count(nodes, "node");
    match entry.aim {
        Aim::Pinned(_) => Words::Plain(format!("starts with its pinned {shape} on {}", on())),
        Aim::Profile(_) => Words::Plain(format!("starts with {shape} on {} to be measured", on())),
        Aim::Share => {
            let shrunk = !allocated.is_empty() && allocated != shape;
            let least = entry.gains.least;
            let left_s = |shape| entry.seconds_left(shape).unwrap_or(f64::INFINITY);
            let sooner_s = left_s(least) - left_s(shape);
            let sooner = (sooner_s.is_finite() && sooner_s > 0.0).then_some((sooner_s, least));
            Words::Starts { shape, nodes, of: shrunk.then_some(allocated), sooner }
        }
    }
}

fn text_rescale(round: &Round<'_>, job: usize, reason: &Reason) -> String {
    let entry = &round.entries[job];
    let hold = round.room.hold(job);
    let (before, after) = (shape_of(&hold.current), shape_of(&hold.next));
    let other = |job: &usize| round.entries[*job].input.id;
    if let Some(for_whom) = round.forced.get(&job) {
        return format!("goes from {before} to {after} so that {} can start", other(for_whom));
    }
    if let Some(for_whom) = round.giving.get(&job) {
        return format!("goes from {before} to {after} so that {} can grow", other(for_whom));
    }
    if let Standing::Displaced { why, .. } = &entry.standing {
        return format!("moves from {before} to {after}: {why}");
    }
    match (entry.aim, reason.gain_s) {
        (Aim::Pinned(_), _) => format!("goes from {before} to its pinned {after}"),
        (Aim::Profile(_), _) => format!("goes from {before} to {after} to be measured"),
        (Aim::Share, Some(gain_s)) => format!(
            "goes from {before} to {after}: saves {gain_s:.1} s for {:.1} s of rescaling",
            entry.cost_s
        ),
        (Aim::Share, None) => format!("goes from {before} to {after}"),
    }
}

fn count(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
