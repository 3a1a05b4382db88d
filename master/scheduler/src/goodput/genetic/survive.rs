//! Who lives on and who breeds (NSGA-II): fronts of states that none in the same front beats in
//! both objectives, and within a front those in sparse places.

use std::cmp::Ordering;

use super::breed::Score;
use super::chance::Chance;

/// A state among others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Where its rows are.
    pub slot: usize,
    pub score: Score,
    /// How sparse its place in the front is; infinite at the ends.
    pub crowding: f64,
    front: usize,
}

impl Standing {
    pub(super) fn new(slot: usize, score: Score) -> Self {
        Self { slot, score, crowding: 0.0, front: 0 }
    }

    fn beats(&self, other: &Self) -> bool {
        let (a, b) = (&self.score, &other.score);
        let is_no_worse = a.fitness >= b.fitness && a.utility >= b.utility;
        is_no_worse && (a.fitness > b.fitness || a.utility > b.utility)
    }
}

fn is_same(a: &Standing, b: &Standing) -> bool {
    let fitness = a.score.fitness.total_cmp(&b.score.fitness);
    fitness.then(a.score.utility.total_cmp(&b.score.utility)) == Ordering::Equal
}

/// The better of two drawn: who beats the other, else who stands sparser, else either.
pub(super) fn winner(a: &Standing, b: &Standing, chance: &mut Chance<'_>) -> usize {
    let first = if a.beats(b) {
        true
    } else if b.beats(a) {
        false
    } else {
        match a.crowding.total_cmp(&b.crowding) {
            Ordering::Greater => true,
            Ordering::Less => false,
            Ordering::Equal => chance.bits() & 1 == 0,
        }
    };
    if first { a.slot } else { b.slot }
}

/// Lists for one generation's time.
#[derive(Debug, Default)]
pub(super) struct Survival {
    /// The best utility of each front so far.
    fronts: Vec<f64>,
    /// Of each front, where its next state goes.
    places: Vec<usize>,
    sorted: Vec<Standing>,
    ties: Vec<(f64, u32, Standing)>,
}

impl Survival {
    /// Leaves no more than `count`, the best front first; the slots of the others go to `free`.
    pub(super) fn cut(
        &mut self,
        all: &mut Vec<Standing>,
        count: usize,
        chance: &mut Chance<'_>,
        free: &mut Vec<usize>,
    ) {
        self.rank(all);
        std::mem::swap(all, &mut self.sorted);
        let mut from = 0;
        while from < all.len() {
            let front = all[from].front;
            let length = all[from..].iter().take_while(|state| state.front == front).count();
            crowd(&mut all[from..from + length]);
            if from + length > count {
                self.sparsest_first(&mut all[from..from + length], chance);
                break;
            }
            from += length;
        }
        free.extend(all.iter().skip(count).map(|state| state.slot));
        all.truncate(count);
    }

    /// Sorts states into fronts, and each front by falling fitness.
    ///
    /// By falling fitness, then utility, a state can only be beaten by an earlier one: it belongs
    /// to the first front whose best utility so far is below its own, and these fall from front to
    /// front.
    fn rank(&mut self, all: &mut [Standing]) {
        all.sort_by(|a, b| {
            let by_fitness = b.score.fitness.total_cmp(&a.score.fitness);
            by_fitness.then(b.score.utility.total_cmp(&a.score.utility))
        });
        self.fronts.clear();
        self.places.clear();
        let mut last: Option<Standing> = None;
        for state in all.iter_mut() {
            state.front = match last.filter(|last| is_same(last, state)) {
                Some(last) => last.front,
                None => self.fronts.partition_point(|best| *best >= state.score.utility),
            };
            if state.front == self.fronts.len() {
                self.fronts.push(state.score.utility);
                self.places.push(0);
            } else {
                self.fronts[state.front] = state.score.utility;
            }
            self.places[state.front] += 1;
            last = Some(*state);
        }
        let mut from = 0;
        for place in &mut self.places {
            from += std::mem::replace(place, from);
        }
        self.sorted.clear();
        self.sorted.extend_from_slice(all);
        for state in all.iter() {
            self.sorted[self.places[state.front]] = *state;
            self.places[state.front] += 1;
        }
    }

    fn sparsest_first(&mut self, front: &mut [Standing], chance: &mut Chance<'_>) {
        self.ties.clear();
        self.ties.extend(front.iter().map(|state| (state.crowding, chance.bits(), *state)));
        self.ties.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (state, (_, _, sorted)) in front.iter_mut().zip(&self.ties) {
            *state = *sorted;
        }
    }
}

/// How far the neighbours of each state of a front are from each other, as shares of the front's
/// extent; the front comes by falling fitness. Of equal states all but one stand in no place of
/// their own.
fn crowd(front: &mut [Standing]) {
    let [first, .., last] = front else {
        for state in front {
            state.crowding = f64::INFINITY;
        }
        return;
    };
    let (first, last) = (*first, *last);
    let fitness = first.score.fitness - last.score.fitness;
    let utility = last.score.utility - first.score.utility;
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let mut before: Option<Score> = None;
    let mut at = 0;
    while at < front.len() {
        let here = front[at];
        let mut next = at + 1;
        while next < front.len() && is_same(&front[next], &here) {
            front[next].crowding = 0.0;
            next += 1;
        }
        front[at].crowding = match (before, front.get(next)) {
            (Some(before), Some(after)) => {
                let wide = share(before.fitness - after.score.fitness, fitness);
                (wide + share(after.score.utility - before.utility, utility)) / 2.0
            }
            (None, _) | (_, None) => f64::INFINITY,
        };
        before = Some(here.score);
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use rand_pcg::Pcg64Mcg;
    use rand_pcg::rand_core::SeedableRng;

    use super::*;

    /// Fronts by their definition: who is beaten only by states of earlier fronts.
    fn fronts(all: &[Standing]) -> Vec<usize> {
        let mut fronts = vec![usize::MAX; all.len()];
        for front in 0..all.len() {
            let left: Vec<usize> = (0..all.len()).filter(|at| fronts[*at] == usize::MAX).collect();
            for at in &left {
                if !left.iter().any(|other| all[*other].beats(&all[*at])) {
                    fronts[*at] = front;
                }
            }
        }
        fronts
    }

    #[test]
    fn fronts_are_as_defined_and_the_best_live_on() {
        let mut stream = Pcg64Mcg::seed_from_u64(3);
        let mut chance = Chance(&mut stream);
        for turn in 1..300 {
            let mut all: Vec<Standing> = (0..turn % 40 + 1)
                .map(|slot| {
                    let mut number = || f64::from(u32::try_from(chance.below(turn)).unwrap());
                    Standing::new(slot, Score { fitness: number(), utility: number(), hash: 0 })
                })
                .collect();
            let wanted = fronts(&all);
            let count = all.len();
            let keep = count.div_ceil(2);
            let best = all.iter().map(|state| state.score.fitness).fold(0.0, f64::max);
            let mut free = Vec::new();
            Survival::default().cut(&mut all, keep, &mut chance, &mut free);
            assert_eq!((all.len(), free.len()), (keep, count - keep));
            for state in &all {
                assert_eq!(state.front, wanted[state.slot]);
                assert!(free.iter().all(|slot| wanted[*slot] >= state.front));
            }
            let kept = all.iter().map(|state| state.score.fitness).fold(0.0, f64::max);
            assert!((kept - best).abs() < 1e-12, "the fittest lives on");
        }
    }

    /// By hand: at fitness 4, 3, 1 and utility 0, 2, 4 the middle one spans everything.
    #[test]
    fn crowding_by_hand() {
        let state =
            |slot, fitness, utility| Standing::new(slot, Score { fitness, utility, hash: 0 });
        let mut front =
            [state(0, 4.0, 0.0), state(1, 3.0, 2.0), state(2, 3.0, 2.0), state(3, 1.0, 4.0)];
        crowd(&mut front);
        let crowding = front.map(|state| state.crowding);
        assert!(crowding[0].is_infinite() && crowding[3].is_infinite());
        assert!((crowding[1] - 1.0).abs() < 1e-15 && crowding[2].abs() < 1e-15);
    }
}
