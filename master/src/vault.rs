//! Store and journal as one: what is committed here survives a kill, a power cut, a full disk,
//! and a damaged store.
//!
//! ```text
//! <state>/data/journal/   see journal.rs; written and synced first: what is there is committed
//! <state>/data/store/     sled; see store.rs
//! <state>/data/store.damaged-<n>/   a store that could not be used, kept for a look
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use storage::snapshot::Header;

use crate::attended::Attended;
use crate::disk::Disk;
use crate::journal::{Journal, export};
use crate::store::{Content, KeyValue, Op, SledStore, StoreError};

type Result<T> = std::result::Result<T, StoreError>;

#[derive(Debug)]
pub(crate) struct Vault {
    folder: PathBuf,
    header: Header,
    journal: Journal,
    /// None where it failed: then the journal alone serves until the next start, which brings
    /// the store up from it.
    store: Option<Attended<SledStore>>,
    trouble: Option<String>,
}

impl Vault {
    /// Opens store and journal below `state_dir`, or makes them. Whichever of them is behind or
    /// damaged is brought up from the other.
    ///
    /// # Returns
    /// The vault, and what was repaired, in words for the operator.
    pub(crate) fn open(state_dir: &Path, header: Header) -> Result<(Self, Vec<String>)> {
        let folder = state_dir.join("data");
        fs::create_dir_all(folder.join("store"))?;
        let (journal, mut notes) = Journal::open(&folder.join("journal"))?;
        File::open(&folder)?.sync_all()?;
        File::open(state_dir)?.sync_all()?;
        let mut vault = Self { folder, header, journal, store: None, trouble: None };
        vault.bring_up(&mut notes)?;
        Ok((vault, notes))
    }

    fn store_folder(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// Opens the store, brings it level with the journal, and compares the two: each is the
    /// other's witness, and damage that sled does not notice must not pass.
    fn bring_up(&mut self, notes: &mut Vec<String>) -> Result<()> {
        // A journal that lost its end may be behind the store, and then cannot speak for it.
        let whole = notes.is_empty();
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
            Some(store) => store.content(),
            None => self.journal.content(),
        }
    }

    /// Makes a batch durable: all of it or nothing, whatever happens. A store that fails is left;
    /// the batch then is in the journal, and that is enough.
    ///
    /// # Errors
    /// Where the journal cannot be written; nothing is changed then.
    pub(crate) fn commit(&mut self, ops: &[Op]) -> Result<()> {
        let sequence = self.journal.append(ops)?;
        if let Some(store) = &mut self.store
            && let Err(error) = store.apply(sequence, ops)
        {
            self.go_without(storage::chain(&error));
        }
        Ok(())
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
        if !self.journal.wants_base() {
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

/// Opens the vault at a start of the master. On a full disk the ballast is given back first:
/// even recovery must write.
pub(crate) fn open_with_room(
    state_dir: &Path,
    header: &Header,
    disk: &Disk,
) -> Result<(Vault, Vec<String>)> {
    if disk.free_bytes()? < disk.reserve_bytes() && disk.release_ballast() {
        tracing::warn!("the disk is full: gave back the ballast to start");
    }
    match Vault::open(state_dir, header.clone()) {
        Err(StoreError::Full(_)) if disk.release_ballast() => {
            Vault::open(state_dir, header.clone())
        }
        other => other,
    }
}

#[cfg(test)]
#[path = "vault_tests.rs"]
mod tests;
