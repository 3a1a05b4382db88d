//! The fit of Eqn. (1) to what the stream kept: units, gross errors, and the range.

use super::bins::Bin;
use super::outliers::median_of;
use super::solve::{self, Found, Row};
use super::spread::{self, Noise};
use super::stream::{Kept, Stream};
use super::{
    COARSE_MAX, Coefficients, LossFit, POINTS_MIN, SCALE_MIN, Unknown, Variant, Variants, assemble,
    coarse, judge,
};

/// What the rows of a fit are counted in.
#[derive(Clone, Copy, Debug)]
struct Units {
    origin: f64,
    step: f64,
    loss: f64,
}

impl Units {
    fn of(bins: &[Bin], origin: f64) -> Result<Self, Unknown> {
        let loss = bins.iter().map(|bin| bin.loss).fold(0.0, f64::max);
        let step = bins.iter().map(|bin| bin.last).fold(0.0, f64::max) - origin;
        if loss < SCALE_MIN {
            return Err(Unknown::new("the loss is zero throughout"));
        }
        if step < SCALE_MIN {
            return Err(Unknown::new("all steps are the same"));
        }
        Ok(Self { origin, step, loss })
    }

    /// β for losses as they came and k in their steps.
    fn raw(&self, beta: [f64; 3]) -> [f64; 3] {
        let slope = beta[0] / self.loss / self.step;
        [slope, beta[1] / self.loss - slope * self.origin, beta[2] * self.loss]
    }

    fn scaled(&self, beta: [f64; 3]) -> [f64; 3] {
        let at_origin = beta[1] + beta[0] * self.origin;
        [beta[0] * self.loss * self.step, at_origin * self.loss, beta[2] / self.loss]
    }
}

/// Times that gross errors are looked for: each look sees better than the one before.
const LOOKS: u32 = 4;

/// Fits from the last β where there is one, else from nothing.
pub(super) fn solve(
    stream: &Stream,
    kept: &Kept,
    last: Option<[f64; 3]>,
) -> Result<LossFit, Unknown> {
    if kept.bins.iter().any(|bin| bin.loss < 0.0) {
        return Err(Unknown::new("the loss goes below zero, where Eqn. (1) cannot follow"));
    }
    let none = || Unknown::new("no curve of the form 1/(b0*k + b1) + b2 fits the losses");
    let units = Units::of(&kept.bins, stream.since)?;
    let start = last.map(|beta| units.scaled(beta));
    let mut bins = kept.bins.clone();
    let mut problem = Problem::new(&bins, units);
    let mut best = problem.best(start).ok_or_else(none)?;
    let mut gross: Vec<usize> = Vec::new();
    let all = solve::rows(&kept.bins, units.origin, units.step, units.loss);
    for _ in 0..LOOKS {
        let first = first_is_gross(&all, gross.contains(&0).then_some(best.beta));
        let mut seen: Vec<usize> = first.then_some(0).into_iter().collect();
        seen.extend(gross_errors(&all, best.beta));
        if seen == gross {
            break;
        }
        gross = seen;
        let good = (0..kept.bins.len()).filter(|at| !gross.contains(at));
        bins = good.map(|at| kept.bins[at]).collect();
        problem = Problem::new(&bins, units);
        best = problem.best(Some(best.beta)).ok_or_else(none)?;
    }
    let mut noise = problem.noise(&bins, &best);
    judge::refuse_flat(&problem.rows, &best, noise)?;
    let (mut draws, better) = spread::spread(problem.coarse(), &best, noise);
    let better = better.and_then(|beta| solve::follow(&problem.rows, beta));
    if let Some(better) = better.filter(|better| better.squares < best.squares) {
        best = better;
        noise = problem.noise(&bins, &best);
        draws = spread::spread(problem.coarse(), &best, noise).0;
    }
    let steps = gross.iter().map(|at| kept.bins[*at].step);
    let mut fit = assemble(stream, kept, &bins, steps);
    fit.beta = units.raw(best.beta);
    let points: f64 = bins.iter().map(|bin| bin.count).sum();
    fit.rmse = (noise.squares / points).sqrt() * units.loss;
    let variants = draws
        .into_iter()
        .map(|draw| Variant {
            coefficients: Coefficients::Beta(units.raw(draw.beta)),
            weight: draw.weight,
        })
        .collect();
    fit.variants = Variants(variants);
    let fine = fit.beta.iter().all(|value| value.is_finite()) && fit.rmse.is_finite();
    if fine { Ok(fit) } else { Err(none()) }
}

/// The rows of a fit, and fewer of the same points for what needs only their shape.
struct Problem {
    units: Units,
    rows: Vec<Row>,
    coarse: Option<Vec<Row>>,
}

impl Problem {
    fn new(bins: &[Bin], units: Units) -> Self {
        let rows = |bins: &[Bin]| solve::rows(bins, units.origin, units.step, units.loss);
        let coarse = (bins.len() > COARSE_MAX).then(|| rows(&coarse(bins)));
        Self { units, rows: rows(bins), coarse }
    }

    fn coarse(&self) -> &[Row] {
        self.coarse.as_deref().unwrap_or(&self.rows)
    }

    fn best(&self, start: Option<[f64; 3]>) -> Option<Found> {
        start
            .and_then(|start| solve::follow(&self.rows, start))
            .or_else(|| solve::search(&self.rows, self.coarse()))
    }

    fn noise(&self, bins: &[Bin], best: &Found) -> Noise {
        let points: f64 = bins.iter().map(|bin| bin.count).sum();
        let units = [self.units.step, self.units.loss];
        Noise {
            squares: best.squares + spread::within(bins, &self.rows, best.beta, units),
            points: spread::independent(&self.rows, best.beta, points),
        }
    }
}

/// A point this far off by the curve's own value there is a gross error,
const GROSS_SHARE: f64 = 0.25;
/// where it is also this many robust deviations off.
const GROSS_DEVIATIONS: f64 = 6.0;
/// The first loss must be this many times what the others say: it is the scale of all drops, and
/// a steep first epoch is no error.
const GROSS_FIRST: f64 = 2.0;
/// More than one point in this many: then it is the curve that is wrong.
const GROSS_RARE: usize = 10;
/// Neighbours on each side that show the deviation at a point: noise may grow with the loss.
const AROUND: usize = 10;

/// Points that the neighbours alone did not give away: on a steep fall a loss three times too
/// high may still lie below the first ones.
fn gross_errors(rows: &[Row], beta: [f64; 3]) -> Vec<usize> {
    let off = |row: &Row| (row.y - row.fitted(beta)) * row.weight.sqrt();
    let deviation = |rows: &[Row]| {
        let mut all: Vec<f64> = rows.iter().map(|row| off(row).abs()).collect();
        1.4826 * median_of(&mut all)
    };
    let usual = deviation(rows);
    let gross: Vec<usize> = (0..rows.len())
        .filter(|at| {
            let row = &rows[*at];
            let error = row.y - row.fitted(beta);
            if error.abs() <= GROSS_SHARE * row.fitted(beta) || (*at == 0 && error > 0.0) {
                return false;
            }
            let around = &rows[at.saturating_sub(AROUND)..(at + AROUND + 1).min(rows.len())];
            // Twenty may happen to lie close together.
            off(row).abs() > GROSS_DEVIATIONS * deviation(around).max(0.5 * usual)
        })
        .collect();
    let rare =
        gross.len() <= (rows.len() / GROSS_RARE).max(1) && rows.len() - gross.len() >= POINTS_MIN;
    if rare { gross } else { Vec::new() }
}

/// A curve through too high a first loss follows it, and shows no error there: it is judged by
/// the curve through the others; `known` is that one where it was found before.
fn first_is_gross(rows: &[Row], known: Option<[f64; 3]>) -> bool {
    let Some((first, others)) = rows.split_first().filter(|(_, rest)| rest.len() >= POINTS_MIN)
    else {
        return false;
    };
    if others[..POINTS_MIN].iter().any(|row| first.y < GROSS_FIRST * row.y) {
        return false;
    }
    let found = match known {
        Some(beta) => solve::follow(others, beta),
        None => solve::search(others, others),
    };
    found.is_some_and(|found| {
        let fitted = first.fitted(found.beta);
        let points: f64 = others.iter().map(|row| row.weight).sum();
        let deviation = (found.squares / points).sqrt();
        first.y > GROSS_FIRST * fitted
            && first.y - fitted > GROSS_DEVIATIONS * deviation / first.weight.sqrt()
    })
}
