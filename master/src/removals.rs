//! Checkpoints that storage would not let go yet: written down, so that a restart of the master
//! does not leave them there for good.
//!
//! `state_dir/removals` has a line for each that waits and a line for each that is done, and is
//! made anew at a start. Losing it only loses space, so nothing is synced.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use model::JobId;

/// Larger files are of somebody else, or of years.
const BYTES_MAX: u64 = 64 << 20;
/// The last word of a line: one that was cut must not name another folder.
const END: &str = "end";

/// A checkpoint to be removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Removal {
    pub(crate) job: JobId,
    pub(crate) manifest_url: Option<String>,
    pub(crate) directory: String,
}

impl Removal {
    /// None where it cannot be written on a line: then it is not kept.
    fn line(&self, sign: char) -> Option<String> {
        let manifest = self.manifest_url.as_deref().unwrap_or("");
        let line = format!("{sign}\t{}\t{manifest}\t{}\t{END}", self.job, self.directory);
        let plain = line.matches('\t').count() == 4 && !line.contains('\n');
        plain.then(|| line + "\n")
    }

    fn parse(line: &str) -> Option<(char, Self)> {
        let parts: Vec<&str> = line.split('\t').collect();
        let [sign, job, manifest, directory, END] = parts[..] else { return None };
        let manifest_url = (!manifest.is_empty()).then(|| manifest.to_owned());
        let directory = directory.to_owned();
        Some((sign.parse().ok()?, Self { job: job.parse().ok()?, manifest_url, directory }))
    }
}

/// The file of those that wait.
#[derive(Debug)]
pub(crate) struct Removals {
    file: PathBuf,
    /// One line at a time.
    writing: Mutex<()>,
}

impl Removals {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self { file: state_dir.join("removals"), writing: Mutex::new(()) }
    }

    /// Those of earlier lives that still wait.
    pub(crate) fn load(&self) -> BTreeSet<Removal> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let small = fs::metadata(&self.file).is_ok_and(|found| found.len() <= BYTES_MAX);
        let text = fs::read_to_string(&self.file).ok().filter(|_| small).unwrap_or_default();
        let mut waiting = BTreeSet::new();
        for (sign, removal) in text.lines().filter_map(Removal::parse) {
            if sign == '+' {
                waiting.insert(removal);
            } else {
                waiting.remove(&removal);
            }
        }
        let lines: String = waiting.iter().filter_map(|removal| removal.line('+')).collect();
        let fresh = self.file.with_extension("new");
        if !text.is_empty() {
            self.told(fs::write(&fresh, lines).and_then(|()| fs::rename(&fresh, &self.file)));
        }
        waiting
    }

    pub(crate) fn waits(&self, removal: &Removal) {
        self.append('+', removal);
    }

    pub(crate) fn done(&self, removal: &Removal) {
        self.append('-', removal);
    }

    fn append(&self, sign: char, removal: &Removal) {
        let Some(line) = removal.line(sign) else { return };
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).mode(0o600).open(&self.file);
        self.told(file.and_then(|mut file| file.write_all(line.as_bytes())));
    }

    fn told(&self, written: io::Result<()>) {
        if let Err(error) = written {
            let file = self.file.display();
            tracing::warn!(%file, %error, "cannot note which checkpoints wait to be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(job: u64, manifest: Option<&str>, directory: &str) -> Removal {
        let manifest_url = manifest.map(str::to_owned);
        Removal { job: JobId(job), manifest_url, directory: directory.to_owned() }
    }

    #[test]
    fn what_waits_is_known_to_the_next_life_and_what_is_done_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let own = Removals::new(folder.path());
        assert!(own.load().is_empty());
        let first = removal(1, Some("hdfs://lab/c/j1/m.json"), "hdfs://lab/c/j1/g1-c1");
        let second = removal(2, None, "hdfs://lab/ckpt of ada/j2/g1-c1");
        for removal in [&first, &second, &removal(3, None, "hdfs://a\tb/j3/g1-c1")] {
            own.waits(removal);
        }
        own.done(&first);
        let next = Removals::new(folder.path());
        assert_eq!(next.load(), BTreeSet::from([second.clone()]));
        // A line that was cut in the middle names nothing.
        let path = folder.path().join("removals");
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1, "it is made anew");
        for cut in 0..text.len() - 1 {
            fs::write(&path, &text[..cut]).unwrap();
            assert!(next.load().is_empty(), "cut at {cut}");
        }
    }
}
