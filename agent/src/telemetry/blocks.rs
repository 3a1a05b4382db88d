//! The parameter blocks of a model, which the worker of rank 0 tells in several datagrams.

use model::notes::{BLOCK_PARAMETERS_MAX, BLOCKS_MAX};

/// Some of the blocks, in the order of their initialisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    first: usize,
    of: usize,
    sizes: Vec<u64>,
}

impl Chunk {
    /// Blocks from number `first` of `of`; none where that cannot be.
    pub(super) fn new(first: u64, of: u64, sizes: Vec<u64>) -> Option<Self> {
        let (first, of) = (usize::try_from(first).ok()?, usize::try_from(of).ok()?);
        let fits = of <= BLOCKS_MAX && sizes.len() <= of.checked_sub(first)?;
        let sane = sizes.iter().all(|size| *size <= BLOCK_PARAMETERS_MAX);
        (fits && sane && !sizes.is_empty()).then_some(Self { first, of, sizes })
    }
}

/// What is known of the blocks of one generation.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    arriving: Vec<Option<u64>>,
    whole: Option<Vec<u64>>,
}

impl Blocks {
    /// True where all blocks are known by it, and were not before or were others.
    pub(super) fn take(&mut self, chunk: &Chunk) -> bool {
        if self.arriving.len() != chunk.of {
            self.arriving = vec![None; chunk.of];
        }
        let arriving = self.arriving.iter_mut().skip(chunk.first);
        for (known, size) in arriving.zip(&chunk.sizes) {
            *known = Some(*size);
        }
        let whole: Option<Vec<u64>> = self.arriving.iter().copied().collect();
        let news = whole.is_some() && whole != self.whole;
        if news {
            self.whole = whole;
        }
        news
    }

    /// Parameters of each block, once all are known.
    pub(super) fn whole(&self) -> Option<&Vec<u64>> {
        self.whole.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(first: u64, of: u64, sizes: &[u64]) -> Chunk {
        Chunk::new(first, of, sizes.to_vec()).unwrap()
    }

    #[test]
    fn blocks_are_news_once_all_have_come_in_any_order() {
        let mut blocks = Blocks::default();
        assert!(!blocks.take(&chunk(2, 3, &[7])));
        assert!(!blocks.take(&chunk(2, 3, &[7])), "said again");
        assert_eq!(blocks.whole(), None);
        assert!(blocks.take(&chunk(0, 3, &[5, 6])));
        assert_eq!(blocks.whole(), Some(&vec![5, 6, 7]));
        assert!(!blocks.take(&chunk(0, 3, &[5, 6])), "said again");
        assert!(blocks.take(&chunk(1, 3, &[8])), "another one");
        assert!(!blocks.take(&chunk(0, 4, &[5, 6])), "other blocks, not all of them yet");
        assert_eq!(blocks.whole(), Some(&vec![5, 8, 7]));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let most = u64::try_from(BLOCKS_MAX).unwrap();
        for (first, of, sizes) in [
            (0, 0, vec![]),
            (0, 1, vec![]),
            (1, 1, vec![1]),
            (2, 1, vec![1]),
            (0, 1, vec![1, 1]),
            (u64::MAX, 1, vec![1]),
            (0, most + 1, vec![1]),
            (0, 1, vec![BLOCK_PARAMETERS_MAX + 1]),
        ] {
            assert_eq!(Chunk::new(first, of, sizes.clone()), None, "{first} of {of}: {sizes:?}");
        }
        assert!(Chunk::new(most - 1, most, vec![BLOCK_PARAMETERS_MAX]).is_some());
    }
}
