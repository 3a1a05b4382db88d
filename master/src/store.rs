//! The embedded store: the only file that knows it is sled.
//!
//! Found by cutting power: sled's `flush` alone is not durable on ext4, `sync_data` on its file
//! `db` afterwards is. Found by filling the disk: it then returns an error, cannot be opened
//! until space is freed, and hangs where it is dropped: see `attended.rs`. Found in its issues:
//! an open may panic. What cannot be handled here becomes a [`StoreError`] to act on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

/// One change of the store: a value put under a key, or the key deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// Retrying is of use once space is freed; the data are intact.
    #[error("the disk is full")]
    Full(#[source] io::Error),
    #[error("the store is damaged: {0}")]
    Damaged(String),
    #[error(
        "the store has format {found}, this build reads {FORMAT}: start the newer release that \
         wrote it"
    )]
    Newer { found: u32 },
    #[error("cannot use the disk")]
    Io(#[source] io::Error),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        let kind = error.kind();
        if kind == io::ErrorKind::StorageFull || kind == io::ErrorKind::QuotaExceeded {
            Self::Full(error)
        } else {
            Self::Io(error)
        }
    }
}

impl From<sled::Error> for StoreError {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(error) => error.into(),
            sled::Error::CollectionNotFound(_)
            | sled::Error::Unsupported(_)
            | sled::Error::ReportableBug(_)
            | sled::Error::Corruption { .. } => Self::Damaged(error.to_string()),
        }
    }
}

type Result<T> = std::result::Result<T, StoreError>;

/// Records by key.
pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// An ordered map on stable storage, changed by whole batches.
pub(crate) trait KeyValue: Send + std::fmt::Debug {
    /// Number of the last batch applied; 0 for a fresh store.
    fn sequence(&self) -> Result<u64>;

    /// Applies all of a batch or none; on return it is on stable storage.
    fn apply(&mut self, sequence: u64, ops: &[Op]) -> Result<()>;

    /// Every record.
    fn content(&self) -> Result<Content>;
}

/// Grows when a master of before would not read what this one stores, as new kinds of record: it
/// then refuses the store by this number, before anything else.
const FORMAT: u32 = 2;
/// Formats that are read, and become [`FORMAT`] when they are opened.
const FORMAT_OLDEST: u64 = 1;
// Records and what describes them lie in one tree, because a batch is atomic only within a tree.
const RECORD: u8 = b'r';
const KEY_FORMAT: &[u8] = b"mformat";
const KEY_SEQUENCE: &[u8] = b"msequence";
/// The whole store of a large cluster is some tens of MB; sled would take 1 GiB.
const CACHE_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct SledStore {
    db: sled::Db,
    /// sled's own data file, opened once more only to sync it.
    data: File,
}

/// Runs a piece of sled that may panic on damage.
fn guarded<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let words = panic_words(panic.as_ref());
        Err(StoreError::Damaged(format!("{what} panicked: {words}")))
    })
}

/// What a panic said.
pub(crate) fn panic_words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words").to_owned()
}

const LOCK_TRIES: u32 = 20;
const LOCK_EVERY: Duration = Duration::from_millis(50);

fn is_locked(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.to_string().contains("acquire lock")
}

impl SledStore {
    /// Opens the store in a folder, or makes a fresh one there.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let db = guarded("opening it", || {
            let config = sled::Config::new()
                .path(folder)
                .cache_capacity(CACHE_BYTES)
                // Every batch is flushed by hand before it is acknowledged.
                .flush_every_ms(None);
            let mut tries = 0;
            loop {
                match config.open() {
                    // A program that this process starts just now holds the lock of a store that
                    // was closed a moment ago until it has begun.
                    Err(sled::Error::Io(error)) if is_locked(&error) && tries < LOCK_TRIES => {
                        tries += 1;
                        std::thread::park_timeout(LOCK_EVERY);
                    }
                    other => return Ok(other?),
                }
            }
        })?;
        let data = File::open(folder.join("db"))?;
        let mut store = Self { db, data };
        match store.number(KEY_FORMAT)? {
            Some(found) if found == u64::from(FORMAT) => {}
            Some(found) if !(FORMAT_OLDEST..u64::from(FORMAT)).contains(&found) => {
                return Err(StoreError::Newer { found: u32::try_from(found).unwrap_or(u32::MAX) });
            }
            Some(_) | None => store.commit({
                let mut batch = sled::Batch::default();
                batch.insert(KEY_FORMAT, &u64::from(FORMAT).to_le_bytes());
                batch
            })?,
        }
        // A power cut must not take the names of the files that were just made.
        File::open(folder)?.sync_all()?;
        Ok(store)
    }

    fn number(&self, key: &[u8]) -> Result<Option<u64>> {
        let Some(value) = guarded("reading it", || Ok(self.db.get(key)?))? else {
            return Ok(None);
        };
        let bytes = value.as_ref().try_into();
        let bytes = bytes.map_err(|_| StoreError::Damaged(format!("{key:?} is not a number")))?;
        Ok(Some(u64::from_le_bytes(bytes)))
    }

    fn commit(&mut self, batch: sled::Batch) -> Result<()> {
        guarded("writing it", || {
            self.db.apply_batch(batch)?;
            self.db.flush()?;
            Ok(())
        })?;
        // sled's flush starts the write-back but does not wait for the disk.
        Ok(self.data.sync_data()?)
    }
}

impl KeyValue for SledStore {
    fn sequence(&self) -> Result<u64> {
        Ok(self.number(KEY_SEQUENCE)?.unwrap_or(0))
    }

    fn apply(&mut self, sequence: u64, ops: &[Op]) -> Result<()> {
        let mut batch = sled::Batch::default();
        for op in ops {
            let mut key = vec![RECORD];
            key.extend(&op.key);
            match &op.value {
                Some(value) => batch.insert(key, value.as_slice()),
                None => batch.remove(key),
            }
        }
        batch.insert(KEY_SEQUENCE, &sequence.to_le_bytes());
        self.commit(batch)
    }

    fn content(&self) -> Result<Content> {
        guarded("reading it", || {
            let mut content = Content::new();
            for pair in self.db.scan_prefix([RECORD]) {
                let (key, value) = pair?;
                content.insert(key[1..].to_vec(), value.to_vec());
            }
            Ok(content)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a store one of another format.
    pub(crate) fn set_format(folder: &Path, format: u64) {
        let db = sled::open(folder).unwrap();
        db.insert(KEY_FORMAT, &format.to_le_bytes()).unwrap();
        db.flush().unwrap();
    }

    fn put(key: &str, value: &str) -> Op {
        Op { key: key.into(), value: Some(value.into()) }
    }

    #[test]
    fn batches_are_there_after_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SledStore::open(folder.path()).unwrap();
        assert_eq!(store.sequence().unwrap(), 0);
        store.apply(1, &[put("b", "1"), put("a", "2")]).unwrap();
        store.apply(2, &[Op { key: b"b".to_vec(), value: None }, put("c", "3")]).unwrap();
        drop(store);
        let store = SledStore::open(folder.path()).unwrap();
        assert_eq!(store.sequence().unwrap(), 2);
        let expected = [("a", "2"), ("c", "3")].map(|(k, v)| (k.into(), v.into()));
        assert_eq!(store.content().unwrap(), Content::from(expected));
    }

    #[test]
    fn a_store_of_a_newer_format_is_refused_by_number() {
        let folder = tempfile::tempdir().unwrap();
        drop(SledStore::open(folder.path()).unwrap());
        set_format(folder.path(), 3);
        for _ in 0..2 {
            // Nothing was changed by being refused.
            let error = SledStore::open(folder.path()).unwrap_err();
            assert!(matches!(error, StoreError::Newer { found: 3 }), "{error}");
        }
    }

    #[test]
    fn a_store_of_the_first_format_is_read_and_becomes_one_of_this() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SledStore::open(folder.path()).unwrap();
        store.apply(1, &[put("a", "1")]).unwrap();
        drop(store);
        set_format(folder.path(), 1);
        let store = SledStore::open(folder.path()).unwrap();
        assert_eq!(store.content().unwrap().len(), 1);
        assert_eq!(store.number(KEY_FORMAT).unwrap(), Some(u64::from(FORMAT)));
    }

    #[test]
    fn an_unreadable_store_is_an_error_not_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        drop(SledStore::open(folder.path()).unwrap());
        std::fs::write(folder.path().join("conf"), b"no settings of a store").unwrap();
        assert!(SledStore::open(folder.path()).is_err());
    }
}
