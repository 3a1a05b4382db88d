//! Bringing the index of a job's data set to its workers.

use std::sync::Arc;

use model::agent::Desired;
use model::notes::{DataReport, WaitReport};
use model::{Millis, Role, Task};
use tokio::task::AbortHandle;

use super::{Agent, Event};
use crate::dataset::{self, Known, Wanted};
use crate::gateway::is_remote;
use crate::ledger::Key;
use crate::telemetry::printable;

/// Bytes of the reason why workers wait.
const WORDS_MAX: usize = 500;

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

    /// Says what the tasks of each generation may ask the gateway for: also one of an earlier
    /// life of the agent, which does not know it yet.
    pub(super) fn tell_gateway(&self, desired: &Desired) {
        for wanted in &desired.generations {
            let key = Key { job: wanted.job, generation: wanted.generation };
            let Some(files) = self.live.get(&key).and_then(|live| live.files.as_ref()) else {
                continue;
            };
            files.want(|now| now.resume.clone_from(&wanted.launch.resume));
            self.tell_data(key);
        }
    }

    /// The data set that a generation's tasks may read over the gateway: none on this machine,
    /// where they read with their own rights.
    pub(super) fn tell_data(&self, key: Key) {
        let Some(files) = self.live.get(&key).and_then(|live| live.files.as_ref()) else { return };
        let mut extras = self.extras.jobs.iter();
        let extra = extras.find(|e| (e.job, e.generation) == (key.job, key.generation));
        let url = extra.and_then(|extra| extra.data.as_ref()).map(|spec| spec.url.clone());
        files.want(|now| now.data = url.filter(|url| is_remote(url)));
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
                    user: self.user_held(key),
                    gateway: Arc::clone(&self.gateway),
                    hdfs: self.settings.hdfs.clone(),
                    waits: dataset::Waits { events: self.events.clone(), key },
                },
            ));
        }
        for (key, wanted) in begun {
            self.tell_data(key);
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

    pub(super) fn on_dataset_waits(&mut self, key: Key, why: &str, now: Millis) {
        if let Some(live) = self.live.get_mut(&key) {
            live.data_waits = Some(printable(why, WORDS_MAX));
            self.urgent(now);
        }
    }

    /// What workers here wait for.
    pub(super) fn waits_told(&self) -> Vec<WaitReport> {
        let waits = self.live.iter().filter_map(|(&Key { job, generation }, live)| {
            let words = live.data_waits.clone()?;
            Some(WaitReport { job, generation, words })
        });
        waits.collect()
    }

    pub(super) fn on_dataset(&mut self, key: Key, brought: Result<Known, String>, now: Millis) {
        let Some(live) = self.live.get_mut(&key) else { return };
        live.data_waits = None;
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
