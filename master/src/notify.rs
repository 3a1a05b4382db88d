//! What systemd is told. Without it every call does nothing.

use std::time::Duration;

use sd_notify::NotifyState;

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot reach systemd");
    }
}

pub(crate) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Before files are read anew; [`reloaded`] ends it, and `systemctl reload` with it.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot tell systemd of a reload"),
    }
}

pub(crate) fn reloaded() {
    notify(&[NotifyState::Ready]);
}

pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Sent by the loop that owns the state: what hangs is then noticed where it matters.
pub(crate) fn watchdog() {
    notify(&[NotifyState::Watchdog]);
}

/// How often [`watchdog`] is to be called: half of what systemd allows; none where it does not
/// ask.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|allowed| allowed / 2)
}
