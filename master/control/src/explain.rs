//! Why a job is where it is: from its phase and from what the last round recorded, never guessed
//! anew.

use std::fmt::Write as _;

use model::reason::Reachability;
use model::view::WhyView;
use model::{JobId, Task};

use crate::job::Job;
use crate::job::phase::{Goal, Life, Next, Origin, Phase, Wait};
use crate::record::Wish;
use crate::step::Control;
use crate::timers::{JobTimer, Timer};

impl Control {
    /// The reason beside a phase, in one line.
    pub(crate) fn reason(&self, job: &Job) -> String {
        let mut text = self.phase_reason(job);
        let slow = self.slow_words(job).into_iter().next();
        for extra in [self.silence(job), self.loss_note(job), self.wish_note(job), slow]
            .into_iter()
            .flatten()
        {
            if !text.is_empty() {
                text.push_str("; ");
            }
            text.push_str(&extra);
        }
        text
    }

    fn phase_reason(&self, job: &Job) -> String {
        match job.phase() {
            Phase::Queued { wait, .. } => self.wait_reason(job, wait),
            Phase::Starting { life } => self.starting(job, life),
            Phase::Running { pending: Some(place), .. } => {
                let shape = place.placement.shape();
                let why = self.fits_now(job.id(), &place.placement).err().unwrap_or_default();
                format!("to move to {shape} once there is room: {why}")
            }
            Phase::Running { .. } if job.is_profiling() => self.profiling(job),
            Phase::Running { .. } => job.record.note.clone().unwrap_or_default(),
            Phase::Checkpointing { save, goal, .. } => {
                let id = save.order.checkpoint;
                match goal {
                    Goal::Continue => format!("makes checkpoint {id}"),
                    Goal::Leave(next) => {
                        format!("makes checkpoint {id}, then {}", self.next_words(next))
                    }
                }
            }
            Phase::Stopping { life, alive, next, .. } => {
                let mut names: Vec<String> = Vec::new();
                for task in alive.iter().take(3) {
                    let node = life.placement.node_of(*task).map_or("?", |node| node.as_str());
                    names.push(format!("{task} on {node}"));
                }
                let count = alive.len();
                let stuck = self.stuck_of(job.id(), life).map(|words| format!("; {words}"));
                format!(
                    "{} of {} to go out: {count} tasks left ({}); then {}{}",
                    life.generation,
                    life.shape(),
                    names.join(", "),
                    self.next_words(next),
                    stuck.unwrap_or_default()
                )
            }
            Phase::Paused { .. } => {
                let kept = job.newest_checkpoint().map(|newest| newest.step);
                kept.map_or_else(
                    || "paused before its first checkpoint".to_owned(),
                    |step| format!("paused at step {step}"),
                )
            }
            Phase::Completed { note } | Phase::Cancelled { note } => note.clone(),
            Phase::Failed { cause } => cause.clone(),
        }
    }

    fn wait_reason(&self, job: &Job, wait: &Wait) -> String {
        match wait {
            Wait::Round { reason } => match &job.decision {
                Some((round, _, entry)) if entry.verb == "wait" => {
                    format!("{} ({round}){}", entry.reason, self.closed_words())
                }
                Some(_) | None => reason.clone(),
            },
            Wait::BackOff { ms, cause } => {
                let due = self.timers.armed(&Timer::Job(job.id(), JobTimer::BackOff));
                let left_ms = due.map_or(*ms, |due| due.since(self.now.mono));
                let (n, max) = (job.record.failures_in_row, job.spec().restarts_max);
                format!("RESTARTING ({n} of {max}, in {} s): {cause}", left_ms.div_ceil(1000))
            }
            Wait::Room(place) => {
                let shape = place.placement.shape();
                let full = self.fits_now(job.id(), &place.placement).err();
                let why = full.or_else(|| self.lacks_port(place)).unwrap_or_default();
                format!("has a place for {shape} that is not free yet: {why}")
            }
        }
    }

    fn starting(&self, job: &Job, life: &Life) -> String {
        let workers = life.shape().workers;
        let live = job.live.as_ref();
        let stepped = (0..workers)
            .filter(|worker| {
                live.and_then(|live| live.workers.get(worker))
                    .is_some_and(|worker| worker.report.steps > 0)
            })
            .count();
        let waits = live.and_then(|live| live.waits.first_key_value());
        let waits = waits.map_or_else(String::new, |(node, words)| {
            format!("; {node} cannot bring their data set yet: {words}")
        });
        let held = self.left_out_words(job).map(|words| format!("; {words}")).unwrap_or_default();
        let why = match life.origin {
            Origin::Queue => "starts",
            Origin::Rescale => "moves: starts",
            Origin::Fault => "comes back: starts",
        };
        format!(
            "{why} {} with {}; {stepped} of {workers} workers have made a step{waits}{held}",
            life.generation,
            life.shape()
        )
    }

    fn profiling(&self, job: &Job) -> String {
        let shape = job.shape();
        let count = job.record.measured.len();
        let max = self.settings.profile_shapes_max;
        if job.record.measured.contains(&shape) {
            return format!("{count} of at most {max} shapes measured; the next round gives one");
        }
        let need_s = model::time::seconds(self.settings.profile_ms);
        let measured = job.live.as_ref().and_then(|live| live.measured);
        let have_s = measured.map_or(0.0, |(_, seconds)| seconds.min(need_s));
        format!(
            "measuring {shape}, {have_s:.0} of {need_s:.0} s; {count} of at most {max} shapes done"
        )
    }

    fn next_words(&self, next: &Next) -> String {
        match next {
            Next::Start(place) => {
                let shape = place.placement.shape();
                let why = if place.profiling { "to be measured" } else { "by the round" };
                format!("starts with {shape} {why}")
            }
            Next::Queue { reason } => format!("waits: {reason}"),
            Next::BackOff { ms, cause } => format!("restarts after {} s: {cause}", ms / 1000),
            Next::Pause => "is PAUSED".to_owned(),
            Next::Complete { note } => format!("is COMPLETED: {note}"),
            Next::Fail { cause } => format!("is FAILED: {cause}"),
            Next::Cancel { .. } => "is CANCELLED".to_owned(),
        }
    }

    /// Nodes of the job that do not answer, and what that means for it.
    fn silence(&self, job: &Job) -> Option<String> {
        let life = job.life()?;
        let silent: Vec<_> = life
            .placement
            .0
            .iter()
            .filter_map(|share| self.nodes.get(&share.node))
            .filter(|node| !node.is_up())
            .collect();
        let first = silent.first()?;
        let age = first.received.map_or_else(
            || "not heard from since the master started".to_owned(),
            |received| format!("silent for {} s", self.now.mono.since(received) / 1000),
        );
        let rule = job.spec().on_disconnect.name();
        let what = match first.reach {
            Reachability::Down => {
                format!("on_disconnect is {rule}; optimus node lost {} if it is dead", first.id())
            }
            Reachability::Up | Reachability::Suspect | Reachability::Gone => {
                first.reach.name().to_owned()
            }
        };
        Some(format!("{} is {age} ({what})", first.id()))
    }

    fn loss_note(&self, job: &Job) -> Option<String> {
        let since = job.progress().loss_not_finite_since?;
        job.life()?;
        Some(format!("loss not finite since step {since}"))
    }

    fn wish_note(&self, job: &Job) -> Option<String> {
        let words = match (job.record.wish?, job.phase()) {
            (Wish::Pause, Phase::Running { .. } | Phase::Starting { .. }) => "about to pause",
            (Wish::Cancel, Phase::Running { .. } | Phase::Starting { .. }) => {
                "about to be cancelled"
            }
            (Wish::Checkpoint | Wish::Pause | Wish::Cancel, _) => return None,
        };
        Some(words.to_owned())
    }

    pub(crate) fn why(&self, id: JobId) -> Option<WhyView> {
        let job = self.jobs.get(&id)?;
        let mut notes = Vec::new();
        if let Some(note) = &job.record.note {
            notes.push(note.clone());
        }
        if job.record.barred_rounds > 0 {
            let rounds = job.record.barred_rounds;
            notes.push(format!(
                "not asked to move for {rounds} more rounds, as a checkpoint failed"
            ));
        }
        if let (Phase::Running { .. }, Some(why)) = (job.phase(), self.over_budget(job)) {
            notes.push(format!("rounds leave it where it is: {why}"));
        }
        if let Some(shape) = job.wanted_shape() {
            let until = if job.record.pinned.is_some() { "until unpin" } else { "once" };
            notes.push(format!("an operator's shape: {shape}, {until}"));
        }
        notes.extend(self.silence(job));
        notes.extend(self.slow_words(job));
        notes.extend(job.slow.own.clone());
        let faults = job.record.faults.iter().rev().take(3);
        notes.extend(faults.map(|fault| format!("fault in {}: {}", fault.generation, fault.cause)));
        let mut view = WhyView {
            id,
            name: job.spec().name.clone(),
            phase: job.phase_name(),
            reason: self.reason(job),
            round: None,
            round_at: None,
            decision: "not evaluated yet".to_owned(),
            nodes_refused: Vec::new(),
            remedy: None,
            notes,
        };
        if let Some((round, at, entry)) = &job.decision {
            view.round = Some(*round);
            view.round_at = Some(*at);
            view.decision =
                format!("{} {} to {}: {}", entry.verb, entry.from, entry.to, entry.reason);
            if let Some(speed) = entry.predicted_steps_per_s {
                let _ = write!(view.decision, "; predicted {speed:.3} steps/s");
            }
            if let Some(left) = entry.remaining_s {
                let _ = write!(view.decision, ", {left:.0} s left");
            }
            view.nodes_refused.clone_from(&entry.nodes_refused);
            view.remedy.clone_from(&entry.remedy);
        }
        Some(view)
    }

    /// How a task is, for `show`.
    pub(crate) fn task_state(&self, job: &Job, task: Task) -> (String, Option<u32>) {
        let seen = job.live.as_ref().and_then(|live| live.tasks.get(&task));
        match seen {
            None => ("not reported yet".to_owned(), None),
            Some(model::agent::TaskState::Running { pid, ready }) => {
                let slow = job.live.as_ref().is_some_and(|live| {
                    task.role == model::Role::Worker && live.named.contains_key(&task.index)
                });
                let state = match (ready, slow) {
                    (_, true) => "running, slow",
                    (true, false) => "running",
                    (false, false) => "starting",
                };
                (state.to_owned(), Some(*pid))
            }
            Some(model::agent::TaskState::Exited(exit)) => {
                let how = match (exit.code, exit.signal) {
                    (Some(code), _) => format!("exited {code}"),
                    (None, Some(signal)) => format!("signal {signal}"),
                    (None, None) => "exited".to_owned(),
                };
                (how, None)
            }
        }
    }
}
