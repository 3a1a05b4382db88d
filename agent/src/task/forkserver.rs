//! A job's fork server: a process that has imported what its tasks import, and forks them.
//!
//! `optimus/forkserver.py` is its other end. It is no task: it trains nothing, holds no port and
//! no GPU, and ends when this end of its line is closed. Whatever goes wrong with it, a task is
//! started from nothing instead, once it is sure that it was not forked.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice, PipeWriter, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::cgroup::Group;
use crate::config::TaskUser;
use crate::procfs::{self, Mark};
use crate::task::launcher::{self, Failure, Seat};
use crate::task::process::{self, End, Prepared, Refused};
use crate::task::recipe::script_of;

pub(crate) use crate::task::recipe::Recipe;

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

/// One task for a fork server.
#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
    output: OwnedFd,
    mark: Mark,
    group: Option<Group>,
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
        let (mark, group) = (task.mark.clone(), task.group.clone());
        let (gpus, cancelled) = (task.gpus, Arc::clone(cancelled));
        let request = Request { bytes, output, mark, group, gpus, cancelled, reply };
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
    /// Its own control group, made already.
    pub(crate) group: Option<Group>,
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
    let (user, group) = (start.user.clone(), start.group);
    let directory = start.folder.display().to_string();
    let words = start.recipe.words.clone();
    tokio::spawn(async move {
        let seat = Seat { group: group.as_ref(), user: &user, directory: &directory };
        let gone = keeper.keep(child, |failure| process::describe(failure, seat, &words)).await;
        if let Some(group) = &group {
            // A process that it half forked; tasks are in groups of their own.
            group.kill();
            let _busy = group.remove();
        }
        // The loop has ended where nobody listens any more.
        let _ = tell.send(gone);
    });
    Ok((Handle { requests }, ended))
}

/// Its standard output says how its launch went.
fn spawn(start: &Start<'_>) -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let log = File::create(&start.log)?;
    let mut words = start.recipe.words.clone();
    let when = if start.low { "low" } else { "now" };
    words.extend(["-m", "optimus.forkserver", when].map(str::to_owned));
    // Room for the arguments of its tasks in what the kernel shows of them.
    words.push(" ".repeat(2048));
    let directory = start.folder.display().to_string();
    let seat = Seat { group: start.group.as_ref(), user: start.user, directory: &directory };
    let mut command = Command::from(launcher::command(seat, &words, &start.environment));
    command
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(false);
    let child = command.spawn()?;
    Ok((UnixStream::from_std(ours)?, child))
}

/// How the launch of a server went that has ended.
async fn launched(mut child: Child) -> Result<(), Failure> {
    let mut words = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        // It is closed already; a bound all the same.
        if let Err(error) = pipe.take(ANSWER_BYTES_MAX as u64).read_to_end(&mut words).await {
            tracing::debug!(%error, "cannot hear a launcher");
        }
    }
    launcher::heard(&words[..])
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
    group: Option<Group>,
    /// Lets the forked process begin; it ends where this is dropped first.
    opener: PipeWriter,
    reply: oneshot::Sender<Result<Forked, String>>,
    until: Instant,
}

impl Flight {
    /// Puts the forked process into its task's group, and only then lets it begin.
    fn begin(&self, pid: i32, ended: bool) -> Result<(), String> {
        match &self.group {
            Some(group) if !ended => group.take(pid).map_err(|error| {
                format!("cannot move it to {}: {error}", group.path().display())
            })?,
            Some(_) | None => {}
        }
        // One that has ended meanwhile shows in its end.
        let _ended = (&self.opener).write_all(b".");
        Ok(())
    }
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
    async fn keep(mut self, mut child: Child, describe: impl FnOnce(&Failure) -> Refused) -> Gone {
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
        let mut gone = ended.err().unwrap_or_default();
        if !gone.why.is_empty()
            && let Err(failure) = launched(child).await
        {
            gone.why = describe(&failure).words;
        }
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
        let Request { bytes, output, mark, group, gpus, reply, .. } = request;
        if gpus && opened_gpus {
            let _gone = reply.send(Err("its import has opened a GPU".to_owned()));
            return Ok(());
        }
        let (gate, opener) = io::pipe().map_err(|error| error.to_string())?;
        let until = Instant::now() + FORK_LIMIT;
        self.flight = Some(Flight { mark, group, opener, reply, until });
        let line = self.write.as_ref();
        let sent = line
            .async_io(Interest::WRITABLE, || {
                let rights = [output.as_raw_fd(), gate.as_raw_fd()];
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
                let begun = flight.begin(pid, ended);
                let forked = begun.map(|()| {
                    let (tell, end) = oneshot::channel();
                    self.children.insert(pid, tell);
                    Forked { pid, start_ticks: process.start_ticks, end }
                });
                let _gone = flight.reply.send(forked);
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
