//! The generations of a search.

use rand_pcg::Pcg64Mcg;

use super::breed::{Breeder, Score};
use super::chance::Chance;
use super::row::{Row, empty, unpack};
use super::survive::{Standing, Survival, winner};
use super::worth::Worth;
use super::{Candidate, Population, Settings};

/// Times that children are bred until there are enough that are not known yet.
const RETRIES_MAX: u32 = 100;
/// Words of all states together: half a gigabyte. Larger searches keep fewer states.
const WORDS_MAX: usize = 1 << 26;
/// Words of all children of a round: about ten seconds. Larger searches have fewer generations.
const WORK_MAX: usize = 1 << 31;

/// The fittest state of the last generation, by jobs in their order.
pub(super) fn run<const W: usize>(
    gpus: &[u16],
    (jobs, least): (&[&Candidate<'_>], &[u32]),
    population: &mut Population,
    stream: &mut Pcg64Mcg,
    settings: &Settings,
) -> Vec<Vec<u16>> {
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let state_words = jobs.len() * W;
    let count = settings.population.clamp(1, (WORDS_MAX / state_words / 2).max(2));
    let each = (count * state_words).max(1);
    let generations = u32::try_from(WORK_MAX / each).unwrap_or(u32::MAX).max(1);
    let generations = generations.min(settings.generations);
    population.goodputs.renew(jobs);
    let worth = Worth::of(gpus, jobs, settings.rescale_s, &mut population.goodputs);
    let breeder = Breeder::new(gpus, (jobs, least), worth, settings);
    let known = population.states::<W>(gpus, &ids);
    let mut chance = Chance(stream);
    let mut round = Round::new(breeder, jobs.len(), count);
    round.begin(&known, &mut chance);
    for _ in 0..generations {
        if !round.generation(&mut chance) {
            break;
        }
    }
    let states = round.alive.iter().map(|state| round.state(state.slot));
    population.keep(gpus, &ids, states);
    round.fittest().iter().map(|row| unpack(row, gpus.len())).collect()
}

/// A search on its way: states in slots, twice as many as live on.
struct Round<const W: usize> {
    breeder: Breeder<W>,
    jobs: usize,
    count: usize,
    rows: Vec<Row<W>>,
    alive: Vec<Standing>,
    free: Vec<usize>,
    seen: Seen,
    survival: Survival,
    /// Parents to come, by their places among those alive.
    drawn: Vec<usize>,
}

impl<const W: usize> Round<W> {
    fn new(breeder: Breeder<W>, jobs: usize, count: usize) -> Self {
        // Two more, for a pair of children of which the second is one too many.
        let slots = 2 * count + 2;
        Self {
            breeder,
            jobs,
            count,
            rows: vec![empty(); slots * jobs],
            alive: Vec::with_capacity(slots),
            free: (0..slots).rev().collect(),
            seen: Seen::new(slots),
            survival: Survival::default(),
            drawn: Vec::with_capacity(count),
        }
    }

    fn state(&self, slot: usize) -> &[Row<W>] {
        &self.rows[slot * self.jobs..(slot + 1) * self.jobs]
    }

    /// The states of the last round, and what is there now.
    fn begin(&mut self, known: &[Row<W>], chance: &mut Chance<'_>) {
        let present = self.breeder.current().to_vec();
        let states = known.chunks_exact(self.jobs).take(self.count).chain([&present[..]]);
        for state in states {
            let slot = self.free.pop().expect("twice as many slots as states");
            let rows = &mut self.rows[slot * self.jobs..(slot + 1) * self.jobs];
            rows.copy_from_slice(state);
            let score = self.breeder.settle(rows, chance);
            self.admit(slot, score);
        }
        self.survival.cut(&mut self.alive, self.count, chance, &mut self.free);
    }

    /// A state joins those alive, unless it is there already. True where it is new.
    fn admit(&mut self, slot: usize, score: Score) -> bool {
        let (rows, jobs) = (&self.rows, self.jobs);
        let state = |slot: usize| &rows[slot * jobs..(slot + 1) * jobs];
        let is_new = self.seen.insert(score.hash, slot, |other| state(other) == state(slot));
        if is_new {
            self.alive.push(Standing::new(slot, score));
        } else {
            self.free.push(slot);
        }
        is_new
    }

    /// Breeds as many children as live on, and lets the best of all live on. False where nothing
    /// new was found.
    fn generation(&mut self, chance: &mut Chance<'_>) -> bool {
        self.seen.clear();
        for state in &self.alive {
            self.seen.add(state.score.hash, state.slot);
        }
        self.drawn.clear();
        let parents = self.alive.len();
        let wanted = parents + self.count;
        for _ in 0..=RETRIES_MAX {
            let pairs = (wanted - self.alive.len()).div_ceil(2);
            for _ in 0..pairs {
                self.pair(parents, wanted, chance);
            }
            if self.alive.len() >= wanted {
                break;
            }
        }
        let found = self.alive.len() > parents;
        self.survival.cut(&mut self.alive, self.count, chance, &mut self.free);
        found
    }

    /// Two children, of which only as many join as are wanted.
    fn pair(&mut self, parents: usize, wanted: usize, chance: &mut Chance<'_>) {
        let (a, b) = (self.parent(parents, chance), self.parent(parents, chance));
        let cut = chance.below(self.jobs);
        for (first, second) in [(b, a), (a, b)] {
            if self.alive.len() >= wanted {
                return;
            }
            let slot = self.free.pop().expect("more slots than are alive and wanted");
            let (from, jobs) = (slot * self.jobs, self.jobs);
            self.rows.copy_within(first * jobs..first * jobs + cut, from);
            self.rows.copy_within(second * jobs + cut..(second + 1) * jobs, from + cut);
            let child = &mut self.rows[from..from + jobs];
            self.breeder.mutate(child, chance);
            let score = self.breeder.settle(child, chance);
            self.admit(slot, score);
        }
    }

    /// The winner of two, who are drawn such that all come as often.
    fn parent(&mut self, parents: usize, chance: &mut Chance<'_>) -> usize {
        let mut draw = || {
            if self.drawn.last().is_none() {
                self.drawn.extend(0..parents);
                chance.shuffle(&mut self.drawn);
            }
            self.drawn.pop().unwrap_or(0)
        };
        let (a, b) = (draw(), draw());
        winner(&self.alive[a], &self.alive[b], chance)
    }

    fn fittest(&self) -> &[Row<W>] {
        let mut best = &self.alive[0];
        for state in &self.alive[1..] {
            let (a, b) = (&state.score, &best.score);
            let by_fitness = a.fitness.total_cmp(&b.fitness);
            if by_fitness.then(a.utility.total_cmp(&b.utility)).is_gt() {
                best = state;
            }
        }
        self.state(best.slot)
    }
}

/// Slots of states by their hashes, in an open table.
struct Seen {
    /// Slots plus one; 0 where nothing is. A power of two long, and never more than half full.
    table: Vec<(u64, usize)>,
}

impl Seen {
    fn new(slots: usize) -> Self {
        Self { table: vec![(0, 0); (slots * 2).next_power_of_two()] }
    }

    fn clear(&mut self) {
        self.table.fill((0, 0));
    }

    /// Where a hash is, or would be, of a state that is the same.
    fn place(&self, hash: u64, is_same: impl Fn(usize) -> bool) -> usize {
        let mask = self.table.len() - 1;
        // The high bits depend on every row.
        let mut at = usize::try_from(hash >> 40).expect("24 bits") & mask;
        loop {
            let (other, slot) = self.table[at];
            if slot == 0 || (other == hash && is_same(slot - 1)) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    fn add(&mut self, hash: u64, slot: usize) {
        let at = self.place(hash, |_| false);
        self.table[at] = (hash, slot + 1);
    }

    /// True where no such state was there.
    fn insert(&mut self, hash: u64, slot: usize, is_same: impl Fn(usize) -> bool) -> bool {
        let at = self.place(hash, is_same);
        let is_new = self.table[at].1 == 0;
        if is_new {
            self.table[at] = (hash, slot + 1);
        }
        is_new
    }
}
