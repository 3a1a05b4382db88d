//! Processes as the kernel shows them, and talk on stderr.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Says something to the person who waits.
#[expect(clippy::print_stderr, reason = "stderr is talk; every message passes here")]
pub fn talk(text: &str) {
    eprintln!("{text}");
}

/// A line of data on stdout.
#[expect(clippy::print_stdout, reason = "stdout is data; every line passes here")]
pub fn say(text: &str) {
    println!("{text}");
}

/// A training process of some agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskProcess {
    pub pid: i32,
    /// `node/job/generation/task`, from its environment.
    pub task: String,
}

impl TaskProcess {
    /// The last part: `scheduler`, `server0`, `worker1`.
    #[must_use]
    pub fn role(&self) -> &str {
        let last = self.task.rsplit('/').next().unwrap_or_default();
        // There is only one of them, so nobody numbers it.
        if last.starts_with("scheduler") { "scheduler" } else { last }
    }

    #[must_use]
    pub fn job(&self) -> &str {
        self.task.split('/').nth(1).unwrap_or_default()
    }

    #[must_use]
    pub fn generation(&self) -> &str {
        self.task.split('/').nth(2).unwrap_or_default()
    }
}

fn variable<'a>(environment: &'a str, name: &str) -> Option<&'a str> {
    environment.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
}

/// State letter of a process, as in /proc/PID/stat.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// A process that forks tasks, and is none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForkServer {
    pub pid: i32,
    /// `node/job/threads`, from its environment.
    pub name: String,
}

/// Every living fork server of the agents of one cluster.
#[must_use]
pub fn fork_servers_below(folder: &Path) -> Vec<ForkServer> {
    let found = below(folder, "OPTIMUS_FORK_SERVER");
    found.into_iter().map(|(pid, name)| ForkServer { pid, name }).collect()
}

/// The parent of a living process.
#[must_use]
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Every living process whose generation folder lies below `folder`: the tasks of one cluster,
/// children included.
#[must_use]
pub fn tasks_below(folder: &Path) -> Vec<TaskProcess> {
    // A fork server's own mark is none.
    let found = below(folder, "OPTIMUS_TASK").into_iter().filter(|(_, task)| task != "-");
    found.map(|(pid, task)| TaskProcess { pid, task }).collect()
}

/// Ids of all processes of this machine.
pub(crate) fn all() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .collect()
}

/// What a variable of a living process says.
pub(crate) fn mark(pid: i32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = variable(&String::from_utf8_lossy(&environment), name)?.to_owned();
    // A zombie runs nothing; it only waits for its parent to look.
    (state(pid)? != 'Z').then_some(value)
}

/// The words of a process's command, with a NUL after each.
pub(crate) fn command(pid: i32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(String::from_utf8_lossy(&words).into_owned())
}

/// When a process started, in ticks since the machine did: with the id, which process it is.
pub(crate) fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Living processes with a folder below `folder`, and what a variable of theirs says.
fn below(folder: &Path, name: &str) -> Vec<(i32, String)> {
    let folder = folder.to_string_lossy();
    let mut found: Vec<_> = all()
        .into_iter()
        .filter_map(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let environment = String::from_utf8_lossy(&environment);
            if !variable(&environment, "OPTIMUS_DIR")?.starts_with(folder.as_ref()) {
                return None;
            }
            let value = variable(&environment, name)?.to_owned();
            // A zombie runs nothing; it only waits for its parent to look.
            (state(pid)? != 'Z').then_some((pid, value))
        })
        .collect();
    found.sort();
    found
}

/// Sends a signal; false where the process is gone.
pub fn signal(pid: i32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid), signal).is_ok()
}
