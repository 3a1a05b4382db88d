//! The socket with real peers, before a folder in the place of storage.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use model::agent::Part;
use model::{CheckpointId, Generation, JobId};
use nix::unistd::{User, getegid, geteuid};
use serde_json::json;
use storage::FileStorage;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::*;
use crate::config::TaskUser;

/// Storage at `hdfs:///some/folder` is that folder here: what storage itself does wrong has tests
/// of its own.
fn open(url: &str, _: &HdfsSettings) -> storage::Result<Box<dyn Storage>> {
    let folder = url.strip_prefix("hdfs://").expect("a base of these tests");
    Ok(Box::new(FileStorage::new(folder)))
}

struct World {
    dir: tempfile::TempDir,
    gateway: Arc<Gateway>,
    served: Served,
    events: mpsc::Receiver<Event>,
}

const KEY: Key = Key { job: JobId(4), generation: Generation(2) };

/// A generation of job j4 on one node; `alone` where its workers are all there.
fn world(alone: bool) -> World {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    for folder in ["tasks", "store"] {
        fs::create_dir(dir.path().join(folder)).unwrap();
    }
    // Peers of these tests are this process: the tasks' user is its own.
    let user = User::from_uid(geteuid()).unwrap().unwrap();
    let user = TaskUser {
        name: user.name,
        uid: geteuid(),
        gid: getegid(),
        home: user.dir,
        switch: false,
        helpers: None,
    };
    let (sender, events) = mpsc::channel(16);
    let spool = Spool::new(dir.path(), user, 1 << 20);
    let gateway = Arc::new(Gateway::with(spool, (open, HdfsSettings::default()), sender));
    let owner = (geteuid(), getegid());
    let served = Served::open(&gateway, KEY, &dir.path().join("tasks"), owner, alone).unwrap();
    World { dir, gateway, served, events }
}

impl World {
    fn base(&self) -> String {
        format!("hdfs://{}/store", self.dir.path().display())
    }

    fn directory(&self, generation: u64, id: u64) -> String {
        let name =
            storage::checkpoint::directory(JobId(4), Generation(generation), CheckpointId(id));
        format!("{}/{name}", self.base())
    }

    fn stored(&self, generation: u64, id: u64, file: &str) -> PathBuf {
        PathBuf::from(self.directory(generation, id).trim_start_matches("hdfs://")).join(file)
    }

    /// The agent makes a checkpoint's folders, then its tasks may know of it.
    fn order(&self, id: u64) {
        let directory = self.directory(2, id);
        self.gateway.prepare(&directory, None).unwrap();
        let order = CheckpointOrder {
            checkpoint: CheckpointId(id),
            at_step: Some(9),
            directory,
            hold: true,
            released: false,
        };
        self.served.want(|wanted| wanted.order = Some(order));
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("tasks").join(server::SOCKET)).await.unwrap()
    }

    async fn ask(&self, header: Value) -> Value {
        ask(&mut self.connect().await, header).await.header
    }

    async fn spool(&self, id: u64) -> PathBuf {
        let answer = self.ask(json!({"op": "spool", "checkpoint": id})).await;
        PathBuf::from(answer["path"].as_str().unwrap_or_else(|| panic!("{answer}")))
    }
}

async fn ask(stream: &mut UnixStream, header: Value) -> Frame {
    ask_with(stream, header, b"").await
}

async fn ask_with(stream: &mut UnixStream, header: Value, body: &[u8]) -> Frame {
    frame::write(stream, &header, body).await.unwrap();
    frame::read(stream).await.unwrap().expect("an answer")
}

#[tokio::test]
async fn a_peer_is_answered_again_and_again() {
    let world = world(true);
    let mut stream = world.connect().await;
    for _ in 0..3 {
        let answer = ask(&mut stream, json!({"op": "format"})).await;
        assert_eq!(answer.header["kind"], "refused");
        assert!(answer.header["error"].as_str().unwrap().contains("format"));
    }
    drop(world.served);
    assert_eq!(frame::read(&mut stream).await.unwrap_or(None), None, "it ends with the handle");
}

#[tokio::test]
async fn one_who_sends_nonsense_or_stalls_stands_in_nobodys_way() {
    let world = world(true);
    world.order(1);
    let mut stalled = world.connect().await;
    stalled.write_all(&[0, 0]).await.unwrap();
    let mut wrong = world.connect().await;
    wrong.write_all(&[255; 64]).await.unwrap();
    assert_eq!(frame::read(&mut wrong).await.unwrap_or(None), None);
    assert!(world.spool(1).await.is_dir());
}

#[tokio::test]
async fn a_part_is_stored_and_comes_back_on_another_node() {
    let (here, there) = (world(true), world(true));
    here.order(7);
    fs::write(here.spool(7).await.join("server-0.npz"), "123456789").unwrap();
    let put = json!({"op": "put", "checkpoint": 7, "files": ["server-0.npz"], "wait": true});
    let answer = here.ask(put).await;
    let part = json!({"file": "server-0.npz", "bytes": 9, "crc32": 0xCBF4_3926_u32});
    assert_eq!(answer, json!({"ok": true, "parts": [part]}));
    // The master publishes it, and the job goes on elsewhere.
    let storage = here.gateway.storage(&here.base()).unwrap();
    let part = Part { file: "server-0.npz".to_owned(), bytes: 9, crc32: 0xCBF4_3926 };
    let manifest = Manifest {
        job: JobId(4),
        generation: Generation(2),
        checkpoint: CheckpointId(7),
        step: 9,
        epoch: 0,
        epoch_position: 0,
        directory: String::new(),
        parts: vec![part],
    };
    let (base, directory) = (here.base(), here.directory(2, 7));
    storage::checkpoint::publish_manifest(storage.as_ref(), &base, &directory, manifest).unwrap();
    there.served.want(|wanted| wanted.resume = Some(directory.clone()));
    let fetch = json!({"op": "fetch", "directory": directory, "file": "server-0.npz"});
    let answer = there.ask(fetch.clone()).await;
    let path = PathBuf::from(answer["path"].as_str().unwrap_or_else(|| panic!("{answer}")));
    assert!(path.starts_with(there.dir.path()));
    assert_eq!(fs::read_to_string(&path).unwrap(), "123456789");
    // What a task did to the copy does not count, and a copy that is whole saves the way.
    fs::write(&path, "12345678X").unwrap();
    assert_eq!(there.ask(fetch.clone()).await, answer);
    assert_eq!(fs::read_to_string(&path).unwrap(), "123456789");
    fs::remove_file(here.stored(2, 7, "server-0.npz")).unwrap();
    assert_eq!(there.ask(fetch).await, answer);
    let fetch = json!({"op": "fetch", "directory": directory, "file": "checkpoint.json"});
    assert_eq!(there.ask(fetch).await["kind"], "missing");
}

#[tokio::test]
async fn a_part_that_storage_changed_is_damaged() {
    let world = world(true);
    let directory = world.directory(1, 3);
    fs::create_dir_all(world.stored(1, 3, "")).unwrap();
    fs::write(world.stored(1, 3, "a"), "123456789").unwrap();
    let storage = world.gateway.storage(&world.base()).unwrap();
    let manifest = Manifest {
        job: JobId(4),
        generation: Generation(1),
        checkpoint: CheckpointId(3),
        step: 9,
        epoch: 0,
        epoch_position: 0,
        directory: String::new(),
        parts: vec![Part { file: "a".to_owned(), bytes: 9, crc32: 0xCBF4_3926 }],
    };
    let base = world.base();
    storage::checkpoint::publish_manifest(storage.as_ref(), &base, &directory, manifest).unwrap();
    fs::write(world.stored(1, 3, "a"), "1234").unwrap();
    world.served.want(|wanted| wanted.resume = Some(directory.clone()));
    let answer = world.ask(json!({"op": "fetch", "directory": directory, "file": "a"})).await;
    assert_eq!(answer["kind"], "damaged", "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("4 bytes"), "{answer}");
}

#[tokio::test]
async fn workers_meet_by_marks_also_across_nodes() {
    for alone in [true, false] {
        let world = world(alone);
        world.order(1);
        let mut stream = world.connect().await;
        let mark = json!({"op": "mark", "checkpoint": 1, "name": "reached-0-9"});
        assert_eq!(ask_with(&mut stream, mark.clone(), b"{}").await.header["ok"], true);
        assert_eq!(ask_with(&mut stream, mark, b"{}").await.header["ok"], true, "told twice");
        assert_eq!(world.stored(2, 1, "reached-0-9").exists(), !alone);
        if !alone {
            // One of another node.
            fs::write(world.stored(2, 1, "reached-1-9"), "there").unwrap();
        }
        let names = json!(["reached-0-9", "reached-1-9"]);
        let marks = json!({"op": "marks", "checkpoint": 1, "names": names});
        let answer = ask(&mut stream, marks).await.header;
        let expected = if alone {
            json!({"reached-0-9": "{}"})
        } else {
            json!({"reached-0-9": "{}", "reached-1-9": "there"})
        };
        assert_eq!(answer["marks"], expected);
    }
}

#[tokio::test]
async fn only_what_is_wanted_is_touched() {
    let world = world(true);
    world.order(1);
    fs::write(world.dir.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(world.dir.path().join("secret"), world.spool(1).await.join("link"))
        .unwrap();
    for (header, word) in [
        (json!({"op": "put", "checkpoint": 1, "files": ["../secret"], "wait": true}), "plain"),
        (json!({"op": "put", "checkpoint": 1, "files": ["link"], "wait": true}), "symbolic"),
        (json!({"op": "put", "checkpoint": 1, "files": ["none"], "wait": true}), "exist"),
        (json!({"op": "put", "checkpoint": "1", "files": ["a"]}), "number"),
        (json!({"op": "mark", "checkpoint": 1, "name": ".coming-a"}), "plain"),
        (json!({"op": "marks", "checkpoint": 1, "names": "a"}), "list"),
    ] {
        let answer = world.ask(header.clone()).await;
        assert_eq!(answer["ok"], false, "{header}");
        assert!(answer["error"].as_str().unwrap().contains(word), "{header}: {answer}");
    }
    assert!(!world.stored(2, 1, "link").exists());
}

#[tokio::test]
async fn nobody_waits_for_a_checkpoint_that_was_called_off() {
    let world = world(true);
    world.order(1);
    let mut stream = world.connect().await;
    let get = json!({"op": "get", "checkpoint": 1, "file": "server-1.json"});
    frame::write(&mut stream, &get, b"").await.unwrap();
    world.served.want(|wanted| wanted.order = None);
    let answer = frame::read(&mut stream).await.unwrap().unwrap();
    assert!(answer.header["error"].as_str().unwrap().contains("called off"));
}

#[tokio::test]
async fn what_a_server_cannot_store_is_told_by_the_agent() {
    let mut world = world(true);
    world.order(1);
    let put = json!({"op": "put", "checkpoint": 1, "files": ["server-0.npz"]});
    assert_eq!(world.ask(put).await["ok"], true);
    match world.events.recv().await {
        Some(Event::Part { key: KEY, checkpoint: CheckpointId(1), why }) => {
            assert!(why.contains("server-0.npz does not exist"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_was_handed_over_before_a_restart_is_stored_after_it() {
    let world = world(true);
    world.order(1);
    let spool = world.spool(1).await;
    for file in ["server-0.npz", "server-0.json", "server-1.npz", "parameters.npz"] {
        fs::write(spool.join(file), file).unwrap();
    }
    let order = world.served.wanted.borrow().order.clone();
    world.served.take_up(order.as_ref());
    let mut stream = world.connect().await;
    let answer = ask(&mut stream, json!({"op": "get", "checkpoint": 1, "file": "server-0.json"}));
    assert_eq!(answer.await.body, b"server-0.json");
    assert!(world.stored(2, 1, "server-0.npz").exists());
    assert!(!world.stored(2, 1, "server-1.npz").exists(), "its table is missing");
}

#[test]
fn the_spool_keeps_the_last_checkpoints_within_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let user = User::from_uid(geteuid()).unwrap().unwrap();
    let user = TaskUser {
        name: user.name,
        uid: user.uid,
        gid: user.gid,
        home: user.dir,
        switch: false,
        helpers: None,
    };
    let spool = Spool::new(dir.path(), user, 100);
    let of = |job: u64, id: u64| {
        let name = storage::checkpoint::directory(JobId(job), Generation(1), CheckpointId(id));
        Checkpoint::of(&format!("hdfs://nn/{name}")).unwrap()
    };
    let fill = |job: u64, id: u64, bytes: usize, live: &[Checkpoint]| {
        spool.make_room(JobId(job), live)?;
        fs::write(spool.make(&of(job, id))?.join("part"), vec![0; bytes]).unwrap();
        Ok::<(), Trouble>(())
    };
    fill(1, 1, 30, &[]).unwrap();
    fill(1, 2, 30, &[]).unwrap();
    fill(1, 3, 30, &[]).unwrap();
    assert!(!spool.folder(&of(1, 1)).exists() && spool.folder(&of(1, 2)).exists());
    fill(2, 1, 60, &[]).unwrap();
    // Over the bound now: the next one drives out the oldest, but never what is in use.
    fill(2, 2, 1, &[of(2, 1)]).unwrap();
    assert!(spool.folder(&of(2, 1)).exists());
    assert!(!spool.folder(&of(1, 2)).exists() || !spool.folder(&of(1, 3)).exists());
    fs::write(spool.folder(&of(2, 1)).join("more"), vec![0; 60]).unwrap();
    let full = fill(3, 1, 1, &[of(2, 1)]).unwrap_err();
    assert!(full.kind == Kind::Unavailable && full.words.contains("spool_bytes_max"), "{full:?}");
    spool.prune(|job| job == JobId(2), i64::MAX);
    assert!(spool.folder(&of(2, 1)).exists() && !dir.path().join("spool/j1").exists());
}
