//! A returned plan against the present state: what still fits is applied, what does not is
//! dropped with a reason.

use std::collections::{BTreeMap, BTreeSet};

use model::{JobId, NodeId, Placement, Resources, RoundId, Shape};
use scheduler::plan::{Decision, Plan, Verb};

use crate::job::phase::{Goal, Move, Next, Origin, Phase, Predicted, Wait};
use crate::job::{Job, float};
use crate::record::{ROUND_JOBS_MAX, RoundJob, RoundRecord};
use crate::room::{add_placement, demand};
use crate::round::Purpose;
use crate::step::Control;
use crate::timers::Timer;

/// Findings kept of one round.
const DROPPED_MAX: usize = 256;

impl Control {
    pub(crate) fn on_round_finished(&mut self, plan: &Plan, refused: Vec<String>, elapsed_s: f64) {
        let flight = self.rounding.in_flight.take_if(|flight| flight.revision == plan.revision);
        let Some(flight) = flight else {
            self.count("plan that nobody waits for");
            return;
        };
        self.timers.cancel(&Timer::PlanLost);
        match flight.purpose {
            Purpose::Try(resize) => self.finish_trial(*resize, plan, &refused),
            Purpose::Round { cause, jobs } => {
                self.finish_round(plan, refused, elapsed_s, cause, jobs);
            }
        }
        self.schedule_round();
    }

    fn finish_trial(&mut self, resize: crate::change::Resize, plan: &Plan, refused: &[String]) {
        let decision = plan.decisions.iter().find(|decision| decision.job == resize.job);
        let verdict = match decision {
            _ if !refused.is_empty() => Err(refused.join("; ")),
            None => Err("the job takes part in no round now".to_owned()),
            Some(decision) => match &decision.verb {
                Verb::Start { placement } | Verb::Rescale { placement }
                    if placement.shape() == resize.shape =>
                {
                    Ok(())
                }
                Verb::Keep
                | Verb::Start { .. }
                | Verb::Rescale { .. }
                | Verb::Evict
                | Verb::Wait => {
                    let mut words = decision.reason.text();
                    for (reason, nodes) in decision.reason.nodes_refused() {
                        words = format!("{words}; {nodes} nodes: {reason}");
                    }
                    Err(words)
                }
            },
        };
        self.answer_resize(resize, verdict);
    }

    fn finish_round(
        &mut self,
        plan: &Plan,
        refused: Vec<String>,
        elapsed_s: f64,
        cause: String,
        jobs_seen: u32,
    ) {
        self.meta.rounds += 1;
        self.out.meta = true;
        let id = RoundId(self.meta.rounds);
        let elapsed_s = if elapsed_s.is_finite() { elapsed_s.max(0.0) } else { 0.0 };
        let sound = refused.is_empty();
        let mut dropped: Vec<String> = refused;
        let accepted = if sound { self.accepted(plan, &mut dropped) } else { BTreeSet::new() };
        let mut record = RoundRecord {
            id,
            at: self.now.unix,
            cause,
            policy: self.settings.policy.name().to_owned(),
            elapsed_s,
            jobs_seen,
            started: 0,
            rescaled: 0,
            waiting: 0,
            jobs: Vec::new(),
            dropped: Vec::new(),
            used: Vec::new(),
        };
        let mut entries = Vec::new();
        for decision in &plan.decisions {
            if let Some(entry) = self.note_decision(id, decision, &mut record) {
                entries.push(entry);
            }
        }
        for decision in &plan.decisions {
            if accepted.contains(&decision.job) {
                self.apply(id, decision);
            } else if sound {
                self.on_not_applied(decision);
            }
        }
        for decision in &plan.decisions {
            if let Some(job) = self.jobs.get_mut(&decision.job)
                && job.record.barred_rounds > 0
            {
                job.record.barred_rounds -= 1;
            }
        }
        // Changes first: what stays as it is says least.
        entries.sort_by_key(|entry| (entry.verb == "keep", entry.verb == "wait", entry.job));
        entries.truncate(ROUND_JOBS_MAX);
        record.jobs = entries;
        dropped.truncate(DROPPED_MAX);
        record.dropped = dropped;
        record.used = self.used_in_the_end();
        self.rounding.finished = Some((id, self.now.unix, self.now.mono));
        self.rounds.insert(id, record);
        self.out.rounds.insert(id);
        while self.rounds.len() > self.settings.rounds_kept {
            if let Some((old, _)) = self.rounds.pop_first() {
                self.out.rounds.remove(&old);
                self.out.deleted.push(crate::record::Key::Round(old));
            }
        }
    }

    /// Keeps what the round said of a job, for `why` and `round show`.
    fn note_decision(
        &mut self,
        round: RoundId,
        decision: &Decision,
        record: &mut RoundRecord,
    ) -> Option<RoundJob> {
        let unix = self.now.unix;
        let job = self.jobs.get(&decision.job)?;
        let words = self.round_words(job, decision.reason.text());
        let from = job.shape();
        let (to, placement) = match &decision.verb {
            Verb::Start { placement } | Verb::Rescale { placement } => {
                (placement.shape(), placement.clone())
            }
            Verb::Keep => (from, job.placement()),
            Verb::Evict | Verb::Wait => (Shape::default(), Placement::default()),
        };
        match &decision.verb {
            Verb::Start { .. } => record.started += 1,
            Verb::Rescale { .. } => record.rescaled += 1,
            Verb::Evict | Verb::Wait => record.waiting += 1,
            Verb::Keep => {}
        }
        let reason = &decision.reason;
        let entry = RoundJob {
            job: decision.job,
            verb: decision.verb.name().to_owned(),
            from,
            to,
            reason: words.chars().take(1_000).collect(),
            predicted_steps_per_s: reason.speed_after,
            measured_steps_per_s: None,
            remaining_s: reason.remaining_s,
            placement,
            nodes_refused: reason.nodes_refused().iter().take(16).cloned().collect(),
            remedy: reason.remedy().map(str::to_owned),
        };
        self.jobs.get_mut(&decision.job)?.decision = Some((round, unix, entry.clone()));
        Some(entry)
    }

    /// Decisions that fit the present state, each by itself and all of them together.
    fn accepted(&self, plan: &Plan, dropped: &mut Vec<String>) -> BTreeSet<JobId> {
        let mut left: BTreeMap<JobId, Option<&Placement>> = BTreeMap::new();
        for decision in &plan.decisions {
            match self.fits_job(decision) {
                Ok(None) => {}
                Ok(Some(target)) => {
                    if left.insert(decision.job, target).is_some() {
                        left.remove(&decision.job);
                        dropped.push(format!("{}: decided twice", decision.job));
                    }
                }
                Err(why) => {
                    dropped.push(format!("{} {}: {why}", decision.job, decision.verb.name()));
                }
            }
        }
        // A dropped decision keeps its old room, which another one may have counted on: repeated
        // until nothing more is dropped, so at most once for each decision.
        while let Some((job, why)) = self.first_without_room(&left) {
            left.remove(&job);
            dropped.push(format!("{job}: {why}"));
        }
        left.into_keys().collect()
    }

    /// The place that a decision gives (none for an eviction) where the job is still such that it
    /// can be applied; the outer none where there is nothing to apply.
    #[expect(clippy::option_option, reason = "nothing to apply, or a change to nothing")]
    fn fits_job<'a>(
        &self,
        decision: &'a Decision,
    ) -> Result<Option<Option<&'a Placement>>, String> {
        let placement = match &decision.verb {
            Verb::Keep | Verb::Wait => return Ok(None),
            Verb::Evict => None,
            Verb::Start { placement } | Verb::Rescale { placement } => Some(placement),
        };
        let job = self.jobs.get(&decision.job).ok_or("the job is not known any more")?;
        match (&decision.verb, job.phase()) {
            (Verb::Start { .. }, Phase::Queued { wait: Wait::Round { .. }, .. })
                if job.wished().is_none() => {}
            (Verb::Rescale { .. } | Verb::Evict, Phase::Running { pending: None, .. })
                if job.record.wish.is_none() && crate::job::epochs::ended(job).is_none() => {}
            (_, phase) => return Err(format!("the job is {} by now", phase.state())),
        }
        let Some(placement) = placement else { return Ok(Some(None)) };
        let shape = placement.shape();
        if *placement == job.placement() {
            return Ok(None);
        }
        self.well_formed(placement)?;
        if !job.spec().accepts(shape) && job.wanted_shape() != Some(shape) {
            return Err(format!("{shape} is not within the job's bounds"));
        }
        let leaves = self.leaves(job).is_some();
        let measured = job.is_profiling() && job.record.measured.contains(&shape);
        if measured && !job.shape().is_empty() && !leaves {
            return Err(format!("{shape} was measured already"));
        }
        // Who has to leave a node is not asked what that costs.
        if let (Verb::Rescale { .. }, false, Some(why)) =
            (&decision.verb, leaves, self.over_budget(job))
        {
            return Err(why);
        }
        Ok(Some(Some(placement)))
    }

    fn well_formed(&self, placement: &Placement) -> Result<(), String> {
        let shares = &placement.0;
        let sorted = shares.windows(2).all(|pair| pair[0].node < pair[1].node);
        if !sorted || shares.iter().any(|share| share.servers == 0 && share.workers == 0) {
            return Err("its placement is not in order".to_owned());
        }
        let shape = placement.shape();
        if shape.servers == 0 || shape.workers == 0 {
            return Err(format!("{shape} lacks a server or a worker"));
        }
        for share in shares {
            if let Some(why) = self.takes_nothing(&share.node) {
                return Err(why);
            }
        }
        Ok(())
    }

    /// The first decision whose place would not fit once everything is where it is meant to be.
    fn first_without_room(
        &self,
        left: &BTreeMap<JobId, Option<&Placement>>,
    ) -> Option<(JobId, String)> {
        let mut end = self.use_in_the_end(|job| left.contains_key(&job));
        for (id, placement) in left {
            let Some(placement) = placement else { continue };
            let job = self.job(*id);
            if let Some(why) = self.without_room(job, placement, &end) {
                return Some((*id, why));
            }
            add_placement(&mut end, job, placement);
        }
        None
    }

    fn without_room(
        &self,
        job: &Job,
        placement: &Placement,
        end: &BTreeMap<NodeId, Resources>,
    ) -> Option<String> {
        placement.0.iter().find_map(|share| {
            let node = self.nodes.get(&share.node)?;
            let none = Resources::default();
            let others = end.get(&share.node).unwrap_or(&none);
            let free = node.record.capacity.minus_saturating(others);
            let (kind, have, want) = free.lacks(&demand(job, share))?;
            Some(format!("{} needs {want} {kind}, {have} are left", share.node))
        })
    }

    fn apply(&mut self, round: RoundId, decision: &Decision) {
        let id = decision.job;
        let reason = &decision.reason;
        let job = self.job(id);
        let faulty = job.record.last.is_some() && job.record.faults_in_row > 0;
        let place = |placement: &Placement, origin: Origin| Move {
            placement: placement.clone(),
            origin,
            round: Some(round),
            profiling: job.is_profiling(),
            reason: self.round_words(job, reason.text()).chars().take(1_000).collect(),
            predicted: Predicted {
                before: reason.speed_before,
                after: reason.speed_after,
                gain_s: reason.gain_s,
            },
        };
        match &decision.verb {
            Verb::Start { placement } => {
                let origin = if faulty { Origin::Fault } else { Origin::Queue };
                let place = place(placement, origin);
                self.give_place(id, place);
            }
            Verb::Rescale { placement } => {
                let place = place(placement, Origin::Rescale);
                self.give_place(id, place);
            }
            Verb::Evict => {
                let refused = reason.nodes_refused().first().map(|(why, _)| why.as_str());
                let reason = self.evicted_words(job, refused).unwrap_or_else(|| {
                    let words: String = reason.text().chars().take(1_000).collect();
                    format!("gave its place up in {round}: {words}")
                });
                self.begin_save(id, Goal::Leave(Next::Queue { reason }));
            }
            Verb::Keep | Verb::Wait => {}
        }
    }

    /// A profiled job that got no shape which it still wants has measured what it can.
    fn on_not_applied(&mut self, decision: &Decision) {
        let Some(job) = self.jobs.get(&decision.job) else { return };
        let measured = job.record.measured.contains(&job.shape());
        let running = matches!(job.phase(), Phase::Running { pending: None, .. });
        if job.is_profiling() && running && measured && job.record.barred_rounds == 0 {
            self.end_profiling(decision.job, "no other wanted shape fits now");
        }
    }

    /// Share of the cluster's total that is in use once everything is where it is meant to be.
    pub(crate) fn used_in_the_end(&self) -> Vec<(String, f64)> {
        let total = self.capacity_up();
        let end = self.use_in_the_end(|_| false);
        let used = end.values().fold(Resources::default(), |sum, part| sum.plus(part));
        total
            .kinds()
            .into_iter()
            .filter(|kind| total.amount(kind) > 0)
            .map(|kind| {
                let share = float(used.amount(&kind)) / float(total.amount(&kind));
                (kind, share)
            })
            .collect()
    }
}
