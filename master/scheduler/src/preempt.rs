//! A round of Tiresias: jobs in two queues by the service that they attained, each all that it
//! requested or nothing. Who runs and is served stays on its nodes; who is not gives way.
//!
//! 1. The cluster's total is shared out in the order of the queues.
//! 2. Who is to start is placed, in that order, on what is free once all who are not served are
//!    gone. Where that is not free yet the job waits, and its room is kept.
//! 3. What is left over, because somebody's tasks fit on no nodes together, goes to the others in
//!    the same order: who runs stays if it can, who waits starts if it can.

use model::Shape;

use crate::allocate::within;
use crate::baseline::tiresias::order;
use crate::baseline::{Nodes, Placer, Rule};
use crate::entry::Standing;
use crate::place::find;
use crate::plan::Words;
use crate::rival::{narrow, narrow_room};
use crate::room::{Spots, View};
use crate::round::{Made, Round, Stage};
use crate::snapshot::Placing;

/// Where tasks can go.
struct Ground<'p> {
    /// None where the paper's placement looks itself, for all jobs with servers.
    rule: Option<Rule>,
    now: Placer<'p>,
    /// Once all who have to go are gone.
    then: Placer<'p>,
}

impl Round<'_> {
    pub(crate) fn run_queues(mut self, watch: &mut dyn FnMut(Stage)) -> Made {
        self.serve_fixed(|_| true);
        self.allocate();
        watch(Stage::Allocated);
        let order = self.queued();
        let is_kept = |round: &Self, job: usize| {
            round.entries[job].standing == Standing::Running
                && !round.allocated[job].is_empty()
                && round.allocated[job] == round.current_shape(job)
        };
        let moving: Vec<usize> = order.into_iter().filter(|job| !is_kept(&self, *job)).collect();
        for job in moving.iter().copied() {
            self.room.set(job, Spots::default());
        }
        let (capacity, mut now, open) = self.books();
        let mut then = self.left_then();
        let kinds = self.room.kinds.count();
        let placer = |left| Placer::new(Nodes { kinds, capacity: &capacity, left, open: &open });
        let rule = match self.policy.placing {
            Placing::Transfer => None,
            Placing::Spread => Some(Rule::Spread),
            Placing::Pack => Some(Rule::Pack),
            Placing::FirstFit => Some(Rule::FirstFit),
            Placing::Fill => Some(Rule::Fill),
        };
        let mut ground = Ground { rule, now: placer(&mut now), then: placer(&mut then) };
        let mut left_over = Vec::new();
        for job in moving {
            if self.allocated[job].is_empty() || !self.serve(job, &mut ground) {
                left_over.push(job);
            }
        }
        for job in left_over {
            self.fill_in(job, &mut ground);
        }
        self.made()
    }

    /// Sharing jobs that may get or hold anything, in the order of the queues.
    fn queued(&self) -> Vec<usize> {
        let counts = |job: &usize| self.entries[*job].is_share() && self.entries[*job].may_get();
        let jobs: Vec<usize> = self.order.iter().copied().filter(counts).collect();
        let attained: Vec<f64> =
            jobs.iter().map(|job| self.entries[*job].input.attained_s).collect();
        order(&attained, self.policy.queue_gpu_s).into_iter().map(|at| jobs[at]).collect()
    }

    fn left_then(&self) -> Vec<i64> {
        let left = |node| narrow_room(&self.room.left(node, View::Then).collect::<Vec<_>>());
        (0..self.nodes.len()).flat_map(left).collect()
    }

    /// Starts or moves a job to its allocation, at once or once others are gone; false where it
    /// fits on no nodes even then.
    fn serve(&mut self, job: usize, ground: &mut Ground<'_>) -> bool {
        let shape = self.allocated[job];
        if let Some(spots) = self.look(job, shape, View::Both, ground) {
            self.hold(job, (spots.clone(), spots), ground);
            self.entries[job].placed = true;
            return true;
        }
        let Some(spots) = self.look(job, shape, View::Then, ground) else { return false };
        let meanwhile = match self.entries[job].standing {
            Standing::Running => self.room.hold(job).current.clone(),
            Standing::Waiting
            | Standing::Displaced { .. }
            | Standing::Fixed
            | Standing::Unfit { .. } => self.idle(job),
        };
        self.hold(job, (meanwhile, spots), ground);
        true
    }

    /// Lets a job that is not served run on what the others leave.
    fn fill_in(&mut self, job: usize, ground: &mut Ground<'_>) {
        let requested = self.entries[job].input.requested;
        if self.entries[job].standing == Standing::Running {
            let current = self.room.hold(job).current.clone();
            if requested.is_some() && self.fits_then(job, &current) {
                self.hold(job, (current.clone(), current), ground);
                return;
            }
        } else {
            let (least, max) = (self.entries[job].gains.least, self.entries[job].gains.max);
            let sound = requested.filter(|shape| within(least, *shape) && within(*shape, max));
            if let Some(spots) = sound.and_then(|shape| self.look(job, shape, View::Both, ground)) {
                self.hold(job, (spots.clone(), spots), ground);
                self.entries[job].placed = true;
                return;
            }
        }
        let words = match (self.entries[job].standing == Standing::Running, requested) {
            (_, None) => "states no shape that it requests".to_owned(),
            (true, Some(_)) => {
                let attained = self.entries[job].input.attained_s;
                format!("gives way to jobs before it, after {attained:.0} GPU seconds")
            }
            (false, Some(shape)) => {
                format!("no room for its requested {shape} beside the jobs before it")
            }
        };
        self.notes.insert(job, Words::Plain(words));
        let idle = self.idle(job);
        self.hold(job, (idle.clone(), idle), ground);
    }

    /// Nodes for a job, beside all that is there.
    fn look(
        &mut self,
        job: usize,
        shape: Shape,
        view: View,
        ground: &mut Ground<'_>,
    ) -> Option<Spots> {
        let rule = ground.rule.or_else(|| (shape.servers == 0).then_some(Rule::Fill));
        let Some(rule) = rule else {
            self.room.lift(job);
            let found = find(&self.room, job, shape, view, self.scratch);
            self.room.lower(job, Spots::default(), Spots::default());
            return found;
        };
        let demand = self.room.demand(job);
        let (server, worker) = (narrow(demand.server()), narrow(demand.worker()));
        let placer = match view {
            View::Both => &mut ground.now,
            View::Then => &mut ground.then,
        };
        // What is taken here is set right by the books once the job holds it.
        let found = if shape.servers == 0 {
            placer.place_workers(rule, &worker, shape.workers)
        } else {
            placer.place(rule, &server, &worker, shape)
        };
        found.map(Spots::from)
    }

    /// True where a job that holds nothing could stay where it is when all others are settled.
    fn fits_then(&self, job: usize, spots: &Spots) -> bool {
        spots.iter().all(|(node, here)| {
            let needs = self.room.demand(job).of(*here);
            let mut left = self.room.left(*node, View::Then).zip(needs);
            left.all(|(left, need)| need == 0 || need <= left)
        })
    }

    /// What a job holds next and in the end, also on the ground.
    fn hold(&mut self, job: usize, (next, goal): (Spots, Spots), ground: &mut Ground<'_>) {
        self.room.lift(job);
        self.room.lower(job, next, goal);
        let hold = self.room.hold(job);
        for (node, _) in hold.current.iter().chain(&hold.next).chain(&hold.goal) {
            let placers = [(&mut ground.now, View::Both), (&mut ground.then, View::Then)];
            for (placer, view) in placers {
                let left: Vec<i128> = self.room.left(*node, view).collect();
                placer.set_left(*node, &narrow_room(&left));
            }
        }
    }
}
