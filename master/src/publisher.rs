//! Storage work for the daemon, on threads that may block: a hung mount holds up one job's
//! checkpoint, not the master.

use std::sync::Arc;

use control::command::Publish;
use control::event::{Event, Published};
use model::JobId;
use storage::checkpoint::{self, Manifest};
use tokio::sync::Semaphore;

/// Works at a time. Reading parts back is bound by the disk; more would only queue there.
const WORKS_MAX: usize = 8;

#[derive(Debug)]
pub(crate) struct Publisher {
    permits: Arc<Semaphore>,
}

impl Publisher {
    pub(crate) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(WORKS_MAX)) }
    }

    /// Runs `work` once there is a place. Must be called within the runtime. Never waits.
    fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        let permits = Arc::clone(&self.permits);
        tokio::spawn(async move {
            let permit = permits.acquire_owned().await.expect("it is never closed");
            tokio::task::spawn_blocking(move || {
                work();
                drop(permit);
            });
        });
    }

    /// Verifies the parts and publishes the manifest; gives `done` the event for the state
    /// machine.
    pub(crate) fn publish(&self, request: Publish, done: impl FnOnce(Event) + Send + 'static) {
        self.spawn(move || {
            let outcome = publish(&request);
            let Publish { job, generation, checkpoint, .. } = request;
            done(Event::Published { job, generation, checkpoint, outcome });
        });
    }

    /// Removes a checkpoint. Where that fails only space is lost, so it is said and left.
    pub(crate) fn remove(&self, job: JobId, manifest_url: Option<String>, directory: String) {
        self.spawn(move || match checkpoint::remove(job, manifest_url.as_deref(), &directory) {
            Ok(()) => tracing::info!(%job, directory, "removed a checkpoint"),
            Err(error) => {
                let error = storage::chain(&error);
                tracing::warn!(%job, directory, error, "cannot remove a checkpoint");
            }
        });
    }
}

fn publish(request: &Publish) -> Result<Published, String> {
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
    let storage = storage::open(&request.base).map_err(|error| storage::chain(&error))?;
    let (base, directory) = (&request.base, &request.directory);
    checkpoint::publish_manifest(storage.as_ref(), base, directory, manifest)
        .map(|manifest_url| Published { manifest_url, bytes })
        .map_err(|error| storage::chain(&error))
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
        let error = publish(&request(vec![part(1)])).unwrap_err();
        assert!(error.contains("crc32"), "{error}");
        let published = publish(&request(vec![part(0xCBF4_3926)])).unwrap();
        assert_eq!(published.bytes, 9);
        let path = published.manifest_url.strip_prefix("file://").unwrap();
        assert!(std::path::Path::new(path).is_file());
    }
}
