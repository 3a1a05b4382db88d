use std::os::unix::fs::PermissionsExt;

use model::UnixMs;

use super::*;

fn line(request: &str) -> AuditView {
    AuditView {
        number: 0,
        at: UnixMs(1_700_000_000_000),
        user: "ada".to_owned(),
        role: "operator".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        request: request.to_owned(),
        reason: Some("a \"quoted\"\nreason \u{202e}".to_owned()),
        outcome: "done".to_owned(),
        dry_run: false,
    }
}

fn numbers(lines: &[AuditView]) -> Vec<u64> {
    lines.iter().map(|line| line.number).collect()
}

#[tokio::test]
async fn lines_are_numbered_on_over_a_restart_and_a_torn_one_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Audit::start(folder.path()).unwrap();
    for number in 1..=3 {
        audit.note(line(&format!("cancel job-{number}"))).await;
    }
    let path = current(folder.path());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // Killed within a write.
    let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
    torn.write_all(b"{\"number\":4,\"at\":17").unwrap();
    drop(audit);
    let audit = Audit::start(folder.path()).unwrap();
    audit.note(line("cancel job-4")).await;
    let all = audit.read(0, 100).await;
    assert_eq!(numbers(&all), [1, 2, 3, 4]);
    assert_eq!(all[0].reason, line("").reason, "nothing is lost of odd text");
    assert_eq!(numbers(&audit.read(0, 2).await), [3, 4], "the newest");
    assert_eq!(numbers(&audit.read(3, 100).await), [4], "after a number");
    let text = fs::read_to_string(path).unwrap();
    assert_eq!(text.lines().count(), 5, "one line each, the torn one among them: {text}");
}

#[tokio::test]
async fn files_are_put_aside_and_the_oldest_go() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Audit::with_size(folder.path(), 1_000).unwrap();
    for number in 1..=200 {
        audit.note(line(&format!("cancel job-{number}"))).await;
    }
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, usize::try_from(KEPT).unwrap() + 1);
    let all = numbers(&audit.read(0, 1_000).await);
    assert_eq!(*all.last().unwrap(), 200);
    assert!(all[0] > 1, "the oldest are gone");
    assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1), "no gap: {all:?}");
}

/// A folder in its place, as what cannot be written: on a full disk too, the open may fail.
#[tokio::test]
async fn what_cannot_be_written_is_counted_and_stops_nobody() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(current(folder.path())).unwrap();
    let audit = Audit::start(folder.path()).unwrap();
    assert_eq!(audit.health().alert(), None);
    audit.note(line("cancel job-1")).await;
    audit.note(line("cancel job-2")).await;
    let alert = audit.health().alert().unwrap();
    assert!(alert.starts_with("2 lines"), "{alert}");
    fs::remove_dir(current(folder.path())).unwrap();
    audit.note(line("cancel job-3")).await;
    assert_eq!(numbers(&audit.read(0, 10).await), [3], "the gap shows what is missing");
}
