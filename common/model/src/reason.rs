//! Why a job is where it is: phases, node states, and the words beside them.

use serde::{Deserialize, Serialize};

/// Where a job is in its life, as people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PhaseName {
    Queued,
    Profiling,
    Starting,
    Running,
    Rescaling,
    Paused,
    Stopping,
    Completed,
    Failed,
    Cancelled,
}

impl PhaseName {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "QUEUED",
            Self::Profiling => "PROFILING",
            Self::Starting => "STARTING",
            Self::Running => "RUNNING",
            Self::Rescaling => "RESCALING",
            Self::Paused => "PAUSED",
            Self::Stopping => "STOPPING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// True where the job's story is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// Whether a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reachability {
    Up,
    /// No heartbeat for 10 s: no new work.
    Suspect,
    /// No heartbeat for 60 s: each job's `on_disconnect` applies.
    Down,
    /// An operator's word: its tasks are dead.
    Gone,
}

impl Reachability {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "UP",
            Self::Suspect => "SUSPECT",
            Self::Down => "DOWN",
            Self::Gone => "GONE",
        }
    }
}

/// Whether a node takes new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Schedulability {
    Open,
    Cordoned,
    Draining,
    Drained,
}

impl Schedulability {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Cordoned => "CORDONED",
            Self::Draining => "DRAINING",
            Self::Drained => "DRAINED",
        }
    }
}
