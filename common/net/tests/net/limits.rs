//! Many peers, and too many.

use std::sync::Arc;
use std::time::Duration;

use net::{Close, ConnectError, HandshakeError, Limits, Lost, Role};

use crate::raw;
use crate::world::{World, agent_options, meet, options, session, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_connect_at_once() {
    const PEERS: u32 = 200;
    let world = World::new();
    let server = Arc::new(world.server());
    let accepting = tokio::spawn({
        let server = Arc::clone(&server);
        async move {
            let mut echoes = tokio::task::JoinSet::new();
            while let Some(incoming) = server.accept().await {
                echoes.spawn(async move {
                    // A packet that comes twice may leave a handshake that nobody goes on with.
                    let Ok(mut session) = incoming.handshake().await else { return };
                    while let Some(number) = session.reader.receive::<u32>().await.unwrap_or(None) {
                        session.writer.send(&(number, session.connection.contact())).await.unwrap();
                    }
                });
            }
            // Dropped before they are closed, they would end without the words.
            echoes.join_all().await;
        }
    });
    let agent = Arc::new(world.credentials(Role::Agent, "n1"));
    let mut peers = tokio::task::JoinSet::new();
    for number in 0..PEERS {
        let (agent, address) = (Arc::clone(&agent), server.local_address());
        peers.spawn(async move {
            let mut how = agent_options();
            how.timeout = Duration::from_secs(50);
            let mut session = net::connect(address, &agent, &how).await.unwrap();
            session.writer.send(&number).await.unwrap();
            let answer = session.reader.receive::<(u32, u64)>().await.unwrap();
            (answer.unwrap().0, session)
        });
    }
    let done = soon("all peers", peers.join_all()).await;
    let mut numbers: Vec<u32> = done.iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..PEERS).collect::<Vec<_>>());
    assert_eq!(server.connections(), PEERS as usize);
    server.close("the test is over").await;
    soon("the end of accepting", accepting).await.unwrap();
    for (_, session) in &done {
        let lost = soon("the closing", session.connection.closed()).await;
        assert!(matches!(&lost, Lost::Closed { close: Close::Shutdown, .. }), "{lost}");
    }
}

#[tokio::test]
async fn one_over_the_limit_is_refused_in_words_and_a_freed_place_is_taken() {
    let world = World::new();
    for (limits, said) in [
        (Limits { per_address_max: 1, ..Limits::default() }, "most connections of one address, 1"),
        (Limits { connections_max: 1, ..Limits::default() }, "holds its most connections, 1"),
    ] {
        let mut few = options();
        few.limits = limits;
        let server = world.server_with(few);
        let agent = world.credentials(Role::Agent, "n1");
        let first = session(&server, &agent).await;
        let (master, peer) = meet(&server, &agent, &agent_options()).await;
        assert!(matches!(master, Err(HandshakeError::Refused { .. })), "{master:?}");
        let error = peer.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        drop(first);
        session(&server, &agent).await;
    }
}

#[tokio::test]
async fn too_many_handshakes_are_turned_away_at_once() {
    let world = World::new();
    let mut few = options();
    few.limits = Limits { handshakes_max: 1, ..Limits::default() };
    let server = world.server_with(few);
    let files = world.issue(Role::Agent, "n1");
    let (held, _quic) = tokio::join!(async { server.accept().await.unwrap() }, async {
        let connecting = raw::connect(server.local_address(), &files, Some(&files), net::ALPN);
        // It waits for an answer that does not come.
        tokio::time::timeout(Duration::from_millis(200), connecting).await
    });
    let agent = world.credentials(Role::Agent, "n1");
    let how = agent_options();
    let refused = async {
        tokio::select! {
            _ = server.accept() => panic!("the second was let in"),
            peer = net::connect(server.local_address(), &agent, &how) => peer.unwrap_err(),
        }
    };
    let error = soon("the refusal", refused).await;
    assert!(matches!(error, ConnectError::Busy { .. }), "{error:?}");
    drop(held);
    session(&server, &agent).await;
}

#[tokio::test]
async fn an_address_must_prove_itself_when_many_knock() {
    let world = World::new();
    let mut wary = options();
    wary.limits = Limits { unproven_max: 0, ..Limits::default() };
    let server = world.server_with(wary);
    session(&server, &world.credentials(Role::Agent, "n1")).await;
}

#[tokio::test]
async fn a_peer_has_eight_streams_and_no_one_way_ones() {
    let world = World::new();
    let server = world.server();
    let files = world.issue(Role::Agent, "n1");
    let (_held, quic) =
        tokio::join!(async { server.accept().await.unwrap().greet().await }, async {
            let quic = raw::connect(server.local_address(), &files, Some(&files), net::ALPN)
                .await
                .unwrap();
            let (mut send, receive) = quic.open_bi().await.unwrap();
            send.write_all(raw::HELLO).await.unwrap();
            (quic, send, receive)
        });
    let (quic, _first) = (quic.0, (quic.1, quic.2));
    let mut open = Vec::new();
    for _ in 1..8 {
        open.push(soon("a stream", quic.open_bi()).await.unwrap());
    }
    let short = Duration::from_millis(200);
    assert!(tokio::time::timeout(short, quic.open_bi()).await.is_err(), "a ninth was opened");
    assert!(tokio::time::timeout(short, quic.open_uni()).await.is_err(), "one-way was opened");
}

#[tokio::test]
async fn a_dropped_peer_is_noticed() {
    let world = World::new();
    let server = world.server();
    let agent = world.credentials(Role::Agent, "n1");
    let (master, peer) = session(&server, &agent).await;
    drop(peer);
    let lost = soon("the loss", master.connection.closed()).await;
    assert!(matches!(lost, Lost::Closed { close: Close::Done, .. }), "{lost:?}");
    assert_eq!(master.connection.lost(), Some(lost));
    drop(master);
    assert_eq!(server.connections(), 0);
    // The next is not disturbed.
    let (_master, peer) = session(&server, &agent).await;
    peer.connection.close_and_wait(Close::Done, "done").await;
}
