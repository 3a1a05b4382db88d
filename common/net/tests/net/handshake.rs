//! Who comes in, who does not, and what both sides are told.

use std::sync::Arc;
use std::time::Duration;

use net::{Close, ConnectError, Credentials, HandshakeError, Lost, Role};

use crate::raw;
use crate::world::{World, accept, accept_all, agent_options, meet, now, options, session, soon};

#[tokio::test]
async fn both_sides_know_who_the_other_is() {
    let world = World::new();
    let server = world.server();
    for (role, name) in [(Role::Agent, "gpu-07"), (Role::Operator, "Ada_L")] {
        let (master, peer) = session(&server, &world.credentials(role, name)).await;
        let seen = master.connection.identity();
        assert_eq!((seen.role, seen.name.as_str()), (role, name));
        assert_eq!(peer.connection.identity().to_string(), "master m1");
        let newest = *net::PROTOCOL.end();
        assert_eq!((master.protocol, peer.protocol), (newest, newest));
        assert_eq!((master.cluster.as_str(), peer.cluster.as_str()), ("test", "test"));
        assert_eq!(master.software, "optimus-agent 0.1.0");
        assert_eq!(peer.software, "optimus-master 0.1.0");
    }
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused_by_either_side() {
    let (world, other) = (World::new(), World::new());
    let server = world.server();
    let (own, stranger) = (world.issue(Role::Agent, "n2"), other.issue(Role::Agent, "n1"));
    // It trusts this cluster's CA, but shows the other's certificate.
    let (master, peer) = tokio::join!(
        accept(&server),
        raw::connect(server.local_address(), &own, Some(&stranger), net::ALPN)
    );
    let refused = master.unwrap_err();
    assert!(
        matches!(&refused, HandshakeError::Lost { lost: Lost::PeerCertificate(_), .. }),
        "{refused:?}"
    );
    let told = Lost::from(soon("the refusal", peer.unwrap().closed()).await);
    assert!(told.to_string().contains("not signed by the peer's CA"), "{told}");

    // It trusts only the other CA, so this master is none of its own.
    let credentials = Credentials::load(&stranger, Role::Agent, now()).unwrap();
    let (_, peer) = meet(&server, &credentials, &agent_options()).await;
    let error = peer.unwrap_err();
    assert!(matches!(error, ConnectError::NotTheMaster { .. }), "{error:?}");
}

#[tokio::test]
async fn an_expired_certificate_is_refused_by_either_side() {
    let world = World::new();
    let server = world.server();
    let (master, peer) = meet(&server, &world.expired(Role::Agent, "n1"), &agent_options()).await;
    let error = peer.unwrap_err();
    assert!(matches!(error, ConnectError::CertificateRefused { .. }), "{error:?}");
    let words = error.to_string();
    assert!(words.contains("agent-n1.pem") && words.contains("has expired"), "{words}");
    assert!(matches!(master, Err(HandshakeError::Lost { .. })), "{master:?}");

    let keys = net::ResetKeys::random().unwrap();
    let old = world.expired(Role::Master, "m1");
    let server = net::server(crate::world::LOOPBACK, &old, &keys, options()).unwrap();
    let agent = world.credentials(Role::Agent, "n1");
    let (_, peer) = meet(&server, &agent, &agent_options()).await;
    let error = peer.unwrap_err();
    assert!(matches!(error, ConnectError::NotTheMaster { .. }), "{error:?}");
    assert!(error.to_string().contains("xpired"), "{error}");
}

#[tokio::test]
async fn an_agent_s_certificate_does_not_make_a_master() {
    let world = World::new();
    let keys = net::ResetKeys::random().unwrap();
    let pretender = world.credentials(Role::Agent, "n1");
    let server = net::server(crate::world::LOOPBACK, &pretender, &keys, options()).unwrap();
    let (_, peer) = meet(&server, &world.credentials(Role::Agent, "n2"), &agent_options()).await;
    let error = peer.unwrap_err();
    assert!(matches!(error, ConnectError::NotTheMaster { .. }), "{error:?}");
}

#[tokio::test]
async fn a_peer_without_a_certificate_is_refused() {
    let world = World::new();
    let server = world.server();
    let files = world.issue(Role::Agent, "n1");
    let (master, peer) = tokio::join!(
        accept(&server),
        raw::connect(server.local_address(), &files, None, net::ALPN)
    );
    assert!(matches!(master, Err(HandshakeError::Lost { .. })), "{master:?}");
    let told = Lost::from(soon("the refusal", peer.unwrap().closed()).await);
    assert!(told.to_string().contains("none was sent"), "{told}");
}

#[tokio::test]
async fn a_role_that_is_not_admitted_is_told_so() {
    let world = World::new();
    let mut only_agents = options();
    only_agents.roles = vec![Role::Agent];
    let server = world.server_with(only_agents);
    let operator = world.credentials(Role::Operator, "ada");
    let (master, peer) = meet(&server, &operator, &agent_options()).await;
    let error = peer.unwrap_err();
    assert!(matches!(error, ConnectError::Role { .. }), "{error:?}");
    for words in [error.to_string(), master.unwrap_err().to_string()] {
        assert!(words.contains("operator ada") && words.contains("agent"), "{words}");
    }
}

#[tokio::test]
async fn versions_out_of_range_are_refused_in_words_on_both_sides() {
    let world = World::new();
    let agent = world.credentials(Role::Agent, "n1");
    let mut later = options();
    later.versions = 4..=5;
    for (server, offered, said) in [
        (world.server(), 7..=9, "speaks protocol 1 to 4, you speak 7 to 9: upgrade the master"),
        (world.server_with(later), 1..=2, "4 to 5, you speak 1 to 2: upgrade the agent"),
    ] {
        let mut how = agent_options();
        how.versions = offered;
        let (master, peer) = meet(&server, &agent, &how).await;
        let error = peer.unwrap_err();
        assert!(matches!(error, ConnectError::Version { .. }), "{error:?}");
        for words in [error.to_string(), master.unwrap_err().to_string()] {
            assert!(words.contains(said), "{words}");
        }
    }
}

#[tokio::test]
async fn the_newest_common_version_is_spoken() {
    let world = World::new();
    let mut wide = options();
    wide.versions = 1..=5;
    let server = world.server_with(wide);
    let mut how = agent_options();
    how.versions = 2..=3;
    let (master, peer) = meet(&server, &world.credentials(Role::Agent, "n1"), &how).await;
    assert_eq!((master.unwrap().protocol, peer.unwrap().protocol), (3, 3));
    // An agent of the first release meets this build's master, and the other way round.
    for (of_master, of_agent) in [(1..=2, 1..=1), (1..=1, 1..=2)] {
        let mut old = options();
        old.versions = of_master;
        let server = world.server_with(old);
        how.versions = of_agent;
        let (master, peer) = meet(&server, &world.credentials(Role::Agent, "n1"), &how).await;
        assert_eq!((master.unwrap().protocol, peer.unwrap().protocol), (1, 1));
    }
}

#[tokio::test]
async fn another_protocol_family_is_named() {
    let world = World::new();
    let server = world.server();
    let files = world.issue(Role::Agent, "n1");
    let (master, peer) = tokio::join!(
        accept(&server),
        raw::connect(server.local_address(), &files, Some(&files), b"other/1")
    );
    assert!(
        matches!(master, Err(HandshakeError::Lost { lost: Lost::OtherProtocol, .. })),
        "{master:?}"
    );
    assert_eq!(Lost::from(peer.unwrap_err()), Lost::OtherProtocol);

    let other = raw::server(&world.issue(Role::Master, "m1"), b"other/1");
    let agent = world.credentials(Role::Agent, "n1");
    let how = agent_options();
    let (_, peer) = tokio::join!(
        async { other.accept().await.unwrap().await },
        net::connect(other.local_addr().unwrap(), &agent, &how)
    );
    let error = peer.unwrap_err();
    assert!(error.to_string().contains("does not speak optimus/1"), "{error}");
}

#[tokio::test]
async fn the_master_can_refuse_after_seeing_who_it_is() {
    let world = World::new();
    let server = world.server();
    let agent = world.credentials(Role::Agent, "n1");
    let how = agent_options();
    let refuse = async {
        let incoming = server.accept().await.unwrap();
        let greeting = incoming.greet().await.unwrap();
        assert_eq!(greeting.identity().name, "n1");
        assert_eq!(greeting.hello().software, "optimus-agent 0.1.0");
        greeting.refuse("n1 was declared lost by an operator").await
    };
    let (master, peer) = tokio::join!(refuse, net::connect(server.local_address(), &agent, &how));
    for words in [master.to_string(), peer.unwrap_err().to_string()] {
        assert!(words.contains("n1 was declared lost by an operator"), "{words}");
    }
    assert_eq!(server.connections(), 0, "a refused peer holds no place");
}

#[tokio::test]
async fn a_slow_peer_is_ended_and_holds_up_nobody() {
    let world = World::new();
    let mut hasty = options();
    hasty.handshake = Duration::from_secs(2);
    let server = Arc::new(world.server_with(hasty));
    let files = world.issue(Role::Agent, "slow");
    // TLS is done, and one byte of the greeting sent; then nothing more.
    let accepting = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.accept().await.unwrap().handshake().await }
    });
    let quic = raw::connect(server.local_address(), &files, Some(&files), net::ALPN);
    let quic = quic.await.unwrap();
    let (mut send, _receive) = quic.open_bi().await.unwrap();
    send.write_all(&raw::HELLO[..1]).await.unwrap();

    let (_master, _peer) = session(&server, &world.credentials(Role::Agent, "n1")).await;
    assert!(!accepting.is_finished(), "the slow one was ended before its deadline");

    let ended = soon("the deadline", accepting).await.unwrap().unwrap_err();
    assert!(matches!(ended, HandshakeError::Deadline { .. }), "{ended:?}");
    let told = Lost::from(soon("the closing", quic.closed()).await);
    assert!(matches!(told, Lost::Closed { close: Close::Deadline, .. }), "{told:?}");
}

#[tokio::test]
async fn garbage_in_place_of_a_greeting_is_refused() {
    let world = World::new();
    let server = world.server();
    let files = world.issue(Role::Agent, "n1");
    let long = [0xff; 64];
    let garbage: [&[u8]; 4] =
        [b"GET / HTTP/1.1\r\n\r\n", &long, b"\x08\0\0\0NOTMAGIC", &raw::HELLO[..9]];
    for bytes in garbage {
        let send = async {
            let quic = raw::connect(server.local_address(), &files, Some(&files), net::ALPN)
                .await
                .unwrap();
            let (mut send, _receive) = quic.open_bi().await.unwrap();
            send.write_all(bytes).await.unwrap();
            send.finish().unwrap();
            Lost::from(quic.closed().await)
        };
        let (master, told) = tokio::join!(accept(&server), soon("the closing", send));
        assert!(matches!(master, Err(HandshakeError::Protocol { .. })), "{master:?}");
        assert!(matches!(told, Lost::Closed { close: Close::Protocol, .. }), "{told:?}");
    }
}

#[tokio::test]
async fn stray_datagrams_are_dropped() {
    let world = World::new();
    let server = Arc::new(world.server());
    let accepting = accept_all(&server);
    let socket = tokio::net::UdpSocket::bind(crate::world::LOOPBACK).await.unwrap();
    for length in 0..1500_usize {
        let datagram: Vec<u8> =
            (0..length).map(|at| u8::try_from(at * length % 251).unwrap()).collect();
        socket.send_to(&datagram, server.local_address()).await.unwrap();
    }
    let agent = world.credentials(Role::Agent, "n1");
    net::connect(server.local_address(), &agent, &agent_options()).await.unwrap();
    accepting.abort();
}

#[tokio::test]
async fn a_master_that_is_not_there_is_called_so() {
    let world = World::new();
    let agent = world.credentials(Role::Agent, "n1");
    let mut how = agent_options();
    // A port that was free a moment ago: the host itself says that nothing listens.
    let free = std::net::UdpSocket::bind(crate::world::LOOPBACK).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let error = net::connect(address, &agent, &how).await.unwrap_err();
    assert_eq!(error, ConnectError::NothingListens { address });

    // One that swallows everything, as behind a firewall.
    let silent = std::net::UdpSocket::bind(crate::world::LOOPBACK).unwrap();
    let address = silent.local_addr().unwrap();
    how.timeout = Duration::from_millis(300);
    let error = net::connect(address, &agent, &how).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("UDP"), "{error}");
}

#[tokio::test]
async fn a_master_that_does_not_welcome_is_given_up() {
    let world = World::new();
    let server = world.server();
    let agent = world.credentials(Role::Agent, "n1");
    let mut how = agent_options();
    how.timeout = Duration::from_secs(1);
    let (greeting, peer) = tokio::join!(
        async { server.accept().await.unwrap().greet().await },
        net::connect(server.local_address(), &agent, &how)
    );
    assert!(matches!(peer, Err(ConnectError::Silent { .. })), "{peer:?}");
    drop(greeting);
}
