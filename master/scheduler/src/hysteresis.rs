//! Whether a change is worth its price (sections 5.4 and 7).

use crate::snapshot::Policy;

/// A change that would be made for its own sake, not because it must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Seconds left as things are, and after the change, summed over the jobs concerned.
    pub before_s: f64,
    pub after_s: f64,
    /// What the rescales of these jobs cost, in s.
    pub cost_s: f64,
    /// Shortest time since the last change of one of them, in ms.
    pub since_change_ms: u64,
}

impl Change {
    /// Seconds saved beyond what the policy asks; NaN only where nothing is known.
    #[must_use]
    pub fn surplus_s(&self, policy: &Policy) -> f64 {
        self.before_s - self.after_s - policy.hysteresis_factor * self.cost_s
    }

    /// A change is made where it saves more than its cost times the policy's factor, saves at
    /// all, and the last change lies back far enough.
    #[must_use]
    pub fn is_worth_it(&self, policy: &Policy) -> bool {
        let saved = self.before_s - self.after_s;
        policy.change_spacing_ms <= self.since_change_ms
            && saved > 0.0
            && self.surplus_s(policy) > 0.0
    }
}

/// The policy with every number that is not finite or is negative replaced by its default.
#[must_use]
pub fn sound(policy: &Policy) -> Policy {
    let default = Policy::default();
    let fine = |value: f64, default: f64| {
        if value.is_finite() && value >= 0.0 { value } else { default }
    };
    Policy {
        allocation: policy.allocation,
        placing: policy.placing,
        hysteresis_factor: fine(policy.hysteresis_factor, default.hysteresis_factor),
        change_spacing_ms: policy.change_spacing_ms,
        young_factor: fine(policy.young_factor, default.young_factor),
        queue_gpu_s: fine(policy.queue_gpu_s, default.queue_gpu_s),
        unknown_remaining_s: fine(policy.unknown_remaining_s, default.unknown_remaining_s),
        fairness: fine(policy.fairness, default.fairness),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: Change =
        Change { before_s: 100.0, after_s: 80.0, cost_s: 10.0, since_change_ms: 60_000 };

    #[test]
    fn a_change_pays_its_price_with_a_margin() {
        let policy = Policy::default();
        assert!(CHANGE.is_worth_it(&policy));
        assert!(!Change { after_s: 85.0, ..CHANGE }.is_worth_it(&policy));
        assert!(!Change { since_change_ms: 59_999, ..CHANGE }.is_worth_it(&policy));
    }

    #[test]
    fn nothing_known_changes_nothing() {
        let policy = Policy::default();
        for unknown in [f64::NAN, f64::INFINITY] {
            let change = Change { before_s: unknown, after_s: unknown, ..CHANGE };
            assert!(!change.is_worth_it(&policy));
        }
        let free = Change { after_s: 100.0, cost_s: 0.0, ..CHANGE };
        assert!(!free.is_worth_it(&policy), "no gain, no change");
        let odd = Policy { hysteresis_factor: f64::NAN, ..policy };
        assert_eq!(sound(&odd), Policy::default());
    }
}
