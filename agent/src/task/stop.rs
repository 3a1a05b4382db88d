//! Ending a task: TERM, a grace, KILL, until no process of it is left.

use model::Millis;
use nix::sys::signal::Signal;

/// After this long a time of being killed without dying, a process is named in the log.
const UNKILLABLE_MS: u64 = 5000;

/// The end of one task, as far as it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    term_sent: bool,
    kill_at: Millis,
    killed_since: Option<Millis>,
    named_at: Option<Millis>,
}

/// What to do now with the living processes of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Wait,
    Send(Signal),
    /// KILL was sent long ago: the kernel does not let go of them. Sent again all the same.
    Unkillable,
}

impl Stop {
    pub(crate) fn new(now: Millis, grace_ms: u64) -> Self {
        Self { term_sent: false, kill_at: now.plus(grace_ms), killed_since: None, named_at: None }
    }

    /// A later order can only shorten the grace: `cancel --now` works at any moment.
    pub(crate) fn hasten(&mut self, now: Millis, grace_ms: u64) {
        self.kill_at = self.kill_at.min(now.plus(grace_ms));
    }

    /// When the grace is over.
    pub(crate) fn kill_at(&self) -> Millis {
        self.kill_at
    }

    /// True where the processes must be looked at now, although the first one still lives.
    pub(crate) fn is_due(&self, now: Millis) -> bool {
        !self.term_sent || self.kill_at <= now
    }

    pub(crate) fn step(&mut self, now: Millis) -> Step {
        if !self.term_sent {
            self.term_sent = true;
            return Step::Send(Signal::SIGTERM);
        }
        if now < self.kill_at {
            return Step::Wait;
        }
        let since = *self.killed_since.get_or_insert(now);
        let named = self.named_at.map_or(since, |at| at);
        if UNKILLABLE_MS <= now.since(named) {
            self.named_at = Some(now.plus(60_000));
            return Step::Unkillable;
        }
        Step::Send(Signal::SIGKILL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn term_then_grace_then_kill_then_named() {
        let mut stop = Stop::new(Millis(1000), 500);
        assert!(stop.is_due(Millis(1000)));
        assert_eq!(stop.step(Millis(1000)), Step::Send(Signal::SIGTERM));
        assert!(!stop.is_due(Millis(1400)));
        assert_eq!(stop.step(Millis(1400)), Step::Wait);
        assert_eq!(stop.step(Millis(1500)), Step::Send(Signal::SIGKILL));
        assert_eq!(stop.step(Millis(2000)), Step::Send(Signal::SIGKILL));
        assert_eq!(stop.step(Millis(6500)), Step::Unkillable);
        assert_eq!(stop.step(Millis(6600)), Step::Send(Signal::SIGKILL), "named once a minute");
    }

    #[test]
    fn a_second_order_only_hastens() {
        let mut stop = Stop::new(Millis(0), 10_000);
        stop.step(Millis(0));
        stop.hasten(Millis(100), 60_000);
        assert_eq!(stop.step(Millis(9_999)), Step::Wait);
        let mut stop = Stop::new(Millis(0), 10_000);
        stop.step(Millis(0));
        stop.hasten(Millis(100), 0);
        assert_eq!(stop.step(Millis(100)), Step::Send(Signal::SIGKILL));
    }
}
