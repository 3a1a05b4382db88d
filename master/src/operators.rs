//! An operator's connection: each stream carries one request and its answer.

use std::sync::Arc;
use std::time::Duration;

use control::event::SessionId;
use model::UnixMs;
use model::access::{Asker, Rank};
use model::agent::{AgentAnswer, AgentQuery, FromAgent};
use model::client::{
    Answer, Call, Change, ErrorKind, Read, Refusal, Reply, Request, STOPPING, UNANSWERED,
};
use model::nodes::AuditView;
use net::{Close, Connection, FrameError, FrameReader, FrameWriter, Session};
use storage::snapshot::Header;
use tokio::sync::{Semaphore, oneshot};

use crate::asked;
use crate::door::{ChangeRequest, Counters, Door, Input, LogRoute, Query};
use crate::rate::Rate;
use crate::{certificates, pieces, remote, shared};

/// For a request to come whole, and for a piece of its answer to be taken.
const TRANSFER: Duration = Duration::from_secs(30);
/// For the loop to answer. A change waits for the disk.
const ANSWER: Duration = Duration::from_secs(30);
/// For an agent to answer.
const AGENT: Duration = Duration::from_secs(10);
/// Requests of one connection at a time; a script that sends more waits.
const STREAMS_MAX: usize = 8;
/// Requests of one connection: a script may have many at once, but not for ever.
const REQUESTS_PER_S: u64 = 200;
const REQUESTS_AT_ONCE: u64 = 500;
/// Longest end of a log, so that the answer is far below a frame.
const LOG_BYTES_MAX: u32 = 1 << 20;
const PIECE_BYTES: usize = 1 << 20;
/// Between two looks at the end of a certificate.
const LOOK: Duration = Duration::from_secs(30);

/// Serves an operator until the connection ends.
pub(crate) async fn serve(door: Door, session: Session, id: SessionId, rank: Rank) {
    let Session { connection, writer: _writer, mut reader, software, protocol, .. } = session;
    let (user, address) = (connection.identity().name.clone(), connection.remote_address());
    tracing::debug!(user, %rank, session = id.0, %address, software, "an operator connected");
    let share = door.shares.of(&user);
    let asker = Arc::new(Asker { user, rank });
    let slots = Arc::new(Semaphore::new(STREAMS_MAX));
    let mut rate = Rate::new(door.clock.mono(), REQUESTS_PER_S, REQUESTS_AT_ONCE);
    let mut first_open = true;
    let mut over = std::pin::pin!(expiry(&door, &connection));
    loop {
        let permit = Arc::clone(&slots).acquire_owned().await.expect("it is never closed");
        let stream = loop {
            tokio::select! {
                // First: a peer that asks without a pause would else be served for ever.
                biased;
                words = &mut over => return connection.close(Close::Refused, &words),
                stream = connection.accept_bi() => break stream,
                frame = reader.receive::<FromAgent>(), if first_open => {
                    // The client may end its side; anything sent on it is an agent's.
                    first_open = false;
                    if !matches!(frame, Ok(None) | Err(FrameError::Lost(_))) {
                        return refuse_agent(&door, &connection);
                    }
                }
            }
        };
        let Ok((writer, reader)) = stream else { return };
        // A stream that waits here is not read, and its peer's window fills.
        rate.wait(door.clock).await;
        let (door, connection) = (door.clone(), connection.clone());
        let (asker, share) = (Arc::clone(&asker), Arc::clone(&share));
        tokio::spawn(async move {
            let _own = share.acquire().await;
            answer(&door, &connection, &asker, (writer, reader), protocol).await;
            drop(permit);
        });
    }
}

/// Waits until the certificate of a session has ended: a person's rights end with it, however long
/// the session lasts.
///
/// # Returns
/// The words to close it with.
async fn expiry(door: &Door, connection: &Connection) -> String {
    let certificate = connection.certificate();
    // The clock of the day may be set meanwhile, which no timer notices.
    while let Ok(left) = certificate.not_after.duration_since(door.clock.wall()) {
        tokio::time::sleep(left.min(LOOK) + Duration::from_millis(1)).await;
    }
    let words = format!(
        "the certificate of {} (serial {}) has expired: issue a new one with optimus cert issue",
        certificate.identity, certificate.serial
    );
    tracing::warn!(words, "closed a session");
    words
}

fn refuse_agent(door: &Door, connection: &Connection) {
    Counters::add(&door.counters.requests_not_allowed);
    let identity = connection.identity();
    let words = format!("the certificate of {identity} cannot introduce an agent");
    tracing::warn!(%identity, words, "closed an operator's session");
    connection.close(Close::Refused, &words);
}

async fn answer(
    door: &Door,
    connection: &Connection,
    asker: &Asker,
    (mut writer, mut reader): (FrameWriter, FrameReader),
    protocol: u16,
) {
    let Ok(_open) = door.requests.acquire().await else { return };
    let request = match tokio::time::timeout(TRANSFER, reader.receive::<Request>()).await {
        Ok(Ok(Some(request))) => request,
        Ok(Ok(None) | Err(FrameError::Lost(_) | FrameError::Abandoned)) => return,
        Ok(Err(error)) => return malformed(door, connection, writer, &error).await,
        Err(_) => return connection.close(Close::Deadline, "a request did not come in time"),
    };
    let line = audited(door, connection, asker, &request);
    let Request { dry_run, reason, call } = request;
    if let Some(refusal) = no_room(door, asker, &call, dry_run).await {
        let reply = noted(door, line, Err(refusal)).await;
        return told(send(&mut writer, reply).await);
    }
    let reply = match call {
        Call::Read(Read::Snapshot) => match admitted(door, asker, &call).await {
            Ok(()) => {
                let done = snapshot(door, &asker.user, &mut writer).await;
                let outcome = done.as_ref().map_or_else(ToString::to_string, |()| DONE.to_owned());
                door.audit.note(AuditView { outcome, ..line }).await;
                return told(done);
            }
            Err(refusal) => noted(door, line, Err(refusal)).await,
        },
        Call::Read(read) => {
            let reply = read_reply(door, asker, read).await;
            if is_not_allowed(&reply) { noted(door, line, reply).await } else { reply }
        }
        Call::Certificate(call) => {
            let whole = Call::Certificate(call.clone());
            let reply = match admitted(door, asker, &whole).await {
                Ok(()) => certificates::answer(door, &asker.user, call, dry_run).await,
                Err(refusal) => Err(refusal),
            };
            noted(door, line, reply).await
        }
        Call::Change(change) => {
            let reply = change_reply(door, asker, (dry_run, reason), change).await;
            noted(door, line, reply).await
        }
    };
    told(send_any(&mut writer, reply, protocol).await);
}

fn told(sent: Result<(), FrameError>) {
    if let Err(error) = sent {
        tracing::debug!(%error, "an operator did not take the answer");
    }
}

/// The line of the audit log, but for its number and outcome.
fn audited(door: &Door, connection: &Connection, asker: &Asker, request: &Request) -> AuditView {
    AuditView {
        number: 0,
        at: UnixMs(door.clock.unix_ms()),
        user: asker.user.clone(),
        role: asker.rank.name().to_owned(),
        address: connection.remote_address().to_string(),
        request: asked::line(&request.call),
        reason: request.reason.clone(),
        outcome: String::new(),
        dry_run: request.dry_run,
    }
}

const DONE: &str = "done";

/// Writes the line before its answer is given.
async fn noted(door: &Door, line: AuditView, reply: Reply) -> Reply {
    let outcome = match &reply {
        Ok(Answer::Submitted { job, created: true, .. }) => format!("{DONE}: {job}"),
        Ok(Answer::Submitted { job, .. }) => format!("{DONE} before: {job}"),
        Ok(_) => DONE.to_owned(),
        Err(refusal) => refusal.message.clone(),
    };
    if is_not_allowed(&reply) {
        Counters::add(&door.counters.requests_not_allowed);
    }
    door.audit.note(AuditView { outcome, ..line }).await;
    reply
}

fn is_not_allowed(reply: &Reply) -> bool {
    reply.as_ref().is_err_and(|refusal| refusal.kind == ErrorKind::NotAllowed)
}

/// Whether one may have what the loop does not answer itself.
async fn admitted(door: &Door, asker: &Asker, call: &Call) -> Result<(), Refusal> {
    let (reply, answer) = oneshot::channel();
    let query = Query::Admit { asker: asker.clone(), call: Box::new(call.clone()), reply };
    within(door.queries.send(query), answer).await
}

/// Why what would be stored cannot be; told only to those who may ask for it.
async fn no_room(door: &Door, asker: &Asker, call: &Call, dry_run: bool) -> Option<Refusal> {
    if dry_run {
        return None;
    }
    let refusal = door.room.refusal(call).await?;
    Some(admitted(door, asker, call).await.err().unwrap_or(refusal))
}

async fn change_reply(
    door: &Door,
    asker: &Asker,
    (dry_run, reason): (bool, Option<String>),
    change: Change,
) -> Reply {
    let refused = match remote::unreached(door, &change).await {
        None => shared::unshared(door, &change, dry_run).await,
        refused => refused,
    };
    if let Some(refusal) = refused {
        return Err(refusal);
    }
    let (reply, answer) = oneshot::channel();
    let asker = asker.clone();
    let change = ChangeRequest { asker, dry_run, reason, change, reply };
    within(door.inputs.send(Input::Change(Box::new(change))), answer).await
}

/// Says what is wrong with a request, then ends the session: what follows cannot be trusted.
async fn malformed(
    door: &Door,
    connection: &Connection,
    mut writer: FrameWriter,
    error: &FrameError,
) {
    Counters::add(&door.counters.frames_malformed);
    let (identity, words) = (connection.identity(), error.to_string());
    tracing::warn!(%identity, words, "closed an operator's session");
    let hint = "use a client of the master's release: optimus version";
    let refusal = Refusal::new(ErrorKind::Invalid, format!("the request: {words}"), hint);
    // Best effort: the reason goes along with the close too.
    let _ = send(&mut writer, Err(refusal)).await;
    connection.close(Close::Protocol, &words);
}

/// Sends an answer of any length and ends the stream.
async fn send_any(writer: &mut FrameWriter, reply: Reply, protocol: u16) -> Result<(), FrameError> {
    let sent = async {
        pieces::send(writer, &reply, protocol).await?;
        writer.finished().await
    };
    tokio::time::timeout(TRANSFER, sent).await.unwrap_or(Err(FrameError::Abandoned))
}

/// Sends the only or the last frame of an answer and ends the stream.
async fn send(writer: &mut FrameWriter, reply: Reply) -> Result<(), FrameError> {
    let sent = async {
        writer.send(&reply).await?;
        writer.finished().await
    };
    // The connection's own idle timeout ends a peer that takes nothing at all.
    tokio::time::timeout(TRANSFER, sent).await.unwrap_or(Err(FrameError::Abandoned))
}

fn unavailable(message: &str, hint: &str) -> Refusal {
    Refusal::new(ErrorKind::Unavailable, message, hint)
}

/// Hands something to the loop and waits for its answer.
async fn within<T, E>(
    asked: impl Future<Output = Result<(), E>>,
    answer: oneshot::Receiver<Result<T, Refusal>>,
) -> Result<T, Refusal> {
    let stopping = || unavailable(STOPPING, "try again in a moment");
    let whole = async {
        asked.await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    };
    tokio::time::timeout(ANSWER, whole).await.unwrap_or_else(|_| {
        Err(unavailable(
            UNANSWERED,
            "see optimus status for alerts; a submission with --request-id can be repeated",
        ))
    })
}

async fn read_reply(door: &Door, asker: &Asker, read: Read) -> Reply {
    if let Read::Audit { after, limit } = read {
        admitted(door, asker, &Call::Read(read)).await?;
        return Ok(Answer::Audit(door.audit.read(after, limit).await));
    }
    let asker = asker.clone();
    let Read::Log { job, generation, task, bytes_max } = read else {
        let (reply, answer) = oneshot::channel();
        let query = Query::Read { asker, read: Box::new(read), reply };
        return within(door.queries.send(query), answer).await;
    };
    let (reply, answer) = oneshot::channel();
    let bytes_max = bytes_max.min(LOG_BYTES_MAX);
    let query = Query::LogRoute { asker, job, generation, task, bytes_max, reply };
    let (agent, question): (Connection, AgentQuery) =
        within::<_, _>(door.queries.send(query), answer as oneshot::Receiver<LogRoute>).await?;
    let node = agent.identity().name.clone();
    match tokio::time::timeout(AGENT, ask(&agent, &question)).await {
        Ok(Ok(AgentAnswer::Log { generation, text })) => {
            Ok(Answer::Log { generation: generation.0, text })
        }
        Ok(Ok(AgentAnswer::Refused(words))) => {
            let message = format!("node {node} has no such output: {words}");
            Err(Refusal::new(ErrorKind::NotFound, message, "see optimus show for its tasks"))
        }
        Ok(Ok(
            AgentAnswer::Probed(_) | AgentAnswer::CertificateRequest(_) | AgentAnswer::Installed,
        )) => Err(unavailable(&format!("node {node} answered another question"), "try again")),
        Ok(Err(words)) => {
            Err(unavailable(&format!("node {node} did not answer: {words}"), "try again"))
        }
        Err(_) => {
            let words = format!("node {node} did not answer within {} s", AGENT.as_secs());
            Err(unavailable(&words, "see optimus nodes for its state"))
        }
    }
}

pub(crate) async fn ask(agent: &Connection, question: &AgentQuery) -> Result<AgentAnswer, String> {
    let (mut writer, mut reader) = agent.open_bi().await.map_err(|lost| lost.to_string())?;
    writer.send(question).await.map_err(|error| error.to_string())?;
    writer.finish();
    match reader.receive::<AgentAnswer>().await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err("it ended the stream without an answer".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Sends a consistent copy of the store in pieces, the last of them empty.
async fn snapshot(door: &Door, user: &str, writer: &mut FrameWriter) -> Result<(), FrameError> {
    let Ok(_permit) = door.snapshots.try_acquire() else {
        let words = "another snapshot is being sent";
        return send(writer, Err(unavailable(words, "try again when it is done"))).await;
    };
    let bytes = match export(door).await {
        Ok(bytes) => bytes,
        Err(refusal) => return send(writer, Err(refusal)).await,
    };
    tracing::info!(user, bytes = bytes.len(), "sending a snapshot of the store");
    for piece in bytes.chunks(PIECE_BYTES) {
        let reply: Reply = Ok(Answer::SnapshotPiece(piece.to_vec()));
        let sent = tokio::time::timeout(TRANSFER, writer.send(&reply)).await;
        sent.unwrap_or(Err(FrameError::Abandoned))?;
    }
    send(writer, Ok(Answer::SnapshotPiece(Vec::new()))).await
}

async fn export(door: &Door) -> Result<Vec<u8>, Refusal> {
    let header = Header {
        cluster: door.cluster.to_string(),
        software: env!("CARGO_PKG_VERSION").to_owned(),
        created_unix_ms: door.clock.unix_ms(),
    };
    let (reply, answer) = oneshot::channel();
    let query = Query::Export { header, reply };
    let whole = async {
        door.queries.send(query).await.ok()?;
        answer.await.ok()?.await.ok()
    };
    match tokio::time::timeout(ANSWER, whole).await {
        Ok(Some(Ok(bytes))) => Ok(bytes),
        Ok(Some(Err(words))) => {
            Err(unavailable(&format!("cannot read the store: {words}"), "see optimus status"))
        }
        Ok(None) => Err(unavailable(STOPPING, "try again in a moment")),
        Err(_) => Err(unavailable("the store did not answer in time", "see optimus status")),
    }
}
