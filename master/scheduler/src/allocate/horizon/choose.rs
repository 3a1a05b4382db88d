//! Which rung each job gets now, given the prices.

use super::pack::pack;
use super::{Outlook, Room, Stake, hull};

/// Of more jobs the time between two ends is taken for no shorter.
const SPAN_JOBS_MAX: f64 = 12.0;
/// The span is at least this times what a rescale costs, or nothing would ever change where many
/// jobs end in quick succession.
const SPAN_MIN: f64 = 2.5;
/// A job is overdue once it has been there for this times what all its work, done and left, takes
/// on a share of its own; shares are taken for no more than so many jobs.
const OVERDUE: f64 = 10.0;
const OVERDUE_JOBS_MAX: f64 = 16.0;
/// Overdue jobs have their least rung before all others, by age, in at most this part of what
/// there is.
const OVERDUE_PART: f64 = 0.5;
/// Most jobs whose rungs are chosen together; the others stay as they are.
const PACKED_MAX: usize = 32;
/// A choice must be worth this much more than leaving everything as it is: rounding only.
const BETTER: f64 = 1e-9;

/// The projected mean time between two ends, in s: then most rungs are chosen anew anyway.
pub(super) fn gap_s(stakes: &[Stake<'_>], outlook: &Outlook, weights: &[f64]) -> f64 {
    let (jobs, weight) = (super::float(stakes.len().max(1)), weights.iter().sum::<f64>());
    let gap_s = outlook.sum_s / weight.max(f64::MIN_POSITIVE) / jobs.min(SPAN_JOBS_MAX);
    if gap_s.is_finite() { gap_s } else { f64::MAX }
}

/// A choice on its way.
pub(super) struct Chooser<'a> {
    pub(super) stakes: &'a [Stake<'a>],
    /// Price of a unit of each job's work.
    pub(super) prices: &'a [f64],
    pub(super) span_s: f64,
    pub(super) capacity: f64,
    pub(super) room: &'a mut dyn Room,
}

impl Chooser<'_> {
    pub(super) fn choose(&mut self) -> Vec<Option<usize>> {
        let nothing = vec![None; self.stakes.len()];
        let mut due = nothing.clone();
        self.serve_overdue(&mut due);
        let mut best = due.clone();
        let packed = self.packed(&due);
        self.take(&mut best, &packed);
        self.give_steps(&mut best);
        let best_worth = self.worth_of(&best);
        // Nothing changes without need: leaving everything as it is may be as good.
        for (job, rung) in best.iter().enumerate() {
            self.room.moves(job, *rung, None);
        }
        let mut still = nothing.clone();
        let held: Vec<Option<usize>> = self.stakes.iter().map(|stake| stake.held).collect();
        self.take(&mut still, &held);
        let served = due.iter().zip(&still).all(|(due, still)| due.is_none() || still.is_some());
        self.give_steps_to_waiting(&mut still);
        if served && best_worth <= self.worth_of(&still) * (1.0 + BETTER) {
            return still;
        }
        for (job, rung) in still.iter().enumerate() {
            self.room.moves(job, *rung, None);
        }
        let mut given = nothing;
        self.take(&mut given, &best);
        given
    }

    /// Part of the span that a job loses by going to a rung.
    fn lost(&self, job: usize, rung: usize) -> f64 {
        let stake = &self.stakes[job];
        let lost_s = match stake.held {
            Some(held) if held == rung => stake.keep_s,
            _ if stake.started => stake.rescale_s,
            _ => return 0.0,
        };
        let span_s = self.span_s.max(SPAN_MIN * stake.rescale_s);
        if span_s > 0.0 { (lost_s / span_s).min(1.0) } else { 0.0 }
    }

    /// Value a second of a job on a rung, over the span.
    fn worth(&self, job: usize, rung: usize) -> f64 {
        self.prices[job] * self.stakes[job].now(rung) * (1.0 - self.lost(job, rung))
    }

    fn worth_of(&self, given: &[Option<usize>]) -> f64 {
        given.iter().enumerate().filter_map(|(job, rung)| Some(self.worth(job, (*rung)?))).sum()
    }

    /// Takes these rungs as far as there is room, in order of the jobs.
    fn take(&mut self, given: &mut [Option<usize>], rungs: &[Option<usize>]) {
        for (job, rung) in rungs.iter().enumerate() {
            if rung.is_some() && *rung != given[job] && self.room.moves(job, given[job], *rung) {
                given[job] = *rung;
            }
        }
    }

    /// The best rungs together of those jobs that are furthest from what they should have if
    /// rescales were free. Of all others who holds something keeps it, and who waits gets what he
    /// should have.
    fn packed(&self, due: &[Option<usize>]) -> Vec<Option<usize>> {
        let mut rungs: Vec<Option<usize>> = self.stakes.iter().map(|stake| stake.held).collect();
        let share = |job: usize, rung: Option<usize>| {
            rung.map_or(0.0, |rung| self.stakes[job].rungs[rung].share)
        };
        let ideal = self.ideal();
        let few = rungs.len() <= PACKED_MAX;
        let mut apart: Vec<(f64, usize)> = (0..rungs.len())
            .map(|job| ((share(job, ideal[job]) - share(job, rungs[job])).abs(), job))
            .filter(|(apart, _)| *apart > 0.0 || few)
            .collect();
        apart.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        apart.truncate(PACKED_MAX);
        let mut left = self.capacity;
        let mut packed = vec![false; rungs.len()];
        apart.iter().for_each(|(_, job)| packed[*job] = true);
        for (job, rung) in rungs.iter_mut().enumerate().filter(|(job, _)| !packed[*job]) {
            *rung = rung.or(ideal[job]);
            left -= share(job, *rung);
        }
        let mut options = Vec::with_capacity(apart.len());
        let mut choices: Vec<Vec<Option<usize>>> = Vec::with_capacity(apart.len());
        for (_, job) in &apart {
            let all = (0..self.stakes[*job].rungs.len()).map(Some);
            let choice: Vec<Option<usize>> =
                due[*job].is_none().then_some(None).into_iter().chain(all).collect();
            let option = |rung: &Option<usize>| {
                (share(*job, *rung), rung.map_or(0.0, |rung| self.worth(*job, rung)))
            };
            options.push(choice.iter().map(option).collect());
            choices.push(choice);
        }
        let taken = if left > 0.0 { pack(&options, left) } else { None };
        for (at, (_, job)) in apart.iter().enumerate() {
            rungs[*job] = match &taken {
                Some(taken) => choices[at][taken[at]],
                None => ideal[*job],
            };
        }
        rungs
    }

    /// What each job should have if rescales were free.
    fn ideal(&self) -> Vec<Option<usize>> {
        let mut steps: Vec<(f64, f64, usize, usize)> = Vec::new();
        for (job, stake) in self.stakes.iter().enumerate() {
            let point = |rung: usize| (stake.rungs[rung].share, self.prices[job] * stake.now(rung));
            let mut last = (0.0, 0.0);
            for rung in hull(last, (0..stake.rungs.len()).map(|rung| (rung, point(rung)))) {
                let next = point(rung);
                steps.push(((next.1 - last.1) / (next.0 - last.0), next.0 - last.0, job, rung));
                last = next;
            }
        }
        steps.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.2, a.3).cmp(&(b.2, b.3))));
        let mut ideal = vec![None; self.stakes.len()];
        let mut left = self.capacity;
        for (_, wider, job, rung) in steps {
            left -= wider;
            if left < 0.0 {
                break;
            }
            ideal[job] = Some(rung);
        }
        ideal
    }

    /// Gives out what is left, step by step, where it is worth most.
    fn give_steps(&mut self, given: &mut [Option<usize>]) {
        self.give_steps_among(given, |_| true);
    }

    fn give_steps_to_waiting(&mut self, given: &mut [Option<usize>]) {
        let waits: Vec<bool> = given.iter().map(Option::is_none).collect();
        self.give_steps_among(given, |job| waits[job]);
    }

    fn give_steps_among(&mut self, given: &mut [Option<usize>], among: impl Fn(usize) -> bool) {
        let mut steps: Vec<(f64, usize, usize)> = Vec::new();
        let mut before: Vec<Vec<Option<usize>>> = Vec::with_capacity(given.len());
        for (job, stake) in self.stakes.iter().enumerate() {
            let mut froms = vec![None; stake.rungs.len()];
            if among(job) {
                let point = |rung: usize| (stake.rungs[rung].share, self.worth(job, rung));
                let (mut last, mut at) = (given[job].map_or((0.0, 0.0), point), given[job]);
                for rung in hull(last, (0..stake.rungs.len()).map(|rung| (rung, point(rung)))) {
                    let next = point(rung);
                    steps.push(((next.1 - last.1) / (next.0 - last.0), job, rung));
                    froms[rung] = at;
                    (last, at) = (next, Some(rung));
                }
            }
            before.push(froms);
        }
        steps.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let mut short: Vec<usize> = Vec::new();
        for (_, job, rung) in steps {
            if given[job] == before[job][rung] {
                if self.room.moves(job, given[job], Some(rung)) {
                    given[job] = Some(rung);
                } else {
                    short.push(job);
                }
            }
        }
        for job in short {
            self.fill(job, given);
        }
    }

    /// The best rung between the one that a job has and one that it was refused.
    fn fill(&mut self, job: usize, given: &mut [Option<usize>]) {
        let rungs = self.stakes[job].rungs;
        let (share, has) =
            given[job].map_or((0.0, 0.0), |at| (rungs[at].share, self.worth(job, at)));
        let mut better: Vec<(f64, usize)> = (0..rungs.len())
            .filter(|rung| rungs[*rung].share > share)
            .map(|rung| (self.worth(job, rung), rung))
            .filter(|(worth, _)| *worth > has)
            .collect();
        better.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let fits = |(_, rung): &(f64, usize)| self.room.moves(job, given[job], Some(*rung));
        if let Some((_, rung)) = better.into_iter().find(fits) {
            given[job] = Some(rung);
        }
    }

    fn is_overdue(&self, job: usize) -> bool {
        is_overdue(&self.stakes[job], self.stakes.len(), self.capacity)
    }

    fn serve_overdue(&mut self, given: &mut [Option<usize>]) {
        let mut overdue: Vec<usize> =
            (0..self.stakes.len()).filter(|job| self.is_overdue(*job)).collect();
        overdue
            .sort_by(|a, b| self.stakes[*b].age_s.total_cmp(&self.stakes[*a].age_s).then(a.cmp(b)));
        let mut left = self.capacity * OVERDUE_PART;
        for (at, job) in overdue.into_iter().enumerate() {
            let Some(least) = self.stakes[job].rungs.first() else { continue };
            // The first may have more than the part: it would never get anything otherwise.
            if (at == 0 || least.share <= left) && self.room.moves(job, None, Some(0)) {
                given[job] = Some(0);
                left -= least.share;
            }
        }
    }
}

/// True where a job has been there for so long that it may not be passed over any more: ten times
/// what it would take alone on an equal part, or on its least size where that is larger.
pub(super) fn is_overdue(stake: &Stake<'_>, jobs: usize, capacity: f64) -> bool {
    let equal = capacity / super::float(jobs).clamp(1.0, OVERDUE_JOBS_MAX);
    let part = stake.rungs.first().map_or(equal, |least| least.share.max(equal));
    stake.age_s > OVERDUE * (stake.alone_s(part) + stake.had / part)
}
