//! Hosts that boot systemd on this machine: what the deployment test rolls out to.
//!
//! Each is an overlay of one Debian tree that systemd-nspawn boots, with a cgroup, an address and
//! a disk of its own, on a bridge in a network namespace of the test's own. They can be frozen,
//! cut off from each other, killed as by a power cut and booted again from the same disk.

mod base;
mod host;
mod leftovers;
mod network;
mod site;
mod watch;

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

pub use base::{PYTHON, TASK_UID, TASK_USER, ready};
pub use host::{Host, HostTask};
pub use network::{Direction, OPERATOR_ADDRESS};
pub use site::{Plan, Site};
pub use watch::Watch;

/// Runs a command that must succeed; returns its stdout.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
