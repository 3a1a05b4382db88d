//! Moving on: what a job does next when nothing stands in its way, and what its timers say.

use model::reason::Reachability;
use model::{JobId, Millis, Mode, NodeShare};

use crate::job::epochs::{ended, ended_on_disk};
use crate::job::phase::{Goal, JobEvent, Move, Next, Phase, Wait};
use crate::job::{HISTORY_MAX, push_bounded};
use crate::record::Wish;
use crate::step::Control;
use crate::timers::{JobTimer, Timer};

/// What an agent is given to prepare for a job: an import of a second, on a busy node.
const WARM_MS: u64 = 3000;

/// A running generation's reserved place that is not free by then is given back.
fn room_timeout_ms(settings: &crate::settings::Settings) -> u64 {
    settings.checkpoint_timeout_ms.saturating_mul(2).saturating_add(settings.stop_grace_ms)
}

impl Control {
    /// Lets a job go on if it can.
    pub(crate) fn advance(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        match job.phase() {
            Phase::Queued { wait, .. } => {
                if let Some(next) = job.wished() {
                    self.end_waiting(id, next);
                } else if let Some(note) = ended_on_disk(job) {
                    self.transit(id, JobEvent::End { next: Next::Complete { note } });
                } else if let Wait::Room(_) = wait {
                    self.try_start(id);
                }
            }
            Phase::Paused { .. } => {
                if job.record.wish == Some(Wish::Cancel) {
                    let next = Next::Cancel { note: "cancelled".to_owned() };
                    self.transit(id, JobEvent::End { next });
                }
            }
            Phase::Starting { .. } => {
                if let Some(next) = job.wished() {
                    // Nothing was trained since the checkpoint that it starts from.
                    self.stop(id, next, self.settings.stop_grace_ms);
                }
            }
            Phase::Running { .. } => self.advance_running(id),
            Phase::Stopping { .. } => self.fence_silent(id),
            Phase::Checkpointing { .. }
            | Phase::Completed { .. }
            | Phase::Failed { .. }
            | Phase::Cancelled { .. } => {}
        }
    }

    fn end_waiting(&mut self, id: JobId, next: Next) {
        self.job_mut(id).record.wish = None;
        match next {
            Next::Pause => self.transit(id, JobEvent::Pause),
            Next::Start(_)
            | Next::Queue { .. }
            | Next::BackOff { .. }
            | Next::Complete { .. }
            | Next::Fail { .. }
            | Next::Cancel { .. } => self.transit(id, JobEvent::End { next }),
        };
    }

    /// An end comes before a wish, except that a cancel is not turned into a success; a wish
    /// before a better place.
    fn advance_running(&mut self, id: JobId) {
        let job = self.job(id);
        let now = self.now.mono;
        let wish = job.record.wish;
        let early = job.live.as_ref().is_some_and(|live| now < live.save_not_before);
        // Until every worker was heard, as after a start of the master, no step can be named; a
        // cancel does not wait for that.
        let unheard = job.live.as_ref().is_none_or(|live| !live.based);
        let too_early = early || (unheard && wish != Some(Wish::Cancel));
        let pending = matches!(job.phase(), Phase::Running { pending: Some(_), .. });
        let goal = match (wish, ended(job)) {
            (Some(Wish::Cancel), _) => {
                Some(Goal::Leave(Next::Cancel { note: "cancelled".to_owned() }))
            }
            (_, Some(note)) => Some(Goal::Leave(Next::Complete { note })),
            (Some(Wish::Pause), None) => Some(Goal::Leave(Next::Pause)),
            (Some(Wish::Checkpoint), None) => Some(Goal::Continue),
            (None, None) => None,
        };
        match goal {
            Some(goal) if !too_early => self.begin_save(id, goal),
            Some(_) => {}
            None if pending => self.try_move(id),
            None => {}
        }
    }

    /// Begins a move whose room is free, or which alone can break a circle of moves that wait
    /// for each other.
    fn try_move(&mut self, id: JobId) {
        let Phase::Running { pending: Some(place), .. } = self.job(id).phase() else { return };
        let place = place.clone();
        let missing = place.placement.0.iter().find_map(|share| self.takes_nothing(&share.node));
        if let Some(missing) = missing {
            self.lose_place(id, format!("its place was lost: {missing}"));
            return;
        }
        if let Some(at) = self.ready_at(id, &place) {
            // Whatever it finds then, it lets the job go on.
            self.timers.set_earliest(Timer::Job(id, JobTimer::Periodic), at);
            return;
        }
        if self.fits_now(id, &place.placement).is_ok() || self.is_circle_breaker(id) {
            self.begin_save(id, Goal::Leave(Next::Start(place)));
        }
    }

    /// When the nodes of a place will have prepared for a job that is new to one of them; none
    /// where nothing is to be waited for. Asynchronous workers stop as soon as they are asked to;
    /// for synchronous ones a step is named that lies as far ahead.
    fn ready_at(&self, id: JobId, place: &Move) -> Option<Millis> {
        let job = self.job(id);
        let held = job.placement();
        let is_new = |share: &NodeShare| held.0.iter().all(|other| other.node != share.node);
        let at = job.promised?.plus(WARM_MS);
        let waits = job.spec().mode == Mode::Async && place.placement.0.iter().any(is_new);
        (waits && self.now.mono < at).then_some(at)
    }

    /// Nobody is leaving a place, so nothing will become free by itself: the first of those that
    /// wait leaves its own.
    fn is_circle_breaker(&self, id: JobId) -> bool {
        let in_motion = |job: &JobId| match self.job(*job).phase() {
            Phase::Stopping { .. } | Phase::Checkpointing { goal: Goal::Leave(_), .. } => true,
            Phase::Queued { .. }
            | Phase::Starting { .. }
            | Phase::Running { .. }
            | Phase::Checkpointing { .. }
            | Phase::Paused { .. }
            | Phase::Completed { .. }
            | Phase::Failed { .. }
            | Phase::Cancelled { .. } => false,
        };
        let first = self
            .reserved
            .iter()
            .find(|other| matches!(self.job(**other).phase(), Phase::Running { .. }));
        first == Some(&id) && !self.unfinished.iter().any(in_motion)
    }

    /// A place that a round gave: taken at once where it is free, else reserved.
    pub(crate) fn give_place(&mut self, id: JobId, place: Move) {
        if !self.transit(id, JobEvent::Reserved { place }) {
            return;
        }
        let at = self.now.mono.plus(room_timeout_ms(&self.settings));
        self.timers.set(Timer::Job(id, JobTimer::Room), at);
    }

    pub(crate) fn stop(&mut self, id: JobId, next: Next, grace_ms: u64) {
        let Some(life) = self.job(id).life() else { return };
        let generation = life.generation;
        // What was reported up to here counts as reached.
        self.look(id);
        self.transit(id, JobEvent::Stop { generation, next, grace_ms });
    }

    /// Writes down a move at the moment that its checkpoint is safe.
    pub(crate) fn note_move(&mut self, id: JobId, place: &Move) {
        let (unix, now) = (self.now.unix, self.now.mono);
        let job = self.job_mut(id);
        job.pauses.published(now);
        let from = job.shape();
        let loss = job.live.as_ref().and_then(|live| live.loss(|report| report.recent));
        let decision = model::view::DecisionView {
            at: unix,
            round: place.round,
            from,
            to: place.placement.shape(),
            reason: place.reason.clone(),
            predicted_before: place.predicted.before,
            predicted_after: place.predicted.after,
            predicted_gain_s: place.predicted.gain_s,
            cost_s: None,
            measured_after: None,
            loss_before: loss.map(|(mean, _)| mean),
            loss_before_deviation: loss.map(|(_, deviation)| deviation),
            loss_after: None,
            while_running: true,
            profiling: place.profiling,
        };
        push_bounded(&mut job.record.decisions, decision, HISTORY_MAX);
    }

    /// Sets the deadlines of a phase that was just entered.
    pub(crate) fn arm_phase_timers(&mut self, id: JobId) {
        self.timers.cancel_job(id);
        let now = self.now.mono;
        let settings = &self.settings;
        let job = self.job(id);
        let deadlines: Vec<(JobTimer, u64)> = match job.phase() {
            Phase::Queued { wait: Wait::BackOff { ms, .. }, .. } => vec![(JobTimer::BackOff, *ms)],
            Phase::Queued { wait: Wait::Room(_), .. } => {
                vec![(JobTimer::Room, room_timeout_ms(settings))]
            }
            Phase::Starting { .. } => vec![(JobTimer::Start, settings.start_timeout_ms)],
            Phase::Running { .. } => vec![
                // From the last step, not from now: checkpoints that a hung job cannot make
                // must not hide that it hangs.
                (
                    JobTimer::Stall,
                    job.live.as_ref().map_or(settings.stall_ms, |live| {
                        settings.stall_ms.saturating_sub(now.since(live.progress_at))
                    }),
                ),
                (JobTimer::Periodic, u64::from(job.spec().checkpoint_interval_s) * 1000),
            ],
            Phase::Stopping { grace_ms, .. } => {
                vec![(JobTimer::Stop, grace_ms.saturating_add(STOP_SLACK_MS))]
            }
            // Its deadline depends on the step that was named.
            Phase::Checkpointing { .. }
            | Phase::Queued { .. }
            | Phase::Paused { .. }
            | Phase::Completed { .. }
            | Phase::Failed { .. }
            | Phase::Cancelled { .. } => Vec::new(),
        };
        for (timer, ms) in deadlines {
            self.timers.set(Timer::Job(id, timer), now.plus(ms));
        }
    }

    pub(crate) fn on_job_timer(&mut self, id: JobId, timer: JobTimer) {
        let Some(job) = self.jobs.get(&id) else { return };
        match timer {
            JobTimer::Look => {
                self.look(id);
                self.watch_loss(id);
            }
            JobTimer::Storage => self.ask_round("storage may be back"),
            JobTimer::Start => self.on_start_late(id),
            JobTimer::Stall => self.on_stall_due(id),
            JobTimer::Checkpoint => self.on_save_late(id),
            JobTimer::Periodic => self.on_periodic_due(id),
            JobTimer::BackOff => {
                self.transit(id, JobEvent::BackOffOver);
                self.ask_round("a back-off is over");
            }
            JobTimer::Stop => self.on_stop_late(id),
            JobTimer::Room => {
                if job.phase().reserved().is_some() {
                    let reason = "its place did not become free in time".to_owned();
                    self.lose_place(id, reason);
                }
            }
        }
    }

    /// True where every node of the job's generation answers.
    pub(crate) fn nodes_answer(&self, id: JobId) -> bool {
        self.job(id).life().is_some_and(|life| {
            life.placement.0.iter().all(|share| {
                self.nodes.get(&share.node).is_some_and(|node| node.reach == Reachability::Up)
            })
        })
    }

    fn on_periodic_due(&mut self, id: JobId) {
        let job = self.job(id);
        let now = self.now.mono;
        let early = job.live.as_ref().is_none_or(|live| now < live.save_not_before);
        // A checkpoint that an operator's wish or the job's end waits for comes first.
        let awaited = job.record.wish.is_some() || ended(job).is_some();
        let quiet = matches!(job.phase(), Phase::Running { pending: None, .. }) && !awaited;
        let interval_ms = u64::from(job.spec().checkpoint_interval_s) * 1000;
        if quiet && !early && self.nodes_answer(id) {
            self.begin_save(id, Goal::Continue);
        } else {
            let at = now.plus(interval_ms.min(RETRY_MS));
            self.timers.set(Timer::Job(id, JobTimer::Periodic), at);
            self.out.settle.insert(id);
        }
    }
}

/// After the grace, the agent's KILL and its reports; past this something is stuck.
const STOP_SLACK_MS: u64 = 30_000;
/// A periodic checkpoint that could not begin is tried again.
pub(crate) const RETRY_MS: u64 = 10_000;
