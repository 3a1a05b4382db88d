//! The one table of a job's transitions. A state's data lives in its variant; an event of another
//! phase or generation is stale, and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use model::agent::{CheckpointOrder, Part};
use model::{CheckpointId, Generation, Placement, RoundId, Shape, Task};
use serde::{Deserialize, Serialize};

/// One generation: everything that its agents need to know, and where its numbers start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Life {
    pub generation: Generation,
    pub placement: Placement,
    pub root_host: String,
    pub root_port: u16,
    /// The checkpoint resumed from, and its folder's URL.
    pub resume: Option<CheckpointId>,
    pub resume_directory: Option<String>,
    pub origin: Origin,
    /// Step and work (see `progress.rs`) at its start.
    pub base_step: u64,
    pub base_work: f64,
    /// Sums of the unfinished epoch that the checkpoint carries.
    pub partial: Option<Partial>,
}

/// Why a generation was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// It waited with nothing.
    #[default]
    Queue,
    /// It moved here from another shape or placement.
    Rescale,
    /// It came back after a fault.
    Fault,
}

/// Loss sums of the part of an epoch that was done before a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Partial {
    pub epoch: u32,
    pub loss_sum: f64,
    pub samples: u64,
}

/// A place that a job was given and has not got yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    pub placement: Placement,
    pub origin: Origin,
    pub round: Option<RoundId>,
    pub profiling: bool,
    pub reason: String,
    pub predicted: Predicted,
}

/// What the round expected of a move: steps a second before and after, and seconds saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    pub before: Option<f64>,
    pub after: Option<f64>,
    pub gain_s: Option<f64>,
}

/// Why a job with nothing waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Wait {
    /// For a round's decision.
    Round { reason: String },
    /// After a fault.
    BackOff { ms: u64, cause: String },
    /// For the room of a place that it was given to become free.
    Room(Move),
}

/// A checkpoint under way. All of it is of this one order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Save {
    pub order: CheckpointOrder,
    /// Where each worker stands: step, epoch, and its sums of that epoch.
    pub reached: BTreeMap<u32, Reached>,
    pub saved: Option<Saved>,
    /// How often the step was named anew.
    pub renamed: u32,
    /// The parts are with the store: nothing more is expected from the workers.
    pub publishing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    pub step: u64,
    pub epoch: u32,
    pub loss_sum: f64,
    pub samples: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    pub step: u64,
    pub epoch: u32,
    pub epoch_position: u64,
    pub parts: Vec<Part>,
}

/// What a checkpoint is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Goal {
    /// Train on afterwards.
    Continue,
    /// Stop afterwards.
    Leave(Next),
}

/// What a job does once its processes are gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Next {
    Start(Move),
    Queue { reason: String },
    BackOff { ms: u64, cause: String },
    Pause,
    Complete { note: String },
    Fail { cause: String },
    Cancel { note: String },
}

impl Next {
    /// True where no further generation follows: then a task on a silent node needs no proof of
    /// death, since it is fenced when the node returns.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Complete { .. } | Self::Fail { .. } | Self::Cancel { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Phase {
    Queued {
        last: Option<Generation>,
        wait: Wait,
    },
    Starting {
        life: Life,
    },
    /// `pending` is a better place whose room is not free yet; `released` an order of a
    /// checkpoint that came to nothing, shown so that no worker holds for it.
    Running {
        life: Life,
        pending: Option<Move>,
        released: Option<CheckpointOrder>,
    },
    Checkpointing {
        life: Life,
        save: Save,
        goal: Goal,
    },
    /// `alive` is a set, not a count: an exit that is reported twice must not start the next
    /// generation beside a living process.
    Stopping {
        life: Life,
        alive: BTreeSet<Task>,
        next: Next,
        grace_ms: u64,
    },
    Paused {
        last: Option<Generation>,
    },
    Completed {
        note: String,
    },
    Failed {
        cause: String,
    },
    Cancelled {
        note: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum JobEvent {
    /// A job with nothing, or a running one, is given a place that is not free yet.
    Reserved {
        place: Move,
    },
    /// The place was lost, or did not become free.
    Unreserved {
        reason: String,
    },
    Placed {
        life: Life,
    },
    AllUp {
        generation: Generation,
    },
    CheckpointOrdered {
        generation: Generation,
        save: Save,
        goal: Goal,
    },
    Published {
        generation: Generation,
        checkpoint: CheckpointId,
        grace_ms: u64,
    },
    /// Late or failed: the workers train on.
    CheckpointOver {
        generation: Generation,
        checkpoint: CheckpointId,
    },
    Stop {
        generation: Generation,
        next: Next,
        grace_ms: u64,
    },
    TaskGone {
        generation: Generation,
        task: Task,
    },
    BackOffOver,
    Pause,
    Resume,
    /// Ends a job that holds nothing.
    End {
        next: Next,
    },
}

/// The event does not belong to the job's present phase or generation.
#[derive(Debug, PartialEq)]
pub struct Stale {
    pub phase: Box<Phase>,
    pub event: Box<JobEvent>,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stale event {:?} in phase {}", self.event, self.phase.state())
    }
}

impl Life {
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.placement.shape()
    }
}

impl Phase {
    /// A short name of the variant, for records of what was refused.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Starting { .. } => "starting",
            Self::Running { .. } => "running",
            Self::Checkpointing { .. } => "checkpointing",
            Self::Stopping { .. } => "stopping",
            Self::Paused { .. } => "paused",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Cancelled { .. } => "cancelled",
        }
    }

    /// The generation whose processes may be alive.
    #[must_use]
    pub const fn life(&self) -> Option<&Life> {
        match self {
            Self::Starting { life }
            | Self::Running { life, .. }
            | Self::Checkpointing { life, .. }
            | Self::Stopping { life, .. } => Some(life),
            Self::Queued { .. }
            | Self::Paused { .. }
            | Self::Completed { .. }
            | Self::Failed { .. }
            | Self::Cancelled { .. } => None,
        }
    }

    /// The newest generation that was ever started.
    #[must_use]
    pub fn last(&self) -> Option<Generation> {
        match self {
            Self::Queued { last, .. } | Self::Paused { last } => *last,
            Self::Starting { life }
            | Self::Running { life, .. }
            | Self::Checkpointing { life, .. }
            | Self::Stopping { life, .. } => Some(life.generation),
            Self::Completed { .. } | Self::Failed { .. } | Self::Cancelled { .. } => None,
        }
    }

    /// A place that the job was given and has not got yet.
    #[must_use]
    pub const fn reserved(&self) -> Option<&Move> {
        match self {
            Self::Queued { wait: Wait::Room(place), .. }
            | Self::Running { pending: Some(place), .. }
            | Self::Checkpointing { goal: Goal::Leave(Next::Start(place)), .. }
            | Self::Stopping { next: Next::Start(place), .. } => Some(place),
            Self::Queued { .. }
            | Self::Starting { .. }
            | Self::Running { .. }
            | Self::Checkpointing { .. }
            | Self::Stopping { .. }
            | Self::Paused { .. }
            | Self::Completed { .. }
            | Self::Failed { .. }
            | Self::Cancelled { .. } => None,
        }
    }

    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Completed { .. } | Self::Failed { .. } | Self::Cancelled { .. })
    }

    /// The one place where a job changes phase.
    ///
    /// # Errors
    /// [`Stale`] with the phase unchanged where the event does not belong to it.
    pub fn on(self, event: JobEvent) -> Result<Self, Stale> {
        use JobEvent as E;
        match (self, event) {
            (Self::Queued { last, wait: Wait::Round { .. } }, E::Reserved { place }) => {
                Ok(Self::Queued { last, wait: Wait::Room(place) })
            }
            (Self::Running { life, pending: None, released }, E::Reserved { place }) => {
                Ok(Self::Running { life, pending: Some(place), released })
            }
            (Self::Queued { last, wait: Wait::Room(_) }, E::Unreserved { reason }) => {
                Ok(Self::Queued { last, wait: Wait::Round { reason } })
            }
            (Self::Running { life, pending: Some(_), released }, E::Unreserved { .. }) => {
                Ok(Self::Running { life, pending: None, released })
            }
            (
                Self::Queued { last, wait: Wait::Round { .. } | Wait::Room(_) },
                E::Placed { life },
            ) if last.unwrap_or_default() < life.generation => Ok(Self::Starting { life }),
            (Self::Starting { life }, E::AllUp { generation }) if generation == life.generation => {
                Ok(Self::Running { life, pending: None, released: None })
            }
            (Self::Running { life, .. }, E::CheckpointOrdered { generation, save, goal })
                if generation == life.generation =>
            {
                Ok(Self::Checkpointing { life, save, goal })
            }
            (phase @ Self::Checkpointing { .. }, event) => Self::on_checkpoint(phase, event),
            (phase @ Self::Stopping { .. }, event) => Self::on_stopping(phase, event),
            (
                Self::Starting { life } | Self::Running { life, .. },
                E::Stop { generation, next, grace_ms },
            ) if generation == life.generation => Ok(Self::stop(life, next, grace_ms)),
            (Self::Queued { last, wait: Wait::BackOff { cause, .. } }, E::BackOffOver) => {
                let reason = format!("back from a fault: {cause}");
                Ok(Self::Queued { last, wait: Wait::Round { reason } })
            }
            (Self::Queued { last, .. }, E::Pause) => Ok(Self::Paused { last }),
            (Self::Paused { last }, E::Resume) => {
                let reason = "resumed; not placed yet".to_owned();
                Ok(Self::Queued { last, wait: Wait::Round { reason } })
            }
            (Self::Queued { last, .. } | Self::Paused { last }, E::End { next })
                if next.is_final() =>
            {
                Ok(Self::gone(last, next))
            }
            (phase, event) => Err(Stale { phase: Box::new(phase), event: Box::new(event) }),
        }
    }

    fn on_checkpoint(self, event: JobEvent) -> Result<Self, Stale> {
        use JobEvent as E;
        match (self, event) {
            (
                Self::Checkpointing { life, save, goal },
                E::Published { generation, checkpoint, grace_ms },
            ) if generation == life.generation && checkpoint == save.order.checkpoint => {
                Ok(match goal {
                    Goal::Continue => Self::Running { life, pending: None, released: None },
                    Goal::Leave(next) => Self::stop(life, next, grace_ms),
                })
            }
            (
                Self::Checkpointing { life, save, .. },
                E::CheckpointOver { generation, checkpoint },
            ) if generation == life.generation && checkpoint == save.order.checkpoint => {
                let released = Some(CheckpointOrder { released: true, ..save.order });
                Ok(Self::Running { life, pending: None, released })
            }
            (Self::Checkpointing { life, .. }, E::Stop { generation, next, grace_ms })
                if generation == life.generation =>
            {
                Ok(Self::stop(life, next, grace_ms))
            }
            (phase, event) => Err(Stale { phase: Box::new(phase), event: Box::new(event) }),
        }
    }

    fn on_stopping(self, event: JobEvent) -> Result<Self, Stale> {
        use JobEvent as E;
        match (self, event) {
            (
                Self::Stopping { life, mut alive, next, grace_ms },
                E::TaskGone { generation, task },
            ) if generation == life.generation && alive.contains(&task) => {
                alive.remove(&task);
                Ok(if alive.is_empty() {
                    Self::gone(Some(life.generation), next)
                } else {
                    Self::Stopping { life, alive, next, grace_ms }
                })
            }
            // A later word about what comes after, or a shorter grace.
            (
                Self::Stopping { life, alive, grace_ms: before, .. },
                E::Stop { generation, next, grace_ms },
            ) if generation == life.generation => {
                Ok(Self::Stopping { life, alive, next, grace_ms: grace_ms.min(before) })
            }
            (phase, event) => Err(Stale { phase: Box::new(phase), event: Box::new(event) }),
        }
    }

    fn stop(life: Life, next: Next, grace_ms: u64) -> Self {
        let alive = life.shape().tasks();
        Self::Stopping { life, alive, next, grace_ms }
    }

    fn gone(last: Option<Generation>, next: Next) -> Self {
        match next {
            Next::Start(place) => Self::Queued { last, wait: Wait::Room(place) },
            Next::Queue { reason } => Self::Queued { last, wait: Wait::Round { reason } },
            Next::BackOff { ms, cause } => Self::Queued { last, wait: Wait::BackOff { ms, cause } },
            Next::Pause => Self::Paused { last },
            Next::Complete { note } => Self::Completed { note },
            Next::Fail { cause } => Self::Failed { cause },
            Next::Cancel { note } => Self::Cancelled { note },
        }
    }
}
