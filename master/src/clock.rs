//! The one place of the daemon that reads clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use control::event::Now;
use model::{Millis, UnixMs};

/// Both clocks. Copies agree on the origin of the monotonic one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

#[expect(clippy::disallowed_methods, reason = "this is the place that reads the clocks")]
impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub(crate) fn mono(self) -> Millis {
        Millis(u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn now(self) -> Now {
        Now { mono: self.mono(), unix: UnixMs(self.unix_ms()) }
    }

    /// For certificates and the dates of files.
    pub(crate) fn wall(self) -> SystemTime {
        SystemTime::now()
    }

    /// Milliseconds since 1970; 0 where the clock is set before that.
    pub(crate) fn unix_ms(self) -> u64 {
        let since = self.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
