//! The paper's allocation in the study's pool.

use super::Model;

/// A job as the policy sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) model: Model,
    pub(super) work: f64,
    /// On the rate.
    pub(super) factor: f64,
}

impl Seen {
    fn seconds(&self, (servers, workers): (u32, u32)) -> f64 {
        self.work / (self.factor * self.model.rate(servers, workers))
    }

    /// The task to add and what it saves; ties go to the server.
    fn best(&self, (servers, workers): (u32, u32)) -> (f64, (u32, u32)) {
        let now_s = self.seconds((servers, workers));
        let [by_server, by_worker] = [(servers + 1, workers), (servers, workers + 1)];
        let (server, worker) = (now_s - self.seconds(by_server), now_s - self.seconds(by_worker));
        if worker > server { (worker, by_worker) } else { (server, by_server) }
    }
}

/// Servers and workers of each job, in order of arrival.
pub(super) fn marginal_gain(jobs: &[Seen], slots: u32) -> Vec<(u32, u32)> {
    let mut free = slots;
    let mut given = vec![(0, 0); jobs.len()];
    for shape in &mut given {
        if free >= 2 {
            (*shape, free) = ((1, 1), free - 2);
        }
    }
    let offer = |job: usize, shape: (u32, u32)| {
        if shape.0 == 0 { (0.0, shape) } else { jobs[job].best(shape) }
    };
    let mut offers: Vec<(f64, (u32, u32))> =
        given.iter().enumerate().map(|(job, shape)| offer(job, *shape)).collect();
    while free > 0 {
        let best = offers.iter().enumerate().rev().max_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let Some((job, (gain, shape))) = best.map(|(job, offer)| (job, *offer)) else { break };
        if gain <= 0.0 {
            break;
        }
        given[job] = shape;
        offers[job] = offer(job, shape);
        free -= 1;
    }
    given
}
