//! HEADER
mod choose;
mod ladder;
mod pack;
mod price;
mod supply;

pub(crate) use self::ladder::ladder;
pub use self::choose::KNOBS;
pub use self::price::COMING_KNOB;

/// One of the sizes that a job may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rung {
    /// Of the cluster: the dominant share of all its tasks. Positive.
    pub share: f64,
    /// Work done in a second. Positive.
    pub rate: f64,
}

/// A job as it asks for its part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stake<'a> {
    /// By share, ascending. What it holds is one of them.
    pub rungs: &'a [Rung],
    /// Work done in a second for now, by rung: where the rates of the rungs are means over all
    /// that is left, from which its first part is far.
    pub now: Option<&'a [f64]>,
    /// Expected work left, in the unit of the rates.
    pub work: f64,
    /// Seconds without progress where it changes its rung, or starts again.
    pub rescale_s: f64,
    pub held: Option<usize>,
    /// Seconds without progress that are still to come where it keeps its rung.
    pub keep_s: f64,
    /// Seconds without progress that giving up all that it holds will cost.
    pub evict_s: f64,
    /// True once it held anything: the first start costs nothing.
    pub started: bool,
    /// Since its arrival.
    pub age_s: f64,
    /// What it had of the cluster up to now: shares times seconds.
    pub had: f64,
    /// Counts like so many jobs.
    pub priority: f64,
}

/// Where tasks are taken from.
pub trait Room {
    /// Takes what a job needs for a rung beyond what it has for the one before, and tells whether
    /// there was enough; takes nothing where there was not.
    fn moves(&mut self, job: usize, from: Option<usize>, to: Option<usize>) -> bool;
}

/// What one job gets, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Given {
    /// None: it waits.
    pub rung: Option<usize>,
    /// Seconds by which all jobs together would end sooner for one unit of its work done: its
    /// price.
    pub price: f64,
    /// How many jobs it counts for.
    pub weight: f64,
    /// Projected seconds to its end; none where there are too many jobs to follow each.
    pub end_s: Option<f64>,
}

/// All jobs' parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    pub given: Vec<Given>,
    /// Seconds that the choice was taken to last, over which rescales are weighed.
    pub span_s: f64,
    /// Projected sum of the jobs' seconds to their ends, each by its weight.
    pub sum_s: f64,
}

/// What the projection says.
#[derive(Clone, Debug)]
struct Outlook {
    /// Price of a unit of each job's work, on average over all that is left.
    each: Vec<f64>,
    /// Price of the unit that comes next: a second saved is worth as much early as late.
    next: Vec<f64>,
    /// Seconds to each job's end; empty where they were not followed.
    ends_s: Vec<f64>,
    sum_s: f64,
}

/// Parts of a capacity (1 is the whole cluster) for jobs. `fairness` is the weight that a job
/// gains with each time that its finish-time ratio is over 1.
#[must_use]
pub fn horizon(stakes: &[Stake<'_>], capacity: f64, fairness: f64, room: &mut dyn Room) -> Choice {
    if stakes.is_empty() || !(capacity.is_finite() && capacity > 0.0) {
        let nothing = Given { rung: None, price: 0.0, weight: 0.0, end_s: None };
        return Choice { given: vec![nothing; stakes.len()], span_s: 0.0, sum_s: 0.0 };
    }
    let equal = capacity / float(stakes.len());
    let weights: Vec<f64> = stakes.iter().map(|stake| stake.weight(equal, fairness)).collect();
    let outlook = price::prices(stakes, capacity, &weights);
    let span_s = choose::span_s(stakes, &outlook, &weights);
    let prices = &outlook.next;
    let rungs = choose::Chooser { stakes, prices, span_s, capacity, room }.choose();
    let given = rungs.into_iter().enumerate().map(|(job, rung)| Given {
        rung,
        price: prices[job],
        weight: weights[job],
        end_s: outlook.ends_s.get(job).copied(),
    });
    Choice { given: given.collect(), span_s, sum_s: outlook.sum_s }
}

/// Most that a job's weight grows by lateness: beyond it sums lose their digits.
const LATE_MAX: f64 = 1e6;

impl Stake<'_> {
    fn points(&self) -> impl Iterator<Item = (usize, (f64, f64))> {
        self.rungs.iter().map(|rung| (rung.share, rung.rate)).enumerate()
    }

    /// Work a second on any share: between two rungs by turns, below the least for a part of the
    /// time.
    fn rate_on(&self, share: f64) -> f64 {
        let (mut below, mut rate) = (0.0, 0.0);
        for rung in self.rungs {
            if rung.rate <= rate {
                continue;
            }
            if rung.share > share {
                return rate + (rung.rate - rate) * (share - below) / (rung.share - below);
            }
            (below, rate) = (rung.share, rung.rate);
        }
        rate
    }

    /// Work done in a second for now.
    fn now(&self, rung: usize) -> f64 {
        self.now.map_or(self.rungs[rung].rate, |now| now[rung])
    }

    /// Seconds to its end alone on a share.
    fn alone_s(&self, share: f64) -> f64 {
        let rate = self.rate_on(share);
        if rate > 0.0 { self.work / rate } else { f64::MAX }
    }

    /// How many jobs this one counts for: its priority, times 1 and what its finish-time ratio on
    /// equal shares will be over 1 at least.
    fn weight(&self, equal: f64, fairness: f64) -> f64 {
        let alone_s = self.alone_s(equal);
        let own_s = alone_s + self.had / equal;
        let late = (self.age_s + alone_s) / own_s - 1.0;
        let late = if late > 0.0 { late.min(LATE_MAX) } else { 0.0 };
        self.priority * (1.0 + fairness * late)
    }
}

/// The points on the upper concave hull that rises from a start, by their numbers. Points come by
/// their first coordinate; those not beyond the start's are left out.
fn hull(start: (f64, f64), points: impl Iterator<Item = (usize, (f64, f64))>) -> Vec<usize> {
    let mut kept: Vec<(usize, (f64, f64))> = Vec::new();
    for (at, point) in points {
        let last = kept.last().map_or(start, |(_, point)| *point);
        if !(point.0 > start.0 && point.1 > last.1) {
            continue;
        }
        while let Some((_, last)) = kept.last() {
            let before = kept.len().checked_sub(2).map_or(start, |before| kept[before].1);
            let bends = point.0 > last.0
                && (last.1 - before.1) * (point.0 - last.0)
                    > (point.1 - last.1) * (last.0 - before.0);
            if bends {
                break;
            }
            kept.pop();
        }
        kept.push((at, point));
    }
    kept.into_iter().map(|(at, _)| at).collect()
}

/// Counts of jobs are far below 2^32.
fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
