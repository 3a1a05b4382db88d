//! A job: what is kept of it, what is known of its present generation, and what it is called.

pub(crate) mod blocks;
pub(crate) mod checkpoint;
pub mod diverged;
pub(crate) mod epochs;
pub(crate) mod estimate;
pub(crate) mod live;
pub(crate) mod notes;
pub(crate) mod pause;
pub mod phase;
pub(crate) mod profile;
pub(crate) mod progress;
pub(crate) mod rates;
pub(crate) mod rescale;
pub(crate) mod restart;
pub(crate) mod save_failed;
pub(crate) mod speed;
pub(crate) mod start;
pub(crate) mod straggler;

use model::notes::DataReport;
use model::reason::PhaseName;
use model::{Generation, JobId, JobOptions, JobSpec, Millis, Placement, Shape, UnixMs};
use scheduler::estimate::loss::{Curve, LossFit};

use crate::job::blocks::Blocks;
use crate::job::diverged::Diverging;
use crate::job::live::Live;
use crate::job::pause::Pauses;
use crate::job::phase::{Goal, Life, Next, Origin, Phase, Wait};
use crate::job::rates::Rates;
use crate::record::{CheckpointRecord, JobRecord, Progress, RoundJob, SlowJob, SpeedKey, Wish};

/// Decisions, faults and old placements kept of a job.
pub(crate) const HISTORY_MAX: usize = 100;
pub(crate) const PLACEMENTS_MAX: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) record: JobRecord,
    /// What was seen of the present generation; none while there is none.
    pub(crate) live: Option<Live>,
    pub(crate) arrival: Millis,
    /// When its shape last changed or it last began.
    pub(crate) changed: Millis,
    /// The last round's decision, until the next one.
    pub(crate) decision: Option<(model::RoundId, UnixMs, RoundJob)>,
    /// A checkpoint whose manifest is being written.
    pub(crate) publishing: Option<CheckpointRecord>,
    /// The instant of the last step before the generation now starting.
    pub(crate) gap_since: Option<Millis>,
    /// When it was given a place that it has not got yet.
    pub(crate) promised: Option<Millis>,
    /// GPU seconds (or task seconds, where it has no GPUs) of the generations that ended.
    pub(crate) attained_s: f64,
    /// Learning rates that it announced; kept in a record of their own.
    pub(crate) rates: Rates,
    /// Kept in a record of their own where they are not the defaults.
    pub(crate) options: JobOptions,
    /// The same holds for these.
    pub(crate) diverging: Diverging,
    pub(crate) blocks: Blocks,
    /// Slow workers; kept in a record of their own.
    pub(crate) slow: SlowJob,
    /// When a slow worker was last put elsewhere, by this master.
    pub(crate) slow_moved: Option<Millis>,
    /// A generation that could not be started, for which the job itself was blamed.
    pub(crate) blamed_start: Option<Generation>,
    /// What its data set holds, once an agent has told.
    pub(crate) data: Option<DataReport>,
    pub(crate) pauses: Pauses,
    /// The user's own curve, parsed once. One that an older build took and this one does not read
    /// leaves Eqn. (1).
    pub(crate) curve: Option<Curve>,
    /// The fit of Eqn. (1) or of the user's curve, for this many loss points.
    pub(crate) loss_fit: Option<Result<LossFit, String>>,
    pub(crate) loss_fit_points: usize,
    pub(crate) loss_fit_at: Millis,
}

impl Job {
    pub(crate) fn new(record: JobRecord, arrival: Millis) -> Self {
        let curve = record.spec.finish.curve().and_then(|curve| Curve::parse(curve).ok());
        Self {
            record,
            live: None,
            arrival,
            changed: arrival,
            decision: None,
            publishing: None,
            gap_since: None,
            promised: None,
            attained_s: 0.0,
            rates: Rates::default(),
            options: JobOptions::default(),
            diverging: Diverging::default(),
            blocks: Blocks::default(),
            slow: SlowJob::default(),
            slow_moved: None,
            blamed_start: None,
            data: None,
            pauses: Pauses::default(),
            curve,
            loss_fit: None,
            loss_fit_points: 0,
            loss_fit_at: arrival,
        }
    }

    pub(crate) fn id(&self) -> JobId {
        self.record.id
    }

    pub(crate) fn spec(&self) -> &JobSpec {
        &self.record.spec
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.record.phase
    }

    pub(crate) fn life(&self) -> Option<&Life> {
        self.record.phase.life()
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.record.progress
    }

    /// The shape of the present generation; empty where there is none.
    pub(crate) fn shape(&self) -> Shape {
        self.life().map_or_else(Shape::default, Life::shape)
    }

    pub(crate) fn placement(&self) -> Placement {
        self.life().map_or_else(Placement::default, |life| life.placement.clone())
    }

    /// The operator's shape, if any: for good or until it runs.
    pub(crate) fn wanted_shape(&self) -> Option<Shape> {
        self.record.once.or(self.record.pinned)
    }

    pub(crate) fn is_profiling(&self) -> bool {
        !self.record.profiled && self.wanted_shape().is_none()
    }

    pub(crate) fn speed_key(&self) -> SpeedKey {
        let spec = self.spec();
        let Some(key) = spec.model_key.clone() else { return SpeedKey::Job(self.id()) };
        let mode = spec.mode.name();
        let rule = match spec.batch {
            model::Batch::Global(samples) => format!("{mode} global {samples}"),
            model::Batch::PerWorker(samples) => format!("{mode} per worker {samples}"),
        };
        SpeedKey::Model { key, rule }
    }

    /// GPUs that a shape takes; servers and workers where it takes none.
    fn weight(&self, shape: Shape) -> f64 {
        let spec = self.spec();
        let gpus = |each: u64, count: u32| float(each) * f64::from(count);
        let all = gpus(spec.worker.gpus, shape.workers) + gpus(spec.server.gpus, shape.servers);
        if spec.worker.gpus == 0 && spec.server.gpus == 0 {
            return f64::from(shape.workers) + f64::from(shape.servers);
        }
        all
    }

    /// GPU seconds that it had so far, or task seconds where it takes no GPUs. Those of
    /// generations before the last start of the master are not known any more.
    pub(crate) fn attained_s(&self, now: Millis) -> f64 {
        let present = self.live.as_ref().map_or(0.0, |live| now.seconds_since(live.begun));
        self.attained_s + present * self.weight(self.shape())
    }

    /// A generation of this shape is over.
    pub(crate) fn count_attained(&mut self, shape: Shape, now: Millis) {
        let seconds = self.live.as_ref().map_or(0.0, |live| now.seconds_since(live.begun));
        self.attained_s += seconds * self.weight(shape);
    }

    /// The newest checkpoint that can be resumed from.
    pub(crate) fn newest_checkpoint(&self) -> Option<&CheckpointRecord> {
        self.record.checkpoints.iter().rev().find(|kept| self.diverging.admits(kept))
    }

    pub(crate) fn next_generation(&self) -> Generation {
        self.record.last.map_or(Generation(1), Generation::next)
    }

    /// Where the job is, as people see it.
    pub(crate) fn phase_name(&self) -> PhaseName {
        let rescale = if self.is_profiling() { PhaseName::Profiling } else { PhaseName::Rescaling };
        let moving = |next: &Next| match next {
            Next::Start(place) if place.origin == Origin::Rescale => rescale,
            Next::Start(_)
            | Next::Queue { .. }
            | Next::BackOff { .. }
            | Next::Pause
            | Next::Complete { .. }
            | Next::Fail { .. }
            | Next::Cancel { .. } => PhaseName::Stopping,
        };
        match self.phase() {
            Phase::Queued { wait: Wait::Room(place), .. } if place.origin == Origin::Rescale => {
                rescale
            }
            Phase::Queued { .. } => PhaseName::Queued,
            Phase::Starting { life } if life.origin == Origin::Rescale => rescale,
            Phase::Starting { .. } if self.is_profiling() => PhaseName::Profiling,
            Phase::Starting { .. } => PhaseName::Starting,
            Phase::Running { .. } | Phase::Checkpointing { goal: Goal::Continue, .. } => {
                if self.is_profiling() { PhaseName::Profiling } else { PhaseName::Running }
            }
            Phase::Checkpointing { goal: Goal::Leave(next), .. } => match next {
                Next::Queue { .. } => PhaseName::Rescaling,
                Next::Start(_)
                | Next::BackOff { .. }
                | Next::Pause
                | Next::Complete { .. }
                | Next::Fail { .. }
                | Next::Cancel { .. } => moving(next),
            },
            Phase::Stopping { next, .. } => moving(next),
            Phase::Paused { .. } => PhaseName::Paused,
            Phase::Completed { .. } => PhaseName::Completed,
            Phase::Failed { .. } => PhaseName::Failed,
            Phase::Cancelled { .. } => PhaseName::Cancelled,
        }
    }

    /// What becomes of the job once its processes are gone, where an operator's wish says so.
    pub(crate) fn wished(&self) -> Option<Next> {
        match self.record.wish? {
            Wish::Pause => Some(Next::Pause),
            Wish::Cancel => Some(Next::Cancel { note: "cancelled".to_owned() }),
            Wish::Checkpoint => None,
        }
    }
}

/// Appends to a list that keeps its newest `max` entries.
pub(crate) fn push_bounded<T>(list: &mut Vec<T>, entry: T, max: usize) {
    if list.len() >= max {
        list.drain(..=list.len() - max);
    }
    list.push(entry);
}

/// A finite, non-negative number of steps or samples as an integer; saturates.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0 .. 2^53, where every whole f64 is exact"
)]
pub(crate) fn whole(value: f64) -> u64 {
    if value.is_nan() { 0 } else { value.clamp(0.0, 9_007_199_254_740_992.0) as u64 }
}

/// A count as a float; exact below 2^53, far above every bound here.
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
