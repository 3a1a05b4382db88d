//! Room on nodes: what generations take, and whether a place is free now or will be.
//!
//! Room counts as free only once the processes that took it are proved gone, and room that a
//! decision freed is held for the job that it was freed for.

use std::collections::BTreeMap;

use model::agent::TaskState;
use model::{Generation, JobId, NodeId, NodeShare, Placement, Resources, Shape};

use crate::job::Job;
use crate::job::live::Live;
use crate::record::Wish;
use crate::step::Control;
use crate::told::places;

/// What a share of a job takes on its node.
pub(crate) fn demand(job: &Job, share: &NodeShare) -> Resources {
    demand_of(job, Shape::new(share.servers, share.workers))
}

pub(crate) fn demand_of(job: &Job, shape: Shape) -> Resources {
    shape.demand(&job.spec().worker, &job.spec().server)
}

impl Control {
    /// A generation is about to get processes on its nodes.
    pub(crate) fn begin_life(&mut self, id: JobId) {
        let mono = self.now.mono;
        let job = self.job_mut(id);
        let Some(life) = job.record.phase.life() else { return };
        let (generation, placement) = (life.generation, life.placement.clone());
        job.record.last = Some(generation);
        job.live = Some(Live::new(generation, mono));
        job.changed = mono;
        for share in &placement.0 {
            let take = demand(self.job(id), share);
            let more = places(self.job(id), Shape::new(share.servers, share.workers));
            if let Some(node) = self.nodes.get_mut(&share.node) {
                node.lives.insert(id);
                node.used = node.used.plus(&take);
                node.places = node.places.saturating_add(more);
                node.stop_told.remove(&id);
            }
        }
        self.remember_placement(id);
    }

    /// A generation's processes are gone, or fenced.
    pub(crate) fn end_life(&mut self, id: JobId, generation: Generation, placement: &Placement) {
        for share in &placement.0 {
            if let Some(node) = self.nodes.get_mut(&share.node) {
                node.lives.remove(&id);
                node.stop_told.remove(&id);
            }
            // A sum of what is left, not a difference: saturated sums do not subtract.
            self.recount(&share.node);
            self.out.desired.insert(share.node.clone());
        }
        if self.scheduler_is_out(id, generation, placement) {
            self.free_ports(|held| held.job == id && held.generation == generation);
        }
        self.remove_litter(id);
        let now = self.now.mono;
        let job = self.job_mut(id);
        job.count_attained(placement.shape(), now);
        job.gap_since = job.live.as_ref().and_then(|live| live.last_step_at).or(job.gap_since);
        job.pauses.gone(now);
        job.live = None;
        // There is nobody left to make it, and a job that wishes something waits in no round.
        if job.record.wish == Some(Wish::Checkpoint) {
            job.record.wish = None;
        }
        self.out.room_freed = true;
    }

    /// True where no PS scheduler of a generation that ends can hold its port any more: its end
    /// was told, or its node is back since it was given up and shows no process of it. Else the
    /// port is freed once the node shows that.
    fn scheduler_is_out(&self, id: JobId, generation: Generation, placement: &Placement) -> bool {
        if !self.job(id).live.as_ref().is_some_and(|live| live.fenced) {
            return true;
        }
        let node = placement.scheduler_node().and_then(|node| self.nodes.get(node));
        node.is_some_and(|node| {
            let lives = node.tasks.iter().any(|report| {
                let running = matches!(report.state, TaskState::Running { .. });
                running && report.job == id && report.generation == generation
            });
            node.is_up() && !lives
        })
    }

    pub(crate) fn recount(&mut self, id: &NodeId) {
        let Some(node) = self.nodes.get(id) else { return };
        let mut used = Resources::default();
        for job in &node.lives {
            let job = self.job(*job);
            if let Some(life) = job.life() {
                used = used.plus(&demand_of(job, life.placement.on(id)));
            }
        }
        let places = self.places_taken(node);
        let node = self.nodes.get_mut(id).expect("it was there a line ago");
        node.used = used;
        node.places = places;
    }

    pub(crate) fn free_ports(&mut self, dead: impl Fn(&crate::ports::Holder) -> bool) {
        for (host, ports) in &mut self.ports {
            if ports.free(&dead) {
                self.out.ports.insert(host.clone());
                self.out.room_freed = true;
            }
        }
    }

    /// Whether a place is free this moment, the job's own room there counted as free.
    ///
    /// # Errors
    /// The first node that cannot take its share, in words.
    pub(crate) fn fits_now(&self, id: JobId, placement: &Placement) -> Result<(), String> {
        let job = self.job(id);
        for share in &placement.0 {
            let Some(node) = self.nodes.get(&share.node) else {
                return Err(format!("{} is not known", share.node));
            };
            if let Some(why) = node.takes_nothing() {
                return Err(why);
            }
            let own = demand_of(job, job.placement().on(&share.node));
            let others = node.used.minus_saturating(&own).plus(&node.strangers_use);
            let free = node.record.capacity.minus_saturating(&others);
            let need = demand(job, share);
            if let Some((kind, have, want)) = free.lacks(&need) {
                return Err(format!("{} needs {want} {kind}, {have} free", share.node));
            }
            if let Some(why) = self.without_places(job, share) {
                return Err(why);
            }
        }
        Ok(())
    }

    /// What every node carries once all places that were given are taken and all others left.
    /// `except` leaves jobs out.
    pub(crate) fn use_in_the_end(
        &self,
        except: impl Fn(JobId) -> bool,
    ) -> BTreeMap<NodeId, Resources> {
        let mut end: BTreeMap<NodeId, Resources> =
            self.nodes.iter().map(|(id, node)| (id.clone(), node.strangers_use.clone())).collect();
        for id in &self.unfinished {
            if except(*id) {
                continue;
            }
            let job = self.job(*id);
            let placement = job
                .phase()
                .reserved()
                .map_or_else(|| job.placement(), |place| place.placement.clone());
            add_placement(&mut end, job, &placement);
        }
        end
    }
}

pub(crate) fn add_placement(
    sums: &mut BTreeMap<NodeId, Resources>,
    job: &Job,
    placement: &Placement,
) {
    for share in &placement.0 {
        let take = demand(job, share);
        let sum = sums.entry(share.node.clone()).or_default();
        *sum = sum.plus(&take);
    }
}
