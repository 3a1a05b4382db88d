//! Writing: every byte goes to a name that nobody else ever used, and gets its real name by a
//! rename that replaces nothing. What a killed writer leaves is such a name, never one that
//! others trust; and no try writes where an earlier one was.

use std::io::{self, Read};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hdfs_native::file::FileWriter;
use hdfs_native::{HdfsError, WriteOptions};

use super::HdfsStorage;
use super::errors::{Kind, kind};
use super::link::{Link, Patience};
use crate::file::TEMPORARY;
use crate::{BLOCK_BYTES, Error, Result, Storage as _, Sum, UploadOptions};

/// What is read of the source at a time. The client keeps up to 200 packets of 64 KiB beside it.
const PIECE_BYTES: usize = 1 << 20;

/// For one piece, and for the end of a file: the client waits up to 16 s for the last block's
/// copies, and 10 s for a failover. It would wait 60 s for a DataNode that answers nothing; a
/// fresh try, with others, is the sooner way.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// Between two looks at a file that is being closed.
const CLOSE_LOOK_MIN: Duration = Duration::from_millis(20);
const CLOSE_LOOK_MAX: Duration = Duration::from_millis(200);

/// Hadoop's default.
const COPIES: u32 = 3;

/// How long a failed write tries to remove what it left.
const CLEAN_PATIENCE: Duration = Duration::from_secs(2);

static TEMPORARIES: AtomicU64 = AtomicU64::new(0);

/// Why a write ended: the caller's own source, or HDFS.
enum Broken {
    Source(io::Error),
    Hdfs(HdfsError),
}

impl From<HdfsError> for Broken {
    fn from(error: HdfsError) -> Self {
        Self::Hdfs(error)
    }
}

/// A file that is being written under its first name.
struct Draft {
    writer: FileWriter,
    place: String,
    /// Last: the writer's tasks run on it.
    link: Link,
}

impl HdfsStorage {
    /// Writes once, from a source that cannot be read twice.
    pub(super) fn write_once(
        &self,
        path: &str,
        source: &mut dyn Read,
        options: UploadOptions,
    ) -> Result<Sum> {
        let place = self.place(path)?;
        self.refuse_existing(path, &place)?;
        let block_bytes = options.block_bytes.filter(|bytes| *bytes > 0).unwrap_or(BLOCK_BYTES);
        let copies = if options.spread_later { Some(1) } else { options.replication };
        let mut draft = self.create(path, &place, copies, block_bytes)?;
        let written = pump(&mut draft, source, block_bytes);
        let temporary = draft.place.clone();
        // Before the removal: its heartbeats would keep the DataNodes waiting for the rest.
        drop(draft);
        match written {
            Ok(sum) => {
                if options.spread_later {
                    self.spread(&temporary, path, options.replication)?;
                }
                self.name(&temporary, path, &place)?;
                Ok(sum)
            }
            Err(broken) => {
                let left = self.clean(&temporary);
                Err(match broken {
                    Broken::Hdfs(error) => self.told_more("write", path, &error, &left),
                    Broken::Source(source) => {
                        let source = io::Error::new(source.kind(), format!("{source}{left}"));
                        Error::Io { verb: "read what should become", url: self.url(path), source }
                    }
                })
            }
        }
    }

    /// Writes bytes that can be written again, until patience ends.
    pub(super) fn write_bytes(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let mut options = UploadOptions {
            block_bytes: Some(crate::block_bytes_for(bytes.len() as u64)),
            ..UploadOptions::default()
        };
        let mut patience = self.patience();
        let mut tries = 0;
        loop {
            match self.write_once(path, &mut &bytes[..], options) {
                Err(Error::Unavailable { .. }) if self.wait(&mut patience) => tries += 1,
                other => return other.map(drop),
            }
            options.spread_later = crate::TRIES_WITH_COPIES <= tries;
        }
    }

    fn wait(&self, patience: &mut Patience) -> bool {
        self.links.link().is_ok_and(|link| patience.wait(&link))
    }

    /// Asks for the other copies of a file that was written with one.
    fn spread(&self, temporary: &str, path: &str, copies: Option<u32>) -> Result<()> {
        let copies = copies.or_else(|| self.links.default_copies()).unwrap_or(COPIES);
        let (asked, _) = self.links.call(self.patience(), |link| async move {
            link.client.set_replication(temporary, copies).await
        });
        asked.map(drop).map_err(|error| {
            let left = self.clean(temporary);
            self.told_more("ask for copies of", path, &error, &left)
        })
    }

    fn refuse_existing(&self, path: &str, place: &str) -> Result<()> {
        let (found, _) = self
            .links
            .call(self.patience(), |link| async move { link.client.get_file_info(place).await });
        match found {
            Ok(_) => Err(Error::AlreadyExists { url: self.url(path) }),
            Err(error) if kind(&error) == Kind::NotFound => Ok(()),
            Err(error) => Err(self.told("look at", path, &error)),
        }
    }

    /// Creates the file under a name of its own. Each try has another one: a try without an
    /// answer may have made its own.
    fn create(
        &self,
        path: &str,
        place: &str,
        replication: Option<u32>,
        block_bytes: u64,
    ) -> Result<Draft> {
        let mut options = WriteOptions::default().create_parent(false).block_size(block_bytes);
        options.replication = replication;
        let mut patience = self.patience();
        loop {
            let link =
                self.links.writing_link().map_err(|error| self.told("create", path, &error))?;
            let temporary = temporary(place);
            let error = match link.run(WRITE_LIMIT, link.client.create(&temporary, &options)) {
                Ok(writer) => return Ok(Draft { writer, place: temporary, link }),
                Err(error) => error,
            };
            if kind(&error) != Kind::Unavailable {
                return Err(self.told("create", path, &error));
            }
            // Refused in so many words, it made nothing.
            let refused = matches!(error, HdfsError::RPCError(..) | HdfsError::FatalRPCError(..));
            let left = if refused { String::new() } else { self.clean(&temporary) };
            if !patience.wait(&link) {
                return Err(self.told_more("create", path, &error, &left));
            }
        }
    }

    /// Gives a finished file its real name.
    fn name(&self, temporary: &str, path: &str, place: &str) -> Result<()> {
        let (renamed, tries) = self.links.call(self.patience(), |link| async move {
            link.client.rename(temporary, place, false).await
        });
        let Err(error) = renamed else { return Ok(()) };
        let answered = matches!(kind(&error), Kind::AlreadyExists | Kind::NotFound);
        // An earlier try without an answer may have been carried out: only that takes a file of
        // this name away.
        let moved = || self.exists(temporary) == Some(false) && self.exists(place) == Some(true);
        if tries > 1 && answered && moved() {
            return Ok(());
        }
        let left = self.clean(temporary);
        Err(self.told_more("publish", path, &error, &left))
    }

    /// Nothing where there is no answer.
    fn exists(&self, place: &str) -> Option<bool> {
        let (found, _) = self
            .links
            .call(self.patience(), |link| async move { link.client.get_file_info(place).await });
        match found {
            Ok(_) => Some(true),
            Err(error) => (kind(&error) == Kind::NotFound).then_some(false),
        }
    }

    /// Removes a file of this process; where that fails, says what is left.
    fn clean(&self, temporary: &str) -> String {
        let patience = Patience::new(CLEAN_PATIENCE.min(self.links.settings.patience));
        let (removed, _) = self
            .links
            .call(patience, |link| async move { link.client.delete(temporary, false).await });
        match removed {
            Ok(_) => String::new(),
            Err(_) => format!("; its unfinished file {temporary} could not be removed"),
        }
    }
}

/// `.unpublished-NAME.HOST-PROCESS.NUMBER-DRAW` beside the place. The draw makes it a name that
/// no other process ever used, also one with the same number on a host of the same name.
fn temporary(place: &str) -> String {
    let (folder, name) = place.rsplit_once('/').unwrap_or(("", place));
    let number = TEMPORARIES.fetch_add(1, Ordering::Relaxed);
    let draw =
        std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), number);
    format!("{folder}/{TEMPORARY}{name}.{}.{number}-{draw:016x}", std::process::id())
}

/// Copies the source into the file and closes it. Each full block is put on the DataNodes' disks
/// before the next one begins. The last one is not: the client's `hsync` hangs for ever where a
/// DataNode of its block is dead (0.14.8: its shutdown waits for a task that waits for it), and
/// most files are one block.
fn pump(
    draft: &mut Draft,
    source: &mut dyn Read,
    block_bytes: u64,
) -> std::result::Result<Sum, Broken> {
    let (link, writer) = (&draft.link, &mut draft.writer);
    let mut hasher = crc32fast::Hasher::new();
    let mut bytes = 0;
    loop {
        let in_block = block_bytes - bytes % block_bytes;
        let wanted = usize::try_from(in_block).map_or(PIECE_BYTES, |rest| rest.min(PIECE_BYTES));
        let piece = fill(source, wanted).map_err(Broken::Source)?;
        let count = piece.len() as u64;
        if count == 0 {
            break;
        }
        hasher.update(&piece);
        link.run(WRITE_LIMIT, writer.write_bytes(Bytes::from(piece)))?;
        bytes += count;
        if count == in_block {
            sync(link, writer)?;
        }
    }
    close(draft, bytes)?;
    Ok(Sum { bytes, crc32: hasher.finalize() })
}

/// The client asks the NameNode to close the file, and asks again half a second later where the
/// DataNodes have not told of the last block yet, which they do a moment after: that pause would
/// be most of a small checkpoint. So the length that readers see is looked at meanwhile: it counts
/// the last block only when that was asked for and told of, and then the next question succeeds.
fn close(draft: &mut Draft, bytes: u64) -> hdfs_native::Result<()> {
    let Draft { writer, place, link } = draft;
    let closing = writer.close();
    let told = link.run(WRITE_LIMIT, async {
        let mut closing = pin!(closing);
        let mut look = CLOSE_LOOK_MIN;
        loop {
            if let Ok(outcome) = tokio::time::timeout(look, closing.as_mut()).await {
                return outcome.map(|()| false);
            }
            let seen = link.client.read(place).await;
            if bytes > 0 && seen.is_ok_and(|file| file.file_length() as u64 == bytes) {
                return Ok(true);
            }
            look = CLOSE_LOOK_MAX.min(look * 2);
        }
    })?;
    if !told {
        return Ok(());
    }
    match link.run(WRITE_LIMIT, writer.close()) {
        // The good answer to the first question was on its way.
        Err(HdfsError::RPCError(class, _)) if class.ends_with("LeaseExpiredException") => Ok(()),
        other => other,
    }
}

fn sync(link: &Link, writer: &mut FileWriter) -> hdfs_native::Result<()> {
    match link.run(WRITE_LIMIT, writer.hsync()) {
        // Such a file has no call for it; its stripes are on more disks than replicas would be.
        Err(HdfsError::OperationFailed(words)) if words.contains("erasure-coded") => Ok(()),
        other => other,
    }
}

/// As many bytes as wanted, or those up to the end.
fn fill(source: &mut dyn Read, wanted: usize) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(wanted);
    source.take(wanted as u64).read_to_end(&mut piece)?;
    Ok(piece)
}
