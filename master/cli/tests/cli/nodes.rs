//! Commands that open and close nodes, and `doctor`.

use std::sync::atomic::{AtomicU32, Ordering};

use model::client::{Answer, Call, Change, ErrorKind, Read, Refusal, Reply, Request};
use model::nodes::NodeMore;
use model::reason::Schedulability;

use crate::fake::{Does, Fake, Ran, now, optimus, pki};
use crate::views;

fn changes(fake: &Fake) -> Vec<Request> {
    fake.seen().into_iter().filter(|asked| matches!(asked.call, Call::Change(_))).collect()
}

#[test]
fn a_drain_needs_a_reason_and_carries_its_deadline() {
    let fake = Fake::start(views::answer);
    let ran = fake.run("node drain n1");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("--reason"), "{ran:?}");
    assert!(fake.seen().is_empty());
    assert_eq!(fake.run("node drain n1 --reason disk --deadline 30m").code, Some(0));
    assert_eq!(fake.run("node drain n1 --reason disk --dry-run").code, Some(0));
    let asked = changes(&fake);
    let drain =
        |deadline_ms| Call::Change(Change::NodeDrain { node: views::node_id("n1"), deadline_ms });
    assert_eq!(asked[0].call, drain(Some(1_800_000)));
    assert_eq!(asked[0].reason.as_deref(), Some("disk"));
    assert!(asked[1].dry_run && asked[1].call == drain(None));
    let ran = fake.run("node drain n1 --reason disk --deadline 30");
    assert_eq!(ran.code, Some(2), "a bare number: {ran:?}");
}

#[test]
fn several_nodes_are_not_drained_without_a_yes_and_cordons_do_not_ask() {
    let fake = Fake::start(views::answer);
    let ran = fake.run("node drain n1 n2 --reason disk");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("--yes") && ran.err.contains("n2  DOWN"), "{ran:?}");
    assert_eq!(changes(&fake).len(), 0);
    assert_eq!(fake.run("node drain n1 n2 n1 --reason disk --yes").code, Some(0));
    assert_eq!(changes(&fake).len(), 2);
    assert_eq!(fake.run("node cordon n1 n2").code, Some(0));
    assert_eq!(fake.run("node undrain n1 n2 -o json").json()["schema"], "optimus.changes/1");
    assert_eq!(changes(&fake).len(), 6);
}

/// Says DRAINING for some looks, then something else.
fn drains(looks: u32, then: Schedulability) -> Fake {
    let count = AtomicU32::new(0);
    Fake::start(move |asked| {
        if !matches!(asked.call, Call::Read(Read::NodeMore { .. })) {
            return views::answer(asked);
        }
        let over = count.fetch_add(1, Ordering::Relaxed) >= looks;
        let schedulability = if over { then } else { Schedulability::Draining };
        let more = NodeMore { schedulability, ..views::node_more() };
        Does::from(Ok(Answer::NodeMore(Box::new(more))))
    })
}

#[test]
fn a_drain_is_waited_for_and_says_how_far_it_is() {
    let ran = drains(1, Schedulability::Drained).run("node drain n1 --reason disk --wait");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let words = "n1: 3 tasks left of 5 · j1 writes its checkpoint, then moves to n2";
    assert!(ran.err.contains(words) && ran.err.contains("n1 is DRAINED"), "{ran:?}");
    let words = "node drain n1 --reason disk --wait --timeout 300ms";
    let ran = drains(1_000, Schedulability::Drained).run(words);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let ran = drains(0, Schedulability::Open).run("node drain n1 --reason disk --wait");
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.err.contains("somebody took its drain back"), "{ran:?}");
}

#[test]
fn doctor_checks_the_way_to_the_master_too() {
    let mut command = optimus("doctor -o json");
    command.env("OPTIMUS_MASTER", "127.0.0.1:9").env("OPTIMUS_TLS_DIR", pki());
    let ran = Ran::of(&command.output().unwrap());
    assert_eq!(ran.code, Some(6), "its answer is that, and no master: {ran:?}");
    let json = ran.json();
    assert_eq!(json["schema"], "optimus.doctor/1");
    assert_eq!(json["findings"][0]["severity"], "fault");
    assert_eq!(json["findings"][0]["subject"], "master");
    assert!(json["findings"][0]["words"].as_str().unwrap().contains("127.0.0.1:9"), "{ran:?}");
}

#[test]
fn doctor_that_is_refused_is_4_and_no_fault_of_the_master() {
    let fake = Fake::start(|request| match &request.call {
        Call::Read(Read::Doctor) => {
            let words = "user uma may not do this: doctor needs the role operator";
            Err(Refusal::new(ErrorKind::NotAllowed, words, "see optimus roles")).into()
        }
        Call::Change(_) | Call::Read(_) | Call::Certificate(_) => views::answer(request),
    });
    let ran = fake.run("doctor");
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""), "{ran:?}");
    assert!(ran.err.contains("user uma may not do this"), "{ran:?}");
}

#[test]
fn an_answer_in_pieces_is_put_together() {
    let fake = Fake::start(|request| match &request.call {
        Call::Read(Read::Jobs) => {
            let mut rows = views::rows();
            rows[0].name = "n".repeat(5 << 20);
            let body = net::encode_body(&Reply::Ok(Answer::Jobs(rows)), net::ANSWER_BYTES_MAX);
            let body = body.unwrap();
            let pieces = body.chunks(1 << 20).chain([&[][..]]);
            Does::Replies(pieces.map(|piece| Ok(Answer::Piece(piece.to_vec()))).collect())
        }
        Call::Change(_) | Call::Read(_) | Call::Certificate(_) => views::answer(request),
    });
    let ran = fake.run("ps -o json");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(ran.json()["jobs"][0]["name"].as_str().map(str::len), Some(5 << 20));
}

#[test]
fn doctor_knows_the_days_of_its_own_certificate_and_the_masters_clock() {
    let folder = tempfile::tempdir().unwrap();
    net::pki::init_cluster(folder.path(), "test", 100, now()).unwrap();
    let request =
        net::pki::Request { role: net::Role::Operator, name: "anna", addresses: &[], days: 5 };
    let ca = net::pki::load_ca(folder.path(), now()).unwrap();
    ca.issue(&request, folder.path(), net::pki::Existing::Refuse, now()).unwrap();
    let fake = Fake::start(views::answer);
    let mut command = fake.command("doctor");
    command.env("OPTIMUS_TLS_DIR", folder.path());
    let ran = Ran::of(&command.output().unwrap());
    assert!(ran.out.contains("warning\tcertificate of ") && ran.out.contains("days"), "{ran:?}");
    // The recorded master lives years ago.
    let ran = fake.run("doctor --filter severity=warning");
    assert!(ran.out.contains("this machine\tits clock differs by "), "{ran:?}");
}
