//! Two servers and a stranger, each in a network namespace of its own: a real job trains across
//! the servers, and nobody but its own peers reaches a port of its tasks.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::NodeOptions;
use harness::jobs::{Finish, JobFile};
use harness::process::talk;
use harness::setup::{is_root, task_user};
use harness::{Cluster, ClusterOptions, wait};
use nix::sched::{CloneFlags, unshare};

use crate::common::{MINUTE, submit, task, wait_phase, wait_steps};

const HERE: &str = "10.77.0.1";
const PEER: &str = "10.77.0.2";
const STRANGER: &str = "10.77.0.3";

/// A network of this thread's own with two further hosts on it.
struct Network {
    /// Namespaces of the peer and of the stranger.
    spaces: [String; 2],
}

fn ip(words: &str) -> Result<()> {
    let output = Command::new("ip").args(words.split_whitespace()).output()?;
    ensure!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

impl Network {
    /// The calling thread, and all that it starts, is in the new network from then on.
    fn enter() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let spaces = ["peer", "stranger"].map(|name| format!("{name}-{}", std::process::id()));
        let network = Self { spaces };
        ip("link set lo up")?;
        ip("link add hub type bridge")?;
        ip(&format!("addr add {HERE}/24 dev hub"))?;
        ip("link set hub up")?;
        for (number, (space, address)) in network.spaces.iter().zip([PEER, STRANGER]).enumerate() {
            ip(&format!("netns add {space}"))?;
            ip(&format!("link add port{number} type veth peer name eth0 netns {space}"))?;
            ip(&format!("link set port{number} master hub up"))?;
            ip(&format!("-n {space} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {space} link set eth0 up"))?;
            ip(&format!("-n {space} link set lo up"))?;
        }
        Ok(network)
    }

    fn peer(&self) -> Option<&str> {
        Some(&self.spaces[0])
    }

    fn stranger(&self) -> Option<&str> {
        Some(&self.spaces[1])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for space in &self.spaces {
            let _gone = ip(&format!("netns del {space}"));
        }
    }
}

/// A program in a namespace, or in this thread's.
fn within(space: Option<&str>, program: &str) -> Command {
    let Some(space) = space else { return Command::new(program) };
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{space}")).arg(program);
    command
}

/// What comes of a connection: `open`, or `ConnectionRefusedError`.
fn connect(space: Option<&str>, uid: u32, address: &str, port: &str) -> Result<String> {
    let script = "import socket, sys\ntry:\n    \
                  socket.create_connection(sys.argv[1:3], timeout=10).close()\n    \
                  print('open')\nexcept OSError as error:\n    print(type(error).__name__)";
    let mut command = within(space, "/usr/bin/python3");
    command.args(["-c", script, address, port]);
    if space.is_none() {
        command.uid(uid);
    }
    let output = command.output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A task's address and port, out of its environment.
fn listens(cluster: &Cluster, job: &str, role: &str) -> Result<(String, String)> {
    let pid = task(cluster, job, role)?.pid;
    let environment = fs::read(format!("/proc/{pid}/environ"))?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let of = |name: &str| {
        let found = environment.split('\0').find_map(|entry| entry.strip_prefix(name));
        found.map(str::to_owned).with_context(|| format!("{role} has no {name}"))
    };
    let port = if role == "scheduler" { of("DMLC_PS_ROOT_PORT=")? } else { of("PORT=")? };
    Ok((of("DMLC_NODE_HOST=")?, port))
}

fn tables(space: Option<&str>) -> Result<String> {
    let output = within(space, "nft").args(["list", "tables"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn job(cluster: &Cluster) -> JobFile {
    let mut job = JobFile::new("guarded", "digits_mlp.py", &cluster.checkpoints());
    (job.workers, job.servers) = ((2, 2), (2, 2));
    job.finish = Finish::Epochs(90);
    job
}

fn story() -> Result<()> {
    let network = Network::enter()?;
    let mut options = ClusterOptions::quick(&[]);
    HERE.clone_into(&mut options.host);
    let places = [(HERE, None), (PEER, network.peer())];
    let nodes = places.iter().zip(["n1", "n2"]).map(|((address, space), name)| NodeOptions {
        name: name.to_owned(),
        cpus: 2.0,
        address: Some((*address).to_owned()),
        space: space.map(str::to_owned),
    });
    options.nodes = nodes.collect();
    let mut cluster = Cluster::start(&options)?;
    let id = submit(&cluster, &job(&cluster))?;
    wait_steps(&cluster, &id, 5)?;

    for node in ["n1", "n2"] {
        let told = cluster.json(&["node", "show", node])?["isolation"]["filter"].clone();
        ensure!(told == true, "{node} says {told} of its filter");
    }
    let open = TcpListener::bind((HERE, 0))?;
    let other = open.local_addr()?.port().to_string();
    let (root, refused) = (0, "ConnectionRefusedError");
    ensure!(connect(network.stranger(), root, HERE, &other)? == "open", "the stranger is cut off");
    let roles = ["scheduler", "server0", "server1", "worker0", "worker1"];
    let tasks = roles.iter().map(|role| listens(&cluster, &id, role));
    let tasks: Vec<(String, String)> = tasks.collect::<Result<_>>()?;
    for (address, port) in &tasks {
        let found = connect(network.stranger(), root, address, port)?;
        ensure!(found == refused, "a stranger's connection to {address}:{port}: {found}");
        for (space, own) in [(None, HERE), (network.peer(), PEER)] {
            let found = connect(space, root, address, port)?;
            ensure!(found == "open", "{own} to {address}:{port}: {found}");
        }
    }
    let here = tasks.iter().find(|(address, _)| address == HERE).context("no task is here")?;
    for (uid, wanted) in [(task_user()?.uid.as_raw(), "open"), (1, refused)] {
        let found = connect(None, uid, HERE, &here.1)?;
        ensure!(found == wanted, "user {uid} of the host itself: {found}");
    }

    // The rules outlive the agent; and where they are lost, it sets them again.
    cluster.agents[0].kill()?;
    let found = connect(network.stranger(), root, HERE, &here.1)?;
    ensure!(found == refused, "without the agent: {found}");
    Command::new("nft").args(["flush", "ruleset"]).status()?;
    let found = connect(network.stranger(), root, HERE, &here.1)?;
    ensure!(found == "open", "nothing but the rules keeps strangers out: {found}");
    cluster.agents[0].start()?;
    wait::until("the rules to be there again", Duration::from_secs(20), || {
        Ok((connect(network.stranger(), root, HERE, &here.1)? == refused).then_some(()))
    })?;

    wait_phase(&cluster, &id, "COMPLETED", 3 * MINUTE)?;
    for space in [None, network.peer()] {
        wait::until("no rule to be left", Duration::from_secs(20), || {
            Ok(tables(space)?.is_empty().then_some(()))
        })?;
    }
    cluster.stop()
}

#[test]
fn only_peers_reach_a_jobs_ports() -> Result<()> {
    if !is_root() {
        talk("not root: no packet filter to be tried");
        return Ok(());
    }
    // A thread of its own, since its network is.
    std::thread::spawn(story).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
