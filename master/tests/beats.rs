//! A master with many agents, one of which sends output as fast as anyone takes it: the beats of
//! the others are heard all the same.

#![expect(clippy::unwrap_used, reason = "a helper of tests may panic as tests do")]
#![expect(clippy::print_stdout, reason = "figures for whoever runs it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::agent::{
    AgentAnswer, AgentQuery, FromAgent, Heartbeat, Introduction, ProbeAct, ToAgent,
};
use model::client::{Answer, Call, Change, Read, Reply, Request};
use model::reason::Reachability;
use model::{
    Batch, BootId, Bounds, Finish, Framework, Generation, Incarnation, JobId, JobOptions, JobSpec,
    Mode, NodeId, OnDisconnect, Resources, Task,
};
use net::{ConnectOptions, Connection, Credentials, Role, Session, TlsFiles};

const AGENTS: usize = 200;
const BEAT: Duration = Duration::from_millis(500);
/// Output of one answer; a master asks for no more at once.
const PIECE: u32 = 1 << 20;
const PIECES: u64 = 96;
/// What README and reports name: by hand, with --ignored.
const PIECES_OF_A_GIB: u64 = 1024;

/// A master's process and its folder.
struct Master {
    process: Child,
    folder: tempfile::TempDir,
    address: std::net::SocketAddr,
}

impl Drop for Master {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

fn name(number: usize) -> String {
    format!("n{number}")
}

#[expect(clippy::disallowed_methods, reason = "certificates begin now")]
fn wall() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

impl Master {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (path, pki) = (folder.path(), folder.path().join("pki"));
        std::fs::create_dir(&pki).unwrap();
        for number in 0..AGENTS {
            net::pki::prepare(&pki, "test", &name(number), "ada", wall()).unwrap();
        }
        let own = TlsFiles::in_folder(&pki, Role::Master, "");
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        drop(port);
        let show = |file: &Path| file.display().to_string();
        let config = format!(
            "cluster = \"test\"\nlisten = \"{address}\"\nstate_dir = \"{}\"\n[tls]\nca = \"{}\"\n\
             certificate = \"{}\"\nkey = \"{}\"\n",
            show(&path.join("master")),
            show(&own.ca),
            show(&own.certificate),
            show(&own.key)
        );
        let file = path.join("master.toml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(path.join("log")).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_optimus-master"))
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { process, folder, address }
    }

    fn pki(&self) -> PathBuf {
        self.folder.path().join("pki")
    }

    async fn connect(&self, role: Role, name: &str) -> Session {
        let files = TlsFiles::in_folder(&self.pki(), role, name);
        let credentials = Credentials::load(&files, role, wall()).unwrap();
        let options = ConnectOptions::new("test");
        let mut tries = 0;
        loop {
            match Box::pin(net::connect(self.address, &credentials, &options)).await {
                Ok(session) => return session,
                Err(error) => {
                    tries += 1;
                    assert!(tries < 100, "{error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

fn heartbeat(sequence: u64) -> Heartbeat {
    let capacity = Resources::new(4_000, 1 << 30, 0);
    Heartbeat { sequence, capacity, ..Heartbeat::default() }
}

/// Answers whatever the master asks, output above all.
async fn answer(connection: Connection) {
    while let Ok((mut writer, mut reader)) = connection.accept_bi().await {
        tokio::spawn(async move {
            let Ok(Some(query)) = reader.receive::<AgentQuery>().await else { return };
            let answer = match query {
                AgentQuery::Log { bytes_max, .. } => AgentAnswer::Log {
                    generation: Generation(1),
                    text: vec![b'x'; usize::try_from(bytes_max).unwrap()],
                },
                AgentQuery::Probe { folder, name, act } => {
                    let folder = Path::new(folder.strip_prefix("file://").unwrap()).join(name);
                    let done = match act {
                        ProbeAct::Make => std::fs::create_dir_all(&folder).is_ok(),
                        ProbeAct::Look => folder.is_dir(),
                        ProbeAct::Remove => std::fs::remove_dir(&folder).is_err(),
                    };
                    AgentAnswer::Probed(done)
                }
                AgentQuery::CertificateRequest | AgentQuery::CertificateInstall { .. } => {
                    AgentAnswer::Refused("not here".to_owned())
                }
            };
            if writer.send(&answer).await.is_ok() {
                let _gone = writer.finished().await;
            }
        });
    }
}

/// An agent that beats until its connection ends; counts what it sent.
async fn beat(session: Session, sent: Arc<AtomicU64>) {
    let Session { connection, mut writer, mut reader, .. } = session;
    let introduction = Introduction {
        incarnation: Incarnation(1),
        boot_id: BootId("b".to_owned()),
        software: "optimus-agent 0.1.0".to_owned(),
        unix_ms: 0,
        task_address: "127.0.0.1".to_owned(),
        beat_ms: 500,
        first: heartbeat(0),
    };
    writer.send(&FromAgent::Introduction(introduction)).await.unwrap();
    tokio::spawn(answer(connection.clone()));
    let mut every = tokio::time::interval(BEAT);
    let mut sequence = 0;
    loop {
        tokio::select! {
            _ = every.tick() => {
                sequence += 1;
                if writer.send(&FromAgent::Heartbeat(heartbeat(sequence))).await.is_err() {
                    return;
                }
                sent.fetch_add(1, Ordering::Relaxed);
            }
            told = reader.receive::<ToAgent>() => if !matches!(told, Ok(Some(_))) { return },
        }
    }
}

async fn ask(connection: &Connection, call: Call) -> Reply {
    let (mut writer, mut reader) = connection.open_bi().await.unwrap();
    writer.send(&Request { dry_run: false, reason: None, call }).await.unwrap();
    writer.finish();
    reader.receive::<Reply>().await.unwrap().expect("a reply")
}

fn spec() -> JobSpec {
    JobSpec {
        name: "chatty".to_owned(),
        command: vec!["python3".to_owned()],
        working_directory: "/tmp".to_owned(),
        framework: Framework::Mxnet,
        mode: Mode::Sync,
        batch: Batch::Global(64),
        worker: Resources::new(1000, 1 << 20, 0),
        server: Resources::new(500, 1 << 20, 0),
        workers: Bounds { min: 1, max: 1 },
        servers: Bounds { min: 1, max: 1 },
        finish: Finish::Epochs(5),
        epochs_max: 5,
        checkpoint: "file:///tmp/optimus-no-checkpoints".to_owned(),
        checkpoint_interval_s: 600,
        environment: std::collections::BTreeMap::new(),
        priority: 1.0,
        on_disconnect: OnDisconnect::Keep,
        restarts_max: 5,
        model_key: None,
    }
}

/// Waits until a worker of the job has a place, so that its output can be asked for.
async fn place(operator: &Connection, job: JobId) {
    for _ in 0..600 {
        let reply = ask(operator, Call::Read(Read::Job { job })).await;
        let Ok(Answer::Job(detail)) = reply else { panic!("{reply:?}") };
        if !detail.placement.0.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{job} gets no place");
}

/// The age of each node's newest beat, in s, and who is not UP.
async fn ages(operator: &Connection) -> (Vec<f64>, Vec<NodeId>) {
    let reply = ask(operator, Call::Read(Read::Nodes)).await;
    let Ok(Answer::Nodes(rows)) = reply else { panic!("{reply:?}") };
    assert_eq!(rows.len(), AGENTS);
    let not_up = rows.iter().filter(|row| row.reachability != Reachability::Up);
    let not_up = not_up.map(|row| row.id.clone()).collect();
    (rows.iter().filter_map(|row| row.heartbeat_age_s).collect(), not_up)
}

/// Reads a piece of output again and again, as `logs --follow` does.
async fn read_output(operator: Connection, job: JobId, pieces: u64) -> u64 {
    let mut bytes = 0;
    for _ in 0..pieces {
        let task = Task::worker(0);
        let read = Read::Log { job, generation: None, task, bytes_max: PIECE };
        match ask(&operator, Call::Read(read)).await {
            Ok(Answer::Log { text, .. }) => bytes += u64::try_from(text.len()).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    bytes
}

async fn story(pieces: u64) {
    let master = Master::start();
    let sent = Arc::new(AtomicU64::new(0));
    for number in 0..AGENTS {
        let session = master.connect(Role::Agent, &name(number)).await;
        tokio::spawn(beat(session, Arc::clone(&sent)));
    }
    let operator = master.connect(Role::Admin, "ada").await.connection;
    // Nothing is ever saved there.
    let options = JobOptions { checkpoint_shared: true, ..JobOptions::default() };
    let submit = Change::SubmitWith { spec: spec(), request_id: None, options };
    let submitted = ask(&operator, Call::Change(submit)).await;
    let Ok(Answer::Submitted { job, .. }) = submitted else { panic!("{submitted:?}") };
    place(&operator, job).await;
    let before = sent.load(Ordering::Relaxed);
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let reader = master.connect(Role::Admin, "ada").await.connection;
        readers.spawn(read_output(reader, job, pieces / 4));
    }
    let (mut all, mut looks, mut bytes) = (Vec::new(), 0, 0);
    let mut every = tokio::time::interval(Duration::from_millis(250));
    loop {
        tokio::select! {
            _ = every.tick() => {
                let (ages, not_up) = ages(&operator).await;
                assert!(not_up.is_empty(), "lost: {not_up:?}");
                all.extend(ages);
                looks += 1;
            }
            read = readers.join_next() => match read {
                Some(read) => bytes += read.unwrap(),
                None => break,
            },
        }
    }
    assert_eq!(bytes, pieces * u64::from(PIECE));
    let reply = ask(&operator, Call::Read(Read::Status)).await;
    let Ok(Answer::Status(status)) = reply else { panic!("{reply:?}") };
    assert!(
        status
            .reports_refused
            .iter()
            .all(|(kind, count)| !kind.contains("heartbeat") || *count == 0),
        "{:?}",
        status.reports_refused
    );
    all.sort_by(f64::total_cmp);
    let at = |share: usize| all.get(all.len() * share / 1000).copied().unwrap_or(f64::NAN);
    println!(
        "{} MiB of output, {AGENTS} agents, {} beats sent meanwhile, {looks} looks: age of the \
         newest beat p50 {:.2} s, p99 {:.2} s, p99.9 {:.2} s, most {:.2} s (one every {:.1} s)",
        bytes >> 20,
        sent.load(Ordering::Relaxed) - before,
        at(500),
        at(990),
        at(999),
        all.last().copied().unwrap_or(f64::NAN),
        BEAT.as_secs_f64()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_beat_is_lost_behind_a_flood_of_output() {
    story(PIECES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a GiB takes a minute, for the figures that it prints: by hand with --ignored"]
async fn no_beat_is_lost_behind_a_gib_of_output() {
    story(PIECES_OF_A_GIB).await;
}
