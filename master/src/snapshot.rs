//! Snapshots of the store, checked as a start of the master would: format, every record, and the
//! state machine that comes of them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use control::record::Record;
use control::{Control, Settings, Write};
use storage::snapshot::{self, SnapshotError, Summary};

use crate::clock::Clock;
use crate::codec;
use crate::seal::Seal;
use crate::state_dir::StateDir;
use crate::store::{Op, StoreError};
use crate::vault::Vault;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error("cannot open the snapshot {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("the snapshot {path} cannot be used")]
    Snapshot { path: PathBuf, source: SnapshotError },
    #[error("the snapshot {path} is whole, but no master can start from it: {words}")]
    State { path: PathBuf, words: String },
    #[error(
        "the state folder {path} is not empty (it has {found:?}): restore into a fresh one, and \
         keep the old one until all is well"
    )]
    NotEmpty { path: PathBuf, found: String },
    #[error("cannot write the state folder")]
    Store(#[source] StoreError),
}

impl From<io::Error> for RestoreError {
    fn from(error: io::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Reads a snapshot whole and rehearses a start from it.
///
/// # Returns
/// What it holds, and the changes that make a store of it.
fn read(
    path: &Path,
    settings: Settings,
    clock: Clock,
    seal: Option<&Seal>,
) -> Result<(Summary, Vec<Op>), RestoreError> {
    let file =
        File::open(path).map_err(|source| RestoreError::Open { path: path.to_owned(), source })?;
    let mut records: Vec<Record> = Vec::new();
    let mut ops = Vec::new();
    let summary = snapshot::read(file, |key, value| {
        records.push(codec::decode(key, value, seal).map_err(|error| error.to_string())?);
        ops.push(match seal {
            // One of before the store had a key.
            Some(seal) if !codec::is_sealed(value) => {
                codec::sealed_op(key.to_vec(), value, seal).map_err(|error| error.to_string())?
            }
            _ => Op { key: key.to_vec(), value: Some(value.to_vec()) },
        });
        Ok(())
    })
    .map_err(|source| RestoreError::Snapshot { path: path.to_owned(), source })?;
    let started = Control::new(settings, clock.now(), records);
    started.map_err(|error| RestoreError::State {
        path: path.to_owned(),
        words: storage::chain(&error),
    })?;
    Ok((summary, ops))
}

/// Checks a snapshot to the last byte and record; changes nothing.
pub(crate) fn verify(
    path: &Path,
    settings: Settings,
    clock: Clock,
    seal: Option<&Seal>,
) -> Result<Summary, RestoreError> {
    Ok(read(path, settings, clock, seal)?.0)
}

/// Makes the store of a state folder from a snapshot. The folder must hold no store: nothing is
/// ever overwritten. Killed at any point, it leaves either none or all of it.
pub(crate) fn restore(
    path: &Path,
    state_dir: &StateDir,
    settings: Settings,
    clock: Clock,
    seal: Option<&Seal>,
) -> Result<Summary, RestoreError> {
    refuse_used(state_dir.path())?;
    let (summary, mut ops) = read(path, settings, clock, seal)?;
    succeed(&mut ops, clock, seal)
        .map_err(|words| RestoreError::State { path: path.to_owned(), words })?;
    let scratch = state_dir.path().join("restoring");
    if scratch.exists() {
        // What an interrupted restore left; it was never a store.
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir(&scratch)?;
    let (mut vault, _) =
        Vault::open(&scratch, summary.header.clone()).map_err(RestoreError::Store)?;
    vault.commit(&ops).map_err(RestoreError::Store)?;
    if let Some(trouble) = vault.trouble() {
        let words = io::Error::other(trouble.to_owned());
        return Err(RestoreError::Store(StoreError::Io(words)));
    }
    drop(vault);
    fs::rename(scratch.join("data"), state_dir.path().join("data"))?;
    fs::remove_dir(&scratch)?;
    File::open(state_dir.path())?.sync_all()?;
    Ok(summary)
}

/// The store counts its masters' lives on from a number that none of those on the old one has
/// reached: agents obey this one from now on, and the old one no more.
fn succeed(ops: &mut [Op], clock: Clock, seal: Option<&Seal>) -> Result<(), String> {
    for op in ops {
        let Some(value) = op.value.as_ref() else { continue };
        let record = codec::decode(&op.key, value, seal).map_err(|error| error.to_string())?;
        let Record::MetaV1(meta) = record else { continue };
        let meta = Record::MetaV1(meta.succeeding(clock.now().unix));
        let fresh = codec::encode(&[Write::Put(meta)], seal).map_err(|error| error.to_string())?;
        op.value = fresh.into_iter().next().and_then(|fresh| fresh.value);
    }
    Ok(())
}

fn refuse_used(folder: &Path) -> Result<(), RestoreError> {
    // What a start makes before it has any state.
    let harmless = ["lock", "restoring", "ballast", "reset.keys"];
    for entry in fs::read_dir(folder)? {
        let found = entry?.file_name().to_string_lossy().into_owned();
        if !harmless.contains(&found.as_str()) {
            return Err(RestoreError::NotEmpty { path: folder.to_owned(), found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use control::command::Command;
    use control::record::Meta;
    use storage::snapshot::Header;

    use super::*;

    /// A snapshot of the store of a master that has just started.
    fn sample(folder: &Path) -> (PathBuf, Vec<u8>) {
        let clock = Clock::start();
        let (_, commands) = Control::new(Settings::default(), clock.now(), vec![]).unwrap();
        let mut writer = snapshot::Writer::new(&Header::default());
        for command in commands {
            if let Command::Persist(writes) = command {
                for op in codec::encode(&writes, None).unwrap() {
                    writer.record(&op.key, &op.value.unwrap()).unwrap();
                }
            }
        }
        let (path, bytes) = (folder.join("s.snapshot"), writer.finish());
        fs::write(&path, &bytes).unwrap();
        (path, bytes)
    }

    #[test]
    fn a_snapshot_comes_back_as_the_store_it_was_of() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = sample(folder.path());
        let clock = Clock::start();
        let state_dir = StateDir::take(&folder.path().join("state")).unwrap();
        let summary = restore(&path, &state_dir, Settings::default(), clock, None).unwrap();
        assert!(summary.records > 0);
        let (vault, notes) = Vault::open(state_dir.path(), Header::default()).unwrap();
        assert_eq!(notes, Vec::<String>::new());
        // All but the count of lives, which goes on from a number that nobody has reached.
        let records = |path: &Path| {
            let (mut meta, mut others) = (None, Vec::new());
            let file = File::open(path).unwrap();
            snapshot::read(file, |key, value| {
                if let Record::MetaV1(found) = codec::decode(key, value, None).unwrap() {
                    meta = Some(found);
                } else {
                    others.push((key.to_vec(), value.to_vec()));
                }
                Ok(())
            })
            .unwrap();
            (meta.unwrap(), others)
        };
        let again = folder.path().join("again");
        fs::write(&again, vault.export(&Header::default()).unwrap()).unwrap();
        let ((before, others), (after, same)) = (records(&path), records(&again));
        assert_eq!(same, others);
        assert_eq!(Meta { starts: before.starts, ..after }, before);
        assert!(before.starts <= after.starts);
        drop(vault);
        let again = restore(&path, &state_dir, Settings::default(), clock, None).unwrap_err();
        assert!(matches!(again, RestoreError::NotEmpty { .. }), "{again}");
    }

    #[test]
    fn a_snapshot_with_any_byte_changed_or_cut_is_refused_and_leaves_no_store() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = sample(folder.path());
        let clock = Clock::start();
        verify(&path, Settings::default(), clock, None).unwrap();
        let state_dir = StateDir::take(&folder.path().join("state")).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x11;
            fs::write(&path, &changed).unwrap();
            let outcome = restore(&path, &state_dir, Settings::default(), clock, None);
            assert!(outcome.is_err(), "byte {at} passed unseen");
            fs::write(&path, &bytes[..at]).unwrap();
            assert!(
                verify(&path, Settings::default(), clock, None).is_err(),
                "a cut at {at} passed"
            );
        }
        assert!(!state_dir.path().join("data").exists());
    }

    #[test]
    fn a_whole_snapshot_of_foreign_records_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.snapshot");
        let mut writer = snapshot::Writer::new(&Header::default());
        writer.record(&[200], b"what is this").unwrap();
        fs::write(&path, writer.finish()).unwrap();
        let error = verify(&path, Settings::default(), Clock::start(), None).unwrap_err();
        assert!(storage::chain(&error).contains("cannot take record 0"), "{error}");
    }

    #[test]
    fn a_snapshot_of_a_store_with_a_key_needs_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = sample(folder.path());
        let (clock, seal) = (Clock::start(), Seal::new(&[3; 32]));
        // A plain one is sealed as it is restored.
        let state_dir = StateDir::take(&folder.path().join("state")).unwrap();
        restore(&path, &state_dir, Settings::default(), clock, Some(&seal)).unwrap();
        let (vault, _) = Vault::open(state_dir.path(), Header::default()).unwrap();
        let content = vault.records().unwrap();
        assert!(content.values().all(|value| codec::is_sealed(value)));
        fs::write(&path, vault.export(&Header::default()).unwrap()).unwrap();
        verify(&path, Settings::default(), clock, Some(&seal)).unwrap();
        let without = verify(&path, Settings::default(), clock, None).unwrap_err();
        assert!(storage::chain(&without).contains("store_key"), "{without:?}");
        let other = verify(&path, Settings::default(), clock, Some(&Seal::new(&[4; 32])));
        assert!(storage::chain(&other.unwrap_err()).contains("sealed with another"));
    }
}
