//! The audit log: every change and certificate call, asked by whom, and what came of it.
//!
//! ```text
//! <state>/audit.jsonl      one JSON object a line, 0600, synced before its reply is given
//! <state>/audit.<n>.jsonl  older ones, the largest number the oldest; the last goes
//! ```
//! A line that cannot be written, as on a full disk, must not stop the master: it goes to the
//! master's own log, is counted for `status`, and leaves a gap in the numbers.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use model::nodes::AuditView;
use tokio::sync::{mpsc, oneshot};

/// A file of this size is put aside; so many that were are kept: 72 MiB in all.
const FILE_BYTES_MAX: u64 = 8 << 20;
const KEPT: u32 = 8;
/// Lines that wait for the disk; beyond that whoever asks waits too.
const WAITING_MAX: usize = 1_024;
/// Lines that are synced together.
const GROUP_MAX: usize = 256;
/// Lines and bytes of one answer: a frame holds 4 MiB.
const LINES_MAX: usize = 10_000;
const ANSWER_BYTES_MAX: usize = 2 << 20;
/// Longest reason and outcome that are kept.
const TEXT_CHARS_MAX: usize = 500;

/// What operators should know of the log.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<(u64, Option<String>)>);

impl Health {
    fn lost(&self, lines: usize, words: String) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += lines as u64;
        state.1 = Some(words);
    }

    pub(crate) fn alert(&self) -> Option<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let words = state.1.as_ref()?;
        Some(format!(
            "{} lines of the audit log could not be written since the start ({words}): they are \
             in the master's own log; free space in the state folder",
            state.0
        ))
    }
}

/// A line that waits for the disk.
type Waiting = (AuditView, oneshot::Sender<()>);

/// The way to the thread that owns the file. The thread ends with the last handle.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    folder: PathBuf,
    lines: mpsc::Sender<Waiting>,
    health: Arc<Health>,
}

impl Audit {
    /// Opens the log in the state folder, where it goes on with the number after the last.
    ///
    /// # Errors
    /// Where the thread cannot be started. A log that cannot be opened is tried anew with each
    /// line, as it may be for want of space.
    pub(crate) fn start(folder: &Path) -> io::Result<Self> {
        Self::with_size(folder, FILE_BYTES_MAX)
    }

    fn with_size(folder: &Path, file_bytes_max: u64) -> io::Result<Self> {
        let (lines, waiting) = mpsc::channel(WAITING_MAX);
        let health = Arc::new(Health::default());
        let newest = read(folder, 0, 1).pop();
        let writer = Writer {
            folder: folder.to_owned(),
            file: None,
            next: newest.map_or(1, |line| line.number + 1),
            file_bytes_max,
            health: Arc::clone(&health),
        };
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(waiting))?;
        Ok(Self { folder: folder.to_owned(), lines, health })
    }

    pub(crate) fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Appends a line; its number is given here. On return it is on stable storage, or counted
    /// as lost.
    pub(crate) async fn note(&self, mut line: AuditView) {
        line.reason = line.reason.map(|reason| reason.chars().take(TEXT_CHARS_MAX).collect());
        line.outcome = line.outcome.chars().take(TEXT_CHARS_MAX).collect();
        let (done, told) = oneshot::channel();
        if self.lines.send((line, done)).await.is_ok() {
            // A thread that ended has said so in the log.
            let _ = told.await;
        }
    }

    /// The newest `limit` lines with a number after `after`, in order.
    pub(crate) async fn read(&self, after: u64, limit: u32) -> Vec<AuditView> {
        let folder = self.folder.clone();
        let limit = usize::try_from(limit).unwrap_or(LINES_MAX).min(LINES_MAX);
        let work = tokio::task::spawn_blocking(move || read(&folder, after, limit));
        work.await.unwrap_or_default()
    }
}

fn current(folder: &Path) -> PathBuf {
    folder.join("audit.jsonl")
}

fn older(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("audit.{number}.jsonl"))
}

struct Writer {
    folder: PathBuf,
    /// The open log and its length up to the last whole line.
    file: Option<(File, u64)>,
    next: u64,
    file_bytes_max: u64,
    health: Arc<Health>,
}

impl Writer {
    fn run(mut self, mut waiting: mpsc::Receiver<Waiting>) {
        while let Some(first) = waiting.blocking_recv() {
            let mut group = vec![first];
            while group.len() < GROUP_MAX
                && let Ok(more) = waiting.try_recv()
            {
                group.push(more);
            }
            self.write(&mut group);
            for (_, done) in group {
                // Whoever asked may be gone.
                let _ = done.send(());
            }
        }
    }

    fn write(&mut self, group: &mut [Waiting]) {
        let mut bytes = Vec::new();
        for (line, _) in &mut *group {
            line.number = self.next;
            self.next += 1;
            serde_json::to_writer(&mut bytes, line).expect("plain data is always JSON");
            bytes.push(b'\n');
        }
        if let Err(error) = self.append(&bytes) {
            self.health.lost(group.len(), error.to_string());
            for (line, _) in group {
                let AuditView { number, user, role, address, request, reason, outcome, .. } = line;
                tracing::warn!(
                    %error, number, user, role, address, request, reason, outcome,
                    "a line of the audit log could not be written"
                );
            }
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.as_ref().is_some_and(|(_, length)| *length >= self.file_bytes_max) {
            self.rotate()?;
        }
        let (mut file, length) = match self.file.take() {
            Some(open) => open,
            None => open(&self.folder)?,
        };
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        if let Err(error) = written {
            // What is left of a line where this fails too is skipped by its readers.
            let _ = file.set_len(length);
            return Err(error);
        }
        self.file = Some((file, length + bytes.len() as u64));
        Ok(())
    }

    /// Puts the full file aside; the oldest goes.
    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..KEPT).rev() {
            let from = older(&self.folder, number);
            if from.exists() {
                fs::rename(from, older(&self.folder, number + 1))?;
            }
        }
        fs::rename(current(&self.folder), older(&self.folder, 1))?;
        self.file = None;
        File::open(&self.folder)?.sync_all()
    }
}

/// The log with its end at the end of a line.
fn open(folder: &Path) -> io::Result<(File, u64)> {
    let path = current(folder);
    let fresh = !path.exists();
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
    let mut length = file.metadata()?.len();
    if length > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            // A kill within a write: the torn line was never answered, and stays for a look.
            file.write_all(b"\n")?;
            length += 1;
        }
    }
    if fresh {
        File::open(folder)?.sync_all()?;
    }
    Ok((file, length))
}

/// A file of ours, which is never much over [`FILE_BYTES_MAX`].
fn read_some(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(2 * FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// The newest lines after a number, from as few files as hold them.
fn read(folder: &Path, after: u64, limit: usize) -> Vec<AuditView> {
    let mut lines = BTreeMap::new();
    let mut bytes = 0;
    let files = std::iter::once(current(folder)).chain((1..=KEPT).map(|n| older(folder, n)));
    for path in files {
        // One that is put aside at this moment is met under its new name, or a second time.
        let Ok(text) = read_some(&path) else { continue };
        for line in text.split(|byte| *byte == b'\n').rev() {
            let Ok(view) = serde_json::from_slice::<AuditView>(line) else { continue };
            bytes += line.len();
            if view.number <= after || lines.len() >= limit || bytes > ANSWER_BYTES_MAX {
                return lines.into_values().collect();
            }
            lines.insert(view.number, view);
        }
    }
    lines.into_values().collect()
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
