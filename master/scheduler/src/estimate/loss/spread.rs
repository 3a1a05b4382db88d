//! What else the same losses could have come from: the posterior of Eqn. (1)'s coefficients.
//!
//! β2 is what a short run cannot tell, and its likelihood is no bell: it is laid out on a grid.
//! At each β2 the other two are normal around their best values. Every node weighs as likely as
//! its squares say, the noise's size being unknown.

use super::bins::Bin;
use super::solve::{Found, Free, Row, normal, polish, squares, turned_round, unevenness};

/// One set of coefficients, and how likely it is beside the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Draw {
    pub(super) beta: [f64; 3],
    pub(super) weight: f64,
}

/// Nodes from 0 to the highest β2, evenly.
const EVEN: u32 = 8;
/// Nodes on each side of the best one, in these standard deviations.
const NEAR: [f64; 7] = [0.3, 0.6, 1.0, 1.45, 2.0, 2.7, 3.7];
/// Steps at one node, from its neighbour's pair.
const STEPS_EACH: u32 = 3;
/// The normal's three points of equal weight that keep mean and variance.
const POINTS: [f64; 3] = [-1.224_744_871_391_589, 0.0, 1.224_744_871_391_589];
/// Nodes less likely than this beside the best are left out.
const WEIGHT_MIN: f64 = 1e-4;

/// The noise as the fit sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    /// Squared errors of all points, those within a row included.
    pub(super) squares: f64,
    /// Points that count for themselves: errors that hold on for several epochs tell less.
    pub(super) points: f64,
}

/// Draws around `best`, and a better place than it where a node of the grid found one.
pub(super) fn spread(coarse: &[Row], best: &Found, noise: Noise) -> (Vec<Draw>, Option<[f64; 3]>) {
    let at_best = squares(coarse, best.beta);
    // What the rows' means do not show, and thinning does not change.
    let within = (noise.squares - at_best).max(0.0);
    let freedom = (noise.points - 3.0).max(1.0);
    let nodes = nodes(coarse, best, noise.squares / freedom);
    let mut found: Vec<Found> = vec![*best];
    for upwards in [false, true] {
        let (mut before, mut from) = (None, best.beta);
        let mut side: Vec<f64> = nodes
            .iter()
            .copied()
            .filter(|floor| if upwards { *floor > best.beta[2] } else { *floor < best.beta[2] })
            .collect();
        if !upwards {
            side.reverse();
        }
        for floor in side {
            let start = along(before, from, floor);
            let near = polish(coarse, start, Free::Pair, STEPS_EACH);
            let Some(node) = near
                .or_else(|| polish(coarse, turned_round(coarse, floor)?, Free::Pair, STEPS_EACH))
            else {
                continue;
            };
            (before, from) = (Some(from), node.beta);
            found.push(node);
        }
    }
    found[0].squares = at_best;
    let better = found
        .iter()
        .filter(|node| node.squares < at_best * (1.0 - 1e-6))
        .min_by(|a, b| a.squares.total_cmp(&b.squares))
        .map(|node| node.beta);
    found.sort_by(|a, b| a.beta[2].total_cmp(&b.beta[2]));
    (draws(coarse, &found, within, freedom), better)
}

/// Where the pair should be at the next β2, by the last two nodes.
fn along(before: Option<[f64; 3]>, from: [f64; 3], floor: f64) -> [f64; 3] {
    let ahead = before.map_or(0.0, |before| (floor - from[2]) / (from[2] - before[2]));
    let ahead = if ahead.is_finite() { ahead } else { 0.0 };
    let next = |i: usize| {
        let change = before.map_or(0.0, |before| from[i] - before[i]);
        // A guess that halves or doubles is worse than none.
        (from[i] + ahead * change).clamp(0.5 * from[i], 2.0 * from[i])
    };
    [next(0), next(1), floor]
}

/// Values of β2 in order.
fn nodes(coarse: &[Row], best: &Found, variance: f64) -> Vec<f64> {
    let highest = coarse.iter().map(|row| row.y).fold(0.0, f64::max);
    let deviation = deviation_of_floor(coarse, best.beta, variance);
    let near = NEAR.iter().flat_map(|share| {
        deviation
            .into_iter()
            .flat_map(move |deviation| [-share * deviation, share * deviation])
            .map(|apart| best.beta[2] + apart)
    });
    let top = deviation.map_or(highest, |deviation| best.beta[2] + 4.0 * deviation);
    let least = coarse.iter().map(|row| row.y).fold(f64::INFINITY, f64::min);
    let top = top.min(highest).max(least);
    let mut nodes: Vec<f64> = (0..EVEN)
        .map(|k| top * f64::from(k) / f64::from(EVEN))
        .chain(near)
        .filter(|floor| (0.0..=highest).contains(floor))
        .collect();
    nodes.sort_by(f64::total_cmp);
    nodes
}

/// Standard deviation of β2 where the other two follow it; none where the rows cannot tell.
fn deviation_of_floor(coarse: &[Row], beta: [f64; 3], variance: f64) -> Option<f64> {
    let [[aa, ab], [_, bb]] = normal(coarse, beta);
    let (mut ac, mut bc, mut cc) = (0.0, 0.0, 0.0);
    for row in coarse {
        let by = row.derivatives(beta);
        ac += row.weight * by[0];
        bc += row.weight * by[1];
        cc += row.weight;
    }
    let determinant = aa * bb - ab * ab;
    let explained = (ac * (ac * bb - bc * ab) + bc * (bc * aa - ac * ab)) / determinant;
    let deviation = (variance / (cc - explained)).sqrt();
    (deviation.is_finite() && deviation > 0.0).then_some(deviation)
}

fn draws(coarse: &[Row], found: &[Found], within: f64, freedom: f64) -> Vec<Draw> {
    let total = |node: &Found| node.squares + within;
    let least = found.iter().map(total).fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE);
    let mut pairs: Vec<(&Found, [[f64; 2]; 2], f64)> = Vec::with_capacity(found.len());
    for (at, node) in found.iter().enumerate() {
        let [[aa, ab], [_, bb]] = normal(coarse, node.beta);
        let variance = total(node) / freedom;
        let (first, cross) = ((variance / aa).sqrt(), -ab / bb);
        let rest = aa + cross * ab;
        // Cholesky of the pair's covariance: β0 alone, and β1 that follows it.
        let one = (variance / rest).sqrt();
        let two = (variance / bb).sqrt();
        let lower = if one.is_finite() && two.is_finite() {
            [[one, 0.0], [cross * one, two]]
        } else {
            [[if first.is_finite() { first } else { 0.0 }, 0.0], [0.0, 0.0]]
        };
        // The share of the grid that the node stands for.
        let before = found[at.saturating_sub(1)].beta[2];
        let after = found[(at + 1).min(found.len() - 1)].beta[2];
        let width = if found.len() == 1 { 1.0 } else { 0.5 * (after - before) };
        let likely = libm::exp(-0.5 * freedom * libm::log(total(node).max(least) / least));
        pairs.push((node, lower, likely * width));
    }
    let highest = pairs.iter().map(|(_, _, weight)| *weight).fold(0.0, f64::max);
    let mut draws = Vec::new();
    for (node, lower, weight) in pairs {
        if weight < WEIGHT_MIN * highest || weight <= 0.0 {
            continue;
        }
        for first in POINTS {
            for second in POINTS {
                let beta = [
                    (node.beta[0] + lower[0][0] * first).max(0.0),
                    (node.beta[1] + lower[1][0] * first + lower[1][1] * second).max(0.0),
                    node.beta[2],
                ];
                draws.push(Draw { beta, weight });
            }
        }
    }
    draws
}

/// Bounds of what uneven noise may do to the number: it is itself an estimate.
const UNEVEN: [f64; 2] = [0.7, 4.0];

/// How many of `points` count for themselves: fewer where neighbouring errors are alike, and where
/// the noise is largest at the points that tell the curve.
pub(super) fn independent(rows: &[Row], beta: [f64; 3], points: f64) -> f64 {
    let errors = || rows.iter().map(|row| (row.y - row.fitted(beta)) * row.weight.sqrt());
    let (mut product, mut square) = (0.0, 0.0);
    for (a, b) in errors().zip(errors().skip(1)) {
        product += a * b;
    }
    for error in errors() {
        square += error * error;
    }
    let count = f64::from(u32::try_from(rows.len()).unwrap_or(u32::MAX));
    // Three fitted coefficients make neighbours' errors a little unlike.
    let like = product / square + 3.0 / count;
    let chance = 2.0 / count.sqrt();
    let like = if like > chance && like.is_finite() { like.min(0.99) } else { 0.0 };
    let uneven = unevenness(rows, beta, square / (count - 3.0).max(1.0));
    (points * (1.0 - like) / (1.0 + like) / uneven.clamp(UNEVEN[0], UNEVEN[1])).max(4.0)
}

/// Squares within the rows that the curve, a parabola there, does not explain.
pub(super) fn within(bins: &[Bin], rows: &[Row], beta: [f64; 3], units: [f64; 2]) -> f64 {
    let [step_scale, loss_scale] = units;
    bins.iter()
        .zip(rows)
        .filter(|(bin, _)| bin.count > 1.0)
        .map(|(bin, row)| {
            let [slope, bend] = row.bend(beta);
            let slope = slope * loss_scale / step_scale;
            let half = 0.5 * bend * loss_scale / step_scale / step_scale;
            let [second, third, fourth] = bin.step_sums;
            let own = slope * slope * second
                + 2.0 * slope * half * third
                + half * half * (fourth - second * second / bin.count);
            let shared = slope * bin.cross[0] + half * bin.cross[1];
            (bin.loss_squares + own - 2.0 * shared).max(0.0)
        })
        .sum::<f64>()
        / (loss_scale * loss_scale)
}
