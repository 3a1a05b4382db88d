//! A job's replicas on each node, one byte a node, eight nodes a word: so that a few operations of
//! words do for many nodes.
//!
//! No byte ever reaches 128, so that none runs over into the next, and its highest bit is free to
//! tell of it.

/// The replicas of one job on eight nodes a word, the first node in the lowest byte.
pub(super) type Row<const W: usize> = [u64; W];

/// Most GPUs of a node that the search sees. Before a repair a node holds up to three times its
/// GPUs: of both parents, and of what jobs hold now.
pub(super) const CELL_MAX: u16 = 42;

const HIGH: u64 = 0x8080_8080_8080_8080;
const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;

pub(super) const fn empty<const W: usize>() -> Row<W> {
    [0; W]
}

pub(super) fn is_empty<const W: usize>(row: &Row<W>) -> bool {
    row.iter().fold(0, |all, word| all | word) == 0
}

/// The highest bit of each byte that is above 0.
pub(super) fn used<const W: usize>(row: &Row<W>) -> Row<W> {
    let mut used = *row;
    for word in &mut used {
        *word = word.wrapping_add(LOW) & HIGH;
    }
    used
}

/// True where bits are set for more than one byte.
pub(super) fn is_several<const W: usize>(bits: &Row<W>) -> bool {
    let (mut seen, mut several) = (0, 0);
    for word in bits {
        let is_used = u64::from(*word != 0);
        several |= (seen & is_used) | u64::from(*word & word.wrapping_sub(1) != 0);
        seen |= is_used;
    }
    several != 0
}

/// How many bytes have a bit set.
pub(super) fn count<const W: usize>(bits: &Row<W>) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}

/// The sum of all bytes.
pub(super) fn sum<const W: usize>(row: &Row<W>) -> usize {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    let mut sum = 0;
    for word in row {
        let pairs = (word & EVEN).wrapping_add(word >> 8 & EVEN);
        sum += pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48;
    }
    usize::try_from(sum).expect("a few thousand bytes")
}

/// The bits that both have.
pub(super) fn both<const W: usize>(a: &Row<W>, b: &Row<W>) -> Row<W> {
    let mut both = *a;
    for (a, b) in both.iter_mut().zip(b) {
        *a &= b;
    }
    both
}

/// All bits of the bytes whose highest is set.
const fn spread(bits: u64) -> u64 {
    (bits >> 7).wrapping_mul(0xff)
}

/// Sets bytes to 0 whose highest bit is set in `bits`.
pub(super) fn clear<const W: usize>(row: &mut Row<W>, bits: &Row<W>) {
    for (word, bits) in row.iter_mut().zip(bits) {
        *word &= !spread(*bits);
    }
}

/// The bytes whose highest bit is set in `bits`.
pub(super) fn only<const W: usize>(row: &Row<W>, bits: &Row<W>) -> Row<W> {
    let mut only = *row;
    for (word, bits) in only.iter_mut().zip(bits) {
        *word &= spread(*bits);
    }
    only
}

pub(super) fn add<const W: usize>(row: &mut Row<W>, more: &Row<W>) {
    for (word, more) in row.iter_mut().zip(more) {
        *word = word.wrapping_add(*more);
    }
}

/// One more in each byte whose highest bit is set in `bits`.
pub(super) fn count_up<const W: usize>(row: &mut Row<W>, bits: &Row<W>) {
    for (word, bits) in row.iter_mut().zip(bits) {
        *word = word.wrapping_add(bits >> 7);
    }
}

/// The highest bit of each byte that is larger in `a` than in `b`.
pub(super) fn above<const W: usize>(a: &Row<W>, b: &Row<W>) -> Row<W> {
    let mut above = *a;
    for (a, b) in above.iter_mut().zip(b) {
        *a = !(b | HIGH).wrapping_sub(*a) & HIGH;
    }
    above
}

/// Takes a row from what is left, where it is all there; else cuts it to that first. True where
/// it was cut.
pub(super) fn take<const W: usize>(left: &mut Row<W>, row: &mut Row<W>) -> bool {
    let mut cut = false;
    for (left, word) in left.iter_mut().zip(row) {
        let enough = (*left | HIGH).wrapping_sub(*word) & HIGH;
        if enough != HIGH {
            let mask = spread(enough);
            *word = *word & mask | *left & !mask;
            cut = true;
        }
        *left = left.wrapping_sub(*word);
    }
    cut
}

pub(super) fn get<const W: usize>(row: &Row<W>, node: usize) -> u8 {
    let [byte, ..] = (row[node / 8] >> (node % 8 * 8)).to_le_bytes();
    byte
}

pub(super) fn set<const W: usize>(row: &mut Row<W>, node: usize, value: u8) {
    let shift = node % 8 * 8;
    let word = &mut row[node / 8];
    *word = *word & !(0xff << shift) | u64::from(value) << shift;
}

/// Calls `with` for each byte that has a bit set, in ascending order.
pub(super) fn each<const W: usize>(bits: &Row<W>, mut with: impl FnMut(usize)) {
    for (at, word) in bits.iter().enumerate() {
        let mut left = *word;
        while left != 0 {
            with(at * 8 + usize::try_from(left.trailing_zeros() / 8).expect("below 8"));
            left &= left - 1;
        }
    }
}

/// A row from numbers, none above [`CELL_MAX`] or what a node has.
pub(super) fn pack<const W: usize>(numbers: &[u16]) -> Row<W> {
    let mut row = empty();
    for (node, number) in numbers.iter().enumerate() {
        set(&mut row, node, u8::try_from((*number).min(CELL_MAX)).expect("a small number"));
    }
    row
}

pub(super) fn unpack<const W: usize>(row: &Row<W>, nodes: usize) -> Vec<u16> {
    (0..nodes).map(|node| u16::from(get(row, node))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation against the same on plain numbers.
    #[test]
    fn words_do_as_numbers() {
        let mut state = 1_u64;
        let mut chance = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            u16::try_from((state >> 40) % most).unwrap()
        };
        for turn in 0..2000 {
            let most = [2, 5, 43][turn % 3];
            let a: Vec<u16> = (0..16).map(|_| chance(most)).collect();
            let b: Vec<u16> = (0..16).map(|_| chance(5)).collect();
            let (x, y): (Row<2>, Row<2>) = (pack(&a), pack(&b));
            assert_eq!(unpack(&x, 16), a);
            assert_eq!(sum(&x), a.iter().map(|a| usize::from(*a)).sum::<usize>());
            let nonzero = a.iter().filter(|a| **a > 0).count();
            assert_eq!(usize::try_from(count(&used(&x))).unwrap(), nonzero);
            assert_eq!(is_several(&used(&x)), nonzero > 1);
            assert_eq!(is_empty(&x), nonzero == 0);
            let larger: Vec<usize> = (0..16).filter(|at| a[*at] > b[*at]).collect();
            let mut found = Vec::new();
            each(&above(&x, &y), |at| found.push(at));
            assert_eq!(found, larger);
            let (mut left, mut cut) = (x, y);
            assert_eq!(take(&mut left, &mut cut), (0..16).any(|at| b[at] > a[at]));
            for at in 0..16 {
                assert_eq!(u16::from(get(&cut, at)), a[at].min(b[at]));
                assert_eq!(u16::from(get(&left, at)), a[at] - a[at].min(b[at]));
            }
            let mut cleared = x;
            clear(&mut cleared, &used(&y));
            let (mut added, mut counted) = (x, x);
            add(&mut added, &y);
            count_up(&mut counted, &used(&y));
            for at in 0..16 {
                assert_eq!(u16::from(get(&cleared, at)), if b[at] > 0 { 0 } else { a[at] });
                assert_eq!(u16::from(get(&added, at)), a[at] + b[at]);
                assert_eq!(u16::from(get(&counted, at)), a[at] + u16::from(b[at] > 0));
            }
        }
    }
}
