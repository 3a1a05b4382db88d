//! HDFS when it is ill: what is survived, what is told, and that nothing is left behind.

use std::io::{self, Read};
use std::net::TcpListener;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use storage::{Error, HdfsSettings, Storage, UploadOptions, open_with};

use crate::hdfs::{Hdfs, HdfsOptions};
use crate::support::{Pattern, hasty, names, storage};

const BLOCK: u64 = 64 * 1024;
const SMALL: UploadOptions =
    UploadOptions { replication: None, block_bytes: Some(BLOCK), spread_later: false };

/// A pair of NameNodes and three DataNodes for tests that hurt them: one at a time, and each
/// leaves it well, with the first NameNode active.
fn ill() -> MutexGuard<'static, Hdfs> {
    static ILL: LazyLock<Mutex<Hdfs>> = LazyLock::new(|| {
        let options = HdfsOptions { name_nodes: 2, data_nodes: 3, ..HdfsOptions::default() };
        Mutex::new(Hdfs::start(&options).expect("HDFS starts"))
    });
    ILL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something once, when a place of the source is reached.
struct Then<'a> {
    inner: Pattern,
    left: u64,
    action: Option<Box<dyn FnOnce() + 'a>>,
}

impl<'a> Then<'a> {
    fn new(bytes: u64, at: u64, action: impl FnOnce() + 'a) -> Self {
        Self { inner: Pattern::new(bytes), left: at, action: Some(Box::new(action)) }
    }
}

impl Read for Then<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0
            && let Some(action) = self.action.take()
        {
            action();
        }
        let wanted = match self.action {
            Some(_) => usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len()),
            None => buffer.len(),
        };
        let count = self.inner.read(&mut buffer[..wanted])?;
        self.left = self.left.saturating_sub(count as u64);
        Ok(count)
    }
}

fn assert_whole(storage: &dyn Storage, path: &str, bytes: u64) {
    let mut source = Pattern::new(bytes);
    io::copy(&mut source, &mut io::sink()).unwrap();
    let sum = storage.size_and_crc32(path).unwrap();
    assert_eq!((sum.bytes, sum.crc32), (bytes, source.crc32()));
}

fn is_temporary<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    let error = outcome.unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
    storage::chain(&error)
}

/// Both say "standby" for as long as a slow failover takes: every call waits for its end.
#[test]
fn a_failover_of_eight_seconds_is_waited_for() {
    let hdfs = ill();
    let storage = storage(&hdfs, "/failover");
    storage.make_dir("").unwrap();
    hdfs.make_standby(0).unwrap();
    let text = is_temporary(hasty(&hdfs, "/failover").list(""));
    assert!(text.contains("StandbyException"), "{text}");
    std::thread::scope(|scope| {
        let (done, wait) = channel();
        for name in ["a", "b"] {
            let (storage, done) = (storage.as_ref(), done.clone());
            scope.spawn(move || done.send(storage.publish(name, b"late but whole")));
        }
        // They neither give up nor lie meanwhile.
        let early = wait.recv_timeout(Duration::from_secs(8));
        assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "{early:?}");
        hdfs.make_active(1).unwrap();
        for _ in 0..2 {
            wait.recv_timeout(Duration::from_secs(30)).unwrap().unwrap();
        }
    });
    assert_eq!(names(storage.as_ref(), ""), ["a", "b"]);
    hdfs.make_standby(1).unwrap();
    hdfs.make_active(0).unwrap();
}

#[test]
fn an_upload_outlives_the_active_name_node() {
    let hdfs = ill();
    let storage = storage(&hdfs, "/killed-name-node");
    storage.make_dir("").unwrap();
    let bytes = 4 * BLOCK + 99;
    let mut source = Then::new(bytes, 2 * BLOCK + 5, || {
        hdfs.kill_name_node(0).unwrap();
        hdfs.make_active(1).unwrap();
    });
    assert_eq!(storage.upload("f", &mut source, SMALL).unwrap().bytes, bytes);
    assert_whole(storage.as_ref(), "f", bytes);
    assert_eq!(names(storage.as_ref(), ""), ["f"]);
    hdfs.restart_name_node(0).unwrap();
    hdfs.make_standby(1).unwrap();
    hdfs.make_active(0).unwrap();
}

/// A cut cable, or power lost: the first NameNode takes the connection and never says a word.
#[test]
fn a_silent_name_node_is_passed_over() {
    let hdfs = ill();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let conf = tempfile::tempdir().unwrap();
    let site = std::fs::read_to_string(hdfs.conf_dir().join("hdfs-site.xml")).unwrap();
    let name = "<name>dfs.namenode.rpc-address.optimus.nn2</name><value>";
    let (before, after) = site.split_once(name).expect("a pair has a second NameNode");
    let rest = after.split_once('<').expect("values end").1;
    let changed = format!("{before}{name}{}<{rest}", silent.local_addr().unwrap());
    let changed = changed.replace("<value>nn1,nn2</value>", "<value>nn2,nn1</value>");
    assert!(changed.contains("nn2,nn1"), "{changed}");
    std::fs::write(conf.path().join("hdfs-site.xml"), changed).unwrap();
    let settings =
        HdfsSettings { conf_dir: Some(conf.path().to_owned()), ..HdfsSettings::default() };
    let storage = open_with(&hdfs.url("/silent"), &settings).unwrap();
    storage.make_dir("").unwrap();
    storage.publish("f", b"by the other").unwrap();
    assert_eq!(storage.read("f").unwrap(), b"by the other");
    drop(silent);
}

#[test]
fn safe_mode_is_told_as_a_state_that_ends() {
    let hdfs = ill();
    let path = "/safe-mode";
    let storage = storage(&hdfs, path);
    storage.make_dir("d").unwrap();
    storage.publish("old", b"old").unwrap();
    hdfs.safe_mode(true).unwrap();
    let hasty = hasty(&hdfs, path);
    for outcome in [
        hasty.publish("new", b"new"),
        hasty.upload("new", &mut Pattern::new(9), SMALL).map(drop),
        hasty.make_dir("e"),
        hasty.remove("old"),
    ] {
        let text = is_temporary(outcome);
        assert!(text.contains("safe mode"), "{text}");
    }
    assert_eq!(hasty.read("old").unwrap(), b"old", "reading goes on");
    // Who waits long enough for its end has what was asked for.
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| storage.publish("new", b"new"));
        hdfs.safe_mode(false).unwrap();
        writer.join().unwrap().unwrap();
    });
    assert_eq!(names(storage.as_ref(), ""), ["d", "new", "old"]);
}

#[test]
fn without_any_name_node_it_is_unavailable_and_comes_back_by_itself() {
    let hdfs = ill();
    let storage = storage(&hdfs, "/none");
    storage.make_dir("").unwrap();
    hdfs.kill_name_node(0).unwrap();
    hdfs.kill_name_node(1).unwrap();
    let hasty = hasty(&hdfs, "/none");
    for outcome in [hasty.publish("f", b"x"), hasty.list("").map(drop), hasty.remove("f")] {
        is_temporary(outcome);
    }
    hdfs.restart_name_node(0).unwrap();
    hdfs.restart_name_node(1).unwrap();
    hdfs.make_active(0).unwrap();
    // The connections of before the fall are dead, and its blocks are not all heard of yet.
    storage.publish("f", b"after the fall").unwrap();
    assert_eq!(storage.read("f").unwrap(), b"after the fall");
}

/// Three fifths of it fit: the part that does not is told with path and quota and leaves nothing.
#[test]
fn a_quota_reached_within_a_checkpoint_is_named_and_nothing_is_left() {
    let hdfs = ill();
    let storage = storage(&hdfs, "/quota/ckpt");
    storage.make_dir("").unwrap();
    // Two replicas of each block, and the rest of a third one.
    hdfs.quota("/quota", 100, 3 * 2 * BLOCK + BLOCK).unwrap();
    assert_eq!(storage.free_bytes().unwrap(), (3 * 2 * BLOCK + BLOCK) / 3);
    let told = |error: Error| {
        assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
        let text = storage::chain(&error);
        assert!(text.contains("/quota") && text.contains("quota = 458752 B"), "{text}");
    };
    // Within one large part.
    told(storage.upload("large", &mut Pattern::new(5 * BLOCK), SMALL).unwrap_err());
    assert_eq!(names(storage.as_ref(), ""), Vec::<String>::new());
    // Between five small ones.
    for part in ["0", "1", "2"] {
        storage.upload(part, &mut Pattern::new(BLOCK), SMALL).unwrap();
    }
    told(storage.upload("3", &mut Pattern::new(BLOCK), SMALL).unwrap_err());
    assert_eq!(names(storage.as_ref(), ""), ["0", "1", "2"]);
    assert_whole(storage.as_ref(), "2", BLOCK);
    hdfs.quota("/quota", 100, 100 << 20).unwrap();
    storage.upload("3", &mut Pattern::new(BLOCK), SMALL).unwrap();
    // Too many names: the folders count too, and so do six files.
    hdfs.quota("/quota", 6, 0).unwrap();
    let error = storage.upload("4", &mut Pattern::new(1), SMALL).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
    let text = storage::chain(&error);
    assert!(text.contains("/quota") && text.contains("quota=6"), "{text}");
}

#[test]
fn full_disks_are_told_as_no_space() {
    let hdfs = ill();
    let storage = storage(&hdfs, "/full");
    storage.make_dir("").unwrap();
    // No disk has room for such a block: the same to HDFS as a disk without room for a small one.
    let huge = UploadOptions { block_bytes: Some(1 << 47), ..SMALL };
    let error = storage.upload("f", &mut Pattern::new(1), huge).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
    assert_eq!(names(storage.as_ref(), ""), Vec::<String>::new());
    storage.upload("f", &mut Pattern::new(1), SMALL).unwrap();
}

/// It dies in the middle of a block of its own, and no other can take its place: the write goes on
/// with two copies. What is written next may be given the dead one, of which the NameNode does not
/// know yet; what was written before is read from the others.
#[test]
fn an_upload_outlives_a_data_node() {
    let hdfs = ill();
    let storage = storage(&hdfs, "/killed-data-node");
    storage.make_dir("").unwrap();
    let options = UploadOptions { replication: Some(3), block_bytes: Some(4 << 20), ..SMALL };
    let bytes = 3 << 20;
    storage.upload("before", &mut Pattern::new(bytes), options).unwrap();
    let mut source = Then::new(bytes, 2 << 20, || hdfs.kill_data_node(0).unwrap());
    assert_eq!(storage.upload("during", &mut source, options).unwrap().bytes, bytes);
    storage.publish("after", b"soon after").unwrap();
    assert_whole(storage.as_ref(), "before", bytes);
    assert_whole(storage.as_ref(), "during", bytes);
    assert_eq!(storage.read("after").unwrap(), b"soon after");
    assert_eq!(names(storage.as_ref(), ""), ["after", "before", "during"]);
    hdfs.restart_data_node(0).unwrap();
}
