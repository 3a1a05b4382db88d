//! What a fitted form leaves over, as a smooth factor that dies away from the samples.
//!
//! The logarithm of T measured over T of the form is taken as a Gaussian process over
//! (log p, log w) with noise. Its kernel is Wendland's φ(r) = (1 - r)^4 (4r + 1) for r < 1, else 0,
//! which is positive definite in the plane, costs no exponential, and is exactly zero beyond its
//! reach: there the model is the form alone. The reach is a factor of e^1.5 = 4.5 in servers and
//! e^2.25 = 9.5 in workers. These, the noise and the sizes below are chosen once, by the errors
//! on held-out points of the measured models of `tests/data`; the optimum is flat.
//!
//! How large the process is, against the noise, is not chosen but averaged over by the evidence
//! (marginal likelihood) of each size, so that a form that is right to within the noise is hardly
//! corrected, and one that is not is.

use model::Shape;
use serde::{Deserialize, Serialize};

use super::super::cholesky::Lower;

/// Beyond this difference of logarithms a sample says nothing, in servers and in workers.
const REACH_SERVERS: f64 = 1.5;
const REACH_WORKERS: f64 = 2.25;
/// Standard deviation of the noise of a sample of mean weight, relative.
const NOISE: f64 = 0.03;
/// Standard deviations of the process, of equal prior probability.
const SIZES: [f64; 3] = [0.03, 0.06, 0.12];
/// Most centres: a factor is to cost less than 200 ns. More samples share the centres.
const CENTRES_MAX: usize = 32;
/// Centres are at least this far apart, so that they can be told apart in arithmetic.
const APART_MIN: f64 = 0.02;
/// Added to a kernel matrix for the same.
const JITTER: f64 = 1e-6;
/// The factor and its inverse are at most 2: a larger one is no correction.
const LOG_MAX: f64 = std::f64::consts::LN_2;
/// A residual that is nowhere larger is none.
const LOG_MIN: f64 = 1e-3;
/// Largest weight of a centre that is taken from outside. Those fitted here are below
/// `LOG_MAX · (SIZE / NOISE)²` for each sample of the centre.
const WEIGHT_MAX: f64 = 1e4;

/// A smooth factor on T: `exp(Σ weight · φ(distance to the centre))`, between 1/2 and 2.
///
/// Written as a list of `[servers, workers, weight]`, one for each centre.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, u32, f64)>", into = "Vec<(u32, u32, f64)>")]
pub struct Residual {
    centres: Vec<Centre>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Centre {
    at: Coordinates,
    weight: f64,
    shape: Shape,
}

/// Logarithms of servers and workers in units of their reach.
pub(super) type Coordinates = [f64; 2];

pub(super) fn coordinates(shape: Shape) -> Coordinates {
    let log = |count: u32| libm::log(f64::from(count.max(1)));
    [log(shape.servers) / REACH_SERVERS, log(shape.workers) / REACH_WORKERS]
}

fn squared(a: Coordinates, b: Coordinates) -> f64 {
    let (x, y) = (a[0] - b[0], a[1] - b[1]);
    x * x + y * y
}

/// Wendland's function of a squared distance.
fn kernel(squared: f64) -> f64 {
    if squared >= 1.0 {
        return 0.0;
    }
    let r = squared.sqrt();
    let near = (1.0 - r) * (1.0 - r);
    near * near * (4.0 * r + 1.0)
}

/// The kernel between two places: 1 where they are equal, 0 beyond reach.
pub(super) fn likeness(a: Coordinates, b: Coordinates) -> f64 {
    kernel(squared(a, b))
}

impl Residual {
    /// All of it as numbers: two residuals with the same ones are the same.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        self.centres.iter().flat_map(|centre| {
            let shape = (u64::from(centre.shape.servers) << 32) | u64::from(centre.shape.workers);
            [shape, centre.weight.to_bits()]
        })
    }

    /// What T is multiplied with at a shape: between 1/2 and 2, and 1 beyond reach of all samples.
    #[must_use]
    pub fn factor(&self, shape: Shape) -> f64 {
        let here = coordinates(shape);
        let log: f64 = self.centres.iter().map(|c| c.weight * likeness(here, c.at)).sum::<f64>();
        libm::exp(log.clamp(-LOG_MAX, LOG_MAX)).clamp(0.5, 2.0)
    }
}

impl From<Residual> for Vec<(u32, u32, f64)> {
    fn from(residual: Residual) -> Self {
        let one = |c: Centre| (c.shape.servers, c.shape.workers, c.weight);
        residual.centres.into_iter().map(one).collect()
    }
}

impl TryFrom<Vec<(u32, u32, f64)>> for Residual {
    type Error = String;

    fn try_from(centres: Vec<(u32, u32, f64)>) -> Result<Self, String> {
        if centres.len() > CENTRES_MAX {
            return Err(format!("{} centres are more than {CENTRES_MAX}", centres.len()));
        }
        let one = |(servers, workers, weight): (u32, u32, f64)| {
            if servers == 0 || workers == 0 || weight.is_nan() || weight.abs() > WEIGHT_MAX {
                return Err(format!("[{servers}, {workers}, {weight}] is no centre"));
            }
            let shape = Shape::new(servers, workers);
            Ok(Centre { at: coordinates(shape), weight, shape })
        };
        Ok(Self { centres: centres.into_iter().map(one).collect::<Result<_, _>>()? })
    }
}

/// What a form left over at a shape: the logarithm of T measured over T of the form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) shape: Shape,
    pub(super) left: f64,
    pub(super) weight: f64,
}

/// The process's mean given the points, one for each shape; none where it is as good as nothing.
///
/// With at most `CENTRES_MAX` points they are the centres and the result is that of Gaussian
/// process regression; with more, that on a subset of regressors spread over them.
pub(super) fn smooth(points: &[Point]) -> Option<Residual> {
    let total: f64 = points.iter().map(|point| point.weight).sum();
    let mean = total / f64::from(u32::try_from(points.len()).ok()?);
    // A form that predicts nothing, or twice as much, is not to be mended here.
    let left = |point: &Point| if point.left.is_nan() { 0.0 } else { point.left };
    let roots: Vec<f64> = points.iter().map(|p| (p.weight / mean).sqrt() / NOISE).collect();
    let targets: Vec<f64> = points
        .iter()
        .zip(&roots)
        .map(|(point, root)| left(point).clamp(-LOG_MAX, LOG_MAX) * root)
        .collect();
    let at: Vec<Coordinates> = points.iter().map(|point| coordinates(point.shape)).collect();
    let chosen = spread(&at);

    let among: Vec<Vec<f64>> =
        chosen.iter().map(|a| chosen.iter().map(|b| likeness(at[*a], at[*b])).collect()).collect();
    let prior = Lower::of(among, JITTER)?;
    // One column for each point: its likeness to the centres, whitened, in units of its noise.
    let columns: Vec<Vec<f64>> = at
        .iter()
        .zip(&roots)
        .map(|(here, root)| {
            let mut column: Vec<f64> =
                chosen.iter().map(|centre| likeness(*here, at[*centre]) * root).collect();
            prior.forward(&mut column);
            column
        })
        .collect();
    let mut weights = averaged(&columns, &targets, chosen.len())?;
    prior.backward(&mut weights);
    // Six digits are more than the samples hold, and short to write.
    let centres: Vec<Centre> = chosen
        .iter()
        .zip(weights)
        .map(|(at_point, weight)| Centre {
            at: at[*at_point],
            weight: (weight * 1e6).round() / 1e6,
            shape: points[*at_point].shape,
        })
        .collect();
    let residual = Residual { centres };
    let largest = points.iter().map(|point| libm::log(residual.factor(point.shape)).abs());
    (largest.fold(0.0, f64::max) > LOG_MIN).then_some(residual)
}

/// The whitened centres' weights, averaged over the sizes by their evidence.
fn averaged(columns: &[Vec<f64>], targets: &[f64], count: usize) -> Option<Vec<f64>> {
    let mut information = vec![vec![0.0; count]; count];
    let mut pull = vec![0.0; count];
    for (column, target) in columns.iter().zip(targets) {
        for (row, a) in information.iter_mut().zip(column) {
            for (value, b) in row.iter_mut().zip(column) {
                *value += a * b;
            }
        }
        for (value, a) in pull.iter_mut().zip(column) {
            *value += a * target;
        }
    }
    let mut found: Vec<(f64, Vec<f64>)> = Vec::new();
    for size in SIZES {
        let variance = size * size;
        let scaled = information
            .iter()
            .map(|row| row.iter().map(|value| value * variance).collect())
            .collect();
        let posterior = Lower::of(scaled, 1.0)?;
        let mut weights: Vec<f64> = pull.iter().map(|value| value * variance).collect();
        posterior.forward(&mut weights);
        posterior.backward(&mut weights);
        // The log likelihood of the targets, up to what is the same for all sizes.
        let explained: f64 = weights.iter().zip(&pull).map(|(weight, pull)| weight * pull).sum();
        found.push((explained / 2.0 - posterior.log_diagonal(), weights));
    }
    let best = found.iter().map(|(evidence, _)| *evidence).fold(f64::NEG_INFINITY, f64::max);
    let mut sum = vec![0.0; count];
    let mut total = 0.0;
    for (evidence, weights) in found {
        let share = libm::exp(evidence - best);
        total += share;
        for (value, weight) in sum.iter_mut().zip(weights) {
            *value += share * weight;
        }
    }
    Some(sum.into_iter().map(|value| value / total).collect())
}

/// Points that lie apart and cover the others: each next one is the farthest from those before.
fn spread(at: &[Coordinates]) -> Vec<usize> {
    let mut chosen = Vec::new();
    let mut nearest = vec![f64::INFINITY; at.len()];
    while chosen.len() < CENTRES_MAX {
        let farthest =
            (0..at.len()).max_by(|a, b| nearest[*a].total_cmp(&nearest[*b]).then(b.cmp(a)));
        let Some(next) = farthest.filter(|next| nearest[*next] > APART_MIN * APART_MIN) else {
            break;
        };
        chosen.push(next);
        for (distance, here) in nearest.iter_mut().zip(at) {
            *distance = distance.min(squared(*here, at[next]));
        }
    }
    chosen.sort_unstable();
    chosen
}
