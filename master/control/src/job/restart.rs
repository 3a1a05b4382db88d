//! Faults: what ends a generation unasked, and how the job comes back.

use model::agent::{Exit, TaskReport, TaskState};
use model::reason::Reachability;
use model::view::FaultView;
use model::{Generation, JobId, NodeId, OnDisconnect, Task};

use crate::job::epochs::ended_by_epochs;
use crate::job::phase::{Goal, JobEvent, Life, Next, Phase};
use crate::job::{HISTORY_MAX, push_bounded};
use crate::ports::says_port_busy;
use crate::record::Wish;
use crate::step::Control;
use crate::timers::{JobTimer, Timer};

/// Who is to blame: only the job's own faults count towards `restarts_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    Job,
    Node,
    Port,
}

/// The exit code of the training package for a damaged part of a checkpoint.
const EXIT_DAMAGED: i32 = 3;
/// How an exit says that its agent, and not the job, is why a process is not there.
const AGENTS_OWN: [&str; 4] = [
    "launch was interrupted by an agent restart",
    "not held by this agent",
    "a newer generation is held by this agent",
    "the generation is being stopped",
];
/// Ports that may be found busy in a row before it counts as a fault.
const PORT_RETRIES: u32 = 3;

fn describe(task: Task, node: &NodeId, exit: &Exit) -> String {
    let how = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "is gone".to_owned(),
    };
    let words: String = exit.reason.chars().take(500).collect();
    if words.is_empty() {
        format!("{task} on {node} {how}")
    } else {
        format!("{task} on {node} {how}: {words}")
    }
}

impl Control {
    /// A report about a task of a job's present generation, from its own node.
    pub(crate) fn on_task_report(&mut self, node: &NodeId, report: &TaskReport, was: Reachability) {
        let job = self.job_mut(report.job);
        let Some(live) = job.live.as_mut() else { return };
        if live.tasks.get(&report.task) != Some(&report.state) {
            live.tasks.insert(report.task, report.state.clone());
            if let (TaskState::Running { ready: true, .. }, Phase::Starting { .. }) =
                (&report.state, job.phase())
            {
                self.note_ready(report.job);
            }
        }
        let job = self.job_mut(report.job);
        let TaskState::Exited(exit) = &report.state else { return };
        if !matches!(job.phase(), Phase::Stopping { .. }) {
            // An agent ends tasks by itself after a long silence; neither that nor an order of
            // ours is the job's fault, nor is a checkpoint that cannot be read for now.
            let keeps = self.job(report.job).spec().on_disconnect == OnDisconnect::Keep;
            let silent = was == Reachability::Down || (was == Reachability::Suspect && !keeps);
            let server = self.is_servers_fault(node, report, exit);
            let blame = if says_port_busy(&exit.reason) {
                Blame::Port
            } else if server == Some(true) {
                self.note_exit_rejected(node, report, exit);
                Blame::Node
            } else if exit.ordered
                || silent
                || AGENTS_OWN.contains(&exit.reason.as_str())
                || model::agent::says_storage_away(&exit.reason)
            {
                Blame::Node
            } else {
                Blame::Job
            };
            if server == Some(false) && blame == Blame::Job {
                self.job_mut(report.job).blamed_start = Some(report.generation);
            }
            if exit.code == Some(EXIT_DAMAGED) {
                self.drop_damaged(report.job);
            }
            let words = describe(report.task, node, exit);
            let (words, blame) = self.with_gpu(report, words, blame);
            self.fault(report.job, words, blame);
        }
        let is_stopping = matches!(self.job(report.job).phase(), Phase::Stopping { alive, .. }
            if alive.contains(&report.task));
        if is_stopping {
            self.on_task_gone(report.job, report.generation, report.task);
        }
    }

    /// A task is proved to be out.
    pub(crate) fn on_task_gone(&mut self, id: JobId, generation: Generation, task: Task) {
        self.transit(id, JobEvent::TaskGone { generation, task });
    }

    /// A checkpoint whose parts do not read is not resumed from again: the one before it is.
    fn drop_damaged(&mut self, id: JobId) {
        let job = self.job_mut(id);
        let Phase::Starting { life: Life { resume: Some(damaged), .. } } = job.phase() else {
            return;
        };
        let damaged = *damaged;
        let before = job.record.checkpoints.len();
        job.record.checkpoints.retain(|checkpoint| checkpoint.id != damaged);
        if job.record.checkpoints.len() == before {
            return;
        }
        let newest = job.newest_checkpoint().map(|checkpoint| checkpoint.id);
        self.touch(id);
        let back = newest.map_or_else(
            || "none is left: it starts anew".to_owned(),
            |id| format!("back to {id}"),
        );
        self.tell(Some(id), None, "checkpoint", format!("{damaged} is damaged; {back}"));
    }

    /// Ends a live generation that lost a member or makes no progress: the others would hang.
    pub(crate) fn fault(&mut self, id: JobId, cause: String, blame: Blame) {
        let unix = self.now.unix;
        let settings = self.settings.clone();
        if matches!(self.job(id).phase(), Phase::Stopping { .. }) {
            return;
        }
        // What was reported up to here counts as reached.
        self.look(id);
        let job = self.job_mut(id);
        let Some(life) = job.record.phase.life() else { return };
        let view = FaultView {
            at: unix,
            generation: life.generation,
            cause: cause.clone(),
            step: job.record.progress.step,
            resumed_from: None,
            lost_s: None,
        };
        push_bounded(&mut job.record.faults, view, HISTORY_MAX);
        let record = &mut job.record;
        record.faults_in_row = record.faults_in_row.saturating_add(1);
        let mut counts = blame == Blame::Job;
        if blame == Blame::Port {
            record.port_retries = record.port_retries.saturating_add(1);
            counts = record.port_retries > PORT_RETRIES;
        }
        if counts {
            record.failures_in_row = record.failures_in_row.saturating_add(1);
        }
        let next = if let Some(next) = job.wished() {
            next
        } else if counts && job.record.failures_in_row > job.spec().restarts_max {
            let times = job.spec().restarts_max;
            Next::Fail { cause: format!("{cause} (after {times} restarts)") }
        } else {
            job.record.restarts = job.record.restarts.saturating_add(1);
            let doublings = job.record.faults_in_row.saturating_sub(1).min(32);
            let ms = settings.backoff_ms.saturating_mul(1 << doublings);
            let first_port = blame == Blame::Port && !counts;
            let ms = if first_port { settings.backoff_ms } else { ms.min(settings.backoff_ms_max) };
            Next::BackOff { ms, cause: cause.clone() }
        };
        if matches!(next, Next::Pause | Next::Cancel { .. }) {
            job.record.wish = None;
        }
        self.tell(Some(id), None, "fault", cause);
        self.stop(id, next, settings.stop_grace_ms);
    }

    /// No worker's step for long. A node that does not answer is the node's rule's matter.
    pub(crate) fn on_stall_due(&mut self, id: JobId) {
        let stall_ms = self.settings.stall_ms;
        let job = self.job(id);
        let Phase::Running { .. } = job.phase() else { return };
        let Some(live) = job.live.as_ref() else { return };
        let now = self.now.mono;
        let waits = live.finished() || ended_by_epochs(job).is_some();
        let quiet_ms = now.since(live.progress_at);
        if !waits && quiet_ms >= stall_ms && self.nodes_answer(id) {
            let cause = format!("no worker made a step for {} s", quiet_ms / 1000);
            self.fault(id, cause, Blame::Job);
            return;
        }
        let left = stall_ms.saturating_sub(quiet_ms).max(1_000);
        self.timers.set(Timer::Job(id, JobTimer::Stall), now.plus(left));
        self.out.settle.insert(id);
    }

    pub(crate) fn on_start_late(&mut self, id: JobId) {
        let Phase::Starting { life } = self.job(id).phase() else { return };
        let now = self.now.mono;
        if !self.nodes_answer(id) {
            let at = now.plus(self.settings.suspect_ms.max(1_000));
            self.timers.set(Timer::Job(id, JobTimer::Start), at);
            return;
        }
        let live = self.job(id).live.as_ref();
        let stepped = |worker: u32| {
            live.and_then(|live| live.workers.get(&worker))
                .is_some_and(|worker| worker.report.steps > 0)
        };
        let missing: Vec<String> = (0..life.shape().workers)
            .filter(|worker| !stepped(*worker))
            .take(5)
            .map(|worker| {
                let task = Task::worker(worker);
                let node = life.placement.node_of(task).map_or("?", NodeId::as_str);
                format!("{task} on {node}")
            })
            .collect();
        let cause = format!(
            "no first step within {} s of {}",
            self.settings.start_timeout_ms / 1000,
            missing.join(", ")
        );
        self.fault(id, cause, Blame::Job);
    }

    /// Something did not go out in time: it is named, and the order is sent again.
    pub(crate) fn on_stop_late(&mut self, id: JobId) {
        let Phase::Stopping { life, alive, grace_ms, .. } = self.job(id).phase() else { return };
        let names: Vec<String> = alive
            .iter()
            .take(5)
            .map(|task| {
                let node = life.placement.node_of(*task).map_or("?", NodeId::as_str);
                format!("{task} on {node}")
            })
            .collect();
        let nodes: Vec<NodeId> = life.placement.0.iter().map(|share| share.node.clone()).collect();
        let text = format!("still not out: {}", names.join(", "));
        let at = self.now.mono.plus(grace_ms.saturating_add(STOP_AGAIN_MS));
        for node in nodes {
            if let Some(known) = self.nodes.get_mut(&node) {
                known.sent = None;
            }
            self.out.desired.insert(node);
        }
        self.timers.set(Timer::Job(id, JobTimer::Stop), at);
        self.tell(Some(id), None, "stopping", text);
    }

    /// All tasks of a node are proved dead, by a new boot or by an operator's word.
    pub(crate) fn lose_tasks(&mut self, node: &NodeId, words: &str, proved: bool) {
        let Some(known) = self.nodes.get(node) else { return };
        for id in known.lives.clone() {
            self.fault(id, format!("{node} {words}"), Blame::Node);
            self.tasks_gone(id, node, proved);
        }
    }

    /// The job's rule is not to wait for a silent node: its generation ends.
    pub(crate) fn end_for_silence(&mut self, id: JobId, node: &NodeId) {
        let seconds = self.settings.down_ms / 1000;
        self.fault(id, format!("{node} has been silent for {seconds} s"), Blame::Node);
    }

    /// Counts the tasks of a silent node as gone: what is left of them is in no desired set when
    /// it comes back, and its agent has ended them by itself by then.
    pub(crate) fn fence(&mut self, id: JobId, node: &NodeId) {
        self.tasks_gone(id, node, false);
    }

    /// A stopping job that needs no proof of death from the nodes that are down.
    pub(crate) fn fence_silent(&mut self, id: JobId) {
        let Phase::Stopping { life, .. } = self.job(id).phase() else { return };
        let silent: Vec<NodeId> = life
            .placement
            .0
            .iter()
            .map(|share| &share.node)
            .filter(|node| {
                self.nodes.get(*node).is_none_or(|node| {
                    node.held || matches!(node.reach, Reachability::Down | Reachability::Gone)
                })
            })
            .cloned()
            .collect();
        for node in silent {
            self.fence_if_final(id, &node);
        }
    }

    pub(crate) fn fence_if_final(&mut self, id: JobId, node: &NodeId) {
        let job = self.job(id);
        let Phase::Stopping { next, .. } = job.phase() else { return };
        let gone = self.nodes.get(node).is_none_or(|node| node.reach == Reachability::Gone);
        let held = self.nodes.get(node).is_some_and(|node| node.held);
        let replaces = !held && job.spec().on_disconnect == OnDisconnect::Replace;
        if gone || next.is_final() || replaces {
            self.tasks_gone(id, node, gone);
        }
    }

    fn tasks_gone(&mut self, id: JobId, node: &NodeId, proved: bool) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Phase::Stopping { life, alive, .. } = &job.record.phase else { return };
        let generation = life.generation;
        let mut here = life.placement.tasks_on(node);
        here.retain(|task| alive.contains(task));
        if let Some(live) = job.live.as_mut() {
            live.fenced |= !proved && here.contains(&Task::SCHEDULER);
        }
        for task in here {
            self.on_task_gone(id, generation, task);
        }
    }

    /// A cancel that would wait for a checkpoint which cannot come: a node of the job is DOWN.
    pub(crate) fn cancel_unheard(&mut self, id: JobId) {
        let grace_ms = self.settings.stop_grace_ms;
        let job = self.job(id);
        let wished = job.record.wish == Some(Wish::Cancel);
        let life = match job.phase() {
            Phase::Checkpointing { life, goal: Goal::Leave(Next::Cancel { .. }), .. } => life,
            Phase::Starting { life }
            | Phase::Running { life, .. }
            | Phase::Checkpointing { life, .. }
                if wished =>
            {
                life
            }
            Phase::Queued { .. }
            | Phase::Starting { .. }
            | Phase::Running { .. }
            | Phase::Checkpointing { .. }
            | Phase::Stopping { .. }
            | Phase::Paused { .. }
            | Phase::Completed { .. }
            | Phase::Failed { .. }
            | Phase::Cancelled { .. } => return,
        };
        let is_down = |node: &NodeId| {
            let reach = self.nodes.get(node).map(|node| node.reach);
            matches!(reach, Some(Reachability::Down | Reachability::Gone))
        };
        let mut nodes = life.placement.0.iter().map(|share| &share.node);
        let Some(down) = nodes.find(|node| is_down(node)) else { return };
        let note = format!("cancelled; no last checkpoint: {down} does not answer");
        self.job_mut(id).record.wish = None;
        self.stop(id, Next::Cancel { note }, grace_ms);
    }

    /// An operator's cancel that waits for nothing.
    pub(crate) fn cancel_now(&mut self, id: JobId) {
        self.job_mut(id).record.wish = Some(Wish::Cancel);
        let next = Next::Cancel { note: "cancelled without a last checkpoint".to_owned() };
        if self.job(id).life().is_some() {
            self.stop(id, next, 0);
        }
        self.out.settle.insert(id);
    }
}

const STOP_AGAIN_MS: u64 = 60_000;
