//! Messages on streams: limits, ends, garbage, and waiting that is given up.

use std::time::Duration;

use model::agent::{AgentAnswer, AgentQuery, FromAgent, ToAgent};
use model::client::{Reply, Request};
use net::{FRAME_BYTES_MAX, FrameError, FrameReader, REQUEST_BYTES_MAX, Role, Server, Session};
use proptest::prelude::*;

use crate::raw;
use crate::world::{World, accept, session, soon};

/// A peer that writes what it likes after its greeting.
struct Raw {
    quic: quinn::Connection,
    send: quinn::SendStream,
    /// Dropped, the master could not answer.
    _receive: quinn::RecvStream,
}

async fn with_raw(world: &World, server: &Server, role: Role) -> (Session, Raw) {
    let files = world.issue(role, "n1");
    let greet = async {
        let address = server.local_address();
        let quic = raw::connect(address, &files, Some(&files), net::ALPN).await.unwrap();
        let (mut send, receive) = quic.open_bi().await.unwrap();
        send.write_all(raw::HELLO).await.unwrap();
        Raw { quic, send, _receive: receive }
    };
    let (session, raw) = tokio::join!(accept(server), greet);
    (session.unwrap(), raw)
}

async fn receive(reader: &mut FrameReader) -> Result<Option<FromAgent>, FrameError> {
    soon("the frame", reader.receive::<FromAgent>()).await
}

#[tokio::test]
async fn a_frame_over_the_limit_is_named_by_size_before_it_is_read() {
    let world = World::new();
    let server = world.server();
    for (role, claimed, limit) in
        [(Role::Agent, u32::MAX, FRAME_BYTES_MAX), (Role::Operator, 2 << 20, REQUEST_BYTES_MAX)]
    {
        let (mut session, mut peer) = with_raw(&world, &server, role).await;
        peer.send.write_all(&claimed.to_le_bytes()).await.unwrap();
        let error = receive(&mut session.reader).await.unwrap_err();
        assert_eq!(error, FrameError::TooLong { bytes: claimed as usize, limit });
        let again = receive(&mut session.reader).await.unwrap_err();
        assert_eq!(again, error, "the stream is not read on");
    }
}

#[tokio::test]
async fn the_sender_is_told_of_its_own_limit_and_can_go_on() {
    let world = World::new();
    let server = world.server();
    let (mut master, mut operator) =
        session(&server, &world.credentials(Role::Operator, "ada")).await;
    let error = operator.writer.send(&"x".repeat(2 << 20)).await.unwrap_err();
    let bytes = (2 << 20) + 5;
    assert_eq!(error, FrameError::TooLong { bytes, limit: REQUEST_BYTES_MAX });
    operator.writer.send(&5_u32).await.unwrap();
    assert_eq!(soon("the frame", master.reader.receive::<u32>()).await, Ok(Some(5)));
}

#[tokio::test]
async fn the_longest_frame_goes_through_a_small_window() {
    let world = World::new();
    let server = world.server();
    let (mut master, mut agent) = session(&server, &world.credentials(Role::Agent, "n1")).await;
    let text = "y".repeat(FRAME_BYTES_MAX - 5);
    let (sent, received) =
        tokio::join!(agent.writer.send(&text), master.reader.receive::<String>());
    sent.unwrap();
    assert_eq!(received.unwrap().map(|text| text.len()), Some(FRAME_BYTES_MAX - 5));
}

#[tokio::test]
async fn garbage_cuts_and_trailing_bytes_are_told_apart() {
    let world = World::new();
    let server = world.server();
    for (bytes, expected) in [
        (&b"\x04\0\0\0\xff\xff\xff\xff"[..], "does not read as FromAgent"),
        (b"\x08\0\0\0abc", "ended within a frame, 7 bytes after its start"),
        (b"\x01\0", "ended within a frame, 2 bytes after its start"),
        (b"\0\0\0\0", "does not read as FromAgent"),
    ] {
        let (mut session, mut peer) = with_raw(&world, &server, Role::Agent).await;
        peer.send.write_all(bytes).await.unwrap();
        peer.send.finish().unwrap();
        let error = receive(&mut session.reader).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let (mut session, mut peer) = with_raw(&world, &server, Role::Agent).await;
    peer.send.write_all(b"\x03\0\0\0\x07\x01\x02").await.unwrap();
    let error = soon("the frame", session.reader.receive::<u8>()).await.unwrap_err();
    assert_eq!(error, FrameError::Trailing { what: "u8", bytes: 2 });
}

#[tokio::test]
async fn a_clean_end_and_an_abandoned_stream_differ() {
    let world = World::new();
    let server = world.server();
    let (mut session, mut peer) = with_raw(&world, &server, Role::Agent).await;
    peer.send.finish().unwrap();
    assert_eq!(receive(&mut session.reader).await, Ok(None));
    let (mut other, _) = peer.quic.open_bi().await.unwrap();
    other.write_all(b"\x08\0").await.unwrap();
    let (_writer, mut reader) = soon("the stream", session.connection.accept_bi()).await.unwrap();
    other.reset(9_u32.into()).unwrap();
    assert_eq!(receive(&mut reader).await, Err(FrameError::Abandoned));
}

#[tokio::test]
async fn waiting_may_be_given_up_in_the_middle_of_a_frame() {
    let world = World::new();
    let server = world.server();
    let (mut session, mut peer) = with_raw(&world, &server, Role::Agent).await;
    let frame = net::encode(&"a text in several pieces", 100).unwrap();
    for piece in frame.chunks(3) {
        peer.send.write_all(piece).await.unwrap();
        // The whole frame may be there only after the last piece.
        let wait = session.reader.receive::<String>();
        if let Ok(text) = tokio::time::timeout(Duration::from_millis(20), wait).await {
            assert_eq!(text.unwrap().unwrap(), "a text in several pieces");
            return;
        }
    }
    let text = soon("the frame", session.reader.receive::<String>()).await;
    assert_eq!(text.unwrap().unwrap(), "a text in several pieces");
}

#[tokio::test]
async fn a_send_that_is_given_up_goes_out_whole_with_the_next() {
    let world = World::new();
    let server = world.server();
    let (mut master, mut agent) = session(&server, &world.credentials(Role::Agent, "n1")).await;
    let long = vec![3_u8; 3 << 20];
    let first = tokio::time::timeout(Duration::from_millis(200), agent.writer.send(&long)).await;
    assert!(first.is_err(), "nobody reads, so the window must fill");
    let last = async { agent.writer.send(&vec![4_u8]).await };
    let read = async {
        let first = master.reader.receive::<Vec<u8>>().await.unwrap().unwrap();
        (first, master.reader.receive::<Vec<u8>>().await.unwrap().unwrap())
    };
    let (sent, (first, second)) = soon("both", async { tokio::join!(last, read) }).await;
    sent.unwrap();
    assert!(first == long, "the first frame was damaged");
    assert_eq!(second, [4]);
}

#[tokio::test]
async fn either_side_opens_streams() {
    let world = World::new();
    let server = world.server();
    let (master, agent) = session(&server, &world.credentials(Role::Agent, "n1")).await;
    for (opens, answers) in
        [(&master.connection, &agent.connection), (&agent.connection, &master.connection)]
    {
        let ask = async {
            let (mut writer, mut reader) = opens.open_bi().await.unwrap();
            writer.send(&1_u32).await.unwrap();
            writer.finished().await.unwrap();
            reader.receive::<u32>().await
        };
        let answer = async {
            let (mut writer, mut reader) = answers.accept_bi().await.unwrap();
            let number = reader.receive::<u32>().await.unwrap().unwrap();
            assert_eq!(reader.receive::<u32>().await, Ok(None));
            writer.send(&(number + 1)).await.unwrap();
        };
        let (answered, ()) = soon("an answer", async { tokio::join!(ask, answer) }).await;
        assert_eq!(answered, Ok(Some(2)));
    }
}

/// Reads as nothing, or as something that is written as the same bytes again.
fn reads_honestly<T>(bytes: &[u8])
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    if let Ok(message) = net::decode::<T>(bytes) {
        net::encode(&message, FRAME_BYTES_MAX).unwrap();
    }
}

proptest! {
    #[test]
    fn any_bytes_read_as_a_message_or_not_but_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        reads_honestly::<FromAgent>(&bytes);
        reads_honestly::<ToAgent>(&bytes);
        reads_honestly::<AgentQuery>(&bytes);
        reads_honestly::<AgentAnswer>(&bytes);
        reads_honestly::<Request>(&bytes);
        reads_honestly::<Reply>(&bytes);
    }
}

#[test]
fn a_length_within_a_message_cannot_ask_for_memory() {
    // bincode: 253 starts a u64. A string of 2^60 bytes in ten bytes.
    let mut bomb = vec![253];
    bomb.extend_from_slice(&(1_u64 << 60).to_le_bytes());
    for error in [
        net::decode::<String>(&bomb).unwrap_err(),
        net::decode::<Vec<u8>>(&bomb).unwrap_err(),
        net::decode::<Vec<u64>>(&bomb).unwrap_err(),
    ] {
        assert!(matches!(error, FrameError::Malformed { .. }), "{error}");
    }
}

#[test]
fn whatever_can_be_sent_can_be_read() {
    // The worst for the decoder's limit: numbers of one byte that count as eight.
    for count in [1, 4090, 4096, 65_530, 1 << 20, FRAME_BYTES_MAX - 5] {
        let numbers = vec![1_u64; count];
        let frame = net::encode(&numbers, FRAME_BYTES_MAX).unwrap();
        let read: Vec<u64> = net::decode(&frame[4..]).unwrap();
        assert!(read == numbers, "{count} numbers");
    }
}
