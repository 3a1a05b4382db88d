//! Removing a run's hosts: at its end, and what an earlier run left that was itself killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{network, output_of};
use crate::process::talk;
use crate::wait;

/// Start of the names of a run's folder, cgroup and network namespace; its process id follows.
pub(crate) const PREFIX: &str = "optimus-run-";

const LOCK: &str = "lock";

/// The two trees of cgroups that a booted host needs a place in.
pub(crate) fn cgroups(path: &str) -> [PathBuf; 2] {
    ["unified", "systemd"].map(|tree| Path::new("/sys/fs/cgroup").join(tree).join(path))
}

/// Takes a run's lock, which the kernel drops with the process.
pub(crate) fn lock(run: &Path) -> Result<fs::File> {
    let lock = fs::File::create(run.join(LOCK))?;
    lock.try_lock().with_context(|| format!("{} is in use", run.display()))?;
    Ok(lock)
}

/// Ends every process below a cgroup and waits until it is empty.
pub(crate) fn kill(cgroup: &str) -> Result<()> {
    let [unified, _] = cgroups(cgroup);
    if !unified.is_dir() {
        return Ok(());
    }
    fs::write(unified.join("cgroup.kill"), "1").context("cannot kill a host")?;
    // A frozen process dies too, but a later boot must not begin frozen.
    fs::write(unified.join("cgroup.freeze"), "0").context("cannot thaw a host")?;
    wait::until("a killed host's end", Duration::from_secs(30), || {
        let events = fs::read_to_string(unified.join("cgroup.events"))?;
        Ok(events.contains("populated 0").then_some(()))
    })
}

/// Removes a cgroup and all below it.
pub(crate) fn remove_cgroups(cgroup: &str) {
    for tree in cgroups(cgroup) {
        remove_tree(&tree);
    }
}

fn remove_tree(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _busy = fs::remove_dir(cgroup);
}

/// Unmounts everything below a folder, the last mounted first.
pub(crate) fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let below = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let mut below: Vec<_> = below.map(Path::new).filter(|path| path.starts_with(folder)).collect();
    below.reverse();
    for path in below {
        if let Err(error) = output_of(Command::new("umount").arg("--lazy").arg(path)) {
            talk(&format!("cannot unmount {}: {error:#}", path.display()));
        }
    }
}

/// Removes all of a run: processes first, its folder last.
pub(crate) fn remove_run(run: &Path) -> Result<()> {
    let name = run.file_name().context("a run has a name")?.to_string_lossy().into_owned();
    kill(&name)?;
    remove_cgroups(&name);
    unmount_below(run);
    network::remove(&name);
    fs::remove_dir_all(run).with_context(|| format!("cannot remove {}", run.display()))
}

/// Removes every run whose process is gone.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)?.filter_map(Result::ok) {
        let is_run = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_run && lock(&entry.path()).is_ok() {
            talk(&format!("removing the hosts of an earlier run: {}", entry.path().display()));
            remove_run(&entry.path())?;
        }
    }
    Ok(())
}
