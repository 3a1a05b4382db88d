//! What tasks ask for to make a checkpoint, and to resume from one.
//!
//! Parts are written into the spool by tasks, and stored from there by the agent. Before that the
//! workers meet by marks: small texts that are written once and never changed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::CheckpointId;
use model::agent::CheckpointOrder;
use serde_json::{Map, Value, json};
use storage::checkpoint::{self, CheckpointError, Manifest};
use storage::{Storage, Sum};

use super::spool::{Checkpoint, plain};
use super::{Answer, Kind, Request, Service, Trouble, Wanted, transfer};
use crate::clock;
use crate::daemon::Event;

/// A task may hear of an order from another node before this agent does.
const ORDER_LIMIT: Duration = Duration::from_secs(10);
/// While storage is away, workers that stand still wait this long for it, and others longer.
const HELD_MS: u64 = 20_000;
const UNHELD_MS: u64 = 90_000;
/// A generation that cannot read its checkpoint waits this long before it gives up.
const RESUME_MS: u64 = 150_000;
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How often a file of another node is looked for.
const LOOK_FIRST: Duration = Duration::from_millis(25);
const LOOK_MAX: Duration = Duration::from_millis(400);
/// Parts of one checkpoint from one node, and bytes of the marks of one.
const PARTS_MAX: usize = 4096;
const MARKS_BYTES_MAX: usize = 32 << 20;

/// The marks and parts of the present checkpoint.
#[derive(Debug, Default)]
pub(super) struct Present {
    checkpoint: CheckpointId,
    marks: BTreeMap<String, Vec<u8>>,
    parts: usize,
}

impl Present {
    fn of(&mut self, checkpoint: CheckpointId) -> &mut Self {
        if self.checkpoint != checkpoint {
            *self = Self { checkpoint, ..Self::default() };
        }
        self
    }
}

fn stands(wanted: &Wanted, id: CheckpointId) -> bool {
    wanted.order.as_ref().is_some_and(|order| order.checkpoint == id && !order.released)
}

fn called_off() -> Trouble {
    Trouble::new(Kind::Refused, "the checkpoint was called off")
}

fn limit_ms(order: &CheckpointOrder) -> u64 {
    if order.hold { HELD_MS } else { UNHELD_MS }
}

impl Service {
    /// The order that a request names, once it is here.
    async fn ordered(&self, request: &Request) -> Result<(CheckpointOrder, Checkpoint), Trouble> {
        let id = CheckpointId(request.number("checkpoint")?);
        let mut wanted = self.wanted.clone();
        let wait = wanted.wait_for(|wanted| stands(wanted, id));
        let order = match tokio::time::timeout(ORDER_LIMIT, wait).await {
            Ok(Ok(wanted)) => wanted.order.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        let order = order.ok_or_else(called_off)?;
        let of = Checkpoint::of(&order.directory)?;
        if of.job != self.key.job || of.generation != self.key.generation {
            return Err(Trouble::new(Kind::Refused, "the order is of another generation"));
        }
        Ok((order, of))
    }

    /// Does work for as long as the checkpoint is wanted.
    async fn while_wanted<T>(
        &self,
        id: CheckpointId,
        work: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        let mut wanted = self.wanted.clone();
        tokio::select! {
            done = work => done,
            // An error is the end of the generation.
            _ = wanted.wait_for(|wanted| !stands(wanted, id)) => Err(called_off()),
        }
    }

    fn present<T>(&self, id: CheckpointId, look: impl FnOnce(&mut Present) -> T) -> T {
        // A panic leaves nothing half done that matters here.
        look(self.present.lock().unwrap_or_else(PoisonError::into_inner).of(id))
    }

    /// `spool {checkpoint}`: a folder on this node to write parts into.
    pub(super) async fn spool(&self, request: &Request) -> Result<Answer, Trouble> {
        let (_, of) = self.ordered(request).await?;
        let spool = self.gateway.spool.clone();
        let resume = self.wanted.borrow().resume.clone();
        let make = move || {
            // On a node of servers nobody has made room yet.
            if !spool.folder(&of).exists() {
                let resume = resume.and_then(|url| Checkpoint::of(&url).ok());
                let live: Vec<Checkpoint> = resume.into_iter().chain([of.clone()]).collect();
                spool.make_room(of.job, &live)?;
            }
            spool.make(&of)
        };
        let path = self.gateway.blocking(make).await?;
        Ok(Answer::new([("path", path.display().to_string().into())]))
    }

    /// `put {checkpoint, files, wait}`: stores parts that were written into the spool, in their
    /// order. Answers with their sizes and checksums as `parts`, or at once where the asker does
    /// not wait: then a failure is told to the master.
    pub(super) async fn put(&self, request: &Request) -> Result<Answer, Trouble> {
        let (order, of) = self.ordered(request).await?;
        let files = request.texts("files")?;
        let files: Vec<String> = files
            .into_iter()
            .map(|file| plain(file).map(str::to_owned))
            .collect::<Result<_, _>>()?;
        let id = order.checkpoint;
        let parts = self.present(id, |present| {
            present.parts = present.parts.saturating_add(files.len());
            present.parts
        });
        if PARTS_MAX < parts {
            return Err(Trouble::new(Kind::Refused, "more parts than a checkpoint can have"));
        }
        if request.flag("wait") {
            let parts = self.store(&order, &of, &files).await?;
            return Ok(Answer::new([("parts", parts.into())]));
        }
        let service = self.clone();
        tokio::spawn(async move { service.store_for_nobody(&order, &of, &files).await });
        Ok(Answer::default())
    }

    /// Stores parts that no task waits for.
    async fn store_for_nobody(&self, order: &CheckpointOrder, of: &Checkpoint, files: &[String]) {
        let (key, checkpoint) = (self.key, order.checkpoint);
        if let Err(trouble) = self.store(order, of, files).await
            && stands(&self.wanted.borrow(), checkpoint)
        {
            // The loop has ended where nobody listens any more.
            let why = trouble.words;
            let _ = self.gateway.events.send(Event::Part { key, checkpoint, why }).await;
        }
    }

    /// Stores what servers handed over to an earlier life of the agent. One that does so itself
    /// meanwhile does no harm: the same part is stored once.
    pub(super) async fn take_up(&self) {
        let order = self.wanted.borrow().order.clone();
        let Some(order) = order.filter(|order| !order.released) else { return };
        let Ok(of) = Checkpoint::of(&order.directory) else { return };
        for name in self.gateway.spool.files(&of) {
            // A server's table comes last: its part is whole.
            let server = name.strip_suffix(".json").filter(|name| name.starts_with("server-"));
            if let Some(server) = server {
                let files = [format!("{server}.npz"), name.clone()];
                self.store_for_nobody(&order, &of, &files).await;
            }
        }
    }

    async fn store(
        &self,
        order: &CheckpointOrder,
        of: &Checkpoint,
        files: &[String],
    ) -> Result<Vec<Value>, Trouble> {
        let mut parts = Vec::with_capacity(files.len());
        for file in files {
            let Sum { bytes, crc32 } = self.store_one(order, of, file).await?;
            parts.push(json!({"file": file, "bytes": bytes, "crc32": crc32}));
        }
        Ok(parts)
    }

    async fn store_one(
        &self,
        order: &CheckpointOrder,
        of: &Checkpoint,
        file: &str,
    ) -> Result<Sum, Trouble> {
        let stored = self.patiently(limit_ms(order), || {
            let (gateway, of, file) = (Arc::clone(&self.gateway), of.clone(), file.to_owned());
            move || {
                let (mut content, bytes) = gateway.spool.open(&of, &file)?;
                let storage = gateway.storage(&of.base)?;
                transfer::upload(storage.as_ref(), &of.file(&file), (&mut content, bytes))
            }
        });
        self.while_wanted(order.checkpoint, stored).await
    }

    /// Does work again while storage is away, for so many ms. A try under way is never cut: a large
    /// part may take its time.
    async fn patiently<T, W>(&self, limit_ms: u64, work: impl Fn() -> W) -> Result<T, Trouble>
    where
        T: Send + 'static,
        W: FnOnce() -> Result<T, Trouble> + Send + 'static,
    {
        let until = clock::now().plus(limit_ms);
        let mut rest = RETRY_FIRST;
        loop {
            match self.gateway.blocking(work()).await {
                Err(trouble) if trouble.kind == Kind::Unavailable && clock::now() < until => {
                    tracing::debug!(key = %self.key, words = trouble.words, "tried again soon");
                }
                other => return other,
            }
            tokio::time::sleep(rest).await;
            rest = (rest * 2).min(RETRY_MAX);
        }
    }

    /// `get {checkpoint, file}`: the content of a small part of the present checkpoint, once its
    /// node has stored it.
    pub(super) async fn get(&self, request: &Request) -> Result<Answer, Trouble> {
        let (order, of) = self.ordered(request).await?;
        let path = of.file(plain(request.text("file")?)?);
        let until = clock::now().plus(limit_ms(&order));
        let found = async {
            let mut rest = LOOK_FIRST;
            loop {
                let (gateway, base, path) =
                    (Arc::clone(&self.gateway), of.base.clone(), path.clone());
                let read = move || {
                    let storage = gateway.storage(&base)?;
                    storage.read(&path).map_err(|error| transfer::trouble(&error))
                };
                match self.gateway.blocking(read).await {
                    // Its node tells the master where it cannot store it.
                    Err(Trouble { kind: Kind::Missing, .. }) => {}
                    Err(trouble) if trouble.kind == Kind::Unavailable && clock::now() < until => {}
                    other => return other,
                }
                tokio::time::sleep(rest).await;
                rest = (rest * 2).min(LOOK_MAX);
            }
        };
        let content = self.while_wanted(order.checkpoint, found);
        Ok(Answer::default().with_body(content.await?))
    }

    /// `mark {checkpoint, name}` with a body: says something to the workers that meet here.
    pub(super) async fn mark(&self, request: Request) -> Result<Answer, Trouble> {
        let (order, of) = self.ordered(&request).await?;
        let name = plain(request.text("name")?)?.to_owned();
        let body = request.frame.body;
        let fits = self.present(order.checkpoint, |present| {
            let bytes: usize = present.marks.values().map(Vec::len).sum();
            let fits = bytes + body.len() <= MARKS_BYTES_MAX && present.marks.len() < PARTS_MAX;
            if fits {
                present.marks.insert(name.clone(), body.clone());
            }
            fits
        });
        if !fits {
            return Err(Trouble::new(Kind::Refused, "more marks than workers can make"));
        }
        if !self.alone {
            // Workers stand still until they have met.
            let stored = self.patiently(HELD_MS, || {
                let (gateway, base) = (Arc::clone(&self.gateway), of.base.clone());
                let (path, body) = (of.file(&name), body.clone());
                move || match gateway.storage(&base)?.publish(&path, &body) {
                    // Its first try may have come further than was told.
                    Ok(()) | Err(storage::Error::AlreadyExists { .. }) => Ok(()),
                    Err(error) => Err(transfer::trouble(&error)),
                }
            });
            self.while_wanted(order.checkpoint, stored).await?;
        }
        Ok(Answer::default())
    }

    /// `marks {checkpoint, names}`: those of the names that are there by now, with their texts.
    pub(super) async fn marks(&self, request: &Request) -> Result<Answer, Trouble> {
        let (order, of) = self.ordered(request).await?;
        let names = request.texts("names")?;
        let known = |present: &mut Present| {
            let found = names.iter().filter_map(|name| {
                let body = present.marks.get(*name)?;
                Some(((*name).to_owned(), Value::from(String::from_utf8_lossy(body).into_owned())))
            });
            found.collect::<Map<String, Value>>()
        };
        let mut marks = self.present(order.checkpoint, known);
        let missing: Vec<String> = names
            .iter()
            .filter(|name| !marks.contains_key(**name))
            .map(|name| plain(name).map(str::to_owned))
            .collect::<Result<_, _>>()?;
        if !missing.is_empty() && !self.alone {
            let gateway = Arc::clone(&self.gateway);
            let look = self.gateway.blocking(move || read_marks(&gateway, &of, missing));
            let found = self.while_wanted(order.checkpoint, look).await?;
            for (name, body) in found {
                let text = String::from_utf8_lossy(&body).into_owned();
                marks.insert(name.clone(), text.into());
                self.present(order.checkpoint, |present| present.marks.insert(name, body));
            }
        }
        Ok(Answer::new([("marks", marks.into())]))
    }

    /// `fetch {directory, file}`: a part of the checkpoint to resume from, as a file of this node.
    pub(super) async fn fetch(&self, request: &Request) -> Result<Answer, Trouble> {
        let directory = request.text("directory")?;
        let file = plain(request.text("file")?)?.to_owned();
        let mut wanted = self.wanted.clone();
        let wait = wanted.wait_for(|wanted| wanted.resume.as_deref() == Some(directory));
        // After a restart the agent learns of it again with the next desired set.
        if !matches!(tokio::time::timeout(ORDER_LIMIT, wait).await, Ok(Ok(_))) {
            let words = format!("{directory:?} is not the checkpoint to resume from");
            return Err(Trouble::new(Kind::Refused, words));
        }
        let of = Checkpoint::of(directory)?;
        if of.job != self.key.job {
            return Err(Trouble::new(Kind::Refused, "it is a checkpoint of another job"));
        }
        let one = self.gateway.one_at_a_time(&of.file(&file));
        let _alone = one.lock().await;
        let brought = self.patiently(RESUME_MS, || {
            let (gateway, of, file) = (Arc::clone(&self.gateway), of.clone(), file.clone());
            move || bring(&gateway, &of, &file)
        });
        Ok(Answer::new([("path", brought.await?.into())]))
    }
}

/// Those of the names that are in storage.
fn read_marks(
    gateway: &super::Gateway,
    of: &Checkpoint,
    names: Vec<String>,
) -> Result<Vec<(String, Vec<u8>)>, Trouble> {
    let storage = gateway.storage(&of.base)?;
    let there = storage.list(&of.directory()).map_err(|error| transfer::trouble(&error))?;
    let here = |name: &String| there.iter().any(|entry| entry.name == *name);
    let read = |name: String| {
        let body = storage.read(&of.file(&name)).map_err(|error| transfer::trouble(&error))?;
        Ok((name, body))
    };
    names.into_iter().filter(here).map(read).collect()
}

/// Has a part of a published checkpoint on this node: as it lies in the spool, where that is what
/// the manifest promises, else from storage.
fn bring(gateway: &super::Gateway, of: &Checkpoint, file: &str) -> Result<String, Trouble> {
    let storage = gateway.storage(&of.base)?;
    let manifest = gateway.manifest(of, || load_manifest(storage.as_ref(), of))?;
    let part = manifest.parts.iter().find(|part| part.file == file);
    let path = gateway.spool.folder(of).join(file);
    if let Some(part) = part
        && let Ok((mut content, bytes)) = gateway.spool.open(of, file)
        && bytes == part.bytes
        && gateway.proved.holds(&path, &mut content, part.crc32)
    {
        return Ok(path.display().to_string());
    }
    gateway.spool.make(of)?;
    let (mut coming, from) = gateway.spool.fresh(of, file)?;
    let sum = transfer::download(storage.as_ref(), &of.file(file), &mut coming)?;
    if let Some(part) = part
        && (sum.bytes, sum.crc32) != (part.bytes, part.crc32)
    {
        let words = format!("{file} has {} bytes of crc32 {:08x}", sum.bytes, sum.crc32);
        let words = format!("{words} instead of {} bytes of crc32 {:08x}", part.bytes, part.crc32);
        return Err(Trouble::new(Kind::Damaged, words));
    }
    gateway.spool.keep(of, file, (&coming, &from))?;
    Ok(path.display().to_string())
}

fn load_manifest(storage: &dyn Storage, of: &Checkpoint) -> Result<Manifest, Trouble> {
    let path = checkpoint::manifest_path(of.job, of.generation, of.id);
    checkpoint::load_manifest(storage, &path).map_err(|error| match &error {
        CheckpointError::Storage(error) => transfer::trouble(error),
        CheckpointError::Damaged { .. }
        | CheckpointError::Manifest { .. }
        | CheckpointError::Request { .. } => Trouble::new(Kind::Damaged, storage::chain(&error)),
    })
}

/// Files that were read and found to be what they should be, as they stood then: the servers of a
/// node ask for the same ones, one after another.
#[derive(Debug, Default)]
pub(super) struct Proved(Mutex<BTreeMap<PathBuf, (u32, [i64; 4])>>);

impl Proved {
    /// Whether a file has this checksum.
    fn holds(&self, path: &Path, file: &mut File, crc32: u32) -> bool {
        let Ok(found) = file.metadata() else { return false };
        let inode = i64::try_from(found.ino()).unwrap_or(-1);
        let stands = (crc32, [found.mtime(), found.mtime_nsec(), found.ctime_nsec(), inode]);
        let proved = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if proved().get(path) == Some(&stands) {
            return true;
        }
        let holds = transfer::sum(file).is_ok_and(|sum| sum.crc32 == crc32);
        let mut proved = proved();
        if PARTS_MAX <= proved.len() {
            proved.clear();
        }
        if holds {
            proved.insert(path.to_owned(), stands);
        }
        holds
    }
}

/// Locks by name, for work that is of no use twice at a time.
#[derive(Debug, Default)]
pub(super) struct Locks(Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Locks {
    pub(super) fn of(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| 1 < Arc::strong_count(lock));
        Arc::clone(locks.entry(name.to_owned()).or_default())
    }
}
