//! `hold-tasks`: keeps the unit of tasks alive, whose groups the agent fills.
//!
//! systemd removes the group of a unit without a process, and a group with a process of its own
//! cannot share out controllers: so this process lies in a group `holder` below the unit's.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};

use super::find::HOLDER;
use super::{CONTROLLERS, Group};

/// Runs until TERM.
///
/// # Errors
/// Where this process is in no group of its own, or may not change it.
pub(crate) fn run() -> Result<()> {
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    // Blocked first: one that comes early must end this as well.
    ends.thread_block().context("cannot block signals")?;
    let own = own_group()?;
    prepare(&own)?;
    sd_notify::notify(&[sd_notify::NotifyState::Ready])
        .context("cannot tell the service manager")?;
    tracing::info!(group = %own.path().display(), "holds the control groups of tasks");
    ends.wait().context("cannot wait for a signal")?;
    Ok(())
}

fn own_group() -> Result<Group> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mount = mounts
        .lines()
        .find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let place = words.next()?;
            (words.next()? == "cgroup2").then(|| PathBuf::from(place))
        })
        .context("no cgroup v2 tree is mounted")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let own = own.strip_suffix(HOLDER).unwrap_or(own).trim_matches('/');
    if own.is_empty() {
        bail!("this process is in no group of its own; run it as optimus-tasks.service");
    }
    Ok(Group::new(mount.join(own)))
}

fn prepare(own: &Group) -> Result<()> {
    let holder = Group::new(own.path().join(HOLDER));
    fs::create_dir_all(holder.path())
        .with_context(|| format!("cannot make {}; set Delegate=yes", holder.path().display()))?;
    let pid = i32::try_from(std::process::id()).context("its own pid")?;
    holder.take(pid).context("cannot enter the group of the holder")?;
    let offered = own.read("cgroup.controllers").unwrap_or_default();
    for name in CONTROLLERS {
        // The agent says which are missing, and what to do.
        if offered.split_ascii_whitespace().any(|there| there == name) {
            own.set("cgroup.subtree_control", &format!("+{name}"))?;
        }
    }
    Ok(())
}
