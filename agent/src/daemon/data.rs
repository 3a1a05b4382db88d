//! Bringing the index of a job's data set to its workers.

use model::notes::DataReport;
use model::{Millis, Role, Task};
use tokio::task::AbortHandle;

use super::{Agent, Event};
use crate::dataset::{self, Known, Wanted};
use crate::ledger::Key;

/// How far the index of a generation's data set has come.
#[derive(Debug, Default)]
pub(super) enum Data {
    #[default]
    None,
    /// Ended with the generation.
    Bringing(#[expect(dead_code, reason = "its drop ends the work")] Bringing),
    Known(Known),
    Failed,
}

#[derive(Debug)]
pub(super) struct Bringing(AbortHandle);

impl Drop for Bringing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Agent {
    /// What the workers of a generation are told of their data set.
    pub(super) fn data_of(&self, key: Key) -> Option<String> {
        let mut extras = self.extras.jobs.iter();
        let extra = extras.find(|e| (e.job, e.generation) == (key.job, key.generation))?;
        extra.data.as_ref().map(dataset::told)
    }

    /// Begins to bring the index to each generation with a data set whose workers are here. After
    /// a restart it begins anew, and finds what was published.
    pub(super) fn bring_data(&mut self) {
        let mut begun = Vec::new();
        for extra in &self.extras.jobs {
            let key = Key { job: extra.job, generation: extra.generation };
            let (Some(spec), Some(held)) = (&extra.data, self.ledger.generations.get(&key)) else {
                continue;
            };
            let fresh = self.live.get(&key).is_some_and(|live| matches!(live.data, Data::None));
            let works = held.tasks.keys().any(|task| task.role == Role::Worker);
            if !fresh || !works || !held.is_live() {
                continue;
            }
            begun.push((
                key,
                Wanted {
                    job: key.job,
                    spec: spec.clone(),
                    base: extra.index_base.clone(),
                    folder: self.folder(key),
                    scans: held.tasks.contains_key(&Task::worker(0)),
                    user: self.settings.user.clone(),
                },
            ));
        }
        for (key, wanted) in begun {
            let events = self.events.clone();
            let task = tokio::spawn(async move {
                let brought = dataset::bring(wanted).await;
                // The loop has ended where nobody listens any more.
                let _ = events.send(Event::Dataset { key, brought }).await;
            });
            if let Some(live) = self.live.get_mut(&key) {
                live.data = Data::Bringing(Bringing(task.abort_handle()));
            }
        }
    }

    pub(super) fn on_dataset(&mut self, key: Key, brought: Result<Known, String>, now: Millis) {
        let Some(live) = self.live.get_mut(&key) else { return };
        live.data = match brought {
            Ok(known) => {
                tracing::info!(%key, records = known.records, chunks = known.chunks, "data set");
                Data::Known(known)
            }
            Err(why) => {
                tracing::warn!(%key, why, "the data set cannot be used");
                Data::Failed
            }
        };
        self.urgent(now);
    }

    /// What is known of the data sets of local jobs.
    pub(super) fn data_told(&self) -> Vec<DataReport> {
        let known = self.live.iter().filter_map(|(key, live)| match live.data {
            Data::Known(known) => Some((key, known)),
            Data::None | Data::Bringing(_) | Data::Failed => None,
        });
        known
            .map(|(key, known)| DataReport {
                job: key.job,
                generation: key.generation,
                chunks: known.chunks,
                records: known.records,
                bytes: known.bytes,
            })
            .collect()
    }
}
