//! Operators' changes. Each is checked whole before anything is touched, so that a dry run is
//! the same path without its last step.

use model::access::Rank;
use model::client::{Answer, Change, ErrorKind, Refusal, Reply};
use model::diverged::OnNan;
use model::{Bounds, JobId, JobOptions, NodeId, Shape};

use crate::command::Command;
use crate::event::RequestKey;
use crate::job::Job;
use crate::job::phase::{Goal, JobEvent, Next, Phase};
use crate::record::Wish;
use crate::step::Control;

/// Who asks for a change, and how.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) request: RequestKey,
    pub(crate) user: String,
    pub(crate) rank: Rank,
    pub(crate) dry_run: bool,
    pub(crate) reason: Option<String>,
}

/// An operator's shape on trial.
#[derive(Clone, Debug)]
pub(crate) struct Resize {
    pub(crate) asked: Asked,
    pub(crate) job: JobId,
    pub(crate) shape: Shape,
    pub(crate) pin: bool,
}

/// Shapes on trial at once.
const RESIZES_MAX: usize = 64;
pub(crate) const DRY_RUN: &str = "dry run: nothing was changed";

pub(crate) fn conflict(message: String, hint: &str) -> Refusal {
    Refusal::new(ErrorKind::Conflict, message, hint)
}

impl Control {
    pub(crate) fn on_change(&mut self, asked: Asked, change: Change) {
        let request = asked.request;
        let reply = match change {
            Change::Submit { spec, request_id } => {
                self.submit(&asked, (spec, JobOptions::default(), OnNan::Alert), request_id)
            }
            Change::SubmitWith { spec, request_id, options } => {
                self.submit(&asked, (spec, options, OnNan::Alert), request_id)
            }
            Change::SubmitWatched { spec, request_id, options, on_nan } => {
                self.submit(&asked, (spec, options, on_nan), request_id)
            }
            Change::Cancel { job, now } => self.cancel(&asked, job, now),
            Change::Pause { job } => self.pause(&asked, job),
            Change::Resume { job } => self.resume(&asked, job),
            Change::Checkpoint { job } => self.checkpoint(&asked, job),
            Change::Unpin { job } => self.unpin(&asked, job),
            Change::Update { job, workers, servers, priority } => {
                self.update(&asked, job, workers, servers, priority)
            }
            Change::NodeLost { node } => self.node_lost(&asked, &node),
            Change::Gpu { node, uuid, retire } => self.change_gpu(&asked, &node, &uuid, retire),
            Change::NodeCordon { node } => self.node_cordon(&asked, &node),
            Change::NodeDrain { node, deadline_ms } => self.node_drain(&asked, &node, deadline_ms),
            Change::NodeUndrain { node } => self.node_undrain(&asked, &node),
            Change::Resize { job, shape, pin } => {
                match self.resize(Resize { asked, job, shape, pin }) {
                    Some(reply) => reply,
                    // Answered once the shape was tried.
                    None => return,
                }
            }
        };
        self.reply(request, reply);
    }

    pub(crate) fn reply(&mut self, request: RequestKey, reply: Reply) {
        self.out.commands.push(Command::Reply { request, reply: Box::new(reply) });
    }

    /// The line that every change leaves.
    pub(crate) fn told(
        &mut self,
        asked: &Asked,
        job: Option<JobId>,
        node: Option<&NodeId>,
        what: &str,
    ) {
        let reason = asked.reason.as_deref().map(|reason| {
            let reason: String = reason.chars().take(500).collect();
            format!(": {reason}")
        });
        let text = format!("{} {what}{}", asked.user, reason.unwrap_or_default());
        self.tell(job, node, "change", text);
    }

    fn done(&self, asked: &Asked, job: JobId, note: &str) -> Reply {
        let note = if asked.dry_run { DRY_RUN } else { note };
        Ok(Answer::Accepted { job: Some(job), node: None, note: note.to_owned() })
    }

    /// A job that an operator named.
    pub(crate) fn asked_job(&self, id: JobId) -> Result<&Job, Refusal> {
        self.jobs.get(&id).ok_or_else(|| {
            Refusal::new(ErrorKind::NotFound, format!("no job {id}"), "see optimus ps for the jobs")
        })
    }

    /// A job that has not ended.
    fn live_job(&self, id: JobId, verb: &str) -> Result<&Job, Refusal> {
        let job = self.asked_job(id)?;
        if job.phase().is_final() {
            let phase = job.phase_name().name();
            return Err(conflict(
                format!("cannot {verb} {id}: it is {phase}"),
                "submit it again for another run",
            ));
        }
        Ok(job)
    }

    fn cancel(&mut self, asked: &Asked, id: JobId, now: bool) -> Reply {
        self.live_job(id, "cancel")?;
        if asked.dry_run {
            return self.done(asked, id, "");
        }
        self.told(asked, Some(id), None, if now { "cancelled now" } else { "cancelled" });
        if now {
            self.cancel_now(id);
            return self.done(asked, id, "its processes are being killed");
        }
        let job = self.job_mut(id);
        job.record.wish = Some(Wish::Cancel);
        // Whatever it was about to become, it is to end.
        let grace_ms = self.settings.stop_grace_ms;
        let next = Next::Cancel { note: "cancelled".to_owned() };
        let phase = &mut self.job_mut(id).record.phase;
        if let Phase::Checkpointing { goal: goal @ Goal::Leave(_), .. } = phase {
            *goal = Goal::Leave(next);
        } else if let Phase::Stopping { .. } = phase {
            self.stop(id, next, grace_ms);
        }
        self.cancel_unheard(id);
        self.promise(id);
        self.touch(id);
        self.out.settle.insert(id);
        self.done(asked, id, "cancelled after a last checkpoint; add --now not to wait for it")
    }

    fn pause(&mut self, asked: &Asked, id: JobId) -> Reply {
        let job = self.live_job(id, "pause")?;
        if let Phase::Paused { .. } = job.phase() {
            return self.done(asked, id, "it is PAUSED already");
        }
        if job.record.wish == Some(Wish::Cancel) {
            return Err(conflict(format!("{id} is being cancelled"), "submit it again instead"));
        }
        if let Phase::Stopping { next, .. } = job.phase()
            && next.is_final()
        {
            return Err(conflict(format!("{id} is ending"), "there is nothing left to pause"));
        }
        if asked.dry_run {
            return self.done(asked, id, "");
        }
        self.told(asked, Some(id), None, "paused");
        let grace_ms = self.settings.stop_grace_ms;
        let job = self.job_mut(id);
        job.record.wish = Some(Wish::Pause);
        job.record.save_tries = 0;
        if let Phase::Stopping { .. } = job.phase() {
            job.record.wish = None;
            self.stop(id, Next::Pause, grace_ms);
        }
        self.touch(id);
        self.out.settle.insert(id);
        self.done(asked, id, "PAUSED once its checkpoint is safe and its processes are out")
    }

    fn resume(&mut self, asked: &Asked, id: JobId) -> Reply {
        let job = self.live_job(id, "resume")?;
        let Phase::Paused { .. } = job.phase() else {
            let phase = job.phase_name().name();
            let hint = if job.record.wish == Some(Wish::Pause) {
                "wait until it is PAUSED"
            } else {
                "only a PAUSED job can be resumed"
            };
            return Err(conflict(format!("cannot resume {id}: it is {phase}"), hint));
        };
        if asked.dry_run {
            return self.done(asked, id, "");
        }
        self.told(asked, Some(id), None, "resumed");
        let job = self.job_mut(id);
        // The time in between was the operator's, not a fault's.
        job.gap_since = None;
        // A pause that was given while the job started is still wished for.
        if job.record.wish == Some(Wish::Pause) {
            job.record.wish = None;
        }
        self.transit(id, JobEvent::Resume);
        self.ask_round("a job was resumed");
        self.done(asked, id, "QUEUED; the next round places it")
    }

    fn checkpoint(&mut self, asked: &Asked, id: JobId) -> Reply {
        let job = self.live_job(id, "checkpoint")?;
        let already = || conflict(format!("{id} makes a checkpoint already"), "wait for it");
        match job.phase() {
            Phase::Running { .. } if job.record.wish.is_none() => {}
            // Shown as RUNNING, which it is told to wait for otherwise.
            Phase::Running { .. } | Phase::Checkpointing { goal: Goal::Continue, .. } => {
                return Err(already());
            }
            Phase::Queued { .. }
            | Phase::Starting { .. }
            | Phase::Checkpointing { .. }
            | Phase::Stopping { .. }
            | Phase::Paused { .. }
            | Phase::Completed { .. }
            | Phase::Failed { .. }
            | Phase::Cancelled { .. } => {
                let phase = job.phase_name().name();
                return Err(conflict(
                    format!("cannot checkpoint {id}: it is {phase}, and trains not at this moment"),
                    "try again once it is RUNNING",
                ));
            }
        }
        if asked.dry_run {
            return self.done(asked, id, "");
        }
        self.told(asked, Some(id), None, "asked for a checkpoint");
        let job = self.job_mut(id);
        job.record.wish = Some(Wish::Checkpoint);
        if let Some(live) = job.live.as_mut() {
            live.save_not_before = model::Millis::default();
        }
        self.touch(id);
        self.out.settle.insert(id);
        self.done(asked, id, "ordered")
    }

    fn unpin(&mut self, asked: &Asked, id: JobId) -> Reply {
        let job = self.live_job(id, "unpin")?;
        if job.wanted_shape().is_none() {
            return self.done(asked, id, "it was not pinned");
        }
        if asked.dry_run {
            return self.done(asked, id, "");
        }
        self.told(asked, Some(id), None, "unpinned");
        let job = self.job_mut(id);
        (job.record.pinned, job.record.once) = (None, None);
        self.touch(id);
        self.ask_round("a job was unpinned");
        self.done(asked, id, "the policy shares it out again")
    }

    fn update(
        &mut self,
        asked: &Asked,
        id: JobId,
        workers: Option<Bounds>,
        servers: Option<Bounds>,
        priority: Option<f64>,
    ) -> Reply {
        let job = self.live_job(id, "update")?;
        let mut spec = job.spec().clone();
        spec.workers = workers.unwrap_or(spec.workers);
        spec.servers = servers.unwrap_or(spec.servers);
        spec.priority = priority.unwrap_or(spec.priority);
        let faults = spec.faults();
        if !faults.is_empty() {
            let mut refusal = Refusal::new(
                ErrorKind::Invalid,
                format!("the update would give {id} {} faults", faults.len()),
                "correct each field as it says",
            );
            refusal.faults = faults;
            return Err(refusal);
        }
        if asked.dry_run {
            return self.done(asked, id, "");
        }
        let what = format!(
            "updated {id}: workers {}-{}, servers {}-{}, priority {}",
            spec.workers.min, spec.workers.max, spec.servers.min, spec.servers.max, spec.priority
        );
        self.told(asked, Some(id), None, &what);
        self.job_mut(id).record.spec = spec;
        self.touch(id);
        self.ask_round("a job was updated");
        self.done(asked, id, "the next round goes by it")
    }

    /// Checks an operator's shape and puts it on trial: none where the answer comes later.
    fn resize(&mut self, resize: Resize) -> Option<Reply> {
        let Resize { asked, job: id, shape, pin } = &resize;
        let (id, shape, pin) = (*id, *shape, *pin);
        let job = match self.live_job(id, "resize") {
            Ok(job) => job,
            Err(refusal) => return Some(Err(refusal)),
        };
        if !job.spec().accepts(shape) {
            let (w, p) = (job.spec().workers, job.spec().servers);
            return Some(Err(Refusal::new(
                ErrorKind::Invalid,
                format!(
                    "{shape} is not within {id}'s bounds: servers {} to {}, workers {} to {}",
                    p.min, p.max, w.min, w.max
                ),
                "give a shape within them, or change them with optimus update",
            )));
        }
        let leaves = matches!(job.phase(), Phase::Paused { .. })
            || matches!(job.record.wish, Some(Wish::Pause | Wish::Cancel));
        if leaves {
            let phase = job.phase_name().name();
            return Some(Err(conflict(
                format!("cannot resize {id}: it is {phase}, or about to leave its place"),
                "resume it first",
            )));
        }
        if job.shape() == shape && job.phase().reserved().is_none() {
            if !asked.dry_run {
                let asked = asked.clone();
                let job = self.job_mut(id);
                job.record.pinned = if pin { Some(shape) } else { job.record.pinned };
                self.touch(id);
                self.told(&asked, Some(id), None, &format!("resized to {shape}, as it is"));
            }
            return Some(self.done(&resize.asked, id, "it has that shape already"));
        }
        if self.rounding.resizes.len() >= RESIZES_MAX {
            return Some(Err(Refusal::new(
                ErrorKind::Unavailable,
                "too many shapes are on trial",
                "try again in a minute",
            )));
        }
        self.rounding.resizes.push_back(resize);
        self.schedule_round();
        None
    }

    /// The trial is over. A shape without `--pin` is applied once; from then on the policy's own
    /// hysteresis and spacing guard it like any other change.
    pub(crate) fn answer_resize(&mut self, resize: Resize, verdict: Result<(), String>) {
        let Resize { asked, job: id, shape, pin } = resize;
        let reply = match verdict {
            Err(words) => Err(Refusal::new(
                ErrorKind::CannotPlace,
                format!("cannot place {id} as {shape}: {words}"),
                "free resources, or ask for a smaller shape",
            )),
            Ok(()) if asked.dry_run => self.done(&asked, id, ""),
            Ok(()) => {
                let verb = if pin { "pinned to" } else { "resized to" };
                self.told(&asked, Some(id), None, &format!("{verb} {shape}"));
                let job = self.job_mut(id);
                if pin {
                    (job.record.pinned, job.record.once) = (Some(shape), None);
                } else {
                    job.record.once = Some(shape);
                    job.record.pinned = None;
                }
                job.record.barred_rounds = 0;
                self.touch(id);
                self.ask_round("an operator's shape");
                self.done(&asked, id, "the next round moves it")
            }
        };
        self.reply(asked.request, reply);
    }
}
