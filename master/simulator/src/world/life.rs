//! A generation's way from its start to its end.

use model::agent::Exit;
use model::{Millis, Task};

use super::agent::Name;
use super::chance::uniform;
use super::training::{Happened, Save, SaveState};
use super::truth::Saved;
use super::{Due, World};
use crate::outcome::Span;

/// The exit code of the training package for a damaged part of a checkpoint.
const EXIT_DAMAGED: i32 = 3;

impl World {
    /// Sets the next appointment of a training; earlier ones count no more.
    pub(super) fn appoint(&mut self, name: Name) {
        let Some(training) = self.trainings.get_mut(&name) else { return };
        let next = training.next(self.now);
        // The same appointment again would leave a dead one behind with every word of the master.
        if training.appointed == next {
            return;
        }
        training.appointed = next;
        training.version += 1;
        let version = training.version;
        if let Some(at) = next {
            self.queue.put(at, Due::Train { name, version });
        }
    }

    pub(super) fn train(&mut self, name: Name, version: u64) {
        let Some(training) = self.trainings.get_mut(&name) else { return };
        if training.version != version {
            return;
        }
        training.appointed = None;
        training.accrue(self.now);
        let mut news = false;
        loop {
            let save_ms = self.trainings.get(&name).map_or(0, |t| self.truths[t.job].save_ms);
            let Some(training) = self.trainings.get_mut(&name) else { return };
            let Some(happened) = training.take(self.now, save_ms) else { break };
            match happened {
                Happened::Ready => self.is_ready(name),
                Happened::Written => self.written(name),
                Happened::Finished => {
                    let job = training.job;
                    self.truths[job].done_at = Some(self.now);
                }
                Happened::FirstStep | Happened::Stands | Happened::Missed => {}
            }
            news |= happened != Happened::Ready;
        }
        if news {
            self.spread_news(name);
        }
        self.appoint(name);
    }

    fn spread_news(&mut self, name: Name) {
        let Some(training) = self.trainings.get(&name) else { return };
        for node in training.nodes.clone() {
            self.agents[node].news.insert(name);
            self.poke(node);
        }
    }

    /// All processes are there and have read what they resume from.
    fn is_ready(&mut self, name: Name) {
        let Some(training) = self.trainings.get_mut(&name) else { return };
        let job = training.job;
        let truth = &mut self.truths[job];
        let saved = training.resume.as_ref().and_then(|folder| truth.saved.get(folder));
        if saved.is_some_and(|saved| saved.damaged || !saved.whole) {
            let folder = training.resume.clone().unwrap_or_default();
            let exit = Exit {
                code: Some(EXIT_DAMAGED),
                reason: format!("{folder} is damaged"),
                ..Exit::default()
            };
            self.exit_one(name, Task::worker(0), &exit);
            return;
        }
        training.rate = truth.rate(&training.placement, self.options.network);
        let agents = &self.agents;
        training.take_speeds(|node| agents[node].speed);
        if truth.outcome.restarts > 0 {
            truth.outcome.rescale_s += self.now.seconds_since(training.begun);
        }
    }

    /// The parts of a checkpoint are on disk, or could not be written.
    fn written(&mut self, name: Name) {
        let share = self.options.failures.save_failures;
        let fails =
            self.trouble.saves_fail || (share > 0.0 && uniform(&mut self.trouble.saves) < share);
        let Some(training) = self.trainings.get_mut(&name) else { return };
        let Some((_, order)) = training.order.clone() else { return };
        let (work, step) = (training.work, training.step());
        let state = if fails {
            SaveState::Failed
        } else {
            let whole = !self.trouble.half_written;
            let (published, damaged, known) = (false, false, false);
            let saved = Saved { work, step, published, damaged, whole, known };
            self.truths[training.job].saved.insert(order.directory, saved);
            SaveState::Saved { step, hold: order.hold }
        };
        training.save = Some(Save { checkpoint: order.checkpoint, state });
    }

    /// One process ends by itself.
    pub(super) fn exit_one(&mut self, name: Name, task: Task, exit: &Exit) {
        let Some(node) = self.trainings.get(&name).and_then(|t| t.alive.get(&task)).copied() else {
            return;
        };
        if let Some(held) = self.agents[node].ledger.get_mut(&name) {
            held.tasks.insert(task, Some(exit.clone()));
        }
        self.leave(name, &[task]);
        self.agents[node].news.insert(name);
        self.poke(node);
    }

    /// Processes of a generation are gone: the others hang, and the last one ends it.
    pub(super) fn leave(&mut self, name: Name, tasks: &[Task]) {
        let now = self.now;
        let Some(training) = self.trainings.get_mut(&name) else { return };
        training.accrue(now);
        training.broken = true;
        for task in tasks {
            training.alive.remove(task);
        }
        if !training.alive.is_empty() {
            return;
        }
        let Some(training) = self.trainings.remove(&name) else { return };
        let job = training.job;
        let spec = &self.workload.jobs[job];
        let take = training.shape.demand(&spec.worker, &spec.server);
        self.tally.used = self.tally.used.minus_saturating(&take);
        self.tally.running = self.tally.running.saturating_sub(1);
        let tasks = training.shape.servers + training.shape.workers;
        self.tally.tasks = self.tally.tasks.saturating_sub(tasks);
        self.tally.changed = true;
        let truth = &mut self.truths[job];
        if let Some(since) = truth.held_since.take() {
            truth.held_ms += now.since(since);
        }
        if let Some(left) = training.left_at.filter(|_| !training.finished) {
            truth.outcome.rescale_s += now.seconds_since(left);
        }
        let at_s = now.seconds_since(Millis::default());
        self.span(job, Span { at_s, ..Span::default() });
    }

    /// A node's tasks go on at another speed.
    pub(super) fn set_speed(&mut self, node: usize, speed: f64) {
        self.agents[node].speed = speed;
        let names: Vec<Name> = self.agents[node].ledger.keys().copied().collect();
        for name in names {
            let Some(training) = self.trainings.get_mut(&name) else { continue };
            training.accrue(self.now);
            let agents = &self.agents;
            training.take_speeds(|node| agents[node].speed);
            self.appoint(name);
        }
    }
}
