//! How states are changed, repaired and valued.

use super::chance::{Chance, Sparse, chances};
use super::row::{self, Row};
use super::worth::{FLOOR, Worth, ratio};
use super::{Candidate, Settings};

/// Rows that are set back to what their jobs have now, and rows that lose some of their replicas.
const RESET: f64 = 0.1;
const THINNED: f64 = 0.1;
/// Nodes that such a row leaves.
const LEFT: f64 = 0.1;

/// How good a state is, and what tells it from others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Score {
    pub fitness: f64,
    pub utility: f64,
    pub hash: u64,
}

/// What does not change during a round, and lists for one child's time.
pub(super) struct Breeder<const W: usize> {
    pub worth: Worth,
    capacity: Row<W>,
    /// With fewer replicas a job gets none.
    least: Vec<usize>,
    nodes: usize,
    /// What jobs have now, and the same within the nodes' GPUs.
    current: Vec<Row<W>>,
    home: Vec<Row<W>>,
    /// Odd numbers that spread a row's words over a hash.
    keys: Vec<Row<W>>,
    resets: Sparse,
    thinned: Sparse,
    grown: Sparse,
    /// Chances of one in so many.
    one_in: Vec<u32>,
    /// Marks of the places that grew in the present child.
    marks: Vec<u32>,
    mark: u32,
    /// Nodes in a random order, where the present child needed one.
    walk: Vec<usize>,
    is_shuffled: bool,
    job_nodes_max: u32,
    avoids_interference: bool,
}

impl<const W: usize> Breeder<W> {
    pub(super) fn new(
        gpus: &[u16],
        (jobs, least): (&[&Candidate<'_>], &[u32]),
        worth: Worth,
        settings: &Settings,
    ) -> Self {
        let count = jobs.len();
        let capacity = row::pack(gpus);
        let current: Vec<Row<W>> = jobs
            .iter()
            .map(|job| row::pack(&job.current[..gpus.len().min(job.current.len())]))
            .collect();
        let mut left = capacity;
        let mut home = current.clone();
        for row in &mut home {
            row::take(&mut left, row);
        }
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut key = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31 | 1
        };
        let keys = (0..count).map(|_| std::array::from_fn(|_| key())).collect();
        let each = u32::try_from(count).map_or(0.0, |count| 1.0 / f64::from(count.max(1)));
        Self {
            worth,
            capacity,
            least: least
                .iter()
                .map(|least| usize::try_from(*least).unwrap_or(usize::MAX))
                .collect(),
            nodes: gpus.len(),
            current,
            home,
            keys,
            resets: Sparse::new(count, RESET),
            thinned: Sparse::new(count, THINNED),
            grown: Sparse::new(count, each),
            one_in: (0..128).map(|count| chances(1.0 / f64::from(count))).collect(),
            marks: vec![0; count * gpus.len()],
            mark: 0,
            walk: (0..gpus.len()).collect(),
            is_shuffled: false,
            job_nodes_max: settings.job_nodes_max,
            avoids_interference: settings.avoids_interference,
        }
    }

    pub(super) fn current(&self) -> &[Row<W>] {
        &self.current
    }

    /// Changes a child by chance: some rows go back to what their jobs have, some lose replicas,
    /// and on nodes with free GPUs some grow.
    pub(super) fn mutate(&mut self, child: &mut [Row<W>], chance: &mut Chance<'_>) {
        self.resets.draw(chance, |_, job| child[job] = self.home[job]);
        let leaves = chances(LEFT);
        self.thinned.draw(chance, |chance, job| {
            let row = &mut child[job];
            row::each(&row::used(row), |node| {
                if chance.is(leaves) {
                    row::set(row, node, 0);
                }
            });
        });
        self.grow(child, chance);
    }

    fn grow(&mut self, child: &mut [Row<W>], chance: &mut Chance<'_>) {
        let (mut sum, mut sitting) = (row::empty(), row::empty());
        for row in child.iter() {
            row::add(&mut sum, row);
            row::count_up(&mut sitting, &row::used(row));
        }
        let free = row::above(&self.capacity, &sum);
        if row::is_empty(&free) {
            return;
        }
        self.mark = self.mark.wrapping_add(1);
        if self.mark == 0 {
            self.marks.fill(0);
            self.mark = 1;
        }
        let capacity = &self.capacity;
        let enlarge = |row: &mut Row<W>, node: usize, chance: &mut Chance<'_>| {
            let (now, most) = (row::get(row, node), row::get(capacity, node));
            let more = chance.below(usize::from(most.saturating_sub(now)) + 1);
            row::set(row, node, now + u8::try_from(more).expect("below a byte's number"));
        };
        // Who sits on a node grows there with one chance among those who do.
        for (job, row) in child.iter_mut().enumerate() {
            let at = row::both(&row::used(row), &free);
            row::each(&at, |node| {
                if chance.is(self.one_in[usize::from(row::get(&sitting, node))]) {
                    self.marks[job * self.nodes + node] = self.mark;
                    enlarge(row, node, chance);
                }
            });
        }
        // And everybody with one chance among all.
        row::each(&free, |node| {
            self.grown.draw(chance, |chance, job| {
                if self.marks[job * self.nodes + node] != self.mark {
                    enlarge(&mut child[job], node, chance);
                }
            });
        });
    }

    /// Makes a state obey the cluster's limits, job by job in their order, and values it.
    pub(super) fn settle(&mut self, state: &mut [Row<W>], chance: &mut Chance<'_>) -> Score {
        self.is_shuffled = false;
        let mut left = self.capacity;
        // Nodes with a job that stands on several.
        let mut shared = row::empty();
        let (mut inverse, mut speedup, mut hash) = (0.0, 0.0, 0_u64);
        for (job, row) in state.iter_mut().enumerate() {
            if row::is_empty(row) {
                inverse += 1.0 / FLOOR;
                continue;
            }
            let used = row::used(row);
            let mut several = row::is_several(&used);
            let mut cut = false;
            if several && self.avoids_interference {
                let taken = row::both(&used, &shared);
                if !row::is_empty(&taken) {
                    row::clear(row, &taken);
                    cut = true;
                }
                for (shared, used) in shared.iter_mut().zip(&used) {
                    *shared |= used;
                }
            }
            let mut replicas = row::sum(row);
            let most = self.worth.most(job);
            let over_nodes = self.nodes > 16 || self.job_nodes_max < 16;
            if replicas > most || (over_nodes && row::count(&row::used(row)) > self.job_nodes_max) {
                *row = self.clipped(row, most, chance);
                cut = true;
            }
            cut |= row::take(&mut left, row);
            if cut {
                replicas = row::sum(row);
                several = row::is_several(&row::used(row));
            }
            if replicas < self.least[job] {
                row::add(&mut left, row);
                *row = row::empty();
            }
            if row::is_empty(row) {
                inverse += 1.0 / FLOOR;
                continue;
            }
            for (word, key) in row.iter().zip(&self.keys[job]) {
                hash = hash.wrapping_add(word.wrapping_mul(*key));
            }
            let changed = *row != self.current[job];
            let entry = self.worth.at(job, replicas, (several, changed));
            inverse += entry.inverse;
            speedup += entry.speedup;
        }
        // A node is in use where less is left than it has.
        let active = row::only(&self.capacity, &row::above(&self.capacity, &left));
        let count = u64::try_from(state.len()).unwrap_or(u64::MAX);
        let gpus = u64::try_from(row::sum(&active)).unwrap_or(u64::MAX);
        Score { fitness: ratio(count, 1) / inverse, utility: speedup / ratio(gpus.max(1), 1), hash }
    }

    /// A row with no more than so many replicas, and on no more nodes than a job may have, keeping
    /// what comes first in a random order of the nodes.
    fn clipped(&mut self, row: &Row<W>, most: usize, chance: &mut Chance<'_>) -> Row<W> {
        if !self.is_shuffled {
            chance.shuffle(&mut self.walk);
            self.is_shuffled = true;
        }
        let mut kept = row::empty();
        let (mut left, mut nodes_left) = (most, self.job_nodes_max);
        for node in &self.walk {
            let here = row::get(row, *node);
            if here == 0 {
                continue;
            }
            if left == 0 || nodes_left == 0 {
                break;
            }
            let stays = here.min(u8::try_from(left).unwrap_or(u8::MAX));
            row::set(&mut kept, *node, stays);
            left -= usize::from(stays);
            nodes_left -= 1;
        }
        kept
    }
}
