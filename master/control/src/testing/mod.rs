//! A small world in virtual time: agents that obey desired sets, trainings that step and save, a
//! store, and a network that can be cut. Stories about the state machine are told in it.

mod access;
mod agent;
mod assignment;
mod cancels;
mod chaos;
mod curves;
mod data;
mod diverged;
mod down_cap;
mod drain;
mod faults;
mod fuzz;
mod gpus;
mod leftovers;
mod masters;
mod node_identity;
mod peers;
mod rejects;
mod restarts;
mod storage;
mod stories;
mod stragglers;
mod stuck;
mod table;
mod told;
mod training;
mod trouble;
mod warm;

use std::collections::{BTreeMap, BTreeSet};

use model::client::{Answer, Change, Read, Reply};
use model::reason::PhaseName;
use model::view::{JobDetail, JobRow};
use model::{
    Batch, Bounds, Finish, Framework, Generation, JobId, JobSpec, Millis, Mode, NodeId,
    OnDisconnect, Resources, Shape, UnixMs,
};
use scheduler::snapshot::{Policy, Snapshot};

use crate::testing::agent::Agent;
use crate::testing::training::Training;
use crate::{
    Command, Control, Event, Key, Now, Publish, Published, Record, RequestKey, Settings, Write,
};

const TICK_MS: u64 = 250;

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) control: Control,
    pub(crate) settings: Settings,
    pub(crate) now: Millis,
    pub(crate) store: BTreeMap<Key, Record>,
    pub(crate) agents: BTreeMap<NodeId, Agent>,
    pub(crate) trainings: BTreeMap<(JobId, Generation), Training>,
    pub(crate) replies: BTreeMap<u64, Reply>,
    plans: Vec<(Millis, Snapshot, Policy)>,
    publishes: Vec<(Millis, Publish)>,
    /// Folders with all parts, with the steps that they hold; and those with a manifest.
    pub(crate) saved: BTreeMap<String, u64>,
    pub(crate) published: BTreeSet<String>,
    pub(crate) damaged: BTreeSet<String>,
    pub(crate) store_fails: bool,
    pub(crate) saves_fail: bool,
    /// Speeds of nodes as shares of the usual one.
    pub(crate) speeds: BTreeMap<NodeId, f64>,
    /// A failing save says that storage is away.
    pub(crate) storage_away: bool,
    /// Trainings that start now never make a step.
    pub(crate) hang_at_start: bool,
    requests: u64,
    sessions: u64,
    /// The master dies once so many commands were carried out.
    pub(crate) dies_after: Option<usize>,
    pub(crate) carried_out: usize,
    pub(crate) starts: u32,
    /// Faults of any kind that a plan was found to have.
    pub(crate) findings: Vec<String>,
    /// Agents speak protocol 3.
    pub(crate) notes: bool,
}

pub(crate) fn n(number: u32) -> NodeId {
    format!("n{number}").parse().unwrap()
}

pub(crate) fn settings() -> Settings {
    Settings {
        interval_ms: 60_000,
        profile_shapes_max: 3,
        profile_ms: 4_000,
        start_grace_ms: 20_000,
        start_timeout_ms: 60_000,
        checkpoint_timeout_ms: 30_000,
        stop_grace_ms: 5_000,
        backoff_ms: 2_000,
        backoff_ms_max: 60_000,
        stall_ms: 90_000,
        ..Settings::default()
    }
}

pub(crate) fn job(name: &str) -> JobSpec {
    JobSpec {
        name: name.to_owned(),
        command: vec!["python3".to_owned(), "train.py".to_owned()],
        working_directory: "/srv".to_owned(),
        framework: Framework::Mxnet,
        mode: Mode::Sync,
        batch: Batch::Global(64),
        worker: Resources::new(1000, 1 << 28, 0),
        server: Resources::new(500, 1 << 28, 0),
        workers: Bounds { min: 1, max: 4 },
        servers: Bounds { min: 1, max: 2 },
        finish: Finish::Convergence { threshold: 0.02, patience: 2 },
        epochs_max: 60,
        checkpoint: "file:///ckpt".to_owned(),
        checkpoint_interval_s: 60,
        environment: BTreeMap::new(),
        priority: 1.0,
        on_disconnect: OnDisconnect::Keep,
        restarts_max: 5,
        model_key: None,
    }
}

impl World {
    /// A fresh master and some nodes with so many cores each.
    pub(crate) fn new(nodes: u32, cores: u64) -> Self {
        Self::with(settings(), nodes, cores)
    }

    pub(crate) fn with(settings: Settings, nodes: u32, cores: u64) -> Self {
        let now = Millis(1_000);
        let (control, commands) = Control::new(settings.clone(), clocks(now), Vec::new()).unwrap();
        let mut world = Self {
            control,
            settings,
            now,
            store: BTreeMap::new(),
            agents: BTreeMap::new(),
            trainings: BTreeMap::new(),
            replies: BTreeMap::new(),
            plans: Vec::new(),
            publishes: Vec::new(),
            saved: BTreeMap::new(),
            published: BTreeSet::new(),
            damaged: BTreeSet::new(),
            store_fails: false,
            saves_fail: false,
            speeds: BTreeMap::new(),
            storage_away: false,
            hang_at_start: false,
            requests: 0,
            sessions: 0,
            dies_after: None,
            carried_out: 0,
            starts: 1,
            findings: Vec::new(),
            notes: true,
        };
        world.carry_out(commands);
        for number in 1..=nodes {
            let agent = Agent::new(Resources::new(cores * 1000, 8 << 30, 0), number);
            world.agents.insert(n(number), agent);
        }
        world
    }

    pub(crate) fn event(&mut self, event: Event) {
        let commands = self.control.step(clocks(self.now), event);
        // Also where the build does not do so by itself.
        self.control.assert_invariants();
        self.carry_out(commands);
    }

    fn carry_out(&mut self, commands: Vec<Command>) {
        for command in commands {
            if self.dies_after.is_some_and(|after| self.carried_out >= after) {
                self.dies_after = None;
                self.restart_master();
                return;
            }
            self.carried_out += 1;
            match command {
                Command::Persist(writes) => self.persist(writes),
                Command::Reply { request, reply } => {
                    self.replies.insert(request.0, *reply);
                }
                Command::SendDesired { node, session, desired, extras, orders } => {
                    told::assert_fits(&desired, &extras, &orders);
                    // A liar may have named another.
                    let Some(agent) = self.agents.get_mut(&node) else { continue };
                    if agent.session == Some(session) && agent.hears {
                        agent.extras = extras;
                        agent.orders = orders;
                        agent.obey(desired, self.now);
                    }
                }
                Command::Disconnect { session, .. } => {
                    for agent in self.agents.values_mut() {
                        if agent.session == Some(session) {
                            agent.session = None;
                        }
                    }
                }
                Command::Plan { snapshot, policy } => {
                    self.plans.push((self.now.plus(TICK_MS), *snapshot, policy));
                }
                Command::Publish(publish) => {
                    self.publishes.push((self.now.plus(TICK_MS), *publish));
                }
                Command::RemoveCheckpoint { directory, .. } => {
                    self.published.remove(&directory);
                    self.saved.remove(&directory);
                }
            }
        }
    }

    fn persist(&mut self, writes: Vec<Write>) {
        for write in writes {
            match write {
                Write::Put(record) => {
                    self.store.insert(record.key(), record);
                }
                Write::Delete(key) => {
                    self.store.remove(&key);
                }
            }
        }
    }

    /// The master dies with all that was in flight, and another starts from the store.
    pub(crate) fn restart_master(&mut self) {
        self.starts += 1;
        self.plans.clear();
        // What the storage thread had begun reaches the disk, but nobody hears of it.
        for (_, publish) in std::mem::take(&mut self.publishes) {
            self.published.insert(publish.directory);
        }
        for agent in self.agents.values_mut() {
            agent.session = None;
        }
        let records: Vec<Record> = self.store.values().cloned().collect();
        let (control, commands) =
            Control::new(self.settings.clone(), clocks(self.now), records).unwrap();
        self.control = control;
        self.carry_out(commands);
    }

    /// A quarter of a second passes.
    pub(crate) fn tick(&mut self) {
        self.now = self.now.plus(TICK_MS);
        self.train();
        self.tend_agents();
        self.assert_no_task_twice();
        let now = self.now;
        for (due, snapshot, policy) in std::mem::take(&mut self.plans) {
            if due > now {
                self.plans.push((due, snapshot, policy));
                continue;
            }
            let plan = scheduler::plan(&snapshot, &policy, &mut scheduler::Cache::default());
            let refused = scheduler::check(&snapshot, &plan);
            self.findings.extend(refused.iter().cloned());
            self.event(Event::RoundFinished { plan, refused, elapsed_s: 0.01 });
        }
        for (due, publish) in std::mem::take(&mut self.publishes) {
            if due > now {
                self.publishes.push((due, publish));
                continue;
            }
            let whole = self.saved.contains_key(&publish.directory) && !self.store_fails;
            let outcome = if whole {
                self.published.insert(publish.directory.clone());
                let manifest_url = format!("{}.json", publish.directory);
                Ok(Published { manifest_url, bytes: 1000 })
            } else {
                Err("cannot write the manifest: no space left on device".to_owned())
            };
            let Publish { job, generation, checkpoint, .. } = publish;
            self.event(Event::Published { job, generation, checkpoint, outcome });
        }
        if self.control.next_deadline().is_some_and(|at| at <= self.now) {
            self.event(Event::Tick);
        }
    }

    fn connect(&mut self, node: &NodeId) {
        self.sessions += 1;
        let session = crate::SessionId(self.sessions);
        let workers = self.reports(node);
        let agent = self.agents.get_mut(node).expect("a node of this world");
        agent.session = Some(session);
        agent.contact = self.now;
        let introduction = agent.introduction(self.now, workers);
        let introduction = Box::new(introduction);
        self.event(Event::NodeConnected { node: node.clone(), session, introduction });
        if self.notes {
            self.event(Event::Notes { node: node.clone(), session, notes: Box::default() });
        }
        self.tell_cards(node, session, true);
    }

    fn tell_cards(&mut self, node: &NodeId, session: crate::SessionId, anew: bool) {
        let agent = self.agents.get_mut(node).expect("a node of this world");
        if let Some(notes) = agent.card_notes(anew).map(Box::new) {
            self.event(Event::NodeNotes { node: node.clone(), session, notes });
        }
    }

    fn tend_agents(&mut self) {
        let nodes: Vec<NodeId> = self.agents.keys().cloned().collect();
        for node in nodes {
            let agent = self.agents.get_mut(&node).expect("a node of this world");
            if !agent.powered {
                continue;
            }
            agent.tend(self.now);
            if !agent.hears {
                continue;
            }
            if agent.session.is_none() {
                if agent.agent_runs {
                    self.connect(&node);
                }
                continue;
            }
            if self.now.since(agent.beaten) >= 500 {
                let workers = self.reports(&node);
                let agent = self.agents.get_mut(&node).expect("a node of this world");
                let session = agent.session.expect("it is connected");
                let heartbeat = Box::new(agent.heartbeat(self.now, workers));
                self.event(Event::Heartbeat { node: node.clone(), session, heartbeat });
                self.tell_cards(&node, session, false);
            }
        }
    }

    /// The one thing that must never be: two generations of a job with processes, or one task
    /// in two places.
    fn assert_no_task_twice(&self) {
        let mut seen: BTreeMap<JobId, Generation> = BTreeMap::new();
        let mut tasks = BTreeSet::new();
        for (node, agent) in &self.agents {
            if !agent.powered {
                continue;
            }
            for (job, generation, task) in agent.running() {
                let known = seen.entry(job).or_insert(generation);
                let now = self.now.0;
                assert_eq!(*known, generation, "two generations of {job} on {node} at {now}");
                assert!(tasks.insert((job, task)), "{task} of {job} twice, at {now}");
            }
        }
    }

    pub(crate) fn change(&mut self, change: Change) -> Reply {
        self.change_as(change, false)
    }

    #[track_caller]
    pub(crate) fn change_as(&mut self, change: Change, dry_run: bool) -> Reply {
        self.try_change(change, dry_run).expect("every request is answered")
    }

    /// None where the master died with the answer in its hands.
    pub(crate) fn try_change(&mut self, change: Change, dry_run: bool) -> Option<Reply> {
        self.requests += 1;
        let request = self.requests;
        self.event(Event::Change {
            request: RequestKey(request),
            user: "ada".to_owned(),
            rank: model::access::Rank::Admin,
            dry_run,
            reason: Some("a test".to_owned()),
            change: Box::new(change),
        });
        for _ in 0..20 {
            if let Some(reply) = self.replies.remove(&request) {
                return Some(reply);
            }
            self.tick();
        }
        None
    }

    pub(crate) fn submit(&mut self, spec: JobSpec) -> JobId {
        match self.change(Change::Submit { spec, request_id: None }) {
            Ok(Answer::Submitted { job, created: true, .. }) => job,
            other => panic!("not submitted: {other:?}"),
        }
    }

    pub(crate) fn row(&self, job: JobId) -> JobRow {
        self.control.job_row(clocks(self.now), self.control.job(job))
    }

    pub(crate) fn detail(&self, job: JobId) -> JobDetail {
        match self.control.read(clocks(self.now), &Read::Job { job }) {
            Ok(Answer::Job(detail)) => *detail,
            other => panic!("no detail of {job}: {other:?}"),
        }
    }

    pub(crate) fn read(&self, read: &Read) -> Reply {
        self.control.read(clocks(self.now), read)
    }

    pub(crate) fn phase(&self, job: JobId) -> PhaseName {
        self.control.job(job).phase_name()
    }

    /// Lets time pass until something is so; fails after a limit in s.
    #[track_caller]
    pub(crate) fn until(&mut self, limit_s: u64, what: &str, is: impl Fn(&Self) -> bool) {
        let limit = self.now.plus(limit_s * 1000);
        while self.now < limit {
            if is(self) {
                return;
            }
            self.tick();
        }
        let jobs: Vec<String> = self
            .control
            .jobs
            .keys()
            .map(|job| {
                let row = self.row(*job);
                format!(
                    "{job} {} {} step {}: {}",
                    row.phase.name(),
                    row.shape,
                    row.step,
                    row.reason
                )
            })
            .collect();
        let events: Vec<String> = self
            .control
            .events
            .values()
            .rev()
            .take(25)
            .map(|event| format!("{} {} {}", event.at.0, event.kind, event.text))
            .collect();
        panic!(
            "not within {limit_s} s: {what}\n{}\n{}\nfindings {:?}\nrefused {:?}",
            jobs.join("\n"),
            events.join("\n"),
            self.findings,
            self.control.refused
        );
    }

    #[track_caller]
    pub(crate) fn until_phase(&mut self, job: JobId, phase: PhaseName, limit_s: u64) {
        self.until(limit_s, &format!("{job} is {}", phase.name()), |world| {
            world.phase(job) == phase
        });
    }

    pub(crate) fn run(&mut self, seconds: u64) {
        let until = self.now.plus(seconds * 1000);
        while self.now < until {
            self.tick();
        }
    }

    /// Submits, lets it be measured, and waits until it runs with a pinned shape.
    #[track_caller]
    pub(crate) fn running(&mut self, spec: JobSpec, shape: Shape) -> JobId {
        let job = self.submit(spec);
        self.until(60, "its first steps", |world| world.row(job).step > 3);
        self.pin(job, shape);
        self.until(120, "the pinned shape", |world| {
            let row = world.row(job);
            row.phase == PhaseName::Running && row.shape == shape
        });
        job
    }

    #[track_caller]
    pub(crate) fn pin(&mut self, job: JobId, shape: Shape) {
        let reply = self.change(Change::Resize { job, shape, pin: true });
        assert!(reply.is_ok(), "{reply:?}");
    }
}

pub(crate) fn clocks(now: Millis) -> Now {
    Now { mono: now, unix: UnixMs(1_700_000_000_000 + now.0) }
}
