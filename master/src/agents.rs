//! An agent's session: heartbeats in, desired sets out.

use std::time::Duration;

use control::event::SessionId;
use model::NodeId;
use model::agent::{Desired, FromAgent, ToAgent};
use model::client::{ErrorKind, Refusal, Reply, STOPPING};
use model::nodes::{NodeOrders, PROTOCOL_OF_NODES};
use model::notes::{Extras, PROTOCOL_OF_NOTES};
use net::{Close, Connection, FrameError, FrameReader, FrameWriter, Session};
use tokio::sync::watch;

use crate::door::{AgentHandle, Counters, Door, Input};
use crate::rate::Rate;

/// From the welcome to the introduction.
const INTRODUCTION: Duration = Duration::from_secs(40);

/// For an agent to take its desired set off the transport's hands.
const DELIVERY: Duration = Duration::from_secs(30);

/// Heartbeats a second that are let through, and how many may come at once. Twice what the
/// shortest beat that can be configured (100 ms) needs.
const BEATS_PER_S: u64 = 20;
const BEATS_AT_ONCE: u64 = 20;

/// How a session ended.
#[derive(Debug)]
enum End {
    /// The connection is gone.
    Lost(String),
    /// The peer broke a rule and is told so.
    Protocol(String),
    Deadline(String),
    /// The master ends.
    Stopping,
}

/// Serves an agent until its connection ends.
pub(crate) async fn serve(door: Door, session: Session, id: SessionId) {
    let Session { connection, writer, mut reader, software, protocol, .. } = session;
    let node: NodeId = match connection.identity().name.parse() {
        Ok(node) => node,
        Err(error) => {
            let error: model::InvalidName = error;
            return connection.close(Close::Refused, &error.to_string());
        }
    };
    let first = tokio::time::timeout(INTRODUCTION, reader.receive::<FromAgent>()).await;
    let introduction = match first {
        Ok(Ok(Some(FromAgent::Introduction(introduction)))) => introduction,
        Ok(Ok(Some(
            FromAgent::Heartbeat(_)
            | FromAgent::Rates(_)
            | FromAgent::Notes(_)
            | FromAgent::Node(_),
        ))) => {
            let words = "the first frame of an agent must be its introduction";
            return end(&door, &connection, &node, id, End::Protocol(words.to_owned()));
        }
        Ok(Ok(None)) => {
            let words = "the stream ended before the introduction";
            return end(&door, &connection, &node, id, End::Protocol(words.to_owned()));
        }
        Ok(Err(error)) => return end(&door, &connection, &node, id, broken(error)),
        Err(_) => {
            let words = format!("no introduction within {} s", INTRODUCTION.as_secs());
            return end(&door, &connection, &node, id, End::Deadline(words));
        }
    };
    let address = connection.remote_address();
    tracing::info!(%node, session = id.0, %address, software, "an agent connected");
    let (sender, desired) = watch::channel(None);
    let handle = AgentHandle {
        node: node.clone(),
        connection: connection.clone(),
        boot: introduction.boot_id.clone(),
        protocol,
        desired: sender,
    };
    let introduction = Box::new(introduction);
    let connected = Input::Connected { session: id, handle, introduction };
    if door.inputs.send(connected).await.is_err() {
        return connection.close(Close::Shutdown, STOPPING);
    }
    let ended = tokio::select! {
        ended = hear(&door, &node, id, &mut reader) => ended,
        ended = tell(&node, desired, writer, protocol) => ended,
        ended = refuse_requests(&door, &connection) => ended,
    };
    end(&door, &connection, &node, id, ended);
    // The loop may have ended before the session: then nobody needs to know.
    let _ = door.inputs.send(Input::Disconnected { node, session: id }).await;
}

fn end(door: &Door, connection: &Connection, node: &NodeId, id: SessionId, ended: End) {
    let session = id.0;
    match ended {
        End::Lost(words) => tracing::info!(%node, session, words, "an agent disconnected"),
        End::Protocol(words) => {
            Counters::add(&door.counters.frames_malformed);
            tracing::warn!(%node, session, words, "closed an agent's session");
            connection.close(Close::Protocol, &words);
        }
        End::Deadline(words) => {
            tracing::warn!(%node, session, words, "closed an agent's session");
            connection.close(Close::Deadline, &words);
        }
        // Of one that was given up before, the words of that have gone out already.
        End::Stopping => connection.close(Close::Shutdown, STOPPING),
    }
}

fn broken(error: FrameError) -> End {
    match error {
        FrameError::Lost(lost) => End::Lost(lost.to_string()),
        FrameError::TooLong { .. }
        | FrameError::Cut { .. }
        | FrameError::Malformed { .. }
        | FrameError::Trailing { .. }
        | FrameError::Encode { .. }
        | FrameError::Abandoned => End::Protocol(error.to_string()),
    }
}

/// Takes heartbeats. Each is the node's whole state, so one over the rate can be dropped; the
/// wait then makes a flood cost its sender more than the master.
async fn hear(door: &Door, node: &NodeId, id: SessionId, reader: &mut FrameReader) -> End {
    let mut rate = Rate::new(door.clock.mono(), BEATS_PER_S, BEATS_AT_ONCE);
    let mut warned = false;
    loop {
        let heartbeat = match reader.receive::<FromAgent>().await {
            Ok(Some(FromAgent::Heartbeat(heartbeat))) => Box::new(heartbeat),
            Ok(Some(FromAgent::Rates(rates))) => {
                rate.wait(door.clock).await;
                let input = Input::Rates { node: node.clone(), session: id, rates };
                if door.inputs.send(input).await.is_err() {
                    return End::Stopping;
                }
                continue;
            }
            Ok(Some(FromAgent::Notes(notes))) => {
                rate.wait(door.clock).await;
                let notes = Box::new(notes);
                let input = Input::Notes { node: node.clone(), session: id, notes };
                if door.inputs.send(input).await.is_err() {
                    return End::Stopping;
                }
                continue;
            }
            Ok(Some(FromAgent::Node(notes))) => {
                rate.wait(door.clock).await;
                let notes = Box::new(notes);
                let input = Input::NodeNotes { node: node.clone(), session: id, notes };
                if door.inputs.send(input).await.is_err() {
                    return End::Stopping;
                }
                continue;
            }
            Ok(Some(FromAgent::Introduction(_))) => {
                return End::Protocol("a second introduction on one connection".to_owned());
            }
            Ok(None) => return End::Protocol("the agent ended its stream".to_owned()),
            Err(error) => return broken(error),
        };
        if !rate.admits(door.clock.mono()) {
            Counters::add(&door.counters.heartbeats_over_rate);
            if !std::mem::replace(&mut warned, true) {
                let session = id.0;
                tracing::warn!(%node, session, "drops heartbeats over {BEATS_PER_S} a second");
            }
            tokio::time::sleep(Duration::from_millis(1000 / BEATS_PER_S)).await;
            continue;
        }
        let input = Input::Heartbeat { node: node.clone(), session: id, heartbeat };
        if door.inputs.send(input).await.is_err() {
            return End::Stopping;
        }
    }
}

/// The state machine cuts its messages to what fits. Should one be too long all the same, the agent
/// does without it, as it goes on with what it obeyed last: a session that is ended for it would be
/// ended for it again and again.
async fn send(
    node: &NodeId,
    writer: &mut FrameWriter,
    message: &ToAgent,
) -> Result<(), FrameError> {
    match writer.send(message).await {
        Err(error @ FrameError::TooLong { .. }) => {
            tracing::error!(%node, %error, "a message to an agent is not sent");
            Ok(())
        }
        other => other,
    }
}

/// What the state machine takes for the longest message fits a frame.
const _: () = assert!(control::TOLD_BYTES_MAX < net::FRAME_BYTES_MAX);

/// Sends the newest desired set whenever there is one.
async fn tell(
    node: &NodeId,
    mut desired: watch::Receiver<Option<(Desired, Extras, NodeOrders)>>,
    mut writer: FrameWriter,
    protocol: u16,
) -> End {
    loop {
        // The sender is dropped where the session was given up, and where the master ends.
        if desired.changed().await.is_err() {
            return End::Stopping;
        }
        let Some((newest, extras, orders)) = desired.borrow_and_update().clone() else { continue };
        let sent = async {
            if protocol >= PROTOCOL_OF_NOTES {
                send(node, &mut writer, &ToAgent::Extras(extras)).await?;
            }
            if protocol >= PROTOCOL_OF_NODES {
                send(node, &mut writer, &ToAgent::Orders(orders)).await?;
            }
            send(node, &mut writer, &ToAgent::Desired(newest)).await
        };
        let delivered = tokio::time::timeout(DELIVERY, sent).await;
        match delivered {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return broken(error),
            Err(_) => {
                let words = format!("took no desired set for {} s", DELIVERY.as_secs());
                return End::Deadline(words);
            }
        }
    }
}

/// An agent's certificate is not an operator's: whatever it asks is refused.
async fn refuse_requests(door: &Door, connection: &Connection) -> End {
    loop {
        let mut writer = match connection.accept_bi().await {
            Ok((writer, _)) => writer,
            Err(lost) => return End::Lost(lost.to_string()),
        };
        Counters::add(&door.counters.requests_not_allowed);
        let identity = connection.identity();
        tracing::warn!(%identity, "refused a request of a wrong role");
        let reply: Reply = Err(Refusal::new(
            ErrorKind::NotAllowed,
            format!("the certificate of {identity} cannot make requests"),
            "use an operator's certificate: optimus cert issue",
        ));
        let said = async {
            writer.send(&reply).await?;
            writer.finished().await
        };
        // One at a time: a peer that does not read its refusal only holds up its own next one.
        let _ = tokio::time::timeout(INTRODUCTION, said).await;
    }
}
