//! What training processes report over their generation's socket.
//!
//! A process is never trusted and never waited for: its datagram must come from the task's user
//! and from a process of the very task that it speaks for, as the kernel attests; what is
//! malformed, out of order or too fast is counted and dropped. Everything kept is bounded.

mod begun;
mod blocks;
mod report;
mod socket;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixDatagram;

use model::agent::{
    CheckpointOrder, CheckpointReport, CheckpointState, EpochReport, RateReport, WorkerReport,
};
use model::notes::{BegunReport, BlocksReport};
use model::{CheckpointId, Millis, Role, Task};

use begun::Begun;
use blocks::Blocks;
pub(crate) use report::printable;
use report::{Malformed, Report, Step};
use socket::Senders;
pub(crate) use socket::{Datagram, bind, receive};
use sums::Sums;

use crate::ledger::Key;
use crate::procfs::Mark;

/// Epochs of each worker that are kept and sent; the package repeats its last 8.
const EPOCHS_KEPT: usize = 16;
/// Datagrams read for an ending process: all that its socket can hold.
const DRAIN_MAX: usize = 1024;

/// Everything that the processes of one generation on this node have reported.
#[derive(Debug)]
pub(crate) struct Telemetry {
    key: Key,
    socket: UnixDatagram,
    senders: Senders,
    from_birth: bool,
    workers: BTreeMap<u32, Worker>,
    /// By worker and kind: at most one of each for the present checkpoint.
    checkpoints: BTreeMap<(u32, u8), CheckpointReport>,
    order: Option<CheckpointOrder>,
    errors: BTreeMap<Task, String>,
    hellos: BTreeSet<Task>,
    blocks: Blocks,
    begun: BTreeMap<u32, Begun>,
}

#[derive(Debug)]
struct Worker {
    sums: Sums,
    epochs: BTreeMap<u32, EpochReport>,
    rate: Option<report::Rate>,
}

/// What a datagram changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Reports, or steps within one, that were dropped.
    pub(crate) dropped: u64,
    /// The master should hear of it at once.
    pub(crate) urgent: bool,
    /// The package of this task is there.
    pub(crate) hello: Option<Task>,
}

impl Telemetry {
    /// `of` is the mark of any task of the generation; `from_birth` is false where an earlier
    /// life of the agent started it.
    pub(crate) fn new(socket: UnixDatagram, uid: u32, of: &Mark, from_birth: bool) -> Self {
        Self {
            key: of.key,
            socket,
            senders: Senders::new(uid, of.clone()),
            from_birth,
            workers: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            order: None,
            errors: BTreeMap::new(),
            hellos: BTreeSet::new(),
            blocks: Blocks::default(),
            begun: BTreeMap::new(),
        }
    }

    /// A second handle of the socket, to wait on.
    ///
    /// # Errors
    /// Where the process has too many descriptors.
    pub(crate) fn socket(&self) -> std::io::Result<UnixDatagram> {
        self.socket.try_clone()
    }

    /// A task's first process runs now.
    pub(crate) fn add(&mut self, task: Task, pid: i32) {
        self.senders.add(pid, task);
    }

    /// No process of the task is left.
    pub(crate) fn remove(&mut self, task: Task) {
        self.senders.remove(task);
    }

    /// True once the package of a task has said hello: it may do so before the agent's loop knows
    /// that the process runs.
    pub(crate) fn has_said_hello(&self, task: Task) -> bool {
        self.hellos.contains(&task)
    }

    /// The error that a task's script reported.
    pub(crate) fn error_of(&self, task: Task) -> Option<&str> {
        self.errors.get(&task).map(String::as_str)
    }

    /// Reads what still lies in the socket: a process that ends in an error says so last.
    pub(crate) fn drain(&mut self, now: Millis) -> Outcome {
        let mut all = Outcome::default();
        for _ in 0..DRAIN_MAX {
            let Ok(datagram) = receive(&self.socket) else { break };
            let one = self.take(&datagram, now);
            all.dropped += one.dropped;
            all.urgent |= one.urgent;
            all.hello = all.hello.or(one.hello);
        }
        all
    }

    /// Takes a datagram, or counts it.
    pub(crate) fn take(&mut self, datagram: &Datagram, now: Millis) -> Outcome {
        let sender = self.senders.task_of(datagram, now);
        let read = datagram.bytes.as_deref().map_or(Err(Malformed), report::parse);
        match (sender, read) {
            // A worker speaks for itself only.
            (Some(sender), Ok((task, report))) if sender == task => self.report(task, report, now),
            _ => Outcome { dropped: 1, ..Outcome::default() },
        }
    }

    fn worker(&mut self, index: u32, now: Millis) -> &mut Worker {
        let from_birth = self.from_birth;
        self.workers.entry(index).or_insert_with(|| Worker {
            sums: Sums::new(now, from_birth),
            epochs: BTreeMap::new(),
            rate: None,
        })
    }

    fn report(&mut self, task: Task, report: Report, now: Millis) -> Outcome {
        let worker = task.index;
        let urgent = match report {
            Report::Hello { samples_per_epoch, rate } => {
                self.hellos.insert(task);
                if task.role == Role::Worker {
                    let worker = self.worker(worker, now);
                    let sums = &mut worker.sums;
                    sums.samples_per_epoch = samples_per_epoch.or(sums.samples_per_epoch);
                    worker.rate = rate.or(worker.rate);
                }
                return Outcome { hello: Some(task), ..Outcome::default() };
            }
            Report::Steps { steps, malformed } => {
                return self.steps(worker, &steps, malformed, now);
            }
            Report::Epoch { epoch, step, loss_sum, samples } => {
                let Key { job, generation } = self.key;
                let report =
                    EpochReport { job, generation, worker, epoch, step, loss_sum, samples };
                self.epoch(report, now)
            }
            Report::Finished { step } => self.worker(worker, now).sums.finish(step),
            Report::Error { error } => {
                self.errors.insert(task, error);
                false
            }
            Report::Blocks(chunk) => self.blocks.take(&chunk),
            // It comes with the first step, which is urgent by itself.
            Report::Begun(begun) => {
                self.begun.insert(worker, begun);
                false
            }
            Report::Reached { checkpoint, step, epoch, loss_sum, samples } => {
                let state = CheckpointState::Reached { step, epoch, loss_sum, samples };
                return self.checkpoint(worker, checkpoint, state);
            }
            Report::Missed { checkpoint, step } => {
                return self.checkpoint(worker, checkpoint, CheckpointState::Missed { step });
            }
            Report::Saved { checkpoint, step, epoch, epoch_position, parts } => {
                let state = CheckpointState::Saved { step, epoch, epoch_position, parts };
                return self.checkpoint(worker, checkpoint, state);
            }
            Report::Failed { error, .. } if task.role != Role::Worker => {
                return self.server_failed(task, &error);
            }
            Report::Failed { checkpoint, error } => {
                return self.checkpoint(worker, checkpoint, CheckpointState::Failed { error });
            }
        };
        Outcome { urgent, ..Outcome::default() }
    }

    fn steps(&mut self, worker: u32, steps: &[Step], malformed: u64, now: Millis) -> Outcome {
        let sums = &mut self.worker(worker, now).sums;
        let before = sums.has_stepped();
        let mut outcome = Outcome { dropped: malformed, ..Outcome::default() };
        for step in steps {
            if let Err(odd) = sums.take(step, now) {
                tracing::debug!(worker, step = step.step, ?odd, "a step was dropped");
                outcome.dropped += 1;
            }
        }
        outcome.urgent = !before && sums.has_stepped();
        outcome
    }

    fn epoch(&mut self, report: EpochReport, now: Millis) -> bool {
        let epochs = &mut self.worker(report.worker, now).epochs;
        let bits = |r: &EpochReport| (r.step, r.loss_sum.to_bits(), r.samples);
        let before = epochs.insert(report.epoch, report);
        while EPOCHS_KEPT < epochs.len() {
            epochs.pop_first();
        }
        before.is_none_or(|before| bits(&before) != bits(&report))
    }

    fn checkpoint(&mut self, worker: u32, id: u64, state: CheckpointState) -> Outcome {
        let checkpoint = CheckpointId(id);
        // After a restart of the agent the order is not known until the master speaks again;
        // the ledger's copy is then in its place.
        if self.order.as_ref().is_none_or(|order| order.checkpoint != checkpoint) {
            return Outcome { dropped: 1, ..Outcome::default() };
        }
        let kind = kind_of(&state);
        // A worker stands at the step or has missed it, the newer word counts.
        let other = match kind {
            REACHED => Some(MISSED),
            MISSED => Some(REACHED),
            _ => None,
        };
        if let Some(other) = other {
            self.checkpoints.remove(&(worker, other));
        }
        let Key { job, generation } = self.key;
        let report = CheckpointReport { job, generation, checkpoint, worker, state };
        let before = self.checkpoints.insert((worker, kind), report.clone());
        Outcome { urgent: before.as_ref() != Some(&report), ..Outcome::default() }
    }

    /// A server could not write its part: told in the name of a worker here, as the master knows
    /// checkpoints of workers only. Without one, rank 0 reports that the part is missing.
    fn server_failed(&mut self, task: Task, error: &str) -> Outcome {
        tracing::warn!(key = %self.key, %task, error, "a part of a checkpoint failed");
        let first = self.workers.keys().next().copied();
        match (first, self.order.as_ref().map(|order| order.checkpoint)) {
            (Some(worker), Some(id)) => {
                let error = printable(&format!("{task}: {error}"), 500);
                self.checkpoint(worker, id.0, CheckpointState::Failed { error })
            }
            _ => Outcome::default(),
        }
    }

    /// The folder of a checkpoint could not be made: it failed before any worker saw it.
    pub(crate) fn checkpoint_failed(&mut self, worker: u32, id: CheckpointId, error: String) {
        self.checkpoint(worker, id.0, CheckpointState::Failed { error });
    }

    /// Reports of another checkpoint, or for another step of the same, are of no use any more.
    pub(crate) fn ordered(&mut self, order: Option<&CheckpointOrder>) {
        let step_of = |order: &CheckpointOrder| (order.checkpoint, order.at_step);
        let Some(order) = order else {
            self.order = None;
            self.checkpoints.clear();
            return;
        };
        match &self.order {
            Some(before) if step_of(before) == step_of(order) => {}
            Some(before) if before.checkpoint == order.checkpoint => {
                self.checkpoints.retain(|(_, kind), _| *kind != REACHED && *kind != MISSED);
            }
            _ => self.checkpoints.clear(),
        }
        self.order = Some(order.clone());
    }

    pub(crate) fn worker_reports(&self) -> impl Iterator<Item = WorkerReport> + '_ {
        let known = self.workers.iter().filter(|(_, worker)| worker.sums.is_known());
        known.map(|(&index, worker)| worker.sums.report(self.key, index))
    }

    pub(crate) fn epoch_reports(&self) -> impl Iterator<Item = EpochReport> + '_ {
        self.workers.values().flat_map(|worker| worker.epochs.values().copied())
    }

    /// The newest learning rate that each worker told; in practice the one of rank 0 does.
    pub(crate) fn rate_reports(&self) -> impl Iterator<Item = RateReport> + '_ {
        let Key { job, generation } = self.key;
        self.workers.iter().filter_map(move |(&worker, known)| {
            let report::Rate { step, rate } = known.rate?;
            Some(RateReport { job, generation, worker, step, rate })
        })
    }

    /// How the workers here began.
    pub(crate) fn begun_reports(&self) -> impl Iterator<Item = BegunReport> + '_ {
        let Key { job, generation } = self.key;
        self.begun.iter().map(move |(&worker, begun)| BegunReport {
            job,
            generation,
            worker,
            script_s: begun.script_s,
            connect_s: begun.connect_s,
            restore_s: begun.restore_s,
            step_s: begun.step_s,
        })
    }

    /// The job's parameter blocks, where a worker here has told them all.
    pub(crate) fn blocks_report(&self) -> Option<BlocksReport> {
        let Key { job, generation } = self.key;
        let blocks = self.blocks.whole()?.clone();
        Some(BlocksReport { job, generation, blocks })
    }

    pub(crate) fn checkpoint_reports(&self) -> impl Iterator<Item = CheckpointReport> + '_ {
        self.checkpoints.values().cloned()
    }
}

const REACHED: u8 = 0;
const MISSED: u8 = 1;

fn kind_of(state: &CheckpointState) -> u8 {
    match state {
        CheckpointState::Reached { .. } => REACHED,
        CheckpointState::Missed { .. } => MISSED,
        CheckpointState::Saved { .. } => 2,
        CheckpointState::Failed { .. } => 3,
    }
}

#[cfg(test)]
mod tests;
