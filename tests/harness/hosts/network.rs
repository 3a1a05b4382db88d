//! The hosts' network: a bridge in a namespace of its own, which can be cut between hosts.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::output_of;

/// The bridge's own address: where the operator and ansible sit. No cut touches it.
pub const OPERATOR_ADDRESS: &str = "10.77.0.1";

const BRIDGE: &str = "br0";

/// Which frames of a host are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Nothing from other hosts reaches it; what it sends arrives.
    In,
    /// Nothing that it sends reaches other hosts.
    Out,
    Both,
}

#[derive(Debug)]
pub(crate) struct Network {
    /// Of the namespace, as in /run/netns.
    pub(crate) name: String,
}

/// The host's end of a veth pair, as systemd-nspawn names it.
fn port(machine: &str) -> String {
    format!("vb-{machine}")
}

impl Network {
    pub(crate) fn make(name: String) -> Result<Self> {
        output_of(ip().args(["netns", "add", &name])).context("cannot make a network namespace")?;
        let network = Self { name };
        let inside =
            |words: &[&str]| output_of(ip().args(["-netns", &network.name]).args(words)).map(drop);
        inside(&["link", "set", "lo", "up"])?;
        inside(&["link", "add", BRIDGE, "type", "bridge", "forward_delay", "0"])?;
        inside(&["address", "add", &format!("{OPERATOR_ADDRESS}/24"), "dev", BRIDGE])?;
        inside(&["link", "set", BRIDGE, "up"])?;
        network.cut(&[])?;
        Ok(network)
    }

    pub(crate) const fn bridge() -> &'static str {
        BRIDGE
    }

    /// A command that runs within the namespace. Not `ip netns exec`, which hides cgroups.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("/usr/bin/nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program);
        command
    }

    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Removes what is left of a dead host's link. The kernel would too, but in its own time, and
    /// the host could not be powered on before.
    pub(crate) fn unplug(&self, machine: &str) {
        let port = port(machine);
        let mut delete = ip();
        delete.args(["-netns", &self.name, "link", "delete", &port]).stderr(Stdio::null());
        let _absent = delete.status();
    }

    /// Loses these hosts' frames, and no other's: the list replaces the one before.
    pub(crate) fn cut(&self, cuts: &[(&str, Direction)]) -> Result<()> {
        let mut rules = String::from(
            "table bridge cuts\ndelete table bridge cuts\ntable bridge cuts {\n\
             chain forward {\ntype filter hook forward priority 0; policy accept;\n",
        );
        for (machine, direction) in cuts {
            let port = port(machine);
            if *direction != Direction::Out {
                rules.push_str(&["oifname \"", &port, "\" drop\n"].concat());
            }
            if *direction != Direction::In {
                rules.push_str(&["iifname \"", &port, "\" drop\n"].concat());
            }
        }
        rules.push_str("}\n}\n");
        let mut child = self
            .command("/usr/sbin/nft")
            .args(["--file", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run nft")?;
        child.stdin.take().context("stdin is piped")?.write_all(rules.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "nft refused {rules}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

fn ip() -> Command {
    Command::new("/sbin/ip")
}

/// Removes a namespace; its bridge goes with it.
pub(crate) fn remove(name: &str) {
    let _absent = ip().args(["netns", "delete", name]).stderr(Stdio::null()).status();
    let _absent = fs::remove_file(PathBuf::from("/run/netns").join(name));
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(&self.name);
    }
}
