//! One window: each worker against the median of the others.

use std::collections::BTreeMap;
use std::fmt;

use model::Mode;

use crate::job::float;
use crate::job::live::STEPS_PER_S_MAX;

/// Steps that cover less than this share of a window say nothing: ten steps in one millisecond,
/// a clock that stood still.
const COVER_MIN: f64 = 0.05;
/// Steps of a window cover at most the window and the part of the first one before it.
const COVER_MAX: f64 = 2.0;
/// A report of another stretch of time than this share of one's own is no measure for it; nor, in
/// sync mode, where all step together, are steps of quite another length.
const ALIKE: f64 = 0.4;
/// Steps that a worker must have made for others to be compared with it: one may hold a hiccup.
const STEPS_MIN: u64 = 2;
/// Looks at the servers' sockets in a window by which alone a worker may be found slow.
const LOOKS_MIN: u64 = 10;
/// Looks whose share is worth telling beside other evidence.
const LOOKS_TOLD_MIN: u64 = 4;
/// The time that computing takes longer must be this share of a step at least: a worker that
/// computes 2 ms in steps of 100 ms holds nobody up.
const MATTERS: f64 = 0.2;
/// Computing that is less than this share of a step is no measure of a worker.
const COMPUTE_MIN: f64 = 0.001;
/// Earlier windows that a lone worker is compared with: at least, and at most.
pub(crate) const EARLIER_MIN: usize = 3;
pub(crate) const EARLIER_MAX: usize = 60;

/// What a worker did between two of its reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) steps: u64,
    /// Seconds of these steps, and of its own computing in them, by its own clock.
    pub(crate) steps_s: f64,
    pub(crate) compute_s: f64,
    /// Seconds between the receipts of the reports, by the master's clock.
    pub(crate) wall_s: f64,
}

/// Looks at the sockets of a job's servers, and in how many the servers waited for this worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrivals {
    pub(crate) looks: u64,
    pub(crate) behind: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing can be said: no report, no whole step, nobody to compare with.
    Unknown,
    Normal,
    Slow(Sign),
}

/// By what a worker is seen to be slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sign {
    /// Steps a second: its own, and the median of the others'.
    Speed { own: f64, others: f64 },
    /// Seconds of own computing in a step; and, where the servers' nodes tell it, the share of the
    /// looks at the servers in which its gradients were missing.
    Compute { own_s: f64, others_s: f64, missing: Option<f64> },
    /// Share of the looks at the servers in which only its gradients were missing.
    Arrivals { share: f64 },
    /// A lone worker's pace in steps a second, and the median of its own earlier ones.
    Earlier { own: f64, earlier: f64 },
}

impl Sign {
    /// Its speed as a share of what it should be, in 0 to 1.
    pub(crate) fn share(self) -> f64 {
        let share = match self {
            Self::Speed { own, others } => own / others,
            Self::Compute { own_s, others_s, .. } => others_s / own_s,
            Self::Arrivals { share } => 1.0 - share,
            Self::Earlier { own, earlier } => own / earlier,
        };
        share.clamp(0.0, 1.0)
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.share() * 100.0;
        match self {
            Self::Speed { own, others } => write!(
                f,
                "{own:.2} steps/s, {percent:.0} % of the {others:.2} that the others make"
            ),
            Self::Compute { own_s, others_s, missing } => {
                write!(
                    f,
                    "computes {:.0} ms in a step where the others take {:.0} ms: {percent:.0} % of \
                     their speed",
                    own_s * 1000.0,
                    others_s * 1000.0
                )?;
                let Some(missing) = missing else { return Ok(()) };
                let missing = missing * 100.0;
                write!(
                    f,
                    "; its gradients were missing in {missing:.0} % of the looks at the servers"
                )
            }
            Self::Arrivals { share } => write!(
                f,
                "its gradients were missing in {:.0} % of the looks at the servers",
                share * 100.0
            ),
            Self::Earlier { own, earlier } => write!(
                f,
                "{own:.2} steps/s by its own computing, {percent:.0} % of its earlier {earlier:.2}"
            ),
        }
    }
}

impl Measured {
    /// Whether the numbers can be: whole steps whose time fits the window.
    fn is_sound(&self) -> bool {
        let seconds = |x: f64| x.is_finite() && x >= 0.0;
        self.steps > 0
            && seconds(self.steps_s)
            && seconds(self.compute_s)
            && seconds(self.wall_s)
            && self.wall_s > 0.0
            && self.steps_s > 0.0
            && self.steps_s >= COVER_MIN * self.wall_s
            && self.compute_s <= self.steps_s * 1.001
            && float(self.steps) / self.steps_s <= STEPS_PER_S_MAX
    }

    fn is_reference(&self) -> bool {
        self.is_sound() && self.steps >= STEPS_MIN && self.steps_s <= COVER_MAX * self.wall_s
    }

    /// Whether another worker can be compared with it.
    fn is_like(&self, other: &Self, mode: Mode) -> bool {
        let alike = |one: f64, other: f64| one >= ALIKE * other && other >= ALIKE * one;
        let (own_s, other_s) =
            (self.steps_s / float(self.steps), other.steps_s / float(other.steps));
        other.is_reference()
            && alike(self.wall_s, other.wall_s)
            && (mode == Mode::Async || alike(own_s, other_s))
    }

    /// Steps a second by the master's clock and by the worker's own, the smaller first. The two
    /// differ where a worker does something else between its steps, or where a report was late:
    /// neither alone makes a straggler.
    fn speeds(&self) -> (f64, f64) {
        let (wall, own) = (float(self.steps) / self.wall_s, float(self.steps) / self.steps_s);
        (wall.min(own), wall.max(own))
    }

    fn compute_per_step(&self) -> f64 {
        self.compute_s / float(self.steps)
    }
}

/// The middle of some finite numbers; none of none.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(values[middle - 1], upper))
}

/// Judges every worker of a job of two or more against the others: none is judged where fewer
/// than half of the others can be compared with.
pub(crate) fn judge(
    mode: Mode,
    ratio: f64,
    team: &BTreeMap<u32, (Option<Measured>, Arrivals)>,
) -> BTreeMap<u32, Verdict> {
    let one = |worker: u32| {
        let Some((Some(own), arrivals)) = team.get(&worker) else { return Verdict::Unknown };
        let others: Vec<&Measured> = team
            .iter()
            .filter(|(other, _)| **other != worker)
            .filter_map(|(_, (measured, _))| measured.as_ref())
            .filter(|measured| own.is_like(measured, mode))
            .collect();
        if !own.is_sound() || 2 * others.len() < team.len() - 1 {
            return Verdict::Unknown;
        }
        match mode {
            Mode::Async => by_speed(ratio, own, &others),
            Mode::Sync => by_compute(ratio, own, *arrivals, &others),
        }
    };
    team.keys().map(|worker| (*worker, one(*worker))).collect()
}

fn by_speed(ratio: f64, own: &Measured, others: &[&Measured]) -> Verdict {
    let Some(median) = median(others.iter().map(|other| other.speeds().0).collect()) else {
        return Verdict::Unknown;
    };
    let (_, speed) = own.speeds();
    if speed < ratio * median {
        Verdict::Slow(Sign::Speed { own: speed, others: median })
    } else {
        Verdict::Normal
    }
}

/// All step together, so that speeds are equal: who is slow computes longer, and its gradients
/// come last.
fn by_compute(ratio: f64, own: &Measured, arrivals: Arrivals, others: &[&Measured]) -> Verdict {
    let Some(median) = median(others.iter().map(|other| other.compute_per_step()).collect()) else {
        return Verdict::Unknown;
    };
    let own_s = own.compute_per_step();
    let step_s = own.steps_s / float(own.steps);
    let known = median >= COMPUTE_MIN * step_s;
    let share = float(arrivals.behind.min(arrivals.looks)) / float(arrivals.looks.max(1));
    let missing = (arrivals.looks >= LOOKS_TOLD_MIN).then_some(share);
    if known && own_s * ratio > median && own_s - median >= MATTERS * step_s {
        return Verdict::Slow(Sign::Compute { own_s, others_s: median, missing });
    }
    match missing {
        // The servers wait for it in the time that it takes longer than the others: in more than
        // half of the looks where it takes twice their time.
        Some(share) if share > 1.0 - ratio && arrivals.looks >= LOOKS_MIN => {
            Verdict::Slow(Sign::Arrivals { share })
        }
        Some(_) | None => Verdict::Normal,
    }
}

/// Steps a second of a lone worker, by the measure that its servers do not change: by its own
/// computing in sync mode, by its whole steps in async.
pub(crate) fn pace(mode: Mode, own: &Measured) -> Option<f64> {
    let seconds = match mode {
        Mode::Sync => own.compute_s,
        Mode::Async => own.steps_s,
    };
    let pace = float(own.steps) / seconds;
    (own.is_reference() && pace.is_finite() && pace <= STEPS_PER_S_MAX).then_some(pace)
}

/// Judges a lone worker against its own earlier paces.
pub(crate) fn judge_lone(ratio: f64, pace: f64, earlier: &[f64]) -> Verdict {
    if earlier.len() < EARLIER_MIN {
        return Verdict::Normal;
    }
    match median(earlier.to_vec()) {
        Some(median) if pace < ratio * median => {
            Verdict::Slow(Sign::Earlier { own: pace, earlier: median })
        }
        Some(_) => Verdict::Normal,
        None => Verdict::Unknown,
    }
}
