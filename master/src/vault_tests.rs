use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

fn put(key: &str, value: &str) -> Op {
    Op { key: key.into(), value: Some(value.into()) }
}

fn open(state_dir: &Path) -> (Vault, Vec<String>) {
    Vault::open(state_dir, Header::default()).unwrap()
}

fn content(vault: &Vault) -> Vec<(String, String)> {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    vault.records().unwrap().into_iter().map(|(k, v)| (text(k), text(v))).collect()
}

/// `count` batches; each puts a record of its own and overwrites a common one.
fn write(vault: &mut Vault, numbers: std::ops::RangeInclusive<u32>) {
    for number in numbers {
        let text = number.to_string();
        vault.commit(&[put(&format!("n{number:06}"), &text), put("last", &text)]).unwrap();
    }
}

fn check_prefix(vault: &Vault, at_least: u32) {
    let content = content(vault);
    let last: u32 = content.first().map_or(0, |(key, value)| {
        assert_eq!(key, "last");
        value.parse().unwrap()
    });
    assert!(at_least <= last, "batch {at_least} was acknowledged, {last} is the last there");
    let expected = (1..=last).map(|n| (format!("n{n:06}"), n.to_string()));
    assert!(content.into_iter().skip(1).eq(expected), "not a whole prefix");
}

#[test]
fn a_fresh_vault_keeps_what_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut vault, notes) = open(folder.path());
    assert_eq!(notes, Vec::<String>::new());
    write(&mut vault, 1..=20);
    drop(vault);
    let (vault, notes) = open(folder.path());
    assert_eq!(notes, Vec::<String>::new());
    check_prefix(&vault, 20);
}

/// The other process of the test below: commits for ever and says so on stdout. Does nothing
/// where it was not started by that test, which leaves a mark in the working folder.
#[test]
#[ignore = "the child of a_killed_writer_loses_nothing_that_it_was_told_is_durable"]
fn writer_until_killed() {
    if !Path::new("kill-me").exists() {
        return;
    }
    let (mut vault, _) = open(Path::new("state"));
    for number in 1..=100_000 {
        write(&mut vault, number..=number);
        println!("durable {number}");
    }
}

#[test]
fn a_killed_writer_loses_nothing_that_it_was_told_is_durable() {
    for lines in [1, 5, 40] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("kill-me"), "").unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "vault::tests::writer_until_killed"])
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let number = |line: String| line.split("durable ").nth(1)?.trim().parse::<u32>().ok();
        let told = output.lines().filter_map(|line| number(line.unwrap())).nth(lines - 1).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let (vault, _) = open(&folder.path().join("state"));
        check_prefix(&vault, told);
    }
}

#[test]
fn a_damaged_store_is_rebuilt_from_the_journal_and_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let (mut vault, _) = open(folder.path());
    write(&mut vault, 1..=30);
    drop(vault);
    let store = folder.path().join("data/store");
    fs::write(store.join("conf"), "no settings of a store").unwrap();
    let (mut vault, notes) = open(folder.path());
    assert!(notes.iter().any(|note| note.contains("rebuilt")), "{notes:?}");
    check_prefix(&vault, 30);
    assert_eq!(
        fs::read(folder.path().join("data/store.damaged-0/conf")).unwrap(),
        b"no settings of a store",
        "the damaged store is kept for a look"
    );
    write(&mut vault, 31..=32);
    drop(vault);
    let (vault, notes) = open(folder.path());
    assert_eq!(notes, Vec::<String>::new());
    check_prefix(&vault, 32);
}

/// sled's file cut and overwritten at many places: whatever it makes of that, an error, a panic
/// or an older state, every batch is there again.
#[test]
fn whatever_happens_to_the_store_s_file_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (mut vault, _) = open(folder.path());
    write(&mut vault, 1..=60);
    drop(vault);
    let db = folder.path().join("data/store/db");
    let whole = fs::read(&db).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    for tenth in 0..10 {
        let at = used * tenth / 10;
        for cut in [true, false] {
            let mut bytes = whole.clone();
            if cut {
                bytes.truncate(at);
            } else {
                let end = bytes.len().min(at + 4096);
                bytes[at..end].fill(0x5a);
            }
            fs::write(&db, bytes).unwrap();
            let (vault, _) = open(folder.path());
            check_prefix(&vault, 60);
        }
    }
}

#[test]
fn a_change_that_sled_does_not_notice_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut vault, _) = open(folder.path());
    write(&mut vault, 1..=4);
    drop(vault);
    let mut store = SledStore::open(&folder.path().join("data/store")).unwrap();
    store.apply(4, &[put("n000002", "other")]).unwrap();
    drop(store);
    let (vault, notes) = open(folder.path());
    assert!(notes[0].contains("differs"), "{notes:?}");
    check_prefix(&vault, 4);
}

#[test]
fn a_store_that_fell_behind_catches_up_and_a_lost_journal_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (mut vault, _) = open(folder.path());
    write(&mut vault, 1..=5);
    // As a kill between the two writes leaves it.
    vault.journal.append(&[put("n000006", "6"), put("last", "6")]).unwrap();
    drop(vault);
    let (vault, notes) = open(folder.path());
    assert_eq!(notes, Vec::<String>::new(), "that is no damage");
    check_prefix(&vault, 6);
    drop(vault);
    fs::remove_dir_all(folder.path().join("data/journal")).unwrap();
    let (vault, notes) = open(folder.path());
    assert!(notes.iter().any(|note| note.contains("began the journal anew")), "{notes:?}");
    check_prefix(&vault, 6);
    drop(vault);
    // The new journal alone is enough again.
    fs::remove_dir_all(folder.path().join("data/store")).unwrap();
    let (vault, _) = open(folder.path());
    check_prefix(&vault, 6);
}

#[test]
fn a_store_that_was_left_behind_catches_up_once_there_is_room() {
    for restarted in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (mut vault, _) = open(folder.path());
        write(&mut vault, 1..=5);
        for number in 6..=9 {
            let text = number.to_string();
            let ops = [put(&format!("n{number:06}"), &text), put("last", &text)];
            vault.commit_short(&ops, u64::MAX).unwrap();
        }
        check_prefix(&vault, 9);
        assert_eq!(vault.store.as_ref().unwrap().sequence().unwrap(), 5);
        assert!(!vault.tidy().unwrap());
        if restarted {
            drop(vault);
            let short = Vault::open_in(folder.path(), Header::default(), Room::Short).unwrap();
            assert_eq!(short.1, Vec::<String>::new());
            vault = short.0;
            assert!(vault.store.is_none());
            check_prefix(&vault, 9);
        }
        assert_eq!(vault.catch_up(), Vec::<String>::new());
        assert_eq!(vault.store.as_ref().unwrap().sequence().unwrap(), 9);
        check_prefix(&vault, 9);
        // The next batch with room does the same by itself.
        vault.commit_short(&[put("n000010", "10"), put("last", "10")], u64::MAX).unwrap();
        write(&mut vault, 11..=11);
        assert_eq!(vault.store.as_ref().unwrap().sequence().unwrap(), 11);
        check_prefix(&vault, 11);
        assert_eq!(vault.trouble(), None);
    }
}

/// A write that a full disk or a kill cut short was never acknowledged; a damaged end may have
/// been, and then the store must speak.
#[test]
fn on_a_full_disk_the_journal_serves_alone_only_where_it_has_everything() {
    for (flipped, alone) in [(false, true), (true, false)] {
        let folder = tempfile::tempdir().unwrap();
        let (mut vault, _) = open(folder.path());
        write(&mut vault, 1..=3);
        drop(vault);
        let log = folder.path().join("data/journal/00000000000000000001.log");
        let mut bytes = fs::read(&log).unwrap();
        if flipped {
            *bytes.last_mut().unwrap() ^= 1;
        } else {
            let half = bytes[bytes.len() - 30..].to_vec();
            // The beginning of a fourth batch.
            bytes.extend([40, 0, 0, 0]);
            bytes.extend(half);
        }
        fs::write(&log, bytes).unwrap();
        let (vault, notes) = Vault::open_in(folder.path(), Header::default(), Room::Short).unwrap();
        assert!(notes[0].contains("torn batch"), "{notes:?}");
        assert_eq!(vault.store.is_none(), alone);
        check_prefix(&vault, 3);
    }
}

#[test]
fn with_store_and_journal_damaged_it_says_so_and_touches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut vault, _) = open(folder.path());
    write(&mut vault, 1..=3);
    let content = vault.records().unwrap();
    vault.journal.rebase(3, &content, &Header::default()).unwrap();
    drop(vault);
    let base = fs::read_dir(folder.path().join("data/journal"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "snapshot"))
        .unwrap();
    fs::write(base, "gone").unwrap();
    fs::write(folder.path().join("data/store/conf"), "no settings of a store").unwrap();
    let error = Vault::open(folder.path(), Header::default()).unwrap_err().to_string();
    assert!(error.contains("cannot be rebuilt"), "{error}");
    assert!(!folder.path().join("data/store.damaged-0").exists());
}

#[test]
fn however_often_a_record_changes_the_journal_stays_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (mut vault, _) = open(folder.path());
    let mut begun = 0;
    for number in 0..100 {
        let large = format!("{number:03}{}", "x".repeat(500_000));
        vault.commit(&[put("large", &large), put("last", &number.to_string())]).unwrap();
        begun += u32::from(vault.tidy().unwrap());
    }
    assert!(begun >= 2, "begun anew {begun} times for 50 MB");
    drop(vault);
    let journal = fs::read_dir(folder.path().join("data/journal")).unwrap();
    let bytes: u64 = journal.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 20 << 20, "the journal has {bytes} bytes");
    let (vault, notes) = open(folder.path());
    assert_eq!(notes, Vec::<String>::new());
    let content = content(&vault);
    assert_eq!(content[1], ("last".to_owned(), "99".to_owned()));
    assert!(content[0].1.starts_with("099x"));
}

/// A tiny file system of its own, which only root can mount.
#[test]
fn a_full_disk_loses_nothing_and_the_store_opens_again() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
        .arg(folder.path())
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        println!("skipped: mounting a small file system needs root");
        return;
    }
    let check = std::panic::catch_unwind(|| {
        let disk = Disk::new(folder.path()).unwrap();
        assert!(disk.keep_ballast().unwrap());
        let (mut vault, _) = open(folder.path());
        write(&mut vault, 1..=10);
        let filler = folder.path().join("filler");
        fs::write(&filler, vec![1; 16 << 20]).unwrap_err();
        let mut last = 10;
        let failed = loop {
            let text = (last + 1).to_string();
            let number = format!("n{:06}", last + 1);
            let padding = put("n999999-padding", &"x".repeat(60_000));
            match vault.commit(&[put(&number, &text), put("last", &text), padding]) {
                Ok(()) => last += 1,
                Err(failed) => break failed,
            }
        };
        assert!(matches!(failed, StoreError::Full(_)), "{failed:?}");
        drop(vault);
        // Without a byte to spare: the journal alone is opened, and says what was committed.
        let (mut vault, _) = open_with_room(folder.path(), &Header::default(), &disk).unwrap();
        assert!(vault.behind && vault.store.is_none());
        let gone = [Op { key: b"n999999-padding".to_vec(), value: None }];
        let free = disk.free_bytes().unwrap();
        let full = vault.commit_short(&gone, free).unwrap_err();
        assert!(matches!(full, StoreError::Full(_)), "{full:?}");
        // The ballast's room is the journal's at once, and no filler can have it.
        assert!(disk.release_ballast());
        vault.set_aside(disk.released_bytes());
        fs::write(folder.path().join("more"), vec![1; 16 << 20]).unwrap_err();
        assert_eq!(disk.free_bytes().unwrap(), 0);
        vault.commit_short(&gone, 0).unwrap();
        check_prefix(&vault, last);
        let mut taken = last;
        while journal::length(&[put("n000000", "0"), put("last", "0")]) + 64 < vault.aside_bytes() {
            taken += 1;
            let text = taken.to_string();
            let ops = [put(&format!("n{taken:06}"), &text), put("last", &text)];
            vault.commit_short(&ops, 0).unwrap();
        }
        assert!(last + 1_000 < taken, "{taken} batches fit into what was set aside");
        drop(vault);
        // Killed, and started on the same full disk.
        let (vault, _) = open_with_room(folder.path(), &Header::default(), &disk).unwrap();
        check_prefix(&vault, taken);
        drop(vault);
        fs::remove_file(filler).unwrap();
        let (mut vault, _) = open_with_room(folder.path(), &Header::default(), &disk).unwrap();
        assert!(!vault.behind && vault.trouble().is_none());
        check_prefix(&vault, taken);
        write(&mut vault, taken + 1..=taken + 1);
    });
    let unmounted = Command::new("umount").arg("-l").arg(folder.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()), "cannot unmount");
    if let Err(panic) = check {
        std::panic::resume_unwind(panic);
    }
}

/// Whether any file below a folder holds these bytes.
fn holds(folder: &Path, words: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return holds(&path, words);
        }
        fs::read(path).unwrap().windows(words.len()).any(|part| part == words)
    })
}

#[test]
fn nothing_of_the_former_values_is_left_once_a_store_is_sealed() {
    for killed_at in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let (mut vault, _) = open(folder.path());
        write(&mut vault, 1..=5);
        vault.commit(&[put("secret", "hunter2")]).unwrap();
        drop(vault);
        assert!(holds(folder.path(), b"hunter2"));
        let (mut vault, _) = open(folder.path());
        // As a kill after each step leaves it: the next start has nothing to overwrite any more.
        if killed_at > 0 {
            File::create(vault.resealing()).unwrap();
            vault.commit(&[put("secret", "*")]).unwrap();
        }
        if killed_at > 1 {
            let content = vault.records().unwrap();
            vault.journal.rebase(vault.journal.last(), &content, &Header::default()).unwrap();
        }
        if killed_at > 0 {
            drop(vault);
            vault = open(folder.path()).0;
            assert!(vault.is_resealing());
        }
        let ops = if killed_at == 0 { vec![put("secret", "*")] } else { vec![] };
        assert_eq!(vault.reseal(&ops).unwrap(), Vec::<String>::new());
        assert!(!vault.is_resealing());
        write(&mut vault, 6..=7);
        drop(vault);
        assert!(!holds(folder.path(), b"hunter2"), "{killed_at}");
        let (vault, notes) = open(folder.path());
        assert_eq!(notes, Vec::<String>::new());
        assert_eq!(vault.records().unwrap()[b"secret".as_slice()], b"*");
        assert_eq!(vault.records().unwrap().len(), 9);
    }
}

#[test]
fn a_vault_of_a_later_format_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (mut vault, _) = open(folder.path());
    write(&mut vault, 1..=5);
    drop(vault);
    crate::store::tests::set_format(&folder.path().join("data/store"), 3);
    for _ in 0..2 {
        let error = Vault::open(folder.path(), Header::default()).unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 3 }), "{error}");
        assert!(error.to_string().contains("start the newer release"), "{error}");
    }
    crate::store::tests::set_format(&folder.path().join("data/store"), 2);
    let (vault, notes) = open(folder.path());
    assert_eq!(notes, Vec::<String>::new());
    check_prefix(&vault, 5);
}
