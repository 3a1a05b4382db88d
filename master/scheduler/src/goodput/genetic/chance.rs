//! Draws of the genetic search.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// A stream of chance. Its draws differ from exact ones by less than 2^-31.
#[derive(Debug)]
pub(super) struct Chance<'a>(pub &'a mut Pcg64Mcg);

impl Chance<'_> {
    pub(super) fn bits(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// One of the numbers below `count`; 0 where that is 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count).unwrap_or(u64::MAX).min(u64::from(u32::MAX));
        let drawn = (u64::from(self.bits()) * count) >> 32;
        usize::try_from(drawn).expect("below a count of things in memory")
    }

    /// True with so many chances in 2^32.
    pub(super) fn is(&mut self, chances: u32) -> bool {
        self.bits() < chances
    }

    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
    }
}

/// A share as chances in 2^32.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "held within the range just before"
)]
pub(super) fn chances(share: f64) -> u32 {
    (share * 4_294_967_296.0).clamp(0.0, f64::from(u32::MAX)) as u32
}

/// Rows are looked at in blocks of one word's bits.
const BLOCK: usize = 64;

/// Which of a list's items are picked, each with the same small chance and apart from the others:
/// first how many of a block, from a table, then which.
#[derive(Clone, Debug)]
pub(super) struct Sparse {
    count: usize,
    /// Of a whole block, and of the last one.
    whole: Vec<u32>,
    rest: Vec<u32>,
}

impl Sparse {
    pub(super) fn new(count: usize, share: f64) -> Self {
        let whole = if count >= BLOCK { ladder(BLOCK, share) } else { Vec::new() };
        Self { count, whole, rest: ladder(count % BLOCK, share) }
    }

    /// Calls `pick` for each picked item, in no order within a block.
    pub(super) fn draw(
        &self,
        chance: &mut Chance<'_>,
        mut pick: impl FnMut(&mut Chance<'_>, usize),
    ) {
        let mut from = 0;
        while from < self.count {
            let (length, ladder) = if self.count - from >= BLOCK {
                (BLOCK, &self.whole)
            } else {
                (self.count - from, &self.rest)
            };
            let drawn = chance.bits();
            let mut picked = 0_u64;
            for _ in ladder.iter().take_while(|step| drawn >= **step) {
                let mut at = chance.below(length);
                while picked >> at & 1 == 1 {
                    at = chance.below(length);
                }
                picked |= 1 << at;
                pick(chance, from + at);
            }
            from += BLOCK;
        }
    }
}

/// The chances, in 2^32, of at most 0, 1, 2 … of `count` items, while these are not certain.
fn ladder(count: usize, share: f64) -> Vec<u32> {
    if share >= 1.0 {
        return vec![0; count];
    }
    let odds = share / (1.0 - share);
    let mut each = (0..count).fold(1.0, |product, _| product * (1.0 - share));
    let mut sum = 0.0;
    let mut steps = Vec::new();
    for (done, left) in (0_u32..).zip((1..=u32::try_from(count).unwrap_or(0)).rev()) {
        sum += each;
        let step = chances(sum);
        if step == u32::MAX {
            break;
        }
        steps.push(step);
        each *= odds * f64::from(left) / f64::from(done + 1);
    }
    steps
}

#[cfg(test)]
mod tests {
    use rand_pcg::rand_core::SeedableRng;

    use super::*;

    #[test]
    fn each_item_is_picked_as_often_as_asked() {
        for (count, share) in [(1, 1.0), (2, 0.5), (7, 0.1), (64, 0.1), (150, 1.0 / 150.0)] {
            let mut stream = Pcg64Mcg::seed_from_u64(7);
            let mut chance = Chance(&mut stream);
            let sparse = Sparse::new(count, share);
            let mut picked = vec![0_u32; count];
            let turns = 40_000_u32;
            for _ in 0..turns {
                let mut before = std::collections::BTreeSet::new();
                sparse.draw(&mut chance, |_, at| {
                    picked[at] += 1;
                    assert!(before.insert(at), "none twice");
                });
            }
            for picked in picked {
                let mean = share * f64::from(turns);
                let spread = (mean * (1.0 - share)).sqrt();
                assert!((f64::from(picked) - mean).abs() <= 5.0 * spread, "{picked} for {mean}");
            }
        }
    }

    #[test]
    fn draws_stay_below_their_count() {
        let mut stream = Pcg64Mcg::seed_from_u64(1);
        let mut chance = Chance(&mut stream);
        assert_eq!(chance.below(0), 0);
        for count in 1..50 {
            assert!((0..200).all(|_| chance.below(count) < count));
        }
        assert!(!chance.is(0));
        assert_eq!((chances(0.0), chances(-1.0), chances(f64::NAN)), (0, 0, 0));
        assert_eq!(chances(2.0), u32::MAX);
        let mut list: Vec<u32> = (0..9).collect();
        chance.shuffle(&mut list);
        list.sort_unstable();
        assert!(list.into_iter().eq(0..9));
    }
}
