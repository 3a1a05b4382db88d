//! The connection to the master: made again whenever it is lost, for as long as the daemon runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use model::NodeId;
use model::agent::{AgentAnswer, AgentQuery, FromAgent, Heartbeat, RateReport, ToAgent};
use model::nodes::{NodeNotes, NodeOrders, PROTOCOL_OF_NODES};
use model::notes::{Extras, Notes, PROTOCOL_OF_NOTES};
use net::{Close, ConnectError, ConnectOptions, Connection, FrameError, Lost, Session};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::certificates::Certificates;
use crate::clock;
use crate::config::Settings;
use crate::cut;
use crate::daemon::Event;

const BACKOFF_MS_MIN: u64 = 250;
const BACKOFF_MS_MAX: u64 = 10_000;
/// A connection of at least this long was a good one: the next waits begin small again.
const LASTING_MS: u64 = 5_000;
/// How often it is looked whether anything came from the master.
const CONTACT_EVERY: Duration = Duration::from_secs(1);
/// An attempt to connect that is not there by then goes on beside the next one: a link may take
/// seconds each way. A new one finds a network that has just come back sooner.
const ATTEMPT: Duration = Duration::from_secs(10);
const ATTEMPT_MAX: Duration = Duration::from_secs(40);
/// Questions of the master that are answered at one time; QUIC lets it ask no more either.
const QUESTIONS_MAX: usize = 8;

/// The first protocol with [`FromAgent::Rates`].
const PROTOCOL_OF_RATES: u16 = 2;

/// What the master is told again and again.
#[derive(Clone, Debug)]
pub(crate) struct Beat {
    pub(crate) heartbeat: Heartbeat,
    /// Sent only where they changed: most jobs have one rate for hours.
    pub(crate) rates: Vec<RateReport>,
    /// The same holds for these.
    pub(crate) notes: Notes,
    pub(crate) node: NodeNotes,
}

/// One end of the session.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) settings: Arc<Settings>,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) node: NodeId,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) heartbeats: watch::Receiver<Option<Beat>>,
    /// Becomes true when the daemon ends.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Waits between attempts: doubled each time, and never the same on two nodes, or all of them
/// would come at once after a restart of the master.
#[derive(Debug)]
struct Backoff {
    next_ms: u64,
    state: u64,
}

impl Backoff {
    fn new(seed: u64) -> Self {
        Self { next_ms: BACKOFF_MS_MIN, state: seed }
    }

    fn reset(&mut self) {
        self.next_ms = BACKOFF_MS_MIN;
    }

    /// Between half of the present wait and all of it.
    fn wait(&mut self) -> Duration {
        // SplitMix64: any seed gives numbers that differ from those of its neighbours.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let half = self.next_ms / 2;
        let wait = half + mixed % (half + 1);
        self.next_ms = (self.next_ms * 2).min(BACKOFF_MS_MAX);
        Duration::from_millis(wait)
    }
}

/// What comes of an attempt to connect.
type Attempt = Result<Box<Session>, ConnectError>;

impl Link {
    /// Connects, talks, connects again, until told to stop.
    pub(crate) async fn run(mut self) {
        let name = u64::from(crc32fast::hash(self.node.as_str().as_bytes()));
        let mut backoff =
            Backoff::new(clock::unix_ms() ^ (name << 32) ^ u64::from(std::process::id()));
        let mut told = String::new();
        let mut stop = self.stop.clone();
        let mut attempts = JoinSet::new();
        loop {
            let outcome = tokio::select! {
                biased;
                () = stopped(&mut stop) => return,
                outcome = self.connect(&mut attempts) => outcome,
            };
            match outcome {
                Ok(session) => {
                    attempts.abort_all();
                    told.clear();
                    let since = clock::now();
                    let session = *session;
                    tracing::info!(
                        cluster = session.cluster,
                        master = %session.connection.remote_address(),
                        "connected"
                    );
                    let lost = Box::pin(self.talk(session)).await;
                    if self.events.send(Event::Disconnected).await.is_err() || lost.is_none() {
                        return;
                    }
                    // One that refuses at once is not to be asked five times a second.
                    if clock::now().since(since) >= LASTING_MS {
                        backoff.reset();
                    }
                    tracing::warn!(why = lost.unwrap_or_default(), "the master is lost");
                }
                // Said once, not every ten seconds of a night without a master.
                Err(error) => {
                    let words = format!("{error:#}");
                    if words != told {
                        tracing::warn!(error = words, "not connected; trying on");
                        told = words;
                    }
                }
            }
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return,
                () = tokio::time::sleep(backoff.wait()) => {}
            }
        }
    }

    async fn connect(&self, attempts: &mut JoinSet<Attempt>) -> anyhow::Result<Box<Session>> {
        let credentials = self.certificates.newest()?;
        let software = format!("optimus-agent {}", env!("CARGO_PKG_VERSION"));
        let revocations = self.certificates.revocations()?;
        let options =
            ConnectOptions { revocations, timeout: ATTEMPT_MAX, ..ConnectOptions::new(software) };
        let address = self.settings.master;
        drop(attempts.spawn(async move {
            Box::pin(net::connect(address, &credentials, &options)).await.map(Box::new)
        }));
        let deadline = tokio::time::sleep(ATTEMPT);
        let mut deadline = std::pin::pin!(deadline);
        loop {
            tokio::select! {
                ended = attempts.join_next() => match ended {
                    Some(Ok(outcome)) => return Ok(outcome?),
                    // One that was called off when another had come through.
                    Some(Err(_)) => {}
                    None => bail!("no attempt to connect is left"),
                },
                () = &mut deadline => {
                    return Err(ConnectError::Unreachable { address, timeout: ATTEMPT }.into());
                }
            }
        }
    }

    /// Talks for as long as the connection lives. None where the daemon ends; else why the
    /// connection did.
    async fn talk(&mut self, session: Session) -> Option<String> {
        let Session { connection, mut writer, mut reader, protocol, .. } = session;
        let (ask, introduction) = oneshot::channel();
        self.heartbeats.mark_unchanged();
        self.events.send(Event::Introduce(ask)).await.ok()?;
        let (introduction, rates, notes, mut node) = introduction.await.ok()?;
        self.certificates.tell(&mut node);
        let introduction = FromAgent::Introduction(introduction);
        if let Err(error) = cut::send(&mut writer, introduction).await {
            return Some(error.to_string());
        }
        let mut told = Told { protocol, rates: Vec::new(), notes: None, node: None };
        if let Err(error) = told.tell(&mut writer, rates, notes, node).await {
            return Some(error.to_string());
        }
        let (mut extras, mut orders) = (Extras::default(), NodeOrders::default());
        let (mut sequence, mut contact) = (1, connection.contact());
        let (mut every, mut questions) = (tokio::time::interval(CONTACT_EVERY), JoinSet::new());
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => {
                    connection.close_and_wait(Close::Shutdown, "the agent ends; tasks live on").await;
                    return None;
                }
                message = reader.receive::<ToAgent>() => match message {
                    Ok(Some(ToAgent::Desired(desired))) => {
                        let event = Event::Desired(desired, extras.clone(), orders.clone());
                        self.events.send(event).await.ok()?;
                    }
                    Ok(Some(ToAgent::Extras(newest))) => extras = newest,
                    Ok(Some(ToAgent::Orders(newest))) => orders = newest,
                    Ok(None) => return Some("the master ended the stream".to_owned()),
                    Err(error) => return Some(self.give_up(&connection, &error)),
                },
                _ = every.tick() => {
                    let now = connection.contact();
                    if now != contact {
                        contact = now;
                        self.events.send(Event::Contact).await.ok()?;
                    }
                }
                changed = self.heartbeats.changed() => {
                    changed.ok()?;
                    let latest = self.heartbeats.borrow_and_update().clone();
                    let Some(Beat { mut heartbeat, rates, notes, mut node }) = latest else {
                        continue;
                    };
                    self.certificates.tell(&mut node);
                    // Before the losses that come of them.
                    if let Err(error) = told.tell(&mut writer, rates, notes, node).await {
                        return Some(error.to_string());
                    }
                    heartbeat.sequence = sequence;
                    sequence += 1;
                    if let Err(error) = cut::send(&mut writer, FromAgent::Heartbeat(heartbeat)).await {
                        return Some(error.to_string());
                    }
                }
                stream = connection.accept_bi(), if questions.len() < QUESTIONS_MAX => match stream {
                    Ok((writer, reader)) => {
                        let certificates = Arc::clone(&self.certificates);
                        let events = self.events.clone();
                        drop(questions.spawn(answer(writer, reader, certificates, events)));
                    }
                    Err(lost) => return Some(words(&lost)),
                },
                Some(_) = questions.join_next() => {}
            }
        }
    }

    fn give_up(&self, connection: &Connection, error: &FrameError) -> String {
        if !matches!(error, FrameError::Lost(_)) {
            connection.close(Close::Protocol, &format!("{}: {error}", self.node));
        }
        error.to_string()
    }
}

/// What the master was told beside the heartbeats: sent again only where it changes.
#[derive(Debug)]
struct Told {
    protocol: u16,
    rates: Vec<RateReport>,
    /// None before the first: even empty ones say that this agent knows the message.
    notes: Option<Notes>,
    node: Option<NodeNotes>,
}

impl Told {
    /// Says what is new, as far as the master knows the messages.
    async fn tell(
        &mut self,
        writer: &mut net::FrameWriter,
        rates: Vec<RateReport>,
        notes: Notes,
        node: NodeNotes,
    ) -> Result<(), FrameError> {
        if rates != self.rates {
            self.rates = rates;
            if self.protocol >= PROTOCOL_OF_RATES && !self.rates.is_empty() {
                cut::send(writer, FromAgent::Rates(self.rates.clone())).await?;
            }
        }
        if self.notes.as_ref() != Some(&notes) {
            if self.protocol >= PROTOCOL_OF_NOTES {
                cut::send(writer, FromAgent::Notes(notes.clone())).await?;
            }
            self.notes = Some(notes);
        }
        if self.node.as_ref() != Some(&node) {
            if self.protocol >= PROTOCOL_OF_NODES {
                cut::send(writer, FromAgent::Node(node.clone())).await?;
            }
            self.node = Some(node);
        }
        Ok(())
    }
}

fn words(lost: &Lost) -> String {
    lost.to_string()
}

/// One question of the master on a stream of its own.
async fn answer(
    mut writer: net::FrameWriter,
    mut reader: net::FrameReader,
    certificates: Arc<Certificates>,
    events: mpsc::Sender<Event>,
) {
    let Ok(Some(query)) = reader.receive::<AgentQuery>().await else { return };
    let ends = || AgentAnswer::Refused("the agent ends".to_owned());
    // A disk may be slow, and nothing else may wait for it.
    let own = tokio::task::spawn_blocking(move || certificates.answer(query)).await;
    let answer = match own {
        Ok(Ok(answer)) => answer,
        Ok(Err(other)) => {
            let (ask, reply) = oneshot::channel();
            if events.send(Event::Query(other, ask)).await.is_err() {
                return;
            }
            reply.await.unwrap_or_else(|_| ends())
        }
        Err(_) => ends(),
    };
    // Whoever asked sees a lost stream by itself.
    if writer.send(&answer).await.is_ok() {
        let _ = writer.finished().await;
    }
}

/// Resolves once the daemon ends.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone has ended, too.
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_differ_between_nodes() {
        let mut one = Backoff::new(1);
        let mut bound = BACKOFF_MS_MIN;
        for _ in 0..20 {
            let wait = one.wait();
            assert!(
                Duration::from_millis(bound / 2) <= wait && wait <= Duration::from_millis(bound)
            );
            bound = (bound * 2).min(BACKOFF_MS_MAX);
        }
        let waits: std::collections::BTreeSet<Duration> = (0..100)
            .map(|seed| {
                let mut backoff = Backoff::new(seed);
                for _ in 0..10 {
                    backoff.wait();
                }
                backoff.wait()
            })
            .collect();
        assert!(90 < waits.len(), "{} different waits of 100", waits.len());
        one.reset();
        assert!(one.wait() <= Duration::from_millis(BACKOFF_MS_MIN));
    }
}
