//! Real connections against the sessions, with a loop that only listens and answers reads.

#![expect(clippy::wildcard_enum_match_arm, reason = "any other variant fails the test")]

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use model::agent::{
    Desired, DesiredGeneration, FromAgent, Heartbeat, Introduction, Launch, Order, RateReport,
    ToAgent,
};
use model::client::{Answer, Call, Change, ErrorKind, Read, Reply, Request};
use model::{BootId, Incarnation, JobId, Revision};
use net::{Credentials, FrameError, Lost, ResetKeys, ServerOptions, Session, TlsFiles};
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::clock::Clock;
use crate::door::{AgentHandle, INPUTS_MAX, Input, Peer, QUERIES_MAX, Query};
use crate::pki::Certificates;

const LIMIT: Duration = Duration::from_secs(20);

pub(super) struct World {
    pub(super) folder: tempfile::TempDir,
    pub(super) clock: Clock,
    server: Arc<Server>,
    counters: Arc<Counters>,
    inputs: mpsc::Receiver<Input>,
    /// What the loop says of connected agents.
    pub(super) peers: Arc<Mutex<Vec<Peer>>>,
}

fn heartbeat(sequence: u64) -> Heartbeat {
    Heartbeat { sequence, ..Heartbeat::default() }
}

fn introduction() -> FromAgent {
    FromAgent::Introduction(Introduction {
        incarnation: Incarnation(1),
        boot_id: BootId("b".to_owned()),
        software: "test".to_owned(),
        unix_ms: 0,
        task_address: "127.0.0.1".to_owned(),
        beat_ms: 2000,
        first: heartbeat(0),
    })
}

pub(super) fn files(folder: &Path, role: Role, name: &str) -> TlsFiles {
    TlsFiles::in_folder(folder, role, name)
}

impl World {
    /// Must be called within a runtime.
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::start();
        let path = folder.path();
        net::pki::prepare(path, "test", "n1", "ada", clock.wall()).unwrap();
        net::pki::prepare(path, "test", "n2", "ada", clock.wall()).unwrap();
        let own = files(path, Role::Master, "");
        let credentials = Credentials::load(&own, Role::Master, clock.wall()).unwrap();
        let server = net::server(
            "127.0.0.1:0".parse().unwrap(),
            &credentials,
            &ResetKeys::random().unwrap(),
            ServerOptions::new("test", "test"),
        );
        let server = Arc::new(server.unwrap());
        let certificates = Arc::new(Certificates::of_files(own, path, clock));
        certificates.load().unwrap();
        certificates.attach(Arc::clone(&server));
        let (send_inputs, inputs) = mpsc::channel(INPUTS_MAX);
        let (send_queries, mut queries) = mpsc::channel(QUERIES_MAX);
        let counters = Arc::new(Counters::default());
        let door = Door {
            inputs: send_inputs,
            queries: send_queries,
            counters: Arc::clone(&counters),
            clock,
            cluster: "test".into(),
            snapshots: Arc::new(Semaphore::new(1)),
            sessions: Arc::default(),
            requests: Arc::new(Semaphore::new(64)),
            audit: crate::audit::Audit::start(path).unwrap(),
            shares: Arc::default(),
            certificates: Arc::clone(&certificates),
            hdfs: storage::HdfsSettings::default(),
            room: crate::room::Room::new(
                Arc::new(crate::disk::Disk::new(path).unwrap()),
                Arc::default(),
            ),
        };
        tokio::spawn(accept(Arc::clone(&server), door));
        let peers: Arc<Mutex<Vec<Peer>>> = Arc::default();
        let told = Arc::clone(&peers);
        tokio::spawn(async move {
            while let Some(query) = queries.recv().await {
                match query {
                    Query::Read { read, reply, .. } => {
                        let long = matches!(*read, Read::Events { .. });
                        let answer = if long { pieces_tests::long() } else { Answer::Jobs(vec![]) };
                        reply.send(Ok(answer)).unwrap();
                    }
                    Query::Export { reply, .. } => {
                        let (told, export) = tokio::sync::oneshot::channel();
                        told.send(Ok(vec![7; 2_500_000])).unwrap();
                        reply.send(export).unwrap();
                    }
                    Query::Admit { reply, .. } => reply.send(Ok(())).unwrap(),
                    Query::Agents { reply } => reply.send(told.lock().unwrap().clone()).unwrap(),
                    Query::CertificateEnds { reply } => reply.send(Vec::new()).unwrap(),
                    Query::LogRoute { .. } => panic!("nobody asks for a log here"),
                }
            }
        });
        Self { folder, clock, server, counters, inputs, peers }
    }

    pub(super) async fn connect(&self, role: Role, name: &str) -> Session {
        self.connect_at(role, name, net::PROTOCOL).await
    }

    async fn connect_at(
        &self,
        role: Role,
        name: &str,
        versions: std::ops::RangeInclusive<u16>,
    ) -> Session {
        let own = files(self.folder.path(), role, name);
        let credentials = Credentials::load(&own, role, self.clock.wall()).unwrap();
        let options = net::ConnectOptions { versions, ..net::ConnectOptions::new("test") };
        net::connect(self.server.local_address(), &credentials, &options).await.unwrap()
    }

    pub(super) async fn agent(&mut self, name: &str) -> (Session, SessionId, AgentHandle) {
        let session = self.connect(Role::Agent, name).await;
        self.introduced(name, session).await
    }

    async fn introduced(
        &mut self,
        name: &str,
        mut session: Session,
    ) -> (Session, SessionId, AgentHandle) {
        session.writer.send(&introduction()).await.unwrap();
        match self.input().await {
            Input::Connected { session: id, handle, introduction } => {
                assert_eq!(handle.node.as_str(), name);
                assert_eq!(introduction.beat_ms, 2000);
                let AgentHandle { node, boot, protocol, connection, .. } = &handle;
                let peer = (node.clone(), boot.clone(), *protocol, connection.clone());
                self.peers.lock().unwrap().push(peer);
                (session, id, handle)
            }
            other => panic!("{other:?} came instead of {name}"),
        }
    }

    /// What a peer is told that is not let in.
    pub(super) async fn refused(&self, role: Role, name: &str) -> String {
        let own = files(self.folder.path(), role, name);
        let credentials = Credentials::load(&own, role, self.clock.wall()).unwrap();
        let options = net::ConnectOptions::new("test");
        let refused = net::connect(self.server.local_address(), &credentials, &options).await;
        refused.unwrap_err().to_string()
    }

    async fn input(&mut self) -> Input {
        tokio::time::timeout(LIMIT, self.inputs.recv()).await.unwrap().unwrap()
    }
}

pub(super) async fn ask(session: &Session, call: Call) -> Reply {
    let (mut writer, mut reader) = session.connection.open_bi().await.unwrap();
    let request = Request { dry_run: false, reason: None, call };
    writer.send(&request).await.unwrap();
    writer.finish();
    tokio::time::timeout(LIMIT, reader.receive::<Reply>()).await.unwrap().unwrap().unwrap()
}

pub(super) async fn closed_words(session: &Session) -> String {
    match tokio::time::timeout(LIMIT, session.connection.closed()).await.unwrap() {
        Lost::Closed { reason, .. } => reason,
        other => panic!("closed without words: {other}"),
    }
}

#[tokio::test]
async fn an_operator_reads_and_changes_and_an_agent_may_not() {
    let mut world = World::new();
    let operator = world.connect(Role::Operator, "ada").await;
    assert_eq!(ask(&operator, Call::Read(Read::Jobs)).await, Ok(Answer::Jobs(vec![])));
    let cancel = || Call::Change(Change::Cancel { job: JobId(3), now: false });
    let answer = async {
        match world.input().await {
            Input::Change(request) => {
                assert_eq!(request.asker.user, "ada");
                let done = Answer::Accepted { job: None, node: None, note: "done".to_owned() };
                request.reply.send(Ok(done)).unwrap();
            }
            other => panic!("{other:?}"),
        }
    };
    let (reply, ()) = tokio::join!(ask(&operator, cancel()), answer);
    assert!(matches!(reply, Ok(Answer::Accepted { .. })), "{reply:?}");

    let (agent, _, _handle) = world.agent("n1").await;
    for call in [cancel(), Call::Read(Read::Jobs)] {
        let refusal = ask(&agent, call).await.unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::NotAllowed);
        assert!(refusal.message.contains("agent n1"), "{}", refusal.message);
    }
    assert_eq!(world.counters.requests_not_allowed.load(Ordering::Relaxed), 2);
    assert!(world.inputs.try_recv().is_err(), "the change came through");
}

#[tokio::test]
async fn an_operator_cannot_introduce_an_agent() {
    let mut world = World::new();
    let mut operator = world.connect(Role::Operator, "ada").await;
    operator.writer.send(&introduction()).await.unwrap();
    let words = closed_words(&operator).await;
    assert!(words.contains("operator ada cannot introduce an agent"), "{words}");
    assert!(world.inputs.try_recv().is_err());
}

#[tokio::test]
async fn a_malformed_frame_ends_its_own_session_alone_and_in_words() {
    let mut world = World::new();
    let (mut good, good_id, _handle) = world.agent("n1").await;
    let (mut bad, bad_id, _other) = world.agent("n2").await;
    bad.writer.send(&vec![0xee_u8; 64]).await.unwrap();
    let words = closed_words(&bad).await;
    assert!(words.contains("FromAgent"), "{words}");
    match world.input().await {
        Input::Disconnected { session, .. } => assert_eq!(session, bad_id),
        other => panic!("{other:?}"),
    }
    let operator = world.connect(Role::Operator, "ada").await;
    let (mut writer, mut reader) = operator.connection.open_bi().await.unwrap();
    writer.send(&vec![0xee_u8; 64]).await.unwrap();
    match reader.receive::<Reply>().await {
        Ok(Some(Err(refusal))) => assert_eq!(refusal.kind, ErrorKind::Invalid),
        // The close may overtake the refusal.
        other => assert!(matches!(other, Err(FrameError::Lost(_))), "{other:?}"),
    }
    assert!(closed_words(&operator).await.contains("Request"));
    assert_eq!(world.counters.frames_malformed.load(Ordering::Relaxed), 2);
    good.writer.send(&FromAgent::Heartbeat(heartbeat(9))).await.unwrap();
    match world.input().await {
        Input::Heartbeat { session, heartbeat, .. } => {
            assert_eq!((session, heartbeat.sequence), (good_id, 9));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn learning_rates_come_through_and_a_flood_of_them_waits() {
    let mut world = World::new();
    let (mut agent, id, _handle) = world.agent("n1").await;
    // More than are let through at once; all of them come.
    for step in 0..30 {
        let rate = RateReport {
            job: model::JobId(1),
            generation: model::Generation(1),
            worker: 0,
            step,
            rate: 0.1,
        };
        agent.writer.send(&FromAgent::Rates(vec![rate])).await.unwrap();
    }
    for step in 0..30 {
        match world.input().await {
            Input::Rates { session, rates, .. } => assert_eq!((session, rates[0].step), (id, step)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.counters.frames_malformed.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_flood_of_heartbeats_is_thinned_and_counted() {
    let mut world = World::new();
    let (mut agent, _, _handle) = world.agent("n1").await;
    for sequence in 1..=200 {
        agent.writer.send(&FromAgent::Heartbeat(heartbeat(sequence))).await.unwrap();
    }
    let dropped = || world.counters.heartbeats_over_rate.load(Ordering::Relaxed);
    let whole = async {
        while dropped() < 10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, whole).await.unwrap();
    assert!(world.inputs.len() < 150, "{} came through", world.inputs.len());
}

#[tokio::test]
async fn of_many_desired_sets_a_slow_agent_gets_the_newest() {
    let mut world = World::new();
    let (mut agent, id, handle) = world.agent("n1").await;
    for number in 1..=100 {
        let desired = Desired { revision: Revision(number), generations: vec![] };
        let orders = model::nodes::NodeOrders::default();
        handle.desired.send_replace(Some((desired, model::notes::Extras::default(), orders)));
    }
    let mut seen = Vec::new();
    while seen.last() != Some(&100) {
        let received =
            tokio::time::timeout(LIMIT, agent.reader.receive::<ToAgent>()).await.unwrap();
        match received.unwrap().unwrap() {
            ToAgent::Desired(desired) => seen.push(desired.revision.0),
            ToAgent::Extras(extras) => assert_eq!(extras, model::notes::Extras::default()),
            ToAgent::Orders(orders) => assert_eq!(orders, model::nodes::NodeOrders::default()),
        }
    }
    assert!(seen.is_sorted() && seen.len() < 100, "{seen:?}");
    drop(agent);
    match world.input().await {
        Input::Disconnected { node, session } => {
            assert_eq!((node.as_str(), session), ("n1", id));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_desired_set_over_the_limit_ends_no_session() {
    let mut world = World::new();
    let (mut agent, _, handle) = world.agent("n1").await;
    let large = DesiredGeneration {
        job: JobId(1),
        generation: model::Generation(1),
        order: Order::Start,
        launch: Launch {
            job_name: "large".to_owned(),
            command: vec!["x".repeat(net::FRAME_BYTES_MAX)],
            working_directory: "/".to_owned(),
            environment: std::collections::BTreeMap::new(),
            mode: model::Mode::Sync,
            batch: model::Batch::Global(1),
            epochs_max: 1,
            shape: model::Shape::new(1, 1),
            tasks: Vec::new(),
            worker: model::Resources::default(),
            server: model::Resources::default(),
            root_host: "127.0.0.1".to_owned(),
            root_port: 1,
            resume: None,
            on_disconnect: model::OnDisconnect::Keep,
        },
        checkpoint: None,
    };
    let give = |number, generations| {
        let desired = Desired { revision: Revision(number), generations };
        let (extras, orders) =
            (model::notes::Extras::default(), model::nodes::NodeOrders::default());
        handle.desired.send_replace(Some((desired, extras, orders)));
    };
    give(1, vec![large]);
    // It was taken up once its extras are here.
    let mut receive = async || {
        let received = tokio::time::timeout(LIMIT, agent.reader.receive::<ToAgent>()).await;
        received.unwrap().unwrap().unwrap()
    };
    assert!(matches!(receive().await, ToAgent::Extras(_)));
    give(2, Vec::new());
    loop {
        if let ToAgent::Desired(desired) = receive().await {
            assert_eq!(desired.revision, Revision(2));
            break;
        }
    }
    assert!(agent.connection.lost().is_none());
}

#[tokio::test]
async fn a_snapshot_comes_in_pieces_with_an_empty_one_last() {
    let world = World::new();
    let operator = world.connect(Role::Operator, "ada").await;
    let (mut writer, mut reader) = operator.connection.open_bi().await.unwrap();
    let request = Request { dry_run: false, reason: None, call: Call::Read(Read::Snapshot) };
    writer.send(&request).await.unwrap();
    let mut bytes = 0;
    loop {
        match reader.receive::<Reply>().await.unwrap().unwrap().unwrap() {
            Answer::SnapshotPiece(piece) if piece.is_empty() => break,
            Answer::SnapshotPiece(piece) => bytes += piece.len(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bytes, 2_500_000);
}

/// What a peer of the versions before knows, it gets; nothing else is sent to it.
#[tokio::test]
async fn peers_of_older_protocols_work_on_without_what_is_new() {
    let mut world = World::new();
    for newest in *net::PROTOCOL.start()..=*net::PROTOCOL.end() {
        let session = world.connect_at(Role::Agent, "n1", 1..=newest).await;
        let (mut agent, id, handle) = world.introduced("n1", session).await;
        assert_eq!((agent.protocol, handle.protocol), (newest, newest));
        let desired = Desired { revision: Revision(7), generations: vec![] };
        let new = (desired.clone(), model::notes::Extras::default(), Default::default());
        handle.desired.send_replace(Some(new));
        let mut told = Vec::new();
        loop {
            let came = tokio::time::timeout(LIMIT, agent.reader.receive::<ToAgent>()).await;
            match came.unwrap().unwrap().unwrap() {
                ToAgent::Extras(_) => told.push(3),
                ToAgent::Orders(_) => told.push(4),
                ToAgent::Desired(got) => break assert_eq!(got, desired),
            }
        }
        let known: Vec<u16> = (3..=newest).collect();
        assert_eq!(told, known, "to an agent of protocol {newest}");
        agent.writer.send(&FromAgent::Heartbeat(heartbeat(1))).await.unwrap();
        match world.input().await {
            Input::Heartbeat { session, .. } => assert_eq!(session, id),
            other => panic!("{other:?}"),
        }
        drop(agent);
        assert!(matches!(world.input().await, Input::Disconnected { .. }));
        let operator = world.connect_at(Role::Operator, "ada", 1..=newest).await;
        assert_eq!(operator.protocol, newest);
        assert_eq!(ask(&operator, Call::Read(Read::Jobs)).await, Ok(Answer::Jobs(vec![])));
    }
}

#[tokio::test]
async fn each_role_s_requests_carry_its_rank_and_leave_a_line() {
    let mut world = World::new();
    let now = world.clock.wall();
    let request = net::pki::Request { role: Role::User, name: "bob", addresses: &[], days: 1 };
    let folder = world.folder.path().to_owned();
    let ca = net::pki::load_ca(&folder, now).unwrap();
    ca.issue(&request, &folder, net::pki::Existing::Refuse, now).unwrap();
    for (role, name, rank) in [
        (Role::User, "bob", Rank::User),
        (Role::Operator, "ada", Rank::Operator),
        (Role::Admin, "ada", Rank::Admin),
    ] {
        let session = world.connect(role, name).await;
        let change = Call::Change(Change::Pause { job: JobId(3) });
        let answer = async {
            match world.input().await {
                Input::Change(request) => {
                    assert_eq!((request.asker.user.as_str(), request.asker.rank), (name, rank));
                    let refusal = model::client::Refusal::new(ErrorKind::NotAllowed, "no", "");
                    request.reply.send(Err(refusal)).unwrap();
                }
                other => panic!("{other:?}"),
            }
        };
        let (reply, ()) = tokio::join!(ask(&session, change), answer);
        assert!(reply.is_err());
        // The line was there before the answer was.
        let Ok(Answer::Audit(lines)) =
            ask(&session, Call::Read(Read::Audit { after: 0, limit: 1 })).await
        else {
            panic!("no lines")
        };
        let line = &lines[0];
        assert_eq!((line.user.as_str(), line.role.as_str()), (name, rank.name()));
        assert_eq!((line.request.as_str(), line.outcome.as_str()), ("pause j3", "no"));
        assert!(line.address.starts_with("127.0.0.1:"), "{}", line.address);
    }
    assert_eq!(world.counters.requests_not_allowed.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn an_agent_is_told_that_the_master_stops() {
    let mut world = World::new();
    let (session, _, handle) = world.agent("n1").await;
    drop(handle);
    assert_eq!(closed_words(&session).await, "the master is stopping");
}
