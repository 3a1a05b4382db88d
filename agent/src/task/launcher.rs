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
    /// A short program of the agent's, which has an output of its own and is no task.
    helps: bool,
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
    launched(&orders(seat, false), words, environment)
}

/// A command that becomes a short program with all rights of a user, those of his groups too, and
/// none of the agent's. Its outputs are its own; where it cannot begin, its standard error says so.
pub(crate) fn helper(
    user: &TaskUser,
    words: &[String],
    environment: &BTreeMap<String, String>,
) -> Command {
    let group = user.helpers.as_ref();
    // Made anew where the unit that it lay in was restarted.
    let group = group.filter(|group| std::fs::create_dir_all(group.path()).is_ok());
    launched(&orders(Seat { group, user, directory: "/" }, true), words, environment)
}

fn orders(seat: Seat<'_>, helps: bool) -> Orders {
    Orders {
        group: seat.group.map(|group| group.path().to_owned()),
        user: seat.user.switch.then(|| {
            let user = seat.user;
            (user.uid.as_raw(), user.gid.as_raw(), groups_of(user))
        }),
        directory: seat.directory.to_owned(),
        parent: i32::try_from(std::process::id()).unwrap_or(0),
        helps,
    }
}

fn launched(orders: &Orders, words: &[String], environment: &BTreeMap<String, String>) -> Command {
    let orders = serde_json::to_string(orders).expect("plain fields have a JSON form");
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
    let orders = config::launch_orders().and_then(|text| serde_json::from_str(&text).ok());
    let failure = match &orders {
        Some(orders) => become_program(orders, words, &mut tell),
        None => Failure { step: Step::Launch, errno: None },
    };
    if orders.is_some_and(|orders: Orders| orders.helps) {
        let why = failure.errno.map(io::Error::from_raw_os_error);
        let why = why.map_or_else(|| "it was not begun".to_owned(), |why| why.to_string());
        // Whoever ended meanwhile need not be told.
        let _ = writeln!(io::stderr(), "cannot run {words:?} ({:?}): {why}", failure.step);
        return ExitCode::FAILURE;
    }
    let text = serde_json::to_string(&failure).unwrap_or_default();
    // Where the agent has ended nobody is left to be told.
    let _ = writeln!(tell, "\n!{text}");
    ExitCode::FAILURE
}

fn become_program(orders: &Orders, words: &[OsString], tell: &mut File) -> Failure {
    let nothing = Failure { step: Step::Launch, errno: None };
    let Some((program, arguments)) = words.split_first() else { return nothing };
    if let Err(failure) = take_seat(orders) {
        return failure;
    }
    // An agent that ended before this process could be found by its group or its user's mark has
    // told nobody of it: then it must not begin.
    if getppid().as_raw() != orders.parent {
        return nothing;
    }
    if !orders.helps {
        if let Err(error) = dup2_stdout(io::stderr()) {
            return Failure::of(Step::Launch, &error.into());
        }
        // On a line of its own, whatever came before.
        if writeln!(tell, "\n{READY}").is_err() {
            return nothing;
        }
    }
    let error = Command::new(program).args(arguments).env_remove(VARIABLE).exec();
    Failure::of(Step::Program, &error)
}

fn take_seat(orders: &Orders) -> Result<(), Failure> {
    if let Some(path) = &orders.group {
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        let group = Group::new(path.clone());
        let taken = group.take(pid).map_err(|error| Failure::of(Step::Group, &error));
        // A helper's is a matter of order alone.
        if !orders.helps {
            taken?;
        }
    }
    // The service manager has told the kernel to spare the agent: not its tasks, and they cannot
    // go back on it. Where that is refused nobody has told it so.
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
            panic!("it has not become the program, and ends as a launcher that fails");
        }
        let user = config::user_of(nix::unistd::geteuid().as_raw(), 0);
        let user = TaskUser { switch: false, ..user };
        let orders = orders(Seat { group: None, user: &user, directory: "/" }, false);
        // Nobody's child may begin.
        let orders = Orders { parent: 0, ..orders };
        let mut tell = File::create("/dev/null").unwrap();
        let failure = Failure { step: Step::Launch, errno: None };
        assert_eq!(become_program(&orders, &["true".into()], &mut tell), failure);
        assert_eq!(become_program(&orders, &[], &mut tell), failure);
    }

    #[test]
    fn a_helper_has_its_users_groups_and_an_output_of_its_own() {
        let own = nix::unistd::geteuid();
        let user = config::user_of(own.as_raw(), nix::unistd::getegid().as_raw());
        let user = if own.is_root() {
            let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
            TaskUser { uid: nobody.uid, gid: nobody.gid, name: nobody.name, ..user }
        } else {
            user
        };
        let ask = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            helper(&user, &words, &BTreeMap::new()).output().unwrap()
        };
        let output = ask(&["/bin/sh", "-c", "id -u; echo words >&2; cat /proc/self/oom_score_adj"]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.ends_with(&format!("{}\n0\n", user.uid)), "{said}");
        assert_eq!(output.stderr, b"words\n");
        let output = ask(&["/no/such/program"]);
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && words.contains("No such file"), "{words}");
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
