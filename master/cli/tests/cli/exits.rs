//! Exit codes, one meaning each, and errors in words and in JSON.

use std::ffi::OsStr;
use std::net::UdpSocket;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

use model::client::{ErrorKind, Refusal};
use model::reason::PhaseName;
use model::view::JobDetail;

use crate::fake::{Fake, Ran, optimus, pki};
use crate::views;

#[test]
fn each_refusal_has_its_code_in_words_and_in_json() {
    for (kind, code) in [
        (ErrorKind::Invalid, 2),
        (ErrorKind::NotFound, 3),
        (ErrorKind::NotAllowed, 4),
        (ErrorKind::Conflict, 5),
        (ErrorKind::Unavailable, 6),
        (ErrorKind::CannotPlace, 8),
    ] {
        let fake =
            Fake::start(move |_| Err(Refusal::new(kind, "it \"cannot\" be", "do so")).into());
        let ran = fake.run("resize j1 --servers 1 --workers 2");
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert_eq!(ran.err, "error: it \"cannot\" be\nhint: do so\n");
        let ran = fake.run("resize j1 --servers 1 --workers 2 -o json");
        assert_eq!(ran.code, Some(code));
        let expected = serde_json::json!(
            {"code": code, "message": "it \"cannot\" be", "hint": "do so"}
        );
        assert_eq!(ran.error(), expected);
        assert_eq!(ran.out, "");
    }
}

#[test]
fn wait_tells_how_the_job_ended() {
    for (phase, code) in
        [(PhaseName::Completed, 0), (PhaseName::Failed, 1), (PhaseName::Cancelled, 1)]
    {
        let fake = Fake::start(move |_| {
            let detail = JobDetail { row: views::row(1, "x", phase), ..views::detail() };
            Ok(model::client::Answer::Job(Box::new(detail))).into()
        });
        let ran = fake.run("wait j1 -o json");
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert_eq!(ran.json()["phase"], phase.name());
    }
}

#[test]
fn wait_gives_up_in_time() {
    let fake = Fake::start(views::answer);
    let ran = fake.run("wait j1 --timeout 300ms");
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.err.contains("RUNNING after 300ms"), "{ran:?}");
    assert_eq!(fake.run("wait j1 --timeout 90").code, Some(2));
    assert_eq!(fake.run("wait j99").code, Some(3));
}

#[test]
fn an_interrupt_is_130() {
    let fake = Fake::start(views::answer);
    let mut child =
        fake.command("wait j1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let limit = std::time::Duration::from_secs(10);
    crate::streams::until(limit, || !fake.seen().is_empty());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let fake = Fake::start(views::answer);
    for words in ["ps", "ps -o json", "show j1", "logs j1", "--help", "completion bash"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = fake.command(words).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words}");
        assert_eq!(output.stderr, b"", "{words}");
    }
}

#[test]
fn a_master_that_is_down_is_6_and_named() {
    for words in ["ps", "submit tests/golden/job.toml", "cancel j1", "nodes -o json", "wait j1"] {
        let mut command = optimus(words);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command.env("OPTIMUS_MASTER", "127.0.0.1:9").env("OPTIMUS_TLS_DIR", pki());
        let ran = Ran::of(&command.output().unwrap());
        assert_eq!(ran.code, Some(6), "{words}: {ran:?}");
        assert!(ran.err.contains("127.0.0.1:9"), "{ran:?}");
        assert!(ran.err.contains("--master"), "{ran:?}");
    }
}

#[test]
fn a_master_that_is_silent_is_6_within_seconds() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut command = optimus("ps -o json");
    command.env("OPTIMUS_MASTER", &address).env("OPTIMUS_TLS_DIR", pki());
    let ran = Ran::of(&command.output().unwrap());
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert_eq!(ran.error()["code"], 6);
    assert!(ran.error()["message"].as_str().unwrap().contains(&address));
}

#[test]
fn version_works_without_a_master() {
    let mut command = optimus("version -o json");
    command.env("OPTIMUS_MASTER", "127.0.0.1:9").env("OPTIMUS_TLS_DIR", pki());
    let ran = Ran::of(&command.output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["client"], env!("CARGO_PKG_VERSION"));
    assert_eq!(ran.json()["master"], serde_json::Value::Null);
    assert!(ran.json()["unavailable"].as_str().unwrap().contains("127.0.0.1:9"));
}

#[test]
fn missing_certificates_name_the_folder_and_the_command() {
    let empty = tempfile::tempdir().unwrap();
    let folder = empty.path().join("pki");
    let ran = Ran::of(&optimus("ps").env("OPTIMUS_TLS_DIR", &folder).output().unwrap());
    assert_eq!(ran.code, Some(4), "{ran:?}");
    for part in [folder.to_str().unwrap(), "optimus cert init", "optimus cert issue"] {
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
}

#[test]
fn certificates_of_another_cluster_are_4() {
    let fake = Fake::start(views::answer);
    let other = tempfile::tempdir().unwrap();
    net::pki::prepare(other.path(), "other", "n1", "anna", crate::fake::now()).unwrap();
    let ran = Ran::of(&fake.command("ps").env("OPTIMUS_TLS_DIR", other.path()).output().unwrap());
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(fake.seen().is_empty());
}

#[test]
fn usage_errors_are_2() {
    for words in ["", "frob", "ps --frob", "show", "show x", "update j1", "config check"] {
        let ran = Ran::of(&optimus(words).output().unwrap());
        assert_eq!(ran.code, Some(2), "{words}: {ran:?}");
        assert_eq!(ran.out, "", "{words}");
    }
    let ran = Ran::of(&optimus("show x -o json").output().unwrap());
    assert_eq!(ran.error()["code"], 2);
    let ran = Ran::of(&optimus("--help").output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains("Exit codes"));
}

#[test]
fn arguments_that_are_not_utf_8_are_2() {
    for bytes in [&b"\xff"[..], b"j1\xc3"] {
        let ran = Ran::of(&optimus("show").arg(OsStr::from_bytes(bytes)).output().unwrap());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains("UTF-8"), "{ran:?}");
    }
}

#[test]
fn an_escape_in_an_argument_does_not_reach_the_terminal() {
    let ran = Ran::of(&optimus("show \u{1b}[2Jx").output().unwrap());
    assert_eq!(ran.code, Some(2));
    assert!(!ran.err.contains('\u{1b}'), "{ran:?}");
}
