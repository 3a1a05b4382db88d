use super::*;

use std::os::unix::fs::symlink;

fn storage() -> (tempfile::TempDir, FileStorage) {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(folder.path());
    (folder, storage)
}

fn names(storage: &FileStorage, path: &str) -> Vec<String> {
    storage.list(path).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn what_is_written_is_read_back_and_never_overwritten() {
    let (_folder, storage) = storage();
    storage.make_dir("a/b").unwrap();
    storage.make_dir("a/b").unwrap();
    storage.write_new("a/b/one", b"first").unwrap();
    storage.publish("a/b/two", b"123456789").unwrap();
    for attempt in [storage.write_new("a/b/one", b"x"), storage.publish("a/b/two", b"x")] {
        assert!(matches!(attempt, Err(Error::AlreadyExists { .. })), "{attempt:?}");
    }
    assert_eq!(storage.read("a/b/one").unwrap(), b"first");
    // The check value that every CRC-32 of this kind gives for these nine digits.
    let sum = storage.size_and_crc32("a/b/two").unwrap();
    assert_eq!(sum, Sum { bytes: 9, crc32: 0xCBF4_3926 });
    assert_eq!(names(&storage, "a/b"), ["one", "two"], "no temporary file is left");
    storage.remove("a/b/one").unwrap();
    storage.remove("a").unwrap();
    assert!(matches!(storage.read("a/b/two"), Err(Error::NotFound { .. })));
    assert!(matches!(storage.remove("a"), Err(Error::NotFound { .. })));
    assert!(storage.free_bytes().unwrap() > 0);
}

#[test]
fn the_root_need_not_exist_to_ask_for_space() {
    let (folder, _) = storage();
    let storage = FileStorage::new(folder.path().join("later/still"));
    assert!(storage.free_bytes().unwrap() > 0);
}

#[test]
fn no_path_leads_out() {
    let (folder, storage) = storage();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "s").unwrap();
    symlink(outside.path(), folder.path().join("link")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
    for wrong in ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a\0b", "a/", "link/secret"] {
        for attempt in [
            storage.read(wrong).map(drop),
            storage.write_new(wrong, b"x"),
            storage.publish(wrong, b"x"),
            storage.list(wrong).map(drop),
            storage.remove(wrong),
            storage.make_dir(wrong),
            storage.size_and_crc32(wrong).map(drop),
        ] {
            assert!(matches!(attempt, Err(Error::Path { .. })), "{wrong:?}: {attempt:?}");
        }
    }
    assert!(matches!(storage.list("link"), Err(Error::Path { .. })));
    assert!(matches!(storage.make_dir("link"), Err(Error::Path { .. })));
    assert!(matches!(storage.read("file"), Err(Error::NotAFile { .. })));
    assert!(matches!(storage.remove(""), Err(Error::Path { .. })), "the root is not removed");
    // Removing a link removes the link, and a folder's links are not followed.
    storage.remove("link").unwrap();
    storage.make_dir("d").unwrap();
    symlink(outside.path(), folder.path().join("d/link")).unwrap();
    storage.remove("d").unwrap();
    assert!(outside.path().join("secret").exists());
}

#[test]
fn a_pipe_or_a_folder_is_not_read() {
    let (folder, storage) = storage();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    nix::unistd::mkfifo(&folder.path().join("pipe"), mode).unwrap();
    storage.make_dir("d").unwrap();
    for path in ["pipe", "d"] {
        assert!(matches!(storage.read(path), Err(Error::NotAFile { .. })), "{path}");
        assert!(matches!(storage.size_and_crc32(path), Err(Error::NotAFile { .. })), "{path}");
    }
    assert_eq!(storage.list("").unwrap()[1].kind, EntryKind::Other);
}

#[test]
fn a_file_too_large_to_read_is_refused_before_it_is_read() {
    let (folder, storage) = storage();
    // Sparse: takes no room.
    File::create(folder.path().join("huge")).unwrap().set_len(READ_BYTES_MAX + 1).unwrap();
    assert!(matches!(storage.read("huge"), Err(Error::TooLarge { .. })));
}

#[test]
fn the_fallback_of_the_rename_replaces_nothing_either() {
    let (folder, storage) = storage();
    storage.write_new("old", b"old").unwrap();
    storage.write_new("new", b"new").unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    let error = rename_new(&new, &old).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::hard_link(&new, &old).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(storage.read("old").unwrap(), b"old");
}

#[test]
fn of_many_publishers_of_one_path_one_wins_whole() {
    let (_folder, storage) = storage();
    let won: Vec<u8> = std::thread::scope(|scope| {
        let publishers: Vec<_> = (0..8_u8)
            .map(|number| {
                let storage = &storage;
                scope.spawn(move || storage.publish("m", &[number; 4096]).ok().map(|()| number))
            })
            .collect();
        publishers.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(won.len(), 1, "winners: {won:?}");
    assert_eq!(storage.read("m").unwrap(), [won[0]; 4096]);
    assert_eq!(names(&storage, ""), ["m"]);
}

/// A full disk: a tiny file system of its own, which only root can mount.
#[test]
fn a_full_disk_leaves_nothing_behind() {
    let (folder, storage) = storage();
    let place = folder.path();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(place)
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        println!("skipped: mounting a small file system needs root");
        return;
    }
    let check = std::panic::catch_unwind(|| {
        let large = vec![7; 256 * 1024];
        for attempt in [storage.write_new("w", &large), storage.publish("p", &large)] {
            assert!(matches!(attempt, Err(Error::NoSpace { .. })), "{attempt:?}");
        }
        assert_eq!(names(&storage, ""), Vec::<String>::new());
        storage.publish("p", &large[..1024]).unwrap();
        assert_eq!(storage.size_and_crc32("p").unwrap().bytes, 1024);
    });
    let unmounted = std::process::Command::new("umount").arg(place).status();
    assert!(unmounted.is_ok_and(|status| status.success()), "cannot unmount");
    if let Err(panic) = check {
        std::panic::resume_unwind(panic);
    }
}
