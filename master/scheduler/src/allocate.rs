//! How many servers and workers each job gets (section 4.1).
//!
//! Every job gets its least shape first, in order of arrival. Then one task at a time goes where
//! it saves most: the gain of Eqn. (9) is the fall of the job's remaining time over the task's
//! demand of its dominant resource, as a share of the cluster's total, times the job's weight.
//! A task that does not fit is skipped for good, as what is left only shrinks, and every other
//! task is still tried, the same job's other kind included. A gain of zero is none.

pub mod horizon;
mod sharing;

use model::{Resources, Shape};

pub(crate) use self::sharing::Sharing;
use crate::estimate::speed::{SpeedForm, SpeedModel};
use crate::room::{Demand, Kinds};

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
        Pace::of(*self).predicted_s(shape)
    }
}

/// A [`Progress`] made ready for the hundred thousand evaluations of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace<'a> {
    pub(crate) speed: &'a SpeedModel,
    pub(crate) work: f64,
    /// Seconds for one unit of work by θ are the sum of these times 1/w, 1/p, 1, w/p, p/w, w and
    /// p; none where θ is no function.
    terms: Option<[f64; 7]>,
}

impl<'a> Pace<'a> {
    pub(crate) fn of(progress: Progress<'a>) -> Self {
        let Progress { speed, work } = progress;
        Self { speed, work, terms: terms(speed) }
    }

    /// Eqn. (6) by θ alone: what gains are counted in. A model's correction is there for values;
    /// between neighbours its bumps would stop the search for the next task. Infinite where θ
    /// sees no speed.
    pub(crate) fn seconds_left(&self, shape: Shape) -> f64 {
        if self.work <= 0.0 {
            return 0.0;
        }
        let Some([per_worker, per_server, constant, crowd, thin, workers, servers]) = self.terms
        else {
            return f64::INFINITY;
        };
        let (p, w) = (f64::from(shape.servers), f64::from(shape.workers));
        let (each_w, each_p) = (1.0 / w, 1.0 / p);
        let seconds = (per_worker + thin * p) * each_w
            + (per_server + crowd * w) * each_p
            + constant
            + workers * w
            + servers * p;
        // An empty kind of task makes this infinite or no number.
        if seconds > 0.0 && seconds.is_finite() { self.work * seconds } else { f64::INFINITY }
    }

    /// Eqn. (6) by the whole model: what is predicted and weighed against costs.
    pub(crate) fn predicted_s(&self, shape: Shape) -> f64 {
        if self.speed.residual.is_none() || self.work <= 0.0 {
            return self.seconds_left(shape);
        }
        let work_per_s = self.speed.work_per_s(shape);
        if work_per_s > 0.0 { self.work / work_per_s } else { f64::INFINITY }
    }
}

fn terms(speed: &SpeedModel) -> Option<[f64; 7]> {
    let theta = &speed.theta;
    if theta.len() != speed.form.coefficients() {
        return None;
    }
    let terms = match speed.form {
        SpeedForm::Async => [theta[0], theta[1], theta[2], 0.0, theta[3], 0.0, 0.0],
        SpeedForm::SyncGlobal { batch } => {
            let batch = f64::from(batch.max(1));
            [theta[0] * batch, 0.0, theta[1], theta[2], 0.0, theta[3], theta[4]]
        }
        SpeedForm::SyncPerWorker { batch } => {
            let batch = f64::from(batch.max(1));
            let each = |at: usize| theta[at] / batch;
            [theta[0], each(2), each(3), 0.0, each(4), 0.0, 0.0]
        }
    };
    terms.iter().all(|term| term.is_finite()).then_some(terms)
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
    pub(crate) progress: Option<Pace<'a>>,
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
pub(crate) fn dominant_share(amounts: &[i128], total: &[i128]) -> f64 {
    let share = |(need, total): (&i128, &i128)| {
        if *need == 0 { 0.0 } else { float(*need) / float((*total).max(1)) }
    };
    amounts.iter().zip(total).map(share).fold(SHARE_MIN, f64::max)
}

/// Most amounts fit in 64 bits, which convert far quicker.
#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
fn float(amount: i128) -> f64 {
    i64::try_from(amount).map_or(amount as f64, |amount| amount as f64)
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

    /// Gain of one more task, and the seconds left then; none at the bound or where nothing is
    /// gained.
    fn of_adding(&self, shape: Shape, held_s: f64, kind: Kind) -> Option<(f64, f64)> {
        let more = kind.added_to(shape);
        if more == shape || !within(more, self.max) {
            return None;
        }
        let after_s = self.progress?.seconds_left(more);
        let gain = (held_s - after_s) * self.weight / self.share(kind);
        // Not where it is no number.
        (gain > 0.0).then_some((gain, after_s))
    }

    /// What the loss of one task matters, and the seconds left then; none where that would go
    /// below the least shape. Without a known speed it matters nothing.
    fn of_removing(&self, shape: Shape, held_s: f64, kind: Kind) -> Option<(f64, f64)> {
        let fewer = kind.taken_from(shape);
        if fewer == shape || !within(self.least, fewer) {
            return None;
        }
        let after_s = self.seconds_left(fewer);
        let loss = (after_s - held_s) * self.weight / self.share(kind);
        Some((if loss.is_nan() { 0.0 } else { loss }, after_s))
    }

    pub(crate) fn seconds_left(&self, shape: Shape) -> f64 {
        self.progress.map_or(f64::INFINITY, |pace| pace.seconds_left(shape))
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

    /// Which of these kinds to add first: the one that gains most; none where none gains.
    pub(crate) fn best_of(&self, kinds: &[Kind], shape: Shape) -> Option<Kind> {
        let held_s = self.seconds_left(shape);
        let gains = kinds
            .iter()
            .filter_map(|kind| self.of_adding(shape, held_s, *kind).map(|(gain, _)| (gain, *kind)));
        gains.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, kind)| kind)
    }

    /// Ever smaller shapes than `from` down to the least, the least loss undone first.
    pub(crate) fn shrinking(&self, from: Shape) -> Vec<Shape> {
        let mut shapes = Vec::new();
        let mut shape = from;
        while let Some(kind) = self.least_loss(shape) {
            shape = kind.taken_from(shape);
            shapes.push(shape);
        }
        shapes
    }
}

/// Shares `free` out among claims in order of arrival; an empty shape where not even the least
/// fitted. `total` is the whole cluster, of which demands are shares.
#[must_use]
pub fn allocate(total: &Resources, free: &Resources, claims: &[Claim<'_>]) -> Vec<Shape> {
    let kinds = Kinds::of(claims.iter().flat_map(|claim| [claim.server, claim.worker]));
    let total = kinds.amounts(total);
    let demands: Vec<Demand> =
        claims.iter().map(|claim| Demand::new(&kinds, claim.server, claim.worker)).collect();
    let gains: Vec<Gains<'_>> = claims
        .iter()
        .zip(&demands)
        .map(|(claim, demand)| Gains {
            progress: claim.progress.map(Pace::of),
            least: claim.least,
            max: claim.max,
            weight: claim.weight,
            server_share: dominant_share(demand.server(), &total),
            worker_share: dominant_share(demand.worker(), &total),
        })
        .collect();
    let mut sharing = Sharing::new(kinds.amounts(free), gains.iter().zip(&demands).collect());
    sharing.give_least();
    sharing.give_rest();
    sharing.into_given()
}
