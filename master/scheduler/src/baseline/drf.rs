//! Dominant resource fairness.

use std::collections::BinaryHeap;

use model::Shape;

use super::{Ask, Free, Growth, Ranked, shares};

/// Shares `free` out by progressive filling (Ghodsi et al., "Dominant Resource Fairness", NSDI
/// 2011): the job with the least dominant share of `total`, over its weight, gets the next server
/// and worker; from nothing it gets its least shape. A job whose next tasks do not fit is out, as
/// what is free only shrinks. Of equal shares the earlier arrival comes first. All that fits is
/// given, whether or not it makes a job faster.
///
/// An empty shape for a job that gets nothing, so also where its bounds hold no shape.
#[must_use]
pub fn drf(total: &[i64], free: &[i64], asks: &[Ask<'_>]) -> Vec<Shape> {
    let mut free = Free::of(free);
    let mut given = vec![Shape::default(); asks.len()];
    let mut growths: Vec<Option<Growth>> = asks.iter().map(Growth::of).collect();
    let entry = |ask: usize, key: f64| Ranked { key, arrival_ms: asks[ask].arrival_ms, ask };
    let mut heap: BinaryHeap<Ranked> = (0..asks.len()).map(|ask| entry(ask, 0.0)).collect();
    while let Some(Ranked { ask: at, .. }) = heap.pop() {
        let ask = &asks[at];
        let Some(next) = growths[at].and_then(Growth::next) else { continue };
        // Tasks that take nothing never change the share: all of them at once.
        let next = if ask.is_free() { next.whole() } else { next };
        if free.take(ask, given[at], next.shape) {
            given[at] = next.shape;
            growths[at] = Some(next);
            let dominant = shares(ask, next.shape, total).fold(0.0, f64::max);
            heap.push(entry(at, dominant / ask.sound_weight()));
        }
    }
    given
}
