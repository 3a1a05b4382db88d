//! Where tasks of this node put parts of checkpoints before they are stored, and where parts are
//! kept to be read again.
//!
//! ```text
//! <state_dir>/spool/j12/g00000003-c00000007/      the task's user may write here, and only here
//! ```
//! Everything above a checkpoint's folder belongs to the agent, so that no task can put a link in
//! its place.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{CheckpointId, Generation, JobId};
use nix::fcntl::OFlag;
use nix::unistd::{Gid, Uid, chown, fchown};
use storage::checkpoint;

use super::{Kind, Trouble};
use crate::config::TaskUser;

/// Checkpoints of a job that are kept here: the newest published one, and the one being made.
const KEPT: usize = 2;
/// Space left to everybody else on the disk of the spool.
const FREE_BYTES_MIN: u64 = 256 << 20;

/// One checkpoint by its URL `<base>/<job>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) base: String,
    pub(crate) job: JobId,
    pub(crate) generation: Generation,
    pub(crate) id: CheckpointId,
}

impl Checkpoint {
    /// Reads the URL of a checkpoint's folder.
    ///
    /// # Errors
    /// Where it is not one.
    pub(crate) fn of(url: &str) -> Result<Self, Trouble> {
        let parse = || {
            let (rest, name) = url.trim_end_matches('/').rsplit_once('/')?;
            let (base, job) = rest.rsplit_once('/')?;
            let (generation, id) = checkpoint::parse_name(name)?;
            Some(Self { base: base.to_owned(), job: job.parse().ok()?, generation, id })
        };
        let wrong = || Trouble::new(Kind::Refused, format!("{url:?} is not a checkpoint's folder"));
        parse().ok_or_else(wrong)
    }

    /// Its folder, relative to the base.
    pub(crate) fn directory(&self) -> String {
        checkpoint::directory(self.job, self.generation, self.id)
    }

    /// A file of it, relative to the base.
    pub(crate) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.directory())
    }
}

/// A plain name of a file, which leads nowhere else.
///
/// # Errors
/// Where it is not.
pub(crate) fn plain(name: &str) -> Result<&str, Trouble> {
    let plain = (1..=200).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    plain.then_some(name).ok_or_else(|| {
        Trouble::new(Kind::Refused, format!("{:?} is not a plain file name", clipped(name)))
    })
}

fn clipped(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The spool of this node.
#[derive(Clone, Debug)]
pub(crate) struct Spool {
    root: PathBuf,
    user: TaskUser,
    /// Jobs whose tasks run as somebody else.
    others: Arc<Mutex<BTreeMap<JobId, (Uid, Gid)>>>,
    bytes_max: u64,
}

impl Spool {
    pub(crate) fn new(state_dir: &Path, user: TaskUser, bytes_max: u64) -> Self {
        Self { root: state_dir.join("spool"), user, others: Arc::default(), bytes_max }
    }

    /// Tells as whom the tasks of a job run.
    pub(crate) fn give(&self, job: JobId, owner: (Uid, Gid)) {
        let mut others = self.others();
        if owner == (self.user.uid, self.user.gid) {
            others.remove(&job);
        } else {
            others.insert(job, owner);
        }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<JobId, (Uid, Gid)>> {
        // A map is whole also where a thread panicked while it held it.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is to own a job's files.
    fn owner(&self, job: JobId) -> (Uid, Gid) {
        self.others().get(&job).copied().unwrap_or((self.user.uid, self.user.gid))
    }

    pub(crate) fn folder(&self, of: &Checkpoint) -> PathBuf {
        self.root.join(of.directory())
    }

    /// Names of the files of a checkpoint that are here.
    pub(crate) fn files(&self, of: &Checkpoint) -> Vec<String> {
        names(&self.folder(of))
    }

    /// Makes the folder of a checkpoint for the tasks' user; one that exists is fine.
    ///
    /// # Errors
    /// Where the disk refuses; in words.
    pub(crate) fn make(&self, of: &Checkpoint) -> Result<PathBuf, Trouble> {
        let folder = self.folder(of);
        self.try_make(of, &folder).map_err(|error| away("make", &folder, &error))?;
        Ok(folder)
    }

    fn try_make(&self, of: &Checkpoint, folder: &Path) -> io::Result<()> {
        for above in [self.root.clone(), self.root.join(of.job.to_string())] {
            DirBuilder::new().recursive(true).mode(0o711).create(&above)?;
            // The mode of a make is cut by the umask.
            fs::set_permissions(&above, fs::Permissions::from_mode(0o711))?;
        }
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) if self.user.switch => {
                let (uid, gid) = self.owner(of.job);
                chown(folder, Some(uid), Some(gid)).map_err(Into::into)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Makes room for a new checkpoint of a job: removes its older ones, and then the oldest of
    /// others, down to the bound. `live` are those that must stay.
    ///
    /// # Errors
    /// Where it is too full even then.
    pub(crate) fn make_room(&self, job: JobId, live: &[Checkpoint]) -> Result<(), Trouble> {
        let mut found = self.list();
        let keeps = |of: &Entry| live.iter().any(|live| self.folder(live) == of.path);
        let ours = found.iter().filter(|entry| entry.job == job).count();
        let mut surplus = (ours + 1).saturating_sub(KEPT);
        found.retain(|entry| {
            let old = 0 < surplus && entry.job == job && !keeps(entry);
            if old {
                surplus -= 1;
                remove(&entry.path);
            }
            !old
        });
        let mut bytes: u64 = found.iter().map(|entry| entry.bytes).sum();
        found.sort_by_key(|entry| entry.modified_s);
        for entry in &found {
            if bytes <= self.bytes_max && self.has_room() {
                return Ok(());
            }
            if !keeps(entry) {
                remove(&entry.path);
                bytes = bytes.saturating_sub(entry.bytes);
            }
        }
        if bytes <= self.bytes_max && self.has_room() {
            return Ok(());
        }
        let words = format!(
            "{} is full: {bytes} bytes of spool_bytes_max = {}, or under {FREE_BYTES_MIN} bytes free",
            self.root.display(),
            self.bytes_max
        );
        Err(Trouble::away(words))
    }

    fn has_room(&self) -> bool {
        let above = self.root.ancestors().find(|folder| folder.exists());
        let free = above.map(storage::FileStorage::new).map(|disk| {
            // A file system that cannot say has to be tried.
            storage::Storage::free_bytes(&disk).unwrap_or(u64::MAX)
        });
        free.is_none_or(|free| FREE_BYTES_MIN <= free)
    }

    /// Every checkpoint here, by job and age.
    fn list(&self) -> Vec<Entry> {
        let mut found = Vec::new();
        for job in names(&self.root) {
            let Ok(id) = job.parse() else { continue };
            for name in names(&self.root.join(&job)) {
                let path = self.root.join(&job).join(name);
                let modified_s = fs::metadata(&path).map_or(0, |found| found.mtime());
                let bytes = names(&path).iter().fold(0_u64, |sum, file| {
                    let found = fs::symlink_metadata(path.join(file));
                    sum.saturating_add(found.map_or(0, |found| found.len()))
                });
                found.push(Entry { job: id, path, bytes, modified_s });
            }
        }
        found
    }

    /// Removes what belongs to no job that `stays`, and is older than a time.
    pub(crate) fn prune(&self, stays: impl Fn(JobId) -> bool, before_s: i64) {
        for entry in self.list() {
            if !stays(entry.job) && entry.modified_s < before_s {
                remove(&entry.path);
            }
        }
        for job in names(&self.root) {
            // Fails where something is left in it, which is as it should be.
            let _ = fs::remove_dir(self.root.join(job));
        }
    }

    /// Opens a file that a task wrote: a plain one, never what a link leads to.
    ///
    /// # Errors
    /// Where it is missing, something else, or longer than the spool may hold.
    pub(crate) fn open(&self, of: &Checkpoint, name: &str) -> Result<(File, u64), Trouble> {
        let path = self.folder(of).join(plain(name)?);
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let words = format!("{} does not exist", path.display());
                return Err(Trouble::new(Kind::Missing, words));
            }
            // A link, or what only its owner may read: trying again would not help.
            other => other.map_err(|error| {
                let words = format!("cannot open {}: {error}", path.display());
                Trouble::new(Kind::Refused, words)
            })?,
        };
        let found = file.metadata().map_err(|error| away("look at", &path, &error))?;
        if !found.is_file() || self.bytes_max < found.len() {
            let words = format!("{} is not a file within spool_bytes_max", path.display());
            return Err(Trouble::new(Kind::Refused, words));
        }
        Ok((file, found.len()))
    }

    /// A fresh file for what is brought here, to be kept under a name by [`Self::keep`].
    ///
    /// # Errors
    /// Where the disk refuses.
    pub(crate) fn fresh(&self, of: &Checkpoint, name: &str) -> Result<(File, PathBuf), Trouble> {
        let path = self.folder(of).join(format!(".coming-{}", plain(name)?));
        let _stale = fs::remove_file(&path);
        // Made anew, so that a link that a task put there is not followed.
        let made =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(&path);
        Ok((made.map_err(|error| away("make", &path, &error))?, path))
    }

    /// Gives a file that was brought here to the tasks' user, under its name.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub(crate) fn keep(
        &self,
        of: &Checkpoint,
        name: &str,
        (file, from): (&File, &Path),
    ) -> Result<PathBuf, Trouble> {
        let path = self.folder(of).join(plain(name)?);
        let kept = || -> io::Result<()> {
            if self.user.switch {
                let (uid, gid) = self.owner(of.job);
                fchown(file, Some(uid), Some(gid))?;
            }
            fs::rename(from, &path)
        };
        kept().map_err(|error| away("keep", &path, &error))?;
        Ok(path)
    }
}

/// A checkpoint's folder in the spool.
#[derive(Debug)]
struct Entry {
    job: JobId,
    path: PathBuf,
    bytes: u64,
    modified_s: i64,
}

/// Names in a folder, sorted: by age, as checkpoints are named.
fn names(folder: &Path) -> Vec<String> {
    let listing = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        listing.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(folder = %folder.display(), %error, "cannot remove a spool folder");
    }
}

fn away(verb: &str, path: &Path, error: &io::Error) -> Trouble {
    Trouble::away(format_args!("cannot {verb} {}: {error}", path.display()))
}
