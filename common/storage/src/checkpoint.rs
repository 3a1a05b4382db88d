//! Checkpoints that can be trusted: a manifest names every part with its size and checksum, and
//! appears only after all of them were read back.
//!
//! ```text
//! <base>/j12/g00000003-c00000007/…                     the parts, written by the job
//! <base>/j12/manifest-g00000003-c00000007.json         published last, by the master
//! ```
//! A folder without a manifest, or one whose parts do not match it, is never resumed from,
//! however new it is.

use model::agent::Part;
use model::{CheckpointId, Generation, JobId};
use serde::{Deserialize, Serialize};

use crate::file::TEMPORARY;
use crate::{Entry, EntryKind, Error, HdfsSettings, Storage};

/// The schema that this module writes and the only one it reads.
pub const SCHEMA: &str = "optimus.manifest/1";

/// Parts of one checkpoint: 4,096 servers with two files each, and some.
const PARTS_MAX: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("cannot use the checkpoint: {0}")]
    Storage(#[from] Error),
    /// A part is missing or differs from what was promised.
    #[error("checkpoint {name} is damaged: {problem}")]
    Damaged { name: String, problem: String },
    /// The manifest is not one, or not of this checkpoint.
    #[error("{path} is not a manifest that can be used: {problem}")]
    Manifest { path: String, problem: String },
    /// What the caller gave does not describe a checkpoint of this job.
    #[error("cannot publish checkpoint {name}: {problem}")]
    Request { name: String, problem: String },
}

impl CheckpointError {
    /// True where the same call may succeed later without anybody's help.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Storage(error) if error.is_temporary())
    }
}

/// What a manifest says. `parts` lie in `directory`, relative to the base of the job's
/// checkpoints, so that a moved base stays usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub job: JobId,
    pub generation: Generation,
    pub checkpoint: CheckpointId,
    pub step: u64,
    pub epoch: u32,
    /// Samples of the epoch that all workers together have seen.
    pub epoch_position: u64,
    pub directory: String,
    pub parts: Vec<Part>,
}

/// A manifest as JSON. Ids are text, as everywhere in JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    job: String,
    generation: String,
    checkpoint: String,
    step: u64,
    epoch: u32,
    epoch_position: u64,
    directory: String,
    bytes: u64,
    parts: Vec<DocumentPart>,
    /// CRC-32 of this document in compact form with this number zero: a flipped digit in `step`
    /// would otherwise resume the job at a wrong place.
    crc32: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DocumentPart {
    file: String,
    bytes: u64,
    crc32: u32,
}

/// `g00000003-c00000007`: the name of a checkpoint's folder, sorted by age within a job.
#[must_use]
pub fn name(generation: Generation, checkpoint: CheckpointId) -> String {
    format!("g{:08}-c{:08}", generation.0, checkpoint.0)
}

/// The folder of a checkpoint's parts, relative to the base.
#[must_use]
pub fn directory(job: JobId, generation: Generation, checkpoint: CheckpointId) -> String {
    format!("{job}/{}", name(generation, checkpoint))
}

/// The path of a manifest, relative to the base.
#[must_use]
pub fn manifest_path(job: JobId, generation: Generation, checkpoint: CheckpointId) -> String {
    format!("{job}/manifest-{}.json", name(generation, checkpoint))
}

/// Generation and checkpoint from `g00000003-c00000007`.
#[must_use]
pub fn parse_name(name: &str) -> Option<(Generation, CheckpointId)> {
    let (generation, checkpoint) = name.split_once('-')?;
    let number = |text: &str, prefix: char| -> Option<u64> {
        let digits = text.strip_prefix(prefix)?;
        let plain = digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse().ok())?
    };
    Some((Generation(number(generation, 'g')?), CheckpointId(number(checkpoint, 'c')?)))
}

/// A URL below `base`, as a path relative to it.
fn below<'a>(base: &str, url: &'a str) -> Option<&'a str> {
    url.strip_prefix(base.trim_end_matches('/'))?.strip_prefix('/').filter(|path| !path.is_empty())
}

impl Manifest {
    #[must_use]
    pub fn name(&self) -> String {
        name(self.generation, self.checkpoint)
    }

    #[must_use]
    pub fn path(&self) -> String {
        manifest_path(self.job, self.generation, self.checkpoint)
    }

    /// Bytes of all parts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// What is wrong with it as it stands, before any file is looked at.
    fn problem(&self) -> Option<String> {
        let job_folder = format!("{}/", self.job);
        if !self.directory.starts_with(&job_folder) {
            return Some(format!("its folder {:?} is not the job's", self.directory));
        }
        if self.parts.is_empty() || PARTS_MAX < self.parts.len() {
            return Some(format!("it has {} parts; 1 to {PARTS_MAX} are usual", self.parts.len()));
        }
        let mut names: Vec<&str> = self.parts.iter().map(|part| part.file.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Some(format!("it names part {:?} twice", pair[0]));
        }
        let odd = names.iter().find(|name| {
            name.is_empty() || **name == "." || **name == ".." || name.contains(['/', '\0'])
        });
        odd.map(|name| format!("part {name:?} is not a plain file name"))
    }

    fn document(&self, crc32: u32) -> Document {
        let part = |part: &Part| DocumentPart {
            file: part.file.clone(),
            bytes: part.bytes,
            crc32: part.crc32,
        };
        Document {
            schema: SCHEMA.to_owned(),
            job: self.job.to_string(),
            generation: self.generation.to_string(),
            checkpoint: self.checkpoint.to_string(),
            step: self.step,
            epoch: self.epoch,
            epoch_position: self.epoch_position,
            directory: self.directory.clone(),
            bytes: self.bytes(),
            parts: self.parts.iter().map(part).collect(),
            crc32,
        }
    }

    fn checksum(&self) -> u32 {
        let compact = serde_json::to_vec(&self.document(0)).expect("plain data is valid JSON");
        crc32fast::hash(&compact)
    }

    /// The manifest file's content: JSON for people, ending in a line feed.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let document = self.document(self.checksum());
        let mut json = serde_json::to_vec_pretty(&document).expect("plain data is valid JSON");
        json.push(b'\n');
        json
    }

    /// Reads what [`Self::to_json`] wrote.
    ///
    /// # Errors
    /// In words: truncated, changed, or of another schema.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let document: Document = serde_json::from_slice(json)
            .map_err(|error| format!("it is truncated or not a manifest: {error}"))?;
        if document.schema != SCHEMA {
            return Err(format!("its schema is {:?}, this build reads {SCHEMA}", document.schema));
        }
        let wrong = |error: model::InvalidName| error.to_string();
        let part =
            |part: DocumentPart| Part { file: part.file, bytes: part.bytes, crc32: part.crc32 };
        let manifest = Self {
            job: document.job.parse().map_err(wrong)?,
            generation: document.generation.parse().map_err(wrong)?,
            checkpoint: document.checkpoint.parse().map_err(wrong)?,
            step: document.step,
            epoch: document.epoch,
            epoch_position: document.epoch_position,
            directory: document.directory,
            parts: document.parts.into_iter().map(part).collect(),
        };
        if document.crc32 != manifest.checksum() || document.bytes != manifest.bytes() {
            return Err("its checksum does not match its content".to_owned());
        }
        manifest.problem().map_or(Ok(manifest), Err)
    }
}

/// Reads every part back and compares size and checksum.
///
/// # Errors
/// [`CheckpointError::Damaged`] with the first part that differs or is missing.
pub fn verify(storage: &dyn Storage, manifest: &Manifest) -> Result<(), CheckpointError> {
    let damaged = |problem| CheckpointError::Damaged { name: manifest.name(), problem };
    for part in &manifest.parts {
        let found = match storage.size_and_crc32(&format!("{}/{}", manifest.directory, part.file)) {
            Err(error @ (Error::NotFound { .. } | Error::NotAFile { .. } | Error::Path { .. })) => {
                return Err(damaged(error.to_string()));
            }
            other => other?,
        };
        if found.bytes != part.bytes {
            let (file, have, want) = (&part.file, found.bytes, part.bytes);
            return Err(damaged(format!("part {file} has {have} bytes, not {want}")));
        }
        if found.crc32 != part.crc32 {
            let (file, have, want) = (&part.file, found.crc32, part.crc32);
            return Err(damaged(format!("part {file} has crc32 {have:08x}, not {want:08x}")));
        }
    }
    Ok(())
}

/// Verifies the parts, then publishes the manifest. `base` is the URL of the job's checkpoints,
/// which `storage` was opened with; `directory_url` the folder of the parts below it; the
/// manifest's own `directory` is set from these. Publishing the same manifest again succeeds: the
/// caller may have been killed before it could note the first time.
///
/// # Returns
/// The manifest's URL.
///
/// # Errors
/// Where a part differs, the request is not of this job, or the disk refuses. Nothing is
/// published then.
pub fn publish_manifest(
    storage: &dyn Storage,
    base: &str,
    directory_url: &str,
    mut manifest: Manifest,
) -> Result<String, CheckpointError> {
    let request = |problem| CheckpointError::Request { name: manifest.name(), problem };
    let Some(directory) = below(base, directory_url) else {
        return Err(request(format!("its folder {directory_url} is not below {base}")));
    };
    let directory = directory.to_owned();
    manifest.directory = directory;
    if let Some(problem) = manifest.problem() {
        return Err(CheckpointError::Request { name: manifest.name(), problem });
    }
    verify(storage, &manifest)?;
    // The names of the parts must not vanish with the power after the manifest promised them.
    storage.sync_dir(&manifest.directory)?;
    let path = manifest.path();
    match storage.publish(&path, &manifest.to_json()) {
        Err(Error::AlreadyExists { .. }) => match load_manifest(storage, &path) {
            Ok(found) if found == manifest => Ok(storage.url(&path)),
            Err(error) if error.is_temporary() => Err(error),
            _ => {
                let problem = format!("{} exists already and says otherwise", storage.url(&path));
                Err(CheckpointError::Request { name: manifest.name(), problem })
            }
        },
        other => Ok(other.map(|()| storage.url(&path))?),
    }
}

/// Reads a manifest at a path relative to the base, and checks that it belongs there. The parts
/// are not looked at; see [`verify`].
///
/// # Errors
/// Where it is missing, truncated, changed, or of another checkpoint than its name says.
pub fn load_manifest(storage: &dyn Storage, path: &str) -> Result<Manifest, CheckpointError> {
    let refuse = |problem| CheckpointError::Manifest { path: storage.url(path), problem };
    let manifest = Manifest::from_json(&storage.read(path)?).map_err(refuse)?;
    if manifest.path() != path {
        return Err(refuse(format!("it describes {}, another checkpoint", manifest.path())));
    }
    Ok(manifest)
}

/// Something in a job's folder that cannot be resumed from, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub name: String,
    pub reason: String,
}

/// The newest checkpoint of a job whose manifest and parts are whole, and what was passed over on
/// the way to it, newest first. What is not a checkpoint at all is listed first.
///
/// # Errors
/// Where the job's folder cannot be listed, or the storage cannot serve for now; a job without a
/// folder has no checkpoint.
pub fn newest_valid(
    storage: &dyn Storage,
    job: JobId,
) -> Result<(Option<Manifest>, Vec<Skipped>), CheckpointError> {
    let entries = match storage.list(&job.to_string()) {
        Err(Error::NotFound { .. }) => return Ok((None, Vec::new())),
        other => other?,
    };
    let mut skipped = Vec::new();
    let mut candidates = Vec::new();
    for entry in &entries {
        match sort_entry(entry, &entries) {
            Ok(Some(candidate)) => candidates.push(candidate),
            Ok(None) => {}
            Err(reason) => skipped.push(Skipped { name: entry.name.clone(), reason }),
        }
    }
    candidates.sort_unstable();
    for (generation, checkpoint) in candidates.into_iter().rev() {
        let path = manifest_path(job, generation, checkpoint);
        let valid = load_manifest(storage, &path)
            .and_then(|manifest| verify(storage, &manifest).map(|()| manifest));
        match valid {
            Ok(manifest) => return Ok((Some(manifest), skipped)),
            // It may be whole: to go back to an older one would lose steps for a NameNode's nap.
            Err(CheckpointError::Storage(error)) if error.is_temporary() => {
                return Err(error.into());
            }
            Err(error) => skipped.push(Skipped {
                name: path.rsplit('/').next().unwrap_or_default().to_owned(),
                reason: crate::chain(&error),
            }),
        }
    }
    Ok((None, skipped))
}

/// A manifest by its name, nothing for a folder that has one, or why the entry is passed over.
fn sort_entry(entry: &Entry, all: &[Entry]) -> Result<Option<(Generation, CheckpointId)>, String> {
    let inner =
        |name: &str| name.strip_prefix("manifest-")?.strip_suffix(".json").and_then(parse_name);
    if entry.name.starts_with(TEMPORARY) {
        return Err("its publication was cut short".to_owned());
    }
    if entry.name == crate::dataset::JOB_INDEX {
        return Ok(None);
    }
    match (entry.kind, inner(&entry.name), parse_name(&entry.name)) {
        (EntryKind::File, Some(found), _) => Ok(Some(found)),
        (EntryKind::Folder, _, Some(found)) => {
            let has_manifest = all.iter().any(|other| inner(&other.name) == Some(found));
            has_manifest.then_some(None).ok_or_else(|| "it has no manifest".to_owned())
        }
        _ => Err("it is not part of a checkpoint".to_owned()),
    }
}

/// [`remove_with`] the default settings.
///
/// # Errors
/// See [`remove_with`].
pub fn remove(
    job: JobId,
    manifest_url: Option<&str>,
    directory_url: &str,
) -> Result<(), CheckpointError> {
    remove_with(&HdfsSettings::default(), job, manifest_url, directory_url)
}

/// Removes a checkpoint: first the manifest, so that nothing ever finds one without its parts,
/// then the folder. Both may be gone already. `directory_url` must end in `<job>/<checkpoint>`:
/// nothing else is ever removed.
///
/// # Errors
/// Where the folder is not a checkpoint's, or the disk refuses.
pub fn remove_with(
    settings: &HdfsSettings,
    job: JobId,
    manifest_url: Option<&str>,
    directory_url: &str,
) -> Result<(), CheckpointError> {
    let split = |url: &str| -> Option<(String, String)> {
        let (folder, last) = url.trim_end_matches('/').rsplit_once('/')?;
        let base = folder.strip_suffix(&job.to_string())?.strip_suffix('/')?;
        Some((base.to_owned(), last.to_owned()))
    };
    let refuse = |url: &str| CheckpointError::Request {
        name: url.to_owned(),
        problem: format!("it is not a checkpoint of {job}, so it is not removed"),
    };
    let checkpoint = split(directory_url).and_then(|(base, last)| Some((base, parse_name(&last)?)));
    let Some((base, (generation, checkpoint))) = checkpoint else {
        return Err(refuse(directory_url));
    };
    let storage = crate::open_with(&base, settings)?;
    let gone = |outcome: crate::Result<()>| match outcome {
        Err(Error::NotFound { .. }) => Ok(()),
        other => other,
    };
    let manifest = manifest_path(job, generation, checkpoint);
    if let Some(url) = manifest_url {
        if below(&base, url) != Some(manifest.as_str()) {
            return Err(refuse(url));
        }
        gone(storage.remove(&manifest))?;
    }
    gone(storage.remove(&directory(job, generation, checkpoint)))?;
    Ok(())
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
