//! The convergence curve of section 3.1: outliers, normalisation and the fit of Eqn. (1),
//! `loss = 1/(β0·k + β1) + β2` with k in steps, or of a curve of the user's own.
//!
//! Points pass through one stream, in order: the outlier rule on epoch means, restarts where the
//! learning rate steps (announced, or seen as a lasting change of level), and thinning, so that a
//! fit costs the same at step 100 and at step 10 million. What is left is fitted so that the
//! squared error in loss is least. [`LossFitter`] does the same as the run goes on, from the last
//! β: a refit costs some ten microseconds.

mod beta;
mod bins;
mod curve;
mod gross;
mod judge;
mod outliers;
mod solve;
mod spread;
mod stream;
mod user;

use serde::{Deserialize, Serialize};

use self::bins::{Bin, thin};
use self::stream::{Kept, Restart, Stream};
pub use super::remaining::{Forecast, RemainingEpochs, converged, forecast, remaining_epochs};
pub use curve::Curve;

/// A measured loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossPoint {
    pub step: f64,
    pub loss: f64,
}

/// What is known beside the points.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Steps from which another learning rate holds. The last of them starts a new fit. Rates
    /// that move all the time (a warm-up, a cosine) start none.
    pub rate_steps: &'a [f64],
    /// Steps of an epoch, over which points are averaged before outliers are looked for; None
    /// where each point is an epoch's.
    pub steps_per_epoch: Option<f64>,
    /// The user's own curve in place of Eqn. (1).
    pub curve: Option<&'a Curve>,
}

/// A fitted convergence curve, in the units of the points.
#[derive(Clone, Debug, PartialEq)]
pub struct LossFit {
    /// β of Eqn. (1), for losses as they came and k in their steps. Zeros where the user gave a
    /// curve. After a restart k is still counted from the run's first step: β1 is then what it is
    /// at the restart less β0 times that step, and may be negative.
    pub beta: [f64; 3],
    /// Largest loss seen that is no outlier, before a restart too: drops are counted as shares
    /// of it.
    pub scale: f64,
    /// Root of the mean squared error in loss over the points kept.
    pub rmse: f64,
    /// Points that entered the fit, after thinning.
    pub points: u32,
    /// Steps of the points that were dropped as outliers, in order (the last 1,000 of them).
    pub outliers: Vec<f64>,
    /// Where the fit starts: the last step of the learning rate, or the end of a warm-up in which
    /// the loss does not fall yet; else 0.
    pub since_step: f64,
    /// The user's constants by name, in the order in which the curve names them.
    pub constants: Vec<(String, f64)>,
    curve: Option<Curve>,
    /// What else the same losses could have come from.
    variants: Variants,
}

#[derive(Clone, PartialEq)]
struct Variants(Vec<Variant>);

impl std::fmt::Debug for Variants {
    /// There are hundreds, and nobody reads them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} variants", self.0.len())
    }
}

/// Another curve that the points allow, and how likely it is beside the others.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::estimate) struct Variant {
    pub(in crate::estimate) coefficients: Coefficients,
    pub(in crate::estimate) weight: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::estimate) enum Coefficients {
    /// β of Eqn. (1).
    Beta([f64; 3]),
    /// Constants of the user's curve.
    User(Vec<f64>),
}

/// Why there is no estimate: an honest answer, never a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    pub reason: String,
}

impl Unknown {
    pub(in crate::estimate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unknown {}

/// Loss by Eqn. (1).
#[must_use]
pub fn curve(beta: [f64; 3], step: f64) -> f64 {
    1.0 / (beta[0] * step + beta[1]) + beta[2]
}

/// Most points of a fit: it costs the same at step 100 and at step 10 million.
const POINTS_MAX: usize = 400;
/// Fewest points for three coefficients with anything left to judge them by.
const POINTS_MIN: usize = 5;
/// Points on which the search and the range work: they need the shape, not the last digit.
const COARSE_MAX: usize = 40;
/// Outliers whose steps are kept.
const OUTLIERS_MAX: usize = 1000;
/// Beyond these a number is an accident.
const LOSS_MAX: f64 = 1e30;
const STEP_MAX: f64 = 1e15;
/// Below this, squares vanish.
const SCALE_MIN: f64 = 1e-100;

/// Fits Eqn. (1) to points in any order: [`fit_with`] without options.
///
/// # Errors
/// Those of [`fit_with`].
pub fn fit(points: &[LossPoint]) -> Result<LossFit, Unknown> {
    fit_with(points, &Options::default())
}

/// Fits Eqn. (1), or the user's curve, to points in any order. Points that are not finite are
/// left out.
///
/// # Errors
/// [`Unknown`] where fewer than 5 points are usable (or came since the learning rate's last
/// step), where the loss is negative, flat or rising, where it does not follow the curve at all,
/// or where the user's curve does not fall over the points' range.
pub fn fit_with(points: &[LossPoint], options: &Options<'_>) -> Result<LossFit, Unknown> {
    let mut sorted: Vec<LossPoint> = points.iter().filter_map(usable).collect();
    if sorted.is_empty() && !points.is_empty() {
        let finite = points.iter().any(|point| point.step.is_finite() && point.loss.is_finite());
        return Err(if finite { out_of_range() } else { none_finite(points.len()) });
    }
    if let Some(unknown) = one_step(&sorted) {
        return Err(unknown);
    }
    sorted.sort_by(|a, b| a.step.total_cmp(&b.step).then(a.loss.total_cmp(&b.loss)));
    let rate_steps = lasting_rates(&sorted, options.rate_steps);
    // A handful of epochs shows no outlier; their points do.
    let epochs = |steps: f64| sorted.last().map_or(0.0, |last| last.step - sorted[0].step) / steps;
    let steps_per_epoch = options.steps_per_epoch.filter(|steps| epochs(*steps) >= EPOCHS_MIN);
    let mut stream = Stream::new(&rate_steps, steps_per_epoch);
    for point in sorted {
        stream.push(point);
    }
    solve(&stream, options.curve, None)
}

/// Epochs from which on the outlier rule runs on their means.
const EPOCHS_MIN: f64 = 10.0;

fn out_of_range() -> Unknown {
    Unknown::new("no loss can be used: steps must lie from 0 to 10^15, losses within 10^30")
}

/// Losses at one step say nothing about the next.
fn one_step(points: &[LossPoint]) -> Option<Unknown> {
    let (first, rest) = points.split_first()?;
    let same = |point: &LossPoint| (point.step - first.step).abs() <= 0.0;
    (!rest.is_empty() && rest.iter().all(same)).then(|| {
        Unknown::new(format!(
            "1 usable step with {} losses, {POINTS_MIN} steps are needed",
            points.len()
        ))
    })
}

fn none_finite(count: usize) -> Unknown {
    Unknown::new(format!("none of {count} losses is finite"))
}

/// The rate steps after which the rate stays for at least five points. Of the last one that is
/// not known yet: it counts where the one before it stayed.
fn lasting_rates(sorted: &[LossPoint], rate_steps: &[f64]) -> Vec<f64> {
    let mut steps: Vec<f64> = rate_steps.iter().copied().filter(|step| *step > 0.0).collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let at = |step: f64| sorted.partition_point(|point| point.step < step);
    let stays = |from: f64, to: Option<f64>| {
        let last = to.map_or(sorted.len(), at);
        let mut distinct = sorted[at(from)..last].chunk_by(|a, b| a.step >= b.step);
        distinct.nth(POINTS_MIN - 1).is_some()
    };
    let mut lasting = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let before = index.checked_sub(1).map_or(0.0, |before| steps[before]);
        let next = steps.get(index + 1).copied();
        if stays(*step, next) || (next.is_none() && stays(before, Some(*step))) {
            lasting.push(*step);
        }
    }
    lasting
}

/// The fit of a run that goes on: the points come in order of their steps, and each fit starts
/// from the last one's β. It equals [`fit_with`] on the same points but for rounding, where the
/// run has ten epochs or more and its rates stay.
#[derive(Clone, Debug)]
pub struct LossFitter {
    stream: Stream,
    curve: Option<Curve>,
    last: Option<[f64; 3]>,
}

impl LossFitter {
    #[must_use]
    pub fn new(options: &Options<'_>) -> Self {
        Self {
            stream: Stream::new(options.rate_steps, options.steps_per_epoch),
            curve: options.curve.cloned(),
            last: None,
        }
    }

    /// Takes the next point, in constant time on average. False where it cannot be used: it is
    /// not finite, or lies before the last one.
    pub fn push(&mut self, point: LossPoint) -> bool {
        self.stream.push(point)
    }

    /// The fit to all points up to now.
    ///
    /// # Errors
    /// Those of [`fit_with`].
    pub fn fit(&mut self) -> Result<LossFit, Unknown> {
        let found = solve(&self.stream, self.curve.as_ref(), self.last);
        // After a warm-up the curve is another one than that through all points, where a fit starts.
        let whole = |fit: &&LossFit| fit.curve.is_none() && fit.since_step <= self.stream.since;
        self.last = found.as_ref().ok().filter(whole).map(|fit| fit.beta);
        found
    }
}

/// Refuses or fits what the stream holds; `last` is a β to start from.
fn solve(
    stream: &Stream,
    curve: Option<&Curve>,
    last: Option<[f64; 3]>,
) -> Result<LossFit, Unknown> {
    let kept = stream.kept();
    refuse_few(stream, &kept)?;
    judge::refuse_rising(&kept.bins)?;
    match curve {
        Some(curve) => user::solve(stream, &kept, curve),
        None => beta::solve(stream, &kept, last),
    }
}

fn refuse_few(stream: &Stream, kept: &Kept) -> Result<(), Unknown> {
    if stream.used == 0 && stream.seen > 0 {
        return Err(none_finite(usize::try_from(stream.seen).unwrap_or(usize::MAX)));
    }
    let count = kept.bins.len();
    if count >= POINTS_MIN {
        return Ok(());
    }
    Err(Unknown::new(match stream.restarted {
        Some(Restart::Announced) => format!(
            "the learning rate changed at step {}: {count} losses since, {POINTS_MIN} are needed",
            stream.since
        ),
        Some(Restart::Detected) => format!(
            "the loss changed its level at step {}: {count} losses since, {POINTS_MIN} are needed",
            stream.since
        ),
        None => format!("{count} usable losses at different steps, {POINTS_MIN} are needed"),
    }))
}

/// A point that can be used.
fn usable(point: &LossPoint) -> Option<LossPoint> {
    let step = usable_step(point.step).filter(|_| point.loss.abs() <= LOSS_MAX)?;
    Some(LossPoint { step, loss: point.loss })
}

/// A step that can be used. One a little below 0 is 0: plotted and averaged steps come so.
pub(in crate::estimate) fn usable_step(step: f64) -> Option<f64> {
    (-STEP_SLACK..=STEP_MAX).contains(&step).then(|| step.max(0.0))
}

/// How far below 0 a step may be.
const STEP_SLACK: f64 = 0.5;

/// All of a fit but its coefficients.
fn assemble(
    stream: &Stream,
    kept: &Kept,
    bins: &[Bin],
    dropped: impl Iterator<Item = f64>,
) -> LossFit {
    let mut outliers: Vec<f64> = stream.outliers.iter().chain(&kept.outliers).copied().collect();
    outliers.extend(dropped);
    outliers.sort_by(f64::total_cmp);
    outliers.drain(..outliers.len().saturating_sub(OUTLIERS_MAX));
    LossFit {
        beta: [0.0; 3],
        scale: bins.iter().map(|bin| bin.highest).fold(kept.earlier_highest, f64::max),
        rmse: 0.0,
        points: u32::try_from(bins.len()).expect("at most 400 points"),
        outliers,
        since_step: stream.since,
        constants: Vec::new(),
        curve: None,
        variants: Variants(Vec::new()),
    }
}

/// At most [`COARSE_MAX`] bins of the same points.
fn coarse(bins: &[Bin]) -> Vec<Bin> {
    let mut coarse = bins.to_vec();
    if let Some(first) = bins.first() {
        thin(&mut coarse, COARSE_MAX, first.first);
    }
    coarse
}

impl LossFit {
    /// The fitted loss at a step, by Eqn. (1) or by the user's curve. It holds from
    /// [`LossFit::since_step`] on.
    #[must_use]
    pub fn loss_at(&self, step: f64) -> f64 {
        match &self.curve {
            Some(curve) => curve.at(step, self.constants.iter().map(|(_, value)| *value)),
            None => curve(self.beta, step),
        }
    }

    pub(in crate::estimate) fn coefficients(&self) -> Coefficients {
        if self.curve.is_some() {
            Coefficients::User(self.constants.iter().map(|(_, value)| *value).collect())
        } else {
            Coefficients::Beta(self.beta)
        }
    }

    pub(in crate::estimate) fn variants(&self) -> &[Variant] {
        &self.variants.0
    }

    /// The largest loss by other coefficients, where the run starts at `first`.
    pub(in crate::estimate) fn scale_by(&self, coefficients: &Coefficients, first: f64) -> f64 {
        let largest = self.loss_by(coefficients, first);
        // Before a restart, and before the fit's first point, other losses set the scale.
        let own = self.since_step <= 0.0 && largest > 0.0 && largest < 2.0 * self.scale;
        if own { largest } else { self.scale }
    }

    /// Loss at a step by other coefficients of the same form.
    pub(in crate::estimate) fn loss_by(&self, coefficients: &Coefficients, step: f64) -> f64 {
        match (coefficients, &self.curve) {
            (Coefficients::User(values), Some(curve)) => curve.at(step, values.iter().copied()),
            (Coefficients::Beta(beta), _) => curve(*beta, step),
            (Coefficients::User(_), None) => f64::NAN,
        }
    }
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
