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
