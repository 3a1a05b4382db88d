//! What a restart of the master, a renewed certificate and an end look like to an agent.

use std::net::SocketAddr;
use std::time::Duration;

use net::{Close, Credentials, Lost, ResetKeys, Role, Session};

use crate::world::{LOOPBACK, World, agent_options, now, options, session, soon};

/// Well below the idle timeout of 20 s, which is when an agent would notice without the keys.
const NOTICED_WITHIN: Duration = Duration::from_secs(8);

/// A master in a runtime of its own, so that it can die without a word.
struct Mortal {
    runtime: tokio::runtime::Runtime,
    address: SocketAddr,
}

fn start(credentials: Credentials, keys: ResetKeys, listen: SocketAddr) -> Mortal {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = {
        let _inside = runtime.enter();
        net::server(listen, &credentials, &keys, options()).expect("the port is free")
    };
    let address = server.local_address();
    runtime.spawn(async move {
        let mut kept: Vec<Session> = Vec::new();
        while let Some(incoming) = server.accept().await {
            kept.push(incoming.handshake().await.unwrap());
        }
    });
    Mortal { runtime, address }
}

#[tokio::test]
async fn a_restart_with_kept_keys_is_noticed_within_seconds() {
    let world = World::new();
    let keys = world.path().join("reset.keys");
    let (master, agent) = (world.issue(Role::Master, "m1"), world.credentials(Role::Agent, "n1"));
    let load = || Credentials::load(&master, Role::Master, now()).unwrap();

    let first = start(load(), ResetKeys::load_or_create(&keys).unwrap(), LOOPBACK);
    let address = first.address;
    let mut session = net::connect(address, &agent, &agent_options()).await.unwrap();
    session.writer.send(&"a heartbeat").await.unwrap();
    // No task runs on, so no goodbye is sent, as with a kill.
    first.runtime.shutdown_background();

    let restarted = async {
        loop {
            // The port is free once the runtime's last thread has let go.
            match std::net::UdpSocket::bind(address).map(drop) {
                Ok(()) => break start(load(), ResetKeys::load_or_create(&keys).unwrap(), address),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let second = soon("the port", restarted).await;
    session.writer.send(&"the next heartbeat").await.unwrap();
    let lost = tokio::time::timeout(NOTICED_WITHIN, session.connection.closed()).await;
    assert_eq!(lost, Ok(Lost::Reset), "the agent waits for the idle timeout");
    let session = net::connect(address, &agent, &agent_options()).await.unwrap();
    assert_eq!(session.connection.lost(), None);
    second.runtime.shutdown_background();
}

#[tokio::test]
async fn a_renewed_certificate_is_used_and_disturbs_nobody() {
    let world = World::new();
    let server = world.server();
    let agent = world.credentials(Role::Agent, "n1");
    let (master_old, mut peer_old) = session(&server, &agent).await;

    let renewed = world.credentials(Role::Master, "m2");
    server.reload(&renewed).unwrap();
    let (_master, peer) = session(&server, &agent).await;
    assert_eq!(peer.connection.identity().name, "m2");

    assert_eq!(peer_old.connection.identity().name, "m1");
    peer_old.writer.send(&7_u32).await.unwrap();
    let mut master_old = master_old;
    assert_eq!(soon("the frame", master_old.reader.receive::<u32>()).await, Ok(Some(7)));
}

#[tokio::test]
async fn an_end_is_told_in_words() {
    let world = World::new();
    let server = world.server();
    let (master, mut peer) = session(&server, &world.credentials(Role::Agent, "n1")).await;
    server.close("the master stops for maintenance").await;
    let lost = soon("the end", peer.connection.closed()).await;
    assert_eq!(
        lost,
        Lost::Closed {
            close: Close::Shutdown,
            reason: "the master stops for maintenance".to_owned()
        }
    );
    let error = peer.reader.receive::<u32>().await.unwrap_err();
    assert!(error.to_string().contains("stops for maintenance"), "{error}");
    assert_eq!(master.connection.lost(), Some(Lost::Local));
    assert!(soon("the end of accepting", server.accept()).await.is_none());
}

#[tokio::test]
async fn contact_grows_with_heartbeats_that_nobody_answers() {
    let world = World::new();
    let server = world.server();
    let (mut master, mut peer) = session(&server, &world.credentials(Role::Agent, "n1")).await;
    for beat in 0..3_u32 {
        let before = peer.connection.contact();
        peer.writer.send(&beat).await.unwrap();
        assert_eq!(soon("the beat", master.reader.receive::<u32>()).await, Ok(Some(beat)));
        let acknowledged = async {
            while peer.connection.contact() == before {
                tokio::task::yield_now().await;
            }
        };
        soon("the acknowledgement", acknowledged).await;
    }
}

#[tokio::test]
async fn an_operator_ends_at_once_and_the_master_knows() {
    let world = World::new();
    let server = world.server();
    let operator = world.credentials(Role::Operator, "ada");
    let (master, peer) = session(&server, &operator).await;
    soon("the end", peer.connection.close_and_wait(Close::Done, "that was all")).await;
    let lost = soon("the news", master.connection.closed()).await;
    assert!(lost.to_string().contains("that was all"), "{lost}");
}
