//! A master and some agents as real processes on loopback, with a folder of their own.

use std::ffi::OsStr;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::binaries::Binaries;
use crate::process::{self, TaskProcess};
use crate::setup::{Environment, is_root, task_user};
use crate::wait;

/// A node: its name, its declared capacity, and where it stands.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    pub name: String,
    pub cpus: f64,
    /// Address of its tasks, where it is not the next one on loopback.
    pub address: Option<String>,
    /// Network namespace that it runs in, where it is not the caller's.
    pub space: Option<String>,
}

#[derive(Clone, Debug)]
pub struct ClusterOptions {
    pub nodes: Vec<NodeOptions>,
    /// Address that the master listens at.
    pub host: String,
    /// Lines for master.toml after `listen`, `state_dir` and `[tls]`: whole tables.
    pub master_toml: String,
    /// Lines for the top level of every agent.toml.
    pub agent_toml: String,
    /// Keep the folder when the cluster ends.
    pub keep: bool,
}

impl ClusterOptions {
    /// Nodes n1, n2, … of these CPUs, with quick rounds.
    #[must_use]
    pub fn quick(cpus: &[f64]) -> Self {
        let nodes = cpus
            .iter()
            .enumerate()
            .map(|(i, cpus)| NodeOptions {
                name: format!("n{}", i + 1),
                cpus: *cpus,
                ..NodeOptions::default()
            })
            .collect();
        Self {
            nodes,
            host: "127.0.0.1".to_owned(),
            master_toml: "[rounds]\ninterval = \"10s\"\nspacing = \"500ms\"\n\
                          profile_shapes_max = 1\nprofile_time = \"2s\"\n\
                          change_spacing = \"10s\"\nrescale_cost = \"8s\"\n\
                          [jobs]\nbackoff = \"500ms\"\nstop_grace = \"5s\"\n\
                          start_timeout = \"120s\"\nstall_timeout = \"60s\"\n"
                .to_owned(),
            agent_toml: "beat = \"500ms\"\n".to_owned(),
            keep: false,
        }
    }
}

/// A daemon that can be killed and started again as systemd would.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    /// Variables beside the harness's own.
    pub environment: Vec<(String, String)>,
    space: Option<String>,
    /// Words of a program that becomes this one in the end, as with other files in /etc.
    pub through: Vec<String>,
    child: Option<Child>,
}

impl Daemon {
    fn new(program: &Path, config: PathBuf) -> Self {
        let log = config.with_extension("log");
        let (environment, through) = (Vec::new(), Vec::new());
        let program = program.to_owned();
        Self { program, config, log, environment, space: None, through, child: None }
    }

    /// The program by itself, or in its network namespace.
    fn command(&self) -> Command {
        if let [first, others @ ..] = self.through.as_slice() {
            let mut command = Command::new(first);
            command.args(others).arg(&self.program);
            return command;
        }
        let Some(space) = &self.space else { return Command::new(&self.program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{space}")).arg(&self.program);
        command
    }

    /// Starts the process.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "{} runs already", self.program.display());
        let log = fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        let child = self
            .command()
            .arg("--config")
            .arg(&self.config)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.child.as_ref().and_then(|child| i32::try_from(child.id()).ok())
    }

    /// Sends a signal and waits for the end.
    ///
    /// # Errors
    /// Where the process does not end within 20 s.
    pub fn end(&mut self, signal: Signal) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        process::signal(i32::try_from(child.id())?, signal);
        wait::until("a daemon's end", Duration::from_secs(20), || Ok(child.try_wait()?))?;
        Ok(())
    }

    /// Kills with SIGKILL.
    ///
    /// # Errors
    /// As [`Self::end`].
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL)
    }

    /// True while the process lives.
    ///
    /// # Errors
    /// Where the system cannot say.
    pub fn lives(&mut self) -> Result<bool> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?.is_none()),
            None => Ok(false),
        }
    }

    /// Lets an agent that does not run take away what it left in the kernel.
    fn clear(&self) {
        let mut command = self.command();
        command.arg("--config").arg(&self.config).arg("stop-tasks");
        let _done = command.stdin(Stdio::null()).output();
    }

    #[must_use]
    pub fn log(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }
}

#[derive(Debug)]
pub struct Cluster {
    pub folder: PathBuf,
    pub address: String,
    pub master: Daemon,
    pub agents: Vec<Daemon>,
    pub environment: Environment,
    binaries: &'static Binaries,
    keep: bool,
}

/// A UDP port that nobody holds now.
fn free_port(host: &str) -> Result<u16> {
    Ok(UdpSocket::bind((host, 0))?.local_addr()?.port())
}

/// A folder that the tasks' user can enter, with a path short enough for Unix sockets.
fn make_folder() -> Result<PathBuf> {
    let folder = tempfile::Builder::new().prefix("optimus-").tempdir_in("/tmp")?.keep();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

impl Cluster {
    /// Builds, sets up and starts a cluster, and waits until every node is UP.
    ///
    /// # Errors
    /// Where anything of it fails.
    pub fn start(options: &ClusterOptions) -> Result<Self> {
        let mut cluster = Self::prepare(options)?;
        cluster.launch(options.nodes.len())?;
        Ok(cluster)
    }

    /// Starts the daemons of a prepared cluster, and waits until every node is UP.
    ///
    /// # Errors
    /// Where one does not start.
    pub fn launch(&mut self, nodes: usize) -> Result<()> {
        self.master.start()?;
        for agent in &mut self.agents {
            agent.start()?;
        }
        self.wait_nodes_up(nodes)
    }

    /// Everything but starting the daemons.
    ///
    /// # Errors
    /// Where anything of it fails.
    pub fn prepare(options: &ClusterOptions) -> Result<Self> {
        let environment = Environment::ready()?;
        let binaries = Binaries::build()?;
        let folder = make_folder()?;
        let address = format!("{}:{}", options.host, free_port(&options.host)?);
        let master_config = folder.join("master.toml");
        let mut cluster = Self {
            master: Daemon::new(&binaries.master, master_config.clone()),
            agents: Vec::new(),
            address,
            environment,
            binaries,
            keep: options.keep,
            folder,
        };
        cluster.make_certificates(options)?;
        cluster.make_checkpoint_folder()?;
        fs::write(&master_config, cluster.master_toml(options))?;
        for (index, node) in options.nodes.iter().enumerate() {
            let config = cluster.folder.join(format!("{}.toml", node.name));
            fs::write(&config, cluster.agent_toml(index, node, options)?)?;
            let mut agent = Daemon::new(&binaries.agent, config);
            agent.space.clone_from(&node.space);
            cluster.agents.push(agent);
        }
        Ok(cluster)
    }

    fn pki(&self, file: &str) -> String {
        self.folder.join("pki").join(file).display().to_string()
    }

    fn make_certificates(&self, options: &ClusterOptions) -> Result<()> {
        let folder = self.folder.join("pki").display().to_string();
        let host = &options.host;
        self.run(["cert", "init", "--dir", &folder, "--cluster", "loopback", "--address", host])?;
        self.run(["cert", "issue", "operator", "operator", "--dir", &folder])?;
        self.run(["cert", "issue", "admin", "operator", "--dir", &folder])?;
        for node in &options.nodes {
            self.run(["cert", "issue", "agent", &node.name, "--dir", &folder])?;
        }
        Ok(())
    }

    fn make_checkpoint_folder(&self) -> Result<()> {
        let folder = self.folder.join("checkpoints");
        fs::create_dir(&folder)?;
        if is_root() {
            let user = task_user()?;
            nix::unistd::chown(&folder, Some(user.uid), Some(user.gid))?;
        }
        Ok(())
    }

    /// URL below which this cluster's jobs keep checkpoints.
    #[must_use]
    pub fn checkpoints(&self) -> String {
        format!("file://{}", self.folder.join("checkpoints").display())
    }

    fn master_toml(&self, options: &ClusterOptions) -> String {
        // Clusters of two runs on one machine share its loopback addresses, so not these.
        let first = 21_000 + std::process::id() % 80 * 105;
        format!(
            "cluster = \"loopback\"\nlisten = \"{}\"\nstate_dir = \"{}\"\n{}[tls]\nca = \"{}\"\n\
             certificate = \"{}\"\nkey = \"{}\"\n[limits]\nroot_ports = [{first}, {}]\n",
            self.address,
            self.folder.join("master").display(),
            options.master_toml,
            self.pki("ca.pem"),
            self.pki("master.pem"),
            self.pki("master.key"),
            first + 104,
        )
    }

    fn agent_toml(
        &self,
        index: usize,
        node: &NodeOptions,
        options: &ClusterOptions,
    ) -> Result<String> {
        Ok(format!(
            "name = \"{name}\"\nmaster = \"{}\"\nstate_dir = \"{}\"\n\
             task_address = \"{}\"\ntask_user = \"{}\"\npython_package = \"{}\"\n{}\
             [tls]\nca = \"{}\"\ncertificate = \"{}\"\nkey = \"{}\"\n\
             [capacity]\ncpus = {:?}\nmemory = \"4GiB\"\n",
            self.address,
            self.folder.join(&node.name).display(),
            node.address.clone().unwrap_or_else(|| format!("127.0.0.{}", index + 11)),
            task_user()?.name,
            self.environment.package.display(),
            options.agent_toml,
            self.pki("ca.pem"),
            self.pki(&format!("agent-{}.pem", node.name)),
            self.pki(&format!("agent-{}.key", node.name)),
            node.cpus,
            name = node.name,
        ))
    }

    /// Runs the command line and returns whatever came of it.
    ///
    /// # Errors
    /// Where the program cannot be started.
    pub fn optimus<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Output> {
        Command::new(&self.binaries.optimus)
            .args(args)
            .env("OPTIMUS_MASTER", &self.address)
            .env("OPTIMUS_TLS_DIR", self.folder.join("pki"))
            .stdin(Stdio::null())
            .output()
            .context("cannot run optimus")
    }

    /// Runs the command line, which must exit with 0, and returns its stdout.
    ///
    /// # Errors
    /// With its stderr where it exits otherwise.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let args: Vec<_> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let output = self.optimus(&args)?;
        if !output.status.success() {
            let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
            bail!(
                "optimus {} exited with {:?}: {}",
                words.join(" "),
                output.status.code(),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// As [`Self::run`] with `-o json`, parsed.
    ///
    /// # Errors
    /// As [`Self::run`], and where the output is not JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let mut words = args.to_vec();
        words.extend(["-o", "json"]);
        let text = self.run(&words)?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    fn wait_nodes_up(&self, count: usize) -> Result<()> {
        wait::until("all nodes to be UP", Duration::from_secs(30), || {
            let Ok(nodes) = self.json(&["nodes"]) else { return Ok(None) };
            let up = rows(&nodes, "nodes").iter().filter(|n| n["reachability"] == "UP").count();
            Ok((up == count).then_some(()))
        })
        .with_context(|| format!("the master says:\n{}", tail(&self.master.log(), 20)))
    }

    /// A further agent with settings of its own, not started yet; it ends when it is dropped.
    #[must_use]
    pub fn agent_with(&self, config: &Path) -> Daemon {
        Daemon::new(&self.binaries.agent, config.to_owned())
    }

    /// A further master with settings of its own, as [`Self::agent_with`].
    #[must_use]
    pub fn master_with(&self, config: &Path) -> Daemon {
        Daemon::new(&self.binaries.master, config.to_owned())
    }

    /// Every training process of this cluster that lives.
    #[must_use]
    pub fn tasks(&self) -> Vec<TaskProcess> {
        process::tasks_below(&self.folder)
    }

    /// Keeps the folder for a look at what went wrong.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Hands the master's daemon over, to one who kills it again and again while others use the
    /// cluster.
    #[must_use]
    pub fn take_master(&mut self) -> Daemon {
        let fresh = Daemon::new(&self.master.program, self.master.config.clone());
        std::mem::replace(&mut self.master, fresh)
    }

    /// Waits until no training process of this cluster is left.
    ///
    /// # Errors
    /// Names those that are still there after 20 s.
    pub fn wait_no_task(&self) -> Result<()> {
        wait::until("no task to be left", Duration::from_secs(20), || {
            Ok(self.tasks().is_empty().then_some(()))
        })
        .with_context(|| format!("still there: {:?}", self.tasks()))
    }

    /// Stops everything that this cluster started.
    ///
    /// # Errors
    /// Where a daemon does not end.
    pub fn stop(&mut self) -> Result<()> {
        for agent in &mut self.agents {
            agent.end(Signal::SIGTERM)?;
        }
        self.master.end(Signal::SIGTERM)?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _gone = self.kill();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A daemon that died by itself is what to look at first.
        for daemon in self.agents.iter_mut().chain(std::iter::once(&mut self.master)) {
            if daemon.child.is_some() && !daemon.lives().unwrap_or(false) {
                process::talk(&format!(
                    "{} died by itself:\n{}",
                    daemon.program.display(),
                    tail(&daemon.log(), 25)
                ));
                self.keep = true;
            }
        }
        for daemon in self.agents.iter_mut().chain(std::iter::once(&mut self.master)) {
            let _gone = daemon.kill();
        }
        for task in self.tasks() {
            process::signal(task.pid, Signal::SIGKILL);
        }
        for server in process::fork_servers_below(&self.folder) {
            process::signal(server.pid, Signal::SIGKILL);
        }
        // Rules of agents that were killed outlive them, as their tasks would have.
        if is_root() {
            self.agents.iter().for_each(Daemon::clear);
        }
        self.environment.clean();
        if self.keep || std::thread::panicking() {
            process::talk(&format!("kept for a look: {}", self.folder.display()));
        } else {
            let _gone = fs::remove_dir_all(&self.folder);
        }
    }
}

/// The rows of a listing's JSON.
#[must_use]
pub fn rows<'a>(listing: &'a Value, name: &str) -> &'a [Value] {
    listing[name].as_array().map_or(&[], Vec::as_slice)
}

/// The last lines of a text.
#[must_use]
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
