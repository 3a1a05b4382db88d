//! Which nodes are told ahead of a job that comes to them: so that what its tasks need is ready
//! when they start, while the old generation still trains.

use model::notes::Warm;
use model::{JobId, NodeId};

use crate::step::Control;

impl Control {
    /// Keeps the nodes of a job's coming place informed; called whenever that may have changed.
    pub(crate) fn promise(&mut self, id: JobId) {
        let place = self.job(id).phase().reserved().map(|place| &place.placement);
        if place == self.places.get(&id) {
            return;
        }
        let place = place.cloned();
        let now = self.now.mono;
        self.job_mut(id).promised = place.is_some().then_some(now);
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
    pub(crate) fn warm(&self, node: &NodeId) -> Vec<Warm> {
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
}
