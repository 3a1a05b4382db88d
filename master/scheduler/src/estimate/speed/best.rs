//! The fastest shape within bounds.

use std::cmp::Ordering;

use model::Shape;

use super::SpeedModel;

/// Up to this many servers and workers every shape is tried.
const TRIED_MAX: u32 = 512;
/// Beyond it counts grow by a sixteenth.
const GROWTH: u32 = 16;
/// Moves of each length from the best of these, at most.
const MOVES_MAX: usize = 64;

/// The shape of at least one and at most `max` servers and workers with the most work a second,
/// and that work; of equal ones that with the fewest tasks, then the fewest servers. None where no
/// shape makes any progress.
///
/// Every shape is tried for up to 512 servers and workers. Beyond that a grid is tried whose best
/// shape is then bettered in ever smaller steps: a form's speed has one summit in (log p, log w),
/// as 1/f is a posynomial, and no residual reaches far.
#[must_use]
pub fn best_shape(model: &SpeedModel, max: Shape) -> Option<(Shape, f64)> {
    let mut best: Option<(Shape, f64)> = None;
    let better = |one: (Shape, f64), best: &Option<(Shape, f64)>| {
        one.1 > 0.0 && best.is_none_or(|best| compare(one, best).is_lt())
    };
    for servers in counts(max.servers) {
        for workers in counts(max.workers) {
            let shape = Shape::new(servers, workers);
            let one = (shape, model.work_per_s(shape));
            if better(one, &best) {
                best = Some(one);
            }
        }
    }
    let (found, _) = best?;
    let gap = |count: u32, max: u32| if max > TRIED_MAX { count / GROWTH } else { 0 };
    let mut steps = [gap(found.servers, max.servers), gap(found.workers, max.workers)];
    while steps != [0, 0] {
        for _ in 0..MOVES_MAX {
            let (here, _) = best?;
            for servers in around(here.servers, steps[0], max.servers) {
                for workers in around(here.workers, steps[1], max.workers) {
                    let shape = Shape::new(servers, workers);
                    let one = (shape, model.work_per_s(shape));
                    if better(one, &best) {
                        best = Some(one);
                    }
                }
            }
            if best.is_none_or(|best| best.0 == here) {
                break;
            }
        }
        steps = steps.map(|step| step / 2);
    }
    best
}

/// Less is better.
fn compare(a: (Shape, f64), b: (Shape, f64)) -> Ordering {
    let tasks = |shape: Shape| u64::from(shape.servers) + u64::from(shape.workers);
    b.1.total_cmp(&a.1).then(tasks(a.0).cmp(&tasks(b.0))).then(a.0.cmp(&b.0))
}

/// Counts to try, from one to `max`.
fn counts(max: u32) -> Vec<u32> {
    let mut counts: Vec<u32> = (1..=max.min(TRIED_MAX)).collect();
    if max > TRIED_MAX {
        let mut next = TRIED_MAX;
        while next < max {
            next = next.saturating_add(next / GROWTH).min(max);
            counts.push(next);
        }
    }
    counts
}

fn around(count: u32, step: u32, max: u32) -> [u32; 3] {
    [count.saturating_sub(step).max(1), count, count.saturating_add(step).min(max)]
}
