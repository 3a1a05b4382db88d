//! Commands that read or write files: submit, config check, cert, snapshot.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use model::client::{Call, Change, Request};
use model::{Batch, Bounds};

use crate::fake::{Does, Fake, Ran, optimus};
use crate::views;

const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/job.toml");

fn submitted(request: &Request) -> (&model::JobSpec, Option<&str>) {
    let Call::Change(Change::Submit { spec, request_id }) = &request.call else {
        panic!("not a submission: {request:?}")
    };
    (spec, request_id.as_deref())
}

#[test]
fn submit_sends_the_job_and_names_it() {
    let fake = Fake::start(views::answer);
    let ran = fake.run(&format!("submit {JOB} --reason test"));
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "submitted j1 (digits-cnn)\n"));
    let seen = fake.seen();
    let (spec, id) = submitted(&seen[0]);
    assert_eq!(spec.batch, Batch::Global(256));
    assert_eq!(spec.workers, Bounds { min: 1, max: 4 });
    let folder = Path::new(JOB).parent().unwrap().canonicalize().unwrap();
    assert_eq!(Path::new(&spec.working_directory), folder);
    assert_eq!(seen[0].reason.as_deref(), Some("test"));
    assert!(id.unwrap().len() > 20, "an id of its own makes it safe to send twice");
}

#[test]
fn a_repeated_request_id_says_so() {
    let fake = Fake::start(views::answer);
    let ran = fake.run(&format!("submit {JOB} --request-id again"));
    assert_eq!(ran.out, "existing job j1 (submitted 3m ago)\n");
    let json = fake.run(&format!("submit {JOB} --request-id again -o json")).json();
    assert_eq!(json["created"], false);
    assert_eq!(json["id"], "j1");
    assert_eq!(submitted(&fake.seen()[0]).1, Some("again"));
}

#[test]
fn a_submission_whose_answer_was_lost_is_sent_again_under_its_id() {
    let tries = std::sync::atomic::AtomicU32::new(0);
    let fake =
        Fake::start(move |request| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => Does::Hangs,
            _ => views::answer(request),
        });
    let ran = fake.run(&format!("submit {JOB} -o name"));
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "j1\n"), "{ran:?}");
    let seen = fake.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(submitted(&seen[0]).1, submitted(&seen[1]).1);
}

#[test]
fn a_change_whose_answer_was_lost_is_not_repeated() {
    let fake = Fake::start(|_| Does::Hangs);
    let ran = fake.run("cancel j1");
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(ran.err.contains("may have been made"), "{ran:?}");
    assert_eq!(fake.seen().len(), 1);
}

#[test]
fn submit_waits_where_asked() {
    let fake = Fake::start(views::answer);
    let ran = fake.run(&format!("submit {JOB} --wait --timeout 200ms"));
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let ran = fake.run(&format!("submit {JOB} --dry-run --wait"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("dry run"), "{ran:?}");
}

#[test]
fn a_wrong_job_file_is_told_whole_and_never_sent() {
    let fake = Fake::start(views::answer);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.toml");
    fs::write(&file, fs::read_to_string(JOB).unwrap().replace("512MiB", "5").replace("sync", "x"))
        .unwrap();
    let words = format!("submit {} -o json", file.display());
    let ran = fake.run(&words);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let error = ran.error();
    let faults = error["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 2, "{error}");
    assert_eq!(faults[0]["field"], "mode");
    assert!(faults[0]["line"].is_u64(), "{error}");
    assert!(fake.seen().is_empty());
    for (name, content) in [("binary", &b"\xff\xfe"[..]), ("empty", b"")] {
        fs::write(&file, content).unwrap();
        assert_eq!(fake.run(&words).code, Some(2), "{name}");
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(fake.run(&words).code, Some(2));
}

#[test]
fn config_check_finds_everything_without_a_master() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("master.toml");
    let check = |kind: &str| {
        let words = format!("config check --{kind} {} -o json", file.display());
        Ran::of(&optimus(&words).output().unwrap())
    };
    fs::write(&file, "listen = '127.0.0.1:7600'\n").unwrap();
    assert_eq!(check("master").code, Some(0));
    fs::write(&file, "listen = 'x'\nlistens = 1\n[nodes]\ndown = 60\n").unwrap();
    let ran = check("master");
    assert_eq!(ran.code, Some(2));
    assert_eq!(ran.error()["faults"].as_array().unwrap().len(), 3, "{ran:?}");
    assert_eq!(check("agent").code, Some(2));
    fs::copy(JOB, &file).unwrap();
    assert_eq!(check("job").code, Some(0));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn certificates_are_made_once_and_kept_private() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    let run = |words: &str| {
        let words = format!("{words} --dir {}", pki.display());
        Ran::of(&optimus(&words).output().unwrap())
    };
    assert_eq!(run("cert issue operator anna").code, Some(3));
    assert_eq!(run("cert init --cluster lab").code, Some(0));
    assert_eq!(run("cert init").code, Some(5));
    assert_eq!(run("cert issue operator anna").code, Some(0));
    assert_eq!(run("cert issue operator anna").code, Some(5));
    assert_eq!(run("cert issue operator anna --replace").code, Some(0));
    assert_eq!(run("cert issue agent n1").code, Some(0));
    assert_eq!(run("cert issue agent ../n1").code, Some(2));
    assert_eq!(run("cert issue king anna").code, Some(2));
    for key in ["ca.key", "master.key", "operator-anna.key", "agent-n1.key"] {
        assert_eq!(mode(&pki.join(key)), 0o600, "{key}");
    }
    assert_eq!(mode(&pki), 0o700);
    let out = folder.path().join("out");
    let words = format!("cert issue operator bob --out {}", out.display());
    assert_eq!(run(&words).code, Some(0));
    assert_eq!(mode(&out.join("operator-bob.key")), 0o600);
    assert!(out.join("ca.pem").exists());
    assert!(!out.join("ca.key").exists());
}

#[test]
fn a_snapshot_is_saved_whole_or_not_at_all() {
    let fake = Fake::start(views::answer);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("copy");
    let words = format!("snapshot save {}", file.display());
    assert_eq!(fake.run(&words).code, Some(0));
    assert_eq!(fs::read(&file).unwrap(), b"OPTSNAP\nrest");
    assert_eq!(mode(&file), 0o600);
    let ran = fake.run(&words);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    let cut = Fake::start(|_| {
        Does::Replies(vec![Ok(model::client::Answer::SnapshotPiece(b"OPT".to_vec()))])
    });
    fs::remove_file(&file).unwrap();
    assert_eq!(cut.run(&words).code, Some(6));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a part was left");
}

#[test]
fn several_jobs_are_not_cancelled_without_a_yes() {
    let fake = Fake::start(views::answer);
    let ran = fake.run("cancel j1 j2");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("digits-cnn") && ran.err.contains("--yes"), "{ran:?}");
    assert_eq!(fake.run("node lost n1").code, Some(2));
    let changes = |fake: &Fake| {
        fake.seen().iter().filter(|request| matches!(request.call, Call::Change(_))).count()
    };
    assert_eq!(changes(&fake), 0);
    assert_eq!(fake.run("cancel j1 j2 --yes").code, Some(0));
    assert_eq!(changes(&fake), 2);
    assert_eq!(fake.run("cancel j1").code, Some(0));
    assert_eq!(changes(&fake), 3);
}

#[test]
fn a_refused_change_does_not_keep_the_others_back() {
    use model::client::{ErrorKind, Refusal};
    let fake = Fake::start(|request| match &request.call {
        Call::Change(Change::Pause { job }) if job.0 == 2 => {
            Err(Refusal::new(ErrorKind::Conflict, "it is COMPLETED", "")).into()
        }
        Call::Change(_) | Call::Read(_) | Call::Certificate(_) => views::answer(request),
    });
    let ran = fake.run("pause j1 j2 j3");
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert_eq!(ran.out, "j1: ordered\nj3: ordered\n");
    assert!(ran.err.contains("1 of 3 refused: j2: it is COMPLETED"), "{ran:?}");
}

#[test]
fn update_keeps_the_ends_that_are_not_given() {
    let fake = Fake::start(views::answer);
    assert_eq!(fake.run("update j1 --workers-max 8 --priority 2").code, Some(0));
    let seen = fake.seen();
    let expected = Change::Update {
        job: model::JobId(1),
        workers: Some(Bounds { min: 1, max: 8 }),
        servers: None,
        priority: Some(2.0),
    };
    assert_eq!(seen.last().unwrap().call, Call::Change(expected));
}

#[test]
fn completions_and_help_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = Ran::of(&optimus(&format!("completion {shell}")).output().unwrap());
        assert_eq!(ran.code, Some(0));
        for command in ["submit", "resize", "node", "snapshot"] {
            assert!(ran.out.contains(command), "{shell}: {command}");
        }
    }
}
