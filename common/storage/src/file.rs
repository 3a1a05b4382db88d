//! `file://`: a folder of this machine or a shared mount.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, renameat2};

use crate::path as paths;
use crate::{Entry, EntryKind, Error, READ_BYTES_MAX, Result, Storage, Sum, UploadOptions};

/// Piece in which files are summed: large enough for the disk, small beside a daemon.
const PIECE_BYTES: usize = 256 * 1024;

/// Start of the name of a file that is not published yet.
pub(crate) const TEMPORARY: &str = ".unpublished-";

/// Distinguishes temporary files of one process; the process id distinguishes processes.
static TEMPORARIES: AtomicU64 = AtomicU64::new(0);

/// A folder as a storage. The root is trusted and may itself be a link; below it none is
/// followed.
#[derive(Debug)]
pub struct FileStorage {
    root: PathBuf,
}

impl FileStorage {
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The place of a checked path. Refuses what leads out of the root, by `..` or by a link.
    fn place(&self, path: &str) -> Result<PathBuf> {
        paths::check(path)?;
        let mut place = self.root.clone();
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            place.push(part);
            // The last part is checked by whoever opens it, without following it.
            let link = fs::symlink_metadata(&place).is_ok_and(|found| found.is_symlink());
            if link && parts.peek().is_some() {
                return Err(paths::refuse(path, "it leads through a symbolic link"));
            }
        }
        Ok(place)
    }

    fn file_place(&self, path: &str) -> Result<PathBuf> {
        paths::check_file(path)?;
        self.place(path)
    }

    /// The place of a folder: here the last part may not be a link either.
    fn folder_place(&self, path: &str) -> Result<PathBuf> {
        let place = self.place(path)?;
        if !path.is_empty() && fs::symlink_metadata(&place).is_ok_and(|found| found.is_symlink()) {
            return Err(paths::refuse(path, "it is a symbolic link"));
        }
        Ok(place)
    }

    fn fail(&self, verb: &'static str, path: &str) -> impl Fn(io::Error) -> Error {
        let url = self.url(path);
        move |source| Error::from_io(verb, url.clone(), source)
    }

    /// Opens a regular file; a link is refused, and a pipe cannot hold the caller.
    fn open_file(&self, path: &str) -> Result<(File, u64)> {
        let place = self.file_place(path)?;
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(place);
        let not_a_file = || Error::NotAFile { url: self.url(path) };
        let file = match opened {
            Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
                return Err(not_a_file());
            }
            other => other.map_err(self.fail("open", path))?,
        };
        let metadata = file.metadata().map_err(self.fail("look at", path))?;
        if !metadata.is_file() {
            return Err(not_a_file());
        }
        Ok((file, metadata.len()))
    }

    /// Opens a regular file at a byte that must not lie behind its end.
    fn open_at(&self, path: &str, from: u64) -> Result<(File, u64)> {
        let (mut file, length) = self.open_file(path)?;
        if length < from {
            return Err(Error::PastEnd { url: self.url(path), from, length });
        }
        file.seek(SeekFrom::Start(from)).map_err(self.fail("read", path))?;
        Ok((file, length))
    }

    /// Writes and syncs a file that must not exist; removes it again where that fails.
    fn write_synced(&self, place: &Path, path: &str, source: &mut dyn Read) -> Result<Sum> {
        let open = || OpenOptions::new().write(true).create_new(true).mode(0o644).open(place);
        let mut file = open().map_err(self.fail("create", path))?;
        let written = self.copy(source, &mut file, path).and_then(|sum| {
            file.sync_all().map_err(self.fail("write", path))?;
            Ok(sum)
        });
        if written.is_err() {
            // A half file under a name would be found by the next reader. Where even the removal
            // fails, the first error is the one to report.
            let _ = fs::remove_file(place);
        }
        written
    }

    /// Copies all of the source, in pieces.
    fn copy(&self, source: &mut dyn Read, file: &mut File, path: &str) -> Result<Sum> {
        let mut hasher = crc32fast::Hasher::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut bytes = 0;
        loop {
            match source.read(&mut piece) {
                Ok(0) => return Ok(Sum { bytes, crc32: hasher.finalize() }),
                Ok(count) => {
                    hasher.update(&piece[..count]);
                    file.write_all(&piece[..count]).map_err(self.fail("write", path))?;
                    bytes += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let url = self.url(path);
                    return Err(Error::Io { verb: "read what should become", url, source });
                }
            }
        }
    }

    fn sync_parent(&self, place: &Path, path: &str) -> Result<()> {
        let parent = place.parent().unwrap_or(&self.root);
        sync_folder(parent).map_err(self.fail("sync the folder of", path))
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Renames without ever replacing. NFS and some FUSE file systems do not know the flag; a hard
/// link is as atomic, and leaves at worst the temporary name as a second one.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        Err(Errno::EINVAL | Errno::ENOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        other => Ok(other?),
    }
}

impl Storage for FileStorage {
    fn url(&self, path: &str) -> String {
        let root = self.root.display().to_string();
        let root = root.trim_end_matches('/');
        if path.is_empty() { format!("file://{root}") } else { format!("file://{root}/{path}") }
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let (file, bytes) = self.open_file(path)?;
        let too_large =
            |bytes| Error::TooLarge { url: self.url(path), bytes, limit: READ_BYTES_MAX };
        if READ_BYTES_MAX < bytes {
            return Err(too_large(bytes));
        }
        let mut content = Vec::new();
        // A file that grows while it is read must not outgrow the limit either.
        file.take(READ_BYTES_MAX + 1).read_to_end(&mut content).map_err(self.fail("read", path))?;
        let read = content.len() as u64;
        if READ_BYTES_MAX < read { Err(too_large(read)) } else { Ok(content) }
    }

    fn length(&self, path: &str) -> Result<u64> {
        Ok(self.open_file(path)?.1)
    }

    fn read_range(&self, path: &str, from: u64, bytes: u64) -> Result<Vec<u8>> {
        if READ_BYTES_MAX < bytes {
            return Err(Error::TooLarge { url: self.url(path), bytes, limit: READ_BYTES_MAX });
        }
        let (file, length) = self.open_at(path, from)?;
        let mut content = Vec::new();
        file.take(bytes).read_to_end(&mut content).map_err(self.fail("read", path))?;
        if (content.len() as u64) < bytes {
            let from = from.saturating_add(bytes);
            return Err(Error::PastEnd { url: self.url(path), from, length });
        }
        Ok(content)
    }

    fn reader(&self, path: &str, from: u64, bytes: u64) -> Result<Box<dyn Read + Send>> {
        let (file, _) = self.open_at(path, from)?;
        Ok(Box::new(io::BufReader::with_capacity(PIECE_BYTES, file.take(bytes))))
    }

    fn write_new(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let place = self.file_place(path)?;
        self.write_synced(&place, path, &mut &bytes[..])?;
        self.sync_parent(&place, path)
    }

    fn publish(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.upload(path, &mut &bytes[..], UploadOptions::default()).map(drop)
    }

    fn upload(&self, path: &str, source: &mut dyn Read, _: UploadOptions) -> Result<Sum> {
        let place = self.file_place(path)?;
        let name = path.rsplit('/').next().unwrap_or(path);
        let number = TEMPORARIES.fetch_add(1, Ordering::Relaxed);
        let temporary =
            place.with_file_name(format!("{TEMPORARY}{name}.{}.{number}", std::process::id()));
        if fs::symlink_metadata(&place).is_ok() {
            return Err(Error::AlreadyExists { url: self.url(path) });
        }
        let sum = self.write_synced(&temporary, path, source)?;
        if let Err(error) = rename_new(&temporary, &place) {
            let _ = fs::remove_file(&temporary);
            return Err(self.fail("publish", path)(error));
        }
        self.sync_parent(&place, path)?;
        Ok(sum)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        let place = self.folder_place(path)?;
        let fail = self.fail("list", path);
        let mut entries = Vec::new();
        for entry in fs::read_dir(place).map_err(&fail)? {
            let entry = entry.map_err(&fail)?;
            let kind = match entry.file_type().map_err(&fail)? {
                found if found.is_file() => EntryKind::File,
                found if found.is_dir() => EntryKind::Folder,
                _ => EntryKind::Other,
            };
            // A name that is not UTF-8 cannot be one of ours; it is shown, not opened.
            entries.push(Entry { name: entry.file_name().to_string_lossy().into_owned(), kind });
        }
        entries.sort();
        Ok(entries)
    }

    fn remove(&self, path: &str) -> Result<()> {
        let place = self.file_place(path)?;
        let fail = self.fail("remove", path);
        let found = fs::symlink_metadata(&place).map_err(&fail)?;
        if found.is_dir() {
            fs::remove_dir_all(&place).map_err(&fail)?;
        } else {
            fs::remove_file(&place).map_err(&fail)?;
        }
        self.sync_parent(&place, path)
    }

    fn make_dir(&self, path: &str) -> Result<()> {
        let place = self.folder_place(path)?;
        let make = || DirBuilder::new().recursive(true).mode(0o755).create(&place);
        make().map_err(self.fail("make the folder", path))?;
        self.sync_parent(&place, path)
    }

    fn size_and_crc32(&self, path: &str) -> Result<Sum> {
        let (mut file, _) = self.open_file(path)?;
        let mut hasher = crc32fast::Hasher::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut bytes = 0;
        loop {
            match file.read(&mut piece) {
                Ok(0) => return Ok(Sum { bytes, crc32: hasher.finalize() }),
                Ok(count) => {
                    hasher.update(&piece[..count]);
                    bytes += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail("read", path)(error)),
            }
        }
    }

    fn sync_dir(&self, path: &str) -> Result<()> {
        sync_folder(&self.folder_place(path)?).map_err(self.fail("sync", path))
    }

    fn free_bytes(&self) -> Result<u64> {
        // The root may not be made yet: the nearest folder that exists lies on the same disk.
        let existing = self.root.ancestors().find(|folder| folder.exists());
        let statistics = nix::sys::statvfs::statvfs(existing.unwrap_or(&self.root))
            .map_err(|errno| self.fail("ask the free space of", "")(errno.into()))?;
        Ok(statistics.blocks_available().saturating_mul(statistics.fragment_size()))
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
