//! What a simulated run comes to.

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub policy: String,
    pub seed: u64,
    /// In the order of the workload.
    pub jobs: Vec<JobOutcome>,
    /// Over time, for plots: one where something changed.
    pub samples: Vec<Sample>,
    /// Share of the makespan that jobs spent on rescales: mean over jobs of their rescale time
    /// over the time that they held tasks.
    pub rescale_share: f64,
    /// Rounds that were planned.
    pub rounds: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobOutcome {
    pub id: String,
    pub model: String,
    pub arrival_s: f64,
    /// First time that it held anything.
    pub started_s: Option<f64>,
    /// None where it never ended.
    pub completion_s: Option<f64>,
    /// Rescales and restarts, without the first start.
    pub restarts: u32,
    /// Training time lost by them, in s.
    pub rescale_s: f64,
    /// What it held, from when on; zeros where it held nothing.
    pub timeline: Vec<Span>,
}

/// From `at_s` on a job holds these.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    pub at_s: f64,
    pub servers: u32,
    pub workers: u32,
    /// Nodes that it stands on.
    pub nodes: u32,
}

/// The cluster from `at_s` on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    pub at_s: f64,
    /// Servers and workers.
    pub tasks: u32,
    pub jobs_running: u32,
    pub jobs_waiting: u32,
    /// Largest used share of any kind of resource.
    pub used: f64,
}

impl Outcome {
    /// Completion minus arrival of each job that ended, in s, in the order of the jobs.
    #[must_use]
    pub fn completion_times(&self) -> Vec<f64> {
        self.jobs.iter().filter_map(|job| Some(job.completion_s? - job.arrival_s)).collect()
    }

    /// From the first arrival to the last completion, in s; none while a job has not ended.
    #[must_use]
    pub fn makespan_s(&self) -> Option<f64> {
        let first = self.jobs.iter().map(|job| job.arrival_s).reduce(f64::min)?;
        let ends: Option<Vec<f64>> = self.jobs.iter().map(|job| job.completion_s).collect();
        Some(ends?.into_iter().reduce(f64::max)? - first)
    }
}

/// Mean, or none of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    let count = u32::try_from(values.len()).ok().filter(|count| *count > 0)?;
    Some(values.iter().sum::<f64>() / f64::from(count))
}

/// The `share` (0 to 1) percentile by linear interpolation between ranks.
#[must_use]
pub fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = u32::try_from(sorted.len().checked_sub(1)?).ok()?;
    let rank = share.clamp(0.0, 1.0) * f64::from(last);
    let below = libm::floor(rank);
    let at = sorted.iter().zip(0_u32..).find(|(_, at)| f64::from(*at) >= below)?.0;
    let next = sorted.iter().zip(0_u32..).find(|(_, at)| f64::from(*at) >= below + 1.0);
    let next = next.map_or(at, |(value, _)| value);
    Some(at + (next - at) * (rank - below))
}
