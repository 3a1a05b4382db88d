//! What tasks print: one log file for each, bounded by copying and truncating.
//!
//! Standard output and error share the file, opened to append before privileges are dropped. A
//! rotation copies its end to `….log.1` and truncates it in place: the writer keeps its
//! descriptor, never waits, and cannot outgrow the disk by more than it writes between two
//! checks. Bytes written between the copy and the cut are lost; that is the price of never
//! standing between a task and its output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use model::Task;

use crate::ledger::Key;

/// Generations of one job whose logs are kept after their end, the newest.
const GENERATIONS_KEPT: usize = 5;
/// All kept logs together, in multiples of one log's bound: 512 MiB with the default of 8 MiB.
const LOGS_KEPT: u64 = 64;
/// Last lines of an output that go into the reason of a failed exit.
const REASON_LINES: usize = 12;
const REASON_BYTES: u64 = 1500;

/// The folder of all logs: `state_dir/logs/<job>-<generation>/<task>.log`. It belongs to the
/// agent, so that a task cannot put a link where root then writes.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    folder: PathBuf,
    bytes_max: u64,
}

impl Logs {
    pub(crate) fn new(state_dir: &Path, bytes_max: u64) -> Self {
        Self { folder: state_dir.join("logs"), bytes_max }
    }

    fn path(&self, key: Key, task: Task) -> PathBuf {
        self.folder.join(key.to_string()).join(format!("{task}.log"))
    }

    /// Opens the log of a task to append, making it where it is not there.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub(crate) fn open(&self, key: Key, task: Task) -> io::Result<File> {
        let path = self.path(key, task);
        let folder = path.parent().unwrap_or(&self.folder);
        fs::DirBuilder::new().recursive(true).create(folder)?;
        OpenOptions::new().append(true).read(true).create(true).mode(0o600).open(path)
    }

    /// True where a log has outgrown its bound.
    pub(crate) fn is_full(&self, key: Key, task: Task) -> bool {
        fs::metadata(self.path(key, task)).is_ok_and(|found| self.bytes_max < found.len())
    }

    /// Moves the end of a log, at most its bound, to the older file and empties it in place.
    ///
    /// # Errors
    /// Where the disk refuses even to shorten the file.
    pub(crate) fn rotate(&self, key: Key, task: Task) -> io::Result<()> {
        let path = self.path(key, task);
        let older = older(&path);
        let mut file = OpenOptions::new().read(true).append(true).open(&path)?;
        if let Err(error) = self.copy_end(&mut file, &older) {
            // A full disk must not let the log grow on: its end is lost, the task goes on.
            tracing::warn!(log = %path.display(), %error, "cannot keep the older output");
            fs::remove_file(&older).ok();
        }
        file.set_len(0)
    }

    fn copy_end(&self, file: &mut File, older: &Path) -> io::Result<()> {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(self.bytes_max)))?;
        let mut copy =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(older)?;
        // Twice the bound at most: a writer that is faster than the copy must not hold it here.
        io::copy(&mut file.take(self.bytes_max.saturating_mul(2)), &mut copy)?;
        Ok(())
    }

    /// The last `bytes_max` bytes of a task's output, the older file included. Without a
    /// generation: of the newest one that has a log of the task.
    ///
    /// # Errors
    /// In words, where there is no such log.
    pub(crate) fn tail(
        &self,
        job: model::JobId,
        generation: Option<model::Generation>,
        task: Task,
        bytes_max: u64,
    ) -> Result<(model::Generation, Vec<u8>), String> {
        let held = self.generations();
        let mut found = held.into_iter().rev().filter(|key| {
            key.job == job && generation.is_none_or(|wanted| wanted == key.generation)
        });
        let key = found
            .find(|key| self.path(*key, task).exists())
            .ok_or_else(|| format!("no output of {task} of {job} is kept on this node"))?;
        let path = self.path(key, task);
        let read = || -> io::Result<Vec<u8>> {
            let newest = end_of(&path, bytes_max)?;
            let room = bytes_max.saturating_sub(length(&newest));
            let mut text = if room == 0 {
                Vec::new()
            } else {
                end_of(&older(&path), room).unwrap_or_default()
            };
            text.extend(newest);
            Ok(text)
        };
        let text = read().map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Ok((key.generation, text))
    }

    /// The last lines of an output, for the reason of an exit; none where it is silent.
    pub(crate) fn last_lines(&self, key: Key, task: Task) -> Option<String> {
        let bytes = end_of(&self.path(key, task), REASON_BYTES).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(REASON_LINES)..];
        let text = crate::telemetry::printable(&last.join("\n"), 1500);
        (!text.is_empty()).then_some(text)
    }

    /// Generations that have logs, in order.
    fn generations(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (job, generation) = name.split_once('-')?;
                Some(Key { job: job.parse().ok()?, generation: generation.parse().ok()? })
            })
            .collect();
        keys.sort();
        keys
    }

    /// Removes logs that are past the bounds, never of a generation that is `held`. Called
    /// where a generation is forgotten and at each start, so that it does not depend on growth.
    pub(crate) fn prune(&self, held: impl Fn(Key) -> bool) {
        let keys = self.generations();
        let later = |key: &Key| keys.iter().filter(|k| k.job == key.job && *key < **k).count();
        let bound = self.bytes_max.saturating_mul(LOGS_KEPT);
        let mut total = 0_u64;
        // By time of the last write, newest first: these are the ones that people ask for.
        let mut dead: Vec<_> = keys.iter().filter(|key| !held(**key)).collect();
        dead.sort_by_key(|key| std::cmp::Reverse(self.written(**key)));
        for key in dead {
            let folder = self.folder.join(key.to_string());
            total = total.saturating_add(size(&folder));
            if (GENERATIONS_KEPT <= later(key) || bound < total)
                && let Err(error) = fs::remove_dir_all(&folder)
            {
                tracing::warn!(folder = %folder.display(), %error, "cannot remove old logs");
            }
        }
    }

    fn written(&self, key: Key) -> Option<std::time::SystemTime> {
        fs::metadata(self.folder.join(key.to_string())).ok()?.modified().ok()
    }
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

fn end_of(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use model::{Generation, JobId};

    use super::*;

    fn key(job: u64, generation: u64) -> Key {
        Key { job: JobId(job), generation: Generation(generation) }
    }

    #[test]
    fn a_log_is_bounded_and_its_writer_keeps_writing_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path(), 4096);
        let (key, task) = (key(1, 1), Task::worker(0));
        let mut writer = logs.open(key, task).unwrap();
        for line in 0..2000 {
            writeln!(writer, "line {line}").unwrap();
            if logs.is_full(key, task) {
                logs.rotate(key, task).unwrap();
            }
        }
        let on_disk = size(&dir.path().join("logs/j1-g1"));
        assert!(on_disk <= 2 * 4096 + 100, "{on_disk} bytes are kept");
        let (generation, text) = logs.tail(JobId(1), None, task, 5000).unwrap();
        assert_eq!(generation, Generation(1));
        let text = String::from_utf8(text).unwrap();
        assert!(text.ends_with("line 1998\nline 1999\n"), "the end is there");
        let lines: Vec<u32> = text.lines().skip(1).map(|line| line[5..].parse().unwrap()).collect();
        assert!(lines.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no line is missing");
    }

    #[test]
    fn a_line_without_an_end_is_bounded_too() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path(), 4096);
        let (key, task) = (key(1, 1), Task::SCHEDULER);
        let mut writer = logs.open(key, task).unwrap();
        writer.write_all(&vec![0xff; 1 << 20]).unwrap();
        logs.rotate(key, task).unwrap();
        assert_eq!(size(&dir.path().join("logs/j1-g1")), 4096);
        assert_eq!(logs.tail(JobId(1), None, task, 100).unwrap().1, vec![0xff; 100]);
    }

    #[test]
    fn fifty_restarts_leave_the_newest_generations() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path(), 4096);
        for generation in 1..=50 {
            logs.open(key(1, generation), Task::SCHEDULER).unwrap();
        }
        logs.prune(|found| found == key(1, 3));
        let mut left: Vec<u64> = logs.generations().iter().map(|key| key.generation.0).collect();
        left.sort_unstable();
        assert_eq!(left, [3, 46, 47, 48, 49, 50]);
        assert!(logs.tail(JobId(1), Some(Generation(7)), Task::SCHEDULER, 10).is_err());
    }

    #[test]
    fn last_lines_are_printable() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path(), 4096);
        let (key, task) = (key(1, 1), Task::worker(0));
        let mut writer = logs.open(key, task).unwrap();
        assert_eq!(logs.last_lines(key, task), None);
        writer.write_all(b"Traceback\n\x1b[31mValueError: \xff x\n\n").unwrap();
        let text = logs.last_lines(key, task).unwrap();
        assert!(text.starts_with("Traceback\n") && text.contains("ValueError"), "{text:?}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
