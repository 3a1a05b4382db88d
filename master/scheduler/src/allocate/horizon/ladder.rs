//! The sizes of a job that are worth having, from its speed function and its bounds.

use model::Shape;

use super::Rung;
use crate::allocate::{Gains, Kind, Pace, within};

/// Up to so many shapes all are looked at; of more, those on the way of the best next task.
const SHAPES_MAX: u64 = 1024;
const STEPS_MAX: u32 = 512;
/// Beyond the first rungs each is at least a so much larger share than the one before.
const RUNGS_EACH: usize = 24;
const WIDER: f64 = 1.05;
/// A rung is faster than the one before by at least this part of how much larger it is.
const PAYS: f64 = 0.1;

/// Rungs by share, each faster than those before, and the shape of each. What is held is among
/// them, however slow. `share` tells the dominant share of a shape. Where the speed is not known:
/// only what is held, or else the least shape, with a rate of 1.
pub(crate) fn ladder(
    gains: &Gains<'_>,
    held: Option<Shape>,
    share: &dyn Fn(Shape) -> f64,
) -> (Vec<Rung>, Vec<Shape>) {
    let Some(pace) = gains.progress.map(|pace| Pace { work: 1.0, ..pace }) else {
        let shape = held.unwrap_or(gains.least);
        return (vec![Rung { share: share(shape), rate: 1.0 }], vec![shape]);
    };
    let rate = |shape: Shape| {
        let seconds = pace.seconds_left(shape);
        if seconds > 0.0 && seconds.is_finite() { 1.0 / seconds } else { 0.0 }
    };
    let mut all: Vec<(f64, f64, Shape)> = shapes(gains)
        .into_iter()
        .map(|shape| (share(shape), rate(shape), shape))
        .filter(|(share, rate, _)| *share > 0.0 && *rate > 0.0)
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
    let mut kept: Vec<(f64, f64, Shape)> = Vec::new();
    for next in all {
        let worth_it = kept.last().is_none_or(|last| {
            // Taken from what is left over, too little would still be missing for the next to come.
            let pays = next.1 / last.1 - 1.0 >= PAYS * (next.0 / last.0 - 1.0);
            next.1 > last.1 && pays && (kept.len() < RUNGS_EACH || next.0 >= last.0 * WIDER)
        });
        if worth_it {
            kept.push(next);
        }
    }
    if let Some(held) = held.filter(|held| kept.iter().all(|(_, _, shape)| shape != held))
        && rate(held) > 0.0
    {
        let at = kept.partition_point(|(less, _, _)| *less < share(held));
        kept.insert(at, (share(held), rate(held), held));
    }
    if kept.is_empty() {
        let shape = held.unwrap_or(gains.least);
        return (vec![Rung { share: share(shape), rate: 1.0 }], vec![shape]);
    }
    kept.into_iter().map(|(share, rate, shape)| (Rung { share, rate }, shape)).unzip()
}

fn shapes(gains: &Gains<'_>) -> Vec<Shape> {
    let (least, max) = (gains.least, gains.max);
    let wide = u64::from(max.servers - least.servers + 1);
    if wide * u64::from(max.workers - least.workers + 1) <= SHAPES_MAX {
        return (least.servers..=max.servers)
            .flat_map(|p| (least.workers..=max.workers).map(move |w| Shape::new(p, w)))
            .collect();
    }
    let mut shapes = vec![least];
    let mut shape = least;
    for _ in 0..STEPS_MAX {
        // Where neither kind gains alone, both together may.
        let both = Kind::Worker.added_to(Kind::Server.added_to(shape));
        let next = gains.best_of(&Kind::BOTH, shape).map_or(both, |kind| kind.added_to(shape));
        if !within(next, max) {
            break;
        }
        shapes.push(next);
        shape = next;
    }
    shapes
}
