//! One host: a disk, a cgroup, an address, and systemd as its first process.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::network::Network;
use super::{leftovers, output_of};
use crate::process;
use crate::wait;

/// From power on to `running`, on a loaded machine.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A training process on a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostTask {
    pub host: String,
    pub pid: i32,
    /// `node/job/generation/task`.
    pub task: String,
}

impl HostTask {
    fn part(&self, index: usize) -> &str {
        self.task.split('/').nth(index).unwrap_or_default()
    }

    #[must_use]
    pub fn job(&self) -> &str {
        self.part(1)
    }

    #[must_use]
    pub fn generation(&self) -> &str {
        self.part(2)
    }

    /// `scheduler`, `server0`, `worker1`.
    #[must_use]
    pub fn role(&self) -> &str {
        self.part(3)
    }
}

#[derive(Debug)]
pub struct Host {
    /// As the host itself and ansible call it.
    pub name: String,
    pub address: String,
    /// As systemd-nspawn calls it: unique on this machine.
    pub(crate) machine: String,
    /// Holds the disk's layers, the mounted disk and the console's output.
    pub(crate) folder: PathBuf,
    /// Below each tree of cgroups.
    pub(crate) cgroup: String,
    pub(crate) network: Arc<Network>,
    /// The operator's key.
    pub(crate) key: PathBuf,
    /// Folders of this machine and where the host has them.
    pub(crate) binds: Vec<(PathBuf, String)>,
    pub(crate) frozen: Arc<AtomicBool>,
    pub(crate) child: Option<Child>,
}

impl Host {
    /// The host's root folder as this machine sees it.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Lays the host's own disk over the tree that all share.
    pub(crate) fn make_disk(&self, base: &Path) -> Result<()> {
        let [upper, work, root] =
            ["upper", "work", "root"].map(|part| self.folder.join("disk").join(part));
        for folder in [&upper, &work, &root] {
            fs::create_dir_all(folder)?;
        }
        std::os::unix::fs::symlink("disk/root", self.root())?;
        let layers = |lower: &Path, upper: &Path, work: &Path| {
            let [lower, upper, work] = [lower, upper, work].map(|path| path.display().to_string());
            format!("lowerdir={lower},upperdir={upper},workdir={work}")
        };
        let mount = || {
            let options = layers(base, &upper, &work);
            output_of(
                Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&root),
            )
        };
        if mount().is_err() {
            // A target folder that lies on an overlay itself cannot hold another's upper layer.
            let disk = self.folder.join("disk");
            output_of(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&disk))?;
            for folder in [&upper, &work, &root] {
                fs::create_dir_all(folder)?;
            }
            mount().context("cannot lay a host's disk over the tree")?;
        }
        self.settle()
    }

    /// What differs from host to host.
    fn settle(&self) -> Result<()> {
        let root = self.root();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().context("it has a folder")?)?;
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let _absent = fs::remove_file(root.join("etc/machine-id"));
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid")?.replace('-', "");
        write("etc/machine-id", &id)?;
        write("etc/hostname", &format!("{}\n", self.name))?;
        write("etc/hosts", &format!("127.0.0.1 localhost\n{} {}\n", self.address, self.name))?;
        write("etc/systemd/network/10-test.network", &self.network_file(&self.address))?;
        write("root/.ssh/authorized_keys", &fs::read_to_string(self.key.with_extension("pub"))?)?;
        // systemd-nspawn lays each boot's own id over the machine's, which a unit with
        // ProtectKernelTunables does not see: the agent would take every boot for the same.
        write(
            "etc/tmpfiles.d/boot-id.conf",
            &format!("C /run/boot-id 0444 root root - {BOOT_ID}\n"),
        )?;
        write(
            "etc/systemd/system/optimus-agent.service.d/boot-id.conf",
            &format!("[Service]\nBindReadOnlyPaths=-/run/boot-id:{BOOT_ID}\n"),
        )?;
        let keys = root.join("root/.ssh/authorized_keys");
        fs::set_permissions(keys, fs::Permissions::from_mode(0o600))?;
        for (_, inside) in &self.binds {
            fs::create_dir_all(root.join(inside.trim_start_matches('/')))?;
        }
        Ok(())
    }

    fn network_file(&self, address: &str) -> String {
        format!(
            "[Match]\nName=host0\n[Network]\nAddress={address}/24\nLinkLocalAddressing=no\n\
             IPv6AcceptRA=no\nConfigureWithoutCarrier=yes\n"
        )
    }

    /// Gives a running host another address, as a new lease of DHCP would.
    ///
    /// # Errors
    /// Where the host does not answer there.
    pub fn change_address(&mut self, address: &str) -> Result<()> {
        let file = self.root().join("etc/systemd/network/10-test.network");
        fs::write(file, self.network_file(address))?;
        self.ssh("systemctl restart systemd-networkd")?;
        let old = std::mem::replace(&mut self.address, address.to_owned());
        self.wait_ready()?;
        // The service keeps what it finds on the device.
        self.ssh(&format!("ip address delete {old}/24 dev host0")).map(drop)
    }

    /// Powers the host on; it may be long in getting ready.
    ///
    /// # Errors
    /// Where it runs already or nspawn cannot be started.
    pub fn power_on(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "{} runs already", self.name);
        let groups = leftovers::cgroups(&self.cgroup);
        for group in &groups {
            fs::create_dir_all(group)
                .with_context(|| format!("cannot make {}", group.display()))?;
        }
        let console =
            fs::OpenOptions::new().create(true).append(true).open(self.folder.join("console"))?;
        // The shell moves itself, so that nothing of the host is ever outside its cgroup.
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "echo $$ > \"$1\" && echo $$ > \"$2\" && shift 2 && exec \"$@\"", "sh"])
            .args(groups.iter().map(|group| group.join("cgroup.procs")))
            .arg("/usr/bin/nsenter")
            .arg(format!("--net={}", self.network.path().display()))
            .args(["/usr/bin/systemd-nspawn", "--quiet", "--boot", "--register=no"])
            .args(["--keep-unit", "--link-journal=no", "--resolv-conf=off", "--timezone=off"])
            .args(["--console=pipe", &format!("--network-bridge={}", Network::bridge())])
            .arg(format!("--directory={}", fs::canonicalize(self.root())?.display()))
            .arg(format!("--machine={}", self.machine))
            .arg(format!("--hostname={}", self.name));
        for (outside, inside) in &self.binds {
            command.arg(format!("--bind={}:{inside}", outside.display()));
        }
        let child = command
            .env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1")
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn()
            .context("cannot start systemd-nspawn")?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until ssh answers and systemd has started everything.
    ///
    /// # Errors
    /// With the console's last lines, and the units that failed.
    pub fn wait_ready(&mut self) -> Result<()> {
        let waited = wait::until(&format!("{} to boot", self.name), BOOT_LIMIT, || {
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                bail!("systemd-nspawn ended: {status}");
            }
            let state = self.ssh_output("systemctl is-system-running --wait")?;
            match String::from_utf8_lossy(&state.stdout).trim() {
                "running" => Ok(Some(())),
                "degraded" => bail!("a unit failed: {}", self.ssh("systemctl --failed --plain")?),
                _ => Ok(None),
            }
        });
        waited.with_context(|| {
            let console = fs::read(self.folder.join("console")).unwrap_or_default();
            crate::cluster::tail(&String::from_utf8_lossy(&console), 20)
        })
    }

    /// Runs a shell command as root on the host, whatever comes of it.
    ///
    /// # Errors
    /// Where ssh cannot be started.
    pub fn ssh_output(&self, script: &str) -> Result<Output> {
        self.network
            .command("/usr/bin/ssh")
            .args(["-F", "/dev/null", "-i"])
            .arg(&self.key)
            .args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"])
            .args(["-o", "ConnectTimeout=2", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"])
            .args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"])
            .arg(format!("root@{}", self.address))
            .arg(script)
            .stdin(Stdio::null())
            .output()
            .context("cannot run ssh")
    }

    /// Runs a shell command as root on the host, which must succeed; returns its stdout.
    ///
    /// # Errors
    /// With what it said where it fails.
    pub fn ssh(&self, script: &str) -> Result<String> {
        let output = self.ssh_output(script)?;
        ensure!(
            output.status.success(),
            "{} on {} failed: {}{}",
            script,
            self.name,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn unified(&self) -> PathBuf {
        let [unified, _] = leftovers::cgroups(&self.cgroup);
        unified
    }

    /// Ends every process at once, as a power cut does. The disk stays.
    ///
    /// # Errors
    /// Where a process outlives it.
    pub fn power_off(&mut self) -> Result<()> {
        leftovers::kill(&self.cgroup)?;
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        // What is left of the dead systemd's tree would be in the way of the next.
        leftovers::remove_cgroups(&self.cgroup);
        self.network.unplug(&self.machine);
        Ok(())
    }

    /// Stops every process of the host where it is, as a suspended machine does.
    ///
    /// # Errors
    /// Where the kernel does not say so within some seconds.
    pub fn freeze(&self) -> Result<()> {
        self.frozen.store(true, Ordering::SeqCst);
        self.set_frozen("1")
    }

    /// # Errors
    /// As [`Self::freeze`].
    pub fn thaw(&self) -> Result<()> {
        self.set_frozen("0")?;
        self.frozen.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn set_frozen(&self, state: &str) -> Result<()> {
        let unified = self.unified();
        fs::write(unified.join("cgroup.freeze"), state)?;
        let wanted = format!("frozen {state}");
        wait::until(&wanted, Duration::from_secs(10), || {
            Ok(fs::read_to_string(unified.join("cgroup.events"))?.contains(&wanted).then_some(()))
        })
    }

    /// The training processes that live on this host.
    #[must_use]
    pub fn tasks(&self) -> Vec<HostTask> {
        tasks_below(&self.cgroup).into_iter().map(|(_, task)| task).collect()
    }

    /// The number that a process of this host has on the host itself.
    ///
    /// # Errors
    /// Where it is gone.
    pub fn number_of(&self, pid: i32) -> Result<i32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let own = numbers.and_then(|numbers| numbers.split_whitespace().last());
        Ok(own.context("it has no number")?.parse()?)
    }

    /// Starts a process on the host that has a number which another had before.
    ///
    /// # Returns
    /// Its id on this machine.
    ///
    /// # Errors
    /// Where the number is in use.
    pub fn start_stranger(&self, number: i32) -> Result<i32> {
        let first = self.first_process()?;
        let script = format!(
            "echo {} > /proc/sys/kernel/ns_last_pid; setsid sleep 3600 >/dev/null 2>&1 &",
            number - 1
        );
        wait::until("a process of that number", Duration::from_secs(20), || {
            output_of(
                Command::new("/usr/bin/nsenter")
                    .arg(format!("--target={first}"))
                    .args(["--pid", "--", "/bin/sh", "-c", &script]),
            )?;
            let found = process::all().into_iter().find(|pid| {
                process::command(*pid).is_some_and(|words| words.contains("sleep\x003600"))
                    && self.number_of(*pid).is_ok_and(|own| own == number)
            });
            Ok(found)
        })
    }

    /// The host's systemd, by its id on this machine.
    fn first_process(&self) -> Result<i32> {
        let inside = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| {
                groups.lines().any(|line| {
                    line.strip_prefix("0::/").is_some_and(|own| own.starts_with(&self.cgroup))
                })
            })
        };
        let first = process::all().into_iter().find(|pid| {
            inside(pid)
                && fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| {
                    status.lines().any(|line| {
                        line.starts_with("NSpid:") && line.split_whitespace().nth(2) == Some("1")
                    })
                })
        });
        first.with_context(|| format!("{} does not run", self.name))
    }

    /// The journal of everything since the disk was made, over all boots.
    #[must_use]
    pub fn journal(&self) -> String {
        Command::new("journalctl")
            .args(["--no-pager", "--output=short-precise", "--directory"])
            .arg(self.root().join("var/log/journal"))
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
    }
}

/// Living training processes below a cgroup, by their start: `HOST` is the part after `cgroup`
/// where that is a whole run's, its last part where it is a host's.
pub(crate) fn tasks_below(cgroup: &str) -> Vec<(u64, HostTask)> {
    let run = cgroup.split('/').next().unwrap_or_default();
    let mut found: Vec<_> = process::all()
        .into_iter()
        .filter_map(|pid| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
            let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
            own.strip_prefix(cgroup)?.strip_prefix('/')?;
            let host = own.strip_prefix(run)?.split('/').nth(1)?.to_owned();
            let task = process::mark(pid, "OPTIMUS_TASK")?;
            // A fork server's own mark is none.
            (task != "-").then_some(())?;
            Some((process::start_ticks(pid)?, HostTask { host, pid, task }))
        })
        .collect();
    found.sort();
    found
}
