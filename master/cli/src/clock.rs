//! The only place of the command line that reads the clock.

use std::time::{Instant, SystemTime};

use model::UnixMs;

/// The present wall time, for certificates.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// The present wall time.
#[must_use]
pub(crate) fn now() -> UnixMs {
    let since = wall().duration_since(std::time::UNIX_EPOCH);
    UnixMs(since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}

/// The present instant, for measuring how long something takes.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}
