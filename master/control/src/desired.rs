//! What each node should run, made from the phases of the jobs that stand on it.

use model::agent::{Desired, DesiredGeneration, Launch, Order};
use model::notes::{AssignmentOrder, Extras, JobExtras, Warm};
use model::{Finish, JobId, NodeId, Revision};

use crate::command::Command;
use crate::job::Job;
use crate::job::phase::{Life, Phase};
use crate::step::Control;

impl Control {
    /// The desired sets of a job's nodes may have changed.
    pub(crate) fn mark_desired(&mut self, id: JobId) {
        let Some(life) = self.job(id).life() else { return };
        let nodes: Vec<_> = life.placement.0.iter().map(|share| share.node.clone()).collect();
        self.out.desired.extend(nodes);
    }

    /// Sends what changed to the nodes that listen; the others get it with their introduction.
    pub(crate) fn send_desired(&mut self) {
        for id in std::mem::take(&mut self.out.desired) {
            let Some(node) = self.nodes.get(&id) else { continue };
            let Some(session) = node.session else { continue };
            let generations = self.desired_of(&id);
            let extras = self.extras_of(&id, &generations);
            let sent = node.sent.as_ref();
            if sent.is_some_and(|(_, last)| *last == generations) && node.sent_extras == extras {
                continue;
            }
            self.desired_sets += 1;
            let revision = self.revision();
            let node = self.nodes.get_mut(&id).expect("it was there a line ago");
            for generation in &generations {
                if let Order::Stop { .. } = generation.order {
                    let told = (generation.generation, revision);
                    let known = node.stop_told.get(&generation.job);
                    if known.is_none_or(|(old, _)| *old != generation.generation) {
                        node.stop_told.insert(generation.job, told);
                    }
                }
            }
            node.sent = Some((revision, generations.clone()));
            node.sent_extras = extras.clone();
            let desired = Desired { revision, generations };
            let command = Command::SendDesired { node: id, session, desired, extras };
            self.out.commands.push(command);
        }
    }

    /// Grows over restarts of the master: an agent refuses a set older than it obeyed.
    fn revision(&self) -> Revision {
        Revision((self.meta.starts << 32) + self.desired_sets)
    }

    fn desired_of(&self, id: &NodeId) -> Vec<DesiredGeneration> {
        let Some(node) = self.nodes.get(id) else { return Vec::new() };
        let mut generations = Vec::new();
        for job in &node.lives {
            let job = self.job(*job);
            let Some(life) = job.life() else { continue };
            let (order, checkpoint) = match job.phase() {
                Phase::Starting { .. } => (Order::Start, None),
                Phase::Running { released, .. } => (Order::Keep, released.clone()),
                Phase::Checkpointing { save, .. } => (Order::Keep, Some(save.order.clone())),
                Phase::Stopping { grace_ms, .. } => (Order::Stop { grace_ms: *grace_ms }, None),
                Phase::Queued { .. }
                | Phase::Paused { .. }
                | Phase::Completed { .. }
                | Phase::Failed { .. }
                | Phase::Cancelled { .. } => continue,
            };
            generations.push(DesiredGeneration {
                job: job.id(),
                generation: life.generation,
                order,
                launch: launch(job, life, id),
                checkpoint,
            });
        }
        generations
    }
}

impl Control {
    /// Keeps the nodes of a job's coming place informed; called whenever that may have changed.
    pub(crate) fn promise(&mut self, id: JobId) {
        let place = self.job(id).phase().reserved().map(|place| &place.placement);
        if place == self.places.get(&id) {
            return;
        }
        let place = place.cloned();
        let before = match &place {
            Some(place) => self.places.insert(id, place.clone()),
            None => self.places.remove(&id),
        };
        for share in before.iter().flat_map(|place| &place.0) {
            if let Some(jobs) = self.promised.get_mut(&share.node) {
                jobs.remove(&id);
                if jobs.is_empty() {
                    self.promised.remove(&share.node);
                }
            }
            self.out.desired.insert(share.node.clone());
        }
        for share in place.iter().flat_map(|place| &place.0) {
            self.promised.entry(share.node.clone()).or_default().insert(id);
            self.out.desired.insert(share.node.clone());
        }
    }

    /// What a node needs to prepare for the tasks that may come, of all jobs promised to it.
    fn warm(&self, node: &NodeId) -> Vec<Warm> {
        let promised = self.promised.get(node).into_iter().flatten();
        let warm = promised.map(|id| {
            let spec = self.job(*id).spec();
            Warm {
                job: *id,
                command: spec.command.clone(),
                working_directory: spec.working_directory.clone(),
                environment: spec.environment.clone(),
                worker_cpus_milli: spec.worker.cpus_milli,
                server_cpus_milli: spec.server.cpus_milli,
            }
        });
        warm.collect()
    }

    /// What the node should know beside its desired set.
    fn extras_of(&self, node: &NodeId, generations: &[DesiredGeneration]) -> Extras {
        let mut extras = Extras { warm: self.warm(node), ..Extras::default() };
        for DesiredGeneration { job, generation, .. } in generations {
            let options = &self.job(*job).options;
            if options.data.is_some() {
                extras.jobs.push(JobExtras {
                    job: *job,
                    generation: *generation,
                    assignment: AssignmentOrder::Stock,
                    data: options.data.clone(),
                });
            }
        }
        extras
    }
}

fn launch(job: &Job, life: &Life, node: &NodeId) -> Launch {
    let spec = job.spec();
    Launch {
        job_name: spec.name.clone(),
        command: spec.command.clone(),
        working_directory: spec.working_directory.clone(),
        environment: spec.environment.clone(),
        mode: spec.mode,
        batch: spec.batch,
        // The script's loop ends where the job does.
        epochs_max: match &spec.finish {
            Finish::Epochs(epochs) => spec.epochs_max.min(*epochs),
            Finish::Convergence { .. } | Finish::ConvergenceBy { .. } => spec.epochs_max,
        },
        shape: life.shape(),
        tasks: life.placement.tasks_on(node).into_iter().collect(),
        worker: spec.worker.clone(),
        server: spec.server.clone(),
        root_host: life.root_host.clone(),
        root_port: life.root_port,
        resume: life.resume_directory.clone(),
        on_disconnect: spec.on_disconnect,
    }
}
