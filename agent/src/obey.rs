//! From what is held and what is desired to what must be done: the whole of the agent's
//! judgement, without a clock, a process or a file.
//!
//! Observations are in the ledger already: an exit, a start and an interrupted launch are
//! written there first. The function is asked again after each of them, so an action that had
//! to wait (a start behind an older generation's last process) comes by itself.

use std::collections::BTreeSet;

use model::agent::{CheckpointOrder, Desired, DesiredGeneration, Order};
use model::{Revision, Task};

use crate::ledger::{Held, Key, Ledger};

/// Something that the agent must do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Start these tasks, in this order: scheduler, servers, workers.
    Start { key: Key, tasks: Vec<Task> },
    /// Hold this task as exited, never having been here.
    Absent { key: Key, task: Task, reason: &'static str },
    /// TERM now and KILL after the grace; repeated for as long as it is wanted.
    Stop { key: Key, grace_ms: u64 },
    /// Bring the order for a checkpoint to the generation's workers, or its end.
    Order { key: Key, order: Option<CheckpointOrder> },
    /// Drop a generation with no living task.
    Forget { key: Key },
}

/// A desired set that is older than one already obeyed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the desired set {given} is older than {obeyed}, which was obeyed")]
pub(crate) struct Stale {
    given: Revision,
    obeyed: Revision,
}

pub(crate) const NOT_HELD: &str = "not held by this agent";
const NEWER_HELD: &str = "a newer generation is held by this agent";
const BEING_STOPPED: &str = "the generation is being stopped";

/// What to do so that the node runs what is desired and nothing else. Ends of generations come
/// before starts.
///
/// # Errors
/// Where the set is older than the last one obeyed.
pub(crate) fn obey(
    ledger: &Ledger,
    desired: &Desired,
    own_grace_ms: u64,
) -> Result<Vec<Action>, Stale> {
    if desired.revision < ledger.obeyed {
        return Err(Stale { given: desired.revision, obeyed: ledger.obeyed });
    }
    let wanted: BTreeSet<Key> = desired.generations.iter().map(key_of).collect();
    let mut actions = Vec::new();
    for (&key, held) in &ledger.generations {
        if wanted.contains(&key) {
            continue;
        }
        actions.push(if held.is_live() {
            Action::Stop { key, grace_ms: own_grace_ms }
        } else {
            Action::Forget { key }
        });
    }
    let (ends, rest): (Vec<_>, Vec<_>) = desired
        .generations
        .iter()
        .partition(|generation| matches!(generation.order, Order::Stop { .. }));
    for generation in ends.into_iter().chain(rest) {
        one(ledger, generation, &mut actions);
    }
    Ok(actions)
}

fn key_of(generation: &DesiredGeneration) -> Key {
    Key { job: generation.job, generation: generation.generation }
}

fn one(ledger: &Ledger, wanted: &DesiredGeneration, actions: &mut Vec<Action>) {
    let key = key_of(wanted);
    let held = ledger.generations.get(&key);
    let missing: BTreeSet<Task> = wanted
        .launch
        .tasks
        .iter()
        .copied()
        .filter(|task| held.is_none_or(|held| !held.tasks.contains_key(task)))
        .collect();
    let mut absent = |reason| {
        actions.extend(missing.iter().map(|&task| Action::Absent { key, task, reason }));
    };
    match wanted.order {
        // The master waits for an exit of each task before it goes on, so one that never came
        // here must be reported as well.
        Order::Stop { grace_ms } => {
            absent(NOT_HELD);
            if held.is_some_and(Held::is_live) {
                actions.push(Action::Stop { key, grace_ms });
            }
            return;
        }
        Order::Keep => absent(NOT_HELD),
        Order::Start if held.is_some_and(|held| held.stopping.is_some()) => absent(BEING_STOPPED),
        Order::Start if is_outdated(ledger, key) => absent(NEWER_HELD),
        Order::Start if missing.is_empty() || older_lives(ledger, key) => {}
        Order::Start => {
            actions.push(Action::Start { key, tasks: missing.into_iter().collect() });
        }
    }
    let keeps_on = held.is_none_or(|held| held.stopping.is_none());
    if keeps_on && (held.is_some() || wanted.order == Order::Start) {
        actions.push(Action::Order { key, order: wanted.checkpoint.clone() });
    }
}

/// True where the ledger holds a later generation of the same job: this one is a ghost's.
fn is_outdated(ledger: &Ledger, key: Key) -> bool {
    ledger.generations.keys().any(|other| other.job == key.job && key.generation < other.generation)
}

/// True where an earlier generation of the same job has a living process here. It must be gone
/// first: its processes would connect to the new one's PS scheduler, which then hangs for ever.
fn older_lives(ledger: &Ledger, key: Key) -> bool {
    ledger.generations.iter().any(|(other, held)| {
        other.job == key.job && other.generation < key.generation && held.is_live()
    })
}

#[cfg(test)]
mod tests;
