//! A bound on how often a peer may do something.

use std::time::Duration;

use model::Millis;

use crate::clock::Clock;

/// Lets a bounded rate through: a bucket that fills with time.
#[derive(Debug)]
pub(crate) struct Rate {
    per_s: u64,
    /// In thousandths of one.
    full: u64,
    level: u64,
    filled: Millis,
}

impl Rate {
    /// So many a second, and so many at once after a pause.
    pub(crate) const fn new(now: Millis, per_s: u64, at_once: u64) -> Self {
        let full = at_once * 1000;
        Self { per_s, full, level: full, filled: now }
    }

    pub(crate) fn admits(&mut self, now: Millis) -> bool {
        // A thousandth of one for each ms at one a second.
        let gained = now.since(self.filled).saturating_mul(self.per_s);
        self.level = self.full.min(self.level.saturating_add(gained));
        self.filled = now;
        match self.level.checked_sub(1000) {
            Some(rest) => {
                self.level = rest;
                true
            }
            None => false,
        }
    }

    /// For what may not be dropped: a flood waits.
    pub(crate) async fn wait(&mut self, clock: Clock) {
        while !self.admits(clock.mono()) {
            tokio::time::sleep(Duration::from_millis(1000_u64.div_ceil(self.per_s))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_let_through_at_the_rate_and_a_steady_beat_always() {
        let mut rate = Rate::new(Millis(0), 20, 20);
        let passed = (0..10_000).filter(|ms| rate.admits(Millis(*ms))).count();
        assert!((219..=220).contains(&passed), "{passed} of 220");
        let mut rate = Rate::new(Millis(0), 20, 20);
        assert!((1..1000).all(|beat| rate.admits(Millis(beat * 100))));
    }
}
