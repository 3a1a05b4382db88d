//! A checkpoint that came to nothing: training goes on, and whoever wanted it waits or goes
//! without.

use model::agent::says_storage_away;
use model::{CheckpointId, JobId};

use crate::job::Job;
use crate::job::epochs::ended;
use crate::job::phase::{Goal, JobEvent, Next, Phase};
use crate::job::rescale::RETRY_MS;
use crate::record::Wish;
use crate::step::Control;
use crate::timers::{JobTimer, Timer};

/// Start of the note that such a checkpoint leaves.
pub(crate) const FAILED_NOTE: &str = "checkpoint ";
/// Tries of the checkpoint that a job's end or pause waits for.
const TRIES_MAX: u32 = 3;
/// The same where storage is away: with the pauses in between about a day. What a job has learnt
/// is worth waiting for.
const AWAY_TRIES_MAX: u32 = 280;
/// The pause doubles with each try that finds storage away, this often: up to 320 s.
const AWAY_DOUBLINGS_MAX: u32 = 5;
/// Rounds for which a job whose checkpoint failed is not asked to move again.
const BARRED_ROUNDS: u32 = 3;

impl Control {
    pub(crate) fn save_failed_of(&mut self, id: JobId, checkpoint: CheckpointId, why: &str) {
        let Phase::Checkpointing { save, .. } = self.job(id).phase() else { return };
        if save.order.checkpoint == checkpoint {
            self.save_failed(id, why);
        }
    }

    /// No checkpoint: the generation trains on, and whoever wanted it waits or goes without.
    pub(crate) fn save_failed(&mut self, id: JobId, why: &str) {
        let now = self.now.mono;
        let grace_ms = self.settings.stop_grace_ms;
        let job = self.job_mut(id);
        let Phase::Checkpointing { life, save, goal } = &job.record.phase else { return };
        let (generation, checkpoint) = (life.generation, save.order.checkpoint);
        let goal = goal.clone();
        let continues = goal == Goal::Continue;
        let held = !save.reached.is_empty();
        if !continues {
            job.record.save_tries = job.record.save_tries.saturating_add(1);
        }
        let away = says_storage_away(why);
        let (go_without, what) = go_on(job, goal, away, why);
        let mut pause_ms = RETRY_MS;
        if let Some(live) = job.live.as_mut() {
            live.storage_away = if away { live.storage_away.saturating_add(1) } else { 0 };
            let doublings = live.storage_away.saturating_sub(1).min(AWAY_DOUBLINGS_MAX);
            pause_ms <<= doublings;
            live.save_not_before = now.plus(pause_ms);
            if held {
                // They waited as they were told.
                live.progress_at = now;
            }
        }
        let text = format!("{FAILED_NOTE}{checkpoint} failed: {why}; {what}");
        job.record.note = Some(text.clone());
        self.tell(Some(id), None, "checkpoint", text);
        if let Some(next) = go_without {
            self.job_mut(id).record.wish = None;
            self.stop(id, next, grace_ms);
        } else {
            self.transit(id, JobEvent::CheckpointOver { generation, checkpoint });
            let job = self.job(id);
            let again = job.record.wish.is_some() || ended(job).is_some();
            // An operator's shape may have been asked for while it was made.
            let unmet = continues && job.wanted_shape().is_some_and(|wanted| wanted != job.shape());
            let at = now.plus(pause_ms);
            if again {
                self.timers.set_earliest(Timer::Job(id, JobTimer::Periodic), at);
            }
            if away || unmet {
                self.timers.set(Timer::Job(id, JobTimer::Storage), at);
            }
        }
    }
}

/// What a job does without its checkpoint: what it becomes at once, and in words.
fn go_on(job: &mut Job, goal: Goal, away: bool, why: &str) -> (Option<Next>, &'static str) {
    let last_try = job.record.save_tries >= if away { AWAY_TRIES_MAX } else { TRIES_MAX };
    let mut go_without = None;
    let what = match goal {
        Goal::Leave(Next::Cancel { note }) => {
            go_without = Some(Next::Cancel { note: format!("{note}; no last checkpoint: {why}") });
            "cancelled without it"
        }
        Goal::Leave(Next::Complete { note }) if last_try => {
            let note = format!("{note}; no last checkpoint: {why}");
            go_without = Some(Next::Complete { note });
            "ends without it"
        }
        Goal::Leave(Next::Pause) if job.record.save_tries >= TRIES_MAX => {
            job.record.wish = None;
            job.record.save_tries = 0;
            "the pause is given up; ask again once the cause is mended"
        }
        Goal::Leave(Next::Complete { .. } | Next::Pause) => "tried again soon",
        Goal::Leave(
            Next::Start(_) | Next::Queue { .. } | Next::BackOff { .. } | Next::Fail { .. },
        ) if away => "keeps its shape until storage is back",
        Goal::Leave(
            Next::Start(_) | Next::Queue { .. } | Next::BackOff { .. } | Next::Fail { .. },
        ) => {
            job.record.barred_rounds = BARRED_ROUNDS;
            "keeps its shape for some rounds"
        }
        Goal::Continue => {
            if job.record.wish == Some(Wish::Checkpoint) {
                job.record.wish = None;
            }
            "tried again later"
        }
    };
    (go_without, what)
}
