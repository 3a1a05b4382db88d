//! Starting processes and signalling them. Every task leads a process group of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::cgroup::{Group, Limits, errno_of};
use crate::config::TaskUser;
use crate::procfs::{self, Mark, Process};
use crate::task::launcher::{self, Failure, Seat, Step};

/// All that is needed to start one task.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) mark: Mark,
    pub(crate) command: Vec<String>,
    pub(crate) working_directory: String,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) output: File,
    /// Where the PS scheduler will listen: tried just before it starts, because ps-lite would
    /// end without naming the port, and every other process would wait for ever.
    pub(crate) listens_at: Option<SocketAddr>,
    /// Its control group; none where this machine has no such groups.
    pub(crate) group: Option<Group>,
    pub(crate) limits: Limits,
    /// Threads of its computation, and whether it has GPUs.
    pub(crate) threads: u64,
    pub(crate) gpus: bool,
}

/// Whoever tells how a task's first process ends.
#[derive(Debug)]
pub(crate) enum Waiter {
    Child(Child),
    /// Its fork server; an error where that one ends first.
    Forked(oneshot::Receiver<End>),
}

/// How a process ended: its exit code, or the signal that ended it.
pub(crate) type End = (Option<i32>, Option<i32>);

/// A task that was started, with its pid and start time, or why it could not be.
pub(crate) type Started = Result<(Waiter, i32, u64), Refused>;

/// Why a task was not started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) words: String,
    pub(crate) errno: Option<i32>,
    /// The server is at fault, not the job.
    pub(crate) server: bool,
    /// Nobody tried: its generation was stopped, or another task could not be started.
    pub(crate) untried: bool,
}

impl Refused {
    pub(crate) fn untried(words: String) -> Self {
        Self { words, untried: true, ..Self::default() }
    }

    /// `words` and the kernel's error.
    pub(crate) fn by(words: &str, error: &io::Error) -> Self {
        let errno = errno_of(error);
        let server = errno.is_some_and(is_servers);
        Self { words: format!("{words}: {error}"), errno, server, untried: false }
    }
}

impl From<String> for Refused {
    fn from(words: String) -> Self {
        Self { words, ..Self::default() }
    }
}

impl From<&str> for Refused {
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

/// Errors that another server would not have: no process, memory, space or descriptor is left,
/// or a disk fails.
fn is_servers(errno: i32) -> bool {
    let at_fault = [
        Errno::EAGAIN,
        Errno::ENOMEM,
        Errno::ENOSPC,
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::EROFS,
        Errno::EIO,
    ];
    at_fault.contains(&Errno::from_raw(errno))
}

impl Waiter {
    /// How the process ended; none where nobody can know.
    pub(crate) async fn wait(self) -> Option<End> {
        match self {
            Self::Child(mut child) => Some(
                child.wait().await.map_or((None, None), |status| (status.code(), status.signal())),
            ),
            Self::Forked(end) => end.await.ok(),
        }
    }
}

/// What must hold before a task is started in any way.
///
/// # Errors
/// In words.
pub(crate) fn check(task: &Prepared, user: &TaskUser) -> Result<(), Refused> {
    if user.uid.is_root() {
        return Err("cannot start: a task never runs as root; set task_user".into());
    }
    if let Some(address) = task.listens_at {
        TcpListener::bind(address).map_err(|error| {
            if error.kind() == io::ErrorKind::AddrInUse {
                format!("root port {} is busy", address.port()).into()
            } else {
                Refused::by(&format!("cannot listen at root address {address}"), &error)
            }
        })?;
    }
    Ok(())
}

/// Starts a task from nothing, in its group from its first instruction on. Blocks for as long as
/// the file system does, hence never on the daemon's own thread.
pub(crate) fn start(task: Prepared, user: &TaskUser) -> Started {
    let directory = task.working_directory.as_str();
    let seat = Seat { group: task.group.as_ref(), user, directory };
    let mut command = launcher::command(seat, &task.command, &task.environment);
    let refused = |error: &io::Error| Refused::by("cannot start", error);
    let (words, tell) = io::pipe().map_err(|error| refused(&error))?;
    command.stdin(Stdio::null()).stdout(tell).stderr(task.output);
    let mut command = Command::from(command);
    let child = command.kill_on_drop(false).spawn().map_err(|error| refused(&error))?;
    // With it this process's own end of the pipe is closed.
    drop(command);
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.ok_or("cannot start: it has no process id")?;
    // Not yet reaped, so the number is still this process's, even where it ended already.
    let start_ticks = procfs::process(pid).map_or(0, |process| process.start_ticks);
    launcher::heard(BufReader::new(words))
        .map_err(|failure| describe(&failure, seat, &task.command))?;
    Ok((Waiter::Child(child), pid, start_ticks))
}

/// Words for what a launcher could not do.
pub(crate) fn describe(failure: &Failure, seat: Seat<'_>, command: &[String]) -> Refused {
    let Seat { group, user, directory } = seat;
    let program = command.first().map_or("", String::as_str);
    let what = match failure.step {
        Step::Launch => format!("{program:?}: its launcher ended too soon"),
        Step::Group => {
            let path = group.map(|group| group.path().display().to_string()).unwrap_or_default();
            format!("in control group {path}")
        }
        Step::User => format!("as user {}", user.name),
        Step::Directory => format!("working_directory {directory:?} as user {}", user.name),
        Step::Program => format!("{program:?} in {directory:?} as user {}", user.name),
    };
    let words = format!("cannot start {what}");
    let mut refused = match failure.errno {
        Some(errno) => Refused::by(&words, &io::Error::from_raw_os_error(errno)),
        None => words.into(),
    };
    refused.server |= matches!(failure.step, Step::Group | Step::User);
    refused
}

/// Sends a signal to processes of a task, and to its group as one where that is proved to be the
/// task's and has a living member. A process that is gone meanwhile is no error.
pub(crate) fn signal(group: Option<i32>, members: &[&Process], signal: Signal) {
    if let Some(group) = group
        && members.iter().any(|process| process.group == group)
    {
        log_refused(killpg(Pid::from_raw(group), signal), group);
    }
    for process in members.iter().filter(|process| group != Some(process.group)) {
        log_refused(kill(Pid::from_raw(process.pid), signal), process.pid);
    }
}

fn log_refused(result: nix::Result<()>, pid: i32) {
    match result {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => tracing::warn!(pid, %error, "cannot signal a process of a task"),
    }
}
