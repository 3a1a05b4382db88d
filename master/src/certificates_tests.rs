//! Certificates over real sessions: renewed without a break, taken back at once.

use model::agent::{AgentAnswer, AgentQuery};
use model::client::{Answer, Call, ErrorKind, Reply};
use model::nodes::{CertificateCall, Holder};
use net::pki::{self, Ca, Request, Signed};
use net::{Identity, Role, Session, Wallet};

use super::tests::{World, ask, closed_words};

const LASTS: std::time::Duration = std::time::Duration::from_secs(86_400);

fn ca(world: &World) -> Ca {
    pki::load_ca(world.folder.path(), world.clock.wall()).unwrap()
}

async fn call(session: &Session, call: CertificateCall) -> Reply {
    ask(session, Call::Certificate(call)).await
}

fn sign(world: &World, request: &str, role: Role, name: &str) -> Signed {
    let wanted = Request { role, name, addresses: &[], days: 1 };
    ca(world).sign(request, &wanted, LASTS, world.clock.wall()).unwrap()
}

fn request_of(reply: Reply) -> String {
    match reply {
        Ok(Answer::CertificateRequest(request)) => request,
        other => panic!("{other:?} in place of a request"),
    }
}

async fn install(session: &Session, holder: Holder, pem: &str) -> Reply {
    call(session, CertificateCall::Install { holder, pem: pem.to_owned() }).await
}

#[tokio::test]
async fn the_master_s_own_certificate_is_renewed_and_sessions_stay() {
    let world = World::new();
    let operator = world.connect(Role::Operator, "ada").await;
    let before = operator.connection.certificate().serial.clone();
    let holder = || Holder::Master;
    let early = install(&operator, holder(), "x").await.unwrap_err();
    assert_eq!(early.kind, ErrorKind::Conflict);
    let first = request_of(call(&operator, CertificateCall::Ask { holder: holder() }).await);
    let second = request_of(call(&operator, CertificateCall::Ask { holder: holder() }).await);
    let first = sign(&world, &first, Role::Master, "master");
    let second = sign(&world, &second, Role::Master, "master");
    let late = install(&operator, holder(), &first.pem).await.unwrap_err();
    assert!(late.message.contains("newest request"), "{}", late.message);
    let done = install(&operator, holder(), &second.pem).await;
    assert!(matches!(&done, Ok(Answer::Accepted { note, .. }) if note.contains(&second.serial)));

    // Who comes now is shown the new one; the old session goes on.
    let other = world.connect(Role::Operator, "ada").await;
    assert_eq!(other.connection.certificate().serial, second.serial);
    assert_ne!(second.serial, before);
    assert!(operator.connection.lost().is_none());
    let Ok(Answer::Certificates(views)) = call(&operator, CertificateCall::Status).await else {
        panic!("no list of certificates");
    };
    let identities: Vec<&str> = views.iter().map(|view| &*view.identity).collect();
    assert_eq!(identities, ["master/master", "operator/ada"], "one line for two sessions");
    assert_eq!(views[0].serial, second.serial);
    assert!(views.iter().all(|view| view.connected && !view.revoked));
}

/// Answers as an agent does, of the questions for a certificate.
async fn answer_one(session: &Session, wallet: &Wallet, world: &World) {
    let (mut writer, mut reader) = session.connection.accept_bi().await.unwrap();
    let query = reader.receive::<AgentQuery>().await.unwrap().unwrap();
    let identity = Identity::new(Role::Agent, "n1").unwrap();
    let answer = match query {
        AgentQuery::CertificateRequest => {
            AgentAnswer::CertificateRequest(wallet.request(&identity).unwrap())
        }
        AgentQuery::CertificateInstall { pem } => {
            let ca = world.folder.path().join("ca.pem");
            wallet.install(&pem, &ca, &identity, world.clock.wall()).unwrap();
            AgentAnswer::Installed
        }
        AgentQuery::Log { .. } | AgentQuery::Probe { .. } => panic!("{query:?}"),
    };
    writer.send(&answer).await.unwrap();
    writer.finish();
}

#[tokio::test]
async fn an_agent_s_certificate_is_renewed_over_its_own_connection() {
    let mut world = World::new();
    let operator = world.connect(Role::Operator, "ada").await;
    let holder = || Holder::Agent("n1".parse().unwrap());
    let away = call(&operator, CertificateCall::Ask { holder: holder() }).await.unwrap_err();
    assert_eq!(away.kind, ErrorKind::Unavailable);
    assert!(away.message.contains("n1 is not connected"), "{}", away.message);
    assert!(away.hint.contains("SIGHUP"), "{}", away.hint);

    let (agent, _, _handle) = world.agent("n1").await;
    let wallet = Wallet::new(world.folder.path().join("agent/pki"), Role::Agent);
    let ask_it = call(&operator, CertificateCall::Ask { holder: holder() });
    let (request, ()) = tokio::join!(ask_it, answer_one(&agent, &wallet, &world));
    let request = request_of(request);
    let signed = sign(&world, &request, Role::Agent, "n1");
    // The master would refuse these at the next connection: the agent never gets them.
    let (foreign, now) = (tempfile::tempdir().unwrap(), world.clock.wall());
    let foreign = pki::init_cluster(foreign.path(), "test", 9, now).unwrap();
    let wanted = Request { role: Role::Agent, name: "n1", addresses: &[], days: 1 };
    let foreign = foreign.sign(&request, &wanted, LASTS, now).unwrap();
    for pem in [&*foreign.pem, "x"] {
        let refused = install(&operator, holder(), pem).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid, "{refused:?}");
    }
    let (done, ()) = tokio::join!(
        install(&operator, holder(), &signed.pem),
        answer_one(&agent, &wallet, &world)
    );
    assert!(matches!(done, Ok(Answer::Accepted { .. })), "{done:?}");
    assert!(agent.connection.lost().is_none(), "its connection stays");

    // One of before these messages is told what to do instead.
    world.peers.lock().unwrap()[0].2 = 3;
    let old = call(&operator, CertificateCall::Ask { holder: holder() }).await.unwrap_err();
    assert!(old.message.contains("speaks protocol 3"), "{}", old.message);
    assert!(old.hint.contains("upgrade") && old.hint.contains("by file"), "{}", old.hint);
}

#[tokio::test]
async fn who_is_taken_back_is_sent_away_at_once_and_not_let_in_again() {
    let mut world = World::new();
    let operator = world.connect(Role::Operator, "ada").await;
    let (agent, _, _handle) = world.agent("n1").await;
    let (other, _, _second) = world.agent("n2").await;
    let shown = net::certificate_status(
        &super::tests::files(world.folder.path(), Role::Agent, "n1").certificate,
    );
    let serial = shown.unwrap().serial;
    let (authority, now) = (ca(&world), world.clock.wall());
    let first = authority.revoke(std::slice::from_ref(&serial), now).unwrap();
    let sent = call(&operator, CertificateCall::Revocations { pem: first.pem() }).await;
    let Ok(Answer::Accepted { note, .. }) = sent else { panic!("{sent:?}") };
    assert!(note.contains("1 sessions were closed"), "{note}");
    let words = closed_words(&agent).await;
    assert!(words.contains("agent n1") && words.contains("is revoked since"), "{words}");
    let again = world.refused(Role::Agent, "n1").await;
    assert!(again.contains(&serial) && again.contains("agent-n1.pem"), "{again}");
    assert!(other.connection.lost().is_none());

    // A list that is older would let it in again; one of another CA is nobody's.
    let second = authority.revoke(&["aa".to_owned()], now).unwrap();
    let sent = call(&operator, CertificateCall::Revocations { pem: second.pem() }).await;
    assert!(sent.is_ok(), "{sent:?}");
    let older = call(&operator, CertificateCall::Revocations { pem: first.pem() }).await;
    assert_eq!(older.unwrap_err().kind, ErrorKind::Conflict);
    let foreign = tempfile::tempdir().unwrap();
    let foreign = pki::init_cluster(foreign.path(), "test", 9, now).unwrap();
    for pem in [foreign.revoke(&["aa".to_owned()], now).unwrap().pem(), "x".to_owned()] {
        let refused = call(&operator, CertificateCall::Revocations { pem }).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid, "{refused:?}");
    }
    let kept = world.folder.path().join("pki/revocations.pem");
    let kept = net::Revocations::kept(&kept, &world.folder.path().join("ca.pem")).unwrap();
    assert_eq!(kept, second, "over a restart the list is known");
}

#[tokio::test]
async fn a_person_s_session_ends_with_the_certificate() {
    let world = World::new();
    let admin = Request { role: Role::Admin, name: "eve", addresses: &[], days: 1 };
    let (lasts, folder) = (std::time::Duration::from_secs(3), world.folder.path());
    ca(&world)
        .issue_lasting(&admin, lasts, folder, pki::Existing::Refuse, world.clock.wall())
        .unwrap();
    let ending = world.connect(Role::Admin, "eve").await;
    let lasting = world.connect(Role::Operator, "ada").await;
    assert!(call(&ending, CertificateCall::Status).await.is_ok());
    let words = closed_words(&ending).await;
    assert!(words.contains("admin eve") && words.contains("has expired"), "{words}");
    assert!(lasting.connection.lost().is_none());
}
