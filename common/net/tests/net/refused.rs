//! Each way in which a certificate can be wrong, and what both sides are told of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use net::pki::{Existing, Request};
use net::{
    ConnectError, ConnectOptions, Credentials, HandshakeError, Lost, ResetKeys, Role, Server,
    TlsFiles,
};

use crate::raw;
use crate::world::{
    LOOPBACK, World, accept, agent_options, days, meet, now, options, session, soon,
};

/// What the master says in its log, and what the peer is told.
async fn both(server: &Server, own: &TlsFiles, shown: &TlsFiles) -> (String, String) {
    let (master, peer) = tokio::join!(
        accept(server),
        raw::connect(server.local_address(), own, Some(shown), net::ALPN)
    );
    let told = Lost::from(soon("the refusal", peer.unwrap().closed()).await);
    (master.unwrap_err().to_string(), told.to_string())
}

fn holds(words: &str, parts: &[&str]) {
    for part in parts {
        assert!(words.contains(part), "{part:?} is not in: {words}");
    }
}

fn lasting(world: &World, role: Role, name: &str, lasts: Duration, at: SystemTime) -> TlsFiles {
    let request = Request { role, name, addresses: &[], days: 1 };
    world.ca.issue_lasting(&request, lasts, world.path(), Existing::Replace, at).unwrap()
}

#[tokio::test]
async fn the_master_names_whose_certificate_it_refuses_and_why() {
    let (world, other) = (World::new(), World::new());
    let server = world.server();
    let own = world.issue(Role::Agent, "n9");
    for role in [Role::Agent, Role::Operator] {
        let name = format!("{role} x1");
        let foreign = other.issue(role, "x1");
        let (log, told) = both(&server, &own, &foreign).await;
        holds(&log, &[&name, "not signed by this cluster's CA"]);
        holds(&told, &["not signed by the peer's CA"]);

        let expired = world.issue_at(role, "x1", now() - days(20), 1);
        let (log, told) = both(&server, &own, &expired).await;
        holds(&log, &[&name, "serial", "expired at 20", "UTC here", "set the clock"]);
        holds(&told, &["by the peer's clock it has expired or is not valid yet", "clocks"]);

        // Made by a clock that is twenty minutes ahead: ten of them are allowed for.
        let early = world.issue_at(role, "x1", now() + Duration::from_secs(1200), 30);
        let (log, told) = both(&server, &own, &early).await;
        holds(&log, &[&name, "not valid before 20", "clocks of the two hosts differ by at least"]);
        holds(&told, &["by the peer's clock it has expired or is not valid yet", "clocks"]);
    }
}

#[tokio::test]
async fn a_master_s_certificate_makes_no_agent_and_no_operator() {
    let world = World::new();
    let server = world.server();
    let own = world.issue(Role::Agent, "n9");
    // TLS admits it; the greeting does not.
    let stolen = world.issue(Role::Master, "m1");
    let quic = raw::connect(server.local_address(), &own, Some(&stolen), net::ALPN);
    let (master, told) = tokio::join!(accept(&server), async {
        let quic = quic.await.unwrap();
        let (mut send, _receive) = quic.open_bi().await.unwrap();
        send.write_all(raw::HELLO).await.unwrap();
        Lost::from(soon("the refusal", quic.closed()).await)
    });
    for words in [master.unwrap_err().to_string(), told.to_string()] {
        holds(&words, &["that of master m1", "here may connect: agent"]);
    }
    let loaded = Credentials::load(&stolen, Role::Operator, now()).unwrap_err();
    holds(&loaded.to_string(), &["master m1", "role operator"]);
}

#[tokio::test]
async fn the_peer_names_whose_certificate_a_false_master_shows_and_why() {
    let (world, other) = (World::new(), World::new());
    let agent = world.credentials(Role::Agent, "n9");
    let listen = |files: &TlsFiles, role, at| {
        let shown = Credentials::load(files, role, at).unwrap();
        net::server(LOOPBACK, &shown, &ResetKeys::random().unwrap(), options()).unwrap()
    };
    let then = now() - days(20);
    let later = now() + days(1);
    let cases = [
        (listen(&other.issue(Role::Master, "m1"), Role::Master, now()), "not signed by this"),
        (listen(&world.issue_at(Role::Master, "m1", then, 1), Role::Master, then), "expired at 20"),
        (
            listen(&world.issue_at(Role::Master, "m1", later, 1), Role::Master, later),
            "not valid before",
        ),
        (listen(&world.issue(Role::Agent, "m1"), Role::Agent, now()), "is not a master's"),
        (listen(&world.issue(Role::Operator, "m1"), Role::Operator, now()), "is not a master's"),
    ];
    for (server, said) in cases {
        let (_, peer) = meet(&server, &agent, &agent_options()).await;
        let error = peer.unwrap_err();
        assert!(matches!(error, ConnectError::NotTheMaster { .. }), "{error:?}");
        holds(&error.to_string(), &["m1", "serial", said]);
    }
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_in_words_from_the_next_connection_on() {
    let world = World::new();
    let server = world.server();
    for (role, name) in [(Role::Agent, "n1"), (Role::Operator, "ada")] {
        let shown = world.credentials(role, name);
        let (held, _peer) = session(&server, &shown).await;
        assert_eq!(held.connection.certificate().serial, shown.serial());
        assert_eq!(held.connection.certificate().not_after, shown.not_after());
        let lists = world.ca.revoke(&[shown.serial().to_owned()], now()).unwrap();
        let refusal = lists.refusal(held.connection.certificate()).unwrap();
        server.set_revocations(Arc::new(lists));
        assert!(held.connection.lost().is_none(), "closing is for the caller to decide");
        let (master, peer) = meet(&server, &shown, &agent_options()).await;
        let (master, peer) = (master.unwrap_err(), peer.unwrap_err());
        assert!(matches!(master, HandshakeError::Refused { .. }), "{master:?}");
        assert!(matches!(peer, ConnectError::CertificateRefused { .. }), "{peer:?}");
        let whose = format!("the certificate of {role} {name} (serial {})", shown.serial());
        holds(&refusal, &[&whose, "is revoked since 20"]);
        for words in [master.to_string(), peer.to_string()] {
            holds(&words, &[&refusal]);
        }
        // Another one of the same name is not it.
        session(&server, &world.credentials(role, name)).await;
    }
}

#[tokio::test]
async fn a_revoked_master_is_refused_by_those_who_have_the_list() {
    let world = World::new();
    let shown = world.credentials(Role::Master, "m1");
    let keys = ResetKeys::random().unwrap();
    let server = net::server(LOOPBACK, &shown, &keys, options()).unwrap();
    let agent = world.credentials(Role::Agent, "n1");
    session(&server, &agent).await;
    let lists = world.ca.revoke(&[shown.serial().to_owned()], now()).unwrap();
    let how = ConnectOptions { revocations: Arc::new(lists), ..agent_options() };
    let (master, peer) = meet(&server, &agent, &how).await;
    let (master, peer) = (master.unwrap_err(), peer.unwrap_err());
    assert!(matches!(peer, ConnectError::NotTheMaster { .. }), "{peer:?}");
    for words in [master.to_string(), peer.to_string()] {
        holds(&words, &["the certificate of master m1", "is revoked since"]);
    }
}

/// A certificate that is good for seconds, renewed before its end: whoever is connected stays,
/// and whoever comes later is let in by the new one and refused by the old one.
#[tokio::test]
async fn certificates_are_renewed_before_their_end_and_no_connection_is_lost() {
    let world = World::new();
    let short = Duration::from_secs(4);
    let begun = now();
    let master = lasting(&world, Role::Master, "m1", short, begun);
    let agent = lasting(&world, Role::Agent, "n1", short, begun);
    let load = |files: &TlsFiles, role| Credentials::load(files, role, begun).unwrap();
    let (master, agent) = (load(&master, Role::Master), load(&agent, Role::Agent));
    let server = net::server(LOOPBACK, &master, &ResetKeys::random().unwrap(), options()).unwrap();
    let (mut held, mut peer) = session(&server, &agent).await;

    let renewed_master = world.credentials(Role::Master, "m1");
    let renewed_agent = world.credentials(Role::Agent, "n1");
    server.reload(&renewed_master).unwrap();
    let ended = begun + short + Duration::from_secs(1);
    soon("the end of the first certificates", async {
        while now() <= ended {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    // The first connection carries frames still; with the first certificate nobody comes in.
    peer.writer.send(&7_u32).await.unwrap();
    assert_eq!(soon("a frame", held.reader.receive::<u32>()).await.unwrap(), Some(7));
    let (log, late) = meet(&server, &agent, &agent_options()).await;
    let late = late.unwrap_err();
    assert!(matches!(late, ConnectError::CertificateRefused { .. }), "{late:?}");
    holds(&late.to_string(), &["agent-n1.pem", "it is valid from 20", "UTC to 20"]);
    holds(&log.unwrap_err().to_string(), &["the certificate of agent n1", "expired at"]);
    let (again, other) = session(&server, &renewed_agent).await;
    assert_eq!(again.connection.certificate().serial, renewed_agent.serial());
    assert_eq!(other.connection.certificate().serial, renewed_master.serial());
    assert!(held.connection.lost().is_none() && peer.connection.lost().is_none());
}
