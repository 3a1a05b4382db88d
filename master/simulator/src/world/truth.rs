//! The truth about each job: what no scheduler sees.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{
    Batch, Bounds, Finish, Framework, JobId, JobSpec, Millis, Mode, OnDisconnect, Placement, Shape,
};
use scheduler::place::transfer_time;

use super::chance::uniform;
use super::options::{Estimates, Network, Options};
use crate::outcome::JobOutcome;
use crate::random::stream;
use crate::speed::{Rates, work_per_step};
use crate::workload::{Cluster, Job, Loss, Workload};

/// Epochs of a job without a loss, where the scheduler is to find out itself what is left.
const EPOCHS: u32 = 50;
/// How far past its true end a job that never converges trains, in units of its work.
const PATIENCE: f64 = 4.0;
/// Jobs and nodes that are believed.
const JOBS_MAX: usize = 4_000_000;
const NODES_MAX: usize = 60_000;
/// Later than any run.
const SECONDS_MAX: f64 = 1e12;

/// Whole ms that are not less; an excess of a billionth of a second is rounding.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0 .. 2^52, where every whole f64 is exact"
)]
pub(super) fn ceil_ms(seconds: f64) -> u64 {
    let ms = (seconds * 1000.0 - 1e-6).ceil();
    if ms.is_nan() { 0 } else { ms.clamp(0.0, 4_503_599_627_370_496.0) as u64 }
}

/// A finite count as an integer; saturates.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0 .. 2^40, the most steps that are believed"
)]
pub(super) fn count(value: f64) -> u64 {
    if value.is_nan() { 0 } else { value.clamp(0.0, 1_099_511_627_776.0) as u64 }
}

#[expect(clippy::cast_precision_loss, reason = "counts here are below 2^41")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

/// A job with the truth about it and what became of it.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    pub(super) arrival: Millis,
    pub(super) rates: Arc<Rates>,
    /// Where the script's loop ends.
    pub(super) total: f64,
    /// Work of an epoch, where epochs are reported.
    pub(super) epoch: Option<f64>,
    pub(super) loss: Option<Loss>,
    /// +1 or −1: the errors of section 6.3.
    pub(super) signs: (f64, f64),
    /// The same for each coefficient of the speed.
    pub(super) coefficient_signs: Vec<f64>,
    pub(super) save_ms: u64,
    pub(super) stop_ms: u64,
    pub(super) start_ms: u64,
    pub(super) id: Option<JobId>,
    /// Parts that lie in folders, and the newest that has a manifest.
    pub(super) saved: BTreeMap<String, Saved>,
    pub(super) resume: Option<Saved>,
    pub(super) ended: bool,
    /// When its training was over.
    pub(super) done_at: Option<Millis>,
    pub(super) held_since: Option<Millis>,
    pub(super) held_ms: u64,
    pub(super) outcome: JobOutcome,
}

/// What a checkpoint holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Saved {
    pub(super) work: f64,
    pub(super) step: u64,
    pub(super) published: bool,
    pub(super) damaged: bool,
    /// All of it reached the disk.
    pub(super) whole: bool,
    /// The master has it on record.
    pub(super) known: bool,
}

impl Truth {
    /// Work per second at a placement, without slow nodes.
    pub(super) fn rate(&self, placement: &Placement, network: Option<Network>) -> f64 {
        let shape = placement.shape();
        let rate = self.rates.work_per_s(shape);
        let Some(Network { within_over_across: ratio }) = network else { return rate };
        let widest = f64::from(shape.servers.max(shape.workers)) / f64::from(shape.servers.max(1));
        let apart = (transfer_time(placement) / widest).clamp(0.0, 1.0);
        let share = self.rates.network_share(shape);
        rate / (1.0 - share + share * (1.0 + (ratio - 1.0) * apart) / ratio)
    }

    /// Work that is done for good: what a start now would resume from.
    pub(super) fn kept(&self) -> f64 {
        self.resume.map_or(0.0, |saved| saved.work)
    }
}

fn no(job: &Job, field: &str, problem: impl std::fmt::Display) -> String {
    format!("job {}: {field}: {problem}", job.id)
}

/// Every job with its truth, once all of it makes sense.
///
/// # Errors
/// The job and the field that make none, in words.
pub(super) fn truths(
    cluster: &Cluster,
    workload: &Workload,
    options: &Options,
) -> Result<Vec<Truth>, String> {
    check_cluster(cluster)?;
    if workload.jobs.len() > JOBS_MAX {
        return Err(format!("the workload has over {JOBS_MAX} jobs"));
    }
    let mut known: BTreeMap<&str, (&Job, Arc<Rates>)> = BTreeMap::new();
    let mut fitting: BTreeMap<String, ()> = BTreeMap::new();
    let mut names = std::collections::BTreeSet::new();
    let mut truths = Vec::with_capacity(workload.jobs.len());
    for job in &workload.jobs {
        if !names.insert(job.id.as_str()) {
            return Err(no(job, "id", "is there twice"));
        }
        check(job)?;
        let same = known.get(job.model.as_str()).filter(|(other, _)| {
            other.speed == job.speed && other.mode == job.mode && other.batch == job.batch
        });
        let rates = match same {
            Some((_, rates)) => Arc::clone(rates),
            None => {
                let rates = Rates::new(&job.speed, job.mode, job.batch);
                Arc::new(rates.map_err(|problem| no(job, "speed", problem))?)
            }
        };
        known.insert(job.model.as_str(), (job, Arc::clone(&rates)));
        let least = job.min;
        if rates.work_per_s(least) <= 0.0 {
            return Err(no(job, "speed", format!("is 0 at its least shape {least}")));
        }
        check_room(cluster, job, &mut fitting)?;
        truths.push(truth(job, rates, options));
    }
    for (job, truth) in workload.jobs.iter().zip(&truths) {
        let faults = spec(job, truth, options).faults();
        if let Some(fault) = faults.first() {
            return Err(no(job, &fault.field, format!("{}; {}", fault.problem, fault.remedy)));
        }
    }
    Ok(truths)
}

fn check_cluster(cluster: &Cluster) -> Result<(), String> {
    if cluster.nodes.is_empty() || cluster.nodes.len() > NODES_MAX {
        return Err(format!(
            "the cluster has {} nodes; give 1 to {NODES_MAX}",
            cluster.nodes.len()
        ));
    }
    match cluster.nodes.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        Some(pair) => Err(format!("node {}: id: is not in order after {}", pair[1].0, pair[0].0)),
        None => Ok(()),
    }
}

fn check(job: &Job) -> Result<(), String> {
    let within = |field: &str, value: f64, least: f64, most: f64| {
        if value.is_finite() && (least..=most).contains(&value) {
            Ok(())
        } else {
            Err(no(job, field, format!("is {value}; give {least} to {most}")))
        }
    };
    within("arrival_s", job.arrival_s, 0.0, SECONDS_MAX)?;
    within("work", job.work, f64::MIN_POSITIVE, 1e12)?;
    within("rescale_cost_s", job.rescale_cost_s, 0.0, 1e7)?;
    if job.min.servers == 0 || job.min.workers == 0 {
        return Err(no(job, "min", format!("{} lacks a server or a worker", job.min)));
    }
    if job.min.servers > job.max.servers || job.min.workers > job.max.workers {
        return Err(no(job, "min", format!("{} is not within {}", job.min, job.max)));
    }
    if let Some(loss) = &job.loss {
        within("loss.noise", loss.noise, 0.0, 1e3)?;
        within("loss.steps_per_epoch", loss.steps_per_epoch, 1.0, 1e9)?;
        let usable = loss.beta.iter().all(|beta| beta.is_finite() && *beta >= 0.0)
            && loss.beta[0] > 0.0
            && loss.beta[1] > 0.0;
        if !usable {
            return Err(no(job, "loss.beta", format!("{:?} is not falling", loss.beta)));
        }
    }
    Ok(())
}

/// A job whose least shape does not fit on the empty cluster would wait for ever.
fn check_room(
    cluster: &Cluster,
    job: &Job,
    fitting: &mut BTreeMap<String, ()>,
) -> Result<(), String> {
    let asked = format!("{} {:?} {:?}", job.min, job.worker, job.server);
    if fitting.contains_key(&asked) {
        return Ok(());
    }
    let placed = scheduler::place::place(job.min, &job.server, &job.worker, &cluster.nodes);
    if placed.is_none() {
        return Err(no(job, "min", format!("{} does not fit on the empty cluster", job.min)));
    }
    fitting.insert(asked, ());
    Ok(())
}

fn truth(job: &Job, rates: Arc<Rates>, options: &Options) -> Truth {
    let fitted = options.estimates == Estimates::Fitted;
    let epoch = fitted.then(|| match &job.loss {
        Some(loss) => match (job.mode, job.batch) {
            (Mode::Sync, Batch::PerWorker(batch)) => loss.steps_per_epoch * f64::from(batch),
            (Mode::Sync, Batch::Global(_)) | (Mode::Async, _) => loss.steps_per_epoch,
        },
        None => job.work / f64::from(EPOCHS),
    });
    let total = match (epoch, &job.loss) {
        (Some(epoch), Some(_)) => f64::from(epochs_max(job, epoch)) * epoch,
        (Some(_) | None, _) => job.work,
    };
    let coefficients = rates.model().theta.len();
    let mut stream = stream(options.seed, &format!("errors {}", job.id));
    let mut sign = || if uniform(&mut stream) < 0.5 { -1.0 } else { 1.0 };
    let cost = |share: f64| ceil_ms(job.rescale_cost_s * share);
    let (save_ms, stop_ms) = (cost(options.costs.save_share), cost(options.costs.stop_share));
    Truth {
        arrival: Millis(ceil_ms(job.arrival_s)),
        rates,
        total,
        epoch,
        loss: job.loss,
        signs: (sign(), sign()),
        coefficient_signs: (0..coefficients).map(|_| sign()).collect(),
        save_ms,
        stop_ms,
        start_ms: cost(1.0).saturating_sub(save_ms).saturating_sub(stop_ms),
        id: None,
        saved: BTreeMap::new(),
        resume: None,
        ended: false,
        done_at: None,
        held_since: None,
        held_ms: 0,
        outcome: JobOutcome {
            id: job.id.clone(),
            model: job.model.clone(),
            arrival_s: job.arrival_s,
            ..JobOutcome::default()
        },
    }
}

fn epochs_max(job: &Job, epoch: f64) -> u32 {
    let epochs = (job.work * PATIENCE / epoch).ceil().clamp(10.0, 1_000_000.0);
    u32::try_from(count(epochs)).unwrap_or(1_000_000)
}

/// The job as its owner submits it.
pub(super) fn spec(job: &Job, truth: &Truth, options: &Options) -> JobSpec {
    let (finish, epochs) = match (truth.epoch, &job.loss) {
        (Some(epoch), Some(loss)) => {
            let finish = Finish::Convergence { threshold: loss.threshold, patience: loss.patience };
            (finish, epochs_max(job, epoch))
        }
        (Some(_), None) => (Finish::Epochs(EPOCHS), EPOCHS),
        (None, _) => (Finish::Epochs(1), 1),
    };
    let fitted = truth.epoch.is_some();
    JobSpec {
        name: job.id.clone(),
        command: vec!["train".to_owned()],
        working_directory: "/".to_owned(),
        framework: Framework::Mxnet,
        mode: job.mode,
        batch: job.batch,
        worker: job.worker.clone(),
        server: job.server.clone(),
        workers: Bounds { min: job.min.workers, max: job.max.workers },
        servers: Bounds { min: job.min.servers, max: job.max.servers },
        finish,
        epochs_max: epochs,
        checkpoint: "file:///c".to_owned(),
        checkpoint_interval_s: options.checkpoint_interval_s,
        environment: BTreeMap::new(),
        priority: job.priority,
        on_disconnect: OnDisconnect::Replace,
        restarts_max: 1_000,
        model_key: (fitted && options.shared_speeds).then(|| job.model.clone()),
    }
}

/// Samples in one epoch as the script tells them, where it does.
pub(super) fn samples_per_epoch(job: &Job, truth: &Truth) -> Option<u64> {
    let epoch = truth.epoch?;
    let samples = match (job.mode, job.batch) {
        (Mode::Sync, Batch::PerWorker(_)) => epoch,
        (_, Batch::Global(batch) | Batch::PerWorker(batch)) => epoch * f64::from(batch),
    };
    Some(count(samples.round()).max(1))
}

/// Work of one step of a job at a shape.
pub(super) fn step_work(job: &Job, shape: Shape) -> f64 {
    work_per_step(job.mode, job.batch, shape.workers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ms_are_never_less_and_rounding_costs_none() {
        assert_eq!(ceil_ms(20.0), 20_000);
        assert_eq!(ceil_ms(0.1 + 0.2), 300);
        assert_eq!(ceil_ms(0.000_1), 1);
        assert_eq!(ceil_ms(f64::NAN), 0);
        assert_eq!(ceil_ms(-5.0), 0);
        assert_eq!(ceil_ms(f64::INFINITY), 1 << 52);
    }
}
