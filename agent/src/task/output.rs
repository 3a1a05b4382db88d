//! What tasks print: one log file for each, whose beginning is given back to the disk.
//!
//! Standard output and error share the file, opened to append before privileges are dropped: the
//! agent never stands between a task and its output, so no task waits for it, whatever it prints.
//! The length of a log is all that was ever printed. Where it outgrows its bound, its beginning
//! is made a hole, which has no place on the disk: no byte of the rest moves or is lost, and one
//! who follows sees each once. Between two looks it can outgrow the bound by what is printed
//! meanwhile.
//!
//! Room for what comes next is taken beforehand. A disk that fills up later refuses new tasks,
//! and does not end a running one for a line that it prints.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::Task;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};

use crate::ledger::Key;

/// Generations of one job whose logs are kept after their end, the newest.
const GENERATIONS_KEPT: usize = 5;
/// All kept logs together, in multiples of one log's bound: 512 MiB with the default of 8 MiB.
const LOGS_KEPT: u64 = 64;
/// Last lines of an output that go into the reason of a failed exit.
const REASON_LINES: usize = 12;
const REASON_BYTES: u64 = 1500;

/// Holes begin and end at whole blocks of any usual file system.
const BLOCK: u64 = 4096;
/// A log of this length begins anew: file systems have bounds too, at 16 TiB the first of them.
const LENGTH_MAX: u64 = 1 << 40;

/// The folder of all logs: `state_dir/logs/<job>-<generation>/<task>.log`. It belongs to the
/// agent, so that a task cannot put a link where root then writes.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    folder: PathBuf,
    bytes_max: u64,
}

/// What is known of a log from one look to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// All that was printed until then, in bytes; none before the first look.
    pub(crate) printed: Option<u64>,
    /// Until where room is taken.
    taken: u64,
    /// Bytes that came and went between two looks: nobody can have read them.
    pub(crate) lost: u64,
    /// No room for more could be taken.
    pub(crate) full: bool,
    /// Its beginning was given back at this look.
    pub(crate) cut: bool,
}

impl Logs {
    pub(crate) fn new(state_dir: &Path, bytes_max: u64) -> Self {
        Self { folder: state_dir.join("logs"), bytes_max }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    fn path(&self, key: Key, task: Task) -> PathBuf {
        self.folder.join(key.to_string()).join(format!("{task}.log"))
    }

    /// Room taken before it is needed.
    pub(crate) fn ahead(&self) -> u64 {
        (self.bytes_max / 2).max(BLOCK)
    }

    /// Opens the log of a task to append, making it where it is not there, with room for a while.
    ///
    /// # Errors
    /// Where the disk refuses, as where it is full.
    pub(crate) fn open(&self, key: Key, task: Task) -> io::Result<File> {
        let path = self.path(key, task);
        let folder = path.parent().unwrap_or(&self.folder);
        fs::DirBuilder::new().recursive(true).create(folder)?;
        let file =
            OpenOptions::new().append(true).read(true).create(true).mode(0o600).open(&path)?;
        let length = file.metadata()?.len();
        if let Err(error) = take_room(&file, length, self.ahead()) {
            if length == 0 {
                // What was taken of it is needed for others. Where that fails it is small.
                let _stays = fs::remove_file(&path);
            }
            return Err(error);
        }
        Ok(file)
    }

    /// Looks at a log: gives its beginning back where it has outgrown its bound, and takes room
    /// for what comes.
    ///
    /// # Errors
    /// Where the log is gone, or the disk refuses to shorten it.
    pub(crate) fn look(&self, key: Key, task: Task, before: Seen) -> io::Result<Seen> {
        let path = self.path(key, task);
        let length = fs::metadata(&path)?.len();
        if before.printed == Some(length) && !before.full {
            return Ok(Seen { cut: false, ..before });
        }
        let file = OpenOptions::new().read(true).append(true).open(&path)?;
        let (first, length) = kept(&file)?;
        let mut seen = Seen { printed: Some(length), cut: false, ..before };
        let cut = cut_to_keep(length, self.bytes_max);
        let outgrown = self.bytes_max.saturating_mul(3) / 2 < length - first && first < cut;
        if outgrown || LENGTH_MAX < length {
            let cut = if LENGTH_MAX < length { begin_anew(&file)? } else { give_back(&file, cut)? };
            seen.cut = true;
            seen.lost += cut.saturating_sub(before.printed.unwrap_or(cut));
            seen.printed = Some(file.metadata()?.len());
        }
        let printed = seen.printed.unwrap_or(0);
        if seen.cut || seen.full || seen.taken < printed.saturating_add(self.ahead() / 2) {
            let mut taken = take_room(&file, printed, self.ahead());
            let cut = cut_to_keep(printed, self.bytes_max / 2);
            if taken.is_err() && kept(&file)?.0 < cut {
                // Rather less of what was than nothing of what comes.
                give_back(&file, cut)?;
                taken = take_room(&file, printed, self.ahead());
            }
            seen.full = taken.is_err();
            seen.taken = if seen.full { 0 } else { printed.saturating_add(self.ahead()) };
        }
        Ok(seen)
    }

    /// Gives back the room that was taken for a task that prints no more.
    pub(crate) fn close(&self, key: Key, task: Task) {
        let Ok(file) = OpenOptions::new().append(true).open(self.path(key, task)) else { return };
        // Cutting it where it ends anyhow is how room beyond its end is given back.
        let done = file.metadata().and_then(|found| file.set_len(found.len()));
        if let Err(error) = done {
            tracing::debug!(%key, %task, %error, "the room of a log stays taken");
        }
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
        let text = end_of(&path, bytes_max)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
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

/// Bytes that a folder's files have on the disk.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok());
    files.map(|found| found.blocks().saturating_mul(512)).sum()
}

/// The first byte of a log that is still there, and its end.
fn kept(file: &File) -> io::Result<(u64, u64)> {
    let length = file.metadata()?.len();
    match lseek(file, 0, Whence::SeekData) {
        Ok(first) => Ok((u64::try_from(first).unwrap_or(0).min(length), length)),
        Err(Errno::ENXIO) => Ok((length, length)),
        // A file system without holes has all of it.
        Err(_) => Ok((0, length)),
    }
}

/// Takes room on the disk from an offset on; where a file system cannot, nothing is taken.
fn take_room(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    let offset = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset(from), offset(bytes)) {
        Err(full @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EIO | Errno::EROFS)) => Err(full.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// How much of a log is to go so that so much of its end stays, in whole blocks.
fn cut_to_keep(length: u64, bytes: u64) -> u64 {
    length.saturating_sub(bytes) / BLOCK * BLOCK
}

/// Makes a hole of a log's first bytes, and tells how many are gone.
fn give_back(file: &File, bytes: u64) -> io::Result<u64> {
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    match fallocate(file, hole, 0, i64::try_from(bytes).unwrap_or(i64::MAX)) {
        Ok(()) => Ok(bytes),
        // A file system without holes: all of it goes, rather than that it grows on.
        Err(_) => begin_anew(file),
    }
}

/// Empties a log in place, and tells how many bytes are gone.
fn begin_anew(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    file.set_len(0)?;
    Ok(length)
}

fn end_of(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let (first, length) = kept(&file)?;
    let start = length.saturating_sub(bytes_max).max(first);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(length - start).read_to_end(&mut bytes)?;
    if 0 < first && start == first {
        // The rest of a block that is larger than usual, and is a hole but for that.
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        bytes.drain(..zeros);
    }
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

    /// What a log has on the disk, with the room that is taken for more.
    fn on_disk(dir: &tempfile::TempDir) -> u64 {
        size(&dir.path().join("logs/j1-g1"))
    }

    #[test]
    fn a_log_is_bounded_and_no_byte_of_what_is_kept_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path(), 16_384);
        let (key, task) = (key(1, 1), Task::worker(0));
        let mut writer = logs.open(key, task).unwrap();
        let (mut seen, mut cuts, mut printed) = (Seen::default(), 0, 0_u64);
        for line in 0..20_000 {
            let line = format!("line {line}\n");
            writer.write_all(line.as_bytes()).unwrap();
            printed += u64::try_from(line.len()).unwrap();
            if printed % 50 == 0 {
                seen = logs.look(key, task, seen).unwrap();
                cuts += u32::from(seen.cut);
                assert_eq!((seen.printed, seen.lost, seen.full), (Some(printed), 0, false));
                assert!(on_disk(&dir) <= 3 * 16_384, "{} bytes are kept", on_disk(&dir));
            }
        }
        assert!(3 <= cuts, "{cuts}");
        let (generation, text) = logs.tail(JobId(1), None, task, 1 << 20).unwrap();
        assert_eq!(generation, Generation(1));
        assert!(16_384 <= text.len(), "{}", text.len());
        let text = String::from_utf8(text).unwrap();
        assert!(text.ends_with("line 19998\nline 19999\n"), "the end is there");
        let lines: Vec<u32> = text.lines().skip(1).map(|line| line[5..].parse().unwrap()).collect();
        assert!(lines.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no line is missing");
        logs.close(key, task);
        assert!(on_disk(&dir) <= 2 * 16_384, "{} bytes are kept", on_disk(&dir));
    }

    #[test]
    fn what_came_and_went_between_two_looks_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path(), 4096);
        let (key, task) = (key(1, 1), Task::SCHEDULER);
        let mut writer = logs.open(key, task).unwrap();
        let first = logs.look(key, task, Seen::default()).unwrap();
        // One line without an end, and no text.
        writer.write_all(&vec![0xff; 1 << 20]).unwrap();
        let seen = logs.look(key, task, first).unwrap();
        assert_eq!((seen.printed, seen.lost), (Some(1 << 20), (1 << 20) - 4096));
        assert!(on_disk(&dir) <= 2 * 4096, "{}", on_disk(&dir));
        assert_eq!(logs.tail(JobId(1), None, task, 1 << 20).unwrap().1, vec![0xff; 4096]);
        assert_eq!(logs.look(key, task, seen).unwrap(), Seen { cut: false, ..seen });
        // An agent that comes back has not seen what there was before, and calls nothing lost.
        writer.write_all(&vec![0xfe; 1 << 20]).unwrap();
        assert_eq!(logs.look(key, task, Seen::default()).unwrap().lost, 0);
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
