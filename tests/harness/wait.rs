//! Waiting for a condition, with a limit: the only place of the tests that lets time pass.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(50);

/// A stopwatch.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the place that reads the clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Lets a moment pass between two looks at a condition.
#[expect(clippy::disallowed_methods, reason = "the one pause between two looks at a condition")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Looks until `look` gives a value.
///
/// # Errors
/// Where `limit` passes first (with what was waited for), or where `look` fails.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let clock = Clock::start();
    loop {
        if let Some(value) = look()? {
            return Ok(value);
        }
        if clock.elapsed() > limit {
            bail!("waited {limit:?} in vain for {what}");
        }
        pause(POLL);
    }
}
