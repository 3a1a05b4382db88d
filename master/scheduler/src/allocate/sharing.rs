//! The greedy choice of tasks by marginal gain, from nothing or from what an earlier round gave.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use model::Shape;

use super::{Gains, Kind};
use crate::room::{Amounts, Demand};

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
/// Sweeps that are undone before the rest is gone through task by task.
const UNDONE_MAX: u32 = 24;

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
        let (mut factor, mut undone) = (SWEEP, 0);
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
            undone += 1;
            if undone > UNDONE_MAX {
                self.pick(0.0);
                return;
            }
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
