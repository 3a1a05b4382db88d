//! The hands of the state machine: its store, its planner, its publisher, its messages.

use control::command::Command;
use control::job::phase::Phase;
use control::record::JobRecord;
use control::{Event, Publish, Published, Record, SessionId, Write};
use model::JobId;
use model::client::{Answer, Reply};
use scheduler::snapshot::{Policy, Snapshot};

use super::{Due, Fidelity, RECONNECT_MS, World};
use crate::faults::Plant;

/// What planning and publishing take, where messages take their time.
const PLAN_MS: u64 = 10;
const PUBLISH_MS: u64 = 50;

impl World {
    pub(super) fn carry_out(&mut self, commands: Vec<Command>) {
        for command in commands {
            if self.trouble.dies_after.is_some_and(|after| self.commands >= after) {
                self.trouble.dies_after = None;
                self.restart_master();
                return;
            }
            self.commands += 1;
            match command {
                Command::Persist(writes) => self.persist(writes),
                Command::Reply { request, reply } => self.answered(request.0, *reply),
                Command::SendDesired { node, session, desired, .. } => {
                    if let Some(node) = self.index.get(&node).copied() {
                        self.send_down(node, session, desired);
                    }
                }
                Command::Disconnect { session, .. } => self.disconnected(session),
                Command::Plan { snapshot, policy } => self.plan(*snapshot, &policy),
                Command::Publish(publish) => self.publish(*publish),
                Command::RemoveCheckpoint { job, directory, .. } => {
                    if let Some(job) = self.job_of(job) {
                        self.truths[job].saved.remove(&directory);
                    }
                }
            }
        }
    }

    fn persist(&mut self, writes: Vec<Write>) {
        let keeps = self.is_exact();
        for write in writes {
            match write {
                Write::Put(record) => {
                    if let Record::JobV1(job) = &record {
                        self.watch_record(job);
                    }
                    if let Record::SlowJobV1(slow) = &record {
                        self.watch_slow(slow);
                    }
                    if let Record::JobV1(job) = &record
                        && job.phase.is_final()
                    {
                        self.ended(job);
                    }
                    if keeps && !self.loses_write(&record) {
                        self.store.insert(record.key(), record);
                    }
                }
                Write::Delete(key) => {
                    self.store.remove(&key);
                }
            }
        }
    }

    fn answered(&mut self, request: u64, reply: Reply) {
        let Some(job) = self.requests.remove(&request) else {
            self.watch_reply(request, &reply);
            return;
        };
        match reply {
            Ok(Answer::Submitted { job: id, .. }) => {
                self.name_job(id, job);
                self.watch_accepted(job, id);
                self.truths[job].id = Some(id);
            }
            other => {
                let name = &self.workload.jobs[job].id;
                self.findings.push(format!("job {name} was not accepted: {other:?}"));
            }
        }
    }

    fn plan(&mut self, mut snapshot: Snapshot, policy: &Policy) {
        self.tally.rounds += 1;
        self.idle_rounds = if self.trainings.is_empty() { self.idle_rounds + 1 } else { 0 };
        self.tell_truth(&mut snapshot);
        let plan = scheduler::plan(&snapshot, policy, &mut self.cache);
        let refused = if self.options.check_plans || self.is_exact() {
            scheduler::check(&snapshot, &plan)
        } else {
            Vec::new()
        };
        self.findings.extend(refused.iter().map(|finding| format!("the plan: {finding}")));
        self.watch.count("plans checked");
        let event = Event::RoundFinished { plan, refused, elapsed_s: 0.0 };
        if std::mem::take(&mut self.trouble.plan_is_lost) {
            return;
        }
        let late_ms = std::mem::take(&mut self.trouble.plan_late_ms);
        self.later(PLAN_MS + late_ms, event);
    }

    fn publish(&mut self, publish: Publish) {
        let Publish { job, generation, checkpoint, directory, .. } = publish;
        let saved = self.job_of(job).and_then(|job| self.truths[job].saved.get_mut(&directory));
        let skips = self.watch.plant == Some(Plant::PublishUnread);
        let outcome = match saved {
            // Every part is read again before its manifest is written.
            Some(saved) if !saved.whole && !skips => {
                Err(format!("{directory}: parameters is shorter than it was said to be"))
            }
            Some(saved) if !self.trouble.store_fails => {
                // It reaches the disk even where the master dies before it hears of it.
                saved.published = true;
                Ok(Published { manifest_url: directory, bytes: 1 })
            }
            Some(_) => Err("cannot write the manifest: no space left on device".to_owned()),
            None => Err(format!("{directory} has no parts")),
        };
        self.later(PUBLISH_MS, Event::Published { job, generation, checkpoint, outcome });
    }

    /// An answer of the master's own threads.
    fn later(&mut self, ms: u64, event: Event) {
        let ms = match self.options.fidelity {
            Fidelity::Exact { .. } => ms,
            Fidelity::Coarse { .. } => 0,
        };
        let due = Due::Master { life: self.life, event: Box::new(event) };
        self.queue.put(self.now.plus(ms), due);
    }

    pub(super) fn note_published(&mut self, job: JobId, directory: &str) {
        if let Some(job) = self.job_of(job) {
            let truth = &mut self.truths[job];
            truth.resume = truth.saved.get(directory).copied().or(truth.resume);
        }
    }

    fn send_down(&mut self, node: usize, session: SessionId, desired: model::agent::Desired) {
        let link = &mut self.agents[node].link;
        if link.cut || link.mute_down {
            return;
        }
        if link.losses > 0 {
            link.losses -= 1;
            return;
        }
        let at = self.now.plus(link.delay_ms).max(link.down_until);
        link.down_until = at;
        if let Some(later) = self.repeats(node, at) {
            self.queue.put(later, Due::Agent { node, session, desired: desired.clone() });
        }
        self.queue.put(at, Due::Agent { node, session, desired });
    }

    /// What a node's agent says, on its way to the master; false where it is lost.
    pub(super) fn send_up(&mut self, node: usize, event: Event) -> bool {
        let link = &mut self.agents[node].link;
        if link.cut || link.mute_up {
            return false;
        }
        if link.losses > 0 {
            link.losses -= 1;
            return false;
        }
        let at = self.now.plus(link.delay_ms).max(link.up_until);
        link.up_until = at;
        if let Event::Heartbeat { .. } = &event
            && let Some(later) = self.repeats(node, at)
        {
            let event = Box::new(event.clone());
            self.queue.put(later, Due::Master { life: self.life, event });
        }
        self.queue.put(at, Due::Master { life: self.life, event: Box::new(event) });
        true
    }

    fn disconnected(&mut self, session: SessionId) {
        for node in 0..self.agents.len() {
            if self.agents[node].session == Some(session) {
                self.agents[node].session = None;
                self.queue.put(self.now.plus(RECONNECT_MS), Due::Connect(node));
            }
        }
    }

    fn ended(&mut self, record: &JobRecord) {
        let Some(job) = self.job_of(record.id) else { return };
        let now = self.now;
        let truth = &mut self.truths[job];
        if truth.ended {
            return;
        }
        truth.ended = true;
        truth.saved.clear();
        if let Phase::Completed { .. } = record.phase {
            let at = truth.done_at.unwrap_or(now);
            truth.outcome.completion_s = Some(at.seconds_since(model::Millis::default()));
        }
        self.tally.ended += 1;
        self.tally.changed = true;
    }
}
