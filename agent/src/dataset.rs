//! The index of a job's data set: found or made, kept in the job's checkpoint folder, and brought
//! to its workers (section 5.1).
//!
//! One agent of a job scans, that of its first worker; the others wait for what it publishes. The
//! index stays the same for all generations, because what a checkpoint says of the data means
//! places in it. A scan reads a whole data set, so a process of its own does it: as the task's
//! user where the set lies on this machine, since a job must not read by its agent what it may
//! not read itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use model::JobId;
use model::options::{DataFormat, DataSpec};
use storage::dataset::{INDEX_BYTES_MAX, Index, JOB_INDEX};
use storage::{Error, HdfsSettings};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::checkpoint::make_folder;
use crate::config::TaskUser;
use crate::control_file;
use crate::daemon::Event;
use crate::gateway::Gateway;
use crate::ledger::Key;
use crate::task::environment::local_path;
use crate::task::launcher;
use crate::telemetry::printable;

/// Files in a generation's folder; the package looks for them.
pub(crate) const INDEX_FILE: &str = "data-index.json";
pub(crate) const ERROR_FILE: &str = "data-error.txt";

/// How often an agent looks whether another one has published the index.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const WORDS_MAX: usize = 1000;

/// What a generation needs.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) job: JobId,
    pub(crate) spec: DataSpec,
    /// Base URL of the job's checkpoints.
    pub(crate) base: String,
    /// The generation's folder on this node.
    pub(crate) folder: PathBuf,
    /// Whether this agent is to scan where nobody has yet.
    pub(crate) scans: bool,
    pub(crate) user: TaskUser,
    pub(crate) gateway: Arc<Gateway>,
    /// How the process that scans reaches HDFS.
    pub(crate) hdfs: HdfsSettings,
    /// Told whenever there is another reason why the index cannot be had yet.
    pub(crate) waits: Waits,
}

/// The agent's loop, which hears why the index of a generation's data set cannot be had yet.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) key: Key,
}

impl Waits {
    fn tell(&self, why: String) {
        // A full queue only loses a reason, and the log has it.
        let _ = self.events.try_send(Event::DatasetWaits { key: self.key, why });
    }
}

/// A data set whose index is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) chunks: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

/// What a worker reads in OPTIMUS_DATA.
pub(crate) fn told(spec: &DataSpec) -> String {
    serde_json::json!({
        "url": spec.url,
        "format": spec.format.name(),
        "record_bytes": spec.format.record_bytes(),
        "chunk_bytes": spec.chunk_bytes,
    })
    .to_string()
}

/// Puts the index into the generation's folder, or there says in words why it cannot be had.
///
/// # Errors
/// Those words.
pub(crate) async fn bring(wanted: Wanted) -> Result<Known, String> {
    let folder = wanted.folder.clone();
    match find(wanted).await {
        Ok(text) => blocking(move || show(&folder, &text)).await,
        Err(words) => {
            let words = printable(&words, WORDS_MAX);
            blocking(move || Err(refuse(&folder, words))).await
        }
    }
}

fn show(folder: &Path, text: &[u8]) -> Result<Known, String> {
    let known = known(text).map_err(|words| refuse(folder, words))?;
    let written = control_file::write_data(folder, INDEX_FILE, text);
    written.map_err(|error| refuse(folder, format!("cannot write {INDEX_FILE}: {error}")))?;
    Ok(known)
}

/// Lets the workers fail with these words.
fn refuse(folder: &Path, words: String) -> String {
    if let Err(error) = control_file::write_data(folder, ERROR_FILE, words.as_bytes()) {
        // They wait until the generation is stopped; the log says for what.
        tracing::warn!(folder = %folder.display(), %error, "cannot write {ERROR_FILE}");
    }
    words
}

fn known(text: &[u8]) -> Result<Known, String> {
    let index = Index::decode(text, JOB_INDEX).map_err(|error| storage::chain(&error))?;
    let chunks = index.chunks.len() as u64;
    Ok(Known { chunks, records: index.records(), bytes: index.bytes() })
}

/// The published index; published here where nobody else has, and this agent is the one to do it.
async fn find(wanted: Wanted) -> Result<Vec<u8>, String> {
    let mut told = String::new();
    loop {
        let (gateway, base, job) = (Arc::clone(&wanted.gateway), wanted.base.clone(), wanted.job);
        match blocking(move || published(&gateway, &base, job)).await {
            Ok(Some(text)) => return Ok(text),
            Ok(None) if wanted.scans => break,
            Ok(None) => {}
            // Storage that is away comes back; training cannot begin without it anyway.
            Err(words) if words != told => {
                tracing::warn!(job = %wanted.job, words, "cannot look for the data set's index");
                wanted.waits.tell(words.clone());
                told = words;
            }
            Err(_) => {}
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    tracing::info!(job = %wanted.job, url = wanted.spec.url, "indexing a data set");
    let text = scan(&wanted).await?;
    blocking(move || publish(&wanted, text)).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(panic.to_string()))
}

fn path(job: JobId) -> String {
    format!("{job}/{JOB_INDEX}")
}

fn published(gateway: &Gateway, base: &str, job: JobId) -> Result<Option<Vec<u8>>, String> {
    let storage = gateway.storage(base).map_err(|trouble| trouble.words)?;
    match storage.read(&path(job)) {
        Ok(text) => Ok(Some(text)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(storage::chain(&error)),
    }
}

/// Keeps the index where the job's checkpoints are, unless another one came first.
fn publish(wanted: &Wanted, text: Vec<u8>) -> Result<Vec<u8>, String> {
    let words = |error: Error| storage::chain(&error);
    let storage = wanted.gateway.storage(&wanted.base).map_err(|trouble| trouble.words)?;
    let folder = wanted.job.to_string();
    // Of the task's user, who writes checkpoints there.
    match local_path(&storage.url(&folder)) {
        Ok(place) => make_folder(&place, &wanted.user)?,
        Err(_) => storage.make_dir(&folder).map_err(words)?,
    }
    match storage.publish(&path(wanted.job), &text) {
        Ok(()) => Ok(text),
        Err(Error::AlreadyExists { .. }) => storage.read(&path(wanted.job)).map_err(words),
        Err(error) => Err(words(error)),
    }
}

/// Runs `optimus-agent index-data`; returns what it prints.
async fn scan(wanted: &Wanted) -> Result<Vec<u8>, String> {
    let Wanted { spec, user, .. } = wanted;
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut words = vec![program.display().to_string(), "index-data".to_owned()];
    words.extend([&spec.url, "--format", spec.format.name()].map(str::to_owned));
    if let DataFormat::Fixed(bytes) = spec.format {
        words.extend(["--record-bytes".to_owned(), bytes.to_string()]);
    }
    words.extend(["--chunk".to_owned(), format!("{}B", spec.chunk_bytes)]);
    let mut command = Command::new(&program);
    command.args(&words[1..]);
    // Nothing of a set on this machine is read by another right than the job's. Elsewhere the
    // agent's own identity counts, and what its environment says of it.
    if local_path(&spec.url).is_ok() {
        let path = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
        if user.switch {
            command = launcher::helper(user, &words, &path).into();
        } else {
            command.env_clear().envs(path).current_dir("/");
        }
    } else {
        let HdfsSettings { conf_dir, keytab, .. } = &wanted.hdfs;
        let told = [("HADOOP_CONF_DIR", conf_dir), ("KRB5_CLIENT_KTNAME", keytab)];
        for (name, value) in told {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let cannot = |error| cannot_run(&program, user, error);
    let mut child = command.spawn().map_err(cannot)?;
    user.settle(child.id());
    let output = child.stdout.take().expect("it is piped");
    let errors = child.stderr.take().expect("it is piped");
    let (text, words) = tokio::join!(all(output, INDEX_BYTES_MAX + 1), all(errors, 64 << 10));
    let status = child.wait().await.map_err(cannot)?;
    if status.success() {
        return text.map_err(cannot);
    }
    let words = words.unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    match words.trim() {
        "" => Err(format!("indexing {} ended with {status}", spec.url)),
        words => Err(words.to_owned()),
    }
}

fn cannot_run(program: &Path, user: &TaskUser, error: std::io::Error) -> String {
    format!("cannot run {} index-data as user {}: {error}", program.display(), user.name)
}

/// What comes, up to a limit; the rest is read and dropped, so that the writer can end.
async fn all(mut from: impl AsyncRead + Unpin, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    (&mut from).take(limit).read_to_end(&mut text).await?;
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    Ok(text)
}
