//! What each node should run, made from the phases of the jobs that stand on it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::agent::{Desired, DesiredGeneration, Launch, Order};
use model::nodes::{JobOrders, NodeOrders};
use model::notes::{AssignmentOrder, Extras, JobExtras};
use model::{Finish, JobId, NodeId, Revision, Role};

use crate::command::Command;
use crate::job::Job;
use crate::job::phase::{Life, Phase};
use crate::step::Control;

/// Addresses taken from one server: more would be no interfaces of its own.
const ADDRESSES_MAX: usize = 64;

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
            let mut generations = self.desired_of(&id);
            let left_out = self.cut_desired(node, &mut generations);
            let mut extras = self.extras_of(&id, &generations);
            let mut orders = self.orders_of(&id, &generations);
            let mut crowded = self.cut_extras(&mut extras);
            crowded |= self.cut_orders(&mut orders, &generations);
            if node.crowded || crowded || !left_out.is_empty() {
                self.note_left_out(&id, left_out, crowded);
            }
            let node = self.nodes.get(&id).expect("it was there a line ago");
            let sent = node.sent.as_ref();
            let same = node.sent_extras == extras && node.sent_orders == orders;
            if same && sent.is_some_and(|(_, last)| *last == generations) {
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
            node.sent_orders = orders.clone();
            let desired = Desired { revision, generations };
            let command = Command::SendDesired { node: id, session, desired, extras, orders };
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
    /// What the server itself should know beside its desired set.
    fn orders_of(&self, node: &NodeId, generations: &[DesiredGeneration]) -> NodeOrders {
        let jobs = generations.iter().map(|DesiredGeneration { job, generation, .. }| {
            let known = self.job(*job);
            let placement = known.life().filter(|life| life.generation == *generation);
            let shares = placement.iter().flat_map(|life| &life.placement.0);
            let peers: BTreeSet<IpAddr> =
                shares.flat_map(|share| self.addresses_of(&share.node)).collect();
            let user = known.record.user.clone();
            let peers = peers.into_iter().collect();
            JobOrders { job: *job, generation: *generation, user, peers }
        });
        NodeOrders {
            jobs: jobs.collect(),
            gpus_out: self.gpus.out(node),
            gpus_probed: self.gpus.probed(node),
            judges_gpus: true,
        }
    }

    /// Where connections of a server's tasks may come from: the address that they bind, and the
    /// others that its agent tells, as a connection leaves by the interface of the route.
    fn addresses_of(&self, id: &NodeId) -> impl Iterator<Item = IpAddr> {
        let node = self.nodes.get(id);
        let own: Option<IpAddr> = node.and_then(|node| node.record.task_address.parse().ok());
        let told = node.and_then(|node| node.notes.as_ref()).map(|notes| &notes.addresses);
        let told = told.into_iter().flatten().take(ADDRESSES_MAX).copied();
        // An address that any host has would let any host in.
        let of_one = |address: &IpAddr| {
            !(address.is_loopback() || address.is_unspecified() || address.is_multicast())
        };
        own.into_iter().chain(told.filter(of_one))
    }

    /// What the node should know beside its desired set.
    fn extras_of(&self, node: &NodeId, generations: &[DesiredGeneration]) -> Extras {
        let mut extras = Extras { warm: self.warm(node), ..Extras::default() };
        for DesiredGeneration { job, generation, launch, .. } in generations {
            let Job { options, blocks, .. } = self.job(*job);
            // Only workers ask where blocks lie.
            let works = launch.tasks.iter().any(|task| task.role == Role::Worker);
            let assignment = if works { blocks.order(*generation) } else { AssignmentOrder::Stock };
            if options.data.is_some() || assignment != AssignmentOrder::Stock {
                extras.jobs.push(JobExtras {
                    job: *job,
                    generation: *generation,
                    assignment,
                    data: options.data.clone(),
                    index_base: match options.data {
                        Some(_) => self.job(*job).spec().checkpoint.clone(),
                        None => String::new(),
                    },
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
