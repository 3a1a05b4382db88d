//! Store and journal as one: what is committed here survives a kill, a power cut, a full disk,
//! and a damaged store.
//!
//! ```text
//! <state>/data/journal/   see journal.rs; written and synced first: what is there is committed
//! <state>/data/store/     sled; see store.rs
//! <state>/data/store.damaged-<n>/   a store that could not be used, kept for a look
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use storage::snapshot::Header;

use crate::attended::Attended;
use crate::disk::Disk;
use crate::journal::{self, Journal, export};
use crate::store::{Content, KeyValue, Op, SledStore, StoreError};

/// Free on a disk beside a batch that is not sure of its room: for what the file system itself
/// keeps of it.
const MARGIN_BYTES: u64 = 64 << 10;

type Result<T> = std::result::Result<T, StoreError>;

#[derive(Debug)]
pub(crate) struct Vault {
    folder: PathBuf,
    header: Header,
    journal: Journal,
    /// None where it failed: then the journal alone serves until the next start, which brings
    /// the store up from it.
    store: Option<Attended<SledStore>>,
    /// Set while batches are in the journal alone because the disk was short of room.
    behind: bool,
    trouble: Option<String>,
}

/// How much room the disk has for the store, which must not be the one to find it full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Enough,
    /// Then the journal serves alone until there is more.
    Short,
}

impl Vault {
    /// Opens store and journal below `state_dir`, or makes them. Whichever of them is behind or
    /// damaged is brought up from the other.
    ///
    /// # Returns
    /// The vault, and what was repaired, in words for the operator.
    pub(crate) fn open(state_dir: &Path, header: Header) -> Result<(Self, Vec<String>)> {
        Self::open_in(state_dir, header, Room::Enough)
    }

    /// As [`Self::open`], but on a disk that is short of room the store is left closed where the
    /// journal has everything.
    pub(crate) fn open_in(
        state_dir: &Path,
        header: Header,
        room: Room,
    ) -> Result<(Self, Vec<String>)> {
        let folder = state_dir.join("data");
        fs::create_dir_all(folder.join("store"))?;
        let (journal, mut notes) = Journal::open(&folder.join("journal"))?;
        File::open(&folder)?.sync_all()?;
        File::open(state_dir)?.sync_all()?;
        let (store, behind, trouble) = (None, false, None);
        let mut vault = Self { folder, header, journal, store, behind, trouble };
        let whole = vault.journal.last() > 0 && !vault.journal.is_lost();
        if room == Room::Short && whole && vault.journal.content().is_ok() {
            vault.behind = true;
        } else {
            vault.bring_up(&mut notes)?;
        }
        Ok((vault, notes))
    }

    fn store_folder(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// Opens the store, brings it level with the journal, and compares the two: each is the
    /// other's witness, and damage that sled does not notice must not pass.
    fn bring_up(&mut self, notes: &mut Vec<String>) -> Result<()> {
        // A journal that lost its end may be behind the store, and then cannot speak for it.
        let whole = !self.journal.is_lost();
        let journal = match self.journal.content() {
            Err(StoreError::Damaged(problem)) => Err(problem),
            other => Ok(other?),
        };
        let opened = SledStore::open(&self.store_folder()).and_then(Attended::new);
        let opened = opened.and_then(|mut store| {
            match self.level(&mut store, journal.as_ref().ok(), notes) {
                Ok(()) => Ok(store),
                Err(error) => {
                    store.abandon();
                    Err(error)
                }
            }
        });
        match (opened, journal) {
            (Ok(store), journal) => {
                if let Err(problem) = journal {
                    notes.push(format!("the journal was damaged: {problem}"));
                    self.begin_journal(&store, notes)?;
                }
                self.store = Some(store);
                Ok(())
            }
            (Err(StoreError::Damaged(problem)), Ok(content)) => {
                match self.rebuild(&problem, content, notes) {
                    Err(StoreError::Full(_)) if whole => {}
                    other => return other,
                }
                self.go_without(format!("it is damaged ({problem}), and the disk is full"));
                Ok(())
            }
            (Err(StoreError::Full(_)), Ok(_)) if whole => {
                self.go_without("the disk is full".to_owned());
                Ok(())
            }
            (Err(StoreError::Damaged(problem)), Err(also)) => Err(StoreError::Damaged(format!(
                "{problem}; and it cannot be rebuilt from {}, because {also}",
                self.folder.join("journal").display()
            ))),
            (Err(other), _) => Err(other),
        }
    }

    fn begin_journal(&mut self, store: &dyn KeyValue, notes: &mut Vec<String>) -> Result<()> {
        self.journal.rebase(store.sequence()?, &store.content()?, &self.header)?;
        notes.push("began the journal anew from the store".to_owned());
        Ok(())
    }

    /// Brings a store and the journal to the same batch. A batch that is in the journal alone was
    /// never acknowledged, or was when the power went: it counts.
    fn level(
        &mut self,
        store: &mut dyn KeyValue,
        journal: Option<&Content>,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let (there, last) = (store.sequence()?, self.journal.last());
        if last < there {
            notes.push(format!("the journal ends at batch {last}, the store at {there}"));
            return self.begin_journal(store, notes);
        }
        if there < last {
            self.journal.replay(there, &mut |sequence, ops| store.apply(sequence, &ops))?;
            // As every kill between the two writes leaves it: nothing to worry anyone with.
            tracing::info!(from = there + 1, to = last, "brought the store up from the journal");
        }
        let found = store.content()?;
        if journal.is_some_and(|content| *content != found) {
            let words = "its content differs from what was written to it";
            return Err(StoreError::Damaged(words.to_owned()));
        }
        Ok(())
    }

    /// Puts a damaged store aside and makes one of the journal's content.
    fn rebuild(&mut self, problem: &str, content: Content, notes: &mut Vec<String>) -> Result<()> {
        let aside = (0..1000)
            .map(|number| self.folder.join(format!("store.damaged-{number}")))
            .find(|path| !path.exists())
            .ok_or_else(|| StoreError::Damaged(format!("{problem}; for the 1,000th time")))?;
        let fresh = self.fresh_store(content)?;
        fs::rename(self.store_folder(), &aside)?;
        fs::rename(&fresh, self.store_folder())?;
        File::open(&self.folder)?.sync_all()?;
        self.store = Some(Attended::new(SledStore::open(&self.store_folder())?)?);
        notes.push(format!(
            "the store was damaged ({problem}): rebuilt it from the journal up to batch {}; the \
             damaged one is kept in {}",
            self.journal.last(),
            aside.display()
        ));
        Ok(())
    }

    /// A store of this content beside the one in use. It is made whole there: killed halfway, the
    /// next start does it all again.
    fn fresh_store(&self, content: Content) -> Result<PathBuf> {
        let fresh = self.folder.join("store.rebuilt");
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        let mut store = Attended::new(SledStore::open(&fresh)?)?;
        let ops: Vec<Op> =
            content.into_iter().map(|(key, value)| Op { key, value: Some(value) }).collect();
        if let Err(error) = store.apply(self.journal.last(), &ops) {
            store.abandon();
            return Err(error);
        }
        drop(store);
        Ok(fresh)
    }

    fn resealing(&self) -> PathBuf {
        self.folder.join("resealing")
    }

    /// True where [`Self::reseal`] was begun and not ended: values that are overwritten are still
    /// in the files.
    pub(crate) fn is_resealing(&self) -> bool {
        self.resealing().exists()
    }

    /// Overwrites records with their sealed values, then begins journal and store anew, so that
    /// no file holds the former ones. Killed at any point, the next start goes on with it.
    ///
    /// # Returns
    /// Files beside them that were kept aside once and are not touched.
    pub(crate) fn reseal(&mut self, ops: &[Op]) -> Result<Vec<String>> {
        File::create(self.resealing())?.sync_all()?;
        File::open(&self.folder)?.sync_all()?;
        if !ops.is_empty() {
            self.commit(ops)?;
        }
        let content = self.records()?;
        self.journal.rebase(self.journal.last(), &content, &self.header)?;
        // Where it is out of use, the next start makes one of the journal, and comes back here.
        if let Some(store) = self.store.take() {
            let fresh = self.fresh_store(content)?;
            drop(store);
            let former = self.folder.join("store.unsealed");
            if former.exists() {
                fs::remove_dir_all(&former)?;
            }
            fs::rename(self.store_folder(), &former)?;
            fs::rename(&fresh, self.store_folder())?;
            File::open(&self.folder)?.sync_all()?;
            self.store = Some(Attended::new(SledStore::open(&self.store_folder())?)?);
            fs::remove_dir_all(&former)?;
            fs::remove_file(self.resealing())?;
        }
        self.kept_aside()
    }

    fn kept_aside(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for (folder, mark) in
            [(self.folder.clone(), "store.damaged-"), (self.folder.join("journal"), ".cut-at-")]
        {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.to_string_lossy().contains(mark) {
                    found.push(path.display().to_string());
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Every record.
    pub(crate) fn records(&self) -> Result<Content> {
        match &self.store {
            Some(store) if !self.behind => store.content(),
            Some(_) | None => self.journal.content(),
        }
    }

    /// Makes a batch durable: all of it or nothing, whatever happens. A store that fails is left;
    /// the batch then is in the journal, and that is enough.
    ///
    /// # Errors
    /// Where the journal cannot be written; nothing is changed then.
    pub(crate) fn commit(&mut self, ops: &[Op]) -> Result<()> {
        let sequence = self.journal.append(ops)?;
        if self.behind {
            // That one is in the journal now.
            self.catch_up().iter().for_each(|note| tracing::warn!("{note}"));
        } else if let Some(store) = &mut self.store
            && let Err(error) = store.apply(sequence, ops)
        {
            self.go_without(storage::chain(&error));
        }
        Ok(())
    }

    /// As [`Self::commit`] on a disk with `free` bytes, which are too few for the store: it is
    /// left behind.
    ///
    /// # Errors
    /// [`StoreError::Full`] where the journal has no room either; nothing is changed then.
    pub(crate) fn commit_short(&mut self, ops: &[Op], free: u64) -> Result<()> {
        let bytes = journal::length(ops);
        // Asked first: an append that fails gives up what is set aside.
        if self.aside_bytes() < bytes && free < bytes.saturating_add(MARGIN_BYTES) {
            let words = format!("only {free} bytes are free");
            return Err(StoreError::Full(io::Error::new(io::ErrorKind::StorageFull, words)));
        }
        self.journal.append(ops)?;
        self.behind = true;
        Ok(())
    }

    /// Brings a store that was left behind, or closed, level with the journal.
    ///
    /// # Returns
    /// What was repaired, in words for the operator.
    pub(crate) fn catch_up(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.behind {
            return notes;
        }
        let done = match &mut self.store {
            Some(store) => store.sequence().and_then(|there| {
                self.journal.replay(there, &mut |sequence, ops| store.apply(sequence, &ops))
            }),
            // It failed before the disk was short: only a restart tries it again.
            None if self.trouble.is_some() => Ok(()),
            None => self.bring_up(&mut notes),
        };
        self.behind = false;
        if let Err(error) = done {
            self.go_without(storage::chain(&error));
        }
        notes
    }

    /// Room that batches are sure to find, however full the disk is.
    pub(crate) const fn aside_bytes(&self) -> u64 {
        self.journal.aside_bytes()
    }

    /// Sets such room aside, or as much of it as there is.
    pub(crate) fn set_aside(&mut self, bytes: u64) {
        self.journal.set_aside(bytes);
    }

    fn go_without(&mut self, problem: String) {
        if let Some(store) = self.store.take() {
            // Dropped, it may hang.
            store.abandon();
        }
        let words = format!(
            "the store is out of use ({problem}): changes are kept in the journal alone; restart \
             the master once there is room to bring the store up again"
        );
        tracing::error!("{words}");
        self.trouble = Some(words);
    }

    /// Why the journal alone is in use, where it is.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Begins the journal anew where it has grown enough.
    ///
    /// # Returns
    /// Whether it was.
    pub(crate) fn tidy(&mut self) -> Result<bool> {
        // A store that is behind needs the batches of the journal that is there.
        if self.behind || !self.journal.wants_base() {
            return Ok(false);
        }
        let content = self.records()?;
        self.journal.rebase(self.journal.last(), &content, &self.header)?;
        Ok(true)
    }

    /// A consistent copy in the snapshot format.
    pub(crate) fn export(&self, header: &Header) -> Result<Vec<u8>> {
        export(&self.records()?, header)
    }
}

/// Opens the vault at a start of the master. On a full disk the journal serves alone; where that
/// is not enough the ballast is given back, as even recovery must write.
pub(crate) fn open_with_room(
    state_dir: &Path,
    header: &Header,
    disk: &Disk,
) -> Result<(Vault, Vec<String>)> {
    let short = disk.free_bytes()? < disk.reserve_bytes();
    let room = if short { Room::Short } else { Room::Enough };
    match Vault::open_in(state_dir, header.clone(), room) {
        Err(StoreError::Full(_)) if disk.release_ballast() => {
            tracing::warn!("the disk is full: gave back the ballast to start");
            Vault::open_in(state_dir, header.clone(), room)
        }
        other => other,
    }
}

#[cfg(test)]
#[path = "vault_tests.rs"]
mod tests;
