//! What this agent has started, on disk before it happens: an agent that dies at any moment
//! finds its tasks again.
//!
//! `state_dir/ledger` is one JSON document and a last line with its CRC-32. It is replaced whole
//! (temporary file, fsync, rename, fsync of the folder): a task's intent is there before the
//! task is spawned, its pid, start time and boot id right after.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use model::agent::{CheckpointOrder, Exit};
use model::{BootId, Generation, Incarnation, JobId, NodeId, OnDisconnect, Revision, Task};
use nix::fcntl::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};

/// The format that this agent writes.
const VERSION: u32 = 1;
/// A ledger of thousands of tasks.
const RESERVE_BYTES: i64 = 1 << 20;

/// Names a generation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) job: JobId,
    pub(crate) generation: Generation,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}-{}", self.job, self.generation))
    }
}

/// Everything that the agent remembers from one life to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    /// The node under whose name the tasks were started.
    pub(crate) node: Option<NodeId>,
    /// Lives of the agent so far, this one included.
    pub(crate) incarnation: Incarnation,
    /// The newest desired set that was obeyed: an older master is refused by it.
    pub(crate) obeyed: Revision,
    #[serde(with = "as_list")]
    pub(crate) generations: BTreeMap<Key, Held>,
    /// Ports that tasks listen at, each until its task is proved gone.
    #[serde(default)]
    pub(crate) ports: BTreeMap<SocketAddr, PortHeld>,
}

/// Whose port it is, and who may reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortHeld {
    pub(crate) key: Key,
    pub(crate) task: Task,
    /// Addresses of servers with tasks of the generation; none where no master has said them, and
    /// then anyone may.
    pub(crate) peers: Option<BTreeSet<IpAddr>>,
}

/// A generation of which this node holds tasks, dead ones included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) on_disconnect: OnDisconnect,
    /// The user that its tasks run as.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Set once its tasks are to end; never unset.
    pub(crate) stopping: Option<Stopping>,
    /// The last order in `control.json`.
    pub(crate) order: Option<CheckpointOrder>,
    #[serde(with = "as_list")]
    pub(crate) tasks: BTreeMap<Task, HeldTask>,
}

/// Why a generation ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stopping {
    /// What the exits say.
    pub(crate) reason: String,
    /// Whether a master said so.
    pub(crate) ordered: bool,
    pub(crate) grace_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HeldTask {
    /// Identifiers of its GPUs, for `CUDA_VISIBLE_DEVICES`.
    pub(crate) gpus: Vec<String>,
    pub(crate) state: State,
}

/// Where a task is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// It is being started, or was when the agent died.
    Intent,
    /// Its first process was started. Pid, start time and boot id together name it for good.
    Running { pid: i32, start_ticks: u64, boot: BootId, ready: bool },
    /// No process of it is left.
    Exited(Exit),
}

impl HeldTask {
    pub(crate) fn exited(exit: Exit) -> Self {
        Self { gpus: Vec::new(), state: State::Exited(exit) }
    }

    /// True where a process of it may be there.
    pub(crate) fn is_live(&self) -> bool {
        match self.state {
            State::Intent | State::Running { .. } => true,
            State::Exited(_) => false,
        }
    }
}

impl Held {
    pub(crate) fn is_live(&self) -> bool {
        self.tasks.values().any(HeldTask::is_live)
    }
}

impl Ledger {
    /// The task of a generation that is held for sure.
    ///
    /// # Panics
    /// Where it is not held: the key came from elsewhere than this ledger.
    pub(crate) fn task_mut(&mut self, key: Key, task: Task) -> &mut HeldTask {
        self.generations
            .get_mut(&key)
            .and_then(|held| held.tasks.get_mut(&task))
            .expect("keys of tasks in flight come from the ledger, which forgets only dead ones")
    }

    /// GPUs that living tasks hold.
    pub(crate) fn gpus_taken(&self) -> Vec<String> {
        let tasks = self.generations.values().flat_map(|held| held.tasks.values());
        tasks.filter(|task| task.is_live()).flat_map(|task| task.gpus.iter().cloned()).collect()
    }
}

/// Maps with structured keys, which JSON has no objects for, as lists of pairs.
mod as_list {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// What lies in the file; versions are added, never changed.
#[derive(Serialize, Deserialize)]
struct Document<L> {
    version: u32,
    ledger: L,
}

/// The ledger's file.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    folder: PathBuf,
}

/// What was found at the start.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    /// No file: the first start on this folder.
    Nothing,
    Ledger(Ledger),
    /// It could not be read; it lies beside under the given name, and the processes must be
    /// found by their marks.
    Damaged {
        why: String,
        kept: PathBuf,
    },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    #[error("cannot read the ledger {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "the ledger {path} has format {version}, written by a newer agent; \
         install that agent again, or run its stop-tasks and remove the file"
    )]
    Newer { path: PathBuf, version: u32 },
    #[error("cannot keep the damaged ledger aside as {path}: {source}")]
    Aside { path: PathBuf, source: io::Error },
}

impl LedgerFile {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self { folder: state_dir.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("ledger")
    }

    /// Reads the file; a damaged one is moved aside under `unix_ms`.
    ///
    /// # Errors
    /// Where it cannot be read at all, or was written by a newer agent.
    pub(crate) fn load(&self, unix_ms: u64) -> Result<Found, LedgerError> {
        let path = self.path();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(source) => return Err(LedgerError::Read { path, source }),
        };
        match decode(&bytes) {
            Ok(ledger) => Ok(Found::Ledger(ledger)),
            Err(Wrong::Newer(version)) => Err(LedgerError::Newer { path, version }),
            Err(Wrong::Damaged(why)) => {
                let kept = self.folder.join(format!("ledger.damaged-{unix_ms}"));
                fs::rename(&path, &kept)
                    .map_err(|source| LedgerError::Aside { path: kept.clone(), source })?;
                Ok(Found::Damaged { why, kept })
            }
        }
    }

    pub(crate) fn exists(&self) -> bool {
        self.path().exists()
    }

    /// The node's name, where the file is whole.
    pub(crate) fn node(&self) -> Option<NodeId> {
        decode(&fs::read(self.path()).ok()?).ok()?.node
    }

    /// Replaces the file; once this returns, a power cut cannot undo it.
    ///
    /// # Errors
    /// Where the disk refuses; the old file is then still whole.
    pub(crate) fn store(&self, ledger: &Ledger) -> io::Result<()> {
        let bytes = encode(ledger)?;
        let reserve = self.folder.join("ledger.reserve");
        let mut stored = self.replace(&bytes);
        let is_full = |error: &io::Error| {
            matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
        };
        if stored.as_ref().is_err_and(is_full) && fs::remove_file(&reserve).is_ok() {
            stored = self.replace(&bytes);
        }
        if stored.is_ok() && !reserve.exists() && set_aside(&reserve).is_err() {
            // Half of it would be in the way of others and help nobody.
            let _stays = fs::remove_file(&reserve);
        }
        stored
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.folder.join("ledger.new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        if let Err(error) = file.write_all(bytes).and_then(|()| file.sync_all()) {
            // What there is of it takes room from others.
            let _stays = fs::remove_file(&temporary);
            return Err(error);
        }
        fs::rename(&temporary, self.path())?;
        File::open(&self.folder)?.sync_all()
    }
}

/// Keeps room for a ledger on a disk that fills up: an agent that is started again on it must take
/// its tasks back, and what has ended must be noted.
fn set_aside(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?;
    Ok(())
}

fn encode(ledger: &Ledger) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(&Document { version: VERSION, ledger })?;
    let sum = crc32fast::hash(&bytes);
    writeln!(bytes, "\ncrc32 {sum:08x}")?;
    Ok(bytes)
}

enum Wrong {
    Newer(u32),
    Damaged(String),
}

fn decode(bytes: &[u8]) -> Result<Ledger, Wrong> {
    let damaged = |why: &str| Wrong::Damaged(why.to_owned());
    let body = bytes.strip_suffix(b"\n").ok_or_else(|| damaged("it ends in the middle"))?;
    let cut = body.iter().rposition(|b| *b == b'\n').ok_or_else(|| damaged("it has no sum"))?;
    let (body, sum) = (&body[..cut], &body[cut + 1..]);
    let expected = format!("crc32 {:08x}", crc32fast::hash(body));
    if sum != expected.as_bytes() {
        return Err(damaged("its checksum is wrong"));
    }
    let any: Document<serde_json::Value> =
        serde_json::from_slice(body).map_err(|error| Wrong::Damaged(error.to_string()))?;
    if VERSION < any.version {
        return Err(Wrong::Newer(any.version));
    }
    serde_json::from_value(any.ledger).map_err(|error| Wrong::Damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let running = State::Running {
            pid: 41,
            start_ticks: 12_345,
            boot: BootId("b".to_owned()),
            ready: true,
        };
        let tasks = [
            (Task::SCHEDULER, HeldTask { gpus: Vec::new(), state: running }),
            (Task::server(0), HeldTask { gpus: Vec::new(), state: State::Intent }),
            (Task::worker(1), HeldTask { gpus: vec!["GPU-1".to_owned()], state: State::Intent }),
            (Task::worker(2), HeldTask::exited(Exit { code: Some(3), ..Exit::default() })),
        ];
        let held = Held {
            on_disconnect: OnDisconnect::Stop,
            uid: 1000,
            gid: 1000,
            stopping: Some(Stopping { reason: "x".to_owned(), ordered: true, grace_ms: 5 }),
            order: None,
            tasks: tasks.into_iter().collect(),
        };
        let key = Key { job: JobId(7), generation: Generation(2) };
        let at = "10.0.0.7:10001".parse().unwrap();
        let peers = Some(["10.0.0.7".parse().unwrap()].into());
        let port = PortHeld { key, task: Task::SCHEDULER, peers };
        Ledger {
            node: Some("n1".parse().unwrap()),
            incarnation: Incarnation(3),
            obeyed: Revision((1 << 32) + 9),
            generations: [(key, held)].into_iter().collect(),
            ports: [(at, port)].into_iter().collect(),
        }
    }

    #[test]
    fn what_was_stored_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let file = LedgerFile::new(dir.path());
        assert_eq!(file.load(1).unwrap(), Found::Nothing);
        file.store(&ledger()).unwrap();
        assert_eq!(file.load(1).unwrap(), Found::Ledger(ledger()));
        assert_eq!(ledger().gpus_taken(), ["GPU-1"]);
    }

    #[test]
    fn a_ledger_cut_or_changed_anywhere_is_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let file = LedgerFile::new(dir.path());
        let whole = encode(&ledger()).unwrap();
        for at in 0..whole.len() {
            let mut cut = whole.clone();
            cut.truncate(at);
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            for (n, bytes) in [cut, flipped].into_iter().enumerate() {
                fs::write(dir.path().join("ledger"), &bytes).unwrap();
                let Found::Damaged { kept, .. } = file.load(77).unwrap() else {
                    panic!("taken with byte {at} wrong, variant {n}");
                };
                assert_eq!(fs::read(&kept).unwrap(), bytes, "the copy is the damaged file");
                assert_eq!(file.load(78).unwrap(), Found::Nothing);
            }
        }
    }

    #[test]
    fn a_newer_format_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = br#"{"version":2,"ledger":{"unknown":1}}"#.to_vec();
        let sum = crc32fast::hash(&bytes);
        writeln!(bytes, "\ncrc32 {sum:08x}").unwrap();
        fs::write(dir.path().join("ledger"), &bytes).unwrap();
        let error = LedgerFile::new(dir.path()).load(1).unwrap_err();
        assert!(error.to_string().contains("newer agent"), "{error}");
        assert_eq!(fs::read(dir.path().join("ledger")).unwrap(), bytes);
    }

    /// Bytes as an agent of format 1 wrote them: a change of a type must not break them.
    #[test]
    fn the_first_format_is_read() {
        let text = concat!(
            r#"{"version":1,"ledger":{"node":"n1","incarnation":3,"obeyed":4294967305,"#,
            r#""generations":[[{"job":7,"generation":2},{"on_disconnect":"Stop","uid":1000,"#,
            r#""gid":1000,"stopping":null,"order":null,"tasks":[[{"role":"Worker","index":1},"#,
            r#"{"gpus":[],"state":{"Running":{"pid":41,"start_ticks":9,"boot":"b","#,
            r#""ready":false}}}]]}]]}}"#
        );
        let mut bytes = text.as_bytes().to_vec();
        let sum = crc32fast::hash(&bytes);
        writeln!(bytes, "\ncrc32 {sum:08x}").unwrap();
        let Ok(ledger) = decode(&bytes) else { panic!("format 1 is no longer read") };
        assert_eq!((ledger.obeyed, ledger.generations.len()), (Revision((1 << 32) + 9), 1));
    }
}
