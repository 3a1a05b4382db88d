//! Arguments of simulations and experiments.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use model::units::DurationMs;

use super::{Limit, limit};

/// Longest duration taken, some 30 years: every instant stays exact in ms.
const DURATION_MS_MAX: u64 = 1_000_000_000_000;

#[derive(Clone, Debug, Args)]
pub(crate) struct SimulateArgs {
    /// The nodes, as JSON; - for stdin
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "faults",
        default_value = "-",
        hide_default_value = true
    )]
    pub cluster: PathBuf,
    /// The jobs, as CSV: ours, a workload of the Pollux paper, or a Philly trace
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "faults",
        default_value = "-",
        hide_default_value = true
    )]
    pub trace: PathBuf,
    /// Search for faults instead: so many small clusters in which everything goes wrong, drawn
    /// from the seed and the next ones; without --seed from a fresh one
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
        conflicts_with_all = ["cluster", "trace", "runs", "timeline", "list_jobs", "svg"]
    )]
    pub faults: Option<u32>,
    /// How to decide; several are run on the same jobs and compared with the first
    #[arg(long = "policy", value_name = "NAME", default_value = "horizon", value_delimiter = ',')]
    pub policies: Vec<String>,
    /// Chance of the run, or of the first of several [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// So many runs of each policy, with this seed and the next ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: Option<u32>,
    /// Runs at a time [default: one for each core]
    #[arg(long = "jobs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Time between rounds [default: 10m; 60s for a workload of the Pollux paper]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub interval: Option<f64>,
    /// A round at each arrival and completion too, so long after the last one at the earliest;
    /// none where all wait for the interval [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = limit)]
    pub spacing: Option<Limit>,
    /// How work left and speeds are known: the truth, the truth with errors that decay with the
    /// progress (section 6.3), or fitted as the daemon does
    /// [default: oracle]
    #[arg(long, value_enum)]
    pub estimates: Option<EstimatesArg>,
    /// Relative error of the work left; only with --estimates errors [default: 0.2]
    #[arg(long, value_name = "SHARE", value_parser = error)]
    pub error_work: Option<f64>,
    /// Relative error of the speed; only with --estimates errors [default: 0.1]
    #[arg(long, value_name = "SHARE", value_parser = error)]
    pub error_speed: Option<f64>,
    /// Folder of the Pollux paper's data, with profiles/ in it [default: near the trace]
    #[arg(long, value_name = "DIR")]
    pub profiles: Option<PathBuf>,
    /// What a job loses that shares a node with another job across nodes; only for a workload of
    /// the Pollux paper [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = error)]
    pub interference: Option<f64>,
    /// What goes wrong by chance, of each node: mtbf, mttr (losses), slow-mtbf, slow-mttr,
    /// slow-factor (slow spells), and checkpoints (share that fails); jobs save every 10 minutes
    #[arg(long, value_name = "NAME=VALUE,…", value_parser = failures)]
    pub failures: Option<FailuresArg>,
    /// Give up at this simulated time [default: 1000d after the last arrival]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub limit: Option<f64>,
    /// List the jobs of each run in place of the policies
    #[arg(long, conflicts_with = "timeline")]
    pub list_jobs: bool,
    /// Show what a job held over time, or all jobs
    #[arg(long, value_name = "JOB|all")]
    pub timeline: Option<String>,
    /// Draw running tasks, utilisation and waiting jobs over time of each policy's first run
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl SimulateArgs {
    /// The seed, or the first of several.
    pub(crate) fn first_seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ExperimentArgs {
    /// Which one, or list
    #[arg(value_name = "NAME")]
    pub name: String,
    /// So many runs [default: as many as the paper has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: Option<u32>,
    /// Chance of the first run; the others have the next ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Runs at a time [default: one for each core]
    #[arg(long = "jobs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Folder of the papers' data, for experiments that need more than is built in
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Draw the figure
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EstimatesArg {
    Oracle,
    Errors,
    Fitted,
}

/// What goes wrong by chance; times in s, 0 for never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FailuresArg {
    pub mtbf_s: f64,
    pub mttr_s: f64,
    pub slow_mtbf_s: f64,
    pub slow_mttr_s: f64,
    pub slow_factor: f64,
    pub checkpoints: f64,
}

/// Seconds of a duration with a unit.
fn duration(text: &str) -> Result<f64, String> {
    let parsed: Result<DurationMs, _> = text.parse();
    let DurationMs(ms) = parsed.map_err(|error| error.to_string())?;
    if ms > DURATION_MS_MAX {
        return Err("give at most 11000d".to_owned());
    }
    Ok(std::time::Duration::from_millis(ms).as_secs_f64())
}

fn positive_duration(text: &str) -> Result<f64, String> {
    let seconds = duration(text)?;
    if seconds > 0.0 { Ok(seconds) } else { Err("give more than 0s".to_owned()) }
}

/// A relative error or a share that something loses.
fn error(text: &str) -> Result<f64, String> {
    let error: Option<f64> = text.parse().ok();
    error
        .filter(|error| (0.0..=0.99).contains(error))
        .ok_or_else(|| "give a share of 0 to 0.99, such as 0.2".to_owned())
}

fn failures(text: &str) -> Result<FailuresArg, String> {
    const KNOWN: &str = "mtbf, mttr, slow-mtbf, slow-mttr, slow-factor or checkpoints";
    let mut failures = FailuresArg {
        mtbf_s: 0.0,
        mttr_s: 600.0,
        slow_mtbf_s: 0.0,
        slow_mttr_s: 600.0,
        slow_factor: 0.5,
        checkpoints: 0.0,
    };
    for part in text.split(',') {
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| format!("write NAME=VALUE, such as mtbf=12h: {KNOWN}"))?;
        let told = |error: String| format!("{name}: {error}");
        match name {
            "mtbf" => failures.mtbf_s = positive_duration(value).map_err(told)?,
            "mttr" => failures.mttr_s = positive_duration(value).map_err(told)?,
            "slow-mtbf" => failures.slow_mtbf_s = positive_duration(value).map_err(told)?,
            "slow-mttr" => failures.slow_mttr_s = positive_duration(value).map_err(told)?,
            "slow-factor" => {
                let factor = error(value).ok().filter(|factor| *factor >= 0.001);
                failures.slow_factor =
                    factor.ok_or_else(|| told("give a factor of 0.001 to 0.99".to_owned()))?;
            }
            "checkpoints" => failures.checkpoints = error(value).map_err(told)?,
            _ => return Err(format!("there is no {name:?}: give {KNOWN}")),
        }
    }
    Ok(failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_named_with_units() {
        let read = failures("mtbf=12h,mttr=5m,checkpoints=0.1").unwrap();
        assert!((read.mtbf_s - 43_200.0).abs() < 1e-9 && (read.mttr_s - 300.0).abs() < 1e-9);
        assert!((read.checkpoints - 0.1).abs() < 1e-9 && read.slow_mtbf_s.abs() < 1e-9);
        for (text, part) in [
            ("mtbf=12", "12s"),
            ("mtbf=0s", "more than 0s"),
            ("mtbf", "NAME=VALUE"),
            ("mtfb=1h", "there is no \"mtfb\""),
            ("checkpoints=2", "0 to 0.99"),
            ("slow-factor=0", "0.001"),
            ("mtbf=99999999999d", ""),
        ] {
            assert!(failures(text).expect_err(text).contains(part), "{text}");
        }
    }
}
