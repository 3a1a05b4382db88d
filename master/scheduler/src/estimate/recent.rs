//! Whether the latest losses fall as the fitted curve does: it may follow the run as a whole and
//! still leave it at its end, and what it says of the end is then wrong.

use super::loss::{LossFit, LossPoint, Unknown};

/// Fewest losses that show how fast they fall.
const LATE_MIN: usize = 6;
/// Errors of the slope that are chance.
const CHANCE: f64 = 4.0;
/// A line through a piece of a curve that bends is not quite as steep as the piece.
const FALL_MARGIN: f64 = 1.1;
/// The latest losses are one in this many.
const LATE_SHARE: usize = 4;

/// The slope of a line through points, and its error: more where neighbouring errors are alike.
/// None for too few points.
fn slope(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    if points.len() < LATE_MIN {
        return None;
    }
    let count = f64::from(u32::try_from(points.len()).unwrap_or(u32::MAX));
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (step, loss) = (mean(&|point| point.0), mean(&|point| point.1));
    let square = mean(&|point| (point.0 - step) * (point.0 - step));
    let slope = mean(&|point| (point.0 - step) * (point.1 - loss)) / square;
    let errors: Vec<f64> = points.iter().map(|(k, l)| l - loss - slope * (k - step)).collect();
    let squares: f64 = errors.iter().map(|error| error * error).sum();
    let alike = errors.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / squares;
    let alike = if alike.is_finite() { alike.clamp(0.0, 0.9) } else { 0.0 };
    let variance = squares / (count - 2.0) * (1.0 + alike) / (1.0 - alike);
    let error = (variance / square / count).sqrt();
    (slope.is_finite() && error.is_finite()).then_some((slope, error))
}

fn is_good(fit: &LossFit, step: f64, loss: f64) -> bool {
    step.is_finite()
        && loss.is_finite()
        && fit.outliers.binary_search_by(|other| other.total_cmp(&step)).is_err()
}

/// Refuses where `late` losses (step, loss), at steps where the curve falls by less than `least` a
/// step, fall by more: then the curve is wrong there, whatever its end.
pub(super) fn refuse_still_falling(
    fit: &LossFit,
    late: &[(f64, f64)],
    least: f64,
) -> Result<(), Unknown> {
    let good: Vec<(f64, f64)> =
        late.iter().copied().filter(|(step, loss)| is_good(fit, *step, *loss)).collect();
    match slope(&good) {
        Some((slope, error)) if -slope - CHANCE * error > FALL_MARGIN * least => Err(Unknown::new(
            "the latest losses fall by more than the threshold where the fitted curve falls by \
             less: they do not follow it",
        )),
        Some(_) | None => Ok(()),
    }
}

/// How many times as fast as the curve the last quarter of the points falls, where that is neither
/// chance nor about 1. It tells what a wrong curve may do to the end.
pub(super) fn ratio_of_falls(fit: &LossFit, points: &[LossPoint]) -> Option<f64> {
    let mut good: Vec<(f64, f64)> = points
        .iter()
        .filter(|point| point.step >= fit.since_step && is_good(fit, point.step, point.loss))
        .map(|point| (point.step, point.loss))
        .collect();
    good.sort_by(|a, b| a.0.total_cmp(&b.0));
    let late = &good[good.len() - good.len() / LATE_SHARE..];
    let errors: Vec<(f64, f64)> =
        late.iter().map(|(step, loss)| (*step, loss - fit.loss_at(*step))).collect();
    let curve: Vec<(f64, f64)> = late.iter().map(|(step, _)| (*step, fit.loss_at(*step))).collect();
    let (apart, error) = slope(&errors)?;
    let fitted = -slope(&curve)?.0;
    let ratio = (fitted - apart) / fitted;
    let differs = apart.abs() > CHANCE * error && apart.abs() > (FALL_MARGIN - 1.0) * fitted;
    (differs && fitted > 0.0 && ratio > 0.0 && ratio.is_finite()).then_some(ratio)
}
