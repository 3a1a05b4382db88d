//! How near the end of a certificate is, in the words that every warning uses.

use std::time::{Duration, SystemTime};

use crate::credentials::date;

const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 86_400;

/// The steps at which the end of a certificate is warned of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// Within 30 days.
    Month,
    /// Within 7 days.
    Week,
    /// Within a day.
    Day,
    /// It has ended.
    Over,
}

impl Ending {
    /// None where more than 30 days are left.
    #[must_use]
    pub fn of(not_after: SystemTime, now: SystemTime) -> Option<Self> {
        let Ok(left) = not_after.duration_since(now) else { return Some(Self::Over) };
        let within = |days: u64| left <= Duration::from_secs(days * DAY_S);
        if within(1) {
            Some(Self::Day)
        } else if within(7) {
            Some(Self::Week)
        } else {
            within(30).then_some(Self::Month)
        }
    }
}

fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / HOUR_S, "hour"),
        _ => (seconds / DAY_S, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}

/// `ends in 6 days, at 2026-08-21 07:30:00 UTC`, or `expired 2 hours ago, at …`.
#[must_use]
pub fn ending_words(not_after: SystemTime, now: SystemTime) -> String {
    let at = date(not_after);
    match not_after.duration_since(now) {
        Ok(left) => format!("ends in {}, at {at}", span(left)),
        Err(over) => format!("expired {} ago, at {at}", span(over.duration())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn the_steps_are_thirty_days_a_week_and_a_day() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let day = Duration::from_secs(DAY_S);
        for (left, step) in [
            (31 * day, None),
            (30 * day, Some(Ending::Month)),
            (8 * day, Some(Ending::Month)),
            (7 * day, Some(Ending::Week)),
            (day + Duration::from_secs(1), Some(Ending::Week)),
            (day, Some(Ending::Day)),
            (Duration::ZERO, Some(Ending::Day)),
        ] {
            assert_eq!(Ending::of(now + left, now), step, "{left:?}");
        }
        assert_eq!(Ending::of(now - day, now), Some(Ending::Over));
        let words = ending_words(now + 6 * day, now);
        assert!(words.starts_with("ends in 6 days, at 2027-01-21"), "{words}");
        let words = ending_words(now - Duration::from_secs(7_300), now);
        assert!(words.starts_with("expired 2 hours ago, at 2027-01-15"), "{words}");
    }
}
