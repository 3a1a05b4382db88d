//! One control group, by its files.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What a group may use. Only what its task's job states is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) cpus_milli: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
}

/// A control group of the v2 tree; it need not be there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    path: PathBuf,
}

/// What the memory controller says of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Most that was used at once, in bytes; none on kernels before 5.19.
    pub(crate) peak: Option<u64>,
    pub(crate) current: Option<u64>,
    /// None where it has none.
    pub(crate) limit: Option<u64>,
    /// Times that the group's own limit was reached and nothing could be given back.
    pub(crate) at_limit: u64,
    /// Processes killed for want of memory, whoever's limit it was.
    pub(crate) killed: u64,
}

impl Group {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// True while a process lives in it or below; a zombie does not count.
    pub(crate) fn is_populated(&self) -> bool {
        self.counter("cgroup.events", "populated").is_some_and(|count| 0 < count)
    }

    /// Its processes, and those below.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        let mut pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        for below in self.below() {
            pids.extend(below.pids());
        }
        pids
    }

    pub(super) fn below(&self) -> Vec<Self> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.map(|entry| Self::new(entry.path())).collect()
    }

    /// Moves a process into it, with all its threads.
    ///
    /// # Errors
    /// Where the kernel refuses, or the process or the group is gone.
    pub(crate) fn take(&self, pid: i32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }

    /// Kills every process in it and below at once, also those that are just being forked.
    pub(crate) fn kill(&self) {
        let Err(error) = fs::write(self.path.join("cgroup.kill"), "1") else { return };
        if error.kind() == ErrorKind::NotFound && !self.path.exists() {
            return;
        }
        // Kernels before 5.14 have no such file: one by one, and again with the next look.
        for pid in self.pids() {
            if let Err(error) = kill(Pid::from_raw(pid), Signal::SIGKILL) {
                tracing::debug!(pid, %error, "it has ended by itself");
            }
        }
    }

    /// Removes it with those below; one that is not there is fine.
    ///
    /// # Errors
    /// Where a process is still in it.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for below in self.below() {
            below.remove()?;
        }
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory {
            peak: self.number("memory.peak"),
            current: self.number("memory.current"),
            limit: self.number("memory.max"),
            at_limit: self.counter("memory.events", "oom").unwrap_or(0),
            killed: self.counter("memory.events", "oom_kill").unwrap_or(0),
        }
    }

    /// Processes of it that systemd-oomd has killed: the mark that this leaves.
    pub(crate) fn killed_by_oomd(&self) -> u64 {
        let mut value = [0_u8; 32];
        let length = rustix::fs::getxattr(&self.path, "user.oomd_kill", &mut value[..]);
        let text = length.ok().and_then(|length| std::str::from_utf8(value.get(..length)?).ok());
        text.and_then(|text| text.trim_end_matches('\0').trim().parse().ok()).unwrap_or(0)
    }

    /// Tells systemd-oomd to leave it alone. The preference of a unit does not count for what lies
    /// below it.
    pub(super) fn spare_from_oomd(&self) {
        let flags = rustix::fs::XattrFlags::empty();
        if let Err(error) = rustix::fs::setxattr(&self.path, "user.oomd_omit", b"1", flags) {
            // Kernels before 5.7 keep none of a control group.
            tracing::debug!(group = %self.path.display(), %error, "systemd-oomd may end it");
        }
    }

    /// Writes one of its files.
    ///
    /// # Errors
    /// Names the file.
    pub(super) fn set(&self, file: &str, value: &str) -> io::Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(|error| named(&error, "set", &path))
    }

    pub(super) fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.path.join(file)).ok()
    }

    /// A file of one number; `max` is none.
    fn number(&self, file: &str) -> Option<u64> {
        self.read(file)?.trim().parse().ok()
    }

    /// One line `name number` of a file.
    pub(super) fn counter(&self, file: &str, name: &str) -> Option<u64> {
        let text = self.read(file)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.trim().parse().ok()
    }
}

/// The kernel's error with what was tried; its number is kept for whoever asks.
pub(super) fn named(error: &io::Error, verb: &str, path: &Path) -> io::Error {
    io::Error::new(
        error.kind(),
        Failed {
            words: format!("cannot {verb} {}: {error}", path.display()),
            errno: error.raw_os_error(),
        },
    )
}

/// What could not be done with a control group.
#[derive(Debug)]
struct Failed {
    words: String,
    errno: Option<i32>,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Failed {}

/// The kernel's number of an error of this module.
pub(crate) fn errno_of(error: &io::Error) -> Option<i32> {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Failed>());
    error.raw_os_error().or_else(|| inner?.errno)
}
