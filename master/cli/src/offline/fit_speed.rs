//! `optimus fit speed`: the speed function of a job from measured speeds.

use model::Shape;
use model::job::TASKS_MAX;
use scheduler::estimate::speed::{
    SpeedForm, SpeedModel, SpeedSample, best_shape, fit_full, next_shapes,
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
const TASKS: (u64, u64) = (1, TASKS_MAX as u64);

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct BestJson {
    servers: u32,
    workers: u32,
    steps_per_s: Option<f64>,
}

/// `optimus.speed_fit/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct SpeedFitJson {
    schema: &'static str,
    mode: &'static str,
    theta: Vec<f64>,
    model: SpeedModel,
    rmse_relative: Option<f64>,
    outliers: Vec<ShapeJson>,
    best: Option<BestJson>,
    next: Vec<ShapeJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<Option<f64>>,
}

fn form(args: &FitSpeedArgs) -> Result<SpeedForm, Failure> {
    match (args.mode, args.global_batch, args.worker_batch) {
        (ModeArg::Async, _, _) => Ok(SpeedForm::Async),
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

fn sample(cells: &Cells<'_>) -> Result<SpeedSample, model::Fault> {
    let steps_per_s = cells.number(2, "a finite number above 0", |speed| speed > 0.0)?;
    Ok(SpeedSample { shape: shape(cells)?, steps_per_s, weight: 1.0 })
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
/// Where the files cannot be read or hold no usable speed.
pub(crate) fn fit_speed(context: &mut Context<'_>, args: &FitSpeedArgs) -> Result<(), Failure> {
    let form = form(args)?;
    let source = file::read(&args.samples)?;
    let wanted = Wanted {
        required: &["servers", "workers", "steps_per_s"],
        optional: &[],
        filters: &args.filters,
        one_model: true,
    };
    let samples = some(&source, csv::read(&source, &wanted, sample)?)?;
    let largest = |of: fn(Shape) -> u32| samples.iter().map(|sample| of(sample.shape)).max();
    let max = Shape::new(
        args.max_servers.or_else(|| largest(|shape| shape.servers)).unwrap_or(1),
        args.max_workers.or_else(|| largest(|shape| shape.workers)).unwrap_or(1),
    );
    let candidates = candidates(args, max)?;
    let fit = fit_full(form, &samples)
        .map_err(|error| Failure::invalid(format!("{}: {error}", source.name), "measure again"))?;
    let count = usize::try_from(args.count).expect("a count within 1000");
    let positive = |speed: f64| finite(speed).filter(|speed| *speed > 0.0);
    let best = best_shape(&fit.model, max).map(|(shape, _)| BestJson {
        servers: shape.servers,
        workers: shape.workers,
        steps_per_s: positive(fit.model.steps_per_s(shape)),
    });
    let next = next_shapes(form, &samples, &candidates, count);
    let json = SpeedFitJson {
        schema: "optimus.speed_fit/1",
        mode: args.mode.name(),
        theta: fit.theta,
        rmse_relative: finite(fit.theta_rmse_relative),
        outliers: fit.outliers.into_iter().map(ShapeJson::from).collect(),
        best,
        next: next.into_iter().map(ShapeJson::from).collect(),
        predicted: args.predict.map(|shape| positive(fit.model.steps_per_s(shape))),
        model: fit.model,
    };
    show(context, &json, &source.name, &page(&json))
}

/// The shapes that may be measured next.
fn candidates(args: &FitSpeedArgs, max: Shape) -> Result<Vec<Shape>, Failure> {
    let Some(path) = &args.candidates else {
        let workers = counts(max.workers);
        let pairs = counts(max.servers)
            .into_iter()
            .flat_map(|servers| workers.iter().map(move |workers| Shape::new(servers, *workers)));
        return Ok(pairs.collect());
    };
    let source = file::read(path)?;
    let wanted =
        Wanted { required: &["servers", "workers"], optional: &[], filters: &[], one_model: false };
    let mut shapes = some(&source, csv::read(&source, &wanted, shape)?)?;
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
    let values: Vec<String> = json.theta.iter().map(|value| number(*value)).collect();
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
            ("theta", Cell::Text(values.join(" "))),
            ("relative error", error),
            ("outliers", shapes(&json.outliers)),
            ("best", best),
            ("next", shapes(&json.next)),
            ("predicted", Cell::number(json.predicted.flatten())),
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
