//! Which simulator a trace goes to, and how a run is set up from the arguments.

use simulator::outcome::Outcome;
use simulator::trace::Trace;

use super::replicas::replicas;
use super::trace::Input;
use crate::args::SimulateArgs;
use crate::failure::Failure;
use crate::text::nearest;

/// Runs of one trace.
pub(super) trait Runner: Sync {
    /// Policies by name.
    fn policies(&self) -> Vec<&'static str>;

    /// One run; `told` hears the share of the jobs that ended.
    ///
    /// # Errors
    /// Why there is none.
    fn run(&self, policy: &str, seed: u64, told: &dyn Fn(f64)) -> Result<Outcome, String>;
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
            Ok(Box::new(Servers { input, args }))
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
}

impl Runner for Servers<'_> {
    fn policies(&self) -> Vec<&'static str> {
        vec!["optimus", "drf", "tetris", "fifo"]
    }

    fn run(&self, policy: &str, seed: u64, _told: &dyn Fn(f64)) -> Result<Outcome, String> {
        let workload = self.input.workload(seed)?;
        Err(format!("{policy} {} {} not there yet", workload.jobs.len(), self.args.seed))
    }
}
