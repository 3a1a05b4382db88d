//! The schedulers that Optimus is compared with (section 6.1): how they share out servers and
//! workers, and where they put them. Each half can be taken with the other half of another.
//!
//! All of them keep one server to one worker as far as a job's bounds let them: at size `k` a job
//! has `k` servers and `k` workers, each held within its bounds, and it grows by the size until one
//! kind is at its largest. Only
//! FIFO gives what was requested.

mod drf;
mod fifo;
pub mod gpus;
mod nodes;
pub mod oracle;
mod tetris;
pub mod tiresias;

use std::cmp::Ordering;
use std::fmt;

use model::Shape;
use model::job::TASKS_MAX;

pub use drf::drf;
pub use fifo::fifo;
pub use nodes::{Nodes, Placer, Rule, fill, first_fit, pack, spread};
pub use tetris::tetris;

/// A job that asks for tasks. Amounts are by kind, in the order of the cluster's; below zero is
/// nothing.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub least: Shape,
    pub max: Shape,
    /// What one server and one worker take.
    pub server: &'a [i64],
    pub worker: &'a [i64],
    /// The job's priority; 1 where it is not a number above 0.
    pub weight: f64,
    /// What the job's owner asked for.
    pub requested: Option<Shape>,
    pub arrival_ms: u64,
    /// GPU seconds that it had so far.
    pub attained_gpu_s: f64,
    /// Seconds left at a shape, as estimated for Optimus.
    pub seconds_left: &'a dyn Fn(Shape) -> f64,
}

impl fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Ask");
        shown.field("least", &self.least).field("max", &self.max);
        shown.field("server", &self.server).field("worker", &self.worker);
        shown.field("weight", &self.weight).field("requested", &self.requested);
        shown.field("arrival_ms", &self.arrival_ms).field("attained_gpu_s", &self.attained_gpu_s);
        shown.finish_non_exhaustive()
    }
}

impl Ask<'_> {
    /// The bounds, with at least one of each kind; none where nothing lies within them.
    fn bounds(&self) -> Option<(Shape, Shape)> {
        let least = Shape::new(self.least.servers.max(1), self.least.workers.max(1));
        let max = Shape::new(self.max.servers.min(TASKS_MAX), self.max.workers.min(TASKS_MAX));
        (least.servers <= max.servers && least.workers <= max.workers).then_some((least, max))
    }

    fn sound_weight(&self) -> f64 {
        if self.weight.is_finite() && self.weight > 0.0 { self.weight } else { 1.0 }
    }

    /// What a shape takes, by kind.
    fn need(&self, shape: Shape) -> impl Iterator<Item = i128> {
        let times = |amount: &i64, count: u32| i128::from(*amount).max(0) * i128::from(count);
        self.server.iter().zip(self.worker).map(move |(server, worker)| {
            times(server, shape.servers) + times(worker, shape.workers)
        })
    }

    fn is_free(&self) -> bool {
        self.need(Shape::new(1, 1)).all(|need| need == 0)
    }

    /// What its owner asked for, where that is within its bounds and the whole cluster holds it.
    /// Only a job that may have no servers gets workers alone.
    fn sound_request(&self, total: &[i64]) -> Option<Shape> {
        let (least, max) = if self.max.servers == 0 {
            let least = Shape::new(self.least.servers, self.least.workers.max(1));
            (least, Shape::new(0, self.max.workers.min(TASKS_MAX)))
        } else {
            self.bounds()?
        };
        let is_sound = |shape: &Shape| {
            (least.servers..=max.servers).contains(&shape.servers)
                && (least.workers..=max.workers).contains(&shape.workers)
                && Free::of(total).take(self, Shape::default(), *shape)
        };
        self.requested.filter(is_sound)
    }
}

/// A job that grows by its size.
#[derive(Clone, Copy, Debug)]
struct Growth {
    shape: Shape,
    size: u32,
    least: Shape,
    max: Shape,
}

impl Growth {
    /// Nothing yet; none where the bounds let it have nothing at all.
    fn of(ask: &Ask<'_>) -> Option<Self> {
        let (least, max) = ask.bounds()?;
        Some(Self { shape: Shape::default(), size: 0, least, max })
    }

    /// One size more: the least shape from nothing, else the next that differs.
    fn next(self) -> Option<Self> {
        let least = self.least.servers.max(self.least.workers);
        let top = self.max.servers.min(self.max.workers).max(least);
        let mut size = if self.shape.is_empty() {
            self.least.servers.min(self.least.workers)
        } else {
            self.size + 1
        };
        while size <= top {
            let shape = Shape::new(
                size.clamp(self.least.servers, self.max.servers),
                size.clamp(self.least.workers, self.max.workers),
            );
            if shape != self.shape {
                return Some(Self { shape, size, ..self });
            }
            size += 1;
        }
        None
    }

    /// At its largest.
    fn whole(self) -> Self {
        Self { shape: self.max, size: self.max.servers.max(self.max.workers), ..self }
    }
}

/// What is free of the cluster, by kind. Wide, so that no sum wraps.
#[derive(Clone, Debug)]
struct Free(Vec<i128>);

impl Free {
    fn of(free: &[i64]) -> Self {
        Self(free.iter().map(|free| i128::from(*free).max(0)).collect())
    }

    /// Takes what `to` needs beyond `from`, which lies within it: all of it or nothing. A kind
    /// that the cluster does not list is not there.
    fn take(&mut self, ask: &Ask<'_>, from: Shape, to: Shape) -> bool {
        let more: Vec<i128> = ask.need(from).zip(ask.need(to)).map(|(a, b)| b - a).collect();
        let has = |kind: usize| self.0.get(kind).copied().unwrap_or(0);
        let fits = more.iter().enumerate().all(|(kind, more)| *more == 0 || *more <= has(kind));
        if fits {
            for (left, more) in self.0.iter_mut().zip(more) {
                *left -= more;
            }
        }
        fits
    }
}

/// What a shape takes as shares of the cluster's total, by kind; infinite of what is not there.
fn shares<'a>(ask: &'a Ask<'_>, shape: Shape, total: &'a [i64]) -> impl Iterator<Item = f64> + 'a {
    ask.need(shape).enumerate().map(|(kind, need)| share(need, total.get(kind).copied()))
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
fn share(need: i128, total: Option<i64>) -> f64 {
    match total {
        _ if need == 0 => 0.0,
        Some(total) if total > 0 => need as f64 / total as f64,
        Some(_) | None => f64::INFINITY,
    }
}

/// A job in a heap: the lowest key comes out first, of equal ones the earlier arrival, then the
/// earlier place.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    key: f64,
    arrival_ms: u64,
    ask: usize,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = other.key.total_cmp(&self.key);
        by_key.then_with(|| (other.arrival_ms, other.ask).cmp(&(self.arrival_ms, self.ask)))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}
