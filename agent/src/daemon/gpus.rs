//! GPUs and tasks: which task has which, whose processes are on them, and which are free.

use std::collections::BTreeSet;

use model::nodes::{HeldReport, NodeNotes};
use model::{Millis, UnixMs};
use nix::sys::signal::Signal;

use super::Agent;
use crate::clock;
use crate::ledger::{Key, State};
use crate::probe::nvml::Reading;
use crate::procfs::{self, Process};
use crate::task::process::signal;

/// Generations of processes that are looked through for a task; deeper ones are nobody's.
const PARENTS_MAX: usize = 64;

/// Whose a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// A living task's.
    Task,
    /// Of a task that has ended: nobody waits for it.
    Leftover,
    Stranger,
}

impl Agent {
    pub(super) fn on_gpus(&mut self, reading: Reading, now: Millis) {
        let looked = matches!(reading, Reading::Device(..));
        let mut news = self.gpus.take(reading, now, UnixMs(clock::unix_ms()));
        if looked {
            news |= self.look_at_strangers();
        }
        if news {
            self.urgent(now);
        }
    }

    /// Says whose the processes on each GPU are: memory of one that has ended as a task is not
    /// free before it is gone. What is left of our own is killed. True where that has changed.
    fn look_at_strangers(&mut self) -> bool {
        let taken = self.ledger.gpus_taken();
        let pids = self.task_pids();
        let mut news = false;
        for (uuid, on_it) in self.gpus.processes() {
            let mut strangers = Vec::new();
            for pid in on_it {
                let Some(process) = i32::try_from(pid).ok().and_then(procfs::process) else {
                    continue;
                };
                match self.whose(&process, &pids) {
                    Whose::Task => {}
                    Whose::Stranger => strangers.push(pid),
                    Whose::Leftover => {
                        tracing::warn!(pid, gpu = uuid, "killing what a task left on its GPU");
                        signal(None, &[&process], Signal::SIGKILL);
                        strangers.push(pid);
                    }
                }
            }
            news |= self.gpus.set_strangers(&uuid, strangers, taken.contains(&uuid));
        }
        news
    }

    /// First processes of living tasks.
    fn task_pids(&self) -> BTreeSet<i32> {
        let tasks = self.ledger.generations.values().flat_map(|held| held.tasks.values());
        tasks
            .filter_map(|task| match &task.state {
                State::Running { pid, .. } => Some(*pid),
                State::Intent | State::Exited(_) => None,
            })
            .collect()
    }

    fn whose(&self, process: &Process, pids: &BTreeSet<i32>) -> Whose {
        let mark = procfs::mark(process.pid, &self.settings.state_dir);
        let mark = mark.filter(|mark| mark.node == self.node);
        if let Some(mark) = mark {
            let held = self.ledger.generations.get(&mark.key);
            let lives = held.and_then(|held| held.tasks.get(&mark.task));
            // A launch that the ledger does not show yet, or not any more.
            let live = lives.is_some_and(crate::ledger::HeldTask::is_live);
            return if live { Whose::Task } else { Whose::Leftover };
        }
        let mut next = Some(process.clone());
        for _ in 0..PARENTS_MAX {
            let Some(seen) = next else { break };
            if pids.contains(&seen.pid) || pids.contains(&seen.group) {
                return Whose::Task;
            }
            next = procfs::process(seen.parent);
        }
        Whose::Stranger
    }

    /// Identifiers of the GPUs that a new task may have.
    pub(super) fn gpus_free(&mut self, now: Millis) -> Vec<String> {
        // A task may have ended since the last look, and left something on its GPU.
        self.look_at_strangers();
        let taken = self.ledger.gpus_taken();
        self.gpus.free(&self.settings.capacity, &taken, &self.orders.gpus_out, now)
    }

    /// What the master is told of the GPUs beside the heartbeat.
    pub(super) fn note_gpus(&self, notes: &mut NodeNotes) {
        let now = clock::now();
        let taken = self.ledger.gpus_taken();
        notes.gpus = self.gpus.notes(&taken, &self.orders.gpus_probed, now);
        notes.gpu_trouble = self.gpus.trouble(now);
        notes.alerts.extend(self.gpus.alert(&self.settings.capacity, now));
        for (&Key { job, generation }, held) in &self.ledger.generations {
            for (&task, state) in &held.tasks {
                if state.is_live() && !state.gpus.is_empty() {
                    let gpus = state.gpus.clone();
                    notes.held.push(HeldReport { job, generation, task, gpus });
                }
            }
        }
    }
}
