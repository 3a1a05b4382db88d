//! The log of our own beside the store: what a damaged store is rebuilt from.
//!
//! Every batch is appended here and synced before the store sees it. When the log has grown
//! enough, the store's whole content is written as a base in the snapshot format and a new log
//! begins, so that both stay bounded however long the master lives.
//!
//! ```text
//! base-<n>.snapshot      content after batch n
//! <n>.log                magic "OPTJRNL1", then the batches from n on:
//!                        u32 length, u32 CRC-32 of all that follows, u64 number,
//!                        for each change u32 key length, u32 value length or 0xffffffff for
//!                        "deleted", key, value
//! ```
//! Numbers are little-endian and batches are numbered without a gap. A torn end, as a power cut
//! leaves it, is cut off at the next start and kept aside: its batch was never acknowledged.
//!
//! Behind the end of the log the file system sets some room aside, beyond the file's length: the
//! batches that come find it also where the disk has become full meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use storage::Storage;
use storage::snapshot::{self, Header};

use crate::store::{Content, Op, StoreError};

const MAGIC: [u8; 8] = *b"OPTJRNL1";
const HEAD_BYTES: usize = 16;
const DELETED: u32 = u32::MAX;
/// Less than this is not worth being set aside.
const ASIDE_BYTES_MIN: u64 = 16 << 10;
/// More than anyone sets aside: file systems reserve room behind growing files, too.
const TAKEN_BACK_MAX: u64 = 32 << 20;
/// File systems give room by pages.
const PAGE_BYTES: u64 = 4096;
/// Longest batch: a group of many persists, each of some records.
const BATCH_BYTES_MAX: u32 = 512 << 20;
/// A log shorter than this is not worth a new base, one longer makes starts slow.
const LOG_BYTES: std::ops::RangeInclusive<u64> = (16 << 20)..=(128 << 20);

type Result<T> = std::result::Result<T, StoreError>;

#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    log: File,
    /// Length of the log up to the last whole batch.
    log_bytes: u64,
    last: u64,
    base_bytes: u64,
    /// Set where a failed append could not be undone: then nothing may be appended after it.
    torn: bool,
    /// Bytes behind the end of the log that are set aside for it.
    aside_bytes: u64,
    /// Set where an end was cut off that is more than a batch which did not come whole: what was
    /// acknowledged may be gone with it.
    lost: bool,
}

/// What a journal folder holds.
#[derive(Debug, Default)]
struct Found {
    /// Bases and logs by their numbers, oldest first.
    bases: Vec<u64>,
    logs: Vec<u64>,
}

fn base_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(base_name(number))
}

fn base_name(number: u64) -> String {
    format!("base-{number:020}.snapshot")
}

fn log_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:020}.log"))
}

fn look(folder: &Path) -> Result<Found> {
    let mut found = Found::default();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let base = name.strip_prefix("base-").and_then(|rest| rest.strip_suffix(".snapshot"));
        if let Some(number) = base.and_then(|digits| digits.parse().ok()) {
            found.bases.push(number);
        } else if let Some(number) = name.strip_suffix(".log").and_then(|d| d.parse().ok()) {
            found.logs.push(number);
        }
    }
    found.bases.sort_unstable();
    found.logs.sort_unstable();
    Ok(found)
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.get(..4)?.try_into().ok().map(u32::from_le_bytes)
}

fn encode(sequence: u64, ops: &[Op]) -> Result<Vec<u8>> {
    let too_long = || StoreError::Damaged("a batch is too long to be kept".to_owned());
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| too_long());
    let mut entry = vec![0; 8];
    entry.extend(sequence.to_le_bytes());
    for op in ops {
        entry.extend(length(&op.key)?.to_le_bytes());
        let value_length = op.value.as_deref().map_or(Ok(DELETED), length)?;
        entry.extend(value_length.to_le_bytes());
        entry.extend(&op.key);
        entry.extend(op.value.as_deref().unwrap_or_default());
    }
    let body = length(&entry[HEAD_BYTES..])?;
    if BATCH_BYTES_MAX < body {
        return Err(too_long());
    }
    entry[..4].copy_from_slice(&body.to_le_bytes());
    let crc32 = crc32fast::hash(&entry[8..]);
    entry[4..8].copy_from_slice(&crc32.to_le_bytes());
    Ok(entry)
}

/// Length of a batch as it stands in the log.
pub(crate) fn length(ops: &[Op]) -> u64 {
    let one = |op: &Op| 8 + op.key.len() + op.value.as_ref().map_or(0, Vec::len);
    (HEAD_BYTES + ops.iter().map(one).sum::<usize>()) as u64
}

/// One whole batch from the start of `bytes` and its length there, or nothing where it is torn.
fn decode(bytes: &[u8]) -> Option<(u64, Vec<Op>, usize)> {
    let body = usize::try_from(number(bytes)?).ok()?;
    let entry = bytes.get(..HEAD_BYTES + body)?;
    if number(&entry[4..])? != crc32fast::hash(&entry[8..]) {
        return None;
    }
    let sequence = u64::from_le_bytes(entry[8..16].try_into().ok()?);
    let mut rest = &entry[HEAD_BYTES..];
    let mut ops = Vec::new();
    while !rest.is_empty() {
        let key_length = usize::try_from(number(rest)?).ok()?;
        let value_length = number(rest.get(4..)?)?;
        let (key, tail) = rest.get(8..)?.split_at_checked(key_length)?;
        let kept = if value_length == DELETED { 0 } else { usize::try_from(value_length).ok()? };
        let (value, tail) = tail.split_at_checked(kept)?;
        let value = (value_length != DELETED).then(|| value.to_vec());
        ops.push(Op { key: key.to_vec(), value });
        rest = tail;
    }
    Some((sequence, ops, entry.len()))
}

/// Gives every whole batch of a log to `each`.
///
/// # Returns
/// Bytes up to the end of the last whole batch, and of the file.
fn read_log(path: &Path, mut each: impl FnMut(u64, Vec<Op>) -> Result<()>) -> Result<(u64, u64)> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let total = bytes.len();
    if bytes.get(..MAGIC.len()) != Some(MAGIC.as_slice()) {
        return Ok((0, total as u64));
    }
    let mut at = MAGIC.len();
    while let Some((sequence, ops, length)) = decode(&bytes[at..]) {
        each(sequence, ops)?;
        at += length;
    }
    Ok((at as u64, total as u64))
}

fn start_log(folder: &Path, number: u64) -> io::Result<File> {
    // A log of this number can only be one whose header was torn: it was kept aside already.
    let path = log_path(folder, number);
    let mut log =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    log.write_all(&MAGIC)?;
    log.sync_all()?;
    File::open(folder)?.sync_all()?;
    Ok(log)
}

impl Journal {
    /// Opens the journal in a folder, or begins one there. A torn end is cut off and kept in a
    /// file beside it.
    ///
    /// # Returns
    /// The journal, and what was repaired, in words.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Vec<String>)> {
        fs::create_dir_all(folder)?;
        let found = look(folder)?;
        let mut notes = Vec::new();
        let mut last = found.bases.last().copied().unwrap_or(0);
        let mut newest = None;
        let mut lost = false;
        for (position, first) in found.logs.iter().enumerate() {
            let path = log_path(folder, *first);
            let (whole, total) = read_log(&path, |sequence, _| {
                last = last.max(sequence);
                Ok(())
            })?;
            if whole < total && position + 1 == found.logs.len() {
                let (unfinished, note) = cut(&path, whole, total)?;
                lost |= !unfinished;
                notes.push(note);
            }
            newest = Some((path, whole));
        }
        let (log, log_bytes) = match newest {
            Some((path, whole)) if whole > 0 => {
                let mut log = OpenOptions::new().read(true).write(true).open(path)?;
                log.seek(SeekFrom::Start(whole))?;
                (log, whole)
            }
            _ => (start_log(folder, last + 1)?, MAGIC.len() as u64),
        };
        let base = found.bases.last().map(|number| base_path(folder, *number));
        let base_bytes = base.map_or(Ok(0), |path| fs::metadata(path).map(|found| found.len()))?;
        let folder = folder.to_owned();
        let (torn, aside_bytes) = (false, 0);
        let mut journal =
            Self { folder, log, log_bytes, last, base_bytes, torn, aside_bytes, lost };
        journal.take_back();
        Ok((journal, notes))
    }

    /// Finds what an earlier process had set aside: the file system holds it still, and on a full
    /// disk there is nothing else.
    fn take_back(&mut self) {
        let Ok(found) = self.log.metadata() else { return };
        let held = found.blocks().saturating_mul(512);
        let bytes = held.saturating_sub(self.log_bytes.next_multiple_of(PAGE_BYTES));
        if ASIDE_BYTES_MIN <= bytes {
            self.set_aside(bytes.min(TAKEN_BACK_MAX));
        }
    }

    /// Number of the last batch.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Appends the batch after [`Self::last`] and syncs it. After an error the batch is not
    /// there.
    pub(crate) fn append(&mut self, ops: &[Op]) -> Result<u64> {
        if self.torn {
            self.undo()?;
        }
        let sequence = self.last + 1;
        let entry = encode(sequence, ops)?;
        let written = self.log.write_all(&entry).and_then(|()| self.log.sync_data());
        if let Err(error) = written {
            self.torn = true;
            // Where this fails too, the next append tries again before it writes anything.
            let _ = self.undo();
            return Err(error.into());
        }
        self.log_bytes += entry.len() as u64;
        self.aside_bytes = self.aside_bytes.saturating_sub(entry.len() as u64);
        self.last = sequence;
        Ok(sequence)
    }

    /// True where batches that were acknowledged may have been cut off with a damaged end.
    pub(crate) const fn is_lost(&self) -> bool {
        self.lost
    }

    /// Room that the next batches are sure to find.
    pub(crate) const fn aside_bytes(&self) -> u64 {
        self.aside_bytes
    }

    /// Sets room aside for the next batches: as much as is wanted, or nearly all that the disk
    /// has. None on a file system that cannot.
    pub(crate) fn set_aside(&mut self, bytes: u64) {
        let (mut wanted, mut too_much) = (bytes, bytes);
        while self.aside_bytes < wanted {
            let (Ok(from), Ok(length)) = (self.log_bytes.try_into(), wanted.try_into()) else {
                return;
            };
            match fallocate(&self.log, FallocateFlags::FALLOC_FL_KEEP_SIZE, from, length) {
                Ok(()) => self.aside_bytes = wanted,
                Err(Errno::EINTR) => continue,
                Err(Errno::ENOSPC | Errno::EDQUOT) => too_much = wanted,
                Err(_) => return,
            }
            let left = too_much - self.aside_bytes;
            if left < ASIDE_BYTES_MIN {
                return;
            }
            wanted = self.aside_bytes + left / 2;
        }
    }

    fn undo(&mut self) -> Result<()> {
        // With the length goes what lies behind it.
        self.aside_bytes = 0;
        self.log.set_len(self.log_bytes)?;
        self.log.seek(SeekFrom::Start(self.log_bytes))?;
        self.torn = false;
        Ok(())
    }

    /// Whether the log has grown enough beside its base for a new one: both stay within a few
    /// times what the store holds.
    pub(crate) fn wants_base(&self) -> bool {
        self.log_bytes > (2 * self.base_bytes).clamp(*LOG_BYTES.start(), *LOG_BYTES.end())
    }

    /// Writes the content after batch `sequence` as the new base, begins a new log, and removes
    /// what is older.
    pub(crate) fn rebase(
        &mut self,
        sequence: u64,
        content: &Content,
        header: &Header,
    ) -> Result<()> {
        let bytes = export(content, header)?;
        let base = base_path(&self.folder, sequence);
        if !base.exists() {
            let storage = storage::FileStorage::new(&self.folder);
            storage.publish(&base_name(sequence), &bytes).map_err(from_storage)?;
        }
        let older = look(&self.folder)?;
        self.log = start_log(&self.folder, sequence + 1)?;
        self.log_bytes = MAGIC.len() as u64;
        self.last = sequence;
        self.base_bytes = bytes.len() as u64;
        self.torn = false;
        self.aside_bytes = 0;
        // Only now: until the new log is on disk the old pair is what a rebuild would use.
        for number in older.bases.into_iter().filter(|number| *number != sequence) {
            fs::remove_file(base_path(&self.folder, number))?;
        }
        for number in older.logs.into_iter().filter(|number| *number != sequence + 1) {
            fs::remove_file(log_path(&self.folder, number))?;
        }
        Ok(())
    }

    /// Gives every batch after `after` to `each`, in order.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where one of them is missing.
    pub(crate) fn replay(
        &self,
        after: u64,
        each: &mut dyn FnMut(u64, Vec<Op>) -> Result<()>,
    ) -> Result<()> {
        let mut next = after + 1;
        for first in look(&self.folder)?.logs {
            read_log(&log_path(&self.folder, first), |sequence, ops| {
                if sequence < next {
                    return Ok(());
                }
                if next < sequence {
                    let words = format!("batches {next} to {} are missing", sequence - 1);
                    return Err(StoreError::Damaged(words));
                }
                next += 1;
                each(sequence, ops)
            })?;
        }
        if next <= self.last {
            let words = format!("batches {next} to {} are missing", self.last);
            return Err(StoreError::Damaged(words));
        }
        Ok(())
    }

    /// What a store that has all batches holds, from the base and the log alone.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where the base is not whole or batches are missing.
    pub(crate) fn content(&self) -> Result<Content> {
        let mut content = Content::new();
        let base = look(&self.folder)?.bases.last().copied();
        if let Some(number) = base {
            snapshot::read(File::open(base_path(&self.folder, number))?, |key, value| {
                content.insert(key.to_vec(), value.to_vec());
                Ok(())
            })
            .map_err(|error| StoreError::Damaged(storage::chain(&error)))?;
        }
        self.replay(base.unwrap_or(0), &mut |_, ops| {
            for op in ops {
                match op.value {
                    Some(value) => content.insert(op.key, value),
                    None => content.remove(&op.key),
                };
            }
            Ok(())
        })?;
        Ok(content)
    }
}

/// Keeps the torn end of a log aside and cuts it off.
///
/// # Returns
/// Whether it is the beginning of one batch, as a kill or a full disk leaves it, and a note.
fn cut(path: &Path, whole: u64, total: u64) -> Result<(bool, String)> {
    let mut log = OpenOptions::new().read(true).write(true).open(path)?;
    let mut tail = Vec::new();
    log.seek(SeekFrom::Start(whole))?;
    log.read_to_end(&mut tail)?;
    let wanted = number(&tail).and_then(|body| usize::try_from(body).ok());
    let unfinished = wanted.is_none_or(|body| tail.len().saturating_sub(HEAD_BYTES) < body);
    let aside = path.with_extension(format!("cut-at-{whole}"));
    // On a full disk the copy cannot be kept; that must not keep the master from starting.
    let kept = match fs::write(&aside, &tail) {
        Ok(()) => format!("kept in {}", aside.display()),
        Err(error) => format!("could not be kept aside: {error}"),
    };
    log.set_len(whole)?;
    log.sync_all()?;
    let (bytes, name) = (total - whole, path.display());
    let note = format!("cut {bytes} bytes of a torn batch off {name} at byte {whole}, {kept}");
    Ok((unfinished, note))
}

/// Records in the snapshot format.
pub(crate) fn export(content: &Content, header: &Header) -> Result<Vec<u8>> {
    let mut writer = snapshot::Writer::new(header);
    for (key, value) in content {
        let written = writer.record(key, value);
        written.map_err(|error| StoreError::Damaged(error.to_string()))?;
    }
    Ok(writer.finish())
}

fn from_storage(error: storage::Error) -> StoreError {
    if let storage::Error::NoSpace { source, .. } = error {
        return StoreError::Full(source);
    }
    StoreError::Io(io::Error::other(storage::chain(&error)))
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
