//! A real HDFS for tests: Hadoop's own NameNodes and DataNodes in one Java process on loopback.
//!
//! Only the standard library is used, so that other crates' tests may take this file with
//! `#[path]`. Hadoop's jars are fetched once with Maven into `target/optimus-hdfs`. The cluster
//! dies with the process that started it, however that ends: Java reads the end of its stdin.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// In words: this file is for tests, and nobody acts on the kind of a failure.
pub type Outcome<T> = Result<T, String>;

const PROGRAM: &str = "HdfsForTests";
/// Start of the name of a cluster's folder; the id of the process that made it follows.
const FOLDER: &str = "optimus-hdfs-";
/// Two cores that compile beside it.
const START_LIMIT: Duration = Duration::from_secs(120);
const ORDER_LIMIT: Duration = Duration::from_secs(90);

/// Debian packages that a Hadoop needs, and a file that shows each to be there.
pub const PACKAGES: [(&str, &str); 2] =
    [("openjdk-17-jdk-headless", "/usr/bin/javac"), ("maven", "/usr/bin/mvn")];

/// How a cluster is built.
#[derive(Clone, Debug)]
pub struct HdfsOptions {
    /// 1, or 2 for a pair with the nameservice `optimus`; the first is active.
    pub name_nodes: u32,
    pub data_nodes: u32,
    /// Hadoop's settings, over those that tests need.
    pub settings: Vec<(String, String)>,
}

impl Default for HdfsOptions {
    fn default() -> Self {
        Self { name_nodes: 1, data_nodes: 2, settings: Vec::new() }
    }
}

/// What the file system says about a path, asked past every client under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub folder: bool,
    pub bytes: u64,
    pub replication: u32,
    pub block_bytes: u64,
    /// False while a writer holds the file.
    pub closed: bool,
}

/// A running HDFS.
#[derive(Debug)]
pub struct Hdfs {
    child: Child,
    folder: PathBuf,
    address: String,
    line: Mutex<(ChildStdin, Receiver<String>)>,
}

impl Hdfs {
    /// Starts a cluster and waits until it serves.
    ///
    /// # Errors
    /// In words, with the end of Java's own log.
    pub fn start(options: &HdfsOptions) -> Outcome<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let place = prepare()?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        remove_stale();
        let name = format!("{FOLDER}{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _absent = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(words("make", &folder))?;
        let log = File::create(folder.join("log")).map_err(words("make the log in", &folder))?;
        let mut command = Command::new("java");
        // Short lives: the second compiler and parallel collectors never pay here.
        command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx768m", "-Xshare:auto"]);
        command.arg("-cp").arg(class_path(&place)).arg(PROGRAM).arg(&folder);
        command.args([options.name_nodes.to_string(), options.data_nodes.to_string()]);
        command.args(options.settings.iter().map(|(name, value)| format!("{name}={value}")));
        command.current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|error| format!("cannot run java: {error}"))?;
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix("@ ")
                    && send.send(answer.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let line = Mutex::new((stdin, answers));
        let mut hdfs = Self { child, folder, address: String::new(), line };
        hdfs.address = {
            let line = hdfs.line.lock().unwrap_or_else(PoisonError::into_inner);
            hdfs.answer(&line.1, "start", START_LIMIT)?
        };
        Ok(hdfs)
    }

    /// `optimus` for a pair, else host and port: what stands behind `hdfs://`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The URL of an absolute path here.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("hdfs://{}{path}", self.address)
    }

    /// The folder with `core-site.xml` and `hdfs-site.xml` for clients.
    #[must_use]
    pub fn conf_dir(&self) -> PathBuf {
        self.folder.join("conf")
    }

    /// Java's process, for signals: stopped, it is a cluster that answers nothing.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The end of Java's log.
    #[must_use]
    pub fn log(&self) -> String {
        let text = fs::read(self.folder.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Ends a NameNode: its port refuses connections from now on.
    ///
    /// # Errors
    /// Java's own words, as everywhere below.
    pub fn kill_name_node(&self, index: u32) -> Outcome<()> {
        self.order(&format!("kill-name-node {index}")).map(drop)
    }

    /// Starts it again on its old port. Of a pair it comes back as standby; a single one comes
    /// back in safe mode, until it has heard of enough blocks.
    ///
    /// # Errors
    /// Java's own words.
    pub fn restart_name_node(&self, index: u32) -> Outcome<()> {
        self.order(&format!("restart-name-node {index}")).map(drop)
    }

    /// Makes a NameNode of a pair the active one. The other must be standby or dead.
    ///
    /// # Errors
    /// Java's own words.
    pub fn make_active(&self, index: u32) -> Outcome<()> {
        self.order(&format!("active {index}")).map(drop)
    }

    /// Makes a NameNode of a pair a standby.
    ///
    /// # Errors
    /// Java's own words.
    pub fn make_standby(&self, index: u32) -> Outcome<()> {
        self.order(&format!("standby {index}")).map(drop)
    }

    /// Ends a DataNode; the NameNodes learn of it after about 11 s.
    ///
    /// # Errors
    /// Java's own words.
    pub fn kill_data_node(&self, index: u32) -> Outcome<()> {
        self.order(&format!("kill-data-node {index}")).map(drop)
    }

    /// Starts a killed DataNode again, with what was on its disk.
    ///
    /// # Errors
    /// Java's own words.
    pub fn restart_data_node(&self, index: u32) -> Outcome<()> {
        self.order(&format!("restart-data-node {index}")).map(drop)
    }

    /// Enters or leaves safe mode.
    ///
    /// # Errors
    /// Java's own words.
    pub fn safe_mode(&self, on: bool) -> Outcome<()> {
        self.order(if on { "safe-mode on" } else { "safe-mode off" }).map(drop)
    }

    /// Makes a folder and those above it.
    ///
    /// # Errors
    /// Java's own words.
    pub fn make_dir(&self, path: &str) -> Outcome<()> {
        self.order(&format!("make-dir {path}")).map(drop)
    }

    /// Bounds the names and the bytes (counted with replication) below a folder; 0 is no bound.
    ///
    /// # Errors
    /// Java's own words.
    pub fn quota(&self, path: &str, names: u64, bytes: u64) -> Outcome<()> {
        self.order(&format!("quota {path} {names} {bytes}")).map(drop)
    }

    /// How long a silent writer holds its file: from the soft limit on another may take it, at
    /// the hard one the NameNode closes it.
    ///
    /// # Errors
    /// Java's own words.
    pub fn lease(&self, soft_ms: u64, hard_ms: u64) -> Outcome<()> {
        self.order(&format!("lease {soft_ms} {hard_ms}")).map(drop)
    }

    /// What lies at a path, as the active NameNode sees it.
    ///
    /// # Errors
    /// Java's own words.
    pub fn look(&self, path: &str) -> Outcome<Option<Look>> {
        let answer = self.order(&format!("look {path}"))?;
        if answer == "absent" {
            return Ok(None);
        }
        let odd = || format!("odd answer {answer:?}");
        let words: Vec<&str> = answer.split(' ').collect();
        let &[kind, bytes, replication, block, state] = words.as_slice() else {
            return Err(odd());
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| odd());
        let replication = u32::try_from(number(replication)?).map_err(|_| odd())?;
        Ok(Some(Look {
            folder: kind == "folder",
            bytes: number(bytes)?,
            replication,
            block_bytes: number(block)?,
            closed: state == "closed",
        }))
    }

    /// Sends one line and waits for its answer.
    fn order(&self, text: &str) -> Outcome<String> {
        // Held until the answer is there: two threads must not take each other's.
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(line.0, "{text}").map_err(|error| format!("the HDFS is gone: {error}"))?;
        self.answer(&line.1, text, ORDER_LIMIT)
    }

    fn answer(&self, answers: &Receiver<String>, what: &str, limit: Duration) -> Outcome<String> {
        let problem = match answers.recv_timeout(limit) {
            Ok(answer) => match answer.split_once(' ').unwrap_or((&answer, "")) {
                ("ok", rest) => return Ok(rest.to_owned()),
                (_, rest) => rest.to_owned(),
            },
            Err(RecvTimeoutError::Timeout) => format!("no answer within {limit:?}"),
            Err(RecvTimeoutError::Disconnected) => "java ended".to_owned(),
        };
        Err(format!("HDFS could not {what}: {problem}\n{}", self.log()))
    }
}

impl Drop for Hdfs {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

/// Removes the folders of processes that were killed together with their Java.
fn remove_stale() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let maker = name.strip_prefix(FOLDER).and_then(|rest| rest.split('-').next());
        if let Some(maker) = maker
            && maker.parse::<u32>().is_ok()
            && !Path::new("/proc").join(maker).exists()
        {
            let _gone = fs::remove_dir_all(entry.path());
        }
    }
}

fn words(verb: &str, path: &Path) -> impl Fn(std::io::Error) -> String {
    let text = format!("cannot {verb} {}", path.display());
    move |error| format!("{text}: {error}")
}

/// The folder of this checkout that holds the Java program, seen from any crate of it.
fn sources() -> Outcome<PathBuf> {
    let start = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = start.ancestors().map(|folder| folder.join("tests/harness/hdfs"));
    found
        .into_iter()
        .find(|folder| folder.join("pom.xml").is_file())
        .ok_or_else(|| "tests/harness/hdfs is missing from this checkout".to_owned())
}

fn class_path(place: &Path) -> String {
    format!("{0}/classes:{0}/jars/*", place.display())
}

/// Fetches Hadoop and compiles the program, once for each change of either; returns where they
/// lie. Java and Maven must be there.
///
/// # Errors
/// Where Maven cannot fetch or javac refuses, in their words.
pub fn prepare() -> Outcome<PathBuf> {
    let sources = sources()?;
    let root = sources.ancestors().nth(3).expect("the sources lie three below the root");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let place = target.join("optimus-hdfs");
    let place = std::path::absolute(&place).map_err(words("find", &place))?;
    fs::create_dir_all(&place).map_err(words("make", &place))?;
    // Two test programs may start at the same time; closing the file opens the lock.
    let lock = File::create(place.join("lock")).map_err(words("make the lock in", &place))?;
    lock.lock().map_err(words("lock", &place))?;
    let pom = sources.join("pom.xml");
    let program = sources.join(format!("{PROGRAM}.java"));
    let read = |path: &Path| fs::read_to_string(path).map_err(words("read", path));
    let (pom_text, program_text) = (read(&pom)?, read(&program)?);
    let fresh = |stamp: &Path, text: &str| fs::read_to_string(stamp).is_ok_and(|old| old == text);
    let jars = place.join("jars");
    let jars_stamp = place.join("jars-stamp");
    let classes_stamp = place.join("classes-stamp");
    if !fresh(&jars_stamp, &pom_text) {
        let _absent = fs::remove_dir_all(&jars);
        let _absent = fs::remove_file(&classes_stamp);
        run(Command::new("mvn")
            .args(["--quiet", "--batch-mode", "--file"])
            .arg(&pom)
            .arg("dependency:copy-dependencies")
            .arg(format!("-DoutputDirectory={}", jars.display())))?;
        fs::write(&jars_stamp, &pom_text).map_err(words("write", &jars_stamp))?;
    }
    if !fresh(&classes_stamp, &program_text) {
        let classes = place.join("classes");
        let _absent = fs::remove_dir_all(&classes);
        fs::create_dir_all(&classes).map_err(words("make", &classes))?;
        run(Command::new("javac")
            .arg("-nowarn")
            .arg("-cp")
            .arg(class_path(&place))
            .arg("-d")
            .arg(&classes)
            .arg(&program))?;
        fs::write(&classes_stamp, &program_text).map_err(words("write", &classes_stamp))?;
    }
    Ok(place)
}

fn run(command: &mut Command) -> Outcome<()> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(|error| format!("cannot run {shown}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(format!("{shown} failed: {}", String::from_utf8_lossy(&text)))
}
