//! What the search keeps from round to round.

use model::JobId;

use super::row::{Row, empty};
use super::worth::Goodputs;

/// The states that the last round ended with, by jobs' ids, and jobs' goodputs. An empty one is
/// where a first round starts.
#[derive(Clone, Debug, Default)]
pub struct Population {
    pub(super) goodputs: Goodputs,
    /// In the order of the states' rows.
    jobs: Vec<JobId>,
    gpus: Vec<u16>,
    /// States one after the other, row by row.
    words: Vec<u64>,
}

impl Population {
    /// Forgets all states: the nodes are others than in the last round.
    pub fn clear(&mut self) {
        self.jobs.clear();
        self.words.clear();
    }

    /// The states with rows for these jobs: of those that are gone left out, of new ones empty.
    /// None where the number of nodes has changed.
    pub(super) fn states<const W: usize>(&self, gpus: &[u16], jobs: &[JobId]) -> Vec<Row<W>> {
        if self.jobs.is_empty() || self.gpus.len() != gpus.len() {
            return Vec::new();
        }
        let mut known: Vec<(JobId, usize)> = self.jobs.iter().copied().zip(0..).collect();
        known.sort_unstable();
        let from: Vec<Option<usize>> = jobs
            .iter()
            .map(|job| known.binary_search_by_key(job, |known| known.0).ok().map(|at| known[at].1))
            .collect();
        let (rows, _) = self.words.as_chunks::<W>();
        let mut states = Vec::new();
        for state in rows.chunks_exact(self.jobs.len()) {
            states.extend(from.iter().map(|from| from.map_or(empty(), |from| state[from])));
        }
        states
    }

    pub(super) fn keep<'a, const W: usize>(
        &mut self,
        gpus: &[u16],
        jobs: &[JobId],
        states: impl Iterator<Item = &'a [Row<W>]>,
    ) {
        self.gpus.clear();
        self.gpus.extend_from_slice(gpus);
        self.jobs.clear();
        self.jobs.extend_from_slice(jobs);
        self.words.clear();
        for state in states {
            self.words.extend_from_slice(state.as_flattened());
        }
    }
}
