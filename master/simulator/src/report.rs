//! The JSON of a simulation, `optimus.simulation/1`: plain values that always come out in the same
//! order, so that the same run gives the same bytes. Times in s.

use serde::Serialize;

use crate::outcome::{JobOutcome, Outcome, Span, mean, percentile};

/// Its schema.
pub const SCHEMA: &str = "optimus.simulation/1";

/// Which jobs' timelines a report holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Timelines {
    #[default]
    None,
    All,
    Of(String),
}

impl Timelines {
    fn holds(&self, id: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Of(wanted) => wanted == id,
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Only where the run stands alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<&'static str>,
    pub policy: String,
    pub seed: u64,
    pub jobs: Vec<JobRow>,
    #[serde(flatten)]
    pub summary: Summary,
}

/// One job of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobRow {
    pub id: String,
    pub arrival_s: f64,
    /// Null where it never ended.
    pub completion_s: Option<f64>,
    pub restarts: u32,
    pub model: String,
    /// Null where it never held anything.
    pub started_s: Option<f64>,
    pub jct_s: Option<f64>,
    /// Training time lost by rescales.
    pub rescale_s: f64,
    /// Where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Vec<SpanRow>>,
}

/// What a job holds from an instant on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpanRow {
    pub at_s: f64,
    pub servers: u32,
    pub workers: u32,
    pub nodes: u32,
}

/// What a run comes to; a mean over runs has the same numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Over the jobs that ended; null where none did.
    pub mean_jct_s: Option<f64>,
    pub p50_jct_s: Option<f64>,
    pub p99_jct_s: Option<f64>,
    /// Null while a job has not ended.
    pub makespan_s: Option<f64>,
    pub rescale_share: f64,
    /// Rescales and restarts of all jobs.
    pub restarts: f64,
    /// Jobs that never ended.
    pub unfinished: f64,
    /// Rounds that were planned.
    pub rounds: f64,
}

/// Several runs of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Runs {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<&'static str>,
    pub policy: String,
    /// By seed.
    pub runs: Vec<Run>,
    /// Of each number over the runs.
    pub mean: Summary,
}

/// The same workload under several policies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Policies<T> {
    pub schema: &'static str,
    /// In the order that they were asked for.
    pub policies: Vec<T>,
}

/// What JSON can hold.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

/// Without the noise in the last digits that a difference has.
fn microseconds(seconds: f64) -> f64 {
    let rounded = libm::round(seconds * 1e6) / 1e6;
    if rounded.is_finite() { rounded } else { seconds }
}

fn float(count: u64) -> f64 {
    // A count past 2^53 cannot come up: a round takes longer than a nanosecond.
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

impl Summary {
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        let times = outcome.completion_times();
        let count = |count: usize| float(u64::try_from(count).unwrap_or(u64::MAX));
        let restarts: u64 = outcome.jobs.iter().map(|job| u64::from(job.restarts)).sum();
        Self {
            mean_jct_s: finite(mean(&times)),
            p50_jct_s: finite(percentile(&times, 0.5)),
            p99_jct_s: finite(percentile(&times, 0.99)),
            makespan_s: finite(outcome.makespan_s()),
            rescale_share: finite(Some(outcome.rescale_share)).unwrap_or(0.0),
            restarts: float(restarts),
            unfinished: count(outcome.jobs.len() - times.len()),
            rounds: float(outcome.rounds),
        }
    }

    /// The mean of each number over runs; one that a run lacks is left out of it where another
    /// has it, but a makespan only counts where every run has one.
    #[must_use]
    pub fn mean(runs: &[Self]) -> Self {
        let over = |of: fn(&Self) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(of).collect();
            mean(&values)
        };
        let ended = runs.iter().all(|run| run.makespan_s.is_some());
        Self {
            mean_jct_s: over(|run| run.mean_jct_s),
            p50_jct_s: over(|run| run.p50_jct_s),
            p99_jct_s: over(|run| run.p99_jct_s),
            makespan_s: over(|run| run.makespan_s).filter(|_| ended),
            rescale_share: over(|run| Some(run.rescale_share)).unwrap_or(0.0),
            restarts: over(|run| Some(run.restarts)).unwrap_or(0.0),
            unfinished: over(|run| Some(run.unfinished)).unwrap_or(0.0),
            rounds: over(|run| Some(run.rounds)).unwrap_or(0.0),
        }
    }
}

fn job(job: &JobOutcome, timelines: &Timelines) -> JobRow {
    let span = |span: &Span| SpanRow {
        at_s: span.at_s,
        servers: span.servers,
        workers: span.workers,
        nodes: span.nodes,
    };
    let timeline = timelines.holds(&job.id);
    JobRow {
        id: job.id.clone(),
        arrival_s: job.arrival_s,
        completion_s: finite(job.completion_s),
        restarts: job.restarts,
        model: job.model.clone(),
        started_s: finite(job.started_s),
        jct_s: finite(job.completion_s.map(|end| end - job.arrival_s)).map(microseconds),
        rescale_s: job.rescale_s,
        timeline: timeline.then(|| job.timeline.iter().map(span).collect()),
    }
}

impl Run {
    /// Without a schema, as a part of something larger.
    #[must_use]
    pub fn of(outcome: &Outcome, timelines: &Timelines) -> Self {
        Self {
            schema: None,
            policy: outcome.policy.clone(),
            seed: outcome.seed,
            jobs: outcome.jobs.iter().map(|outcome| job(outcome, timelines)).collect(),
            summary: Summary::of(outcome),
        }
    }
}

impl Runs {
    /// Without a schema, as a part of something larger.
    #[must_use]
    pub fn of(policy: &str, runs: Vec<Run>) -> Self {
        let summaries: Vec<Summary> = runs.iter().map(|run| run.summary).collect();
        let mean = Summary::mean(&summaries);
        Self { schema: None, policy: policy.to_owned(), runs, mean }
    }
}
