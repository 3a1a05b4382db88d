//! What is due, in order: by time, and within a millisecond as it was put in.

use std::collections::BTreeMap;

use model::Millis;

#[derive(Clone, Debug)]
pub(super) struct Queue<T> {
    due: BTreeMap<(Millis, u64), T>,
    put: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { due: BTreeMap::new(), put: 0 }
    }
}

impl<T> Queue<T> {
    pub(super) fn put(&mut self, at: Millis, what: T) {
        self.put += 1;
        self.due.insert((at, self.put), what);
    }

    pub(super) fn next(&self) -> Option<Millis> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn len(&self) -> usize {
        self.due.len()
    }

    pub(super) fn pop(&mut self) -> Option<(Millis, T)> {
        self.due.pop_first().map(|((at, _), what)| (at, what))
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.due.retain(|_, what| keep(what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_out_by_time_and_then_as_it_was_put() {
        let mut queue = Queue::default();
        for (at, what) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            queue.put(Millis(at), what);
        }
        assert_eq!(queue.next(), Some(Millis(3)));
        let order: Vec<char> = std::iter::from_fn(|| queue.pop().map(|(_, what)| what)).collect();
        assert_eq!(order, ['a', 'b', 'c', 'd']);
    }
}
