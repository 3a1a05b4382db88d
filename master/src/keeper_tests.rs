use std::sync::atomic::AtomicU32;

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

/// On a tiny file system of its own, which only root can mount.
fn on_a_small_disk(size: &str, check: impl Fn(&std::path::Path) + std::panic::UnwindSafe) {
    let folder = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", size, "tmpfs"])
        .arg(folder.path())
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        println!("skipped: mounting a small file system needs root");
        return;
    }
    let path = folder.path();
    let check = std::panic::catch_unwind(move || check(path));
    let unmounted = std::process::Command::new("umount").arg("-l").arg(folder.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()), "cannot unmount");
    if let Err(panic) = check {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_full_disk_stalls_persists_alone_and_they_go_on_once_there_is_room() {
    on_a_small_disk("size=24m", fill_and_free);
}

/// The keeper without its thread, as a start of the master makes it.
fn opened(folder: &std::path::Path, disk: &Arc<Disk>) -> Run {
    let (vault, _) = crate::vault::open_with_room(folder, &Header::default(), disk).unwrap();
    let mut run = Run {
        jobs: mpsc::channel().1,
        waiting: VecDeque::new(),
        ended: false,
        vault,
        disk: Arc::clone(disk),
        tell: Box::new(|_| {}),
        health: Arc::default(),
    };
    run.watch_disk();
    run
}

fn fill(folder: &std::path::Path, disk: &Disk, left: u64) {
    use std::io::Write as _;
    let path = folder.join("filler");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    while let Some(more) = disk.free_bytes().unwrap().checked_sub(left).filter(|more| *more > 0) {
        let piece = vec![1; usize::try_from(more.min(65_536)).unwrap()];
        if file.write_all(&piece).is_err() {
            return;
        }
    }
}

/// Over all seeds, what was refused, and what was stored without a free byte.
static FULL: AtomicU32 = AtomicU32::new(0);
static STORED_WHEN_FULL: AtomicU32 = AtomicU32::new(0);

/// Fills, frees, kills and starts in any order, under load: what was durable is there, what was
/// refused is not.
fn any_order(folder: &std::path::Path, seed: u64) {
    let mut state = seed;
    let mut draw = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let disk = Arc::new(Disk::new(folder).unwrap());
    let mut run = opened(folder, &disk);
    let (mut kept, mut full, mut stored_when_full) = (crate::store::Content::new(), 0, 0);
    for number in 0..400_u32 {
        if run.vault.trouble().is_some() {
            // Out of use until the next process opens it: the journal has everything.
            assert_eq!(run.vault.records().unwrap(), kept, "seed {seed}, after {number}");
            return;
        }
        match draw(24) {
            0 | 1 => fill(folder, &disk, 0),
            2 => fill(folder, &disk, draw(6 << 20)),
            3 => drop(std::fs::remove_file(folder.join("filler"))),
            4 => {
                drop(run);
                run = opened(folder, &disk);
                assert_eq!(run.vault.records().unwrap(), kept, "seed {seed}, after {number}");
            }
            5 => run.watch_disk(),
            _ => {
                let most = if draw(9) == 0 { 300_000 } else { 3_000 };
                let size = usize::try_from(draw(most));
                let value = vec![b'x'; size.unwrap()];
                let (key, last) = (format!("{:02}", draw(20)).into_bytes(), b"last".to_vec());
                let text = number.to_string().into_bytes();
                let ops = [
                    Op { key: key.clone(), value: Some(value.clone()) },
                    Op { key: last.clone(), value: Some(text.clone()) },
                ];
                let free = disk.free_bytes().unwrap();
                match run.attempt(&ops) {
                    Ok(()) => {
                        stored_when_full += u32::from(free == 0);
                        kept.extend([(key, value), (last, text)]);
                    }
                    Err(StoreError::Full(_)) => {
                        assert!(free < disk.reserve_bytes() + 1_300_000, "{free} were free");
                        full += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
    // Whatever was set aside comes to its end.
    fill(folder, &disk, 0);
    let big = Op { key: b"big".to_vec(), value: Some(vec![b'y'; 100_000]) };
    while full == 0 {
        match run.attempt(std::slice::from_ref(&big)) {
            Ok(()) => drop(kept.insert(big.key.clone(), vec![b'y'; 100_000])),
            Err(StoreError::Full(_)) => full += 1,
            Err(other) => panic!("{other}"),
        }
        fill(folder, &disk, 0);
    }
    assert_eq!(run.vault.records().unwrap(), kept, "seed {seed}, with nothing left");
    FULL.fetch_add(full, Ordering::Relaxed);
    STORED_WHEN_FULL.fetch_add(stored_when_full, Ordering::Relaxed);
    drop(std::fs::remove_file(folder.join("filler")));
    run.watch_disk();
    assert!(!run.health.is_low(), "{:?}", run.health);
    drop(run);
    let run = opened(folder, &disk);
    assert_eq!(run.vault.records().unwrap(), kept, "seed {seed}, in the end");
    assert_eq!(run.vault.trouble(), None);
}

#[test]
fn however_the_disk_fills_and_empties_what_was_durable_is_there_and_nothing_else() {
    for seed in 1..=5_u64 {
        on_a_small_disk("size=64m", move |folder| any_order(folder, seed * 7_919));
    }
    let seen = [&FULL, &STORED_WHEN_FULL].map(|seen| seen.load(Ordering::Relaxed));
    // Neither where no file system could be mounted.
    assert_eq!(seen[0] > 0, seen[1] > 0, "{seen:?}");
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
