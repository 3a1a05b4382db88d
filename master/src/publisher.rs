//! Storage work for the daemon, on threads that may block: a hung mount holds up one job's
//! checkpoint, not the master.

use std::sync::Arc;
use std::time::Duration;

use control::command::Publish;
use control::event::{Event, Published};
use model::JobId;
use model::agent::STORAGE_AWAY;
use storage::checkpoint::{self, CheckpointError, Manifest};
use storage::{Error, HdfsSettings};
use tokio::sync::Semaphore;

use crate::removals::{Removal, Removals};

/// Works at a time. Reading parts back is bound by the disk; more would only queue there.
const WORKS_MAX: usize = 8;

/// A publication that finds storage away is tried again after this pause.
const PUBLISH_PAUSE: Duration = Duration::from_millis(500);
/// Pauses between tries to remove what storage would not let go: an hour at most, for a day.
const REMOVE_PAUSE_FIRST: Duration = Duration::from_secs(10);
const REMOVE_PAUSE_MAX: Duration = Duration::from_secs(3600);
const REMOVE_TRIES_MAX: u32 = 32;
/// Removals that wait for storage to come back; beyond it only space is lost.
const REMOVALS_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct Publisher {
    permits: Arc<Semaphore>,
    removals: Arc<Semaphore>,
    waiting: Arc<Removals>,
    hdfs: HdfsSettings,
    /// How long a publication may wait for storage: within the checkpoint's deadline.
    patience: Duration,
}

impl Publisher {
    /// `deadline_ms` is what a checkpoint has from its order to its manifest.
    pub(crate) fn new(hdfs: HdfsSettings, deadline_ms: u64, removals: Removals) -> Self {
        let permits = Arc::new(Semaphore::new(WORKS_MAX));
        let waiting = Arc::new(removals);
        let removals = Arc::new(Semaphore::new(REMOVALS_MAX));
        let patience = Duration::from_millis(deadline_ms / 2);
        Self { permits, removals, waiting, hdfs, patience }
    }

    /// Goes on with removals that waited when the last life ended. Must be called within the
    /// runtime; never waits for storage.
    pub(crate) fn resume(&self) {
        for removal in self.waiting.load() {
            self.remove_again(removal, true);
        }
    }

    /// Runs `work` once there is a place.
    async fn run<T: Send + 'static>(
        permits: &Arc<Semaphore>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let permit = Arc::clone(permits).acquire_owned().await.expect("it is never closed");
        let done = tokio::task::spawn_blocking(move || {
            let outcome = work();
            drop(permit);
            outcome
        });
        // None where it panicked: the checkpoint's deadline tells.
        done.await.ok()
    }

    /// Verifies the parts and publishes the manifest; gives `done` the event for the state
    /// machine. While storage is away it is tried again. Must be called within the runtime;
    /// never waits.
    pub(crate) fn publish(&self, request: Publish, done: impl FnOnce(Event) + Send + 'static) {
        let (permits, hdfs) = (Arc::clone(&self.permits), self.hdfs.clone());
        let until = tokio::time::Instant::now() + self.patience;
        let request = Arc::new(request);
        tokio::spawn(async move {
            let outcome = loop {
                let (work, hdfs) = (Arc::clone(&request), hdfs.clone());
                let outcome = Self::run(&permits, move || publish(&hdfs, &work)).await;
                match outcome {
                    Some(Err(Failure { words, temporary: true }))
                        if tokio::time::Instant::now() < until =>
                    {
                        tracing::info!(job = %request.job, words, "publishes again soon");
                        tokio::time::sleep(PUBLISH_PAUSE).await;
                    }
                    Some(outcome) => break outcome.map_err(|failure| failure.words),
                    None => break Err("its publication was cut short".to_owned()),
                }
            };
            let Publish { job, generation, checkpoint, .. } = *request;
            done(Event::Published { job, generation, checkpoint, outcome });
        });
    }

    /// Removes a checkpoint, later where storage is away now. Where that fails only space is
    /// lost, so it is said and left.
    pub(crate) fn remove(&self, job: JobId, manifest_url: Option<String>, directory: String) {
        self.remove_again(Removal { job, manifest_url, directory }, false);
    }

    /// `noted`: it is written down that it waits.
    fn remove_again(&self, removal: Removal, mut noted: bool) {
        let (job, directory) = (removal.job, removal.directory.clone());
        let Ok(place) = Arc::clone(&self.removals).try_acquire_owned() else {
            tracing::warn!(%job, directory, "leaves a checkpoint: too many wait to be removed");
            return;
        };
        let (permits, hdfs) = (Arc::clone(&self.permits), self.hdfs.clone());
        let (asked, waiting) = (Arc::new(removal), Arc::clone(&self.waiting));
        tokio::spawn(async move {
            let mut pause = REMOVE_PAUSE_FIRST;
            for _ in 0..REMOVE_TRIES_MAX {
                let (work, hdfs) = (Arc::clone(&asked), hdfs.clone());
                let remove = move || {
                    let manifest_url = work.manifest_url.as_deref();
                    checkpoint::remove_with(&hdfs, job, manifest_url, &work.directory)
                };
                let error = match Self::run(&permits, remove).await {
                    Some(Ok(())) => {
                        tracing::info!(%job, directory, "removed a checkpoint");
                        break;
                    }
                    Some(Err(error)) => error,
                    // The runtime ends: the next life goes on with it.
                    None => return,
                };
                let words = storage::chain(&error);
                tracing::warn!(%job, directory, words, "cannot remove a checkpoint");
                if !is_temporary(&error) {
                    break;
                }
                if !std::mem::replace(&mut noted, true) {
                    waiting.waits(&asked);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(REMOVE_PAUSE_MAX);
            }
            if noted {
                waiting.done(&asked);
            }
            drop(place);
        });
    }
}

/// Why nothing was published.
#[derive(Debug)]
struct Failure {
    words: String,
    /// It may succeed later.
    temporary: bool,
}

impl Failure {
    fn of(error: &CheckpointError) -> Self {
        let (words, temporary) = (storage::chain(error), is_temporary(error));
        let full = matches!(error, CheckpointError::Storage(Error::NoSpace { .. }));
        let words = if temporary || full { format!("{STORAGE_AWAY}{words}") } else { words };
        Self { words, temporary }
    }
}

fn is_temporary(error: &CheckpointError) -> bool {
    matches!(error, CheckpointError::Storage(error) if error.is_temporary())
}

fn publish(hdfs: &HdfsSettings, request: &Publish) -> Result<Published, Failure> {
    let manifest = Manifest {
        job: request.job,
        generation: request.generation,
        checkpoint: request.checkpoint,
        step: request.step,
        epoch: request.epoch,
        epoch_position: request.epoch_position,
        directory: String::new(),
        parts: request.parts.clone(),
    };
    let bytes = manifest.bytes();
    let storage = storage::open_with(&request.base, hdfs)
        .map_err(|error| Failure::of(&CheckpointError::Storage(error)))?;
    let (base, directory) = (&request.base, &request.directory);
    checkpoint::publish_manifest(storage.as_ref(), base, directory, manifest)
        .map(|manifest_url| Published { manifest_url, bytes })
        .map_err(|error| Failure::of(&error))
}

#[cfg(test)]
mod tests {
    use model::agent::Part;
    use model::{CheckpointId, Generation};

    use super::*;

    #[test]
    fn a_checkpoint_is_published_only_with_whole_parts() {
        let folder = tempfile::tempdir().unwrap();
        let base = format!("file://{}", folder.path().display());
        let (job, generation, checkpoint) = (JobId(4), Generation(2), CheckpointId(9));
        let relative = checkpoint::directory(job, generation, checkpoint);
        std::fs::create_dir_all(folder.path().join(&relative)).unwrap();
        std::fs::write(folder.path().join(&relative).join("a"), "123456789").unwrap();
        let part = |crc32| Part { file: "a".to_owned(), bytes: 9, crc32 };
        let request = |parts| Publish {
            job,
            generation,
            checkpoint,
            base: base.clone(),
            directory: format!("{base}/{relative}"),
            step: 90,
            epoch: 1,
            epoch_position: 640,
            parts,
        };
        let hdfs = HdfsSettings::default();
        let error = publish(&hdfs, &request(vec![part(1)])).unwrap_err();
        assert!(error.words.contains("crc32") && !error.temporary, "{error:?}");
        let published = publish(&hdfs, &request(vec![part(0xCBF4_3926)])).unwrap();
        assert_eq!(published.bytes, 9);
        let path = published.manifest_url.strip_prefix("file://").unwrap();
        assert!(std::path::Path::new(path).is_file());
    }
}
