//! A round by the policy that looks ahead ([`crate::allocate::horizon`]).
//!
//! What each job should have is chosen from the cluster's total. Then running jobs that give
//! something up do so on the nodes that they hold; who starts takes what is free, or, where that
//! is only being given up, waits for it and its room is kept; and running jobs that get more move
//! where it fits beside all that. Whoever finds no place at all is left out, and his share goes to
//! the others.

use model::Shape;

use crate::allocate::horizon::{Given, Room as Books, Rung, Stake, horizon, ladder};
use crate::allocate::within;
use crate::entry::{Entry, Standing};
use crate::place::{find, find_on};
use crate::plan::Words;
use crate::room::{Amounts, Demand, Spots, View, shape_of};
use crate::round::{Round, Stage};
use crate::snapshot::{Placing, Want};

/// Times that everything is chosen anew without those who cannot be placed.
const TRIES_MAX: u32 = 3;
/// Weights of the low end, the middle and the high end of a central 80 % range in the mean of
/// what it describes (Swanson's rule).
const SWANSON: [f64; 3] = [0.3, 0.4, 0.3];

/// What the jobs take from the cluster's total.
struct Total<'a> {
    left: Amounts,
    jobs: Vec<(&'a Demand, &'a [Shape])>,
}

impl Books for Total<'_> {
    fn moves(&mut self, job: usize, from: Option<usize>, to: Option<usize>) -> bool {
        let (demand, shapes) = self.jobs[job];
        let need = |kind: usize, rung: Option<usize>| {
            rung.map_or(0, |rung| demand.of_kind(kind, shapes[rung]))
        };
        let fits = |(kind, left): (usize, &i128)| {
            let (before, after) = (need(kind, from), need(kind, to));
            after <= before || after - before <= *left
        };
        let fits = self.left.iter().enumerate().all(fits);
        if fits {
            for (kind, left) in self.left.iter_mut().enumerate() {
                *left += need(kind, from) - need(kind, to);
            }
        }
        fits
    }
}

impl Round<'_> {
    /// The round up to its decisions.
    pub(crate) fn look_ahead(&mut self, watch: &mut dyn FnMut(Stage)) {
        // Who shares takes his turn by what he is worth, not by arrival.
        self.serve_fixed(|entry| !entry.is_share());
        for attempt in 1..=TRIES_MAX {
            self.allocate();
            watch(Stage::Allocated);
            self.give_up();
            self.start_or_reserve();
            let out: Vec<usize> = self
                .left_out(|entry| entry.is_share() && !entry.placed)
                .into_iter()
                .filter(|job| !self.allocated[*job].is_empty())
                .collect();
            if out.is_empty() || attempt == TRIES_MAX {
                break;
            }
            self.undo();
            for job in out {
                self.admitted[job] = true;
                let idle = self.idle(job);
                self.room.set(job, idle);
            }
        }
        self.grow();
        if !self.is_better() {
            self.stay();
        }
        self.idle_rest();
    }

    /// What the look ahead gives these jobs of a total.
    pub(crate) fn share_by_outlook(&mut self, jobs: &[usize], free: &[i128]) -> Vec<Shape> {
        let mut left = free.to_vec();
        let (stays, asks): (Vec<usize>, Vec<usize>) =
            jobs.iter().copied().partition(|job| self.stands_on_closed(*job));
        for job in &stays {
            let open = self.room.hold(*job).goal.iter();
            let open = open.filter(|(node, _)| self.room.is_open(*node)).map(|(_, here)| *here);
            let held = crate::room::sum_of(open);
            for (left, need) in left.iter_mut().zip(self.room.demand(*job).of(held)) {
                *left -= need;
            }
        }
        let capacity = capacity(&left, self.room.total());
        let equal = capacity / float(asks.len().max(1));
        let (ladders, rungs): (Vec<Vec<Rung>>, Vec<Vec<Shape>>) =
            asks.iter().map(|job| self.ladder(*job, equal)).unzip();
        let usual_s = self.usual_s(&asks);
        let stakes: Vec<Stake<'_>> = asks
            .iter()
            .zip(ladders.iter().zip(&rungs))
            .map(|(job, (ladder, shapes))| self.stake(*job, usual_s, (ladder, shapes)))
            .collect();
        let demands = asks.iter().map(|job| self.room.demand(*job));
        let mut total =
            Total { left, jobs: demands.zip(rungs.iter().map(Vec::as_slice)).collect() };
        let choice = horizon(&stakes, capacity, self.policy.fairness, &mut total);
        let mut given: Vec<Shape> = vec![Shape::default(); self.entries.len()];
        for job in &stays {
            given[*job] = self.current_shape(*job);
        }
        for ((job, shapes), one) in asks.iter().zip(&rungs).zip(&choice.given) {
            given[*job] = one.rung.map_or_else(Shape::default, |rung| shapes[rung]);
        }
        self.outlook = asks.iter().copied().zip(choice.given.iter().copied()).collect();
        self.span_s = choice.span_s;
        if self.prices.is_empty() {
            self.prices = self.outlook.iter().map(|(job, given)| (*job, given.price)).collect();
        }
        jobs.iter().map(|job| given[*job]).collect()
    }

    /// A job on a node that takes nothing new stays as it is: elsewhere it would have to start
    /// all its tasks again.
    fn stands_on_closed(&self, job: usize) -> bool {
        let mut spots = self.room.hold(job).current.iter();
        self.entries[job].standing == Standing::Running
            && spots.any(|(node, _)| !self.room.is_open(*node))
    }

    /// What a running job holds.
    pub(crate) fn held(&self, job: usize) -> Option<Shape> {
        (self.entries[job].standing == Standing::Running).then(|| self.current_shape(job))
    }

    /// The sizes that a job may have. One whose end is not known has at most its equal part: with
    /// that much its end becomes known soon, and more would be given on faith.
    fn ladder(&self, job: usize, equal: f64) -> (Vec<Rung>, Vec<Shape>) {
        let (demand, total) = (self.room.demand(job), self.room.total());
        let share = |shape: Shape| {
            let shares = demand.of(shape).zip(total);
            shares
                .map(|(need, total)| crate::allocate::dominant_share(&[need], &[*total]))
                .fold(0.0, f64::max)
        };
        let held = self.held(job);
        let (rungs, shapes) = ladder(&self.entries[job].gains, held, &share);
        let least = rungs.first().map_or(0.0, |rung| rung.share);
        let most = if self.entries[job].young { equal.max(least) } else { f64::INFINITY };
        let fair = |(rung, shape): &(Rung, Shape)| rung.share <= most || Some(*shape) == held;
        rungs.into_iter().zip(shapes).filter(fair).unzip()
    }

    /// Seconds that a job takes in all with its least shape: the mean of those whose end is known
    /// and of what the policy assumes.
    fn usual_s(&self, jobs: &[usize]) -> f64 {
        let all_s = |job: &usize| {
            let entry = &self.entries[*job];
            let pace = entry.gains.progress.filter(|_| !entry.young)?;
            let shape = self.held(*job).unwrap_or(entry.gains.least);
            let work = left_by_range(entry, pace.work) + work_done(entry, shape);
            let seconds = work / pace.speed.work_per_s(entry.gains.least);
            (seconds.is_finite() && seconds > 0.0).then_some(seconds)
        };
        let known: Vec<f64> = jobs.iter().filter_map(all_s).collect();
        let sum = known.iter().sum::<f64>() + self.policy.unknown_remaining_s;
        sum / float(known.len() + 1)
    }

    fn stake<'s>(
        &self,
        job: usize,
        usual_s: f64,
        (rungs, shapes): (&'s [Rung], &[Shape]),
    ) -> Stake<'s> {
        let entry = &self.entries[job];
        let (now, arrival) = (self.now, entry.input.arrival);
        let attained_s = attained_s(entry);
        let held = self.held(job);
        // What it had is counted in GPUs, or in tasks where it uses none.
        let unit_share = |shape: Shape, share: f64| share / units(entry, shape);
        let at = held.and_then(|held| shapes.iter().position(|shape| *shape == held));
        let size = at.unwrap_or(0);
        Stake {
            now: None,
            keep_s: 0.0,
            rungs,
            work: expected_work(entry, usual_s, shapes[size]),
            rescale_s: entry.cost_s,
            held: at,
            started: entry.input.current.is_some() || attained_s > 0.0,
            age_s: now.seconds_since(arrival),
            had: attained_s * unit_share(shapes[size], rungs[size].share),
            priority: entry.gains.weight,
        }
    }

    /// Running jobs that get less give it up on the nodes that they hold, or everything.
    fn give_up(&mut self) {
        for job in self.running_apart() {
            let (allocated, held) = (self.allocated[job], self.current_shape(job));
            if !within(allocated, held) {
                continue;
            }
            let before = self.room.hold(job).current.clone();
            self.room.lift(job);
            let nodes: Vec<usize> = before.iter().map(|(node, _)| *node).collect();
            let spots = if allocated.is_empty() {
                Spots::default()
            } else {
                let found = find_on(&self.room, job, allocated, (View::Both, &nodes), self.scratch);
                found.unwrap_or(before)
            };
            self.room.lower(job, spots.clone(), spots);
        }
    }

    /// Running sharing jobs whose part is another than what they hold, by arrival.
    fn running_apart(&self) -> Vec<usize> {
        let apart = |job: &usize| {
            let entry = &self.entries[*job];
            entry.is_share()
                && entry.standing == Standing::Running
                && self.allocated[*job] != self.current_shape(*job)
        };
        self.order.iter().copied().filter(apart).collect()
    }

    /// Places who starts: on what is free, or on what will be.
    fn start_or_reserve(&mut self) {
        for job in self.starting() {
            let whole = self.allocated[job];
            if whole.is_empty() {
                continue;
            }
            let before = self.room.hold(job).next.clone();
            self.room.lift(job);
            let (next, goal) = self.placed_or_kept(job, whole);
            self.entries[job].placed = !goal.is_empty();
            if goal.is_empty() {
                self.room.lower(job, before.clone(), before);
            } else {
                self.room.lower(job, next, goal);
            }
        }
    }

    /// Where a lifted job goes now and in the end; nothing where it fits nowhere.
    fn placed_or_kept(&mut self, job: usize, whole: Shape) -> (Spots, Spots) {
        if let Some(spots) = self.place_now(job, whole) {
            return (spots.clone(), spots);
        }
        // One that runs already cannot hold its old place and wait for another.
        let waits = self.entries[job].standing == Standing::Waiting && self.may_await();
        if waits && let Some(spots) = find(&self.room, job, whole, View::Then, self.scratch) {
            return (Spots::default(), spots);
        }
        let smaller = self.entries[job].gains.shrinking(whole);
        if let Some(spots) = self.place_along(job, &smaller) {
            return (spots.clone(), spots);
        }
        let least = self.entries[job].gains.least;
        let kept = waits.then(|| find(&self.room, job, least, View::Then, self.scratch)).flatten();
        (Spots::default(), kept.unwrap_or_default())
    }

    /// True where room is being given up and can be kept for a job: only the search for the least
    /// transfer finds the same place again in the next round.
    fn may_await(&self) -> bool {
        self.room.awaits_room() && self.policy.placing == Placing::Transfer
    }

    /// A place that is free, by the policy's rule if that finds one: room that was kept for the
    /// job in another way must not be lost.
    fn place_now(&mut self, job: usize, shape: Shape) -> Option<Spots> {
        self.place_alone(job, shape)
            .or_else(|| find(&self.room, job, shape, View::Both, self.scratch))
    }

    /// Everything back to where it was before this attempt.
    fn undo(&mut self) {
        for job in self.order.clone() {
            let entry = &mut self.entries[job];
            if !entry.is_share() {
                continue;
            }
            if entry.standing == Standing::Running {
                let current = self.room.hold(job).current.clone();
                self.room.set(job, current);
            } else if entry.placed {
                entry.placed = false;
                let idle = self.idle(job);
                self.room.set(job, idle);
            }
        }
    }

    /// Running jobs whose part is more, or of another kind, move where it fits now or will fit
    /// once others have given up theirs: whole, or as much of it as still pays.
    fn grow(&mut self) {
        for job in self.running_apart() {
            let (whole, held) = (self.allocated[job], self.current_shape(job));
            if within(whole, held) {
                continue;
            }
            let before = self.room.hold(job).current.clone();
            self.room.lift(job);
            let kept = if let Some(spots) = self.place_now(job, whole) {
                (spots.clone(), spots)
            } else {
                let later = self.may_await();
                let later = later.then(|| find(&self.room, job, whole, View::Then, self.scratch));
                match later.flatten() {
                    Some(goal) => (before, goal),
                    None => {
                        let spots = self.place_more(job, whole, held).unwrap_or(before);
                        (spots.clone(), spots)
                    }
                }
            };
            self.room.lower(job, kept.0, kept.1);
        }
    }

    /// The most of a whole that fits now, if that pays.
    fn place_more(&mut self, job: usize, whole: Shape, held: Shape) -> Option<Spots> {
        let gains = &self.entries[job].gains;
        let least_s = gains.seconds_left(held) * (1.0 - self.lost(job));
        let pays = |shape: &Shape| within(held, *shape) && gains.seconds_left(*shape) < least_s;
        let smaller: Vec<Shape> = gains.shrinking(whole).into_iter().filter(pays).collect();
        self.place_along(job, &smaller)
    }

    /// What runs stays; who waits starts on what is free.
    fn stay(&mut self) {
        self.undo();
        for job in self.order.clone() {
            if self.entries[job].is_share() && self.entries[job].standing == Standing::Running {
                self.allocated[job] = self.current_shape(job);
            }
        }
        self.start_or_reserve();
    }

    /// One sentence with the numbers for those who wait, shrink or give everything up.
    pub(crate) fn say_why(&mut self) {
        for (job, given) in std::mem::take(&mut self.outlook) {
            let hold = self.room.hold(job);
            let (before, after) = (self.current_shape(job), shape_of(&hold.next));
            let allocated = self.allocated[job];
            let runs = self.entries[job].standing == Standing::Running;
            let waits = self.entries[job].standing == Standing::Waiting;
            let text = if waits && allocated.is_empty() && hold.goal.is_empty() {
                if self.admitted[job] {
                    continue;
                }
                format!("waits: all jobs together end sooner with others first{}", ahead(given))
            } else if runs && after.is_empty() {
                format!(
                    "gives everything up: all jobs together end sooner with others first{}",
                    ahead(given)
                )
            } else if runs && after != before && within(after, before) {
                format!(
                    "goes from {before} to {after}: the rest is worth more to others{}",
                    ahead(given)
                )
            } else {
                continue;
            };
            self.notes.insert(job, Words::Plain(text));
        }
    }
}

/// When a job is projected to end.
fn ahead(given: Given) -> String {
    match given.end_s.filter(|end_s| end_s.is_finite()) {
        Some(end_s) => format!(", it is projected to end in {end_s:.0} s"),
        None => String::new(),
    }
}

/// The largest part of any kind that is free.
fn capacity(left: &[i128], total: &[i128]) -> f64 {
    let part = |(left, total): (&i128, &i128)| {
        if *total > 0 && *left > 0 {
            crate::allocate::dominant_share(&[*left], &[*total]).min(1.0)
        } else {
            0.0
        }
    };
    left.iter().zip(total).map(part).fold(0.0, f64::max)
}

/// GPU seconds or task seconds that a job had.
fn attained_s(entry: &Entry<'_>) -> f64 {
    let seconds = entry.input.attained_s;
    if seconds.is_finite() && seconds > 0.0 { seconds } else { 0.0 }
}

/// What a second of a shape counts as there.
fn units(entry: &Entry<'_>, shape: Shape) -> f64 {
    let each = entry.input.worker.gpus.saturating_mul(u64::from(shape.workers));
    let tasks = u64::from(shape.servers) + u64::from(shape.workers);
    let units = if each > 0 { each } else { tasks };
    f64::from(u32::try_from(units.max(1)).unwrap_or(u32::MAX))
}

/// What a job did up to now, as if always with this shape.
fn work_done(entry: &Entry<'_>, shape: Shape) -> f64 {
    let ran_s = attained_s(entry) / units(entry, shape);
    entry.gains.progress.map_or(0.0, |pace| pace.speed.work_per_s(shape) * ran_s)
}

/// Mean of the range of work left; the middle where there is no range.
fn left_by_range(entry: &Entry<'_>, middle: f64) -> f64 {
    let Want::Share { remaining: Some(left), .. } = &entry.input.want else { return middle };
    let sound = |value: f64| value.is_finite() && value >= 0.0;
    if sound(left.low) && sound(left.high) && left.low <= left.high {
        let [low, value, high] = SWANSON;
        low * left.low + value * left.value + high * left.high
    } else {
        middle
    }
}

/// Work left: the mean of its range; of a job whose end is not known what jobs usually take, and
/// at least as much as it did up to now, as long ones are met more often.
fn expected_work(entry: &Entry<'_>, usual_s: f64, shape: Shape) -> f64 {
    let Some(pace) = entry.gains.progress else { return 1.0 };
    let mean = if entry.young {
        let usual = usual_s * pace.speed.work_per_s(entry.gains.least);
        usual.max(work_done(entry, shape))
    } else {
        left_by_range(entry, pace.work)
    };
    if mean.is_finite() && mean > 0.0 { mean } else { pace.work }
}

/// Counts of jobs are far below 2^32.
fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
