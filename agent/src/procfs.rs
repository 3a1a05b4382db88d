//! What the kernel says about processes: `/proc`, read only when something asks.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use model::{BootId, Generation, JobId, NodeId, Task};

use crate::ledger::Key;

/// The variable that marks each process of a task, whatever forked it.
pub(crate) const MARK: &str = "OPTIMUS_TASK";

/// The variable that names its generation's folder, below the state folder of its agent.
pub(crate) const FOLDER: &str = "OPTIMUS_DIR";

/// The variable that names a fork server, and is gone from the tasks that it forks.
pub(crate) const FORK_SERVER: &str = "OPTIMUS_FORK_SERVER";

/// Largest environment that is looked through: a job's own is bounded to 32 KiB.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// One process at one moment. A pid alone names nothing: with its start time it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// Clock ticks from boot to its start.
    pub(crate) start_ticks: u64,
}

impl Process {
    /// False for a zombie: it runs nothing and holds nothing but its number.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The process of that number, if there is one.
pub(crate) fn process(pid: i32) -> Option<Process> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads `pid (name) state ppid pgrp …`. The name may itself hold blanks and parentheses.
fn parse_stat(bytes: &[u8]) -> Option<Process> {
    let open = bytes.iter().position(|b| *b == b'(')?;
    let close = bytes.iter().rposition(|b| *b == b')')?;
    let pid = std::str::from_utf8(bytes.get(..open)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        // Field 22 of proc(5), counted from the pid.
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// Processes of the whole machine, its containers too, that its kernel has killed for want of
/// memory since it started. None before Linux 4.13.
pub(crate) fn oom_kills() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The user that owns a process, by its effective id.
pub(crate) fn owner(pid: i32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// The task that a process was started for by the agent of a state folder, from its environment;
/// none where it is not readable. The folder counts: another agent of the machine may bear the
/// same node's name, and must not end what is not its own.
pub(crate) fn mark(pid: i32, state_dir: &Path) -> Option<Mark> {
    variable_below(pid, state_dir, MARK)?.parse().ok()
}

/// True for a fork server of the agent of a state folder, by the same signs.
pub(crate) fn is_fork_server(pid: i32, state_dir: &Path) -> bool {
    variable_below(pid, state_dir, FORK_SERVER).is_some()
}

/// A variable of a process whose folder lies below the state folder.
fn variable_below(pid: i32, state_dir: &Path, name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(format!("/proc/{pid}/environ"))
        .ok()?
        .take(ENVIRONMENT_BYTES_MAX)
        .read_to_end(&mut bytes)
        .ok()?;
    let variable = |name: &str| {
        bytes
            .split(|b| *b == 0)
            .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let folder = Path::new(OsStr::from_bytes(variable(FOLDER)?));
    let value = std::str::from_utf8(variable(name)?).ok()?;
    folder.starts_with(state_dir).then(|| value.to_owned())
}

/// Where in the kernel a process waits, for people who must find out why it cannot be killed.
pub(crate) fn wait_channel(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/wchan"))
        .ok()
        .filter(|text| !text.is_empty() && text != "0")
        .unwrap_or_else(|| "unknown".to_owned())
}

/// # Errors
/// Where the kernel does not say.
pub(crate) fn boot_id() -> io::Result<BootId> {
    Ok(BootId(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned()))
}

/// The value of `OPTIMUS_TASK`: `n1/j12/3/worker0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) node: NodeId,
    pub(crate) key: Key,
    pub(crate) task: Task,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (job, generation) = (self.key.job, self.key.generation.0);
        let (role, index) = (self.task.role.name(), self.task.index);
        write!(f, "{}/{job}/{generation}/{role}{index}", self.node)
    }
}

impl FromStr for Mark {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('/');
        let mut next = || parts.next().ok_or(());
        let node: NodeId = next()?.parse().map_err(drop)?;
        let job: JobId = next()?.parse().map_err(drop)?;
        let generation: Generation = next()?.parse().map_err(drop)?;
        let task = next()?;
        let task =
            if task == "scheduler0" { Task::SCHEDULER } else { task.parse().map_err(drop)? };
        if parts.next().is_some() {
            return Err(());
        }
        Ok(Self { node, key: Key { job, generation }, task })
    }
}

/// A living process, and the task of this node whose mark it carries.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) process: Process,
    pub(crate) mark: Option<Mark>,
}

/// Every living process of the machine at one moment. Taken when a task ends or is ended, never
/// on a timer while nothing happens: a sweep costs about 20 us for each process.
#[derive(Debug, Default)]
pub(crate) struct Census {
    pub(crate) seen: Vec<Seen>,
}

impl Census {
    /// Sweeps `/proc`. Environments are read only of processes of `uids`, the users of tasks:
    /// nobody else's can be a task, whatever it claims.
    pub(crate) fn take(node: &NodeId, state_dir: &Path, uids: &BTreeSet<u32>) -> Self {
        let mut seen = Vec::new();
        let own = std::process::id();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if u32::try_from(pid) == Ok(own) {
                continue;
            }
            let Some(process) = process(pid).filter(Process::is_alive) else { continue };
            let mark = owner(pid)
                .is_some_and(|uid| uids.contains(&uid))
                .then(|| mark(pid, state_dir))
                .flatten()
                .filter(|mark| mark.node == *node);
            seen.push(Seen { process, mark });
        }
        Self { seen }
    }

    /// Counts processes as a task's, whatever their environment says: those of its control group.
    pub(crate) fn claim(&mut self, mark: &Mark, pids: Vec<i32>) {
        let pids: BTreeSet<i32> = pids.into_iter().collect();
        for seen in self.seen.iter_mut().filter(|seen| pids.contains(&seen.process.pid)) {
            seen.mark = Some(mark.clone());
        }
    }

    /// Living processes of a task: those that carry its mark, those of its process group where
    /// that group is proved to be the task's, and the descendants of both.
    pub(crate) fn of_task(&self, mark: &Mark, group: Option<i32>) -> Vec<&Process> {
        let mut pids: BTreeSet<i32> = self
            .seen
            .iter()
            .filter(|seen| seen.mark.as_ref() == Some(mark) || group == Some(seen.process.group))
            .map(|seen| seen.process.pid)
            .collect();
        loop {
            let before = pids.len();
            let children: Vec<i32> = self
                .seen
                .iter()
                .filter(|seen| pids.contains(&seen.process.parent))
                .map(|seen| seen.process.pid)
                .collect();
            pids.extend(children);
            if pids.len() == before {
                break;
            }
        }
        let found = self.seen.iter().map(|seen| &seen.process);
        found.filter(|process| pids.contains(&process.pid)).collect()
    }
}

/// A folder's path through an open descriptor. The path of a Unix socket has room for 107 bytes,
/// and this one is always short.
pub(crate) fn descriptor_path(descriptor: i32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{descriptor}/{file}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn names_with_blanks_and_parentheses_do_not_shift_fields() {
        let text = b"42 (a) R 1 (b) S 7 41 41 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2 3";
        let process = parse_stat(text).unwrap();
        assert_eq!((process.pid, process.state, process.parent), (42, 'S', 7));
        assert_eq!((process.group, process.start_ticks), (41, 987_654));
        for wrong in [&b""[..], b"1", b"1 (x", b"1 (x) S 2", b"x (x) S 1 1 1"] {
            assert_eq!(parse_stat(wrong), None);
        }
    }

    #[test]
    fn a_mark_counts_only_below_the_agents_own_folder() {
        let mut child = std::process::Command::new("cat")
            .env(MARK, "n1/j12/3/worker0")
            .env(FOLDER, "/state/a/tasks/j12-g3")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Its answer proves that it runs with the environment that it was given.
        child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = |folder: &str| mark(pid, Path::new(folder)).map(|mark| mark.to_string());
        assert_eq!(found("/state/a").as_deref(), Some("n1/j12/3/worker0"));
        // Another agent of the machine with the same node name, and a name that only begins so.
        assert_eq!(found("/state/b"), None);
        assert_eq!(found("/state/a/tasks/j1"), None);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn this_process_is_found() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let found = process(pid).unwrap();
        assert!(found.is_alive() && 0 < found.start_ticks);
        assert_eq!(process(i32::MAX), None);
        assert!(!boot_id().unwrap().0.is_empty());
    }

    #[test]
    fn marks_read_back_what_they_print() {
        for text in ["n1/j12/3/worker0", "n1/j1/1/scheduler0", "gpu-7.rack/j9/2/server11"] {
            assert_eq!(text.parse::<Mark>().unwrap().to_string(), text);
        }
        for wrong in ["", "n1", "n1/j1/1", "n1/j1/1/worker", "n1/j1/1/worker0/x", "N/j1/1/worker0"]
        {
            assert!(wrong.parse::<Mark>().is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn a_task_owns_its_group_its_marks_and_their_children() {
        let mark: Mark = "n1/j1/1/worker0".parse().unwrap();
        let seen = |pid, parent, group, mark: Option<&Mark>| Seen {
            process: Process { pid, state: 'S', parent, group, start_ticks: 1 },
            mark: mark.cloned(),
        };
        let other: Mark = "n1/j1/1/worker1".parse().unwrap();
        let census = Census {
            seen: vec![
                seen(10, 1, 10, None),
                seen(11, 1, 99, Some(&mark)),
                seen(12, 11, 98, None),
                seen(13, 12, 97, None),
                seen(20, 1, 20, Some(&other)),
                seen(30, 1, 30, None),
            ],
        };
        let pids = |group| -> Vec<i32> {
            census.of_task(&mark, group).iter().map(|process| process.pid).collect()
        };
        assert_eq!(pids(Some(10)), [10, 11, 12, 13]);
        assert_eq!(pids(None), [11, 12, 13], "an unproved group is a stranger's");
    }
}
