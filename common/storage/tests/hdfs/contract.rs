//! What every storage promises, asked of both.

use std::io::{self, Read};

use model::agent::Part;
use model::{CheckpointId, Generation, JobId};
use storage::checkpoint::{self, Manifest};
use storage::{Error, FileStorage, Storage, Sum, UploadOptions};

use crate::support::{Pattern, healthy, names, settings, storage};

/// Small enough to have many, which the client must not stumble over.
const BLOCK: u64 = 64 * 1024;
const SMALL: UploadOptions =
    UploadOptions { replication: None, block_bytes: Some(BLOCK), spread_later: false };

fn both(name: &str) -> (tempfile::TempDir, Vec<Box<dyn Storage>>) {
    let folder = tempfile::tempdir().unwrap();
    let file: Box<dyn Storage> = Box::new(FileStorage::new(folder.path()));
    (folder, vec![file, storage(healthy(), &format!("/contract/{name}"))])
}

#[test]
fn what_is_written_is_read_back_and_never_overwritten() {
    let (_folder, storages) = both("written");
    for storage in &storages {
        let storage = storage.as_ref();
        storage.make_dir("a/b").unwrap();
        storage.make_dir("a/b").unwrap();
        storage.write_new("a/b/one", b"first").unwrap();
        storage.publish("a/b/two", b"123456789").unwrap();
        let upload = |path| storage.upload(path, &mut &b"third"[..], SMALL);
        assert_eq!(upload("a/b/three").unwrap().bytes, 5);
        for attempt in [
            storage.write_new("a/b/one", b"x"),
            storage.publish("a/b/two", b"x"),
            storage.publish("a/b", b"x"),
            upload("a/b/three").map(drop),
            storage.make_dir("a/b/one"),
        ] {
            assert!(matches!(attempt, Err(Error::AlreadyExists { .. })), "{attempt:?}");
        }
        assert_eq!(storage.read("a/b/one").unwrap(), b"first");
        let sum = storage.size_and_crc32("a/b/two").unwrap();
        assert_eq!(sum, Sum { bytes: 9, crc32: 0xCBF4_3926 });
        assert_eq!(names(storage, "a/b"), ["one", "three", "two"], "something is left");
        assert_eq!(names(storage, "a"), ["b"]);
        storage.sync_dir("a/b").unwrap();
        storage.remove("a/b/one").unwrap();
        storage.remove("a").unwrap();
        for attempt in [
            storage.read("a/b/two").map(drop),
            storage.length("a/b/two").map(drop),
            storage.reader("a/b/two", 0, 1).map(drop),
            storage.size_and_crc32("a/b/two").map(drop),
            storage.list("a").map(drop),
            storage.sync_dir("a"),
            storage.remove("a"),
            storage.publish("a/b/two", b"no folder"),
        ] {
            assert!(matches!(attempt, Err(Error::NotFound { .. })), "{attempt:?}");
        }
        assert!(storage.free_bytes().unwrap() > 0);
    }
}

#[test]
fn folders_are_not_files_nor_files_folders() {
    let (_folder, storages) = both("kinds");
    for storage in &storages {
        storage.make_dir("d/e").unwrap();
        storage.write_new("d/f", b"").unwrap();
        for attempt in [
            storage.read("d").map(drop),
            storage.length("d").map(drop),
            storage.reader("d", 0, 1).map(drop),
            storage.size_and_crc32("d").map(drop),
        ] {
            assert!(matches!(attempt, Err(Error::NotAFile { .. })), "{attempt:?}");
        }
        assert!(matches!(storage.list("d/f"), Err(Error::Io { .. })));
        assert_eq!(storage.read("d/f").unwrap(), b"", "an empty file is a file");
        assert_eq!(storage.size_and_crc32("d/f").unwrap(), Sum { bytes: 0, crc32: 0 });
    }
}

#[test]
fn no_path_leads_out() {
    let (_folder, storages) = both("paths");
    for storage in &storages {
        for wrong in ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a\0b", "a/"] {
            for attempt in [
                storage.read(wrong).map(drop),
                storage.length(wrong).map(drop),
                storage.read_range(wrong, 0, 1).map(drop),
                storage.reader(wrong, 0, 1).map(drop),
                storage.write_new(wrong, b"x"),
                storage.publish(wrong, b"x"),
                storage.upload(wrong, &mut &b"x"[..], SMALL).map(drop),
                storage.list(wrong).map(drop),
                storage.remove(wrong),
                storage.make_dir(wrong),
                storage.size_and_crc32(wrong).map(drop),
            ] {
                assert!(matches!(attempt, Err(Error::Path { .. })), "{wrong:?}: {attempt:?}");
            }
        }
        assert!(matches!(storage.remove(""), Err(Error::Path { .. })), "the root is not removed");
    }
}

/// Block ends, the file's end, and both sides of them.
#[test]
fn every_range_is_read_as_written_and_none_past_the_end() {
    let (_folder, storages) = both("ranges");
    let bytes = 3 * BLOCK + 777;
    for storage in &storages {
        storage.make_dir("").unwrap();
        let mut source = Pattern::new(bytes);
        let sum = storage.upload("f", &mut source, SMALL).unwrap();
        assert_eq!(sum, Sum { bytes, crc32: source.crc32() });
        assert_eq!(storage.size_and_crc32("f").unwrap(), sum);
        assert_eq!(storage.length("f").unwrap(), bytes);
        let edges = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5, bytes - 1, bytes];
        for from in edges {
            for to in edges.into_iter().filter(|to| from <= *to) {
                let wanted: Vec<u8> = (from..to).map(Pattern::byte).collect();
                assert!(
                    storage.read_range("f", from, to - from).unwrap() == wanted,
                    "{from}..{to}"
                );
                let mut streamed = Vec::new();
                storage.reader("f", from, to - from).unwrap().read_to_end(&mut streamed).unwrap();
                assert!(streamed == wanted, "stream of {from}..{to}");
            }
        }
        let mut rest = Vec::new();
        storage.reader("f", bytes - 9, u64::MAX).unwrap().read_to_end(&mut rest).unwrap();
        assert_eq!(rest.len(), 9, "a stream ends with the file");
        for (from, count) in [(0, bytes + 1), (bytes, 1), (bytes + 1, 0), (u64::MAX - 8, 4)] {
            let attempt = storage.read_range("f", from, count);
            assert!(matches!(attempt, Err(Error::PastEnd { .. })), "{from} {count}: {attempt:?}");
        }
        assert!(matches!(storage.reader("f", bytes + 1, 1), Err(Error::PastEnd { .. })));
        let attempt = storage.read_range("f", 0, storage::READ_BYTES_MAX + 1);
        assert!(matches!(attempt, Err(Error::TooLarge { .. })));
    }
}

/// Gives some bytes, then breaks as a disk does.
struct Breaking(u64);

impl Read for Breaking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::other("the disk is gone"));
        }
        let count = usize::try_from(self.0).unwrap().min(buffer.len());
        self.0 -= count as u64;
        Ok(count)
    }
}

#[test]
fn an_upload_whose_source_breaks_leaves_nothing() {
    let (_folder, storages) = both("source");
    for storage in &storages {
        storage.make_dir("").unwrap();
        for good in [0, 5, BLOCK, BLOCK + 1] {
            let error = storage.upload("f", &mut Breaking(good), SMALL).unwrap_err();
            let text = storage::chain(&error);
            assert!(text.contains("the disk is gone"), "{text}");
            assert_eq!(names(storage.as_ref(), ""), Vec::<String>::new(), "after {good}");
        }
    }
}

/// A source that breaks is not helped by another try.
#[test]
fn an_upload_is_tried_again_from_the_first_byte_only_where_that_can_help() {
    let (_folder, storages) = both("again");
    for storage in &storages {
        storage.make_dir("").unwrap();
        let mut opened = 0;
        let broken = storage::upload_again(storage.as_ref(), "f", SMALL, || {
            opened += 1;
            Ok(Breaking(9))
        });
        assert!(matches!(broken, Err(Error::Io { .. })), "{broken:?}");
        let whole = storage::upload_again(storage.as_ref(), "f", SMALL, || {
            opened += 1;
            Ok(Pattern::new(9))
        });
        assert_eq!((whole.unwrap().bytes, opened), (9, 2), "each was read once");
    }
}

#[test]
fn of_many_publishers_of_one_path_one_wins_whole() {
    let (_folder, storages) = both("race");
    for storage in &storages {
        let storage = storage.as_ref();
        storage.make_dir("").unwrap();
        let won: Vec<u8> = std::thread::scope(|scope| {
            let publishers: Vec<_> = (0..8_u8)
                .map(|number| {
                    scope.spawn(move || {
                        let outcome = storage.publish("m", &[number; 4096]);
                        if let Err(error) = &outcome {
                            assert!(matches!(error, Error::AlreadyExists { .. }), "{error:?}");
                        }
                        outcome.ok().map(|()| number)
                    })
                })
                .collect();
            publishers.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(won.len(), 1, "winners: {won:?}");
        assert_eq!(storage.read("m").unwrap(), [won[0]; 4096]);
        assert_eq!(names(storage, ""), ["m"]);
    }
}

#[test]
fn replication_and_block_size_are_as_asked() {
    let hdfs = healthy();
    let storage = storage(hdfs, "/contract/options");
    storage.make_dir("").unwrap();
    let look = |name: &str| hdfs.look(&format!("/contract/options/{name}")).unwrap().unwrap();
    let options = UploadOptions { replication: Some(1), block_bytes: Some(1 << 20), ..SMALL };
    storage.upload("one", &mut Pattern::new(10), options).unwrap();
    assert_eq!((look("one").replication, look("one").block_bytes), (1, 1 << 20));
    storage.upload("usual", &mut Pattern::new(10), UploadOptions::default()).unwrap();
    assert_eq!((look("usual").replication, look("usual").block_bytes), (2, 128 << 20));
    let options = UploadOptions { spread_later: true, ..SMALL };
    storage.upload("spread", &mut Pattern::new(10), options).unwrap();
    assert_eq!(look("spread").replication, 2, "the copies are asked for");
    storage.publish("small", b"small").unwrap();
    assert_eq!((look("small").block_bytes, look("small").closed), (1 << 20, true));
}

/// The daemons call from threads of a runtime that may block.
#[test]
fn it_works_from_a_blocking_thread_of_another_runtime_and_is_dropped_there() {
    let url = healthy().url("/contract/runtime");
    let settings = settings(healthy());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let text = runtime.block_on(async move {
        let storage = storage::open_with(&url, &settings).unwrap();
        let job = tokio::task::spawn_blocking(move || {
            storage.make_dir("").unwrap();
            storage.publish("f", b"from there").unwrap();
            (storage.read("f").unwrap(), storage)
        });
        let (text, storage) = job.await.unwrap();
        drop(storage);
        text
    });
    assert_eq!(text, b"from there");
}

#[test]
fn checkpoints_are_published_found_skipped_and_removed_as_on_files() {
    let hdfs = healthy();
    let base = hdfs.url("/contract/checkpoints");
    let storage = storage(hdfs, "/contract/checkpoints");
    let job = JobId(12);
    let save = |number: u64| {
        let (generation, checkpoint) = (Generation(1), CheckpointId(number));
        let directory = checkpoint::directory(job, generation, checkpoint);
        storage.make_dir(&directory).unwrap();
        let mut source = Pattern::new(BLOCK + number);
        let file = "parameters.npz".to_owned();
        let sum = storage.upload(&format!("{directory}/{file}"), &mut source, SMALL).unwrap();
        let parts = vec![Part { file, bytes: sum.bytes, crc32: sum.crc32 }];
        let (step, epoch, epoch_position) = (number, 0, 0);
        Manifest { job, generation, checkpoint, step, epoch, epoch_position, directory, parts }
    };
    let publish = |manifest: &Manifest| {
        let url = format!("{base}/{}", manifest.directory);
        checkpoint::publish_manifest(storage.as_ref(), &base, &url, manifest.clone())
    };
    assert_eq!(checkpoint::newest_valid(storage.as_ref(), job).unwrap().0, None);
    let first = save(1);
    let url = publish(&first).unwrap();
    assert_eq!(publish(&first).unwrap(), url, "publishing again changes nothing");
    // The newest has no manifest, the next a part that another wrote, the next a lost one.
    let (second, third) = (save(2), save(3));
    publish(&second).unwrap();
    publish(&third).unwrap();
    save(4);
    storage.remove(&format!("{}/parameters.npz", second.directory)).unwrap();
    let foreign = format!("{}/parameters.npz", third.directory);
    storage.remove(&foreign).unwrap();
    storage.write_new(&foreign, &vec![7; usize::try_from(BLOCK + 3).unwrap()]).unwrap();
    let (found, skipped) = checkpoint::newest_valid(storage.as_ref(), job).unwrap();
    assert_eq!(found, Some(first.clone()));
    for (name, word) in [
        ("g00000001-c00000004", "no manifest"),
        ("manifest-g00000001-c00000003.json", "crc32"),
        ("manifest-g00000001-c00000002.json", "does not exist"),
    ] {
        let one = skipped.iter().find(|skipped| skipped.name == name).unwrap();
        assert!(one.reason.contains(word), "{name}: {}", one.reason);
    }
    let folder = format!("{base}/{}", first.directory);
    let remove = || checkpoint::remove_with(&settings(hdfs), job, Some(&url), &folder);
    remove().unwrap();
    remove().unwrap();
    assert_eq!(checkpoint::newest_valid(storage.as_ref(), job).unwrap().0, None);
}
