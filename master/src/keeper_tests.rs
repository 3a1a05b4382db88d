use super::*;

fn put(key: &str, value: &str) -> Op {
    Op { key: key.into(), value: Some(value.into()) }
}

#[test]
fn every_persist_is_told_durable_in_order_and_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (vault, _) = Vault::open(folder.path(), Header::default()).unwrap();
    let disk = Arc::new(Disk::new(folder.path()).unwrap());
    let (told, heard) = mpsc::channel();
    let keeper =
        Keeper::start(vault, disk, vec![], move |told_now| told.send(told_now).unwrap()).unwrap();
    for number in 1..=500 {
        keeper.persist(number, vec![put(&format!("{number:03}"), "x"), put("last", "x")]);
    }
    let copy = keeper.export(Header::default());
    let mut durable = 0;
    while durable < 500 {
        match heard.recv_timeout(Duration::from_secs(60)).unwrap() {
            Told::Durable(through) => {
                assert!(durable < through, "told {through} after {durable}");
                durable = through;
            }
            Told::Failed(reason) => panic!("{reason}"),
        }
    }
    let copy = copy.blocking_recv().unwrap().unwrap();
    assert_eq!(storage::snapshot::verify(copy.as_slice()).unwrap().records, 501);
    keeper.finish();
    let (vault, _) = Vault::open(folder.path(), Header::default()).unwrap();
    assert_eq!(vault.records().unwrap().len(), 501);
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1200 {
        if is_so() {
            return;
        }
        // A condition with a limit, not a guess of how long it takes.
        std::thread::park_timeout(Duration::from_millis(100));
    }
    panic!("not within two minutes: {what}");
}

/// A tiny file system of its own, which only root can mount.
#[test]
fn a_full_disk_stalls_persists_alone_and_they_go_on_once_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"])
        .arg(folder.path())
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        println!("skipped: mounting a small file system needs root");
        return;
    }
    let check = std::panic::catch_unwind(|| fill_and_free(folder.path()));
    let unmounted = std::process::Command::new("umount").arg("-l").arg(folder.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()), "cannot unmount");
    if let Err(panic) = check {
        std::panic::resume_unwind(panic);
    }
}

fn fill_and_free(folder: &std::path::Path) {
    let filler = folder.join("filler");
    std::fs::write(&filler, vec![1; 12 << 20]).unwrap();
    let disk = Disk::new(folder).unwrap();
    assert!(disk.keep_ballast().unwrap());
    let (vault, _) = Vault::open(folder, Header::default()).unwrap();
    let durable = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let seen = Arc::clone(&durable);
    let keeper = Keeper::start(vault, Arc::new(disk), vec![], move |told| match told {
        Told::Durable(through) => seen.store(through, Ordering::Relaxed),
        Told::Failed(reason) => panic!("{reason}"),
    })
    .unwrap();
    let health = keeper.health();
    assert!(!health.is_low());
    let mut sent = 0;
    let stalled = || health.alerts().iter().any(|alert| alert.contains("wait for space"));
    while !stalled() {
        sent += 1;
        let large = "x".repeat(100_000);
        keeper.persist(sent, vec![put(&format!("{sent:04}"), &large)]);
        assert!(sent < 400, "40 MB went onto 24");
        let before = sent - 1;
        wait_until("durable or stalled", || durable.load(Ordering::Relaxed) >= before || stalled());
    }
    assert!(health.is_low(), "new jobs would still be taken");
    assert!(health.is_stalled(), "{health:?}");
    assert!(!folder.join("ballast").exists(), "the ballast was not given back");
    let copy = keeper.export(Header::default()).blocking_recv().unwrap().unwrap();
    let kept = storage::snapshot::verify(copy.as_slice()).unwrap().records;
    assert_eq!(kept, durable.load(Ordering::Relaxed), "reads are served meanwhile");
    std::fs::remove_file(filler).unwrap();
    wait_until("all durable", || durable.load(Ordering::Relaxed) == sent);
    let quiet = || health.alerts().is_empty() && !health.is_low() && !health.is_stalled();
    wait_until("no alert", quiet);
    keeper.finish();
    let (vault, _) = Vault::open(folder, Header::default()).unwrap();
    assert_eq!(vault.records().unwrap().len() as u64, sent);
}
