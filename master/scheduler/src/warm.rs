//! What a round that goes on from the last one does besides, and how it is judged.

use crate::entry::Standing;
use crate::room::{Spots, shape_of};
use crate::round::Round;

/// In a warm round most were tried in the last one: so many starts are looked at for more.
const SHORT_MAX: usize = 16;

impl Round<'_> {
    /// In a warm round, jobs that the last one would have started are placed already.
    pub(crate) fn keep_starts(&mut self) {
        if self.warm.is_some() {
            for (job, entry) in self.entries.iter_mut().enumerate() {
                entry.placed =
                    entry.standing == Standing::Waiting && !self.room.hold(job).next.is_empty();
            }
        }
    }

    /// A start kept from the last round is placed anew where its allocation is another now.
    pub(crate) fn lift_changed_starts(&mut self) {
        let Some(known) = &self.warm else { return };
        for (job, known) in known.iter().enumerate() {
            if self.entries[job].placed && *known != Some(self.allocated[job]) {
                self.entries[job].placed = false;
                self.room.lift(job);
                self.room.lower(job, Spots::default(), Spots::default());
            }
        }
    }

    /// Jobs that are to start with less than their allocation, those who lose most first: what
    /// has changed since the last round may have left room for them.
    pub(crate) fn short_starts(&self) -> Vec<usize> {
        let mut short: Vec<(f64, usize)> = (0..self.entries.len())
            .filter(|job| self.entries[*job].placed && self.entries[*job].is_share())
            .filter_map(|job| {
                let (shape, gains) =
                    (shape_of(&self.room.hold(job).next), &self.entries[job].gains);
                let loses = gains.seconds_left(shape) - gains.seconds_left(self.allocated[job]);
                (shape != self.allocated[job] && loses > 0.0).then_some((loses, job))
            })
            .collect();
        short.sort_by(|a, b| b.0.total_cmp(&a.0));
        short.into_iter().take(SHORT_MAX).map(|(_, job)| job).collect()
    }

    /// Seconds left of all sharing jobs as they are placed, over those at their allocations: what
    /// the nodes' boundaries cost.
    pub(crate) fn loss(&self) -> f64 {
        let (mut placed_s, mut given_s) = (0.0, 0.0);
        for (job, entry) in self.entries.iter().enumerate() {
            let (placed, given) = (shape_of(&self.room.hold(job).goal), self.allocated[job]);
            if entry.is_share() && !placed.is_empty() && !given.is_empty() {
                let (placed, given) =
                    (entry.gains.seconds_left(placed), entry.gains.seconds_left(given));
                if placed.is_finite() && given.is_finite() {
                    (placed_s, given_s) = (placed_s + placed, given_s + given);
                }
            }
        }
        if given_s > 0.0 { placed_s / given_s } else { 1.0 }
    }
}
