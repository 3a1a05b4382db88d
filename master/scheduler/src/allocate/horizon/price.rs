//! What a second's work of each job is worth to all: see the parent for where this comes from.

use super::supply::Supply;
use super::{Outlook, Stake, hull};

/// Whether the projection is followed event by event to find the order of completions: with more
/// jobs the order is by their times alone, which costs under 1 % (the table of the parent).
const FOLLOWED_MAX: usize = 64;
/// Times that the order is taken from the projection of the one before.
const ORDERS_MAX: usize = 4;

/// The jobs that are still to come use a share of the cluster with this power of it.
const COMING_POWER: f64 = 0.7;
/// Pieces that the concave function of the jobs to come is cut into, each half the one before.
const COMING_PIECES: i32 = 14;

/// Prices by the order of completions that projects best.
pub(super) fn prices(
    stakes: &[Stake<'_>],
    capacity: f64,
    (weights, coming): (&[f64], f64),
) -> Outlook {
    let order = by_time_alone(stakes, capacity, weights);
    let hulls: Vec<Vec<usize>> = stakes.iter().map(|stake| priced_rungs(stake, capacity)).collect();
    let coming = coming * super::float(stakes.len()).sqrt();
    let ask = Ask { stakes, hulls: &hulls, capacity, weights, coming };
    let mut best = ask.outlook(&order);
    if stakes.len() > FOLLOWED_MAX {
        return best;
    }
    let mut order = order;
    for _ in 0..ORDERS_MAX {
        let mut next = order.clone();
        next.sort_by(|a, b| best.ends_s[*b].total_cmp(&best.ends_s[*a]).then(a.cmp(b)));
        if next == order {
            break;
        }
        let other = ask.outlook(&next);
        if other.sum_s >= best.sum_s {
            break;
        }
        (best, order) = (other, next);
    }
    best
}

/// The rungs that a job is priced by: on its hull, and no larger than what there is.
fn priced_rungs(stake: &Stake<'_>, capacity: f64) -> Vec<usize> {
    let points = stake.rungs.iter().map(|rung| (rung.share, rung.rate));
    let fits = |rung: &usize| stake.rungs[*rung].share <= capacity;
    let rungs: Vec<usize> = hull((0.0, 0.0), points.enumerate().filter(|(at, _)| fits(at)));
    if rungs.is_empty() { hull((0.0, 0.0), stake.points().take(1)) } else { rungs }
}

/// The last to end first: by the time that each would take on an equal share, over its weight.
fn by_time_alone(stakes: &[Stake<'_>], capacity: f64, weights: &[f64]) -> Vec<usize> {
    let equal = capacity / super::float(stakes.len().max(1));
    let key = |at: usize| stakes[at].alone_s(equal) / weights[at];
    let mut keyed: Vec<(f64, usize)> = (0..stakes.len()).map(|at| (key(at), at)).collect();
    keyed.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    keyed.into_iter().map(|(_, at)| at).collect()
}

struct Ask<'a> {
    stakes: &'a [Stake<'a>],
    hulls: &'a [Vec<usize>],
    capacity: f64,
    weights: &'a [f64],
    /// Jobs to come.
    coming: f64,
}

impl Ask<'_> {
    /// The prices where jobs end in the reverse of this order.
    fn outlook(&self, order: &[usize]) -> Outlook {
        let mut supply = Supply::new();
        let coming = self.coming;
        let mut share = self.capacity;
        let ahead = |share: f64| coming * libm::pow(share / self.capacity, COMING_POWER);
        for piece in 0..COMING_PIECES {
            let less = if piece + 1 < COMING_PIECES { share / 2.0 } else { 0.0 };
            supply.add(share - less, ahead(share) - ahead(less));
            share = less;
        }
        let mut behind = coming;
        let mut each = vec![0.0; self.stakes.len()];
        let mut next = each.clone();
        for job in order {
            behind += self.weights[*job];
            let rungs = self.stakes[*job].rungs;
            let price = self.hulls[*job].iter().fold(f64::INFINITY, |price, rung| {
                let rung = &rungs[*rung];
                let others = supply.worth(self.capacity - rung.share);
                price.min((behind - others).max(0.0) / rung.rate)
            });
            let price = if price.is_finite() { price } else { 0.0 };
            each[*job] = price;
            next[*job] = self.next(*job, behind, &supply).unwrap_or(price);
            let (mut share, mut rate) = (0.0, 0.0);
            for rung in &self.hulls[*job] {
                let rung = &rungs[*rung];
                let (wider, worth) = (rung.share - share, price * (rung.rate - rate));
                if wider > 0.0 && worth > 0.0 && worth.is_finite() {
                    supply.add(wider, worth);
                }
                (share, rate) = (rung.share, rung.rate);
            }
        }
        let mut outlook = Outlook { each, next, ends_s: Vec::new(), sum_s: 0.0 };
        if order.len() > FOLLOWED_MAX {
            let sum: f64 =
                order.iter().map(|job| outlook.each[*job] * self.stakes[*job].work).sum();
            // The prices hold what the jobs to come would add.
            outlook.sum_s = sum * (1.0 - coming / behind.max(coming));
        } else {
            self.follow(&mut outlook);
        }
        outlook
    }

    /// The price of the work that a job does next, where it makes other progress now than later.
    fn next(&self, job: usize, behind: f64, supply: &Supply) -> Option<f64> {
        let now = self.stakes[job].now?;
        let rungs = self.stakes[job].rungs.iter().zip(now);
        let prices = rungs
            .filter(|(rung, _)| rung.share <= self.capacity)
            .map(|(rung, now)| (behind - supply.worth(self.capacity - rung.share)).max(0.0) / now);
        prices.reduce(f64::min).filter(|price| price.is_finite())
    }

    /// Rolls the present jobs forward: at every instant each rung goes where it is worth most.
    fn follow(&self, outlook: &mut Outlook) {
        let mut steps: Vec<(f64, usize, usize)> = Vec::new();
        for (job, hull) in self.hulls.iter().enumerate() {
            let (mut share, mut rate) = (0.0, 0.0);
            for (at, rung) in hull.iter().enumerate() {
                let rung = &self.stakes[job].rungs[*rung];
                let slope = outlook.each[job] * (rung.rate - rate) / (rung.share - share);
                steps.push((slope, job, at + 1));
                (share, rate) = (rung.share, rung.rate);
            }
        }
        steps.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let mut left: Vec<f64> = self.stakes.iter().map(|stake| stake.work).collect();
        outlook.ends_s = vec![f64::INFINITY; left.len()];
        let mut now_s = 0.0;
        for _ in 0..left.len() {
            let rates = self.rates(&steps, &outlook.ends_s);
            let ends = rates.iter().zip(&left).enumerate();
            let first = ends
                .filter(|(_, (rate, _))| **rate > 0.0)
                .map(|(job, (rate, left))| (left / rate, job))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((in_s, job)) = first else { break };
            now_s += in_s;
            outlook.ends_s[job] = now_s;
            for (left, rate) in left.iter_mut().zip(&rates) {
                *left = (*left - in_s * rate).max(0.0);
            }
        }
        // Who never ends in it ends after all others.
        let ends = outlook.ends_s.iter_mut().filter(|end| !end.is_finite());
        ends.for_each(|end| *end = 2.0 * now_s);
        outlook.sum_s =
            outlook.ends_s.iter().zip(self.weights).map(|(end, weight)| end * weight).sum();
    }

    /// Rates of the jobs that have not ended, with what there is given out by these steps; the
    /// last one that does not fit whole is shared in time.
    fn rates(&self, steps: &[(f64, usize, usize)], ends_s: &[f64]) -> Vec<f64> {
        let mut rates = vec![0.0; ends_s.len()];
        let mut left = self.capacity;
        for (_, job, at) in steps {
            if ends_s[*job].is_finite() {
                continue;
            }
            let rung = |at: usize| &self.stakes[*job].rungs[self.hulls[*job][at]];
            let (share, rate) =
                if *at > 1 { (rung(at - 2).share, rung(at - 2).rate) } else { (0.0, 0.0) };
            let (wider, more) = (rung(at - 1).share - share, rung(at - 1).rate - rate);
            let part = if wider > left { left / wider } else { 1.0 };
            rates[*job] += part * more;
            left -= part * wider;
            if left <= 0.0 {
                break;
            }
        }
        rates
    }
}
