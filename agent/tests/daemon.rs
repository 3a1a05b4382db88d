//! The real binary against a master that is played by the test: real QUIC, certificates,
//! processes and signals.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use model::agent::{
    AgentAnswer, AgentQuery, Desired, DesiredGeneration, Exit, FromAgent, Heartbeat, Introduction,
    Launch, Order, RateReport, TaskState, ToAgent,
};
use model::{Batch, Generation, JobId, Mode, OnDisconnect, Resources, Revision, Shape, Task};
use net::pki::{Existing, Request, init_cluster};
use net::{Credentials, ResetKeys, Role, Server, ServerOptions, Session, TlsFiles};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

const LIMIT: Duration = Duration::from_secs(30);

struct World {
    dir: tempfile::TempDir,
    config: PathBuf,
    server: Server,
    agents: Vec<Child>,
}

#[expect(clippy::disallowed_methods, reason = "certificates have dates")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn world(node: &str) -> World {
    // Marks of tasks carry it: two runs at once must not meet.
    let node = &format!("{node}.{}", std::process::id());
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let pki = dir.path().join("pki");
    let ca = init_cluster(&pki, "test", 30, now()).unwrap();
    for (role, name) in [(Role::Master, "m"), (Role::Agent, node)] {
        let request = Request { role, name, addresses: &[], days: 30 };
        ca.issue(&request, &pki, Existing::Refuse, now()).unwrap();
    }
    let files = TlsFiles::in_folder(&pki, Role::Master, "m");
    let credentials = Credentials::load(&files, Role::Master, now()).unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    let keys = ResetKeys::random().unwrap();
    let options = ServerOptions::new("test", "test");
    let server = net::server(listen, &credentials, &keys, options).unwrap();
    let config = dir.path().join("agent.toml");
    let text = format!(
        "master = \"{}\"\nstate_dir = \"{}\"\nbeat = \"200ms\"\nstop_grace = \"1s\"\n",
        server.local_address(),
        dir.path().join("agent").display()
    );
    fs::write(&config, text).unwrap();
    World { dir, config, server, agents: Vec::new() }
}

impl World {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_optimus-agent"));
        command.arg("--config").arg(&self.config).args(arguments);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Starts the agent; gives its pid.
    fn start(&mut self) -> Pid {
        let child = self.command(&[]).spawn().unwrap();
        let pid = i32::try_from(child.id().unwrap()).unwrap();
        self.agents.push(child);
        Pid::from_raw(pid)
    }

    async fn ended(&mut self) -> ExitStatus {
        let child = self.agents.last_mut().unwrap();
        tokio::time::timeout(LIMIT, child.wait()).await.unwrap().unwrap()
    }

    /// The agent's next connection and its introduction.
    async fn connected(&self) -> (Session, Introduction) {
        let incoming = tokio::time::timeout(LIMIT, self.server.accept()).await.unwrap().unwrap();
        let mut session = incoming.handshake().await.unwrap();
        match session.reader.receive().await.unwrap() {
            Some(FromAgent::Introduction(introduction)) => (session, introduction),
            other => panic!("{other:?} in place of an introduction"),
        }
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.path().join("agent")
    }
}

impl Drop for World {
    /// A failed test must not leave its tasks in the machine.
    fn drop(&mut self) {
        for agent in &mut self.agents {
            if agent.start_kill().is_ok() {
                while matches!(agent.try_wait(), Ok(None)) {
                    std::thread::yield_now();
                }
            }
        }
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_optimus-agent"));
        command.arg("--config").arg(&self.config).arg("stop-tasks").stderr(Stdio::null());
        let _ = command.status();
    }
}

fn desired(revision: u64, generations: Vec<DesiredGeneration>) -> ToAgent {
    ToAgent::Desired(Desired { revision: Revision(revision), generations })
}

/// A loopback address of its own for each call, so that tests side by side never meet at a port.
fn root_host() -> Ipv4Addr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, CALLS.fetch_add(1, Ordering::Relaxed))
}

fn generation(order: Order) -> DesiredGeneration {
    let launch = Launch {
        job_name: "test".to_owned(),
        command: ["sh", "-c", "echo from $OPTIMUS_ROLE; exec sleep 1000"]
            .map(str::to_owned)
            .to_vec(),
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
    let (job, generation) = (JobId(1), Generation(1));
    DesiredGeneration { job, generation, order, launch, checkpoint: None }
}

/// Takes heartbeats until one is as wanted.
async fn until(session: &mut Session, wanted: impl Fn(&Heartbeat) -> bool) -> Heartbeat {
    let search = async {
        loop {
            match session.reader.receive().await.unwrap() {
                Some(FromAgent::Heartbeat(heartbeat)) if wanted(&heartbeat) => return heartbeat,
                Some(FromAgent::Heartbeat(_) | FromAgent::Notes(_) | FromAgent::Node(_)) => {}
                other => panic!("{other:?} in place of a heartbeat"),
            }
        }
    };
    tokio::time::timeout(LIMIT, search).await.unwrap()
}

fn pids(heartbeat: &Heartbeat) -> BTreeMap<Task, u32> {
    let running = heartbeat.tasks.iter().filter_map(|report| match report.state {
        TaskState::Running { pid, .. } if 0 < pid => Some((report.task, pid)),
        TaskState::Running { .. } | TaskState::Exited(_) => None,
    });
    running.collect()
}

fn exits(heartbeat: &Heartbeat) -> Vec<&Exit> {
    let exited = heartbeat.tasks.iter().filter_map(|report| match &report.state {
        TaskState::Exited(exit) => Some(exit),
        TaskState::Running { .. } => None,
    });
    exited.collect()
}

/// A zombie does not: whoever must reap it may take its time.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[tokio::test]
async fn tasks_outlive_their_agent_and_are_taken_back_and_ended() {
    let mut world = world("binary-1");
    let agent = world.start();
    let (mut session, first) = world.connected().await;
    assert_eq!((first.beat_ms, first.first.tasks.len()), (200, 0));
    assert!(0 < first.first.capacity.cpus_milli && 0 < first.first.load.memory_bytes_total);
    session.writer.send(&desired(10, vec![generation(Order::Start)])).await.unwrap();
    let beat = until(&mut session, |beat| pids(beat).len() == 3).await;
    let tasks = pids(&beat);
    assert_eq!(beat.obeyed, Revision(10));

    let query =
        AgentQuery::Log { job: JobId(1), generation: None, task: Task::worker(0), bytes_max: 1000 };
    let (mut writer, mut reader) = session.connection.open_bi().await.unwrap();
    writer.send(&query).await.unwrap();
    let answer: Option<AgentAnswer> = reader.receive().await.unwrap();
    let log = AgentAnswer::Log { generation: Generation(1), text: b"from worker\n".to_vec() };
    assert_eq!(answer, Some(log));

    kill(agent, Signal::SIGKILL).unwrap();
    world.ended().await;
    let agent = world.start();
    let (mut session, second) = world.connected().await;
    assert_eq!(second.incarnation, first.incarnation.next());
    assert_eq!(second.boot_id, first.boot_id);
    assert_eq!(pids(&second.first), tasks, "the same processes");
    assert_eq!(second.first.obeyed, Revision(10));

    // A set of an older master changes nothing; the end of the service does not end training.
    session.writer.send(&desired(9, Vec::new())).await.unwrap();
    until(&mut session, |beat| pids(beat) == tasks).await;
    kill(agent, Signal::SIGTERM).unwrap();
    assert!(world.ended().await.success());
    assert!(tasks.values().all(|pid| lives(*pid)));

    world.start();
    let (mut session, _) = world.connected().await;
    let stop = generation(Order::Stop { grace_ms: 5000 });
    session.writer.send(&desired(11, vec![stop])).await.unwrap();
    let beat = until(&mut session, |beat| exits(beat).len() == 3).await;
    assert!(exits(&beat).iter().all(|exit| exit.ordered), "{beat:?}");
    assert!(!tasks.values().any(|pid| lives(*pid)));
    session.writer.send(&desired(12, Vec::new())).await.unwrap();
    until(&mut session, |beat| beat.tasks.is_empty()).await;
}

/// A worker that says a learning rate as the package does.
const SAYS_A_RATE: &str = r#"
import os, socket, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
text = '{"v":1,"role":"worker","i":0,"t":"hello","learning_rate":0.05,"learning_rate_step":41}'
s.sendto(text.encode(), os.environ["OPTIMUS_DIR"] + "/report.sock")
time.sleep(1000)
"#;

/// The next message that is no heartbeat.
async fn rates(session: &mut Session) -> Vec<RateReport> {
    let search = async {
        loop {
            match session.reader.receive().await.unwrap() {
                Some(FromAgent::Rates(rates)) => return rates,
                Some(FromAgent::Heartbeat(_) | FromAgent::Notes(_) | FromAgent::Node(_)) => {}
                other => panic!("{other:?} in place of learning rates"),
            }
        }
    };
    tokio::time::timeout(LIMIT, search).await.unwrap()
}

#[tokio::test]
async fn a_learning_rate_is_told_once_to_each_master_that_knows_the_message() {
    let mut world = world("binary-5");
    world.start();
    let (mut session, _) = world.connected().await;
    let mut wanted = generation(Order::Start);
    let script = "test $OPTIMUS_ROLE = worker && exec python3 -c \"$SAYS\"; exec sleep 1000";
    wanted.launch.command = ["sh", "-c", script].map(str::to_owned).to_vec();
    wanted.launch.environment.insert("SAYS".to_owned(), SAYS_A_RATE.to_owned());
    session.writer.send(&desired(10, vec![wanted])).await.unwrap();
    let (job, generation) = (JobId(1), Generation(1));
    let told = [RateReport { job, generation, worker: 0, step: 41, rate: 0.05 }];
    assert_eq!(rates(&mut session).await, told);
    for _ in 0..3 {
        until(&mut session, |_| true).await;
    }
    session.connection.close(net::Close::Shutdown, "the master restarts");
    let (mut session, _) = world.connected().await;
    assert_eq!(rates(&mut session).await, told, "again to the next one");
}

#[tokio::test]
async fn stop_tasks_ends_all_where_no_agent_runs() {
    let mut world = world("binary-2");
    let agent = world.start();
    let (mut session, _) = world.connected().await;
    session.writer.send(&desired(10, vec![generation(Order::Start)])).await.unwrap();
    let tasks = pids(&until(&mut session, |beat| pids(beat).len() == 3).await);
    let refused = world.command(&["stop-tasks"]).stderr(Stdio::piped()).output().await.unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("another agent uses"), "{words}");
    kill(agent, Signal::SIGTERM).unwrap();
    world.ended().await;
    let done = world.command(&["stop-tasks"]).output().await.unwrap();
    assert!(done.status.success(), "{done:?}");
    assert!(!tasks.values().any(|pid| lives(*pid)));
}

#[tokio::test]
async fn what_the_node_enforces_is_told_and_holds() {
    let mut world = world("binary-6");
    let agent = world.start();
    let (mut session, _) = world.connected().await;
    let search = async {
        loop {
            match session.reader.receive().await.unwrap() {
                Some(FromAgent::Node(notes)) => return notes,
                Some(_) => {}
                None => panic!("the agent has left"),
            }
        }
    };
    let notes = tokio::time::timeout(LIMIT, search).await.unwrap();
    let isolation = notes.isolation;
    assert!(isolation.groups || !isolation.missing.is_empty(), "{isolation:?}");
    session.writer.send(&desired(10, vec![generation(Order::Start)])).await.unwrap();
    let tasks = pids(&until(&mut session, |beat| pids(beat).len() == 3).await);
    let group = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        text.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned))
    };
    if isolation.groups {
        let own = group(u32::try_from(agent.as_raw()).unwrap());
        for (task, pid) in tasks {
            let found = group(pid);
            assert_ne!(found, own);
            assert!(found.unwrap().ends_with(&format!("/tasks/j1-g1/{task}")));
        }
    }
    session.writer.send(&desired(11, Vec::new())).await.unwrap();
    until(&mut session, |beat| beat.tasks.is_empty()).await;
    kill(agent, Signal::SIGTERM).unwrap();
    assert!(world.ended().await.success());
}

#[tokio::test]
async fn a_lost_master_is_found_again() {
    let mut world = world("binary-3");
    world.start();
    let (session, first) = world.connected().await;
    session.connection.close(net::Close::Shutdown, "the master restarts");
    let (_session, second) = world.connected().await;
    assert_eq!(second.incarnation, first.incarnation, "the same life of the agent");
    assert!(world.state_dir().join("ledger").exists());
}

/// Resident memory in kB, and CPU time in clock ticks of 10 ms, of a process so far.
fn cost(pid: Pid) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = resident.trim().trim_end_matches(" kB").parse().unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let ticks = rest.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    (resident, ticks)
}

#[tokio::test]
async fn an_idle_agent_costs_little() {
    let mut world = world("binary-4");
    let agent = world.start();
    let (mut session, first) = world.connected().await;
    session.writer.send(&desired(10, Vec::new())).await.unwrap();
    let beats = 20;
    let until_beat = |number| move |beat: &Heartbeat| number <= beat.sequence;
    until(&mut session, until_beat(3)).await;
    let (_, before) = cost(agent);
    until(&mut session, until_beat(3 + beats)).await;
    let (resident_kb, after) = cost(agent);
    // At ten times the usual rate of heartbeats, in an unoptimised build: 5 % of a core.
    let busy_ms = (after - before) * 10;
    let passed_ms = beats * first.beat_ms;
    println!("idle: {resident_kb} kB resident, {busy_ms} ms of CPU in {passed_ms} ms");
    assert!(busy_ms * 20 <= passed_ms, "{busy_ms} ms of CPU in {passed_ms} ms");
    assert!(resident_kb < 30_000, "{resident_kb} kB resident");
}

#[tokio::test]
async fn the_version_is_told_without_any_configuration() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_optimus-agent"));
    let output = command.arg("--version").output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let start = format!("optimus-agent {} (commit ", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&start) && text.ends_with(", protocol 1 to 4)\n"), "{text}");
}
