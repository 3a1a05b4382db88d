//! A run of losses as it grows: outliers, restarts and thinning are decided once for each epoch,
//! in order, so that a fit after every epoch and one fit at the end agree.

use std::collections::VecDeque;

use super::bins::{Bin, thin};
use super::outliers::{NEIGHBOURS, Side, Usual, level_change, outlier};
use super::{LossPoint, OUTLIERS_MAX, POINTS_MAX, usable};

/// Points of one epoch, or of one step.
#[derive(Clone, Debug)]
struct Group {
    /// Which epoch; the step's own bits where each step is one.
    key: u64,
    /// Rates announced before it.
    rate: usize,
    all: Bin,
    /// The same points one by one, or a few together where they are many; empty for one.
    parts: Vec<Bin>,
    /// The points that stand out most, and the rest without each.
    highest: LossPoint,
    without_highest: Bin,
    lowest: LossPoint,
    without_lowest: Bin,
}

impl Group {
    fn new(key: u64, rate: usize, point: LossPoint) -> Self {
        Self {
            key,
            rate,
            all: Bin::from(point),
            parts: Vec::new(),
            highest: point,
            without_highest: Bin::default(),
            lowest: point,
            without_lowest: Bin::default(),
        }
    }

    fn add(&mut self, point: LossPoint) {
        let bin = Bin::from(point);
        if self.parts.is_empty() {
            self.parts.push(self.all);
        }
        self.parts.push(bin);
        if self.parts.len() > PARTS_MAX {
            thin(&mut self.parts, PARTS_MAX / 2, 0.0);
        }
        self.all = self.all.merged(&bin);
        let old = if point.loss > self.highest.loss {
            Bin::from(std::mem::replace(&mut self.highest, point))
        } else {
            bin
        };
        self.without_highest = self.without_highest.merged(&old);
        let old = if point.loss < self.lowest.loss {
            Bin::from(std::mem::replace(&mut self.lowest, point))
        } else {
            bin
        };
        self.without_lowest = self.without_lowest.merged(&old);
    }
}

/// What is left of a group.
#[derive(Clone, Debug)]
struct Epoch {
    mean: Bin,
    /// Empty where the mean is all.
    parts: Vec<Bin>,
}

impl Epoch {
    fn bins(&self) -> &[Bin] {
        if self.parts.is_empty() { std::slice::from_ref(&self.mean) } else { &self.parts }
    }
}

/// What became of a group, and the step of a point that went.
struct Judged {
    kept: Option<Epoch>,
    outlier: Option<f64>,
}

/// Outliers that the neighbours may give away in a segment: so many at once, and one in
/// [`DROPS_RARE`] epochs. Where they name more, it is the range they show that is wrong, as along a
/// sawtooth: the fit judges the rest.
const DROPS_AT_ONCE: u64 = 3;
const DROPS_RARE: u64 = 10;

/// Epochs judged, and outliers among them.
#[derive(Clone, Copy, Debug, Default)]
struct Drops {
    judged: u64,
    dropped: u64,
}

impl Drops {
    fn allowed(self) -> bool {
        self.dropped < DROPS_AT_ONCE + self.judged / DROPS_RARE
    }

    fn note(&mut self, judged: &Judged) {
        self.judged += 1;
        self.dropped += u64::from(judged.outlier.is_some());
    }
}

/// Level changes in a row, each within so many epochs of the one before, that make a sawtooth: a
/// loss that its trainer averages anew each epoch. Learning rates step less often.
const TEETH: u32 = 3;
const TOOTH_MAX: u64 = 40;

/// The segments that detected changes of level ended in short order.
#[derive(Clone, Debug, Default)]
struct Ended {
    bins: Vec<Bin>,
    /// Where the first of them started, and why.
    since: f64,
    restarted: Option<Restart>,
    teeth: u32,
    /// Such changes are no longer looked for.
    sawtooth: bool,
}

/// Parts of one epoch that stay apart: its mean judges it, but the fit sees how the loss falls
/// within it.
const PARTS_MAX: usize = 32;

/// Groups that stay apart from the thinned ones, for the sight of a change of level.
const RECENT: usize = 2 * NEIGHBOURS;
/// Bins at which thinning starts, so that with the groups in flight no more than
/// [`POINTS_MAX`] enter a fit; and what it leaves, so that it is seldom due.
const BINS_MAX: usize = POINTS_MAX - RECENT - NEIGHBOURS - 1;
const BINS_LEFT: usize = 280;

/// The run up to now.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    steps_per_epoch: Option<f64>,
    rate_steps: Vec<f64>,
    bins: Vec<Bin>,
    recent: Vec<Epoch>,
    /// Closed groups whose five next ones are not all there yet, and last the open one.
    pending: VecDeque<Group>,
    /// Largest loss of earlier segments.
    earlier_highest: f64,
    usual: Usual,
    /// Of the segment.
    drops: Drops,
    /// What the level changes of late ended, until it is clear that they were none.
    ended: Ended,
    pub(super) since: f64,
    pub(super) restarted: Option<Restart>,
    pub(super) outliers: VecDeque<f64>,
    /// Points that came, and those of them that could be used.
    pub(super) seen: u64,
    pub(super) used: u64,
}

/// Why the segment starts where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    Announced,
    Detected,
}

/// The points of a fit.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) bins: Vec<Bin>,
    /// Outliers among those whose neighbours are still to come: they may yet be taken back.
    pub(super) outliers: Vec<f64>,
    pub(super) earlier_highest: f64,
}

impl Stream {
    pub(super) fn new(rate_steps: &[f64], steps_per_epoch: Option<f64>) -> Self {
        let mut rate_steps: Vec<f64> =
            rate_steps.iter().copied().filter(|step| step.is_finite() && *step > 0.0).collect();
        rate_steps.sort_by(f64::total_cmp);
        Self {
            steps_per_epoch: steps_per_epoch.filter(|steps| steps.is_finite() && *steps > 0.0),
            rate_steps,
            bins: Vec::new(),
            recent: Vec::new(),
            pending: VecDeque::new(),
            earlier_highest: 0.0,
            usual: Usual::default(),
            drops: Drops::default(),
            ended: Ended::default(),
            since: 0.0,
            restarted: None,
            outliers: VecDeque::new(),
            seen: 0,
            used: 0,
        }
    }

    /// Takes the next point; false where it cannot be used: it is not finite, or lies before the
    /// last one.
    pub(super) fn push(&mut self, point: LossPoint) -> bool {
        self.seen += 1;
        let last = self.pending.back().map_or(0.0, |group| group.all.last);
        let Some(point) = usable(&point).filter(|point| point.step >= last) else {
            return false;
        };
        self.used += 1;
        // An epoch ends with the step that is a multiple of its length.
        let key = match self.steps_per_epoch {
            Some(steps) => (point.step / steps).ceil().max(1.0).to_bits(),
            None => (point.step + 0.0).to_bits(),
        };
        let rate = self.rate_steps.partition_point(|step| *step <= point.step);
        match self.pending.back_mut() {
            Some(group) if group.key == key && group.rate == rate => group.add(point),
            before => {
                let restart = before.map_or(rate > 0, |group| group.rate != rate);
                if restart {
                    self.restart_announced(rate);
                }
                self.pending.push_back(Group::new(key, rate, point));
                // The open group is not done: it does not count as a neighbour yet.
                while self.pending.len() > NEIGHBOURS + 1 {
                    self.settle();
                }
            }
        }
        true
    }

    /// Judges all that went before by what is there, and starts anew.
    fn restart_announced(&mut self, rate: usize) {
        let kept = self.kept();
        for step in kept.outliers {
            self.note_outlier(step);
        }
        let highest = kept.bins.iter().map(|bin| bin.highest).fold(0.0, f64::max);
        self.earlier_highest = self.earlier_highest.max(highest);
        self.bins.clear();
        self.recent.clear();
        self.pending.clear();
        self.drops = Drops::default();
        self.ended = Ended::default();
        self.since = self.rate_steps[rate - 1];
        self.restarted = Some(Restart::Announced);
    }

    fn note_outlier(&mut self, step: f64) {
        if self.outliers.len() == OUTLIERS_MAX {
            self.outliers.pop_front();
        }
        self.outliers.push_back(step);
    }

    /// Losses of the last five kept.
    fn before(recent: &[Epoch]) -> ([f64; NEIGHBOURS], usize) {
        let from = recent.len().saturating_sub(NEIGHBOURS);
        let mut losses = [0.0; NEIGHBOURS];
        for (slot, epoch) in losses.iter_mut().zip(&recent[from..]) {
            *slot = epoch.mean.loss;
        }
        (losses, recent.len() - from)
    }

    /// Losses of up to five after the pending group `at`.
    fn after(&self, at: usize) -> ([f64; NEIGHBOURS], usize) {
        let mut losses = [0.0; NEIGHBOURS];
        let mut count = 0;
        for next in self.pending.iter().skip(at + 1).take(NEIGHBOURS) {
            losses[count] = next.all.loss;
            count += 1;
        }
        (losses, count)
    }

    /// Judges the pending group `at` by `recent` and by those after it.
    fn judge(&self, recent: &[Epoch], at: usize, drops: Drops) -> Judged {
        let group = &self.pending[at];
        let (before, count) = Self::before(recent);
        let (after, count_after) = self.after(at);
        let judge = |loss: f64| outlier(&before[..count], loss, &after[..count_after], self.usual);
        let Some(side) = judge(group.all.loss).filter(|_| drops.allowed()) else {
            let kept = Epoch { mean: group.all, parts: group.parts.clone() };
            return Judged { kept: Some(kept), outlier: None };
        };
        let (worst, rest) = match side {
            Side::Above => (group.highest, group.without_highest),
            Side::Below => (group.lowest, group.without_lowest),
        };
        // One bad point spoils its epoch's mean; without it the epoch may be fine.
        let kept = (rest.count >= 2.0 && judge(rest.loss).is_none()).then(|| {
            let worst = Bin::from(worst);
            let mut parts = group.parts.clone();
            parts.retain(|part| *part != worst);
            if parts.len() == group.parts.len() {
                // It is in with others.
                parts.clear();
            }
            Epoch { mean: rest, parts }
        });
        Judged { kept, outlier: Some(worst.step) }
    }

    /// Decides on the first pending group.
    fn settle(&mut self) {
        let judged = self.judge(&self.recent, 0, self.drops);
        self.drops.note(&judged);
        let ((before, count), (after, count_after)) = (Self::before(&self.recent), self.after(0));
        self.usual.note(&before[..count], &after[..count_after]);
        if let Some(step) = judged.outlier {
            self.note_outlier(step);
        }
        self.pending.pop_front();
        if let Some(epoch) = judged.kept {
            self.recent.push(epoch);
            if let Some(new) = self.level_change() {
                self.restart_detected(new);
            }
        }
        if self.recent.len() > RECENT {
            self.bins.extend_from_slice(self.recent.remove(0).bins());
            if self.bins.len() > BINS_MAX {
                let origin = self.bins[0].first;
                thin(&mut self.bins, BINS_LEFT, origin);
            }
        }
    }

    fn level_change(&self) -> Option<usize> {
        if self.recent.len() < RECENT || self.ended.sawtooth {
            return None;
        }
        let from = self.recent.len() - RECENT;
        let losses: Vec<f64> = self.recent[from..].iter().map(|epoch| epoch.mean.loss).collect();
        let (after, count) = self.after_settled();
        let (earlier, before) = losses.split_at(NEIGHBOURS);
        level_change(earlier, before, &after[..count], self.usual)
    }

    /// Losses of up to five pending groups.
    fn after_settled(&self) -> ([f64; NEIGHBOURS], usize) {
        let mut losses = [0.0; NEIGHBOURS];
        for (slot, group) in losses.iter_mut().zip(&self.pending) {
            *slot = group.all.loss;
        }
        (losses, self.pending.len().min(NEIGHBOURS))
    }

    /// The `new` last of the settled groups are new already.
    fn restart_detected(&mut self, new: usize) {
        let tail = self.recent.split_off(self.recent.len() - new);
        let mut old = std::mem::take(&mut self.bins);
        old.extend(self.recent.iter().flat_map(Epoch::bins));
        self.recent = tail;
        let highest = old.iter().map(|bin| bin.highest).fold(self.earlier_highest, f64::max);
        if self.ended.teeth == 0 || self.drops.judged > TOOTH_MAX {
            self.ended = Ended { since: self.since, restarted: self.restarted, ..Ended::default() };
        }
        self.ended.teeth += 1;
        self.ended.bins.append(&mut old);
        if self.ended.bins.len() > BINS_MAX {
            let origin = self.ended.bins[0].first;
            thin(&mut self.ended.bins, BINS_LEFT, origin);
        }
        if self.ended.teeth >= TEETH {
            self.bins = std::mem::take(&mut self.ended.bins);
            self.ended.sawtooth = true;
            (self.since, self.restarted) = (self.ended.since, self.ended.restarted);
            return;
        }
        self.drops = Drops::default();
        self.earlier_highest = highest;
        let settled = self.recent.first().map(|epoch| epoch.mean.first);
        let first = settled.or_else(|| self.pending.front().map(|group| group.all.first));
        self.since = first.unwrap_or(self.since);
        self.restarted = Some(Restart::Detected);
    }

    /// What is in the fit if it is made now.
    pub(super) fn kept(&self) -> Kept {
        let mut recent = self.recent.clone();
        let mut outliers = Vec::new();
        let mut drops = self.drops;
        for at in 0..self.pending.len() {
            let judged = self.judge(&recent, at, drops);
            drops.note(&judged);
            outliers.extend(judged.outlier);
            recent.extend(judged.kept);
        }
        let mut bins = Vec::with_capacity(POINTS_MAX);
        bins.extend_from_slice(&self.bins);
        for epoch in &recent {
            bins.extend_from_slice(epoch.bins());
        }
        if let Some(origin) = bins.first().map(|bin| bin.first) {
            thin(&mut bins, POINTS_MAX, origin);
        }
        Kept { bins, outliers, earlier_highest: self.earlier_highest }
    }
}
