//! What is known not to fit.

use model::Shape;

use crate::room::{Demand, Room};

/// Demands for which no room was found while room only became less: whoever asks for as much or
/// more is refused without a search.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<(Demand, Shape)>);

/// Most that are kept: each is compared with every job that asks.
const REFUSALS_MAX: usize = 64;

impl Refusals {
    pub(crate) fn knows(&self, room: &Room, job: usize, shape: Shape) -> bool {
        self.0.iter().any(|(demand, least)| room.demand(job).covers(shape, demand, *least))
    }

    pub(crate) fn add(&mut self, room: &Room, job: usize, shape: Shape) {
        let demand = room.demand(job);
        // Whoever asks for more than this one need not be kept.
        self.0.retain(|(other, least)| !other.covers(*least, demand, shape));
        if self.0.len() < REFUSALS_MAX {
            self.0.push((demand.clone(), shape));
        }
    }
}
