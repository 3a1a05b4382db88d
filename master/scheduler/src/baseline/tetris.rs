//! Tetris: packing and short jobs first.

use std::collections::BinaryHeap;

use model::Shape;

use super::{Ask, Free, Growth, Ranked, share, shares};

/// Shares `free` out in the order of Tetris's combined score (Grandl et al., "Multi-Resource
/// Packing for Cluster Schedulers", SIGCOMM 2014), given the estimates of Optimus, as the paper
/// does (section 6.1):
///
/// - the alignment `a` of a job is the dot product of what a server and a worker of it take and of
///   what is free at the start, both as shares of `total`;
/// - the remaining work `p` of a job is the seconds it would have left with its next tasks times
///   what it would then take, as the sum of its shares of `total`, over its weight: small for
///   jobs that are soon done or take little;
/// - the next tasks go to the job with the largest `a/ā − p/p̄`, where the bars are means over the
///   jobs at their least shapes: Tetris's `a + ε·p` with `ε = ā/p̄`.
///
/// A job starts with its least shape and grows by a server and a worker while that makes it
/// faster. One whose next tasks do not fit is out. Of equal scores the earlier arrival comes
/// first; jobs whose time is not known come last and get no more than their least shape. The
/// alignment is not taken anew after each task, so that the cost stays a heap's.
#[must_use]
pub fn tetris(total: &[i64], free: &[i64], asks: &[Ask<'_>]) -> Vec<Shape> {
    let mut wanted: Vec<Option<Growth>> =
        asks.iter().map(|ask| Growth::of(ask).and_then(Growth::next)).collect();
    let alignments: Vec<f64> = asks.iter().map(|ask| alignment(ask, total, free)).collect();
    let least = asks.iter().zip(&wanted);
    let works = least.filter_map(|(ask, wanted)| Some(work(ask, (*wanted)?.shape, total)));
    let (mean_alignment, mean_work) = (mean(alignments.iter().copied()), mean(works));
    let ranked = |at: usize, shape: Shape| {
        let score = alignments[at] / mean_alignment - work(&asks[at], shape, total) / mean_work;
        // The lowest key comes first.
        let key = if score.is_nan() { f64::INFINITY } else { -score };
        Ranked { key, arrival_ms: asks[at].arrival_ms, ask: at }
    };
    let first = wanted.iter().enumerate();
    let mut heap: BinaryHeap<Ranked> =
        first.filter_map(|(at, wanted)| Some(ranked(at, wanted.as_ref()?.shape))).collect();
    let mut free = Free::of(free);
    let mut given = vec![Shape::default(); asks.len()];
    while let Some(Ranked { ask: at, .. }) = heap.pop() {
        let Some(growth) = wanted[at] else { continue };
        if !free.take(&asks[at], given[at], growth.shape) {
            continue;
        }
        given[at] = growth.shape;
        let seconds_left = asks[at].seconds_left;
        wanted[at] =
            growth.next().filter(|next| seconds_left(next.shape) < seconds_left(growth.shape));
        heap.extend(wanted[at].map(|next| ranked(at, next.shape)));
    }
    given
}

/// How well a server and a worker of a job lie along what is free.
fn alignment(ask: &Ask<'_>, total: &[i64], free: &[i64]) -> f64 {
    let free = |kind: usize| {
        let free = free.get(kind).map_or(0, |free| i128::from(*free).max(0));
        share(free, total.get(kind).copied())
    };
    shares(ask, Shape::new(1, 1), total).enumerate().map(|(kind, need)| need * free(kind)).sum()
}

/// Seconds left at a shape times what it takes.
fn work(ask: &Ask<'_>, shape: Shape, total: &[i64]) -> f64 {
    let taken: f64 = shares(ask, shape, total).sum();
    (ask.seconds_left)(shape) * taken / ask.sound_weight()
}

/// Of the finite ones; 1 where there are none or they are all 0, as a divisor.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values.filter(|value| value.is_finite()) {
        sum += value;
        count += 1.0;
    }
    let mean: f64 = sum / count;
    if mean.is_finite() && mean > 0.0 { mean } else { 1.0 }
}
