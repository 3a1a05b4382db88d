//! Reports cut into windows, and windows in a row counted for each worker of one generation.

use std::collections::{BTreeMap, VecDeque};

use model::{Millis, Mode};

use super::Rule;
use super::judge::{Arrivals, EARLIER_MAX, Measured, Sign, Verdict, judge, judge_lone, pace};
use crate::job::live::Sums;

/// Windows of which nothing can be said, after which those before are no longer in a row.
const UNKNOWN_MAX: u32 = 6;
/// A window of a job with long steps is as long as it takes for most workers to make two, but at
/// most this many times as long as others.
const STRETCH_MAX: u64 = 60;
/// A report that is so old at a window's end, in shares of the window, is missing.
const STALE: f64 = 0.5;

/// What was seen of the workers of one generation since it was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// When the present window began; none while nobody is watched.
    begun: Option<Millis>,
    /// Windows judged; the first one is not, as first steps are not typical.
    windows: u64,
    workers: BTreeMap<u32, Seen>,
    /// Paces of a lone worker in windows that were not slow.
    earlier: VecDeque<f64>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    from: Option<(Millis, Sums)>,
    last: Option<(Millis, Sums)>,
    arrivals: Arrivals,
    streak: Streak,
}

/// Windows in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Streak {
    pub(crate) slow: u32,
    pub(crate) normal: u32,
    unknown: u32,
    /// The newest sign of slowness.
    pub(crate) sign: Option<Sign>,
}

impl Streak {
    fn take(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Unknown => {
                self.unknown = self.unknown.saturating_add(1);
                if self.unknown > UNKNOWN_MAX {
                    *self = Self::default();
                }
            }
            Verdict::Normal => {
                let normal = self.normal.saturating_add(1);
                *self = Self { normal, ..Self::default() };
            }
            Verdict::Slow(sign) => {
                let slow = self.slow.saturating_add(1);
                *self = Self { slow, sign: Some(sign), ..Self::default() };
            }
        }
    }
}

/// Growth of the sums between two reports; none where they went back.
fn between(from: &(Millis, Sums), to: &(Millis, Sums)) -> Option<Measured> {
    let (steps_s, compute_s) = (to.1.steps_s - from.1.steps_s, to.1.compute_s - from.1.compute_s);
    let steps = to.1.steps.checked_sub(from.1.steps)?;
    let wall_s = to.0.seconds_since(from.0);
    (steps_s >= 0.0 && compute_s >= 0.0).then_some(Measured { steps, steps_s, compute_s, wall_s })
}

impl Watch {
    /// Takes a worker's sums as just received.
    pub(crate) fn report(&mut self, now: Millis, worker: u32, sums: Sums) {
        self.begun.get_or_insert(now);
        let seen = self.workers.entry(worker).or_default();
        let report = (now, sums);
        let went_back = seen.last.as_ref().is_some_and(|last| between(last, &report).is_none());
        if went_back || seen.from.is_none() {
            // An agent that restarted counts anew.
            seen.from = Some(report);
        }
        seen.last = Some(report);
    }

    /// The workers do something else: they save, or wait. What is in a row stays so.
    pub(crate) fn pause(&mut self) {
        if self.begun.take().is_some() {
            for seen in self.workers.values_mut() {
                (seen.from, seen.last) = (None, None);
            }
        }
    }

    pub(crate) fn streak(&self, worker: u32) -> Streak {
        self.workers.get(&worker).map(|seen| seen.streak).unwrap_or_default()
    }

    /// True where some worker was slow in the last window.
    pub(crate) fn has_slow(&self) -> bool {
        self.workers.values().any(|seen| seen.streak.slow > 0)
    }

    /// Ends the present window and judges it, where it is over. `arrivals` are totals of the
    /// generation. True where a window was judged.
    pub(crate) fn close(
        &mut self,
        now: Millis,
        (mode, workers): (Mode, u32),
        rule: &Rule,
        arrivals: &BTreeMap<u32, Arrivals>,
    ) -> bool {
        let Some(begun) = self.begun else { return false };
        let age_ms = now.since(begun);
        if age_ms < rule.window_ms || workers == 0 {
            return false;
        }
        let limit = age_ms >= rule.window_ms.saturating_mul(STRETCH_MAX);
        if !limit && !self.most_stepped(workers) {
            return false;
        }
        let team = self.take_window(now, begun, workers, arrivals);
        self.begun = Some(now);
        self.windows += 1;
        if self.windows == 1 {
            return false;
        }
        let verdicts = match (workers, team.get(&0)) {
            (1, Some((measured, _))) => {
                BTreeMap::from([(0, self.judge_lone(mode, rule.ratio, measured.as_ref()))])
            }
            _ => judge(mode, rule.ratio, &team),
        };
        for (worker, verdict) in verdicts {
            self.workers.entry(worker).or_default().streak.take(verdict);
        }
        true
    }

    /// Enough workers made steps to compare the others with.
    fn most_stepped(&self, workers: u32) -> bool {
        let stepped = self.workers.values().filter(|seen| seen.has_stepped_twice()).count();
        2 * stepped >= usize::try_from(workers).unwrap_or(usize::MAX)
    }

    fn take_window(
        &mut self,
        now: Millis,
        begun: Millis,
        workers: u32,
        totals: &BTreeMap<u32, Arrivals>,
    ) -> BTreeMap<u32, (Option<Measured>, Arrivals)> {
        let window_s = now.seconds_since(begun);
        let mut team = BTreeMap::new();
        for worker in 0..workers {
            let seen = self.workers.entry(worker).or_default();
            let growth = seen.from.as_ref().zip(seen.last.as_ref());
            let measured = growth.and_then(|(from, last)| {
                let fresh = now.seconds_since(last.0) <= STALE * window_s;
                between(from, last).filter(|measured| fresh && measured.wall_s > 0.0)
            });
            seen.from = seen.last;
            let total = totals.get(&worker).copied().unwrap_or_default();
            let before = std::mem::replace(&mut seen.arrivals, total);
            let looks = total.looks.checked_sub(before.looks);
            let behind = total.behind.checked_sub(before.behind);
            let arrivals = looks.zip(behind).map(|(looks, behind)| Arrivals { looks, behind });
            team.insert(worker, (measured, arrivals.unwrap_or_default()));
        }
        team
    }

    fn judge_lone(&mut self, mode: Mode, ratio: f64, measured: Option<&Measured>) -> Verdict {
        let Some(pace) = measured.and_then(|measured| pace(mode, measured)) else {
            return Verdict::Unknown;
        };
        let verdict = judge_lone(ratio, pace, self.earlier.make_contiguous());
        let lasts = self.streak(0).slow >= u32::try_from(EARLIER_MAX).unwrap_or(u32::MAX);
        if lasts {
            // What was slow for so long is how it is now.
            self.earlier.clear();
        }
        if lasts || verdict == Verdict::Normal {
            self.earlier.push_back(pace);
            if self.earlier.len() > EARLIER_MAX {
                self.earlier.pop_front();
            }
        }
        if lasts { Verdict::Normal } else { verdict }
    }
}

impl Seen {
    fn has_stepped_twice(&self) -> bool {
        let growth = self.from.as_ref().zip(self.last.as_ref());
        growth.and_then(|(from, last)| between(from, last)).is_some_and(|m| m.steps >= 2)
    }
}
