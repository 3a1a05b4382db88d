//! Room on the state folder's disk: a ballast file to give back when it is full, and the levels
//! below which no new work, and no change, is taken.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use storage::{FileStorage, Storage};

/// The ballast where the disk is large. A sixteenth of what is free where it is small, so that
/// the ballast never is what fills it.
const BALLAST_BYTES_MAX: u64 = 16 << 20;
const BALLAST_BYTES_MIN: u64 = 1 << 20;
/// What the store may take beside a batch: it grows by segments of 512 KiB.
const GROWTH_BYTES: u64 = 1 << 20;
/// What the journal sets aside while there is room: some thousand events, or a thousand jobs.
pub(crate) const ASIDE_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Disk {
    storage: FileStorage,
    folder: PathBuf,
    ballast: PathBuf,
    ballast_bytes: u64,
}

impl Disk {
    /// Looks at the state folder's disk. The ballast of an earlier start is kept as it is.
    pub(crate) fn new(state_dir: &Path) -> io::Result<Self> {
        let storage = FileStorage::new(state_dir);
        let ballast = state_dir.join("ballast");
        let present = fs::metadata(&ballast).map_or(0, |found| found.len());
        let ballast_bytes = if present >= BALLAST_BYTES_MIN {
            present
        } else {
            let free = storage.free_bytes().map_err(io::Error::other)?;
            (free / 16).clamp(BALLAST_BYTES_MIN, BALLAST_BYTES_MAX)
        };
        Ok(Self { storage, folder: state_dir.to_owned(), ballast, ballast_bytes })
    }

    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        self.storage.free_bytes().map_err(io::Error::other)
    }

    /// Below this much free space no new job is taken, so that those taken can end.
    pub(crate) const fn low_bytes(&self) -> u64 {
        4 * self.ballast_bytes
    }

    /// Below this the store is not written, as it must never be the one to find the disk full:
    /// the journal alone is, and only with what jobs need to go on and to end.
    pub(crate) const fn reserve_bytes(&self) -> u64 {
        self.ballast_bytes + GROWTH_BYTES
    }

    /// What the journal sets aside once the ballast is given back, for nobody else to take.
    pub(crate) const fn released_bytes(&self) -> u64 {
        self.ballast_bytes + ASIDE_BYTES
    }

    pub(crate) fn has_ballast(&self) -> bool {
        self.ballast.exists()
    }

    /// What operators should know of a disk that is nearly full.
    pub(crate) fn alert(&self, free: u64) -> String {
        let remedy = self.remedy();
        if free < self.reserve_bytes() {
            return format!(
                "the disk of the state folder is full ({free} bytes free): below {} only jobs go \
                 on and end, cancel and pause are taken, and no other change; {remedy}",
                self.reserve_bytes()
            );
        }
        format!(
            "the disk of the state folder has {free} bytes free: below {} no new job is taken; \
             {remedy}",
            self.low_bytes()
        )
    }

    /// What to delete, and where.
    pub(crate) fn remedy(&self) -> String {
        format!(
            "free space on the disk of {}: of its own files data/store.damaged-*, \
             data/journal/*.cut-at-* and the older audit.<n>.jsonl may go",
            self.folder.display()
        )
    }

    /// Makes the ballast where it is missing and there is room to spare.
    ///
    /// # Returns
    /// Whether it was made.
    pub(crate) fn keep_ballast(&self) -> io::Result<bool> {
        let whole = fs::metadata(&self.ballast).is_ok_and(|f| f.len() >= self.ballast_bytes);
        if whole || self.free_bytes()? < 2 * self.low_bytes() {
            return Ok(false);
        }
        // Written, not just lengthened: a hole would hold no space.
        let piece = vec![0xa5; 64 * 1024];
        let mut file = File::create(&self.ballast)?;
        let mut left = self.ballast_bytes;
        while left > 0 {
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            file.write_all(&piece[..count])?;
            left -= count as u64;
        }
        file.sync_all()?;
        Ok(true)
    }

    /// Gives the ballast's room back.
    ///
    /// # Returns
    /// Whether there was one.
    pub(crate) fn release_ballast(&self) -> bool {
        fs::remove_file(&self.ballast).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ballast_is_made_kept_and_released() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(folder.path()).unwrap();
        assert!(disk.reserve_bytes() < disk.low_bytes());
        assert!(disk.keep_ballast().unwrap());
        assert!(!disk.keep_ballast().unwrap(), "it is there already");
        let size = fs::metadata(folder.path().join("ballast")).unwrap().len();
        assert_eq!(Disk::new(folder.path()).unwrap().low_bytes(), 4 * size);
        assert!(disk.release_ballast());
        assert!(!disk.release_ballast());
    }
}
