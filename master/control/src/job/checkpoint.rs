//! Checkpoints: the order, the reports that answer it, and what becomes of the result.

use model::agent::{CheckpointOrder, CheckpointReport, CheckpointState, Part};
use model::{CheckpointId, Generation, JobId, Mode, NodeId, Task};

use crate::command::{Command, Publish};
use crate::event::Published;
use crate::job::epochs::ended;
use crate::job::phase::{Goal, JobEvent, Life, Next, Partial, Phase, Reached, Save, Saved};
use crate::job::progress::{step_ahead, work_at};
use crate::job::save_failed::FAILED_NOTE;
use crate::job::{Job, float};
use crate::record::{CheckpointRecord, Wish};
use crate::step::Control;
use crate::timers::{JobTimer, Timer};

/// Least time between the order and the step that it names, beside the reports' own age.
const AHEAD_S: f64 = 3.0;
/// A step that is missed so often is never met.
const RENAMES_MAX: u32 = 6;
const PARTS_MAX: usize = 16_384;
const LITTER_MAX: usize = 32;

/// A fresh folder for each checkpoint: what another writer may still hold is never written again.
fn directory(job: &Job, generation: Generation, checkpoint: CheckpointId) -> String {
    let base = job.spec().checkpoint.trim_end_matches('/');
    format!("{base}/{}/g{:08}-c{:08}", job.id(), generation.0, checkpoint.0)
}

fn plain_parts(parts: &[Part]) -> bool {
    let plain = |name: &str| {
        (1..=255).contains(&name.len())
            && name != "."
            && name != ".."
            && !name.contains(['/', '\\', '\0'])
    };
    !parts.is_empty() && parts.len() <= PARTS_MAX && parts.iter().all(|part| plain(&part.file))
}

impl Control {
    /// Orders a checkpoint of a running generation.
    pub(crate) fn begin_save(&mut self, id: JobId, goal: Goal) {
        let job = self.job_mut(id);
        let Phase::Running { life, .. } = &job.record.phase else { return };
        let generation = life.generation;
        let checkpoint = job.record.checkpoint_next;
        let directory = directory(job, generation, checkpoint);
        job.record.checkpoint_next = checkpoint.next();
        job.record.litter.push(directory.clone());
        let surplus = job.record.litter.len().saturating_sub(LITTER_MAX);
        // Of checkpoints that failed long ago: nobody writes there any more.
        let old: Vec<String> = job.record.litter.drain(..surplus).collect();
        for directory in old {
            let command = Command::RemoveCheckpoint { job: id, manifest_url: None, directory };
            self.out.commands.push(command);
        }
        let at_step = self.step_to_name(id, 0, 0);
        let order = CheckpointOrder {
            checkpoint,
            at_step,
            directory,
            hold: matches!(goal, Goal::Leave(_)),
            released: false,
        };
        if let Goal::Leave(_) = goal {
            self.tell(Some(id), None, "checkpoint", format!("{checkpoint} ordered, then stop"));
        }
        self.note_pausing(id, &goal);
        let save = Save {
            order,
            reached: std::collections::BTreeMap::new(),
            saved: None,
            renamed: 0,
            publishing: false,
        };
        self.transit(id, JobEvent::CheckpointOrdered { generation, save, goal });
        self.arm_save_deadline(id);
    }

    /// Sync: a step that every worker can still stop at. Async: none.
    fn step_to_name(&self, id: JobId, at_least: u64, misses: u32) -> Option<u64> {
        let job = self.job(id);
        if job.spec().mode == Mode::Async {
            return None;
        }
        let live = job.live.as_ref()?;
        let beat_ms = job.life().map_or(0, |life| {
            let beats = life.placement.0.iter().filter_map(|share| self.nodes.get(&share.node));
            beats.map(|node| node.record.beat_ms).max().unwrap_or(0)
        });
        let ahead_s = AHEAD_S + model::time::seconds(beat_ms.min(10_000));
        let newest = live.step(Mode::Sync).max(job.progress().step).max(at_least);
        Some(step_ahead(newest, self.speed_now(job), ahead_s, misses))
    }

    /// Steps a second as measured, else as predicted, else unknown as 0.
    pub(crate) fn speed_now(&self, job: &Job) -> f64 {
        let live = job.live.as_ref();
        let measured = live.and_then(|live| {
            live.recent_steps_per_s.or_else(|| live.measured.map(|(speed, _)| speed))
        });
        let predicted = || self.speed_model(job).map(|model| model.steps_per_s(job.shape()));
        measured.or_else(predicted).unwrap_or(0.0)
    }

    fn arm_save_deadline(&mut self, id: JobId) {
        let job = self.job(id);
        let Phase::Checkpointing { save, .. } = job.phase() else { return };
        let timeout_ms = self.settings.checkpoint_timeout_ms;
        let newest = job.live.as_ref().map_or(0, |live| live.step(Mode::Sync));
        let ahead = save.order.at_step.map_or(0, |at| at.saturating_sub(newest));
        let speed = self.speed_now(job);
        // The way to the step is training, not saving.
        let way_ms = if speed > 0.0 { float(ahead) / speed * 1000.0 } else { 0.0 };
        let way_ms = crate::job::whole(way_ms).min(timeout_ms.saturating_mul(10));
        let at = self.now.mono.plus(timeout_ms.saturating_add(way_ms));
        self.timers.set(Timer::Job(id, JobTimer::Checkpoint), at);
    }

    pub(crate) fn on_checkpoint_report(&mut self, node: &NodeId, report: CheckpointReport) {
        let CheckpointReport { job: id, generation, checkpoint, worker, state } = report;
        let Some(job) = self.jobs.get(&id) else {
            self.count("checkpoint report of an unknown job");
            return;
        };
        let known = job.life().is_some_and(|life| {
            life.generation == generation
                && life.placement.node_of(Task::worker(worker)) == Some(node)
        });
        if !known {
            self.count("checkpoint report of another generation");
            return;
        }
        let Phase::Checkpointing { save, .. } = job.phase() else { return };
        if save.order.checkpoint != checkpoint || save.publishing {
            // Sent again until released: nothing new.
            return;
        }
        let at_step = save.order.at_step;
        let finished = job
            .live
            .as_ref()
            .and_then(|live| live.workers.get(&worker))
            .is_some_and(|worker| worker.report.finished);
        let here = |step: u64| at_step.is_none_or(|at| step == at) || finished;
        match state {
            CheckpointState::Reached { step, epoch, loss_sum, samples } if here(step) => {
                let fit = loss_sum.is_finite() && samples < 1 << 50;
                let (loss_sum, samples) = if fit { (loss_sum, samples) } else { (0.0, 0) };
                let reached = Reached { step, epoch, loss_sum, samples };
                self.on_reached(id, worker, reached);
            }
            CheckpointState::Saved { step, epoch, epoch_position, parts } if here(step) => {
                if !plain_parts(&parts) {
                    self.count("checkpoint with impossible parts");
                    self.save_failed(id, "its parts are not plain files");
                    return;
                }
                let saved = Saved { step, epoch, epoch_position, parts };
                let now = self.now.mono;
                let job = self.job_mut(id);
                job.pauses.saved(now);
                if let Phase::Checkpointing { save, .. } = &mut job.record.phase {
                    save.saved = Some(saved);
                }
                self.publish_if_whole(id);
            }
            CheckpointState::Missed { step } if at_step.is_some_and(|at| step >= at) => {
                self.on_missed(id, step);
            }
            CheckpointState::Failed { error } => {
                let words: String = error.chars().take(500).collect();
                self.save_failed(id, &format!("worker{worker} on {node}: {words}"));
            }
            // Of a step that was named before the present one.
            CheckpointState::Reached { .. }
            | CheckpointState::Saved { .. }
            | CheckpointState::Missed { .. } => {}
        }
    }

    fn on_reached(&mut self, id: JobId, worker: u32, reached: Reached) {
        let now = self.now.mono;
        let job = self.job_mut(id);
        let Phase::Checkpointing { save, .. } = &mut job.record.phase else { return };
        if save.reached.insert(worker, reached).is_none()
            && let Some(live) = job.live.as_mut()
        {
            live.last_step_at = Some(now);
            live.progress_at = now;
        }
        self.publish_if_whole(id);
    }

    /// A worker had passed the step already: a later one is named under the same id.
    fn on_missed(&mut self, id: JobId, step: u64) {
        let Phase::Checkpointing { save, .. } = self.job(id).phase() else { return };
        let renamed = save.renamed + 1;
        if renamed > RENAMES_MAX {
            self.save_failed(id, &format!("its step was missed {renamed} times"));
            return;
        }
        let at_step = self.step_to_name(id, step, renamed);
        if let Phase::Checkpointing { save, .. } = &mut self.job_mut(id).record.phase {
            save.renamed = renamed;
            save.order.at_step = at_step;
            save.reached.clear();
            save.saved = None;
        }
        self.mark_desired(id);
        self.arm_save_deadline(id);
    }

    /// Every worker stands at the step and the parts are on disk: the manifest is written.
    fn publish_if_whole(&mut self, id: JobId) {
        let unix = self.now.unix;
        let job = self.job(id);
        let Phase::Checkpointing { life, save, .. } = job.phase() else { return };
        let Some(saved) = save.saved.clone() else { return };
        if save.publishing || u32::try_from(save.reached.len()) != Ok(life.shape().workers) {
            return;
        }
        let step = match job.spec().mode {
            Mode::Sync => saved.step,
            // Each worker counts its own.
            Mode::Async => save.reached.values().fold(0, |sum: u64, r| sum.saturating_add(r.step)),
        };
        let record = CheckpointRecord {
            id: save.order.checkpoint,
            generation: life.generation,
            step,
            work: work_at(job, life, step),
            epoch: saved.epoch,
            bytes: 0,
            at: unix,
            directory: save.order.directory.clone(),
            manifest_url: String::new(),
            partial: partial(life, save, saved.epoch),
        };
        let publish = Publish {
            job: id,
            generation: life.generation,
            checkpoint: record.id,
            base: job.spec().checkpoint.clone(),
            directory: record.directory.clone(),
            step,
            epoch: saved.epoch,
            epoch_position: saved.epoch_position,
            parts: saved.parts,
        };
        let job = self.job_mut(id);
        job.publishing = Some(record);
        if let Phase::Checkpointing { save, .. } = &mut job.record.phase {
            save.publishing = true;
        }
        self.out.commands.push(Command::Publish(Box::new(publish)));
    }

    pub(crate) fn on_published(
        &mut self,
        id: JobId,
        generation: Generation,
        checkpoint: CheckpointId,
        outcome: Result<Published, String>,
    ) {
        let keep = self.settings.checkpoints_kept;
        let Some(job) = self.jobs.get_mut(&id) else {
            self.count("published checkpoint of an unknown job");
            return;
        };
        let ours = job
            .publishing
            .take_if(|record| record.id == checkpoint && record.generation == generation);
        let Some(mut record) = ours else {
            self.count("published checkpoint that nobody waits for");
            return;
        };
        let published = match outcome {
            Ok(published) => published,
            Err(error) => {
                let words: String = error.chars().take(500).collect();
                self.save_failed_of(id, checkpoint, &words);
                if self.job(id).life().is_none() {
                    // Its folder was spared when the processes went.
                    self.remove_litter(id);
                    self.touch(id);
                }
                return;
            }
        };
        record.bytes = published.bytes;
        record.manifest_url = published.manifest_url;
        job.record.litter.retain(|directory| *directory != record.directory);
        if job.record.last != Some(generation) {
            // A later generation began from an older one: this one lies on no line any more.
            self.out.commands.push(Command::RemoveCheckpoint {
                job: id,
                manifest_url: Some(record.manifest_url),
                directory: record.directory,
            });
            self.touch(id);
            return;
        }
        let survived = job.record.faults.last().is_none_or(|fault| record.step > fault.step);
        if survived {
            job.record.faults_in_row = 0;
            job.record.failures_in_row = 0;
        }
        job.record.save_tries = 0;
        job.record.note.take_if(|note| note.starts_with(FAILED_NOTE));
        if let Some(live) = job.live.as_mut() {
            live.storage_away = 0;
        }
        let text = format!("{checkpoint} at step {} is safe, {} bytes", record.step, record.bytes);
        job.record.progress.step = job.record.progress.step.max(record.step);
        job.record.checkpoints.push(record);
        let surplus = job.record.checkpoints.len().saturating_sub(keep);
        let old: Vec<CheckpointRecord> = job.record.checkpoints.drain(..surplus).collect();
        for old in old {
            // The record that no longer names them is flushed before these are carried out.
            self.out.commands.push(Command::RemoveCheckpoint {
                job: id,
                manifest_url: Some(old.manifest_url),
                directory: old.directory,
            });
        }
        self.touch(id);
        self.tell(Some(id), None, "checkpoint", text);
        self.leave_after(id, generation, checkpoint);
    }

    /// What the checkpoint was made for.
    fn leave_after(&mut self, id: JobId, generation: Generation, checkpoint: CheckpointId) {
        let job = self.job(id);
        let Phase::Checkpointing { save, goal, .. } = job.phase() else { return };
        if save.order.checkpoint != checkpoint {
            return;
        }
        let goal = goal.clone();
        let asked = job.record.wish == Some(Wish::Checkpoint);
        // A later word: the job that was to move is to end.
        let instead = match &goal {
            Goal::Leave(Next::Start(_) | Next::Queue { .. }) => {
                let done = ended(job).map(|note| Next::Complete { note });
                match job.wished() {
                    Some(cancel @ Next::Cancel { .. }) => Some(cancel),
                    wished => done.or(wished),
                }
            }
            Goal::Continue | Goal::Leave(_) => None,
        };
        if let (Goal::Leave(Next::Start(place)), None) = (&goal, &instead) {
            self.note_move(id, place);
        }
        let grace_ms = self.settings.stop_grace_ms;
        let next = instead.as_ref().or(match &goal {
            Goal::Leave(next) => Some(next),
            Goal::Continue => None,
        });
        let wish_done = match next {
            Some(Next::Pause | Next::Cancel { .. } | Next::Complete { .. }) => true,
            Some(
                Next::Start(_) | Next::Queue { .. } | Next::BackOff { .. } | Next::Fail { .. },
            ) => false,
            None => asked,
        };
        if wish_done {
            self.job_mut(id).record.wish = None;
        }
        self.transit(id, JobEvent::Published { generation, checkpoint, grace_ms });
        if let Some(next) = instead {
            self.transit(id, JobEvent::Stop { generation, next, grace_ms });
        }
        self.ask_for_unmet_shape(id);
    }

    pub(crate) fn on_save_late(&mut self, id: JobId) {
        let Phase::Checkpointing { life, save, .. } = self.job(id).phase() else { return };
        let workers = life.shape().workers;
        let missing: Vec<String> = (0..workers)
            .filter(|worker| !save.reached.contains_key(worker))
            .take(5)
            .map(|worker| Task::worker(worker).to_string())
            .collect();
        let why = if save.publishing {
            "the store did not take its manifest in time".to_owned()
        } else if missing.is_empty() {
            "its parts were not written in time".to_owned()
        } else {
            format!("{} did not get there in time", missing.join(", "))
        };
        self.save_failed(id, &why);
    }

    /// Folders of checkpoints that came to nothing go with the processes that could write them.
    pub(crate) fn remove_litter(&mut self, id: JobId) {
        let job = self.job_mut(id);
        let kept = job.publishing.as_ref().map(|record| record.directory.clone());
        let litter = std::mem::take(&mut job.record.litter);
        for directory in litter {
            if Some(&directory) == kept.as_ref() {
                self.job_mut(id).record.litter.push(directory);
            } else {
                let command = Command::RemoveCheckpoint { job: id, manifest_url: None, directory };
                self.out.commands.push(command);
            }
        }
    }
}

/// The sums of the unfinished epoch: of this generation, and of those before it.
fn partial(life: &Life, save: &Save, epoch: u32) -> Option<Partial> {
    let before = life.partial.filter(|partial| partial.epoch == epoch);
    let start = before.unwrap_or(Partial { epoch, loss_sum: 0.0, samples: 0 });
    let sum = save.reached.values().filter(|reached| reached.epoch == epoch).fold(
        start,
        |sum, reached| Partial {
            epoch,
            loss_sum: sum.loss_sum + reached.loss_sum,
            samples: sum.samples.saturating_add(reached.samples),
        },
    );
    (sum.samples > 0 && sum.loss_sum.is_finite()).then_some(sum)
}
