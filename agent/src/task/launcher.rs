//! The agent's own binary as the first thing that runs in a task: it enters the task's control
//! group, becomes its user, and is replaced by the task's program. Nothing of it stays.
//!
//! A child of the agent could not do this by itself: between fork and exec only unsafe code runs.
//! Its standard output is a pipe to the agent until the last moment, on which it says what went
//! wrong; the task's output comes in as its standard error.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use nix::unistd::{Gid, Uid, dup2_stdout, getgrouplist, getppid, setgid, setgroups, setuid};
use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::config::{self, TaskUser};

/// Carries [`Orders`]; gone from the task's environment.
pub(crate) const VARIABLE: &str = "OPTIMUS_LAUNCH";

/// Said once the program is to be executed. A launcher that ends without it was killed.
const READY: &str = "ready";

/// Where and as whom a process is to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat<'a> {
    pub(crate) group: Option<&'a Group>,
    pub(crate) user: &'a TaskUser,
    pub(crate) directory: &'a str,
}

#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    group: Option<PathBuf>,
    user: Option<(u32, u32, Vec<u32>)>,
    directory: String,
    parent: i32,
}

/// What went wrong with which step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    /// The launcher itself was not started, or ended before it was through.
    Launch,
    Group,
    User,
    Directory,
    Program,
}

impl Failure {
    fn of(step: Step, error: &io::Error) -> Self {
        Self { step, errno: error.raw_os_error() }
    }
}

/// A command that becomes `words` with exactly `environment` and leads a process group of its
/// own. Its standard output is for [`heard`], what is given as its standard error for both
/// outputs of the program.
pub(crate) fn command(
    seat: Seat<'_>,
    words: &[String],
    environment: &BTreeMap<String, String>,
) -> Command {
    let orders = Orders {
        group: seat.group.map(|group| group.path().to_owned()),
        user: seat.user.switch.then(|| {
            let user = seat.user;
            (user.uid.as_raw(), user.gid.as_raw(), groups_of(user))
        }),
        directory: seat.directory.to_owned(),
        parent: i32::try_from(std::process::id()).unwrap_or(0),
    };
    let orders = serde_json::to_string(&orders).expect("plain fields have a JSON form");
    // This very binary, also where another one has been installed in its place meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command
        .args(SELF)
        .arg("--")
        .args(words)
        .env_clear()
        .envs(environment)
        .env(VARIABLE, orders)
        .current_dir("/")
        .process_group(0);
    command
}

#[cfg(not(test))]
const SELF: &[&str] = &["run-task"];
/// The binary of the tests has no `main` of ours: one of its tests stands in.
#[cfg(test)]
const SELF: &[&str] = &["task::launcher::tests::becomes_a_task", "--exact", "--nocapture"];

/// The groups that a user is in beside the first one; never root's.
fn groups_of(user: &TaskUser) -> Vec<u32> {
    let found = CString::new(user.name.as_str())
        .ok()
        .and_then(|name| getgrouplist(&name, user.gid).ok())
        .unwrap_or_default();
    let others = found.into_iter().filter(|gid| *gid != user.gid && gid.as_raw() != 0);
    others.map(Gid::as_raw).collect()
}

/// Reads what a launcher says until it is replaced or ends.
///
/// # Errors
/// Where it has not become the program.
pub(crate) fn heard(words: impl BufRead) -> Result<(), Failure> {
    let mut ready = false;
    for line in words.lines() {
        let line = line.map_err(|error| Failure::of(Step::Launch, &error))?;
        if let Some(failure) = line.strip_prefix('!') {
            let none = Failure { step: Step::Launch, errno: None };
            return Err(serde_json::from_str(failure).unwrap_or(none));
        }
        ready |= line == READY;
    }
    if ready { Ok(()) } else { Err(Failure { step: Step::Launch, errno: None }) }
}

/// `run-task`: becomes the program, or says why not. Returns only then.
pub(crate) fn run(words: &[OsString]) -> ExitCode {
    // Closed by the kernel once the program runs: the agent sees the end of it.
    let Ok(tell) = io::stdout().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let mut tell = File::from(tell);
    let failure = become_program(words, &mut tell);
    let text = serde_json::to_string(&failure).unwrap_or_default();
    // Where the agent has ended nobody is left to be told.
    let _ = writeln!(tell, "\n!{text}");
    ExitCode::FAILURE
}

fn become_program(words: &[OsString], tell: &mut File) -> Failure {
    let nothing = Failure { step: Step::Launch, errno: None };
    let orders = config::launch_orders().and_then(|text| serde_json::from_str(&text).ok());
    let (Some(orders), Some((program, arguments))) = (orders, words.split_first()) else {
        return nothing;
    };
    if let Err(failure) = take_seat(&orders) {
        return failure;
    }
    // An agent that ended before this process could be found by its group or its user's mark has
    // told nobody of it: then it must not begin.
    if getppid().as_raw() != orders.parent {
        return nothing;
    }
    if let Err(error) = dup2_stdout(io::stderr()) {
        return Failure::of(Step::Launch, &error.into());
    }
    // On a line of its own, whatever came before.
    if writeln!(tell, "\n{READY}").is_err() {
        return nothing;
    }
    let error = Command::new(program).args(arguments).env_remove(VARIABLE).exec();
    Failure::of(Step::Program, &error)
}

fn take_seat(orders: &Orders) -> Result<(), Failure> {
    if let Some(path) = &orders.group {
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        let group = Group::new(path.clone());
        group.take(pid).map_err(|error| Failure::of(Step::Group, &error))?;
    }
    // The service manager may have told the kernel to spare the agent: not its tasks. Where that
    // is refused nobody has told it so.
    let _unchanged = std::fs::write("/proc/self/oom_score_adj", "0");
    if let Some((uid, gid, groups)) = &orders.user {
        let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        setgroups(&groups)
            .and_then(|()| setgid(Gid::from_raw(*gid)))
            .and_then(|()| setuid(Uid::from_raw(*uid)))
            .map_err(|error| Failure::of(Step::User, &error.into()))?;
    }
    // As the task's user: on a shared file system root is often nobody.
    std::env::set_current_dir(&orders.directory)
        .map_err(|error| Failure::of(Step::Directory, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not only a test: where the tests start tasks this is their launcher.
    #[test]
    fn becomes_a_task() {
        if config::launch_orders().is_some() {
            let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
            run(&words.collect::<Vec<_>>());
            return;
        }
        let failure = Failure { step: Step::Launch, errno: None };
        assert_eq!(
            become_program(&["true".into()], &mut File::create("/dev/null").unwrap()),
            failure
        );
    }

    #[test]
    fn only_a_launcher_that_was_ready_and_said_no_more_has_started() {
        let failed = Failure { step: Step::Program, errno: Some(2) };
        let text = serde_json::to_string(&failed).unwrap();
        assert_eq!(heard(&b"test a ... \nready\n"[..]), Ok(()));
        assert_eq!(heard(format!("ready\n!{text}\n").as_bytes()), Err(failed));
        for silent in ["", "read", "!{}\n"] {
            assert_eq!(heard(silent.as_bytes()).unwrap_err().step, Step::Launch, "{silent}");
        }
    }
}
