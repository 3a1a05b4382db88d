//! Finding the tasks again after a restart of the agent: what the ledger says against what the
//! machine has. Pure; the census is taken by the caller.

use std::collections::{BTreeMap, BTreeSet};

use model::agent::Exit;
use model::{BootId, NodeId};

use crate::ledger::{HeldTask, Key, Ledger, State};
use crate::procfs::{Census, Mark, Process};

/// What became of one task that the ledger calls living.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its first process is there: pid and start time agree.
    Alive {
        pid: i32,
        start_ticks: u64,
    },
    /// Its first process is gone, but some that it started live on; they are to be ended.
    Leftovers(Exit),
    Gone(Exit),
}

/// Judges a task that the ledger calls living.
///
/// A pid without its start time, or from another boot, names a stranger, which is never touched:
/// then only processes that carry the task's mark are its own.
pub(crate) fn judge(task: &HeldTask, mark: &Mark, boot: &BootId, census: &Census) -> Option<Fate> {
    let exit = |reason: &str| Exit { reason: reason.to_owned(), ..Exit::default() };
    let leftovers = census.of_task(mark, None);
    match &task.state {
        State::Exited(_) => None,
        State::Intent => Some(match first_of(&leftovers) {
            Some(first) => Fate::Alive { pid: first.pid, start_ticks: first.start_ticks },
            None => Fate::Gone(exit("launch was interrupted by an agent restart")),
        }),
        State::Running { boot: before, .. } if before != boot => {
            Some(Fate::Gone(exit("the server was rebooted")))
        }
        State::Running { pid, start_ticks, .. } => {
            let same = |seen: &Process| seen.pid == *pid && seen.start_ticks == *start_ticks;
            let exit = exit("vanished while the agent was down");
            Some(if census.seen.iter().any(|seen| same(&seen.process)) {
                Fate::Alive { pid: *pid, start_ticks: *start_ticks }
            } else if leftovers.is_empty() {
                Fate::Gone(exit)
            } else {
                Fate::Leftovers(exit)
            })
        }
    }
}

/// The process that the agent started among those of a task: it leads its group, and no other
/// process of the task is its parent.
pub(crate) fn first_of<'a>(members: &[&'a Process]) -> Option<&'a Process> {
    let is_child = |process: &Process| members.iter().any(|other| other.pid == process.parent);
    members
        .iter()
        .copied()
        .filter(|process| process.pid == process.group && !is_child(process))
        .min_by_key(|process| (process.start_ticks, process.pid))
        .or_else(|| members.iter().copied().min_by_key(|p| (p.start_ticks, p.pid)))
}

/// Processes that carry this node's mark for tasks that the ledger does not know as living: of a
/// lost ledger, or of a launch that was taken back. They must not run.
pub(crate) fn strays(
    ledger: &Ledger,
    node: &NodeId,
    census: &Census,
) -> BTreeMap<Mark, (i32, u64)> {
    let known: BTreeSet<Mark> = ledger
        .generations
        .iter()
        .flat_map(|(&key, held)| held.tasks.iter().map(move |(&task, state)| (key, task, state)))
        .filter(|(_, _, state)| state.is_live())
        .map(|(key, task, _)| Mark { node: node.clone(), key, task })
        .collect();
    let marks: BTreeSet<&Mark> = census
        .seen
        .iter()
        .filter_map(|seen| seen.mark.as_ref())
        .filter(|mark| !known.contains(mark))
        .collect();
    marks
        .into_iter()
        .filter_map(|mark| {
            let first = census.of_task(mark, None);
            let first = first_of(&first)?;
            Some((mark.clone(), (first.pid, first.start_ticks)))
        })
        .collect()
}

/// The mark of a held task.
pub(crate) fn mark_of(node: &NodeId, key: Key, task: model::Task) -> Mark {
    Mark { node: node.clone(), key, task }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::Seen;

    const MARK: &str = "n1/j1/1/worker0";

    fn seen(pid: i32, start_ticks: u64, mark: Option<&str>) -> Seen {
        let process = Process { pid, state: 'S', parent: 1, group: pid, start_ticks };
        Seen { process, mark: mark.map(|mark| mark.parse().unwrap()) }
    }

    fn running(pid: i32, start_ticks: u64, boot: &str) -> HeldTask {
        let boot = BootId(boot.to_owned());
        let state = State::Running { pid, start_ticks, boot, ready: true };
        HeldTask { gpus: Vec::new(), state }
    }

    fn fate(task: &HeldTask, seen: Vec<Seen>) -> Fate {
        let boot = BootId("now".to_owned());
        judge(task, &MARK.parse().unwrap(), &boot, &Census { seen }).unwrap()
    }

    fn reason(fate: &Fate) -> &str {
        match fate {
            Fate::Gone(exit) | Fate::Leftovers(exit) => &exit.reason,
            Fate::Alive { .. } => "alive",
        }
    }

    #[test]
    fn pid_and_start_time_together_prove_a_process() {
        let task = running(50, 1000, "now");
        let alive = Fate::Alive { pid: 50, start_ticks: 1000 };
        assert_eq!(fate(&task, vec![seen(50, 1000, None)]), alive);
        let reused = fate(&task, vec![seen(50, 2000, None)]);
        assert_eq!(reason(&reused), "vanished while the agent was down");
        assert!(matches!(reused, Fate::Gone(_)), "the stranger is not ours to end");
    }

    #[test]
    fn processes_that_outlive_the_first_are_found_by_their_mark() {
        let task = running(50, 1000, "now");
        let found = fate(&task, vec![seen(50, 2000, None), seen(60, 1500, Some(MARK))]);
        assert!(matches!(found, Fate::Leftovers(_)), "{found:?}");
    }

    #[test]
    fn another_boot_proves_death_whatever_the_pid() {
        let found = fate(&running(50, 1000, "before"), vec![seen(50, 1000, None)]);
        assert_eq!(reason(&found), "the server was rebooted");
    }

    #[test]
    fn an_intent_is_found_by_its_mark_or_reported() {
        let task = HeldTask { gpus: Vec::new(), state: State::Intent };
        let found = fate(&task, vec![seen(70, 5, Some(MARK)), seen(80, 4, None)]);
        assert_eq!(found, Fate::Alive { pid: 70, start_ticks: 5 });
        let lost = fate(&task, vec![seen(80, 4, Some("n1/j1/1/worker1"))]);
        assert_eq!(reason(&lost), "launch was interrupted by an agent restart");
    }

    #[test]
    fn strays_are_those_that_no_living_entry_covers() {
        let node: NodeId = "n1".parse().unwrap();
        let census = Census { seen: vec![seen(70, 5, Some(MARK)), seen(71, 6, None)] };
        let found = strays(&Ledger::default(), &node, &census);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(MARK.parse().unwrap(), (70, 5))]);
    }
}
