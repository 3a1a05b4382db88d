//! More faults at will: links that fail one way, connections that break with messages under way,
//! agents that are down for a while, reports that make no sense, operators who ask for much.

use control::{Event, RequestKey};
use model::agent::{
    CheckpointReport, CheckpointState, EpochReport, Exit, Heartbeat, LossWindow, TaskReport,
    TaskState, WorkerReport,
};
use model::client::Change;
use model::{CheckpointId, Generation, Incarnation, JobId, Millis, Revision, Task};

use super::{Due, RECONNECT_MS, Tweak, World};

/// What is wrong with a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Garbage {
    /// Times, losses and sums that are no numbers, or beyond all measure.
    Numbers(f64),
    /// The same tasks, said of the generation before.
    OldGeneration,
    /// Tasks, workers and checkpoints of jobs that are not there or do not stand here.
    Unknown,
}

impl World {
    /// What the owners of the jobs ask for beside the workload.
    pub(crate) fn tweaked(mut self, tweaks: Vec<Tweak>) -> Self {
        self.trouble.tweaks = tweaks;
        self
    }

    /// Simulated time.
    pub(crate) const fn now(&self) -> Millis {
        self.now
    }

    /// Time passes in which nothing is due.
    pub(crate) fn wait_until(&mut self, at: Millis) {
        self.now = self.now.max(at);
    }

    /// Only one direction of a node's link is cut: towards the master, or from it. Both sides
    /// still take the connection for good until [`Self::break_session`].
    pub(crate) fn mute(&mut self, node: usize, towards_master: bool) {
        if !self.has(node) || self.agents[node].link.cut {
            return;
        }
        let agent = &mut self.agents[node];
        if towards_master {
            agent.link.mute_up = true;
        } else {
            agent.link.mute_down = true;
        }
    }

    /// Both directions work again; the agent connects anew.
    pub(crate) fn unmute(&mut self, node: usize) {
        if !self.has(node) || !self.agents[node].link.is_mute() {
            return;
        }
        let agent = &mut self.agents[node];
        (agent.link.mute_up, agent.link.mute_down) = (false, false);
        agent.session = None;
        agent.soon = false;
        self.queue.put(self.now.plus(RECONNECT_MS), Due::Connect(node));
    }

    /// A connection ends. What is under way is lost, or comes after all, perhaps behind the
    /// messages of the next connection. The master hears of the end after `told_ms`, or never.
    pub(crate) fn break_session(&mut self, node: usize, loses: bool, told_ms: Option<u64>) {
        if !self.has(node) || !self.agents[node].powered {
            return;
        }
        let Some(session) = self.agents[node].session.take() else { return };
        if loses {
            self.drop_messages(node);
        }
        let agent = &mut self.agents[node];
        agent.soon = false;
        (agent.link.up_until, agent.link.down_until) = (Millis::default(), Millis::default());
        let id = agent.id.clone();
        if let Some(ms) = told_ms {
            let event = Box::new(Event::NodeDisconnected { node: id, session });
            self.queue.put(self.now.plus(ms), Due::Master { life: self.life, event });
        }
        self.queue.put(self.now.plus(RECONNECT_MS), Due::Connect(node));
    }

    /// The agent's process is down for a while; its tasks live on.
    pub(crate) fn stop_agent(&mut self, node: usize, down_ms: u64) {
        if !self.has(node) || !self.agents[node].powered || !self.agents[node].runs {
            return;
        }
        self.drop_messages(node);
        let agent = &mut self.agents[node];
        agent.runs = false;
        agent.session = None;
        agent.soon = false;
        agent.beats += 1;
        self.queue.put(self.now.plus(down_ms), Due::StartAgent(node));
    }

    /// It is there again, with its ledger.
    pub(super) fn start_agent(&mut self, node: usize) {
        let agent = &mut self.agents[node];
        if agent.runs || !agent.powered {
            return;
        }
        agent.runs = true;
        agent.incarnation = agent.incarnation.next();
        self.obey(node);
        self.queue.put(self.now.plus(RECONNECT_MS), Due::Connect(node));
    }

    /// What a machine that is off remembers of the master is lost with its disk.
    pub(crate) fn wipe(&mut self, node: usize) {
        if self.has(node) && !self.agents[node].powered {
            self.agents[node].obeyed = Revision::default();
            self.agents[node].incarnation = Incarnation::default();
        }
    }

    /// The next `count` messages of a node come a second time, `later_ms` after the first.
    pub(crate) fn repeat(&mut self, node: usize, count: u32, later_ms: u64) {
        self.trouble.repeats.insert(node, (count, later_ms));
    }

    pub(super) fn repeats(&mut self, node: usize, at: Millis) -> Option<Millis> {
        let (count, later_ms) = self.trouble.repeats.get_mut(&node)?;
        let later_ms = *later_ms;
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.trouble.repeats.remove(&node);
        }
        Some(at.plus(later_ms))
    }

    /// The next heartbeat of a node says this beside the truth.
    pub(crate) fn garble(&mut self, node: usize, garbage: Garbage) {
        self.trouble.garbage.entry(node).or_default().push(garbage);
    }

    /// The wall clock of the master's host jumps.
    pub(crate) fn shift_unix(&mut self, ms: i64) {
        self.trouble.unix_shift_ms = self.trouble.unix_shift_ms.saturating_add(ms);
    }

    /// Processes ignore TERM from now on, and go with the KILL after `ms`.
    pub(crate) fn ignore_term(&mut self, ms: u64) {
        self.trouble.stubborn_ms = ms;
    }

    /// Checkpoints are said to be whole while a part is short, until told otherwise.
    pub(crate) fn write_halves(&mut self, halves: bool) {
        self.trouble.half_written = halves;
    }

    /// The next plan comes so much later, or never.
    pub(crate) fn hold_plan(&mut self, late_ms: Option<u64>) {
        match late_ms {
            Some(ms) => self.trouble.plan_late_ms = ms,
            None => self.trouble.plan_is_lost = true,
        }
    }

    /// An operator asks. The answer is noted by the watch.
    pub(crate) fn ask(&mut self, change: Change, dry_run: bool) {
        self.requests_made += 1;
        let request = RequestKey(self.requests_made);
        if !dry_run && self.master_up {
            self.watch.asked.insert(request.0, change.clone());
        }
        let user = "op".to_owned();
        // Without a reason no node is drained.
        let drains = matches!(change, Change::NodeDrain { .. });
        let reason = drains.then(|| "by chance".to_owned());
        let (rank, change) = (model::access::Rank::Operator, change.into());
        self.master(Event::Change { request, user, rank, dry_run, reason, change });
    }

    /// The owner of a job submits it again under the same request id.
    pub(crate) fn submit_again(&mut self, job: usize) {
        if self.truths.get(job).is_some_and(|truth| truth.arrival < self.now) {
            self.queue.put(self.now, Due::Arrive(job));
        }
    }

    /// A machine that is off is declared lost by an operator.
    pub(crate) fn declare_lost(&mut self, node: usize) {
        if self.has(node) && !self.agents[node].powered {
            let change = Change::NodeLost { node: self.agents[node].id.clone() };
            self.ask(change, false);
        }
    }

    pub(super) fn tainted(&mut self, node: usize, mut beat: Heartbeat) -> Heartbeat {
        self.leak(node, &mut beat);
        self.misreport(&mut beat);
        for garbage in self.trouble.garbage.remove(&node).unwrap_or_default() {
            match garbage {
                Garbage::Numbers(number) => numbers(&mut beat, number),
                Garbage::OldGeneration => old_generation(&mut beat),
                Garbage::Unknown => unknown(&mut beat),
            }
        }
        beat
    }
}

fn numbers(beat: &mut Heartbeat, number: f64) {
    for report in &mut beat.workers {
        report.steps_s = number;
        report.compute_s = number;
        report.loss_sum = number;
        report.recent = LossWindow { steps: u32::MAX, mean: number, deviation: number };
        report.first = report.recent;
        report.loss_not_finite = u64::MAX;
    }
    beat.load.cpu_share = number;
    beat.load.load_1m = number;
    for report in &mut beat.checkpoints {
        if let CheckpointState::Reached { loss_sum, .. } = &mut report.state {
            *loss_sum = number;
        }
    }
}

fn before(generation: Generation) -> Generation {
    Generation(generation.0.saturating_sub(1))
}

/// Everything once more, of the generation before, and all of its tasks are said to be out.
fn old_generation(beat: &mut Heartbeat) {
    let tasks: Vec<TaskReport> = beat
        .tasks
        .iter()
        .map(|report| TaskReport {
            generation: before(report.generation),
            state: TaskState::Exited(Exit { code: Some(1), ..Exit::default() }),
            ..report.clone()
        })
        .collect();
    beat.tasks.extend(tasks);
    let workers: Vec<WorkerReport> = beat
        .workers
        .iter()
        .map(|report| WorkerReport {
            generation: before(report.generation),
            finished: true,
            step: report.step + 1_000_000,
            ..report.clone()
        })
        .collect();
    beat.workers.extend(workers);
    let checkpoints: Vec<CheckpointReport> = beat
        .checkpoints
        .iter()
        .map(|report| CheckpointReport {
            generation: before(report.generation),
            state: CheckpointState::Failed { error: "long ago".to_owned() },
            ..report.clone()
        })
        .collect();
    beat.checkpoints.extend(checkpoints);
}

/// Jobs that nobody knows, and workers that no shape has.
fn unknown(beat: &mut Heartbeat) {
    let nobody = JobId(u64::MAX);
    let generation = Generation(u64::MAX);
    let exit = Exit { code: Some(137), reason: "who?".to_owned(), ..Exit::default() };
    for task in [Task::worker(u32::MAX), Task::server(7), Task::SCHEDULER] {
        let state = TaskState::Exited(exit.clone());
        beat.tasks.push(TaskReport { job: nobody, generation, task, state });
    }
    let strange: Vec<WorkerReport> = beat
        .workers
        .iter()
        .take(1)
        .map(|report| WorkerReport { worker: u32::MAX, finished: true, ..report.clone() })
        .collect();
    for report in &strange {
        beat.epochs.push(EpochReport {
            job: report.job,
            generation: report.generation,
            worker: report.worker,
            epoch: u32::MAX,
            step: u64::MAX,
            loss_sum: f64::NAN,
            samples: u64::MAX,
        });
        beat.checkpoints.push(CheckpointReport {
            job: report.job,
            generation: report.generation,
            checkpoint: CheckpointId(u64::MAX),
            worker: report.worker,
            state: CheckpointState::Missed { step: u64::MAX },
        });
        let exited = TaskState::Exited(exit.clone());
        let (job, generation, task) = (report.job, report.generation, Task::worker(u32::MAX));
        beat.tasks.push(TaskReport { job, generation, task, state: exited });
    }
    beat.workers.extend(strange);
}
