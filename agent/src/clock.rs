//! The one place of the daemon that reads clocks.

use std::time::{SystemTime, UNIX_EPOCH};

use model::Millis;
use nix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine booted, suspended time included: it never jumps, and two lives
/// of the agent in one boot can compare what they read.
pub(crate) fn now() -> Millis {
    let read = clock_gettime(ClockId::CLOCK_BOOTTIME)
        .expect("Linux has had this clock since 2.6.39, and the address is ours");
    let seconds = u64::try_from(read.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(read.tv_nsec()).unwrap_or(0);
    Millis(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
}

/// Milliseconds since 1970: for people only, never for deadlines.
#[expect(clippy::disallowed_methods, reason = "this is the place that reads the clock")]
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock, to judge the dates of certificates.
#[expect(clippy::disallowed_methods, reason = "this is the place that reads the clock")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}
