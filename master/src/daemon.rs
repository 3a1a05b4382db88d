//! The loop that owns the state machine. Everything else is a message to it: events come in, one
//! at a time, and its commands go out in their order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use control::Control;
use control::command::Command;
use control::doctor::{finding, sorted};
use control::event::{Event, RequestKey, SessionId};
use control::record::{Record, Write};
use model::NodeId;
use model::access::{Asker, Deed};
use model::agent::AgentQuery;
use model::client::{Answer, ErrorKind, Read, Refusal, Reply};
use model::nodes::{Finding, Severity};
use model::reason::PhaseName;
use model::view::JobRow;
use net::Close;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use crate::asked::one_line;
use crate::certificates::unix_ms;
use crate::clock::Clock;
use crate::codec::{self, CodecError};
use crate::door::{AgentHandle, ChangeRequest, Counters, Input, LogRoute, Query};
use crate::keeper::{Keeper, Told};
use crate::pipeline::Pipeline;
use crate::pki::Certificates;
use crate::planner::{Planned, Planner};
use crate::publisher::Publisher;
use crate::room::Room;
use crate::seal::Seal;

/// Commands that may wait for the disk before no more events are taken in. Reads go on.
const WAITING_MAX: usize = 4_096;

/// A deadline that the state machine repeats must not make the loop spin.
const TICK_MS_MIN: u64 = 5;

/// Events taken before a tick, so that a late heartbeat counts before its node is judged.
const BEFORE_TICK_MAX: usize = 10_000;

/// Events taken after each read: a flood of reads must not starve the agents' reports. A read
/// costs as much as some hundred of them at most.
const BETWEEN_READS_MAX: usize = 256;

/// For the last persists of a master that stops.
const LAST_PERSISTS: Duration = Duration::from_secs(10);

/// What the daemon's own threads tell the loop. Unbounded, but each answers something that the
/// loop asked: a persist, a round, a publication.
#[derive(Debug)]
pub(crate) enum Internal {
    Store(Told),
    Planned(Planned),
    Published(Event),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DaemonError {
    #[error("cannot store changes: {0}")]
    Store(String),
    #[error("cannot store a change")]
    Codec(#[from] CodecError),
}

/// The loop's ears.
#[derive(Debug)]
pub(crate) struct Ears {
    pub(crate) inputs: Receiver<Input>,
    pub(crate) queries: Receiver<Query>,
    pub(crate) internal: UnboundedReceiver<Internal>,
    pub(crate) stop: oneshot::Receiver<&'static str>,
}

/// The loop's hands.
#[derive(Debug)]
pub(crate) struct Hands {
    pub(crate) keeper: Keeper,
    pub(crate) planner: Planner,
    pub(crate) publisher: Publisher,
    /// For work that answers with an [`Internal`].
    pub(crate) internal: UnboundedSender<Internal>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) audit: Arc<crate::audit::Health>,
    pub(crate) room: Room,
    /// What is stored is sealed with it.
    pub(crate) seal: Option<Arc<Seal>>,
}

pub(crate) struct Daemon {
    control: Control,
    clock: Clock,
    hands: Hands,
    pipeline: Pipeline,
    agents: BTreeMap<SessionId, AgentHandle>,
    replies: BTreeMap<RequestKey, oneshot::Sender<Reply>>,
    requests: u64,
}

/// What woke the loop.
enum Wake {
    Stop(&'static str),
    Internal(Internal),
    Query(Query),
    Input(Input),
    Tick,
    Watchdog,
}

impl Daemon {
    /// Takes a state machine and the commands of its start.
    pub(crate) fn new(
        control: Control,
        commands: Vec<Command>,
        clock: Clock,
        hands: Hands,
    ) -> Result<Self, DaemonError> {
        let mut daemon = Self {
            control,
            clock,
            hands,
            pipeline: Pipeline::default(),
            agents: BTreeMap::new(),
            replies: BTreeMap::new(),
            requests: 0,
        };
        daemon.carry_out(commands)?;
        Ok(daemon)
    }

    /// Runs until it is told to stop.
    ///
    /// # Returns
    /// The store's keeper, with every persist done or given up.
    ///
    /// # Errors
    /// Where nothing can be stored any more.
    pub(crate) async fn run(mut self, mut ears: Ears) -> Result<Keeper, DaemonError> {
        let watchdog = crate::notify::watchdog_interval();
        loop {
            match self.wake(&mut ears, watchdog).await {
                Wake::Stop(signal) => {
                    tracing::info!(signal, "stopping");
                    crate::notify::stopping();
                    return self.finish(ears).await;
                }
                Wake::Internal(internal) => self.on_internal(internal)?,
                Wake::Query(query) => {
                    self.on_query(query);
                    if self.pipeline.len() < WAITING_MAX {
                        self.on_waiting(&mut ears, BETWEEN_READS_MAX)?;
                    }
                }
                Wake::Input(input) => self.on_input(input)?,
                Wake::Tick => self.on_tick(&mut ears)?,
                Wake::Watchdog => {}
            }
            // Every turn is proof of life, and an idle loop turns in time.
            if watchdog.is_some() {
                crate::notify::watchdog();
            }
        }
    }

    async fn wake(&self, ears: &mut Ears, watchdog: Option<Duration>) -> Wake {
        // Past this the disk is far behind: what comes waits in its queue, and its sender.
        let open = self.pipeline.len() < WAITING_MAX;
        let now = self.clock.mono();
        let wait_ms = self.control.next_deadline().map(|at| at.since(now).max(TICK_MS_MIN));
        let tick = async {
            match wait_ms {
                Some(ms) if open => tokio::time::sleep(Duration::from_millis(ms)).await,
                _ => std::future::pending().await,
            }
        };
        let proof = async {
            match watchdog {
                Some(interval) => tokio::time::sleep(interval).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = &mut ears.stop => Wake::Stop(signal.unwrap_or("the signal handler ended")),
            Some(internal) = ears.internal.recv() => Wake::Internal(internal),
            Some(query) = ears.queries.recv() => Wake::Query(query),
            Some(input) = ears.inputs.recv(), if open => Wake::Input(input),
            () = tick => Wake::Tick,
            () = proof => Wake::Watchdog,
        }
    }

    fn on_tick(&mut self, ears: &mut Ears) -> Result<(), DaemonError> {
        self.on_waiting(ears, BEFORE_TICK_MAX)?;
        self.step(Event::Tick)
    }

    /// Takes the events that wait, at most so many.
    fn on_waiting(&mut self, ears: &mut Ears, most: usize) -> Result<(), DaemonError> {
        for _ in 0..most {
            match ears.inputs.try_recv() {
                Ok(input) => self.on_input(input)?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn on_internal(&mut self, internal: Internal) -> Result<(), DaemonError> {
        match internal {
            Internal::Store(Told::Durable(through)) => {
                self.pipeline.durable(through);
                self.begin();
                Ok(())
            }
            Internal::Store(Told::Failed(reason)) => Err(DaemonError::Store(reason)),
            Internal::Planned(Planned { plan, refused, elapsed_s }) => {
                let decisions = plan.decisions.len();
                if refused.is_empty() {
                    tracing::info!(revision = plan.revision, decisions, elapsed_s, "planned");
                } else {
                    let findings = refused.join("; ");
                    tracing::error!(revision = plan.revision, findings, "refused a plan");
                }
                self.step(Event::RoundFinished { plan, refused, elapsed_s })
            }
            Internal::Published(event) => {
                if let Event::Published { job, generation, checkpoint, outcome } = &event {
                    match outcome {
                        Ok(done) => {
                            let (url, bytes) = (&done.manifest_url, done.bytes);
                            tracing::info!(%job, %generation, %checkpoint, bytes, url, "published");
                        }
                        Err(error) => {
                            tracing::warn!(%job, %generation, %checkpoint, error, "cannot publish");
                        }
                    }
                }
                self.step(event)
            }
        }
    }

    fn on_input(&mut self, input: Input) -> Result<(), DaemonError> {
        match input {
            Input::Connected { session, handle, introduction } => {
                let node = handle.node.clone();
                self.agents.insert(session, handle);
                self.step(Event::NodeConnected { node, session, introduction })
            }
            Input::Heartbeat { node, session, heartbeat } => {
                self.step(Event::Heartbeat { node, session, heartbeat })
            }
            Input::Rates { node, session, rates } => {
                self.step(Event::Rates { node, session, rates })
            }
            Input::Notes { node, session, notes } => {
                self.step(Event::Notes { node, session, notes })
            }
            Input::NodeNotes { node, session, notes } => {
                self.step(Event::NodeNotes { node, session, notes })
            }
            Input::Disconnected { node, session } => {
                self.agents.remove(&session);
                self.step(Event::NodeDisconnected { node, session })
            }
            Input::Change(request) => self.on_change(*request),
        }
    }

    fn on_change(&mut self, request: ChangeRequest) -> Result<(), DaemonError> {
        let ChangeRequest { asker: Asker { user, rank }, dry_run, reason, change, reply } = request;
        // It was let in before: what is begun now would be seen, and be gone with a restart.
        if let Some(refusal) = self.hands.room.stall().filter(|_| !dry_run) {
            // A client that no longer waits is no fault.
            let _ = reply.send(Err(refusal));
            return Ok(());
        }
        let name = Deed::of_change(&change).row().name;
        tracing::info!(user, dry_run, change = name, reason, "an operator asks for a change");
        self.requests += 1;
        let request = RequestKey(self.requests);
        self.replies.insert(request, reply);
        let change = Box::new(change);
        self.step(Event::Change { request, user, rank, dry_run, reason, change })
    }

    fn on_query(&mut self, query: Query) {
        // Whoever asked may be gone meanwhile; that is no fault of anyone here.
        match query {
            Query::Read { asker, read, reply } => {
                let _ = reply.send(self.read(&asker, &read));
            }
            Query::LogRoute { asker, job, generation, task, bytes_max, reply } => {
                let route = self.control.log_route_as(&asker, job, generation, task, bytes_max);
                let _ = reply.send(route.and_then(|route| self.log_route(route)));
            }
            Query::Agents { reply } => {
                let peer = |agent: &AgentHandle| {
                    let AgentHandle { node, boot, protocol, connection, .. } = agent;
                    (node.clone(), boot.clone(), *protocol, connection.clone())
                };
                let _ = reply.send(self.agents.values().map(peer).collect());
            }
            Query::Admit { asker, call, reply } => {
                let _ = reply.send(self.control.admit(&asker, &call));
            }
            Query::CertificateEnds { reply } => {
                let ends = self.control.certificate_ends();
                let _ = reply.send(ends.map(|(node, ends)| (node.clone(), ends)).collect());
            }
            Query::Export { header, reply } => {
                let _ = reply.send(self.hands.keeper.export(header));
            }
        }
    }

    /// Answers from the state machine, with what only the daemon knows.
    fn read(&self, asker: &Asker, read: &Read) -> Reply {
        let mut reply = self.control.read_as(self.clock.now(), asker, read);
        if let Ok(Answer::Status(status)) = &mut reply {
            status.alerts.extend(self.hands.keeper.health().alerts());
            status.alerts.extend(self.hands.certificates.alerts());
            status.alerts.extend(self.hands.audit.alert());
            status.alerts.extend(certificate_alerts(&self.agent_certificates()));
            status.reports_refused.extend(self.hands.counters.named());
        }
        if let Ok(Answer::Jobs(rows)) = &mut reply
            && self.hands.keeper.health().is_stalled()
        {
            rows.iter_mut().for_each(waits_for_room);
        }
        if let Ok(Answer::Doctor(findings)) = &mut reply {
            let remedy = "look at the disk of the master's state_dir";
            let alerts = self.hands.keeper.health().alerts().into_iter();
            findings.extend(alerts.map(|words| finding(Severity::Fault, "store", words, remedy)));
            findings.extend(self.hands.certificates.findings());
            findings.extend(self.agent_certificates());
            *findings = sorted(std::mem::take(findings));
        }
        reply
    }

    /// Certificates of connected agents that end soon: what they show from the next connection
    /// on, or what an older agent shows in this one.
    fn agent_certificates(&self) -> Vec<Finding> {
        let next: BTreeMap<_, _> = self.control.certificate_ends().collect();
        let ending = self.agents.values().filter_map(|agent| {
            let shown = || unix_ms(agent.connection.certificate().not_after);
            let ends = next.get(&agent.node).copied().unwrap_or_else(shown);
            self.hands.certificates.agent_finding(&agent.node, ends)
        });
        ending.collect()
    }

    fn log_route(&self, (node, session, query): (NodeId, SessionId, AgentQuery)) -> LogRoute {
        let agent = self.agents.get(&session).ok_or_else(|| {
            let words = format!("node {node} is not connected");
            Refusal::new(ErrorKind::Unavailable, words, "see optimus nodes")
        })?;
        Ok((agent.connection.clone(), query))
    }

    fn step(&mut self, event: Event) -> Result<(), DaemonError> {
        let commands = self.control.step(self.clock.now(), event);
        self.carry_out(commands)
    }

    fn carry_out(&mut self, commands: Vec<Command>) -> Result<(), DaemonError> {
        for (number, writes) in self.pipeline.push(commands) {
            log_events(&writes);
            self.hands.keeper.persist(number, codec::encode(&writes, self.hands.seal.as_deref())?);
        }
        self.begin();
        Ok(())
    }

    /// Begins every command that may be begun.
    fn begin(&mut self) {
        while let Some(command) = self.pipeline.next() {
            self.begin_one(command);
        }
    }

    fn begin_one(&mut self, command: Command) {
        match command {
            Command::Persist(_) => unreachable!("the pipeline hands persists out apart"),
            Command::Reply { request, reply } => {
                if let Some(waiting) = self.replies.remove(&request) {
                    let _ = waiting.send(*reply);
                }
            }
            Command::SendDesired { node, session, desired, extras, orders } => {
                // A session that ended meanwhile gets a whole set with its next introduction.
                if let Some(agent) = self.agents.get(&session) {
                    tracing::debug!(%node, revision = %desired.revision, "sends a desired set");
                    agent.desired.send_replace(Some((desired, extras, orders)));
                }
            }
            Command::Disconnect { session, reason } => {
                if let Some(agent) = self.agents.remove(&session) {
                    tracing::warn!(node = %agent.node, session = session.0, reason, "disconnects");
                    agent.connection.close(Close::Replaced, &reason);
                }
            }
            Command::Plan { snapshot, policy } => self.hands.planner.request(snapshot, policy),
            Command::Publish(publish) => {
                let internal = self.hands.internal.clone();
                self.hands.publisher.publish(*publish, move |event| {
                    // The loop ends only with the process.
                    let _ = internal.send(Internal::Published(event));
                });
            }
            Command::RemoveCheckpoint { job, manifest_url, directory } => {
                self.hands.publisher.remove(job, manifest_url, directory);
            }
        }
    }

    /// Waits for the persists that are under way and gives the replies behind them.
    async fn finish(mut self, mut ears: Ears) -> Result<Keeper, DaemonError> {
        ears.inputs.close();
        ears.queries.close();
        let drained = async {
            while !self.pipeline.is_empty() {
                match ears.internal.recv().await {
                    Some(Internal::Store(Told::Durable(through))) => {
                        self.pipeline.durable(through);
                        self.begin();
                    }
                    Some(Internal::Store(Told::Failed(reason))) => {
                        return Err(DaemonError::Store(reason));
                    }
                    // Later events would ask for more: the next start takes care of them.
                    Some(Internal::Planned(_) | Internal::Published(_)) => {}
                    None => break,
                }
            }
            Ok(())
        };
        match tokio::time::timeout(LAST_PERSISTS, drained).await {
            Ok(outcome) => outcome?,
            Err(_) => tracing::error!("the last changes could not be stored in time"),
        }
        Ok(self.hands.keeper)
    }
}

/// Says of a job that is to change why it does not.
fn waits_for_room(row: &mut JobRow) {
    let changes = matches!(
        row.phase,
        PhaseName::Queued
            | PhaseName::Profiling
            | PhaseName::Starting
            | PhaseName::Rescaling
            | PhaseName::Stopping
    );
    if changes {
        row.reason = format!("the master's disk is full, nothing can be stored; {}", row.reason);
    }
}

/// As sentences; of many only the first are told.
fn certificate_alerts(findings: &[Finding]) -> Vec<String> {
    const TOLD_MAX: usize = 10;
    let sentence = |it: &Finding| format!("{}; {}", it.words, it.remedy);
    let mut alerts: Vec<String> = findings.iter().take(TOLD_MAX).map(sentence).collect();
    if let Some(more) = findings.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
        alerts.push(format!("{more} more agents' certificates end soon; see optimus cert status"));
    }
    alerts
}

/// Every event of the cluster's story as one line.
fn log_events(writes: &[Write]) {
    for write in writes {
        if let Write::Put(Record::EventV1(event)) = write {
            let job = event.job.map(|job| job.to_string());
            let node = event.node.as_ref().map(ToString::to_string);
            let text = one_line(&event.text);
            tracing::info!(number = event.number, kind = event.kind, job, node, "{text}");
        }
    }
}
