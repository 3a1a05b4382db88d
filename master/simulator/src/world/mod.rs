//! The daemon's own `control` and `scheduler` in virtual time, with modelled agents and trainings.
//!
//! Nothing ticks: [`World`] jumps from one due thing to the next. Between two events every training
//! goes on at a constant rate, so that progress accrues exactly. Agents obey desired sets by the
//! rules of the real ones; what they tell goes through a link that may be late, lose messages or be
//! cut. Of the two fidelities ([`Fidelity`]), exact is for faults, coarse for traces.

mod agent;
mod carry;
mod chance;
mod failures;
mod faults;
mod inject;
mod life;
mod obey;
mod options;
mod oracle;
mod plant;
mod queue;
mod report;
mod reports;
mod result;
mod tell;
mod training;
mod truth;
mod watch;

use std::collections::BTreeMap;

use control::{Control, Event, Key, Now, Record, RequestKey, Settings};
use model::client::Change;
use model::{JobId, Millis, NodeId, Resources, UnixMs};

use self::agent::{Agent, Name};
use self::failures::Turn;
pub(crate) use self::faults::Tweak;
pub(crate) use self::inject::Garbage;
pub use self::options::{
    Costs, Estimates, Failures, Fidelity, Network, Options, Rounds, rescale_cost_s,
};
use self::queue::Queue;
use self::training::Training;
use self::truth::Truth;
pub(crate) use self::watch::Watch;
use crate::outcome::{Outcome, Sample};
use crate::workload::{Cluster, Workload};

/// The wall clock at the start: any will do.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// Longer than any run: silence that is no fault.
const NEVER_MS: u64 = 1 << 50;
/// Rounds in a row in which nothing runs and nothing starts.
const IDLE_ROUNDS_MAX: u32 = 20_000;
/// Ticks at one instant, after which the state machine is taken to spin.
const TICKS_MAX: u32 = 100_000;
/// Steps between two reports of progress.
const PROGRESS_STEPS: u32 = 4_096;
/// An agent that lost its connection tries again after this.
const RECONNECT_MS: u64 = 1_000;

/// How far a run has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Simulated time.
    pub now_s: f64,
    pub jobs_done: usize,
    pub jobs: usize,
    pub jobs_running: u32,
    pub jobs_waiting: u32,
    pub rounds: u64,
}

/// Something due.
#[derive(Clone, Debug)]
enum Due {
    Arrive(usize),
    /// A message or an answer for the master; of an earlier life it reaches nobody.
    Master {
        life: u32,
        event: Box<Event>,
    },
    Agent {
        node: usize,
        session: control::SessionId,
        desired: model::agent::Desired,
    },
    Connect(usize),
    /// The regular heartbeat, of one life.
    Beat {
        node: usize,
        beats: u64,
    },
    /// A heartbeat with news.
    Soon(usize),
    /// The processes of a generation that was told to stop are out.
    Out {
        node: usize,
        name: Name,
    },
    Train {
        name: Name,
        version: u64,
    },
    /// An agent looks how long ago its last contact was.
    Silence(usize),
    /// The operator's word about a node that is off, where silence is no fault.
    Declare {
        node: usize,
        since: Millis,
    },
    Turn {
        node: usize,
        turn: Turn,
    },
    StartMaster,
    /// An agent whose process was down is there again.
    StartAgent(usize),
}

/// A cluster in virtual time.
#[derive(Clone, Debug)]
pub struct World {
    options: Options,
    settings: Settings,
    workload: Workload,
    truths: Vec<Truth>,
    control: Control,
    master_up: bool,
    /// Counts the master's starts.
    life: u32,
    now: Millis,
    queue: Queue<Due>,
    ticks: u32,
    agents: Vec<Agent>,
    index: BTreeMap<NodeId, usize>,
    /// The job behind each id that was given, less 1.
    jobs: Vec<Option<usize>>,
    trainings: BTreeMap<Name, Training>,
    /// Requests that no answer came to yet.
    requests: BTreeMap<u64, usize>,
    requests_made: u64,
    sessions: u64,
    /// What the master keeps on disk; nothing where it is never restarted.
    store: BTreeMap<Key, Record>,
    cache: scheduler::Cache,
    trouble: faults::Trouble,
    watch: Watch,
    /// What must not be, in words.
    findings: Vec<String>,
    commands: u64,
    idle_rounds: u32,
    tally: Tally,
}

/// What is counted for the outcome.
#[derive(Clone, Debug, Default)]
struct Tally {
    ended: usize,
    arrived: u32,
    running: u32,
    tasks: u32,
    used: Resources,
    total: Resources,
    rounds: u64,
    samples: Vec<Sample>,
    changed: bool,
}

/// Runs a workload to its end.
///
/// # Errors
/// What makes no sense in the cluster, the workload (job and field) or the options, before
/// anything runs; a plan that the checker refuses; a run that comes to nothing.
pub fn run(
    cluster: &Cluster,
    workload: &Workload,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, String> {
    let mut world = World::new(cluster, workload, options)?;
    let limit = Millis(truth::ceil_ms(options.limit_s));
    let mut steps = 0_u32;
    while !world.is_done() && world.next().is_some_and(|at| at <= limit) {
        world.step()?;
        if let Some(finding) = world.findings.first() {
            return Err(format!("at {} s: {finding}", world.now_s()));
        }
        steps += 1;
        if steps == PROGRESS_STEPS {
            steps = 0;
            progress(world.progress());
        }
    }
    progress(world.progress());
    Ok(world.outcome())
}

pub(crate) fn settings(options: &Options) -> Settings {
    let interval_ms = truth::ceil_ms(options.rounds.interval_s).max(1);
    let fitted = options.estimates == Estimates::Fitted;
    let usual = Settings::default();
    let mut settings = Settings {
        interval_ms,
        spacing_ms: truth::ceil_ms(options.rounds.spacing_s.unwrap_or(0.0)),
        rounds_on_grid: options.rounds.spacing_s.is_none(),
        policy: options.policy.clone(),
        profile_shapes_max: if fitted { usual.profile_shapes_max } else { 0 },
        jobs_queued_max: usize::MAX,
        jobs_per_user: usize::MAX,
        pause_share: 1.0, // published policies know no such bound
        ..usual
    };
    if let Fidelity::Coarse { .. } = options.fidelity {
        (settings.suspect_ms, settings.down_ms) = (NEVER_MS, NEVER_MS);
        (settings.start_timeout_ms, settings.checkpoint_timeout_ms) = (NEVER_MS, NEVER_MS);
        settings.stall_ms = NEVER_MS;
        // Reports are far apart, and all workers tell the same.
        settings.straggler_windows = 0;
        settings.stop_grace_ms = NEVER_MS;
        // More than can end in one step: an end is known by its record.
        settings.jobs_finished_kept = 1_000;
        (settings.events_kept, settings.rounds_kept) = (1, 1);
    }
    settings
}

fn clocks(now: Millis) -> Now {
    Now { mono: now, unix: UnixMs(EPOCH_MS.saturating_add(now.0)) }
}

impl World {
    /// A cluster whose agents connect at once, and jobs that will arrive.
    ///
    /// # Errors
    /// What makes no sense in the cluster, the workload (job and field) or the options.
    pub fn new(cluster: &Cluster, workload: &Workload, options: &Options) -> Result<Self, String> {
        Self::with_settings(cluster, workload, options, settings(options))
    }

    /// As [`Self::new`], with all that a master can be told.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn with_settings(
        cluster: &Cluster,
        workload: &Workload,
        options: &Options,
        settings: Settings,
    ) -> Result<Self, String> {
        options.validate()?;
        let truths = truth::truths(cluster, workload, options)?;
        let now = Millis::default();
        let (control, commands) = Control::new(settings.clone(), clocks(now), Vec::new())
            .map_err(|error| error.to_string())?;
        let delay_ms = match options.fidelity {
            Fidelity::Exact { delay_ms, .. } => delay_ms,
            Fidelity::Coarse { .. } => 0,
        };
        let agent = |(id, capacity): &(NodeId, Resources)| {
            Agent::new(id.clone(), capacity.clone(), delay_ms)
        };
        let total = |sum: Resources, (_, capacity): &(NodeId, Resources)| sum.plus(capacity);
        let mut world = Self {
            options: options.clone(),
            settings,
            workload: workload.clone(),
            truths,
            control,
            master_up: true,
            life: 1,
            now,
            queue: Queue::default(),
            ticks: 0,
            agents: cluster.nodes.iter().map(agent).collect(),
            index: cluster.nodes.iter().map(|node| node.0.clone()).zip(0..).collect(),
            jobs: Vec::new(),
            trainings: BTreeMap::new(),
            requests: BTreeMap::new(),
            requests_made: 0,
            sessions: 0,
            store: BTreeMap::new(),
            cache: scheduler::Cache::default(),
            trouble: faults::Trouble::new(options.seed),
            watch: Watch::default(),
            findings: Vec::new(),
            commands: 0,
            idle_rounds: 0,
            tally: Tally {
                total: cluster.nodes.iter().fold(Resources::default(), total),
                ..Tally::default()
            },
        };
        world.carry_out(commands);
        for node in 0..world.agents.len() {
            world.queue.put(now, Due::Connect(node));
            if world.is_exact() {
                world.queue.put(now, Due::Silence(node));
            }
        }
        for (job, truth) in world.truths.iter().enumerate() {
            world.queue.put(truth.arrival, Due::Arrive(job));
        }
        world.begin_turns();
        Ok(world)
    }

    /// When something is due next; none where nothing ever is.
    #[must_use]
    pub fn next(&self) -> Option<Millis> {
        let deadline = self.control.next_deadline().filter(|_| self.master_up);
        let next = [self.queue.next(), deadline].into_iter().flatten().min()?;
        Some(next.max(self.now))
    }

    /// Lets the next due thing happen. False where nothing is ever due again.
    ///
    /// # Errors
    /// Where the state machine spins, or nothing runs, starts or ends any more.
    pub fn step(&mut self) -> Result<bool, String> {
        let Some(at) = self.next() else { return Ok(false) };
        if at > self.now {
            self.ticks = 0;
        }
        self.now = at;
        // What arrives at an instant counts before a deadline of the same instant.
        if self.queue.next().is_some_and(|due| due <= at) {
            if let Some((_, due)) = self.queue.pop() {
                self.take(due);
            }
        } else {
            self.ticks += 1;
            if self.ticks > TICKS_MAX {
                return Err(format!("control asks for ever more ticks at {} s", self.now_s()));
            }
            self.master(Event::Tick);
        }
        self.sample();
        if self.idle_rounds > IDLE_ROUNDS_MAX {
            return Err(format!("nothing runs and nothing starts any more at {} s", self.now_s()));
        }
        Ok(true)
    }

    /// Lets everything happen up to an instant, in s.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn until(&mut self, seconds: f64) -> Result<(), String> {
        let limit = Millis(truth::ceil_ms(seconds));
        while self.next().is_some_and(|at| at <= limit) {
            self.step()?;
        }
        self.now = self.now.max(limit);
        Ok(())
    }

    /// True once every job has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.tally.ended == self.truths.len()
    }

    /// Simulated time in s.
    #[must_use]
    pub fn now_s(&self) -> f64 {
        self.now.seconds_since(Millis::default())
    }

    /// What was found that must not be, in words: two generations of a job alive, a task twice, a
    /// plan that the checker refuses.
    #[must_use]
    pub fn findings(&self) -> &[String] {
        &self.findings
    }

    /// The state machine, to read from.
    #[must_use]
    pub const fn control(&self) -> &Control {
        &self.control
    }

    /// How far the run has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let ended = u32::try_from(self.tally.ended).unwrap_or(u32::MAX);
        Progress {
            now_s: self.now_s(),
            jobs_done: self.tally.ended,
            jobs: self.truths.len(),
            jobs_running: self.tally.running,
            jobs_waiting: self.tally.arrived.saturating_sub(ended + self.tally.running),
            rounds: self.tally.rounds,
        }
    }

    fn take(&mut self, due: Due) {
        self.watch_due(&due);
        match due {
            Due::Arrive(job) => self.arrive(job),
            Due::Master { life, event } => {
                if life == self.life {
                    self.hear(*event);
                }
            }
            Due::Agent { node, session, desired } => {
                let agent = &mut self.agents[node];
                if agent.session == Some(session) && agent.hears() && agent.take(desired) {
                    self.obey(node);
                }
            }
            Due::Connect(node) => self.connect(node),
            Due::Beat { node, beats } => self.beat(node, beats),
            Due::Soon(node) => {
                self.agents[node].soon = false;
                self.send_heartbeat(node);
            }
            Due::Out { node, name } => self.out(node, name),
            Due::Train { name, version } => self.train(name, version),
            Due::Silence(node) => self.watch_contact(node),
            Due::Declare { node, since } => self.declare(node, since),
            Due::Turn { node, turn } => self.turn(node, turn),
            Due::StartMaster => self.start_master(),
            Due::StartAgent(node) => self.start_agent(node),
        }
    }

    /// One event for the state machine, where it is up.
    fn master(&mut self, event: Event) {
        if self.master_up {
            let commands = self.control.step(self.clocks(), event);
            self.carry_out(commands);
        }
    }

    /// An event that came over the network or from the master's own threads.
    fn hear(&mut self, event: Event) {
        if let Event::Published { job, checkpoint: _, generation: _, outcome: Ok(done) } = &event {
            self.note_published(*job, &done.manifest_url);
        }
        if let Event::NodeConnected { node, session, .. } | Event::Heartbeat { node, session, .. } =
            &event
        {
            self.note_contact(node, *session);
        }
        self.master(event);
    }

    fn arrive(&mut self, job: usize) {
        let truth = &mut self.truths[job];
        if !self.master_up {
            self.queue.put(self.now.plus(RECONNECT_MS), Due::Arrive(job));
            return;
        }
        if truth.held_since.is_none() && truth.id.is_none() && self.now == truth.arrival {
            self.tally.arrived += 1;
            self.tally.changed = true;
        }
        self.idle_rounds = 0;
        let spec = truth::spec(&self.workload.jobs[job], &self.truths[job], &self.options);
        let spec = self.trouble.tweaked(job, spec);
        self.requests_made += 1;
        self.requests.insert(self.requests_made, job);
        // Without a store nobody asks again.
        let request_id = self.is_exact().then(|| format!("w{job}"));
        self.master(Event::Change {
            request: RequestKey(self.requests_made),
            user: "sim".to_owned(),
            rank: model::access::Rank::Operator,
            dry_run: false,
            reason: None,
            change: Box::new(Change::Submit { spec, request_id }),
        });
    }

    const fn is_exact(&self) -> bool {
        matches!(self.options.fidelity, Fidelity::Exact { .. })
    }

    /// The job behind an id that the master gave.
    fn job_of(&self, id: JobId) -> Option<usize> {
        let at = usize::try_from(id.0.checked_sub(1)?).ok()?;
        self.jobs.get(at).copied().flatten()
    }

    /// Notes the job behind an id.
    fn name_job(&mut self, id: JobId, job: usize) {
        let Ok(at) = usize::try_from(id.0.saturating_sub(1)) else { return };
        if self.jobs.len() <= at {
            self.jobs.resize(at + 1, None);
        }
        self.jobs[at] = Some(job);
    }

    /// The master's two clocks.
    fn clocks(&self) -> Now {
        let Now { mono, unix } = clocks(self.now);
        Now { mono, unix: UnixMs(unix.0.saturating_add_signed(self.trouble.unix_shift_ms)) }
    }
}
