//! Nodes by how much they have left of one kind, without sorting: each node is in one of some
//! sixty classes of about equal width, and within a class nodes go by id. Moving a node from one
//! class to another costs a few memory accesses, whatever the number of nodes.

/// The highest class; class 0 holds nodes with nothing left.
const TOP: usize = 63;

/// A set of small numbers that is walked in ascending order.
#[derive(Clone, Debug, Default)]
struct Bits {
    words: Vec<u64>,
    /// One bit for each word that is not zero.
    upper: Vec<u64>,
    count: usize,
}

/// The positions of the ones of a word, ascending.
struct Ones(u64);

impl Iterator for Ones {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let at = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        usize::try_from(at).ok()
    }
}

impl Bits {
    fn insert(&mut self, at: usize, size: usize) {
        if self.words.is_empty() {
            self.words = vec![0; size.div_ceil(64)];
            self.upper = vec![0; self.words.len().div_ceil(64)];
        }
        let word = at / 64;
        self.words[word] |= 1 << (at % 64);
        self.upper[word / 64] |= 1 << (word % 64);
        self.count += 1;
    }

    fn remove(&mut self, at: usize) {
        let word = at / 64;
        self.words[word] &= !(1 << (at % 64));
        if self.words[word] == 0 {
            self.upper[word / 64] &= !(1 << (word % 64));
        }
        self.count -= 1;
    }

    fn ascending(&self) -> impl Iterator<Item = usize> {
        let words = self.upper.iter().enumerate();
        let words = words.flat_map(|(at, upper)| Ones(*upper).map(move |bit| at * 64 + bit));
        words.flat_map(|word| Ones(self.words[word]).map(move |bit| word * 64 + bit))
    }
}

/// Classes of one kind of resource.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    size: usize,
    /// A class is `2^shift` wide.
    shift: u32,
    classes: Vec<Bits>,
    /// The class of each node that is in, else [`OUT`].
    class: Vec<u8>,
}

const OUT: u8 = u8::MAX;

impl Rank {
    /// For so many nodes of which none has more than `most`.
    pub(crate) fn new(size: usize, most: i128) -> Self {
        let mut shift = 0;
        while (most >> shift) >= i128::try_from(TOP).unwrap_or(i128::MAX) {
            shift += 1;
        }
        Self { size, shift, classes: vec![Bits::default(); TOP + 1], class: vec![OUT; size] }
    }

    fn class_of(&self, left: i128) -> usize {
        if left <= 0 {
            return 0;
        }
        usize::try_from((left >> self.shift) + 1).unwrap_or(TOP).min(TOP)
    }

    /// Puts a node where it belongs with so much left, or out.
    pub(crate) fn update(&mut self, node: usize, left: Option<i128>) {
        let class = left.map(|left| self.class_of(left));
        let class_now = class.and_then(|class| u8::try_from(class).ok()).unwrap_or(OUT);
        let before = self.class[node];
        if class_now == before {
            return;
        }
        if before != OUT {
            self.classes[usize::from(before)].remove(node);
        }
        if let Some(class) = class {
            self.classes[class].insert(node, self.size);
        }
        self.class[node] = class_now;
    }

    /// How many nodes are in classes that may hold nodes with so much left.
    pub(crate) fn count_from(&self, need: i128) -> usize {
        self.classes[self.class_of(need)..].iter().map(|class| class.count).sum()
    }

    /// Nodes of the classes that may hold nodes with so much left, the fullest class first, by
    /// ascending index within a class.
    pub(crate) fn descending_to(&self, need: i128) -> impl Iterator<Item = usize> {
        let classes = self.classes[self.class_of(need)..].iter().rev();
        classes.filter(|class| class.count > 0).flat_map(Bits::ascending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_come_by_falling_class_and_then_by_index() {
        let mut rank = Rank::new(200, 16_000);
        for node in 0..200 {
            rank.update(node, Some(if node % 3 == 0 { 16_000 } else { 4_000 }));
        }
        rank.update(6, Some(0));
        rank.update(7, Some(16_000));
        rank.update(9, None);
        let order: Vec<usize> = rank.descending_to(8_000).collect();
        assert_eq!(order[..4], [0, 3, 7, 12]);
        assert_eq!(order.len(), rank.count_from(8_000));
        assert_eq!(rank.descending_to(1).count(), 198, "node 6 has nothing, node 9 is out");
        assert_eq!(rank.descending_to(0).last(), Some(6));
    }

    #[test]
    fn amounts_of_any_size_have_a_class() {
        let mut rank = Rank::new(3, i128::from(u64::MAX));
        rank.update(0, Some(i128::from(u64::MAX)));
        rank.update(1, Some(1));
        rank.update(2, Some(-5));
        assert_eq!(rank.descending_to(i128::MIN).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(rank.count_from(i128::MAX), 0, "nobody has that much");
    }
}
