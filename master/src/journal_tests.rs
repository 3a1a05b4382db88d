use super::*;

fn apply(content: &mut Content, ops: &[Op]) {
    for op in ops {
        match &op.value {
            Some(value) => content.insert(op.key.clone(), value.clone()),
            None => content.remove(&op.key),
        };
    }
}

fn ops(number: u64) -> Vec<Op> {
    let key = |n: u64| format!("key{}", n % 5).into_bytes();
    vec![
        Op { key: key(number), value: Some(format!("value {number}").into_bytes()) },
        Op { key: key(number + 2), value: None },
    ]
}

/// What the store holds after the first `count` batches.
fn after(count: u64) -> Content {
    let mut content = Content::new();
    (1..=count).for_each(|number| apply(&mut content, &ops(number)));
    content
}

fn rebuilt(folder: &Path) -> Result<(u64, Content)> {
    let (journal, _) = Journal::open(folder)?;
    Ok((journal.last(), journal.content()?))
}

#[test]
fn a_rebuild_gives_what_was_appended_with_and_without_a_base() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, notes) = Journal::open(folder.path()).unwrap();
    assert_eq!(notes, Vec::<String>::new());
    for number in 1..=20 {
        assert_eq!(journal.append(&ops(number)).unwrap(), number);
        if number % 7 == 0 {
            journal.rebase(number, &after(number), &Header::default()).unwrap();
        }
    }
    drop(journal);
    assert_eq!(rebuilt(folder.path()).unwrap(), (20, after(20)));
    let found = look(folder.path()).unwrap();
    assert_eq!((found.bases, found.logs), (vec![14], vec![15]), "older ones are removed");
}

#[test]
fn what_was_set_aside_is_there_for_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(folder.path()).unwrap();
    assert_eq!(journal.aside_bytes(), 0);
    journal.set_aside(1 << 20);
    journal.append(&ops(1)).unwrap();
    let before = journal.aside_bytes();
    drop(journal);
    let (mut journal, _) = Journal::open(folder.path()).unwrap();
    // The part of a page at the end of the log is not counted.
    assert!(before <= journal.aside_bytes() + PAGE_BYTES, "{before}, {}", journal.aside_bytes());
    journal.append(&ops(2)).unwrap();
    drop(journal);
    assert_eq!(rebuilt(folder.path()).unwrap(), (2, after(2)));
}

#[test]
fn a_log_cut_at_any_byte_gives_a_whole_prefix_and_keeps_the_rest_aside() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(folder.path()).unwrap();
    for number in 1..=6 {
        journal.append(&ops(number)).unwrap();
    }
    let whole = fs::read(log_path(folder.path(), 1)).unwrap();
    drop(journal);
    let mut seen = std::collections::BTreeSet::new();
    for length in 0..whole.len() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(log_path(scratch.path(), 1), &whole[..length]).unwrap();
        let (mut journal, notes) = Journal::open(scratch.path()).unwrap();
        let last = journal.last();
        // The next batch goes where the torn one was.
        assert_eq!(journal.append(&ops(last + 1)).unwrap(), last + 1);
        drop(journal);
        assert_eq!(
            rebuilt(scratch.path()).unwrap(),
            (last + 1, after(last + 1)),
            "cut at {length}"
        );
        let kept: u64 = fs::read_dir(scratch.path())
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name().to_string_lossy().contains("cut-at"))
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        assert_eq!(kept > 0, !notes.is_empty(), "cut at {length}: {notes:?}");
        seen.insert(last);
    }
    assert_eq!(seen, (0..6).collect());
}

#[test]
fn a_flipped_byte_ends_the_log_there_and_never_passes() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(folder.path()).unwrap();
    for number in 1..=4 {
        journal.append(&ops(number)).unwrap();
    }
    let whole = fs::read(log_path(folder.path(), 1)).unwrap();
    for at in 0..whole.len() {
        let scratch = tempfile::tempdir().unwrap();
        let mut changed = whole.clone();
        changed[at] ^= 0x40;
        fs::write(log_path(scratch.path(), 1), &changed).unwrap();
        let (last, records) = rebuilt(scratch.path()).unwrap();
        assert!(last < 4, "byte {at} passed unseen");
        assert_eq!(records, after(last), "byte {at}");
    }
}

#[test]
fn missing_batches_are_damage_not_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(folder.path()).unwrap();
    for number in 1..=3 {
        journal.append(&ops(number)).unwrap();
    }
    journal.rebase(3, &after(3), &Header::default()).unwrap();
    journal.append(&ops(4)).unwrap();
    fs::remove_file(base_path(folder.path(), 3)).unwrap();
    let error = rebuilt(folder.path()).unwrap_err().to_string();
    assert!(error.contains("batches 1 to 3 are missing"), "{error}");
}

#[test]
fn a_damaged_base_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(folder.path()).unwrap();
    journal.append(&ops(1)).unwrap();
    journal.rebase(1, &after(1), &Header::default()).unwrap();
    let path = base_path(folder.path(), 1);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(rebuilt(folder.path()), Err(StoreError::Damaged(_))));
}
