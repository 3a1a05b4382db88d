//! When rounds are held, and what a round is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::reason::Reachability;
use model::{JobId, Millis, NodeId, Resources, RoundId, Shape, UnixMs};
use scheduler::snapshot::{Current, JobInput, NodeInput, Snapshot, Want};

use crate::change::Resize;
use crate::command::Command;
use crate::job::Job;
use crate::job::epochs::ended;
use crate::job::estimate::left;
use crate::job::phase::{Goal, Next, Phase, Wait};
use crate::room::{add_placement, demand_of};
use crate::step::Control;
use crate::timers::Timer;

#[derive(Clone, Debug, Default)]
pub(crate) struct Rounding {
    /// Version of the last snapshot.
    pub(crate) revision: u64,
    /// Why a round is wanted; the same few texts, so bounded.
    pub(crate) causes: BTreeSet<&'static str>,
    pub(crate) begun: Option<Millis>,
    pub(crate) finished: Option<(RoundId, UnixMs, Millis)>,
    pub(crate) in_flight: Option<InFlight>,
    /// Operators' shapes to be tried on paper before they are accepted.
    pub(crate) resizes: VecDeque<Resize>,
    /// After a start: nodes that should report before anything is decided, and until when.
    pub(crate) awaited: BTreeSet<NodeId>,
    pub(crate) hold_until: Millis,
}

#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) revision: u64,
    pub(crate) since: Millis,
    pub(crate) purpose: Purpose,
}

#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    Round {
        cause: String,
        jobs: u32,
    },
    /// Only to answer whether a shape can be placed: nothing of it is applied.
    Try(Box<Resize>),
}

/// A plan that is not back by then is given up: the planning thread died.
const PLAN_LOST_MS: u64 = 300_000;

impl Rounding {
    pub(crate) fn heard(&mut self, node: &NodeId) {
        self.awaited.remove(node);
        if self.awaited.is_empty() {
            self.hold_until = Millis::default();
        }
    }
}

impl Control {
    /// Asks for a round as soon as the spacing allows.
    pub(crate) fn ask_round(&mut self, cause: &'static str) {
        self.rounding.causes.insert(cause);
        self.schedule_round();
    }

    pub(crate) fn schedule_round(&mut self) {
        if self.rounding.in_flight.is_some() {
            return;
        }
        let now = self.now.mono;
        if !self.rounding.resizes.is_empty() {
            self.timers.set_earliest(Timer::Round, now);
            return;
        }
        let (spacing, interval) = (self.settings.spacing_ms, self.settings.interval_ms);
        let begun = self.rounding.begun;
        if self.settings.rounds_on_grid {
            if self.wants_rounds() {
                let at = self.next_on_grid(interval.max(1));
                self.timers.set(Timer::Round, at.max(self.rounding.hold_until));
            }
            return;
        }
        if !self.rounding.causes.is_empty() {
            let at = begun.map_or(now, |begun| begun.plus(spacing).max(now));
            self.timers.set(Timer::Round, at.max(self.rounding.hold_until));
        } else if self.wants_rounds() {
            let at = begun.map_or(now, |begun| begun.plus(interval).max(now));
            self.timers.set(Timer::Round, at.max(self.rounding.hold_until));
        }
    }

    /// The next whole multiple of the interval since the start: now, where no round was held now.
    fn next_on_grid(&self, interval: u64) -> Millis {
        let (start, now) = (self.started.mono, self.now.mono);
        let past = now.since(start) % interval;
        let held = self.rounding.begun == Some(now);
        let wait = if past == 0 && !held { 0 } else { interval - past };
        now.plus(wait)
    }

    fn wants_rounds(&self) -> bool {
        self.unfinished.iter().any(|id| !matches!(self.job(*id).phase(), Phase::Paused { .. }))
    }

    pub(crate) fn on_round_due(&mut self) {
        if self.rounding.in_flight.is_some() || self.is_superseded() {
            return;
        }
        if let Some(resize) = self.rounding.resizes.pop_front() {
            self.try_resize(resize);
            return;
        }
        if self.now.mono < self.rounding.hold_until {
            self.timers.set(Timer::Round, self.rounding.hold_until);
            return;
        }
        let causes = std::mem::take(&mut self.rounding.causes);
        self.rounding.begun = Some(self.now.mono);
        if !self.wants_rounds() {
            return;
        }
        let causes: Vec<&str> = causes.into_iter().collect();
        let cause = if causes.is_empty() { "interval".to_owned() } else { causes.join(", ") };
        self.save_speeds();
        self.expire_slow_nodes();
        let snapshot = self.snapshot(None);
        let jobs = u32::try_from(snapshot.jobs.len()).unwrap_or(u32::MAX);
        self.send_plan(snapshot, Purpose::Round { cause, jobs });
    }

    fn try_resize(&mut self, resize: Resize) {
        if self.jobs.get(&resize.job).is_none_or(|job| job.phase().is_final()) {
            self.answer_resize(resize, Err("the job has ended".to_owned()));
            self.schedule_round();
            return;
        }
        let snapshot = self.snapshot(Some((resize.job, resize.shape)));
        self.send_plan(snapshot, Purpose::Try(Box::new(resize)));
    }

    fn send_plan(&mut self, snapshot: Snapshot, purpose: Purpose) {
        let since = self.now.mono;
        self.rounding.in_flight = Some(InFlight { revision: snapshot.revision, since, purpose });
        self.timers.set(Timer::PlanLost, since.plus(PLAN_LOST_MS));
        let policy = self.settings.policy.clone();
        self.out.commands.push(Command::Plan { snapshot: Box::new(snapshot), policy });
    }

    pub(crate) fn on_plan_lost(&mut self) {
        let Some(flight) = self.rounding.in_flight.take() else { return };
        self.tell(None, None, "round", "a plan did not come back; the next round is asked anew");
        if let Purpose::Try(resize) = flight.purpose {
            self.answer_resize(*resize, Err("the plan did not come back".to_owned()));
        }
        self.ask_round("a plan was lost");
    }

    /// The state as a round sees it. `on_trial` is a job with a shape that is only tried: it
    /// counts as pinned, and as movable even while it starts.
    fn snapshot(&mut self, on_trial: Option<(JobId, Shape)>) -> Snapshot {
        self.rounding.revision += 1;
        let capacity = self.capacity_up();
        let ids: Vec<JobId> = self.unfinished.iter().copied().collect();
        let mut jobs = Vec::new();
        for id in ids {
            if let Some(input) = self.job_input(id, &capacity, on_trial) {
                jobs.push(input);
            }
        }
        let mut nodes = self.node_inputs(&jobs);
        self.count_places(&mut jobs, &mut nodes);
        let nodes = nodes.into();
        Snapshot { revision: self.rounding.revision, now: self.now.mono, nodes, jobs }
    }

    fn job_input(
        &mut self,
        id: JobId,
        capacity: &Resources,
        on_trial: Option<(JobId, Shape)>,
    ) -> Option<JobInput> {
        let tried = on_trial.filter(|(job, _)| *job == id).map(|(_, shape)| shape);
        let mut current = self.current(id)?;
        if let (Some(_), Some(current)) = (tried, &mut current) {
            current.movable = true;
            current.since_change_ms = u64::MAX;
        }
        let pinned = tried.or_else(|| self.job(id).wanted_shape());
        let want = match pinned {
            Some(shape) => Want::Pinned { shape },
            None => self.want(id, capacity),
        };
        let job = self.job(id);
        let spec = job.spec();
        Some(JobInput {
            id,
            mode: spec.mode,
            worker: spec.worker.clone(),
            server: spec.server.clone(),
            min: spec.shape_min(),
            max: Shape::new(spec.servers.max, spec.workers.max),
            priority: spec.priority,
            arrival: job.arrival,
            current,
            want,
            requested: None,
            attained_s: job.attained_s(self.now.mono),
            goodput: None,
            rescale_cost_s: self.rescale_cost_s(job),
        })
    }

    /// What a job holds; the outer none where it takes no part in the round.
    #[expect(clippy::option_option, reason = "no part in the round, or a part with nothing held")]
    fn current(&self, id: JobId) -> Option<Option<Current>> {
        let job = self.job(id);
        let since_change_ms = self.now.mono.since(job.changed);
        let held = |placement: &model::Placement, movable: bool| {
            Some(Some(Current { placement: placement.clone(), movable, since_change_ms }))
        };
        if let Some(place) = job.phase().reserved() {
            return held(&place.placement, false);
        }
        match job.phase() {
            Phase::Queued { wait: Wait::Round { .. }, .. } if job.wished().is_none() => Some(None),
            Phase::Starting { life } => held(&life.placement, false),
            Phase::Running { life, .. } => held(&life.placement, self.is_movable(job)),
            Phase::Checkpointing { life, goal, .. } => match goal {
                Goal::Continue => held(&life.placement, false),
                Goal::Leave(Next::Start(place)) => held(&place.placement, false),
                Goal::Leave(_) => None,
            },
            Phase::Queued { .. }
            | Phase::Stopping { .. }
            | Phase::Paused { .. }
            | Phase::Completed { .. }
            | Phase::Failed { .. }
            | Phase::Cancelled { .. } => None,
        }
    }

    pub(crate) fn is_movable(&self, job: &Job) -> bool {
        let shape = job.shape();
        let now = self.now.mono;
        // A job that reports no usable times must not hold its place for ever.
        let patience_ms = self.settings.profile_ms.saturating_mul(20).max(600_000);
        let leaves = self.leaves(job).is_some();
        let measuring = !leaves
            && job.is_profiling()
            && !job.record.measured.contains(&shape)
            && now.since(job.changed) < patience_ms;
        let may_save =
            job.live.as_ref().is_some_and(|live| live.based && now >= live.save_not_before);
        may_save
            && !measuring
            && job.record.wish.is_none()
            && (leaves || job.record.barred_rounds == 0)
            && ended(job).is_none()
            && self.nodes_answer(job.id())
    }

    fn want(&mut self, id: JobId, capacity: &Resources) -> Want {
        if !self.job(id).record.profiled && self.key_is_known(self.job(id)) {
            self.end_profiling(id, "the speed of its model_key is known");
        }
        if self.job(id).is_profiling() {
            let shapes = self.shapes_wanted(self.job(id), capacity);
            let job = self.job(id);
            if !shapes.is_empty() {
                return Want::Profile { shapes };
            }
            if job.record.measured.is_empty() {
                return Want::Profile { shapes: vec![job.spec().shape_min()] };
            }
            self.end_profiling(id, "every shape that fits was measured");
        }
        // Its loss is fitted as reports come in, so that a round does not hold up heartbeats.
        let speed = self.fitted(id);
        let job = self.job(id);
        match speed {
            Some(speed) => Want::Share { speed, remaining: left(job).ok().map(|left| left.work) },
            // Pinned from its first day, say: any measured shape will do.
            None => {
                let shape = job.shape();
                let shape = if shape.is_empty() { job.spec().shape_min() } else { shape };
                Want::Profile { shapes: vec![shape] }
            }
        }
    }

    /// The mean of the job's own last moves, else the setting.
    pub(crate) fn rescale_cost_s(&self, job: &Job) -> f64 {
        let moves = job.record.decisions.iter().rev().filter(|decision| decision.while_running);
        let costs: Vec<f64> = moves.filter_map(|decision| decision.cost_s).take(5).collect();
        if costs.is_empty() {
            return self.settings.rescale_cost_s;
        }
        let count = crate::job::float(u64::try_from(costs.len()).unwrap_or(1));
        costs.iter().sum::<f64>() / count
    }

    fn node_inputs(&self, jobs: &[JobInput]) -> Vec<NodeInput> {
        let mut counted: BTreeMap<NodeId, Resources> = BTreeMap::new();
        let mut shown: BTreeMap<(NodeId, JobId), Resources> = BTreeMap::new();
        for input in jobs {
            if let Some(current) = &input.current {
                let job = self.job(input.id);
                add_placement(&mut counted, job, &current.placement);
                for share in &current.placement.0 {
                    let take = demand_of(job, Shape::new(share.servers, share.workers));
                    shown.insert((share.node.clone(), input.id), take);
                }
            }
        }
        let avoided = self.avoided();
        let mut inputs = Vec::new();
        for (id, node) in &self.nodes {
            let none = Resources::default();
            let current = counted.get(id).unwrap_or(&none);
            if (node.reach == Reachability::Gone && current.is_zero()) || node.is_emptied() {
                continue;
            }
            // What is still there beside what the round counts by itself: strangers, jobs that
            // leave, and the part of an old place that is larger than the new one.
            let mut held = node.strangers_use.clone();
            for job in &node.lives {
                let lives = demand_of(self.job(*job), self.job(*job).placement().on(id));
                let seen = shown.get(&(id.clone(), *job)).unwrap_or(&none);
                held = held.plus(&lives.minus_saturating(seen));
            }
            // Capacity that shrank under running work leaves nothing free, not less.
            let capacity = widest(&node.record.capacity, current);
            let rest = capacity.minus_saturating(current);
            let held = held.minus_saturating(&held.minus_saturating(&rest));
            let open =
                node.takes_nothing().is_none() && node.session.is_some() && !avoided.contains(id);
            inputs.push(NodeInput { id: id.clone(), capacity, held, open });
        }
        inputs
    }
}

/// The larger of two amounts of each kind.
fn widest(a: &Resources, b: &Resources) -> Resources {
    b.plus(&a.minus_saturating(b))
}
