//! Gross errors that the neighbours alone do not give away, and a start that is no part of the
//! curve.

use super::outliers::median_of;
use super::solve::{self, Found, Row};
use super::{POINTS_MIN, number};

/// A point this far off by the curve's own value there is a gross error,
const GROSS_SHARE: f64 = 0.25;
/// where it is also this many robust deviations off.
const GROSS_DEVIATIONS: f64 = 6.0;
/// The first loss must be this many times what the others say: it is the scale of all drops, and
/// a steep first epoch is no error.
const GROSS_FIRST: f64 = 2.0;
/// A first loss below this share of the second one is at odds with it.
const RISE_MIN: f64 = 0.9;
/// More than one point in this many: then it is the curve that is wrong.
const GROSS_RARE: usize = 10;
/// Neighbours on each side that show the deviation at a point: noise may grow with the loss.
const AROUND: usize = 10;

/// Points that the neighbours alone did not give away: on a steep fall a loss three times too
/// high may still lie below the first ones.
pub(super) fn gross_errors(rows: &[Row], beta: [f64; 3]) -> Vec<usize> {
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

/// A curve through a wrong loss at the start follows it, and shows no error there: it is judged by
/// the curve through the others. Which of the first two is wrong; `known` is the curve through the
/// rest, and its error, where it was found before.
pub(super) fn at_start(rows: &[Row], known: Option<([f64; 3], usize)>) -> Option<usize> {
    let (first, second) = (rows.first()?, rows.get(1)?);
    if rows.len() <= POINTS_MIN {
        return None;
    }
    let high = rows[1..=POINTS_MIN].iter().all(|row| first.y >= GROSS_FIRST * row.y);
    // No curve rises: one of the two is wrong.
    let rises = first.y < RISE_MIN * second.y;
    let dips = second.y < (1.0 - GROSS_SHARE) * rows[2].y;
    let without = |at: usize| {
        let others: Vec<Row> = rows
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != at)
            .map(|(_, row)| *row)
            .collect();
        let found = match known.filter(|(_, dropped)| *dropped == at) {
            Some((beta, _)) => solve::follow(&others, beta),
            None => solve::search(&others, &others),
        }?;
        let points: f64 = others.iter().map(|row| row.weight).sum();
        let deviation = (found.squares / points / rows[at].weight).sqrt();
        let fitted = rows[at].fitted(found.beta);
        let error = rows[at].y - fitted;
        let (share, above) = match at {
            0 if high => (GROSS_FIRST - 1.0, true),
            0 => (GROSS_SHARE, false),
            _ => (GROSS_SHARE, rises),
        };
        let wrong = error.abs() > share * fitted
            && error.abs() > GROSS_DEVIATIONS * deviation
            && above == (error > 0.0);
        wrong.then_some((found.squares, at))
    };
    let candidates: &[usize] = match (high || rises, rises || dips) {
        (true, true) => &[0, 1],
        (true, false) => &[0],
        (false, true) => &[1],
        (false, false) => &[],
    };
    candidates
        .iter()
        .filter_map(|at| without(*at))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, at)| at)
}

/// Most of the points that a warm-up may take: one in this many.
pub(super) const WARM_UP_RARE: usize = 4;
/// Starts that are tried one by one; beyond them each is a fifth further.
const WARM_UP_SINGLE: usize = 12;
/// By how much a later start must be better (in twice the logarithm of the likelihood, by
/// Schwarz's criterion, where every loss before the start costs a coefficient of its own).
const WARM_UP_GAIN: f64 = 30.0;
/// Most of the curve's own fall that the losses of a warm-up may show.
const WARM_UP_FALL: f64 = 0.1;
/// Least error of a loss, as a share of the largest: less is rounding.
const ROUNDING: f64 = 1e-7;

/// Whether a warm-up is worth looking for: the first loss lies below the curve, and the errors are
/// larger than neighbours differ by. No curve explains what is between neighbours.
pub(super) fn may_warm_up(rows: &[Row], best: &Found) -> bool {
    let Some(first) = rows.first().filter(|_| rows.len() >= 2 * POINTS_MIN) else { return false };
    let errors = || rows.iter().map(|row| (row.y - row.fitted(best.beta)) * row.weight.sqrt());
    let apart: f64 = errors().zip(errors().skip(1)).map(|(a, b)| 0.5 * (a - b) * (a - b)).sum();
    let count = number(rows.len());
    let rounding = count * ROUNDING * ROUNDING;
    let most = count * libm::log((best.squares + rounding) / (apart + rounding));
    first.fitted(best.beta) > first.y && most > WARM_UP_GAIN
}

/// Where the curve starts after losses that rise or stay at first: the row from which on it
/// explains the losses far better, at most row `most`. `fit` is the curve through the rows from one on, steps counted
/// from there.
pub(super) fn warm_up(
    rows: &[Row],
    most: usize,
    best: &Found,
    fit: impl Fn(usize) -> Option<(Vec<Row>, Found)>,
) -> Option<usize> {
    let count = number(rows.len());
    let score = |squares: f64, skipped: usize| {
        count * libm::log(squares / count + ROUNDING * ROUNDING)
            + number(skipped) * libm::log(count)
    };
    let mut least = score(best.squares, 0) - WARM_UP_GAIN;
    let mut start = None;
    let mut at = 2;
    while at <= most && rows.len() - at >= POINTS_MIN {
        if let Some((rest, found)) = fit(at).filter(|(_, found)| score(found.squares, at) < least) {
            let ahead = rest[0].x - (rows[at].x - rows[0].x);
            let inverse = found.beta[0] * ahead + found.beta[1];
            let top = if inverse > 0.0 { 1.0 / inverse + found.beta[2] } else { f64::INFINITY };
            let expected = top - rest[0].fitted(found.beta);
            let high = rows[..at].iter().map(|row| row.y).fold(f64::NEG_INFINITY, f64::max);
            // A steep first part is none: only losses that lie below the curve and hardly fall.
            let seen = rest.iter().map(|row| rest[0].y - row.y).fold(0.0, f64::max);
            if high < top && rows[0].y - rest[0].y < WARM_UP_FALL * expected.min(seen) {
                least = score(found.squares, at);
                start = Some(at);
            }
        }
        at += 1 + if at < WARM_UP_SINGLE { 0 } else { at / 5 };
    }
    start
}
