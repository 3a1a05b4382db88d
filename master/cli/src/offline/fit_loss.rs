//! `optimus fit loss`: the curve of a loss, and when it will have converged.

use std::collections::BTreeMap;

use scheduler::estimate::loss::{
    Curve, Forecast, LossFit, LossPoint, Options, Unknown, fit_with, forecast,
};
use serde::Serialize;

use super::csv::{Cells, Wanted};
use super::{all_finite, csv, file, finite, show};
use crate::args::FitLossArgs;
use crate::commands::Context;
use crate::failure::Failure;
use crate::grid::Cell;
use crate::page::Block;
use crate::text::number;

/// `optimus.loss_fit/1`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct LossFitJson {
    schema: &'static str,
    beta: Option<Vec<f64>>,
    /// Of a curve of the user's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    constants: Option<BTreeMap<String, f64>>,
    scale: Option<f64>,
    rmse: Option<f64>,
    outliers: Vec<f64>,
    points_used: u32,
    /// Where the fit starts: after the last step in the learning rate.
    since_step: Option<f64>,
    converged_at_step: Option<f64>,
    remaining_steps: Option<f64>,
    remaining_range: Option<[f64; 2]>,
    reason: Option<String>,
}

/// One line of the file; the loss may be missing.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    step: f64,
    loss: Option<f64>,
    learning_rate: Option<f64>,
}

fn row(cells: &Cells<'_>) -> Result<Row, model::Fault> {
    let step = cells.number(0, "a finite number", |_| true)?;
    let loss = match cells.text(1) {
        "" => None,
        text => match text.parse::<f64>() {
            Ok(loss) => finite(loss),
            Err(_) => return Err(cells.fault(1, "a number, or nothing where it is not known")),
        },
    };
    let learning_rate = match cells.text(2) {
        "" => None,
        _ => Some(cells.number(2, "a number of 0 or more", |rate| rate >= 0.0)?),
    };
    Ok(Row { step, loss, learning_rate })
}

/// Steps at which the learning rate is another than before.
fn rate_steps(rows: &[Row]) -> Vec<f64> {
    let stated = rows.iter().filter_map(|row| Some((row.step, row.learning_rate?)));
    let stated: Vec<(f64, f64)> = stated.collect();
    let changes = stated.windows(2).filter(|pair| pair[0].1.to_bits() != pair[1].1.to_bits());
    changes.map(|pair| pair[1].0).collect()
}

/// Fits the loss of a file and forecasts its end.
///
/// # Errors
/// Where the file or the curve cannot be read; that there is no answer is none.
pub(crate) fn fit_loss(context: &mut Context<'_>, args: &FitLossArgs) -> Result<(), Failure> {
    let curve = args.curve.as_deref().map(Curve::parse).transpose().map_err(|error| {
        let message = format!("the curve cannot be used: {error}");
        Failure::invalid(message, "write it in k with free constants, such as 'a/(k+b)+c'")
    })?;
    let source = file::read(&args.points)?;
    let wanted = Wanted {
        required: &["step", "loss"],
        optional: &["learning_rate"],
        filters: &args.filters,
        one_model: true,
    };
    let mut rows = csv::read(&source, &wanted, row)?;
    rows.sort_by(|a, b| a.step.total_cmp(&b.step));
    let points: Vec<LossPoint> =
        rows.iter().filter_map(|row| Some(LossPoint { step: row.step, loss: row.loss? })).collect();
    let rate_steps = rate_steps(&rows);
    let options = Options {
        rate_steps: &rate_steps,
        steps_per_epoch: args.steps_per_epoch,
        curve: curve.as_ref(),
    };
    let fitted = if points.is_empty() {
        Err(Unknown { reason: format!("{} has no finite loss", source.name) })
    } else {
        fit_with(&points, &options)
    };
    let json = answer(args, &points, fitted);
    show(context, &json, &source.name, &page(&json))
}

fn answer(
    args: &FitLossArgs,
    points: &[LossPoint],
    fitted: Result<LossFit, Unknown>,
) -> LossFitJson {
    let schema = "optimus.loss_fit/1";
    let fit = match fitted {
        Ok(fit) => fit,
        Err(unknown) => {
            return LossFitJson { schema, reason: Some(unknown.reason), ..LossFitJson::default() };
        }
    };
    let own = args.curve.is_some();
    let constants = fit.constants.iter().filter(|(_, value)| value.is_finite()).cloned();
    let mut json = LossFitJson {
        schema,
        beta: if own { None } else { all_finite(&fit.beta) },
        constants: own.then(|| constants.collect()),
        scale: finite(fit.scale),
        rmse: finite(fit.rmse),
        outliers: fit.outliers.iter().copied().filter(|step| step.is_finite()).collect(),
        points_used: fit.points,
        since_step: finite(fit.since_step),
        ..LossFitJson::default()
    };
    match forecast(&fit, points, args.steps_per_epoch, args.threshold, args.patience) {
        Ok(Forecast { converged_at_step, remaining_steps, low, high }) => {
            json.converged_at_step = finite(converged_at_step);
            json.remaining_steps = finite(remaining_steps);
            json.remaining_range = finite(low).zip(finite(high)).map(|(low, high)| [low, high]);
            if json.converged_at_step.is_none() || json.remaining_steps.is_none() {
                json.reason = Some("the end is beyond every number of steps".to_owned());
            }
        }
        Err(unknown) => json.reason = Some(unknown.reason),
    }
    json
}

fn page(json: &LossFitJson) -> Vec<Block> {
    let text = |text: &Option<String>| text.as_deref().map_or(Cell::None, Cell::text);
    let curve = json.beta.as_ref().map(|beta| {
        let beta: Vec<String> = beta.iter().map(|value| number(*value)).collect();
        format!("loss = 1/({}·k + {}) + {}", beta[0], beta[1], beta[2])
    });
    let constants = json.constants.as_ref().map(|constants| {
        let shown = constants.iter().map(|(name, value)| format!("{name} = {}", number(*value)));
        shown.collect::<Vec<String>>().join(", ")
    });
    let range = json.remaining_range.map(|[low, high]| format!("{low:.0} to {high:.0}"));
    let steps = |steps: Option<f64>| {
        steps.map_or(Cell::None, |steps| Cell::Number(steps, format!("{steps:.0}")))
    };
    vec![Block::facts(
        "",
        vec![
            ("curve", text(&curve)),
            ("constants", text(&constants)),
            ("scale", Cell::number(json.scale)),
            ("rmse", Cell::number(json.rmse)),
            ("points used", Cell::count(u64::from(json.points_used))),
            ("outliers", Cell::count(u64::try_from(json.outliers.len()).unwrap_or(u64::MAX))),
            ("since step", steps(json.since_step)),
            ("converged at step", steps(json.converged_at_step)),
            ("remaining steps", steps(json.remaining_steps)),
            ("remaining range", text(&range)),
            ("reason", text(&json.reason)),
        ],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_learning_rate_is_seen_over_rows_that_do_not_state_it() {
        let row = |(step, rate): (f64, Option<f64>)| Row { step, loss: None, learning_rate: rate };
        let rows: Vec<Row> =
            [(1.0, None), (2.0, Some(0.1)), (3.0, None), (4.0, Some(0.1)), (5.0, Some(0.01))]
                .map(row)
                .to_vec();
        assert_eq!(rate_steps(&rows), [5.0]);
        assert_eq!(rate_steps(&rows[..4]), [] as [f64; 0]);
        assert_eq!(rate_steps(&[]), [] as [f64; 0]);
    }
}
