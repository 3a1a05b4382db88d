//! Two kinds of time that must never be mixed.

use serde::{Deserialize, Serialize};

/// A monotonic instant in milliseconds since an arbitrary origin of one process. Deadlines and
/// ages are computed from this one only: a wall clock jumps.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Millis(pub u64);

impl Millis {
    /// The instant `ms` later; saturates, so that "never" can be written as a huge number.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to `self`, zero where `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Seconds from `earlier` to `self`.
    #[must_use]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        seconds(self.since(earlier))
    }
}

/// Milliseconds since 1970-01-01 UTC: for people and records, never for deadlines.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// Seconds from `earlier` to `self`, zero where the clock went back.
    #[must_use]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        seconds(self.0.saturating_sub(earlier.0))
    }
}

/// Milliseconds as seconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "2^53 ms are 285,000 years")]
pub fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}
