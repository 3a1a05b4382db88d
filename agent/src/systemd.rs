//! The service manager, where there is one.

use model::Millis;
use sd_notify::NotifyState;

/// Says that the daemon is ready, and that its loop turns.
#[derive(Debug)]
pub(crate) struct Systemd {
    every_ms: Option<u64>,
    due: Millis,
}

impl Systemd {
    pub(crate) fn new() -> Self {
        let limit = sd_notify::watchdog_enabled();
        // Three signs of life within the limit: one may come late.
        let every_ms = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) / 3);
        Self { every_ms, due: Millis(0) }
    }

    pub(crate) fn ready(&self) {
        say(NotifyState::Ready);
    }

    pub(crate) fn stopping(&self) {
        say(NotifyState::Stopping);
    }

    /// When the next sign of life is due.
    pub(crate) fn due(&self) -> Millis {
        if self.every_ms.is_some() { self.due } else { Millis(u64::MAX) }
    }

    pub(crate) fn alive(&mut self, now: Millis) {
        if let Some(every_ms) = self.every_ms
            && self.due <= now
        {
            self.due = now.plus(every_ms);
            say(NotifyState::Watchdog);
        }
    }
}

/// Before files are read anew; [`reloaded`] ends it, and `systemctl reload` with it.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => say_all(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot tell the service manager of a reload"),
    }
}

pub(crate) fn reloaded() {
    say(NotifyState::Ready);
}

fn say(state: NotifyState<'_>) {
    say_all(&[state]);
}

fn say_all(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
