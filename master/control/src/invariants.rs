//! What must hold after every step; asserted in debug builds.

use std::collections::{BTreeMap, BTreeSet};

use model::reason::Schedulability;
use model::{JobId, NodeId, Resources};

use crate::job::phase::{Goal, Phase, Wait};
use crate::room::demand_of;
use crate::step::Control;
use crate::timers::Timer;

/// Above this many jobs and nodes only some are looked at in each step.
const WHOLE_MAX: usize = 300;

impl Control {
    /// Panics where the state contradicts itself. Debug builds do so after each step by
    /// themselves.
    ///
    /// # Panics
    /// With what is wrong.
    pub fn assert_invariants(&self) {
        let size = self.jobs.len() + self.nodes.len();
        let every = u64::try_from(size / WHOLE_MAX + 1).unwrap_or(1);
        let turn = self.rounding.revision % every;
        for (at, id) in (0_u64..).zip(self.jobs.keys()) {
            if at % every == turn {
                self.assert_job(*id);
            }
        }
        for (at, id) in (0_u64..).zip(self.nodes.keys()) {
            if at % every == turn {
                self.assert_node(id);
            }
        }
        assert!(self.events.len() <= self.settings.events_kept, "events are bounded");
        assert!(self.rounds.len() <= self.settings.rounds_kept, "rounds are bounded");
        assert!(self.out.commands.is_empty(), "every command was handed out");
        assert!(self.timers.len() <= 2 + 2 * self.nodes.len() + 8 * self.jobs.len(), "timers");
        if every == 1 {
            for id in &self.reserved {
                let waits = matches!(
                    self.job(*id).phase(),
                    Phase::Queued { wait: Wait::Room(_), .. }
                        | Phase::Running { pending: Some(_), .. }
                );
                assert!(waits, "{id} is listed as waiting for room but does not");
            }
            let mut promised: BTreeMap<NodeId, BTreeSet<JobId>> = BTreeMap::new();
            for (id, place) in
                self.jobs.iter().filter_map(|(id, job)| Some((id, job.phase().reserved()?)))
            {
                for share in &place.placement.0 {
                    promised.entry(share.node.clone()).or_default().insert(*id);
                }
            }
            assert_eq!(promised, self.promised, "nodes know of the places on them");
        }
    }

    fn assert_job(&self, id: model::JobId) {
        let job = self.job(id);
        let phase = job.phase();
        assert_eq!(
            self.unfinished.contains(&id),
            !phase.is_final(),
            "{id} is listed as its phase says"
        );
        let life = phase.life();
        assert_eq!(
            job.live.as_ref().map(|live| live.generation),
            life.map(|life| life.generation),
            "{id}: what is seen belongs to the generation that lives"
        );
        let Some(life) = life else { return };
        assert_eq!(job.record.last, Some(life.generation), "{id}: the newest generation lives");
        let shape = life.shape();
        assert!(shape.servers > 0 && shape.workers > 0, "{id} lives with {shape}");
        for share in &life.placement.0 {
            let node = self.nodes.get(&share.node);
            assert!(node.is_some_and(|node| node.lives.contains(&id)), "{id} on {}", share.node);
        }
        match phase {
            Phase::Stopping { alive, .. } => {
                assert!(!alive.is_empty(), "{id} stops with nothing left to stop");
                assert!(alive.is_subset(&shape.tasks()), "{id} has foreign tasks");
            }
            Phase::Checkpointing { save, goal, .. } => {
                assert_eq!(save.order.hold, matches!(goal, Goal::Leave(_)), "{id} holds to leave");
                assert!(!save.order.released, "{id} waits for a checkpoint that was released");
            }
            Phase::Running { released, .. } => {
                assert!(released.as_ref().is_none_or(|order| order.released), "{id} holds nobody");
            }
            Phase::Queued { .. }
            | Phase::Starting { .. }
            | Phase::Paused { .. }
            | Phase::Completed { .. }
            | Phase::Failed { .. }
            | Phase::Cancelled { .. } => {}
        }
        assert!(
            job.record.checkpoints.windows(2).all(|pair| pair[0].id < pair[1].id),
            "{id}: checkpoints in order"
        );
    }

    fn assert_node(&self, id: &model::NodeId) {
        let Some(node) = self.nodes.get(id) else { return };
        let drains = node.schedulability() == Schedulability::Draining;
        assert_eq!(self.closed.contains(id), !node.is_open(), "{id} is listed as it is");
        assert_eq!(self.draining.contains(id), drains, "{id} is listed as it is");
        assert!(
            !drains || self.timers.armed(&Timer::Drain(id.clone())).is_some(),
            "{id} is tended"
        );
        let mut used = Resources::default();
        for job in &node.lives {
            let on = self.job(*job).placement().on(id);
            assert!(!on.is_empty(), "{job} is listed on {id} but does not stand there");
            used = used.plus(&demand_of(self.job(*job), on));
        }
        assert_eq!(node.used, used, "{id}: what is used is the sum of who uses it");
        assert_eq!(node.places, self.places_taken(node), "{id}: places are counted as taken");
        let mut ports = BTreeSet::new();
        for job in &node.lives {
            let job = self.job(*job);
            // Of one that stops the PS scheduler may be proved out, as by a new boot of its node:
            // then its port is another's, whoever of it is still awaited elsewhere.
            let stops = matches!(job.phase(), Phase::Stopping { .. });
            if let Some(life) = job.life()
                && !stops
                && life.placement.scheduler_node() == Some(id)
            {
                assert!(ports.insert(life.root_port), "{id}: port {} twice", life.root_port);
            }
        }
    }
}
