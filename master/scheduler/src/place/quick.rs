//! The placement of a job in a large cluster, in microseconds: a few ways are tried on the
//! roomiest nodes, and the one of the least distance is taken.
//!
//! 1. Everything on one node.
//! 2. The paper's rule: as even as it goes over the fewest of the roomiest nodes.
//! 3. All tasks of one kind on one node with as many of the other as fit beside them, the others
//!    elsewhere: what beats an even split where the numbers do not divide, as one server with
//!    three of its four workers does.
//! 4. Where no even split fits, node by node: a share in the proportion of the job, then what
//!    still fits of either kind.

use model::Shape;

use super::spread_of;
use crate::room::{Demand, Spot, Spots};

/// Nodes near at hand for one job, with what each has left, kind by kind. In narrow numbers,
/// which multiply far quicker than the wide ones of the books.
#[derive(Clone, Debug, Default)]
pub(crate) struct Near {
    nodes: Vec<usize>,
    left: Vec<i64>,
    /// What a server and a worker take, by kind; none where that is too much for narrow numbers.
    demand: Option<Vec<(i64, i64)>>,
    kinds: usize,
}

/// Amounts below this can be multiplied by any number of tasks and added up.
const NARROW: i128 = 1 << 49;
const LEFT_MAX: i128 = 1 << 62;

/// More nodes than the fewest that could be enough on which an even split is still tried.
const EVEN_MORE: usize = 4;
/// Nodes that are tried for all tasks of one kind.
const GATHERED_MAX: usize = 4;

impl Near {
    /// Starts anew for a job.
    pub(crate) fn clear(&mut self, demand: &Demand) {
        self.nodes.clear();
        self.left.clear();
        self.kinds = demand.server().len();
        let narrow = |amount: &i128| i64::try_from(*amount).ok().filter(|_| *amount < NARROW);
        let mut pairs = self.demand.take().unwrap_or_default();
        pairs.clear();
        for (server, worker) in demand.server().iter().zip(demand.worker()) {
            let (Some(server), Some(worker)) = (narrow(server), narrow(worker)) else { return };
            pairs.push((server, worker));
        }
        self.demand = Some(pairs);
    }

    /// False for absurd amounts, which this cannot count in.
    pub(crate) const fn is_exact(&self) -> bool {
        self.demand.is_some()
    }

    pub(crate) fn push(&mut self, node: usize, left: impl Iterator<Item = i128>) {
        self.nodes.push(node);
        // More than a job of the largest shape can take is as good as that.
        let narrow = |left: i128| i64::try_from(left.clamp(-1, LEFT_MAX)).unwrap_or(-1);
        self.left.extend(left.map(narrow));
    }

    fn fits(&self, at: usize, demand: &[(i64, i64)], here: Shape) -> bool {
        let left = &self.left[at * self.kinds..(at + 1) * self.kinds];
        left.iter().zip(demand).all(|(left, pair)| {
            let need = need(*pair, here);
            need <= *left || need == 0
        })
    }

    /// The most tasks up to `most` such that `shape(count)` fits, which must only grow.
    fn most(
        &self,
        at: usize,
        demand: &[(i64, i64)],
        most: u32,
        shape: impl Fn(u32) -> Shape,
    ) -> u32 {
        if most == 0 || self.fits(at, demand, shape(most)) {
            return most;
        }
        let (mut fits, mut fails) = (0, most);
        while fails - fits > 1 {
            let middle = u32::midpoint(fits, fails);
            if self.fits(at, demand, shape(middle)) {
                fits = middle;
            } else {
                fails = middle;
            }
        }
        fits
    }

    /// None where none of the ways fits, and for absurd amounts.
    pub(crate) fn place(&self, shape: Shape) -> Option<Spots> {
        let demand = self.demand.as_deref()?;
        if shape.servers == 0 || shape.workers == 0 {
            return None;
        }
        let whole = (0..self.nodes.len().min(16)).find(|at| self.fits(*at, demand, shape));
        if let Some(at) = whole {
            return Some(vec![(self.nodes[at], shape)].into());
        }
        let fewest = self.fewest(demand, shape)?;
        let even = self.even(demand, shape, fewest);
        // A worker away from all servers is as far as there are servers, and the other way round.
        let far = even.as_ref().map_or(u32::MAX, |even| spread_of(shape, even));
        let ways = [
            even,
            (shape.servers < far).then(|| self.gathered(demand, shape, true)).flatten(),
            (shape.workers < far).then(|| self.gathered(demand, shape, false)).flatten(),
        ];
        let best = ways.into_iter().flatten().min_by_key(|way| (spread_of(shape, way), way.len()));
        let mut best = best.or_else(|| self.filled(demand, shape))?;
        for (at, _) in &mut best {
            *at = self.nodes[*at];
        }
        best.sort_unstable_by_key(|(node, _)| *node);
        Some(best.into())
    }

    /// How many of the first nodes have enough in sum; none where all have not.
    fn fewest(&self, demand: &[(i64, i64)], shape: Shape) -> Option<usize> {
        let mut fewest = 2;
        let needs = demand.iter().map(|pair| need(*pair, shape)).enumerate();
        for (kind, need) in needs.filter(|(_, need)| *need > 0) {
            let (mut sum, mut count) = (0_i64, 0);
            for left in self.left.iter().skip(kind).step_by(self.kinds) {
                if sum >= need {
                    break;
                }
                sum = sum.saturating_add(*left.max(&0));
                count += 1;
            }
            if sum < need {
                return None;
            }
            fewest = fewest.max(count);
        }
        Some(fewest)
    }

    fn even(&self, demand: &[(i64, i64)], shape: Shape, fewest: usize) -> Option<Vec<Spot>> {
        let most = (fewest + EVEN_MORE).min(self.nodes.len());
        (fewest..=most).find_map(|count| self.even_over(demand, shape, count))
    }

    fn even_over(&self, demand: &[(i64, i64)], shape: Shape, count: usize) -> Option<Vec<Spot>> {
        let nodes = u32::try_from(count).ok()?;
        // Where one server more stands, one worker less is asked, as far as both are uneven.
        let part = |at: u32| {
            Shape::new(
                super::wide::part(shape.servers, nodes, at),
                super::wide::part(shape.workers, nodes, nodes - 1 - at),
            )
        };
        let parts = || (0..nodes).map(part).enumerate();
        parts()
            .all(|(at, here)| self.fits(at, demand, here))
            .then(|| parts().filter(|(_, here)| !here.is_empty()).collect())
    }

    /// All servers (or all workers) on one node, with as many of the others as fit there; the
    /// rest of these spread over the next nodes.
    fn gathered(&self, demand: &[(i64, i64)], shape: Shape, servers: bool) -> Option<Vec<Spot>> {
        let (all, others) =
            if servers { (shape.servers, shape.workers) } else { (shape.workers, shape.servers) };
        let of = |all: u32, others: u32| {
            if servers { Shape::new(all, others) } else { Shape::new(others, all) }
        };
        let beside = (0..self.nodes.len().min(GATHERED_MAX))
            .filter(|at| self.fits(*at, demand, of(all, 0)))
            .map(|at| (self.most(at, demand, others, |count| of(all, count)), at))
            .max_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let (most, first) = beside?;
        let mut spots = vec![(first, of(all, most))];
        let mut left = others - most;
        for at in (0..self.nodes.len()).filter(|at| *at != first) {
            if left == 0 {
                break;
            }
            let here = self.most(at, demand, left, |count| of(0, count));
            if here > 0 {
                spots.push((at, of(0, here)));
                left -= here;
            }
        }
        (left == 0).then_some(spots)
    }

    /// Node by node, as many tasks as fit, in the job's proportion where that goes.
    fn filled(&self, demand: &[(i64, i64)], shape: Shape) -> Option<Vec<Spot>> {
        let mut left = shape;
        let mut spots = Vec::new();
        for at in 0..self.nodes.len() {
            let here = self.share(at, demand, left);
            if !here.is_empty() {
                spots.push((at, here));
                left = Shape::new(left.servers - here.servers, left.workers - here.workers);
                if left.is_empty() {
                    return Some(spots);
                }
            }
        }
        None
    }

    fn share(&self, at: usize, demand: &[(i64, i64)], left: Shape) -> Shape {
        if self.fits(at, demand, left) {
            return left;
        }
        let rows = left.servers.max(left.workers);
        let scaled = |count: u32, row: u32| -> u32 {
            let scaled = u64::from(count) * u64::from(row) / u64::from(rows.max(1));
            u32::try_from(scaled).unwrap_or(count)
        };
        let row = self.most(at, demand, rows, |row| {
            Shape::new(scaled(left.servers, row), scaled(left.workers, row))
        });
        let both = Shape::new(scaled(left.servers, row), scaled(left.workers, row));
        let more = self.most(at, demand, left.workers - both.workers, |more| {
            Shape::new(both.servers, both.workers + more)
        });
        let both = Shape::new(both.servers, both.workers + more);
        let more = self.most(at, demand, left.servers - both.servers, |more| {
            Shape::new(both.servers + more, both.workers)
        });
        Shape::new(both.servers + more, both.workers)
    }
}

fn need((server, worker): (i64, i64), shape: Shape) -> i64 {
    server * i64::from(shape.servers) + worker * i64::from(shape.workers)
}
