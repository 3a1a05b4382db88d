//! How many servers and workers each job gets (section 4.1).
//!
//! Every job gets its least shape first, in order of arrival. Then one task at a time goes where
//! it saves most: the gain of Eqn. (9) is the fall of the job's remaining time over the task's
//! demand of its dominant resource, as a share of the cluster's total, times the job's weight.
//! A task that does not fit is skipped for good, as what is left only shrinks, and every other
//! task is still tried, the same job's other kind included. A gain of zero is none.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use model::{Resources, Shape};

use crate::estimate::speed::{SpeedForm, SpeedModel};
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
        Pace::of(*self).seconds_left(shape)
    }
}

/// A [`Progress`] made ready for the hundred thousand evaluations of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace<'a> {
    pub(crate) speed: &'a SpeedModel,
    pub(crate) work: f64,
    /// Seconds for one unit of work are the sum of these times 1/w, 1/p, 1, w/p, p/w, w and p;
    /// none where the model is more than θ.
    terms: Option<[f64; 7]>,
}

impl<'a> Pace<'a> {
    pub(crate) fn of(progress: Progress<'a>) -> Self {
        let Progress { speed, work } = progress;
        Self { speed, work, terms: terms(speed) }
    }

    /// Eqn. (6): seconds left at a shape; infinite where the model sees no speed there.
    pub(crate) fn seconds_left(&self, shape: Shape) -> f64 {
        if self.work <= 0.0 {
            return 0.0;
        }
        let Some([per_worker, per_server, constant, crowd, thin, workers, servers]) = self.terms
        else {
            let work_per_s = self.speed.work_per_s(shape);
            return if work_per_s > 0.0 { self.work / work_per_s } else { f64::INFINITY };
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
}

fn terms(speed: &SpeedModel) -> Option<[f64; 7]> {
    let theta = &speed.theta;
    if theta.len() != speed.form.coefficients() || speed.residual.is_some() {
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

/// The best task to add to one job. The largest gain comes first; ties go to the earlier claim,
/// and within a job to the server.
#[derive(Clone, Copy, Debug)]
struct Offered {
    gain: f64,
    claim: usize,
    kind: Kind,
    /// Seconds left after it.
    after_s: f64,
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

/// Tasks on their way to the jobs.
#[derive(Debug)]
pub(crate) struct Sharing<'a> {
    claims: Vec<(&'a Gains<'a>, &'a Demand)>,
    state: State,
}

/// What was given so far.
#[derive(Clone, Debug)]
struct State {
    left: Amounts,
    given: Vec<Shape>,
    /// Seconds left at what is given.
    held_s: Vec<f64>,
    /// Whether a task of a kind is known not to fit.
    shut: Vec<[bool; 2]>,
    /// The best task to add to each claim.
    next: Vec<Option<Offered>>,
}

/// Most tasks that one changed claim takes from others in a warm round, and most that others give
/// for one of them.
const TAKEN_MAX: usize = 2 * 4096;
const GIVERS_MAX: usize = 16;

/// How far the gain falls in one sweep over all claims, at first and at the finest.
const SWEEP: f64 = 0.5;
const SWEEP_FINEST: f64 = 0.97;

impl<'a> Sharing<'a> {
    pub(crate) fn new(left: Amounts, claims: Vec<(&'a Gains<'a>, &'a Demand)>) -> Self {
        let count = claims.len();
        let state = State {
            left,
            given: vec![Shape::default(); count],
            held_s: vec![f64::INFINITY; count],
            shut: vec![[false; 2]; count],
            next: vec![None; count],
        };
        Self { claims, state }
    }

    pub(crate) fn into_given(self) -> Vec<Shape> {
        self.state.given
    }

    /// The least shape to each claim that has nothing, in order.
    pub(crate) fn give_least(&mut self) {
        for claim in 0..self.claims.len() {
            let (gains, demand) = self.claims[claim];
            if self.state.given[claim].is_empty()
                && take(&mut self.state.left, demand.of(gains.least))
            {
                self.set(claim, gains.least);
            }
        }
    }

    fn set(&mut self, claim: usize, shape: Shape) {
        self.state.given[claim] = shape;
        self.state.held_s[claim] = self.claims[claim].0.seconds_left(shape);
    }

    fn add(&mut self, offered: Offered) {
        let claim = offered.claim;
        self.state.given[claim] = offered.kind.added_to(self.state.given[claim]);
        self.state.held_s[claim] = offered.after_s;
    }

    /// Looks for the best task to add to a claim.
    fn look(&mut self, claim: usize) {
        let (gains, _) = self.claims[claim];
        let state = &mut self.state;
        let (shape, held_s, shut) = (state.given[claim], state.held_s[claim], state.shut[claim]);
        let open = Kind::BOTH.into_iter().zip(shut).filter(|(_, shut)| !shut);
        let offers = open.filter_map(|(kind, _)| {
            let (gain, after_s) = gains.of_adding(shape, held_s, kind)?;
            Some(Offered { gain, claim, kind, after_s })
        });
        // The first of equal ones stays.
        state.next[claim] =
            offers.reduce(|best, next| if next.gain > best.gain { next } else { best });
    }

    fn need(&self, offered: Offered) -> &'a [i128] {
        let (_, demand) = self.claims[offered.claim];
        match offered.kind {
            Kind::Server => demand.server(),
            Kind::Worker => demand.worker(),
        }
    }

    /// One task after another, the largest gain first, until none fits or gains anything.
    ///
    /// As long as everything fits, the order in which claims take their tasks does not matter,
    /// only down to which gain they have: so all claims take tasks down to some gain in one sweep,
    /// which costs no sorting. A sweep in which something does not fit that did at its start is
    /// undone and made smaller, and the smallest is gone through task by task.
    pub(crate) fn give_rest(&mut self) {
        for claim in 0..self.claims.len() {
            if !self.state.given[claim].is_empty() {
                self.look(claim);
            }
        }
        let mut factor = SWEEP;
        while let Some(top) =
            self.state.next.iter().flatten().map(|next| next.gain).reduce(f64::max)
        {
            let level = if top.is_finite() { top * factor } else { f64::MAX };
            let before = self.state.clone();
            if self.sweep(level, &before.left) {
                factor = (factor * factor).max(SWEEP);
                continue;
            }
            self.state = before;
            if factor < SWEEP_FINEST {
                factor = factor.sqrt();
            } else {
                self.pick(level);
                factor = SWEEP;
            }
        }
    }

    /// Where most claims are to keep what they were given in an earlier round: those without get
    /// their least shape, the others what they had, and then those without take from them, one
    /// task after another, as long as they gain more than the others lose.
    pub(crate) fn give_again(&mut self, known: &[Option<Shape>]) {
        let mut fresh = Vec::new();
        for (claim, known) in known.iter().enumerate() {
            let (gains, demand) = self.claims[claim];
            if known.is_none() && take(&mut self.state.left, demand.of(gains.least)) {
                self.set(claim, gains.least);
                fresh.push(claim);
            }
        }
        for (claim, known) in known.iter().enumerate() {
            let (_, demand) = self.claims[claim];
            if let Some(known) = known.filter(|known| !known.is_empty())
                && take(&mut self.state.left, demand.of(known))
            {
                self.set(claim, known);
            }
        }
        self.give_least();
        if fresh.iter().any(|claim| self.claims[*claim].0.progress.is_some()) {
            let mut losers = self.losers();
            for claim in fresh {
                self.take_over(claim, &mut losers);
            }
        }
        self.fill_up();
    }

    /// Gives what is left to whom it still fits.
    fn fill_up(&mut self) {
        for claim in 0..self.claims.len() {
            self.state.shut[claim] = [false; 2];
            let (_, demand) = self.claims[claim];
            let left = &self.state.left;
            let any = fits(left, demand.server().iter().copied())
                || fits(left, demand.worker().iter().copied());
            self.state.next[claim] = None;
            if self.state.given[claim].is_empty() || !any {
                continue;
            }
            self.look(claim);
            while let Some(offered) = self.state.next[claim]
                && !fits(&self.state.left, self.need(offered).iter().copied())
            {
                self.shut(offered);
                self.look(claim);
            }
        }
        self.pick(0.0);
    }

    /// The task of each claim whose loss matters least, the least of all on top.
    fn losers(&self) -> BinaryHeap<Reverse<Offered>> {
        (0..self.claims.len()).filter_map(|claim| self.loss_of(claim)).map(Reverse).collect()
    }

    fn loss_of(&self, claim: usize) -> Option<Offered> {
        let gains = self.claims[claim].0;
        let (shape, held_s) = (self.state.given[claim], self.state.held_s[claim]);
        let losses = Kind::BOTH.into_iter().filter_map(|kind| {
            let (gain, after_s) = gains.of_removing(shape, held_s, kind)?;
            Some(Offered { gain, claim, kind, after_s })
        });
        // Of equal ones the later one goes, the worker.
        losses.reduce(|least, next| if next.gain <= least.gain { next } else { least })
    }

    /// Lets one claim grow at the cost of others.
    fn take_over(&mut self, claim: usize, losers: &mut BinaryHeap<Reverse<Offered>>) {
        for _ in 0..TAKEN_MAX {
            self.state.shut[claim] = [false; 2];
            self.look(claim);
            let Some(offered) = self.state.next[claim] else { return };
            let need = self.need(offered);
            let mut undone = Vec::new();
            while !fits(&self.state.left, need.iter().copied()) && undone.len() < GIVERS_MAX {
                let Some(Reverse(lost)) = losers.pop() else { break };
                // The entry may be of an earlier shape.
                match self.loss_of(lost.claim) {
                    Some(now) if now != lost => losers.push(Reverse(now)),
                    Some(_) if lost.claim == claim => {}
                    Some(_) if lost.gain >= offered.gain => {
                        losers.push(Reverse(lost));
                        break;
                    }
                    Some(_) => {
                        undone.push((lost.claim, self.state.given[lost.claim]));
                        self.give_back(lost);
                        losers.extend(self.loss_of(lost.claim).map(Reverse));
                    }
                    None => {}
                }
            }
            if take(&mut self.state.left, need.iter().copied()) {
                self.add(offered);
                continue;
            }
            for (other, shape) in undone.into_iter().rev() {
                let held = self.state.given[other];
                let (_, demand) = self.claims[other];
                let more = Shape::new(shape.servers - held.servers, shape.workers - held.workers);
                if take(&mut self.state.left, demand.of(more)) {
                    self.set(other, shape);
                    losers.extend(self.loss_of(other).map(Reverse));
                }
            }
            return;
        }
    }

    fn give_back(&mut self, lost: Offered) {
        let need = self.need(lost);
        for (left, need) in self.state.left.iter_mut().zip(need) {
            *left += need;
        }
        self.state.given[lost.claim] = lost.kind.taken_from(self.state.given[lost.claim]);
        self.state.held_s[lost.claim] = lost.after_s;
    }

    /// Every claim takes its tasks down to a gain. False where a task does not fit that would
    /// have fitted in `at_start`.
    fn sweep(&mut self, level: f64, at_start: &[i128]) -> bool {
        for claim in 0..self.claims.len() {
            while let Some(offered) = self.state.next[claim].filter(|next| next.gain >= level) {
                let need = self.need(offered);
                if take(&mut self.state.left, need.iter().copied()) {
                    self.add(offered);
                } else if fits(at_start, need.iter().copied()) {
                    return false;
                } else {
                    self.shut(offered);
                }
                self.look(claim);
            }
        }
        true
    }

    fn shut(&mut self, offered: Offered) {
        let at = match offered.kind {
            Kind::Server => 0,
            Kind::Worker => 1,
        };
        self.state.shut[offered.claim][at] = true;
    }

    /// Gives tasks in the order of their gains, down to a gain.
    fn pick(&mut self, level: f64) {
        let next = self.state.next.iter().flatten();
        let mut heap: BinaryHeap<Offered> =
            next.filter(|next| next.gain >= level).copied().collect();
        while let Some(mut top) = heap.peek_mut() {
            let offered = *top;
            let claim = offered.claim;
            let need = self.need(offered);
            if take(&mut self.state.left, need.iter().copied()) {
                self.add(offered);
            } else {
                self.shut(offered);
            }
            self.look(claim);
            match self.state.next[claim].filter(|next| next.gain >= level) {
                Some(next) => *top = next,
                None => {
                    PeekMut::pop(top);
                }
            }
        }
    }
}

fn fits(left: &[i128], need: impl Iterator<Item = i128>) -> bool {
    left.iter().zip(need).all(|(left, need)| need == 0 || need <= *left)
}

/// Takes all of `need` or nothing.
fn take(left: &mut [i128], need: impl Iterator<Item = i128> + Clone) -> bool {
    let fits = fits(left, need.clone());
    if fits {
        for (left, need) in left.iter_mut().zip(need) {
            *left -= need;
        }
    }
    fits
}
