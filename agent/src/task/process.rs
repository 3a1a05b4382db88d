//! Starting processes and signalling them. Every task leads a process group of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::config::TaskUser;
use crate::procfs::{self, Mark, Process};

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
pub(crate) type Started = Result<(Waiter, i32, u64), String>;

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
pub(crate) fn check(task: &Prepared, user: &TaskUser) -> Result<(), String> {
    if user.uid.is_root() {
        return Err("cannot start: a task never runs as root; set task_user".to_owned());
    }
    if let Some(address) = task.listens_at {
        TcpListener::bind(address).map_err(|error| {
            if error.kind() == std::io::ErrorKind::AddrInUse {
                format!("root port {} is busy", address.port())
            } else {
                format!("cannot listen at root address {address}: {error}")
            }
        })?;
    }
    Ok(())
}

/// Starts a task from nothing. Blocks for as long as the file system does, hence never on the
/// daemon's own thread.
pub(crate) fn start(task: Prepared, user: &TaskUser) -> Started {
    let (program, arguments) = task.command.split_first().ok_or("cannot start: no command")?;
    let errors = task.output.try_clone().map_err(|error| format!("cannot start: {error}"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&task.environment)
        .current_dir(&task.working_directory)
        .stdin(Stdio::null())
        .stdout(task.output)
        .stderr(errors)
        .process_group(0)
        .kill_on_drop(false);
    if user.switch {
        // The standard library clears the supplementary groups with this when it is root.
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    let child = command
        .spawn()
        .map_err(|error| describe(&error, program, &task.working_directory, user))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.ok_or("cannot start: it has no process id")?;
    // Not yet reaped, so the number is still this process's, even where it ended already.
    let start_ticks = procfs::process(pid).map_or(0, |process| process.start_ticks);
    Ok((Waiter::Child(child), pid, start_ticks))
}

/// The kernel's error does not say whether it means the program or its folder.
fn describe(error: &std::io::Error, program: &str, folder: &str, user: &TaskUser) -> String {
    let what = if Path::new(folder).is_dir() {
        format!("{program:?} in {folder:?}")
    } else {
        format!("working_directory {folder:?}")
    };
    format!("cannot start {what} as user {}: {error}", user.name)
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
