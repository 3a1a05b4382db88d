//! The agent with real processes and real signals: `sh` children in place of training scripts.

mod assigned;
mod data;
mod guard;
mod guest;
mod isolated;
mod life;
mod orders;
mod outputs;
mod restart;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use model::agent::{AgentAnswer, DesiredGeneration, Exit, Launch, Order, TaskState};
use model::{Batch, Generation, JobId, Mode, Resources, Revision, Shape};
use nix::unistd::{User, geteuid};

use super::*;
use crate::cgroup::GroupSettings;
use crate::config::{Override, TaskUser};
use crate::procfs::{Census, Process};

/// The guest of the tests of limits is some 30 times slower than its machine.
const LIMIT_MS: u64 = 60_000;

/// One node with its agent, which can be restarted.
struct World {
    dir: tempfile::TempDir,
    settings: Settings,
    node: String,
    agent: Agent,
    inbox: mpsc::Receiver<Event>,
    revision: u64,
    orders: model::nodes::NodeOrders,
}

/// The user of tasks: nobody where the tests run as root.
fn user() -> TaskUser {
    let root = geteuid().is_root();
    let found = if root { User::from_name("nobody") } else { User::from_uid(geteuid()) };
    let found = found.unwrap().unwrap();
    TaskUser {
        name: found.name,
        uid: found.uid,
        gid: found.gid,
        home: found.dir,
        switch: root,
        helpers: None,
    }
}

fn open_agent(settings: &Settings, node: &str) -> (Agent, mpsc::Receiver<Event>) {
    let (events, inbox) = mpsc::channel(EVENTS_MAX);
    let (heartbeats, _) = watch::channel(None);
    let parts = Parts {
        settings: Arc::new(settings.clone()),
        node: node.parse().unwrap(),
        gpus: Gpus::start(crate::probe::nvml::Sources::default(), |_| {}).unwrap(),
        events,
        heartbeats,
    };
    (Agent::recover(parts).unwrap(), inbox)
}

fn world(node: &str) -> World {
    world_with(node, |_| {})
}

fn world_with(node: &str, change: impl Fn(&mut Settings)) -> World {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    for folder in ["tasks", "logs"] {
        fs::create_dir(dir.path().join(folder)).unwrap();
    }
    let mut settings = Settings {
        name: None,
        master: SocketAddr::from(([127, 0, 0, 1], 1)),
        state_dir: dir.path().to_owned(),
        task_address: "127.0.0.1".to_owned(),
        task_ports: (10_000, 19_999),
        filters: false,
        user: user(),
        python_package: None,
        beat_ms: 2000,
        stop_grace_ms: 300,
        disconnect_stop_ms: 45_000,
        log_bytes_max: 1 << 20,
        spool_bytes_max: 1 << 30,
        hdfs: storage::HdfsSettings::default(),
        tls: model::config::TlsConfig::default(),
        capacity: Override::default(),
        groups: GroupSettings { root: None, cpu_limit: true, pids_max: 4096 },
        as_submitter: false,
        uid_min: 1000,
    };
    change(&mut settings);
    // Another run of these tests, or one just before, must not be taken for this one's node.
    let node = format!("{node}.{}", std::process::id());
    let (agent, inbox) = open_agent(&settings, &node);
    let orders = model::nodes::NodeOrders::default();
    World { dir, settings, node, agent, inbox, revision: 1, orders }
}

fn key(generation: u64) -> Key {
    Key { job: JobId(1), generation: Generation(generation) }
}

/// A loopback address of its own for each call, so that tests side by side never meet at a port.
fn root_host() -> Ipv4Addr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, CALLS.fetch_add(1, Ordering::Relaxed))
}

/// A generation of one scheduler, one server and one worker, each running the script.
fn generation(number: u64, order: Order, script: &str) -> DesiredGeneration {
    let launch = Launch {
        job_name: "test".to_owned(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        working_directory: "/".to_owned(),
        environment: BTreeMap::new(),
        mode: Mode::Sync,
        batch: Batch::Global(8),
        epochs_max: 1,
        shape: Shape::new(1, 1),
        tasks: Shape::new(1, 1).tasks().into_iter().collect(),
        worker: Resources::new(1000, 64 << 20, 0),
        server: Resources::new(1000, 64 << 20, 0),
        root_host: root_host().to_string(),
        root_port: 21_000,
        resume: None,
        on_disconnect: OnDisconnect::Keep,
    };
    let Key { job, generation } = key(number);
    DesiredGeneration { job, generation, order, launch, checkpoint: None }
}

impl World {
    fn desire(&mut self, generations: Vec<DesiredGeneration>) {
        self.desire_with(generations, Extras::default());
    }

    fn desire_with(&mut self, generations: Vec<DesiredGeneration>, extras: Extras) {
        self.revision += 1;
        let desired = Desired { revision: Revision(self.revision), generations };
        self.agent.on(Event::Desired(desired, extras, self.orders.clone()), clock::now());
    }

    /// Turns the loop until something holds.
    async fn until(&mut self, what: &str, holds: impl Fn(&mut Self) -> bool) {
        let limit = clock::now().plus(LIMIT_MS);
        loop {
            self.agent.work(clock::now());
            if holds(self) {
                return;
            }
            let reports = self.reports();
            assert!(clock::now() < limit, "not within the limit: {what}; tasks: {reports:#?}");
            let step = self.agent.step(&mut self.inbox);
            let _ = tokio::time::timeout(Duration::from_millis(20), step).await;
        }
    }

    fn reports(&mut self) -> BTreeMap<(u64, Task), TaskState> {
        let reports = self.agent.heartbeat(clock::now()).tasks;
        reports.into_iter().map(|r| ((r.generation.0, r.task), r.state)).collect()
    }

    fn exits(&mut self) -> BTreeMap<(u64, Task), Exit> {
        let exits = self.reports().into_iter().filter_map(|(task, state)| match state {
            TaskState::Exited(exit) => Some((task, exit)),
            TaskState::Running { .. } => None,
        });
        exits.collect()
    }

    fn pids(&mut self) -> BTreeMap<Task, u32> {
        let pids = self.reports().into_iter().filter_map(|((_, task), state)| match state {
            TaskState::Running { pid, .. } if 0 < pid => Some((task, pid)),
            TaskState::Running { .. } | TaskState::Exited(_) => None,
        });
        pids.collect()
    }

    /// Waits until so many tasks run.
    async fn until_running(&mut self, count: usize) -> BTreeMap<Task, u32> {
        self.until("all run", |world| world.pids().len() == count).await;
        self.pids()
    }

    /// Waits until so many lines are in a task's log: its script has come that far.
    async fn until_printed(&mut self, task: Task, text: &'static str) {
        self.until("it has printed", |world| world.log(task).contains(text)).await;
    }

    fn log(&self, task: Task) -> String {
        match self.agent.log(JobId(1), None, task, 1 << 16) {
            AgentAnswer::Log { text, .. } => String::from_utf8(text).unwrap(),
            AgentAnswer::Refused(_)
            | AgentAnswer::Probed(_)
            | AgentAnswer::CertificateRequest(_)
            | AgentAnswer::Installed => String::new(),
        }
    }

    async fn until_exited(&mut self, count: usize) -> BTreeMap<(u64, Task), Exit> {
        self.until("all have exited", |world| world.exits().len() == count).await;
        self.exits()
    }

    /// Everything in the machine that carries this node's mark.
    fn marked(&self) -> Vec<Process> {
        let uids = BTreeSet::from([self.settings.user.uid.as_raw()]);
        let census = Census::take(&self.node.parse().unwrap(), &self.settings.state_dir, &uids);
        census.seen.into_iter().filter(|s| s.mark.is_some()).map(|s| s.process).collect()
    }

    /// The agent dies and starts again; `between` happens meanwhile.
    fn restart(&mut self, between: impl FnOnce(&mut Self)) {
        // Nobody reads the old one's events any more, as after a kill.
        self.inbox.close();
        self.agent.save(clock::now());
        between(self);
        let (agent, inbox) = open_agent(&self.settings, &self.node);
        self.agent = agent;
        self.inbox = inbox;
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }
}

impl Drop for World {
    /// A failed test must not leave its children in the machine.
    fn drop(&mut self) {
        for process in self.marked() {
            let pid = nix::unistd::Pid::from_raw(process.pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        if let Some(tree) = &self.agent.tree {
            tree.all().kill();
            let limit = clock::now().plus(LIMIT_MS);
            while tree.all().is_populated() && clock::now() < limit {
                std::thread::yield_now();
            }
            tree.prune();
        }
    }
}
