//! The fit of Eqn. (1) to what the stream kept: units, gross errors, and the range.

use super::bins::Bin;
use super::gross;
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
            return Err(too_small(loss));
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

/// Losses that cannot be fitted because their squares vanish.
pub(super) fn too_small(loss: f64) -> Unknown {
    Unknown::new(if loss > 0.0 {
        "the losses are below 1e-100: give them in another unit"
    } else {
        "the loss is zero throughout"
    })
}

/// Times that gross errors are looked for: each look sees better than the one before.
const LOOKS: u32 = 4;

/// More negative losses than one in this many are no noise.
const NEGATIVE_RARE: usize = 10;

/// Eqn. (1) lies above zero; noise may take single losses below it, at the end too.
fn refuse_negative(bins: &[Bin]) -> Result<(), Unknown> {
    let negative = |bins: &[Bin]| bins.iter().filter(|bin| bin.loss < 0.0).count();
    let last = &bins[bins.len().saturating_sub(POINTS_MIN)..];
    if negative(bins) <= (bins.len() / NEGATIVE_RARE).max(1) && 2 * negative(last) < last.len() {
        return Ok(());
    }
    Err(Unknown::new("the loss goes below zero, where Eqn. (1) cannot follow"))
}

fn none() -> Unknown {
    Unknown::new("no curve of the form 1/(b0*k + b1) + b2 fits the losses")
}

/// A curve, the points that it goes through, and those that are gross errors.
struct Robust {
    units: Units,
    bins: Vec<Bin>,
    gross: Vec<f64>,
    problem: Problem,
    best: Found,
}

impl Robust {
    /// Fits from the last β where there is one, else from nothing.
    fn new(all: &[Bin], origin: f64, last: Option<[f64; 3]>) -> Result<Self, Unknown> {
        let units = Units::of(all, origin)?;
        let mut bins = all.to_vec();
        let mut problem = Problem::new(&bins, units);
        let start = last.map(|beta| units.scaled(beta));
        let mut best = problem.best(start).ok_or_else(none)?;
        let mut gross: Vec<usize> = Vec::new();
        let rows = solve::rows(all, units.origin, units.step, units.loss);
        for _ in 0..LOOKS {
            let known = gross.first().filter(|at| **at < 2).map(|at| (best.beta, *at));
            let mut seen: Vec<usize> = gross::gross_errors(&rows, best.beta);
            if let Some(first) = gross::at_start(&rows, known) {
                let mut rest = rows.clone();
                rest.remove(first);
                seen.push(first);
                // Both of the first two may be wrong.
                let next = gross::at_start(&rest, None).map(|at| at + usize::from(at >= first));
                seen.extend(next);
            }
            seen.sort_unstable();
            seen.dedup();
            if seen == gross {
                break;
            }
            gross = seen;
            let good = (0..all.len()).filter(|at| !gross.contains(at));
            bins = good.map(|at| all[at]).collect();
            problem = Problem::new(&bins, units);
            best = problem.best(Some(best.beta)).ok_or_else(none)?;
        }
        let gross = gross.into_iter().map(|at| all[at].step).collect();
        Ok(Self { units, bins, gross, problem, best })
    }

    /// The first step of the curve where a warm-up went before it.
    fn warm_up(&self) -> Option<f64> {
        if !gross::may_warm_up(&self.problem.rows, &self.best) {
            return None;
        }
        let few = if self.bins.len() > WARM_UP_BINS {
            coarse_late(&self.bins)
        } else {
            self.bins.clone()
        };
        let units = self.units;
        let rows = solve::rows(&few, units.origin, units.step, units.loss);
        let best = solve::follow(&rows, self.best.beta)?;
        let fit = |at: usize| {
            let rest = solve::rows(&few[at..], few[at].first, units.step, units.loss);
            let found = solve::search(&rest, &rest)?;
            Some((rest, found))
        };
        let most = self.bins.len() / gross::WARM_UP_RARE;
        gross::warm_up(&rows, most, &best, fit).map(|at| few[at].first)
    }
}

/// Points from which on a warm-up is looked for in fewer of them.
const WARM_UP_BINS: usize = 4 * COARSE_MAX;

/// The first quarter of the bins as they are, the others by the handful.
fn coarse_late(bins: &[Bin]) -> Vec<Bin> {
    let (early, late) = bins.split_at(bins.len() / gross::WARM_UP_RARE + 1);
    early.iter().copied().chain(coarse(late)).collect()
}

/// Fits from the last β where there is one, else from nothing.
pub(super) fn solve(
    stream: &Stream,
    kept: &Kept,
    last: Option<[f64; 3]>,
) -> Result<LossFit, Unknown> {
    refuse_negative(&kept.bins)?;
    let mut robust = Robust::new(&kept.bins, stream.since, last)?;
    let mut since = stream.since;
    let mut highest = kept.earlier_highest;
    if let Some(start) = robust.warm_up() {
        let late: Vec<Bin> = kept.bins.iter().filter(|bin| bin.first >= start).copied().collect();
        let early = robust.bins.iter().filter(|bin| bin.first < start);
        highest = early.map(|bin| bin.highest).fold(highest, f64::max);
        robust = Robust::new(&late, start, None)?;
        since = start;
    }
    let Robust { units, bins, gross, problem, mut best } = robust;
    let mut noise = problem.noise(&bins, &best);
    judge::refuse_flat(&problem.rows, &best, noise)?;
    let (mut draws, better) = spread::spread(problem.coarse(), &best, noise);
    let better = better.and_then(|beta| solve::follow(&problem.rows, beta));
    if let Some(better) = better.filter(|better| better.squares < best.squares) {
        best = better;
        noise = problem.noise(&bins, &best);
        draws = spread::spread(problem.coarse(), &best, noise).0;
    }
    let mut fit = assemble(stream, kept, &bins, gross.into_iter());
    fit.since_step = since;
    fit.scale = fit.scale.max(highest);
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
