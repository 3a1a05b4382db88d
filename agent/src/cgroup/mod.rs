//! Control groups of tasks (cgroup v2).
//!
//! Every process that the agent starts lies in a group below one folder of this agent, which is
//! never within the agent's own unit: a restart of the service must not touch training, and what
//! the agent itself uses must not count as a task's.
//!
//! ```text
//! <base>/optimus-<node>-<sum of the state folder>/tasks/<job>-<generation>/<task>
//!                                                /servers/<job>-<threads>-<number>
//!                                                /helpers
//! ```
//!
//! A task gets its CPUs as a share (`cpu.weight`) and, unless `cpu_limit` is false, as a bound
//! (`cpu.max`) as well. A share alone would use idle cores, but the master learns each job's speed
//! from what its tasks did: a task that borrowed its neighbour's cores looks faster than it will
//! be once the neighbour comes, and every decision built on that is wrong. Memory is bounded
//! without swap, since a worker that swaps holds up all others; what the kernel kills it kills
//! whole, as the rest of a task only waits for its dead part.

mod find;
mod group;
pub(crate) mod hold;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use model::nodes::Isolation;
use model::{JobId, Task};

pub(crate) use find::{find, is_unit_ready};
pub(crate) use group::{Group, Limits, Memory, errno_of};

use crate::ledger::Key;

const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// The kernel's own period of `cpu.max`, and the least quota that it takes.
const CPU_PERIOD_US: u64 = 100_000;
const CPU_QUOTA_US_MIN: u64 = 1_000;

/// What the operator says about groups.
#[derive(Clone, Debug)]
pub(crate) struct GroupSettings {
    pub(crate) root: Option<PathBuf>,
    pub(crate) cpu_limit: bool,
    pub(crate) pids_max: u64,
}

/// The part of the tree that is this agent's.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Not this agent's; made by whoever gave it.
    base: PathBuf,
    root: PathBuf,
    /// Those of [`CONTROLLERS`] that limit here.
    controllers: Vec<&'static str>,
    settings: GroupSettings,
}

/// What was found at the start.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) tree: Option<Tree>,
    pub(crate) isolation: Isolation,
    /// The tree lies at the machine's root, for want of the unit for tasks.
    pub(crate) outside: bool,
}

impl Tree {
    pub(crate) fn task(&self, key: Key, task: Task) -> Group {
        Group::new(self.generation(key).join(task.to_string()))
    }

    /// The folder of a generation's groups.
    fn generation(&self, key: Key) -> PathBuf {
        self.root.join("tasks").join(key.to_string())
    }

    /// `number` tells servers of one job and count of threads apart, that end and start anew.
    pub(crate) fn server(&self, job: JobId, threads: u64, number: u64) -> Group {
        Group::new(self.root.join("servers").join(format!("{job}-{threads}-{number}")))
    }

    /// Short programs that look at or make folders with the rights of a tasks' user.
    pub(crate) fn helpers(&self) -> Group {
        Group::new(self.root.join("helpers"))
    }

    /// Makes a group of this tree with all above it, and sets its limits.
    ///
    /// # Errors
    /// Where the kernel refuses; names the file.
    pub(crate) fn make(&self, group: &Group, limits: &Limits) -> io::Result<()> {
        let within = group.path().strip_prefix(&self.base).map_err(io::Error::other)?;
        let mut above = self.base.clone();
        let mut parts = within.iter().peekable();
        while let Some(part) = parts.next() {
            above.push(part);
            match fs::create_dir(&above) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(group::named(&error, "make the control group", &above));
                }
                Ok(()) | Err(_) => {}
            }
            if parts.peek().is_some() {
                self.enable(&above)?;
            }
        }
        self.limit(group, limits)
    }

    /// Lets the groups right below a folder be limited.
    fn enable(&self, folder: &Path) -> io::Result<()> {
        let group = Group::new(folder.to_owned());
        let now = group.read("cgroup.subtree_control").unwrap_or_default();
        for name in &self.controllers {
            if !now.split_ascii_whitespace().any(|there| there == *name) {
                group.set("cgroup.subtree_control", &format!("+{name}"))?;
            }
        }
        Ok(())
    }

    fn limit(&self, group: &Group, limits: &Limits) -> io::Result<()> {
        if let (true, Some(cpus_milli)) = (self.has("cpu"), limits.cpus_milli) {
            // The kernel's default, 100, stands for one CPU.
            group.set("cpu.weight", &(cpus_milli / 10).clamp(1, 10_000).to_string())?;
            if self.settings.cpu_limit {
                let quota_us = cpus_milli.saturating_mul(CPU_PERIOD_US / 1000);
                let quota_us = quota_us.max(CPU_QUOTA_US_MIN);
                group.set("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}"))?;
            }
        }
        if self.has("memory") {
            group.set("memory.oom.group", "1")?;
            if let Some(bytes) = limits.memory_bytes {
                // First, so that the kernel does not swap out what the limit pushes out. A kernel
                // without swap has no such file.
                if group.path().join("memory.swap.max").exists() {
                    group.set("memory.swap.max", "0")?;
                }
                group.set("memory.max", &bytes.to_string())?;
                // Its own limit is enough, and is told. One without a limit is oomd's to end.
                group.spare_from_oomd();
            }
        }
        if self.has("pids") {
            group.set("pids.max", &self.settings.pids_max.to_string())?;
        }
        Ok(())
    }

    /// True where memory is bounded, and so counted.
    pub(crate) fn counts_memory(&self) -> bool {
        self.has("memory")
    }

    fn has(&self, controller: &str) -> bool {
        self.controllers.contains(&controller)
    }

    /// Every group below `tasks`, with the task that it is of; none for a folder of another name.
    pub(crate) fn of_tasks(&self) -> Vec<(Option<(Key, Task)>, Group)> {
        let name = |group: &Group| {
            group.path().file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned()
        };
        let mut found = Vec::new();
        for generation in Group::new(self.root.join("tasks")).below() {
            let key = key_of(&name(&generation));
            let tasks = generation.below();
            if key.is_none() || tasks.is_empty() {
                found.push((None, generation));
                continue;
            }
            for group in tasks {
                found.push((key.zip(name(&group).parse().ok()), group));
            }
        }
        found
    }

    /// Ends whatever an earlier life left that is no task, and removes the groups of it.
    pub(crate) fn end_servers(&self) {
        for folder in ["servers", "helpers"] {
            let group = Group::new(self.root.join(folder));
            group.kill();
            // Those that take their time to die are removed by the next life.
            let _busy = group.remove();
        }
    }

    /// Removes the folder of a generation once no group is in it.
    pub(crate) fn leave(&self, key: Key) {
        if let Err(error) = Group::new(self.generation(key)).remove() {
            tracing::debug!(%key, %error, "its control groups stay");
        }
    }

    /// Removes all that is empty: after this life nobody may come back.
    pub(crate) fn prune(&self) {
        self.end_servers();
        for (_, group) in self.of_tasks() {
            let _busy = group.remove();
            let _others = group.path().parent().map(fs::remove_dir);
        }
        for folder in ["servers", "helpers", "tasks", ""] {
            let _busy = fs::remove_dir(self.root.join(folder));
        }
    }
}

#[cfg(test)]
impl Tree {
    pub(crate) fn all(&self) -> Group {
        Group::new(self.root.clone())
    }

    /// The same at another place, which need not be a tree of groups.
    pub(crate) fn with_root(&self, root: PathBuf) -> Self {
        let base = root.parent().unwrap_or(&root).to_owned();
        Self { base, root, controllers: Vec::new(), settings: self.settings.clone() }
    }
}

/// Reads what [`Key`] prints: `j12-g3`.
fn key_of(name: &str) -> Option<Key> {
    let (job, generation) = name.split_once('-')?;
    Some(Key { job: job.parse().ok()?, generation: generation.parse().ok()? })
}

#[cfg(test)]
mod tests;
