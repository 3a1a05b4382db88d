//! All hosts of one test, with what they share.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result};

use super::network::{Direction, Network};
use super::watch::Watch;
use super::{Host, HostTask, base, host, leftovers, output_of};
use crate::process::talk;

/// Where the hosts have the folder that all share, as a mount of NFS would be.
const SHARED: &str = "/srv/checkpoints";

/// One host to be.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    /// A folder of the host that is a small disk of its own, and how many bytes it holds.
    pub small_disk: Option<(String, u64)>,
}

impl Plan {
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), small_disk: None }
    }
}

#[derive(Debug)]
pub struct Site {
    pub hosts: Vec<Host>,
    /// Of this run: everything in it goes at the end.
    pub folder: PathBuf,
    /// The folder that all hosts have as `/srv/checkpoints`.
    pub shared: PathBuf,
    network: Arc<Network>,
    cuts: Vec<(String, Direction)>,
    /// Name of the run: of its cgroup and its network.
    name: String,
    _lock: fs::File,
    done: bool,
}

impl Site {
    /// Makes and boots hosts, and waits until all are ready.
    ///
    /// # Errors
    /// Where anything of it fails.
    pub fn start(plans: &[Plan]) -> Result<Self> {
        let tree = base::ready()?;
        let name = format!("{}{}", leftovers::PREFIX, std::process::id());
        let folder = base::folder()?.join(&name);
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let lock = leftovers::lock(&folder)?;
        let shared = folder.join("shared");
        fs::create_dir(&shared)?;
        // As an export for all who train: a group's own, with what is made in it.
        std::os::unix::fs::chown(&shared, None, Some(base::TASK_UID))?;
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o2775))?;
        let key = folder.join("operator");
        output_of(
            Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", "operator", "-f"])
                .arg(&key),
        )?;
        let network = Arc::new(Network::make(name.clone())?);
        let mut site = Self {
            hosts: Vec::new(),
            folder,
            shared,
            network,
            cuts: Vec::new(),
            name,
            _lock: lock,
            done: false,
        };
        for (index, plan) in plans.iter().enumerate() {
            site.add(index, plan, &tree)?;
        }
        for host in &mut site.hosts {
            host.power_on()?;
        }
        for host in &mut site.hosts {
            host.wait_ready()?;
        }
        Ok(site)
    }

    fn add(&mut self, index: usize, plan: &Plan, tree: &Path) -> Result<()> {
        let folder = self.folder.join(&plan.name);
        fs::create_dir(&folder)?;
        let mut binds = vec![(self.shared.clone(), SHARED.to_owned())];
        if let Some((inside, bytes)) = &plan.small_disk {
            let disk = folder.join("small-disk");
            fs::create_dir(&disk)?;
            let size = format!("size={bytes},mode=0700");
            output_of(
                Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&disk),
            )?;
            binds.push((disk, inside.clone()));
        }
        let host = Host {
            name: plan.name.clone(),
            address: format!("10.77.0.{}", 10 + index),
            // Also the name of a network device, which may have 15 bytes with `vb-` before it.
            machine: format!("o{}-{index}", std::process::id()),
            folder,
            cgroup: format!("{}/{}", self.name, plan.name),
            network: Arc::clone(&self.network),
            key: self.folder.join("operator"),
            binds,
            frozen: Arc::default(),
            child: None,
        };
        host.make_disk(tree)?;
        self.hosts.push(host);
        Ok(())
    }

    /// # Panics
    /// Where no host is called so.
    #[must_use]
    pub fn host(&self, name: &str) -> &Host {
        self.hosts.iter().find(|host| host.name == name).expect("the test names its own hosts")
    }

    /// # Panics
    /// As [`Self::host`].
    pub fn host_mut(&mut self, name: &str) -> &mut Host {
        let found = self.hosts.iter_mut().find(|host| host.name == name);
        found.expect("the test names its own hosts")
    }

    /// Boots a host that has lost its power with an empty disk, as one that was set up anew under
    /// its old name and address.
    ///
    /// # Errors
    /// Where it does not boot.
    pub fn reinstall(&mut self, name: &str) -> Result<()> {
        let tree = base::ready()?;
        let host = self.host_mut(name);
        host.power_off()?;
        let disk = host.folder.join("disk");
        leftovers::unmount_below(&disk);
        fs::remove_dir_all(&disk)?;
        fs::remove_file(host.root())?;
        host.make_disk(&tree)?;
        host.power_on()?;
        host.wait_ready()
    }

    /// A command of the operator, who sits on the same network.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        self.network.command(program)
    }

    /// The operator's ssh key.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.folder.join("operator")
    }

    /// Cuts a host off from the other hosts, until [`Self::heal`].
    ///
    /// # Errors
    /// Where the rules are not taken.
    pub fn cut(&mut self, name: &str, direction: Direction) -> Result<()> {
        let machine = self.host(name).machine.clone();
        self.cuts.push((machine, direction));
        self.apply_cuts()
    }

    /// Lets every frame pass again.
    ///
    /// # Errors
    /// As [`Self::cut`].
    pub fn heal(&mut self) -> Result<()> {
        self.cuts.clear();
        self.apply_cuts()
    }

    fn apply_cuts(&self) -> Result<()> {
        let cuts: Vec<_> =
            self.cuts.iter().map(|(m, direction)| (m.as_str(), *direction)).collect();
        self.network.cut(&cuts)
    }

    /// Every training process of all hosts.
    #[must_use]
    pub fn tasks(&self) -> Vec<HostTask> {
        host::tasks_below(&self.name).into_iter().map(|(_, task)| task).collect()
    }

    /// Starts to watch that nothing runs twice.
    #[must_use]
    pub fn watch(&self) -> Watch {
        let frozen =
            self.hosts.iter().map(|host| (host.name.clone(), Arc::clone(&host.frozen))).collect();
        Watch::start(self.name.clone(), frozen)
    }

    /// Copies the hosts' journals to where they outlive the run.
    ///
    /// # Errors
    /// Where the folder cannot be written.
    pub fn keep_journals(&self) -> Result<PathBuf> {
        let folder = base::folder()?.join("failed");
        let _absent = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        for host in &self.hosts {
            // A frozen journal is not written to the end.
            let _gone = host.thaw();
            fs::write(folder.join(format!("{}.log", host.name)), host.journal())?;
        }
        Ok(folder)
    }

    /// Says that all went well: nothing is kept.
    pub fn succeeded(&mut self) {
        self.done = true;
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if !self.done {
            match self.keep_journals() {
                Ok(folder) => talk(&format!("the hosts' journals: {}", folder.display())),
                Err(error) => talk(&format!("cannot keep the hosts' journals: {error:#}")),
            }
        }
        for host in &mut self.hosts {
            if let Err(error) = host.power_off() {
                talk(&format!("cannot stop {}: {error:#}", host.name));
            }
        }
        if let Err(error) = leftovers::remove_run(&self.folder) {
            talk(&format!("cannot remove the hosts: {error:#}"));
        }
    }
}
