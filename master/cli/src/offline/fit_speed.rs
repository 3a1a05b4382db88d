//! `optimus fit speed`: the speed function of a job from measured speeds.

use std::cell::Cell as StdCell;
use std::collections::BTreeSet;

use model::Shape;
use model::job::TASKS_MAX;
use scheduler::estimate::speed::{
    SpeedFit, SpeedForm, SpeedModel, SpeedSample, best_shape, fit_full, next_shapes,
};
use serde::Serialize;

use super::csv::{Cells, Wanted};
use super::file::Source;
use super::{csv, file, finite, show};
use crate::args::{FitSpeedArgs, ModeArg};
use crate::commands::Context;
use crate::contract::ShapeJson;
use crate::failure::Failure;
use crate::grid::Cell;
use crate::page::Block;
use crate::text::number;

/// Counts of a kind of task that are candidates: all up to it, then spread by equal factors, so
/// that a large cluster costs as little as a small one.
const COUNTS_MAX: u32 = 64;
/// Least bound of what to measure next where none is given.
const NEXT_MIN: u32 = 4;
const TASKS: (u64, u64) = (1, TASKS_MAX as u64);

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct BestJson {
    servers: u32,
    workers: u32,
    steps_per_s: Option<f64>,
}

/// A row left out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct RowJson {
    servers: u32,
    workers: u32,
    steps_per_s: f64,
}

impl RowJson {
    fn short(self) -> String {
        let shape = Shape::new(self.servers, self.workers);
        format!("{shape} at {} steps/s", number(self.steps_per_s))
    }
}

/// `optimus.speed_fit/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct SpeedFitJson {
    schema: &'static str,
    mode: &'static str,
    theta: Option<Vec<f64>>,
    model: Option<SpeedModel>,
    /// Over all rows kept.
    rmse_relative: Option<f64>,
    /// Shapes of which a row is left out.
    outliers: Vec<ShapeJson>,
    outlier_rows: Vec<RowJson>,
    best: Option<BestJson>,
    next: Vec<ShapeJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<Option<f64>>,
    /// What the samples leave open.
    warning: Option<String>,
}

fn form(args: &FitSpeedArgs) -> Result<SpeedForm, Failure> {
    match (args.mode, args.global_batch, args.worker_batch) {
        (ModeArg::Async, None, None) => Ok(SpeedForm::Async),
        (ModeArg::Async, global, _) => {
            let flag = if global.is_some() { "--global-batch" } else { "--worker-batch" };
            let hint = format!("leave {flag} out, or give --mode sync");
            Err(Failure::invalid(format!("{flag} has no meaning in mode async"), hint))
        }
        (ModeArg::Sync, Some(batch), None) => Ok(SpeedForm::SyncGlobal { batch }),
        (ModeArg::Sync, None, Some(batch)) => Ok(SpeedForm::SyncPerWorker { batch }),
        (ModeArg::Sync, None, None) => Err(Failure::invalid(
            "mode sync lacks its batch",
            "give --global-batch, or --worker-batch where each worker keeps its own",
        )),
        (ModeArg::Sync, Some(_), Some(_)) => {
            Err(Failure::invalid("two batches are given", "give one of the two"))
        }
    }
}

fn shape(cells: &Cells<'_>) -> Result<Shape, model::Fault> {
    let count = |column| {
        let count = cells.whole(column, TASKS)?;
        Ok(u32::try_from(count).expect("at most 4096"))
    };
    Ok(Shape::new(count(0)?, count(1)?))
}

/// A line of the samples; a mode and a batch that it states are those of the command.
///
/// Where they are not, all lines tend to say the same: the first is `told`.
fn sample(
    args: &FitSpeedArgs,
    cells: &Cells<'_>,
    told: &StdCell<bool>,
) -> Result<SpeedSample, model::Fault> {
    let steps_per_s = cells.number(2, "a finite number above 0", |speed| speed > 0.0)?;
    let shape = shape(cells)?;
    if cells.wanted() && !told.get() {
        let same = same_mode(args.mode, cells.text(3))
            .and_then(|()| same_batch("global_batch", args.global_batch, cells.text(4)))
            .and_then(|()| same_batch("worker_batch", args.worker_batch, cells.text(5)));
        told.set(same.is_err());
        same?;
    }
    Ok(SpeedSample { shape, steps_per_s, weight: 1.0 })
}

/// Another word than sync and async is of some other kind of mode.
fn same_mode(given: ModeArg, stated: &str) -> Result<(), model::Fault> {
    let other = [ModeArg::Sync, ModeArg::Async].into_iter().find(|mode| mode.name() == stated);
    let Some(other) = other.filter(|other| *other != given) else { return Ok(()) };
    let (other, given) = (other.name(), given.name());
    let remedy = format!("give --mode {other}, or choose other rows with --where");
    Err(model::Fault::new("mode", format!("is {other}, beside --mode {given}"), remedy))
}

fn same_batch(name: &str, given: Option<u32>, stated: &str) -> Result<(), model::Fault> {
    let Some(given) = given.filter(|_| !stated.is_empty()) else { return Ok(()) };
    // Whole numbers below 2^32 are exact.
    let equal = |stated: f64| stated.total_cmp(&f64::from(given)).is_eq();
    if stated.parse().is_ok_and(equal) {
        return Ok(());
    }
    let flag = format!("--{}", name.replace('_', "-"));
    let stated: String = stated.chars().take(80).collect();
    let remedy = format!("give {flag} {stated}, or choose other rows with --where");
    Err(model::Fault::new(name, format!("is {stated:?}, beside {flag} {given}"), remedy))
}

/// Rows, of which there must be one.
fn some<T>(source: &Source, rows: Vec<T>) -> Result<Vec<T>, Failure> {
    if rows.is_empty() {
        return Err(Failure::invalid(format!("{} has no rows", source.name), "give at least one"));
    }
    Ok(rows)
}

/// Fits the speeds of a file.
///
/// # Errors
/// Where the files cannot be read or no speed of some can be used.
pub(crate) fn fit_speed(context: &mut Context<'_>, args: &FitSpeedArgs) -> Result<(), Failure> {
    let form = form(args)?;
    let source = file::read(&args.samples)?;
    let wanted = Wanted {
        required: &["servers", "workers", "steps_per_s"],
        optional: &["mode", "global_batch", "worker_batch"],
        filters: &args.filters,
        one_model: true,
    };
    let told = StdCell::new(false);
    let samples = csv::read(&source, &wanted, |cells| sample(args, cells, &told))?;
    let largest =
        |of: fn(Shape) -> u32| samples.iter().map(|sample| of(sample.shape)).max().unwrap_or(0);
    let measured = Shape::new(largest(|shape| shape.servers), largest(|shape| shape.workers));
    let candidates = candidates(args, measured)?;
    let fit = if samples.is_empty() {
        None
    } else {
        let unfit = |error| Failure::invalid(format!("{}: {error}", source.name), "measure again");
        Some(fit_full(form, &samples).map_err(unfit)?)
    };
    let count = usize::try_from(args.count).expect("a count within 1000");
    let next = next_shapes(form, &samples, &candidates, count);
    let json = answer(args, form, &samples, measured, fit, &next);
    show(context, &json, &source.name, &page(&json))
}

/// With no samples there is no fit, and only what to measure next is known.
fn answer(
    args: &FitSpeedArgs,
    form: SpeedForm,
    samples: &[SpeedSample],
    measured: Shape,
    fit: Option<SpeedFit>,
    next: &[Shape],
) -> SpeedFitJson {
    let max = Shape::new(
        args.max_servers.unwrap_or(measured.servers),
        args.max_workers.unwrap_or(measured.workers),
    );
    let positive = |speed: f64| finite(speed).filter(|speed| *speed > 0.0);
    let speed = |shape| positive(fit.as_ref()?.model.steps_per_s(shape));
    let best = fit.as_ref().and_then(|fit| best_shape(&fit.model, max)).map(|(shape, _)| {
        let (servers, workers) = (shape.servers, shape.workers);
        BestJson { servers, workers, steps_per_s: speed(shape) }
    });
    let predicted = args.predict.map(speed);
    let wrong: &[usize] = fit.as_ref().map_or(&[], |fit| &fit.outlier_rows);
    let outlier_rows = wrong.iter().map(|at| {
        let SpeedSample { shape, steps_per_s, .. } = samples[*at];
        RowJson { servers: shape.servers, workers: shape.workers, steps_per_s }
    });
    let outliers: BTreeSet<Shape> = wrong.iter().map(|at| samples[*at].shape).collect();
    let kept = (0..).zip(samples).filter(|(at, _)| wrong.binary_search(at).is_err());
    let kept: BTreeSet<Shape> = kept.map(|(_, sample)| sample.shape).collect();
    SpeedFitJson {
        schema: "optimus.speed_fit/1",
        mode: args.mode.name(),
        rmse_relative: fit.as_ref().and_then(|fit| finite(fit.theta_rmse_relative)),
        outliers: outliers.into_iter().map(ShapeJson::from).collect(),
        outlier_rows: outlier_rows.collect(),
        best,
        next: next.iter().copied().map(ShapeJson::from).collect(),
        predicted,
        warning: undetermined(form, &kept),
        theta: fit.as_ref().map(|fit| fit.theta.clone()),
        model: fit.map(|fit| fit.model),
    }
}

/// Which terms these shapes cannot tell apart, and what would.
fn undetermined(form: SpeedForm, shapes: &BTreeSet<Shape>) -> Option<String> {
    let first = shapes.first()?;
    let all = |same: fn(&Shape, &Shape) -> bool| shapes.iter().all(|shape| same(shape, first));
    let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
    let one_ratio = shapes.iter().all(|shape| {
        product(shape.workers, first.servers) == product(first.workers, shape.servers)
    });
    if shapes.len() == 1 {
        return Some(format!(
            "all samples have the shape {first}: no term can be told from another; measure other \
             numbers of servers and of workers, not all of one ratio"
        ));
    }
    if one_ratio {
        let ratio = number(f64::from(first.workers) / f64::from(first.servers));
        return Some(format!(
            "all samples have w/p = {ratio}: the term in w/p cannot be told from the \
             constant, nor that in w from that in p; measure shapes of other ratios"
        ));
    }
    if all(|a, b| a.workers == b.workers) {
        return Some(format!(
            "all samples have {} workers: the terms in w alone cannot be told from the \
             constant; measure other numbers of workers",
            first.workers
        ));
    }
    if all(|a, b| a.servers == b.servers) {
        return Some(format!(
            "all samples have {} servers: the terms in w/p and w cannot be told apart, nor that \
             in p from the constant; measure other numbers of servers",
            first.servers
        ));
    }
    let (count, wanted) = (shapes.len(), form.free());
    (count < wanted).then(|| {
        let more = wanted - count;
        format!("{count} shapes cannot tell {wanted} terms apart; measure {more} more shapes")
    })
}

/// The shapes that may be measured next: up to twice what was measured where no bound is given.
fn candidates(args: &FitSpeedArgs, measured: Shape) -> Result<Vec<Shape>, Failure> {
    let Some(path) = &args.candidates else {
        let beyond = |count: u32| count.saturating_mul(2).clamp(NEXT_MIN, TASKS_MAX);
        let servers = args.max_servers.unwrap_or_else(|| beyond(measured.servers));
        let workers = counts(args.max_workers.unwrap_or_else(|| beyond(measured.workers)));
        let pairs = counts(servers)
            .into_iter()
            .flat_map(|servers| workers.iter().map(move |workers| Shape::new(servers, *workers)));
        return Ok(pairs.collect());
    };
    let source = file::read(path)?;
    let wanted =
        Wanted { required: &["servers", "workers"], optional: &[], filters: &[], one_model: false };
    let mut shapes = some(&source, csv::read(&source, &wanted, shape)?)?;
    let within = |count: u32, max: Option<u32>| max.is_none_or(|max| count <= max);
    shapes.retain(|shape| {
        within(shape.servers, args.max_servers) && within(shape.workers, args.max_workers)
    });
    if shapes.is_empty() {
        return Err(Failure::invalid(
            format!("{} has no shape within --max-servers and --max-workers", source.name),
            "raise these bounds, or give smaller shapes",
        ));
    }
    shapes.sort_unstable();
    shapes.dedup();
    Ok(shapes)
}

fn counts(max: u32) -> Vec<u32> {
    if max <= COUNTS_MAX {
        return (1..=max).collect();
    }
    let factor = f64::from(max).powf(1.0 / f64::from(COUNTS_MAX - 1));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounded and within 1 to 4096"
    )]
    let count = |at: u32| (factor.powf(f64::from(at)).round() as u32).clamp(1, max);
    let mut counts: Vec<u32> = (0..COUNTS_MAX).map(count).collect();
    counts.dedup();
    counts
}

fn page(json: &SpeedFitJson) -> Vec<Block> {
    let theta = json.theta.as_ref().map_or(Cell::None, |theta| {
        let values: Vec<String> = theta.iter().map(|value| number(*value)).collect();
        Cell::Text(values.join(" "))
    });
    let wrong: Vec<String> = json.outlier_rows.iter().map(|row| row.short()).collect();
    let shapes = |shapes: &[ShapeJson]| {
        let words: Vec<String> = shapes.iter().map(|shape| shape.short()).collect();
        Cell::Text(words.join(" "))
    };
    let error = json
        .rmse_relative
        .map_or(Cell::None, |error| Cell::Number(error, format!("{}%", number(error * 100.0))));
    let best = json.best.map_or(Cell::None, |best| {
        let shape = Shape::new(best.servers, best.workers);
        let speed = best.steps_per_s.map_or_else(|| "unknown".to_owned(), number);
        Cell::Text(format!("{shape} at {speed} steps/s"))
    });
    vec![Block::facts(
        "",
        vec![
            ("mode", Cell::text(json.mode)),
            ("theta", theta),
            ("relative error", error),
            ("outliers", shapes(&json.outliers)),
            ("outlier rows", Cell::Text(wrong.join(", "))),
            ("best", best),
            ("next", shapes(&json.next)),
            ("predicted", Cell::number(json.predicted.flatten())),
            ("warning", json.warning.as_deref().map_or(Cell::None, Cell::text)),
        ],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_stay_few_and_reach_the_largest() {
        for max in [1, 2, 63, 64, 65, 100, 1000, 4096] {
            let counts = counts(max);
            assert_eq!((counts.first(), counts.last()), (Some(&1), Some(&max)));
            assert!(counts.len() <= 64 && counts.is_sorted(), "{counts:?}");
            assert!(counts.windows(2).all(|pair| pair[0] < pair[1]), "{counts:?}");
        }
    }
}
