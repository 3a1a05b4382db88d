//! Drains: jobs leave a node by checkpoint, as rounds find places for them; whoever finds none
//! waits in the queue; what is left at the deadline is stopped without a checkpoint.
//!
//! A round does not see the node any more, so jobs on it that may be moved have lost their place
//! (`Standing::Displaced` in the scheduler). One that may not be moved yet is waited for.

use model::nodes::DrainView;
use model::reason::{Reachability, Schedulability};
use model::{JobId, NodeId, Placement};

use crate::job::Job;
use crate::job::phase::{Goal, Next, Phase};
use crate::node::Node;
use crate::step::Control;
use crate::timers::Timer;

/// Between two looks at jobs that could not leave yet.
const LOOK_MS: u64 = 2_000;

impl Control {
    pub(crate) fn begin_drain(&mut self, id: &NodeId) {
        self.draining.insert(id.clone());
        self.timers.set(Timer::Drain(id.clone()), self.now.mono);
    }

    pub(crate) fn end_drain(&mut self, id: &NodeId) {
        self.draining.remove(id);
        self.timers.cancel(&Timer::Drain(id.clone()));
    }

    /// A node under a placement that is to be emptied.
    fn emptied_under<'a>(&self, placement: &'a Placement) -> Option<&'a NodeId> {
        let emptied = |id: &&NodeId| self.nodes.get(*id).is_some_and(Node::is_emptied);
        placement.0.iter().map(|share| &share.node).find(emptied)
    }

    /// The node that a job has to leave, if any.
    pub(crate) fn leaves<'a>(&self, job: &'a Job) -> Option<&'a NodeId> {
        if self.draining.is_empty() {
            return None;
        }
        self.emptied_under(&job.life()?.placement)
    }

    /// A round's words about a job: it knows only that a node is not there any more.
    pub(crate) fn round_words(&self, job: &Job, words: String) -> String {
        match self.leaves(job) {
            Some(node) => words.replace(scheduler::plan::NODE_GONE, &format!("{node} is draining")),
            None => words,
        }
    }

    /// Why a job that a round took its place from waits.
    pub(crate) fn evicted_words(&self, job: &Job, refused: Option<&str>) -> Option<String> {
        let node = self.leaves(job)?;
        let least = job.wanted_shape().unwrap_or_else(|| job.spec().shape_min());
        let why = refused.map(|why| format!(": {why}")).unwrap_or_default();
        Some(format!("{node} is draining; no room for its least shape {least} elsewhere{why}"))
    }

    /// For a job that waits: nodes that would be there if nobody had closed them.
    pub(crate) fn closed_words(&self) -> String {
        let closed = self.closed.iter().filter_map(|id| self.nodes.get(id));
        let closed = closed.filter(|node| node.is_up());
        let words = closed.take(3).filter_map(Node::takes_nothing);
        words.map(|words| format!("; {words}")).collect()
    }

    /// Tasks of jobs on a node that are not proved gone, and strangers.
    pub(crate) fn tasks_here(&self, id: &NodeId) -> u32 {
        let Some(node) = self.nodes.get(id) else { return 0 };
        let of_job = |job: &JobId| {
            let job = self.job(*job);
            let Some(life) = job.life() else { return 0 };
            let mut tasks = life.placement.tasks_on(id);
            if let Phase::Stopping { alive, .. } = job.phase() {
                tasks.retain(|task| alive.contains(task));
            }
            tasks.len()
        };
        let known: usize = node.lives.iter().map(of_job).sum();
        let strangers = node.strangers.values().fold(0_u32, |sum, shape| {
            sum.saturating_add(shape.servers).saturating_add(shape.workers).max(1)
        });
        u32::try_from(known).unwrap_or(u32::MAX).saturating_add(strangers)
    }

    /// Marks drained nodes as such; called once in every step.
    pub(crate) fn note_drained(&mut self) {
        let empty = |id: &&NodeId| {
            self.nodes.get(*id).is_none_or(|node| {
                // Before it is heard nobody knows what else runs there.
                let heard = node.received.is_some() || node.reach >= Reachability::Down;
                heard && node.lives.is_empty() && node.strangers.is_empty()
            })
        };
        let done: Vec<NodeId> = self.draining.iter().filter(empty).cloned().collect();
        for id in done {
            self.end_drain(&id);
            let Some(ops) = self.nodes.get_mut(&id).and_then(|node| node.ops.as_mut()) else {
                continue;
            };
            ops.state = Schedulability::Drained;
            let text = format!("{id} is DRAINED: nothing runs there; {} ({})", ops.reason, ops.by);
            self.out.node_ops.insert(id.clone());
            self.tell(None, Some(&id), "drained", text);
        }
    }

    /// Looks after the jobs on a node that is drained.
    pub(crate) fn tend_drain(&mut self, id: &NodeId) {
        let now = self.now.mono;
        let Some(node) = self.nodes.get(id) else { return };
        let Some(ops) = node.ops.as_ref() else { return };
        if ops.state != Schedulability::Draining {
            return;
        }
        let deadline = ops.deadline.map(|(_, at)| at);
        let over = deadline.is_some_and(|at| at <= now);
        let mut asks = false;
        for job in node.lives.clone() {
            let stops = matches!(self.job(job).phase(), Phase::Stopping { .. });
            if over && !stops {
                self.force_out(job, id);
                continue;
            }
            match self.job(job).phase() {
                // Nothing was trained since the checkpoint that it starts from.
                Phase::Starting { .. } => self.stop_start(job, id),
                Phase::Running { pending: None, .. } => asks |= self.is_movable(self.job(job)),
                Phase::Running { .. }
                | Phase::Checkpointing { .. }
                | Phase::Stopping { .. }
                | Phase::Queued { .. }
                | Phase::Paused { .. }
                | Phase::Completed { .. }
                | Phase::Failed { .. }
                | Phase::Cancelled { .. } => {}
            }
        }
        if asks {
            self.ask_round("a node is drained");
        }
        let next = now.plus(LOOK_MS);
        let next = deadline.filter(|at| *at > now).map_or(next, |at| at.min(next));
        self.timers.set(Timer::Drain(id.clone()), next);
    }

    fn stop_start(&mut self, job: JobId, id: &NodeId) {
        let next = self.job(job).wished();
        let next = next
            .unwrap_or_else(|| Next::Queue { reason: format!("{id} is draining; not placed yet") });
        self.leave(job, next);
    }

    /// The deadline is over.
    fn force_out(&mut self, job: JobId, id: &NodeId) {
        let known = self.job(job);
        let from = known.newest_checkpoint().map_or_else(
            || "it starts anew, as it has no checkpoint".to_owned(),
            |newest| format!("it resumes from {} at step {}", newest.id, newest.step),
        );
        let words = format!("stopped on {id} without a checkpoint, as the drain's time is over");
        let next = known.wished();
        let next = next.unwrap_or_else(|| Next::Queue { reason: format!("{words}; {from}") });
        self.tell(Some(job), Some(id), "drain", format!("{words}; {from}"));
        self.leave(job, next);
    }

    fn leave(&mut self, job: JobId, next: Next) {
        if matches!(next, Next::Pause | Next::Cancel { .. }) {
            self.job_mut(job).record.wish = None;
        }
        self.stop(job, next, self.settings.stop_grace_ms);
        self.ask_round("a node is drained");
    }

    /// How far a drain has come; none where there is none.
    pub(crate) fn drain_view(&self, id: &NodeId) -> Option<DrainView> {
        let node = self.nodes.get(id)?;
        let ops = node.ops.as_ref().filter(|_| node.is_emptied())?;
        let jobs = node.lives.iter().map(|job| (*job, self.leaving_words(self.job(*job))));
        Some(DrainView {
            deadline: ops.deadline.map(|(unix, _)| unix),
            tasks_before: ops.tasks_before,
            tasks_left: self.tasks_here(id),
            jobs: jobs.collect(),
        })
    }

    /// What a job that has to leave waits for.
    fn leaving_words(&self, job: &Job) -> String {
        let now = self.now.mono;
        let silent = job.life().and_then(|life| {
            let up = |id: &&NodeId| self.nodes.get(*id).is_none_or(|node| !node.is_up());
            life.placement.0.iter().map(|share| &share.node).find(up)
        });
        let live = job.live.as_ref();
        let early_ms = live.map_or(0, |live| live.save_not_before.since(now));
        match job.phase() {
            Phase::Stopping { alive, .. } => match silent {
                Some(node) => format!("{} tasks are to go out; {node} is silent", alive.len()),
                None => format!("{} tasks are to go out", alive.len()),
            },
            Phase::Checkpointing { goal: Goal::Leave(next), .. } => match next {
                Next::Start(place) => {
                    format!("writes its checkpoint, then moves to {}", names(&place.placement))
                }
                Next::Queue { reason } => format!("writes its checkpoint, then waits: {reason}"),
                Next::BackOff { .. }
                | Next::Pause
                | Next::Complete { .. }
                | Next::Fail { .. }
                | Next::Cancel { .. } => "writes its last checkpoint".to_owned(),
            },
            Phase::Checkpointing { goal: Goal::Continue, .. } => {
                "writes a checkpoint, then a round moves it".to_owned()
            }
            Phase::Running { pending: Some(place), .. } => {
                format!("moves to {} once there is room", names(&place.placement))
            }
            Phase::Running { .. } => match silent {
                Some(node) => format!("cannot write a checkpoint while {node} is silent"),
                None if early_ms > 0 => {
                    let note = job.record.note.clone().unwrap_or_default();
                    format!("tries again in {} s: {note}", early_ms.div_ceil(1000))
                }
                None if live.is_none_or(|live| !live.based) => {
                    "waits until each worker has made a step".to_owned()
                }
                None => "waits for the round that moves it".to_owned(),
            },
            Phase::Starting { .. } => "starts, and is stopped".to_owned(),
            Phase::Queued { .. }
            | Phase::Paused { .. }
            | Phase::Completed { .. }
            | Phase::Failed { .. }
            | Phase::Cancelled { .. } => "is out".to_owned(),
        }
    }
}

fn names(placement: &Placement) -> String {
    let names: Vec<&str> = placement.0.iter().take(5).map(|share| share.node.as_str()).collect();
    names.join(", ")
}
