//! How many servers and workers each job gets (section 4.1).
//!
//! Every job gets its least shape first, in order of arrival. Then one task at a time goes where
//! it saves most: the gain of Eqn. (9) is the fall of the job's remaining time over the task's
//! demand of its dominant resource, as a share of the cluster's total, times the job's weight.
//! A task that does not fit is skipped for good, as what is left only shrinks, and every other
//! task is still tried, the same job's other kind included. A gain of zero is none.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use model::{Resources, Shape};

use crate::estimate::speed::SpeedModel;
use crate::room::{Amounts, Demand, Kinds};

/// What a job has left and how fast it would do it.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    pub speed: &'a SpeedModel,
    /// In the unit of [`SpeedModel::work_per_s`].
    pub work: f64,
}

impl Progress<'_> {
    /// Eqn. (6): seconds left at a shape; infinite where the model sees no speed there.
    #[must_use]
    pub fn seconds_left(&self, shape: Shape) -> f64 {
        let work_per_s = self.speed.work_per_s(shape);
        if self.work <= 0.0 {
            0.0
        } else if work_per_s > 0.0 {
            self.work / work_per_s
        } else {
            f64::INFINITY
        }
    }
}

/// A job that asks for tasks.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    pub least: Shape,
    pub max: Shape,
    pub server: &'a Resources,
    pub worker: &'a Resources,
    /// Multiplies the gain: the job's priority, and less than one while its end is not known.
    pub weight: f64,
    /// None where the speed is not known: the job gets its least shape.
    pub progress: Option<Progress<'a>>,
}

/// One of the two kinds of task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Server,
    Worker,
}

impl Kind {
    pub(crate) const BOTH: [Self; 2] = [Self::Server, Self::Worker];

    pub(crate) fn added_to(self, shape: Shape) -> Shape {
        match self {
            Self::Server => Shape::new(shape.servers.saturating_add(1), shape.workers),
            Self::Worker => Shape::new(shape.servers, shape.workers.saturating_add(1)),
        }
    }

    pub(crate) fn taken_from(self, shape: Shape) -> Shape {
        match self {
            Self::Server => Shape::new(shape.servers.saturating_sub(1), shape.workers),
            Self::Worker => Shape::new(shape.servers, shape.workers.saturating_sub(1)),
        }
    }
}

/// True where neither kind has more tasks in `small` than in `large`.
pub(crate) fn within(small: Shape, large: Shape) -> bool {
    small.servers <= large.servers && small.workers <= large.workers
}

/// A job's gains by Eqn. (9).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gains<'a> {
    pub(crate) progress: Option<Progress<'a>>,
    pub(crate) least: Shape,
    pub(crate) max: Shape,
    pub(crate) weight: f64,
    /// Dominant share of one server and one worker, positive.
    pub(crate) server_share: f64,
    pub(crate) worker_share: f64,
}

/// A task that asks for nothing would have an infinite gain.
const SHARE_MIN: f64 = 1e-9;

/// The largest share of the cluster's total that these amounts are of any kind.
#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
pub(crate) fn dominant_share(amounts: &[i128], total: &[i128]) -> f64 {
    let share = |(need, total): (&i128, &i128)| *need as f64 / (*total).max(1) as f64;
    amounts.iter().zip(total).map(share).fold(SHARE_MIN, f64::max)
}

impl Gains<'_> {
    fn share(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Server => self.server_share,
            Kind::Worker => self.worker_share,
        }
    }

    /// Seconds saved between two shapes that differ by a task of this kind, per share of the
    /// cluster, weighted; none where the model cannot say.
    fn gain(&self, small: Shape, large: Shape, kind: Kind) -> Option<f64> {
        let progress = self.progress?;
        let saved = progress.seconds_left(small) - progress.seconds_left(large);
        let gain = saved * self.weight / self.share(kind);
        (!gain.is_nan()).then_some(gain)
    }

    /// Gain of one more task; none at the bound or where nothing is gained.
    fn of_adding(&self, shape: Shape, kind: Kind) -> Option<f64> {
        let more = kind.added_to(shape);
        if more == shape || !within(more, self.max) {
            return None;
        }
        self.gain(shape, more, kind).filter(|gain| *gain > 0.0)
    }

    /// What the loss of one task of this kind matters; none where that would go below the least
    /// shape.
    pub(crate) fn loss(&self, shape: Shape, kind: Kind) -> Option<f64> {
        let fewer = kind.taken_from(shape);
        (fewer != shape && within(self.least, fewer))
            .then(|| self.gain(fewer, shape, kind).unwrap_or(0.0))
    }

    /// The task whose loss matters least; none at the least shape.
    fn least_loss(&self, shape: Shape) -> Option<Kind> {
        let losses =
            Kind::BOTH.into_iter().filter_map(|kind| Some((kind, self.loss(shape, kind)?)));
        // Of equal ones the worker goes: it usually takes more.
        let least = losses.min_by(|(a_kind, a), (b_kind, b)| {
            a.total_cmp(b).then((*a_kind == Kind::Server).cmp(&(*b_kind == Kind::Server)))
        });
        least.map(|(kind, _)| kind)
    }

    /// `from`, then ever smaller shapes down to the least, the least loss undone first.
    pub(crate) fn shrinking(&self, from: Shape) -> Vec<Shape> {
        let mut shapes = vec![from];
        let mut shape = from;
        while let Some(kind) = self.least_loss(shape) {
            shape = kind.taken_from(shape);
            shapes.push(shape);
        }
        shapes
    }
}

/// The best task to add to one job. The largest gain comes first; ties go to the earlier claim,
/// and within a job to the server.
#[derive(Clone, Copy, Debug)]
struct Offered {
    gain: f64,
    claim: usize,
    kind: Kind,
}

impl Ord for Offered {
    fn cmp(&self, other: &Self) -> Ordering {
        self.gain.total_cmp(&other.gain).then(other.claim.cmp(&self.claim))
    }
}

impl PartialOrd for Offered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Offered {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Offered {}

/// Shares `free` out among claims in order of arrival; an empty shape where not even the least
/// fitted. `total` is the whole cluster, of which demands are shares.
#[must_use]
pub fn allocate(total: &Resources, free: &Resources, claims: &[Claim<'_>]) -> Vec<Shape> {
    let kinds = Kinds::of(claims.iter().flat_map(|claim| [claim.server, claim.worker]));
    let total = kinds.amounts(total);
    let mut left = kinds.amounts(free);
    let demands: Vec<Demand> = claims
        .iter()
        .map(|claim| Demand {
            server: kinds.amounts(claim.server),
            worker: kinds.amounts(claim.worker),
        })
        .collect();
    let gains: Vec<Gains<'_>> = claims
        .iter()
        .zip(&demands)
        .map(|(claim, demand)| Gains {
            progress: claim.progress,
            least: claim.least,
            max: claim.max,
            weight: claim.weight,
            server_share: dominant_share(&demand.server, &total),
            worker_share: dominant_share(&demand.worker, &total),
        })
        .collect();
    let mut given = vec![Shape::default(); claims.len()];
    for (given, (gains, demand)) in given.iter_mut().zip(gains.iter().zip(&demands)) {
        let need: Amounts = demand.of(gains.least).collect();
        if take(&mut left, &need) {
            *given = gains.least;
        }
    }
    // Whether a task of this kind is known not to fit.
    let mut shut = vec![[false; 2]; claims.len()];
    let best = |claim: usize, shape: Shape, shut: [bool; 2]| {
        let open = Kind::BOTH.into_iter().zip(shut).filter(|(_, shut)| !shut);
        let offers = open.filter_map(|(kind, _)| {
            gains[claim].of_adding(shape, kind).map(|gain| Offered { gain, claim, kind })
        });
        // The first of equal ones stays.
        offers.reduce(|best, next| if next.gain > best.gain { next } else { best })
    };
    let mut heap: BinaryHeap<Offered> = (0..claims.len())
        .filter(|claim| !given[*claim].is_empty())
        .filter_map(|claim| best(claim, given[claim], shut[claim]))
        .collect();
    while let Some(Offered { claim, kind, .. }) = heap.pop() {
        let (need, at) = match kind {
            Kind::Server => (&demands[claim].server, 0),
            Kind::Worker => (&demands[claim].worker, 1),
        };
        if take(&mut left, need) {
            given[claim] = kind.added_to(given[claim]);
        } else {
            shut[claim][at] = true;
        }
        heap.extend(best(claim, given[claim], shut[claim]));
    }
    given
}

/// Takes all of `need` or nothing.
fn take(left: &mut [i128], need: &[i128]) -> bool {
    let fits = left.iter().zip(need).all(|(left, need)| *need == 0 || need <= left);
    if fits {
        for (left, need) in left.iter_mut().zip(need) {
            *left -= need;
        }
    }
    fits
}
