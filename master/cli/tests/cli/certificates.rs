//! `cert rotate`, `cert revoke` and `cert status`, against a master of the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use model::UnixMs;
use model::client::{Answer, Call, ErrorKind, Refusal, Reply, Request};
use model::nodes::{CertificateCall, CertificateView, Holder};
use net::{Identity, Role, Wallet};

use crate::fake::{Does, Fake, Ran, now, optimus};
use crate::golden::compare;

fn unix_ms(after: Duration) -> UnixMs {
    let since = (now() + after).duration_since(UNIX_EPOCH).unwrap();
    UnixMs(u64::try_from(since.as_millis()).unwrap())
}

fn view(identity: &str, serial: &str, ends: Duration) -> CertificateView {
    CertificateView {
        identity: identity.to_owned(),
        serial: serial.to_owned(),
        ends: unix_ms(ends),
        connected: true,
        revoked: false,
        next_ends: None,
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// A folder with a CA of its own; the fake's certificates are of another.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    let words = format!("cert init --cluster lab --dir {}", pki.display());
    assert_eq!(Ran::of(&optimus(&words).output().unwrap()).code, Some(0));
    (folder, pki)
}

fn certificate(request: &Request) -> &CertificateCall {
    match &request.call {
        Call::Certificate(call) => call,
        Call::Change(_) | Call::Read(_) => panic!("{request:?} is not expected"),
    }
}

/// A master with two agents, of which one does not answer.
fn renewing(state: &Path, pki: &Path) -> Fake {
    let (state, ca) = (state.to_owned(), pki.join("ca.pem"));
    let of = move |holder: &Holder| {
        let (role, name) = match holder {
            Holder::Master => (Role::Master, "master".to_owned()),
            Holder::Agent(node) => (Role::Agent, node.to_string()),
        };
        (Wallet::new(state.join(&name), role), Identity::new(role, &name).unwrap())
    };
    Fake::start(move |request| {
        let reply: Reply = match certificate(request) {
            CertificateCall::Status => Ok(Answer::Certificates(vec![
                view("master/master", "1a", 90 * DAY),
                view("agent/n1", "2b", 5 * DAY),
                view("agent/n2", "3c", 90 * DAY),
            ])),
            CertificateCall::Ask { holder: Holder::Agent(node) } if node.as_str() == "n2" => {
                Err(Refusal::new(ErrorKind::Unavailable, "n2 did not answer", "try again"))
            }
            CertificateCall::Ask { holder } => {
                let (wallet, identity) = of(holder);
                Ok(Answer::CertificateRequest(wallet.request(&identity).unwrap()))
            }
            CertificateCall::Install { holder, pem } => {
                let (wallet, identity) = of(holder);
                wallet.install(pem, &ca, &identity, now()).unwrap();
                let note = "shown from now on".to_owned();
                Ok(Answer::Accepted { job: None, node: None, note })
            }
            CertificateCall::Revocations { .. } => panic!("nothing is taken back here"),
        };
        reply.into()
    })
}

#[test]
fn keys_stay_where_they_are_made_and_each_holder_gets_its_certificate() {
    let (folder, pki) = folder();
    let fake = renewing(folder.path(), &pki);
    let dir = pki.display();
    let ran = fake.run(&format!("cert rotate agent n1 --dir {dir} --days 30 -o json"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let shown = net::certificate_status(&folder.path().join("n1/current.pem")).unwrap();
    let json = ran.json();
    assert_eq!(json["schema"], "optimus.certificates_rotated/1");
    assert_eq!(json["certificates"][0]["identity"], "agent/n1");
    assert_eq!(json["certificates"][0]["serial"], shown.serial.as_str());
    assert!((shown.days_left(now()) - 30.0).abs() < 0.1);
    let mut keys = fs::read_dir(&pki).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!keys.any(|name| name.to_string_lossy().contains("n1")), "no key of n1 is here");

    let ran = fake.run(&format!("cert rotate --all --dir {dir}"));
    assert_eq!(ran.code, Some(6), "one was not renewed: {ran:?}");
    for part in ["master: shown", "agent/n1: shown", "agent/n2: not renewed: n2 did not answer"] {
        assert!(ran.out.contains(part), "{part} is not in {ran:?}");
    }
    let asked = fake.seen().len();
    let ran = fake.run(&format!("cert rotate agent n1 --dir {dir} --dry-run"));
    assert!(ran.out.contains("would be renewed"), "{ran:?}");
    assert_eq!(fake.seen().len(), asked, "a rehearsal asks nobody for a key");
    for (words, code) in [("agent", 2), ("", 2), ("agent ../n1", 2), ("operator nobody", 3)] {
        let ran = fake.run(&format!("cert rotate {words} --dir {dir}"));
        assert_eq!(ran.code, Some(code), "{words}: {ran:?}");
    }
}

#[test]
fn an_operator_s_files_are_renewed_in_place() {
    let (_folder, pki) = folder();
    let run = |words: &str| {
        let words = format!("{words} --dir {}", pki.display());
        Ran::of(&optimus(&words).output().unwrap())
    };
    assert_eq!(run("cert issue operator anna --lasts 2h").code, Some(0));
    let file = pki.join("operator-anna.pem");
    let before = net::certificate_status(&file).unwrap();
    let ran = run("cert rotate operator anna");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let after = net::certificate_status(&file).unwrap();
    assert!(before.serial != after.serial && 300.0 < after.days_left(now()));
}

/// Takes the lists that it is sent.
fn taking(refuses: bool) -> (Fake, Arc<Mutex<Vec<String>>>) {
    let lists: Arc<Mutex<Vec<String>>> = Arc::default();
    let taken = Arc::clone(&lists);
    let fake = Fake::start(move |request| match certificate(request) {
        CertificateCall::Status => {
            Ok(Answer::Certificates(vec![view("operator/bob", "2b", DAY)])).into()
        }
        CertificateCall::Revocations { .. } if refuses => Does::Hangs,
        CertificateCall::Revocations { pem } => {
            taken.lock().unwrap().push(pem.clone());
            let note = "1 sessions were closed".to_owned();
            Ok(Answer::Accepted { job: None, node: None, note }).into()
        }
        other @ (CertificateCall::Ask { .. } | CertificateCall::Install { .. }) => {
            panic!("{other:?} is not expected")
        }
    });
    (fake, lists)
}

#[test]
fn every_certificate_of_a_holder_is_taken_back() {
    let (_folder, pki) = folder();
    let dir = pki.display();
    let (fake, lists) = taking(false);
    for words in ["operator bob", "operator bob --replace", "agent n1"] {
        assert_eq!(fake.run(&format!("cert issue {words} --dir {dir}")).code, Some(0));
    }
    let ran = fake.run(&format!("cert revoke operator bob --dir {dir} --dry-run -o json"));
    // Two that were issued here, one that is only in use.
    assert_eq!(ran.json()["serials"].as_array().unwrap().len(), 3, "{ran:?}");
    assert!(!pki.join("crl.pem").exists());
    let ran = fake.run(&format!("cert revoke operator bob --dir {dir} -o json"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["schema"], "optimus.certificates_revoked/1");
    assert_eq!(ran.json()["number"], 1);
    let sent = lists.lock().unwrap().pop().unwrap();
    assert_eq!(sent, fs::read_to_string(pki.join("crl.pem")).unwrap());
    let ca = pki.join("ca.pem");
    let read = net::Revocations::read(sent.as_bytes(), Path::new("sent"), &ca).unwrap();
    assert!(read.since("2b").is_some() && read.iter().count() == 3);

    let by_serial = format!("cert revoke --serial 0A:BC --certificate {dir}/agent-n1.pem");
    assert_eq!(fake.run(&format!("{by_serial} --dir {dir}")).code, Some(0));
    let sent = lists.lock().unwrap().pop().unwrap();
    let read = net::Revocations::read(sent.as_bytes(), Path::new("sent"), &ca).unwrap();
    assert!(read.since("abc").is_some() && read.iter().count() == 5 && read.number() == 2);
    let listed = fake.run(&format!("cert status --offline --dir {dir} -o json")).json();
    let row = |name: &str| {
        let all = listed["certificates"].as_array().unwrap();
        all.iter().find(|row| row["identity"] == name).unwrap()["state"].clone()
    };
    assert_eq!((row("operator/bob"), row("agent/n1")), ("REVOKED".into(), "REVOKED".into()));
    assert_eq!(row("master/master"), "OK");
    for (words, code) in
        [("operator eve", 3), ("operator", 2), ("", 2), ("--serial x", 2), ("--certificate no", 3)]
    {
        let ran = fake.run(&format!("cert revoke {words} --dir {dir}"));
        assert_eq!(ran.code, Some(code), "{words}: {ran:?}");
    }
}

#[test]
fn a_list_that_did_not_reach_the_master_is_said_to_be_kept() {
    let (_folder, pki) = folder();
    let dir = pki.display();
    let (fake, _) = taking(true);
    let ran = fake.run(&format!("cert revoke --serial ab --dir {dir}"));
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(ran.err.contains("crl.pem is written, but the master has not got it"), "{ran:?}");
    assert!(pki.join("crl.pem").exists());
    let ran = fake.run(&format!("cert revoke --serial ab --dir {dir} --offline"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn ends_are_warned_of_at_thirty_seven_and_one_day() {
    let (folder, pki) = folder();
    let dir = pki.display();
    let hour = Duration::from_secs(3_600);
    for (name, lasts) in [("a", "40d"), ("b", "20d"), ("c", "6d"), ("d", "20h"), ("e", "1s")] {
        let words = format!("cert issue agent {name} --lasts {lasts} --dir {dir}");
        assert_eq!(Ran::of(&optimus(&words).output().unwrap()).code, Some(0));
    }
    while net::certificate_status(&pki.join("agent-e.pem")).unwrap().days_left(now()) > 0.0 {
        std::thread::yield_now();
    }
    let fake = Fake::start(move |request| {
        assert_eq!(*certificate(request), CertificateCall::Status);
        let renewed = CertificateView {
            next_ends: Some(unix_ms(90 * DAY)),
            ..view("agent/n1", "0b", 3 * DAY)
        };
        let gone = CertificateView { revoked: true, ..view("operator/eve", "0c", 90 * DAY) };
        let all = vec![view("master/master", "0a", 6 * DAY + hour), renewed, gone];
        Ok(Answer::Certificates(all)).into()
    });
    let ran = fake.run(&format!("cert status --dir {dir} --columns identity,state,words"));
    assert_eq!(ran.code, Some(0), "an end is a warning, not a failure: {ran:?}");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let words = format!("cert status --dir {}", empty.display());
    let used = fake.run(&format!("{words} --columns identity,state,where,serial"));
    compare("cert-status.tsv", &used.out);
    let state = |name: &str| {
        let line = ran.out.lines().find(|line| line.starts_with(name)).unwrap();
        line.split('\t').nth(1).unwrap().to_owned()
    };
    for (name, wanted) in [
        ("agent/a", "OK"),
        ("agent/b", "ENDS-IN-30-DAYS"),
        ("agent/c", "ENDS-IN-7-DAYS"),
        ("agent/d", "ENDS-IN-1-DAY"),
        ("agent/e", "EXPIRED"),
        ("agent/n1", "OK"),
        ("operator/eve", "REVOKED"),
    ] {
        assert_eq!(state(name), wanted, "{name}: {}", ran.out);
    }
    let json = fake.run(&format!("cert status {dir}/agent-c.pem -o json")).json();
    assert_eq!(json["schema"], "optimus.certificates_status/1");
    assert_eq!(json["certificates"].as_array().unwrap().len(), 4, "one file and three in use");
    assert!(json["certificates"][0]["words"].as_str().unwrap().starts_with("ends in 5 days, at"));
    let alone = Ran::of(&optimus(&format!("cert status --dir {dir} -o json")).output().unwrap());
    assert_eq!(alone.code, Some(0), "{alone:?}");
    assert!(alone.err.contains("only files are shown"), "{alone:?}");
}
