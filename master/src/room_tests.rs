use model::JobId;
use model::client::Read;

use super::*;

fn room(folder: &std::path::Path) -> Room {
    Room::new(Arc::new(Disk::new(folder).unwrap()), Arc::default())
}

#[test]
fn the_fuller_the_disk_the_less_is_taken_and_stops_are_taken_last() {
    let folder = tempfile::tempdir().unwrap();
    let room = room(folder.path());
    let (low, reserve) = (room.disk.low_bytes(), room.disk.reserve_bytes());
    let needs = [Need::Job, Need::Change, Need::Stop, Need::File];
    let taken = |free, ballast| needs.map(|need| room.judge(need, free, ballast).is_none());
    room.health.set(false, STOP_BYTES);
    assert_eq!(taken(low, true), [true; 4]);
    assert_eq!(taken(low - 1, true), [false, true, true, true]);
    assert_eq!(taken(reserve - 1, false), [false, false, true, true]);
    assert_eq!(taken(0, false), [false, false, true, false]);
    room.health.set(false, STOP_BYTES - 1);
    assert_eq!(taken(0, true), [false, false, true, false], "the ballast is still to be given");
    assert_eq!(taken(0, false), [false; 4]);
    assert_eq!(taken(reserve, false), [false, true, true, true]);
    // Whatever is free: what waits in front of it cannot be stored.
    room.health.set(true, STOP_BYTES);
    assert_eq!(taken(u64::MAX, true), [false, false, false, true]);
    assert!(room.stall().is_some());
}

#[test]
fn a_refusal_says_what_is_wrong_how_much_is_missing_and_what_to_delete() {
    let folder = tempfile::tempdir().unwrap();
    let room = room(folder.path());
    let nearly = room.judge(Need::Job, room.disk.low_bytes() - 1, true).unwrap();
    assert!(nearly.contains("the disk of its state folder is nearly full"), "{nearly}");
    assert!(nearly.contains(&room.disk.low_bytes().to_string()), "{nearly}");
    let full = room.judge(Need::Change, 17, true).unwrap();
    assert!(full.contains("state folder is full (17 bytes free"), "{full}");
    room.health.set(true, 0);
    let stall = room.stall().unwrap();
    assert_eq!(stall.kind, ErrorKind::Unavailable);
    assert!(stall.hint.contains(folder.path().to_str().unwrap()), "{}", stall.hint);
    assert!(stall.hint.contains("store.damaged-*"), "{}", stall.hint);
}

#[tokio::test]
async fn what_changes_nothing_here_is_not_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let room = room(folder.path());
    room.health.set(true, 0);
    assert_eq!(room.refusal(&Call::Read(Read::Jobs)).await, None);
    let status = Call::Certificate(CertificateCall::Status);
    assert_eq!(room.refusal(&status).await, None);
    let cancel = Call::Change(Change::Cancel { job: JobId(1), now: false });
    let refusal = room.refusal(&cancel).await.unwrap();
    assert!(refusal.message.contains("cancel"), "{}", refusal.message);
}
