//! How much work a job has left: Eqn. (1) fitted to its losses, in epochs, work and seconds.

use model::view::Estimate;
use model::{Finish, JobId};
use scheduler::estimate::loss::{LossPoint, Options, fit_with, remaining_epochs};
use scheduler::snapshot::Remaining;

use crate::job::epochs::epochs_done;
use crate::job::{Job, float};
use crate::step::Control;

const REFIT_MS: u64 = 10_000;
const REFIT_EACH_MS: u64 = 10;
/// After a start of the master every job lacks its fit at once.
const FITS_PER_S: u32 = 150;
/// What a fit of a user's own curve (1 to 30 ms) counts as, and how much rarer it is.
const OWN_CURVE_FITS: u32 = 20;
const OWN_CURVE_SPACING: u64 = 5;

/// Work left, the same range in three units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Left {
    pub(crate) epochs: Estimate,
    /// In the unit of `Progress::work`.
    pub(crate) work: Remaining,
}

impl Control {
    /// Fits Eqn. (1), or the user's own curve, anew where losses came since, but not often: cold, as
    /// here, a fit takes 0.14 to 1 ms, one of a user's curve up to 30 ms, and thousands of jobs must
    /// not hold up heartbeats. The more jobs, the older a fit may be.
    pub(crate) fn refit_loss(&mut self, id: JobId) {
        let now = self.now.mono;
        let jobs = u64::try_from(self.unfinished.len()).unwrap_or(u64::MAX);
        let spacing_ms = REFIT_MS.saturating_add(jobs.saturating_mul(REFIT_EACH_MS));
        let job = self.job_mut(id);
        let points = &job.record.progress.points;
        let own_curve = job.curve.is_some();
        // A try that fails costs little with Eqn. (1), and may cost all with a user's.
        let spacing_ms = match (&job.loss_fit, own_curve) {
            (Some(Ok(_)), true) => spacing_ms.saturating_mul(OWN_CURVE_SPACING),
            (Some(Ok(_)), false) | (Some(Err(_)), true) => spacing_ms,
            (Some(Err(_)), false) | (None, _) => 0,
        };
        if job.loss_fit_points == points.len() || now.since(job.loss_fit_at) < spacing_ms {
            return;
        }
        let (second, fits) = self.fits;
        let fits = if second == now.0 / 1000 { fits } else { 0 };
        if fits >= FITS_PER_S {
            return;
        }
        let cost = if own_curve { OWN_CURVE_FITS } else { 1 };
        self.fits = (now.0 / 1000, fits.saturating_add(cost));
        let job = self.job_mut(id);
        let points = &job.record.progress.points;
        job.loss_fit_at = now;
        job.loss_fit_points = points.len();
        let points: Vec<LossPoint> =
            points.iter().map(|(step, loss)| LossPoint { step: *step, loss: *loss }).collect();
        let options = Options {
            rate_steps: &job.rates.steps(),
            steps_per_epoch: work_per_epoch(job),
            curve: job.curve.as_ref(),
        };
        job.loss_fit = Some(fit_with(&points, &options).map_err(|unknown| unknown.reason));
    }
}

/// Work of one epoch: what the last epochs took, else what the script said of its data.
pub(crate) fn work_per_epoch(job: &Job) -> Option<f64> {
    let marks = &job.progress().epochs;
    let recent = marks.iter().rev().take(5).collect::<Vec<_>>();
    if let (Some(last), Some(first)) = (recent.first(), recent.last())
        && last.epoch > first.epoch
    {
        let work = (last.work - first.work) / f64::from(last.epoch - first.epoch);
        if work.is_finite() && work > 0.0 {
            return Some(work);
        }
    }
    let samples = job.progress().samples_per_epoch.map(float)?;
    let work = match (job.spec().mode, job.spec().batch) {
        (model::Mode::Sync, model::Batch::PerWorker(_)) => samples,
        (_, model::Batch::Global(batch) | model::Batch::PerWorker(batch)) => {
            samples / f64::from(batch.max(1))
        }
    };
    (work > 0.0).then_some(work)
}

/// Work left until the job ends.
///
/// # Errors
/// Why it is not known, in words.
pub(crate) fn left(job: &Job) -> Result<Left, String> {
    let progress = job.progress();
    let per_epoch = work_per_epoch(job)
        .ok_or("no epoch was finished yet and the script did not say how many samples one has")?;
    let epochs = match &job.spec().finish {
        Finish::Epochs(epochs) => {
            let value = f64::from(epochs.saturating_sub(epochs_done(progress)));
            Estimate { value, low: value, high: value }
        }
        Finish::Convergence { threshold, patience }
        | Finish::ConvergenceBy { threshold, patience, .. } => {
            let fit = match &job.loss_fit {
                Some(Ok(fit)) => fit,
                Some(Err(reason)) => return Err(reason.clone()),
                None => return Err("the loss was not fitted yet".to_owned()),
            };
            // Counted from 1 there, so that a first epoch that was lost does not shift them.
            let marks: Vec<(u32, f64, f64)> = progress
                .epochs
                .iter()
                .map(|mark| (mark.epoch.saturating_add(1), mark.work, mark.loss))
                .collect();
            let epochs_max = job.spec().epochs_max;
            let left = remaining_epochs(fit, &marks, per_epoch, *threshold, *patience, epochs_max)
                .map_err(|unknown| unknown.reason)?;
            Estimate { value: left.value, low: left.low, high: left.high }
        }
    };
    let since = progress.epochs.last().map_or(0.0, |mark| mark.work);
    let begun = ((progress.work - since) / per_epoch).clamp(0.0, 1.0);
    // What is running is never quite done: a zero would make its speed worth nothing.
    let rest = |epochs: f64| (epochs - begun).max(0.01);
    let epochs =
        Estimate { value: rest(epochs.value), low: rest(epochs.low), high: rest(epochs.high) };
    let work = |epochs: f64| epochs * per_epoch;
    Ok(Left {
        epochs,
        work: Remaining {
            value: work(epochs.value),
            low: work(epochs.low),
            high: work(epochs.high),
        },
    })
}

impl Left {
    /// The same range in another unit: `factor` is that unit's amount in one unit of work.
    pub(crate) fn scaled(&self, factor: f64) -> Option<Estimate> {
        let Remaining { value, low, high } = self.work;
        let scaled = Estimate { value: value * factor, low: low * factor, high: high * factor };
        [scaled.value, scaled.low, scaled.high].iter().all(|x| x.is_finite()).then_some(scaled)
    }
}
