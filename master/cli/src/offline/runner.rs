//! Which simulator a trace goes to, and how a run is set up from the arguments.

use std::time::Duration;

use scheduler::snapshot::Policy;
use simulator::outcome::Outcome;
use simulator::trace::Trace;
use simulator::world::{self, Estimates, Failures, Fidelity, Options, Progress, World};

use super::replicas::replicas;
use super::trace::Input;
use crate::args::{EstimatesArg, Limit, SimulateArgs};
use crate::failure::{Exit, Failure};
use crate::text::nearest;

/// Why a run came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoRun {
    /// What was asked makes no sense.
    Invalid(String),
    /// The run broke the simulator's or the scheduler's own rules.
    Internal(String),
}

impl NoRun {
    /// As a failure of the run of this name.
    pub(super) fn failure(self, run: &str) -> Failure {
        match self {
            Self::Invalid(error) => Failure::invalid(format!("{run}: {error}"), ""),
            Self::Internal(error) => Failure::new(
                Exit::Internal,
                format!("{run}: {error}"),
                "this is a fault of the program: report it with the files and arguments",
            ),
        }
    }
}

/// Runs of one trace.
pub(super) trait Runner: Sync {
    /// Policies by name.
    fn policies(&self) -> Vec<&'static str>;

    /// One run; `told` hears the share of the jobs that ended.
    ///
    /// # Errors
    /// Why there is none.
    fn run(&self, policy: &str, seed: u64, told: &dyn Fn(f64)) -> Result<Outcome, NoRun>;
}

/// The simulator that a trace goes to.
///
/// # Errors
/// Arguments that it does not take, or data that it lacks.
pub(super) fn runner<'a>(
    input: &'a Input,
    args: &'a SimulateArgs,
) -> Result<Box<dyn Runner + 'a>, Failure> {
    match &input.trace {
        Trace::Pollux(rows) => {
            refuse(
                "a workload of the Pollux paper",
                &[
                    ("--spacing", args.spacing.is_some()),
                    ("--estimates", args.estimates.is_some()),
                    ("--error-work", args.error_work.is_some()),
                    ("--error-speed", args.error_speed.is_some()),
                    ("--failures", args.failures.is_some()),
                    ("--limit", args.limit.is_some()),
                ],
            )?;
            Ok(Box::new(replicas(rows, input, args)?))
        }
        Trace::Ours(_) | Trace::Philly(_) => {
            refuse(
                "this kind of trace",
                &[
                    ("--profiles", args.profiles.is_some()),
                    ("--interference", args.interference.is_some()),
                ],
            )?;
            Ok(Box::new(Servers { input, args, options: options(args)? }))
        }
    }
}

/// Refuses an option that would be without effect.
fn refuse(of: &str, given: &[(&str, bool)]) -> Result<(), Failure> {
    given.iter().find(|(_, given)| *given).map_or(Ok(()), |(name, _)| {
        Err(Failure::invalid(format!("{name} has no meaning for {of}"), "leave it out"))
    })
}

/// Checks the names of policies.
///
/// # Errors
/// The first that there is not.
pub(super) fn check_policies(runner: &dyn Runner, names: &[String]) -> Result<(), Failure> {
    let known = runner.policies();
    let Some(wrong) = names.iter().find(|name| !known.contains(&name.as_str())) else {
        return Ok(());
    };
    let meant = nearest(wrong, known.iter().copied())
        .map(|near| format!("did you mean {near}? "))
        .unwrap_or_default();
    let hint = format!("{meant}this trace can be run with {}", known.join(", "));
    Err(Failure::invalid(format!("there is no policy {wrong:?} for this trace"), hint))
}

/// Jobs of servers and workers, decided on by the daemon's own code.
#[derive(Debug)]
struct Servers<'a> {
    input: &'a Input,
    args: &'a SimulateArgs,
    /// Without the policy and the seed.
    options: Options,
}

/// Policies for jobs of servers and workers; Pollux shares out replicas alone.
const POLICIES: [&str; 6] = ["horizon", "optimus", "drf", "tetris", "fifo", "tiresias"];

impl Runner for Servers<'_> {
    fn policies(&self) -> Vec<&'static str> {
        POLICIES.to_vec()
    }

    fn run(&self, policy: &str, seed: u64, told: &dyn Fn(f64)) -> Result<Outcome, NoRun> {
        let workload = self.input.workload(seed).map_err(NoRun::Invalid)?;
        let last = workload.jobs.last().map_or(0.0, |job| job.arrival_s);
        let known =
            Policy::by_name(policy).ok_or_else(|| NoRun::Invalid("is not known".to_owned()))?;
        let options = Options {
            seed,
            policy_name: policy.to_owned(),
            policy: known,
            limit_s: self.args.limit.unwrap_or(last + LIMIT_S),
            ..self.options.clone()
        };
        let mut progress = |progress: Progress| {
            told(progress.jobs_done as f64 / progress.jobs.max(1) as f64);
        };
        let cluster = &self.input.cluster;
        // What makes no sense is found before anything runs; later errors are faults of ours.
        World::new(cluster, &workload, &options).map_err(NoRun::Invalid)?;
        world::run(cluster, &workload, &options, &mut progress).map_err(NoRun::Internal)
    }
}

/// Simulated time after the last arrival at which a run is given up, in s.
const LIMIT_S: f64 = 1000.0 * 86_400.0;

/// How often jobs save where something may go wrong: as a job file has it by default.
const CHECKPOINT_INTERVAL_S: u32 = 600;

fn options(args: &SimulateArgs) -> Result<Options, Failure> {
    let usual = Options::default();
    let mut rounds = usual.rounds;
    if let Some(interval_s) = args.interval {
        rounds.interval_s = interval_s;
    }
    if let Some(Limit(spacing_ms)) = args.spacing {
        rounds.spacing_s = spacing_ms.map(|ms| Duration::from_millis(ms).as_secs_f64());
    }
    let estimates = match args.estimates {
        None | Some(EstimatesArg::Oracle) => Estimates::Oracle,
        Some(EstimatesArg::Fitted) => Estimates::Fitted,
        Some(EstimatesArg::Errors) => Estimates::Errors {
            work: args.error_work.unwrap_or(0.2),
            speed: args.error_speed.unwrap_or(0.1),
        },
    };
    if !matches!(estimates, Estimates::Errors { .. }) {
        refuse(
            "exact or fitted estimates",
            &[
                ("--error-work", args.error_work.is_some()),
                ("--error-speed", args.error_speed.is_some()),
            ],
        )?;
    }
    let none = Failures::default();
    let failures = args.failures.map_or(none, |given| Failures {
        node_mtbf_s: given.mtbf_s,
        node_mttr_s: given.mttr_s,
        slow_mtbf_s: given.slow_mtbf_s,
        slow_mttr_s: given.slow_mttr_s,
        slow_factor: given.slow_factor,
        save_failures: given.checkpoints,
    });
    // Where nothing goes wrong, playing every heartbeat would only take time.
    let (fidelity, checkpoint_interval_s) = match &args.failures {
        Some(_) => (Fidelity::exact(), CHECKPOINT_INTERVAL_S),
        None => (usual.fidelity, usual.checkpoint_interval_s),
    };
    Ok(Options { rounds, estimates, failures, fidelity, checkpoint_interval_s, ..usual })
}
