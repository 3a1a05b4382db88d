//! A job's fork server: a process that has imported what its tasks import, and forks them.
//!
//! `optimus/forkserver.py` is its other end. It is no task: it trains nothing, holds no port and
//! no GPU, and ends when this end of its line is closed. Whatever goes wrong with it, a task is
//! started from nothing instead, once it is sure that it was not forked.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Interest, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::config::TaskUser;
use crate::procfs::{self, Mark};
use crate::task::process::{End, Prepared};

/// For the import, which takes a second or two. One that hangs must not hold up a generation for
/// longer than it can bear.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// For one fork, which takes some ms.
const FORK_LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked whether a waiting order still stands.
const CANCEL_EVERY: Duration = Duration::from_millis(50);
/// Orders that wait; a launch sends them one by one.
const ORDERS_MAX: usize = 16;
/// Largest answer: an error text, and some.
const ANSWER_BYTES_MAX: usize = 16_384;

/// What a fork server is started from; another one cannot stand in for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// The interpreter and its flags.
    words: Vec<String>,
    /// The job's own.
    environment: BTreeMap<String, String>,
}

/// Flags that say nothing of what is imported from where.
const PLAIN_FLAGS: [&str; 5] = ["-u", "-B", "-O", "-OO", "-q"];

/// How many words of a command come before its script; none where it is not a Python interpreter
/// with plain flags and a script.
fn script_of(command: &[String]) -> Option<usize> {
    let program = Path::new(command.first()?).file_name()?.to_str()?;
    let version = program.strip_prefix("python")?;
    let plain = version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let flags = command[1..].iter().take_while(|word| PLAIN_FLAGS.contains(&word.as_str()));
    let script = 1 + flags.count();
    let is_script = command.get(script).is_some_and(|word| {
        !word.starts_with('-') && Path::new(word).extension().is_some_and(|end| end == "py")
    });
    (plain && is_script).then_some(script)
}

impl Recipe {
    /// None where the tasks of such a job can only be started from nothing.
    pub(crate) fn of(command: &[String], environment: &BTreeMap<String, String>) -> Option<Self> {
        let script = script_of(command)?;
        // Taken from the working directory, which the server does not start in: a module that
        // lies there must not come before one that it imports.
        let relative = |path: &String| path.split(':').any(|part| !part.starts_with('/'));
        if environment.get("PYTHONPATH").is_some_and(relative) {
            return None;
        }
        Some(Self { words: command[..script].to_vec(), environment: environment.clone() })
    }

    /// The job's own variables.
    pub(crate) fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }
}

/// One task for a fork server.
#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
    output: OwnedFd,
    mark: Mark,
    gpus: bool,
    cancelled: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<Forked, String>>,
}

/// A forked task, as the kernel confirms it.
#[derive(Debug)]
pub(crate) struct Forked {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) end: oneshot::Receiver<End>,
}

/// Orders a fork server; it ends with the last of its handles.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    requests: mpsc::Sender<Request>,
}

#[derive(Serialize)]
struct Order<'a> {
    id: u64,
    environment: &'a BTreeMap<String, String>,
    directory: &'a str,
    command: &'a [String],
    script: usize,
}

/// One line of a server's words.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    ready: bool,
    gpus: bool,
    unusable: Option<String>,
    forked: Option<u64>,
    pid: i32,
    failed: Option<u64>,
    error: String,
    ended: Option<i32>,
    code: Option<i32>,
    signal: Option<i32>,
}

impl Handle {
    /// Lets the server fork a task.
    ///
    /// # Errors
    /// In words. The server has ended then, or has not begun with the task; a process of it may
    /// be found by its mark all the same.
    pub(crate) async fn fork(
        &self,
        task: &Prepared,
        cancelled: &Arc<AtomicBool>,
    ) -> Result<Forked, String> {
        let script = script_of(&task.command).ok_or("its command is not a Python script")?;
        let order = Order {
            id: 0,
            environment: &task.environment,
            directory: &task.working_directory,
            command: &task.command,
            script,
        };
        let json = serde_json::to_vec(&order).map_err(|error| error.to_string())?;
        let length = u32::try_from(json.len()).map_err(|error| error.to_string())?;
        let bytes = [&length.to_be_bytes()[..], &json].concat();
        let output = task.output.try_clone().map_err(|error| error.to_string())?.into();
        let (reply, answer) = oneshot::channel();
        let (mark, gpus, cancelled) = (task.mark.clone(), task.gpus, Arc::clone(cancelled));
        let request = Request { bytes, output, mark, gpus, cancelled, reply };
        let gone = || "it has ended".to_owned();
        self.requests.send(request).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// What a server is started with.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) environment: BTreeMap<String, String>,
    /// Its own folder, made and given to the user: nothing is imported from there.
    pub(crate) folder: PathBuf,
    /// Its stdout and stderr, where the user cannot put a link.
    pub(crate) log: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) user: &'a TaskUser,
    /// Whether training processes come first while it imports.
    pub(crate) low: bool,
}

/// Starts a fork server, and a task of the runtime that looks after it.
///
/// # Returns
/// Its handle, and what tells why it ended.
///
/// # Errors
/// In words.
pub(crate) fn start(start: Start<'_>) -> Result<(Handle, oneshot::Receiver<Gone>), String> {
    let (line, child) = spawn(&start).map_err(|error| error.to_string())?;
    let (requests, inbox) = mpsc::channel(ORDERS_MAX);
    let (tell, ended) = oneshot::channel();
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or("it has no process id")?;
    let (read, write) = line.into_split();
    let keeper = Keeper {
        pid,
        uid: start.user.uid.as_raw(),
        state_dir: start.state_dir,
        inbox,
        lines: BufReader::new(read).lines(),
        write,
        state: Import::Running(Instant::now() + READY_LIMIT),
        waiting: VecDeque::new(),
        flight: None,
        children: BTreeMap::new(),
    };
    tokio::spawn(async move {
        let gone = keeper.keep(child).await;
        // The loop has ended where nobody listens any more.
        let _ = tell.send(gone);
    });
    Ok((Handle { requests }, ended))
}

fn spawn(start: &Start<'_>) -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let log = File::create(&start.log)?;
    let (program, flags) = start.recipe.words.split_first().expect("a recipe has a program");
    let mut command = Command::new(program);
    command
        .args(flags)
        .args(["-m", "optimus.forkserver", if start.low { "low" } else { "now" }])
        // Room for the arguments of its tasks in what the kernel shows of them.
        .arg(" ".repeat(2048))
        .env_clear()
        .envs(&start.environment)
        .current_dir(&start.folder)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .kill_on_drop(false);
    if start.user.switch {
        command.uid(start.user.uid.as_raw()).gid(start.user.gid.as_raw());
    }
    let child = command.spawn()?;
    Ok((UnixStream::from_std(ours)?, child))
}

/// Why a fork server is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    /// Empty where nobody needed it any more.
    pub(crate) why: String,
    /// Another one would end the same way.
    pub(crate) for_good: bool,
}

impl From<String> for Gone {
    fn from(why: String) -> Self {
        Self { why, for_good: false }
    }
}

/// How far the import is.
#[derive(Clone, Copy, Debug)]
enum Import {
    Running(Instant),
    Done { opened_gpus: bool },
}

/// A request that was sent.
#[derive(Debug)]
struct Flight {
    mark: Mark,
    reply: oneshot::Sender<Result<Forked, String>>,
    until: Instant,
}

/// Talks with one fork server for as long as that lives.
struct Keeper {
    pid: i32,
    uid: u32,
    state_dir: PathBuf,
    inbox: mpsc::Receiver<Request>,
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
    state: Import,
    waiting: VecDeque<Request>,
    flight: Option<Flight>,
    children: BTreeMap<i32, oneshot::Sender<End>>,
}

impl Keeper {
    /// Returns why it ended.
    async fn keep(mut self, mut child: Child) -> Gone {
        let ended = self.talk().await;
        // Closed first: a task in the middle of being forked sees it, and runs nothing.
        drop(self.write);
        drop(self.lines);
        if let Err(error) = child.start_kill() {
            tracing::debug!(%error, "a fork server has ended already");
        }
        if let Err(error) = child.wait().await {
            tracing::warn!(%error, "cannot wait for a fork server");
        }
        let gone = ended.err().unwrap_or_default();
        let replies = self.flight.map(|flight| flight.reply);
        for reply in replies.into_iter().chain(self.waiting.into_iter().map(|one| one.reply)) {
            let _nobody = reply.send(Err(gone.why.clone()));
        }
        gone
    }

    async fn talk(&mut self) -> Result<(), Gone> {
        loop {
            if let (Import::Done { opened_gpus }, None) = (self.state, &self.flight)
                && let Some(request) = self.waiting.pop_front()
            {
                self.send(request, opened_gpus).await?;
                continue;
            }
            self.drop_cancelled();
            let until = match (&self.flight, self.state) {
                (Some(flight), _) => Some(flight.until),
                (None, Import::Running(until)) => Some(until),
                (None, Import::Done { .. }) => None,
            };
            tokio::select! {
                biased;
                line = self.lines.next_line() => match line {
                    Ok(Some(line)) => self.hear(&line)?,
                    Ok(None) => return Err("it ended".to_owned().into()),
                    Err(error) => return Err(error.to_string().into()),
                },
                request = self.inbox.recv() => match request {
                    Some(request) => self.waiting.push_back(request),
                    None => return Ok(()),
                },
                // A generation that is stopped must not wait for an import.
                () = tokio::time::sleep(CANCEL_EVERY), if !self.waiting.is_empty() => {}
                () = sleep_until(until) => return Err("it did not answer in time".to_owned().into()),
            }
        }
    }

    fn drop_cancelled(&mut self) {
        for request in std::mem::take(&mut self.waiting) {
            if request.cancelled.load(Ordering::Relaxed) {
                let _gone = request.reply.send(Err("its generation was stopped first".to_owned()));
            } else {
                self.waiting.push_back(request);
            }
        }
    }

    async fn send(&mut self, request: Request, opened_gpus: bool) -> Result<(), String> {
        let Request { bytes, output, mark, gpus, reply, .. } = request;
        if gpus && opened_gpus {
            let _gone = reply.send(Err("its import has opened a GPU".to_owned()));
            return Ok(());
        }
        self.flight = Some(Flight { mark, reply, until: Instant::now() + FORK_LIMIT });
        let line = self.write.as_ref();
        let sent = line
            .async_io(Interest::WRITABLE, || {
                let rights = [output.as_raw_fd()];
                let rights = [ControlMessage::ScmRights(&rights)];
                let parts = [IoSlice::new(&bytes)];
                let flags = MsgFlags::MSG_NOSIGNAL;
                Ok(sendmsg::<()>(line.as_raw_fd(), &parts, &rights, flags, None)?)
            })
            .await
            .map_err(|error| error.to_string())?;
        self.write.write_all(&bytes[sent..]).await.map_err(|error| error.to_string())
    }

    fn hear(&mut self, line: &str) -> Result<(), Gone> {
        if ANSWER_BYTES_MAX < line.len() {
            return Err("it said too much".to_owned().into());
        }
        let answer: Answer = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if let Some(why) = answer.unusable {
            let why = crate::telemetry::printable(&why, 500);
            return Err(Gone { why, for_good: true });
        }
        if answer.ready {
            self.state = Import::Done { opened_gpus: answer.gpus };
        } else if let Some(pid) = answer.ended {
            if let Some(child) = self.children.remove(&pid) {
                // Whoever waited may have seen the end by itself.
                let _gone = child.send((answer.code, answer.signal));
            }
        } else if let Some(flight) = self.flight.take() {
            if answer.forked.is_some() {
                return Ok(self.confirm(flight, answer.pid)?);
            }
            let why = crate::telemetry::printable(&answer.error, 500);
            let _gone = flight.reply.send(Err(why));
        }
        Ok(())
    }

    /// Takes the server's word only for what the kernel says too: it runs as the task's user, who
    /// may do with it as he likes.
    fn confirm(&mut self, flight: Flight, pid: i32) -> Result<(), String> {
        let process = procfs::process(pid).filter(|found| found.parent == self.pid);
        let ours = procfs::owner(pid) == Some(self.uid)
            && procfs::mark(pid, &self.state_dir).as_ref() == Some(&flight.mark);
        let ended = process.as_ref().is_some_and(|process| !process.is_alive());
        match process {
            // Of one that has ended already the kernel shows no environment.
            Some(process) if process.group == pid && (ours || ended) => {
                let (tell, end) = oneshot::channel();
                self.children.insert(pid, tell);
                let forked = Forked { pid, start_ticks: process.start_ticks, end };
                let _gone = flight.reply.send(Ok(forked));
                Ok(())
            }
            Some(_) | None => {
                self.flight = Some(flight);
                Err(format!("it named process {pid}, which is not the task"))
            }
        }
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(command: &[&str], path: Option<&str>) -> Option<Recipe> {
        let command: Vec<_> = command.iter().map(|word| (*word).to_owned()).collect();
        let path = path.map(|path| ("PYTHONPATH".to_owned(), path.to_owned()));
        Recipe::of(&command, &path.into_iter().collect())
    }

    #[test]
    fn only_an_interpreter_with_plain_flags_and_a_script_is_forked() {
        for command in [
            &["python3", "train.py", "--rate", "1"][..],
            &["/opt/env/bin/python3.11", "-u", "-B", "a/b.py"],
            &["python", "x.py"],
        ] {
            assert!(recipe(command, None).is_some(), "{command:?}");
        }
        for command in [
            &["sh", "-c", "python3 train.py"][..],
            &["python3"],
            &["python3", "-m", "train"],
            &["python3", "-c", "import train"],
            &["python3", "-I", "train.py"],
            &["python3", "-X", "dev", "train.py"],
            &["python3", "-"],
            &["python3", "folder"],
            &["pythonic", "train.py"],
            &["ipython", "train.py"],
            &[],
        ] {
            assert!(recipe(command, None).is_none(), "{command:?}");
        }
        assert!(recipe(&["python3", "a.py"], Some("/a:/b")).is_some());
        assert!(recipe(&["python3", "a.py"], Some("/a:b")).is_none());
        assert!(recipe(&["python3", "a.py"], Some("/a:")).is_none());
    }
}
