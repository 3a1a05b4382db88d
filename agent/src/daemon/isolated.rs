//! What this node enforces, and what it could not start or saw end: for the notes of the node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use model::nodes::{EndCause, EndReport, NodeNotes, RejectReport, StuckReport};
use model::{JobId, Task};

use super::Agent;
use crate::cgroup::{self, Group, Memory, Tree};
use crate::config::{self, Settings, TaskUser};
use crate::ledger::{Held, Key};
use crate::procfs::{self, Process};
use crate::task::process::Refused;
use crate::telemetry::printable;

/// Starts that failed and are told of, the newest.
const REJECTS_MAX: usize = 32;
const STUCK_MAX: usize = 64;
const WORDS_MAX: usize = 500;

/// Who ended a task for want of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Killer {
    Kernel(EndCause),
    /// The service systemd-oomd, of the server's own free will.
    Oomd,
}

/// Told with the node's notes.
#[derive(Debug, Default)]
pub(super) struct Isolated {
    rejects: VecDeque<RejectReport>,
    ends: BTreeMap<(Key, Task), EndCause>,
    /// Tasks with processes that cannot be killed.
    stuck: BTreeMap<(Key, Task), String>,
    /// Most memory seen of tasks whose kernel does not keep it.
    peaks: BTreeMap<(Key, Task), u64>,
    /// Kills for want of memory on this machine, at the look before the newest and at that.
    oom_kills: [Option<u64>; 2],
    /// Tasks get groups outside the unit for tasks, which was not there.
    outside: bool,
    /// That unit has come up, and tasks that run are in the way of a move.
    outside_still: bool,
}

impl Isolated {
    pub(super) fn new(outside: bool) -> Self {
        Self { outside, ..Self::default() }
    }
}

impl Agent {
    /// The user that the tasks of a generation run as.
    ///
    /// # Errors
    /// Where no such user may run tasks here; in words that name him and the node.
    pub(super) fn user_of(&self, key: Key) -> Result<TaskUser, String> {
        // A generation keeps its user, whatever the setting says after a restart.
        self.user_of_job(key.job).map_err(|why| format!("cannot start on {}: {why}", self.node))
    }

    /// As [`Self::user_of`], for all generations of a job.
    pub(super) fn user_of_job(&self, job: JobId) -> Result<TaskUser, String> {
        if !self.settings.as_submitter {
            return Ok(self.settings.user.clone());
        }
        let known = self.orders.jobs.iter().find(|order| order.job == job);
        let order = known.ok_or("the master does not say who submitted it")?;
        let user = config::submitter(&order.user, self.settings.uid_min)?;
        Ok(TaskUser { helpers: self.settings.user.helpers.clone(), ..user })
    }

    /// The user of a held generation, as it was started.
    pub(super) fn user_held(&self, key: Key) -> TaskUser {
        let own = &self.settings.user;
        match self.ledger.generations.get(&key) {
            Some(held) if held.uid != own.uid.as_raw() => {
                let helpers = own.helpers.clone();
                TaskUser { helpers, ..config::user_of(held.uid, held.gid) }
            }
            Some(_) | None => own.clone(),
        }
    }

    /// Moves on to the unit for tasks where that came up after this agent, once no task is left
    /// behind outside: a task stays in the group that it began in.
    pub(super) fn look_for_unit(&mut self) {
        if !self.isolated.outside {
            return;
        }
        let ready = cgroup::is_unit_ready();
        let busy = self.ledger.generations.values().any(Held::is_live);
        self.isolated.outside_still = ready && busy;
        if !ready || busy {
            return;
        }
        let settings = Arc::make_mut(&mut self.settings);
        match cgroup::find(&settings.groups, &self.node, &settings.state_dir) {
            Ok(found) if !found.outside && found.tree.is_some() => {
                tracing::info!("the unit for tasks has come up: new tasks lie in its groups");
                settings.user.helpers = found.tree.as_ref().map(Tree::helpers);
                let before = std::mem::replace(&mut self.tree, found.tree);
                self.isolation = found.isolation;
                self.isolated.outside = false;
                // Fork servers end with it, and are started anew.
                if let Some(before) = before {
                    before.prune();
                }
            }
            // What was there a moment ago is gone.
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the unit for tasks cannot be used"),
        }
    }

    /// Notes a start that failed.
    pub(super) fn rejected(&mut self, key: Key, task: Task, why: &Refused) {
        if why.untried {
            return;
        }
        let rejects = &mut self.isolated.rejects;
        if REJECTS_MAX <= rejects.len() {
            rejects.pop_front();
        }
        rejects.push_back(RejectReport {
            job: key.job,
            generation: key.generation,
            task,
            errno: why.errno,
            words: printable(&why.words, WORDS_MAX),
            server: why.server,
        });
    }

    /// Looks at the memory of running tasks where their kernel does not keep the peak.
    pub(super) fn watch_memory(&mut self) {
        self.isolated.oom_kills = [self.isolated.oom_kills[1], procfs::oom_kills()];
        let Some(tree) = self.tree.as_ref().filter(|tree| tree.counts_memory()) else { return };
        for (&key, live) in &self.live {
            for &task in live.tasks.keys() {
                let Memory { peak: None, current: Some(bytes), .. } = tree.task(key, task).memory()
                else {
                    continue;
                };
                let most = self.isolated.peaks.entry((key, task)).or_default();
                *most = bytes.max(*most);
            }
        }
    }

    /// Why the kernel ended a task of which no process is left, and its group with that.
    pub(super) fn end_of_group(&mut self, key: Key, task: Task) -> Option<Killer> {
        self.isolated.stuck.remove(&(key, task));
        let sampled = self.isolated.peaks.remove(&(key, task));
        let group = self.tree.as_ref()?.task(key, task);
        let cause = cause_of(group.memory(), sampled, group.killed_by_oomd());
        if let Some(Killer::Kernel(cause)) = cause {
            self.isolated.ends.insert((key, task), cause);
        }
        if let Err(error) = group.remove() {
            tracing::warn!(group = %group.path().display(), %error, "a control group stays");
        }
        cause
    }

    /// Words for a KILL that nobody here sent and that no group explains.
    pub(super) fn killed_from_outside(&self) -> String {
        let oomd = "; where systemd-oomd runs, its journal says whether it did";
        let nobody = ", which nobody here sent";
        let counts = self.tree.as_ref().is_some_and(Tree::counts_memory);
        // Where groups count memory the kernel's kills are known for sure.
        match (self.isolated.oom_kills[0].filter(|_| !counts), procfs::oom_kills()) {
            (Some(before), Some(now)) if before < now => format!(
                "{nobody}; at that time the kernel of this server killed {} process(es) for want of \
                 memory, and its log says which",
                now - before
            ),
            (_, _) => format!("{nobody}{oomd}"),
        }
    }

    /// Names processes that outlive KILL: a person must look at what they wait for.
    pub(super) fn stuck(&mut self, key: Key, task: Task, members: &[Process]) {
        let names: Vec<String> = members
            .iter()
            .take(5)
            .map(|Process { pid, state, .. }| {
                format!("{pid} (state {state}, waits in {})", procfs::wait_channel(*pid))
            })
            .collect();
        let words = format!("process {}", names.join(", "));
        tracing::error!(%key, %task, words, "cannot be killed; counts as running until it is gone");
        self.isolated.stuck.insert((key, task), printable(&words, WORDS_MAX));
    }

    /// Drops what was noted of a generation.
    pub(super) fn forget_isolated(&mut self, key: Key) {
        self.isolated.rejects.retain(|one| (one.job, one.generation) != (key.job, key.generation));
        self.isolated.ends.retain(|(of, _), _| *of != key);
        if let Some(tree) = &self.tree {
            tree.leave(key);
        }
    }

    pub(super) fn tell_isolated(&self, notes: &mut NodeNotes) {
        notes.isolation = self.isolation.clone();
        let Settings { as_submitter, user, .. } = &*self.settings;
        notes.one_user = (!as_submitter).then(|| user.name.clone());
        notes.rejects = self.isolated.rejects.iter().cloned().collect();
        let ends = self.isolated.ends.iter().map(|(&(key, task), &cause)| EndReport {
            job: key.job,
            generation: key.generation,
            task,
            cause,
        });
        notes.ends = ends.collect();
        if self.isolated.outside_still {
            notes.alerts.push(
                "tasks run outside optimus-tasks.service, which came up after them: limits of its \
                 slice do not hold for them, and a stop of it does not end them; new tasks lie in \
                 it once no task is left here, which optimus node drain brings about"
                    .to_owned(),
            );
        }
        let stuck = self.isolated.stuck.iter().map(|(&(key, task), words)| StuckReport {
            job: key.job,
            generation: key.generation,
            task,
            words: words.clone(),
        });
        notes.stuck = stuck.take(STUCK_MAX).collect();
    }

    /// The group of a task while a process is in it.
    pub(super) fn group_of(&self, key: Key, task: Task) -> Option<Group> {
        self.tree.as_ref().map(|tree| tree.task(key, task)).filter(Group::is_populated)
    }
}

/// The kernel counts a kill for the group of its victim, whoever wanted the memory; that the limit
/// itself was reached only for the group whose limit it is.
fn cause_of(memory: Memory, sampled: Option<u64>, by_oomd: u64) -> Option<Killer> {
    if memory.killed == 0 {
        // It sends its own signals, which the kernel does not count.
        return (0 < by_oomd).then_some(Killer::Oomd);
    }
    Some(Killer::Kernel(match memory.limit {
        Some(limit) if 0 < memory.at_limit => {
            EndCause::OutOfMemory { peak: memory.peak.or(sampled), limit }
        }
        Some(_) | None => EndCause::OutOfMemoryHost,
    }))
}

/// What the exit of such a task says.
pub(super) fn words_of(killer: Killer, task: Task) -> String {
    let section = task.role.name();
    let cause = match killer {
        Killer::Kernel(cause) => cause,
        Killer::Oomd => {
            return "killed by systemd-oomd, not for a limit of its own: the server was short of \
                    memory; state the memory of this task, which spares it, or keep the service \
                    off with ManagedOOMSwap=auto and ManagedOOMMemoryPressure=auto on the slices \
                    above the tasks"
                .to_owned();
        }
    };
    match cause {
        EndCause::OutOfMemory { peak, limit } => {
            let peak = peak.map_or_else(|| "unknown".to_owned(), told_bytes);
            format!(
                "OUT_OF_MEMORY: peak {peak} of limit {}; ask for more memory in [{section}]",
                told_bytes(limit)
            )
        }
        EndCause::OutOfMemoryHost => "OUT_OF_MEMORY: the server itself ran out of memory, and its \
             kernel ended this task below its own limit; processes that are no tasks use more \
             than the capacity given to this agent leaves them"
            .to_owned(),
    }
}

fn told_bytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes < 10 * MIB { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes / MIB) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_at_the_own_limit_is_told_apart_from_the_servers() {
        let memory =
            Memory { peak: Some(99), current: None, limit: Some(100), at_limit: 1, killed: 3 };
        let own =
            |peak| Some(Killer::Kernel(EndCause::OutOfMemory { peak: Some(peak), limit: 100 }));
        assert_eq!(cause_of(memory, Some(7), 0), own(99));
        assert_eq!(cause_of(Memory { peak: None, ..memory }, Some(7), 0), own(7));
        let host = Some(Killer::Kernel(EndCause::OutOfMemoryHost));
        assert_eq!(cause_of(Memory { at_limit: 0, ..memory }, None, 0), host);
        assert_eq!(cause_of(Memory { limit: None, ..memory }, None, 0), host);
        assert_eq!(cause_of(Memory { killed: 0, ..memory }, None, 0), None);
        assert_eq!(cause_of(Memory { killed: 0, ..memory }, None, 2), Some(Killer::Oomd));
    }

    #[test]
    fn the_words_name_peak_limit_and_what_to_change() {
        let cause = EndCause::OutOfMemory { peak: Some(64 << 20), limit: 64 << 20 };
        let cause = Killer::Kernel(cause);
        assert_eq!(
            words_of(cause, Task::worker(0)),
            "OUT_OF_MEMORY: peak 64 MiB of limit 64 MiB; ask for more memory in [worker]"
        );
    }
}
