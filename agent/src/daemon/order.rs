//! Bringing checkpoint orders to workers, and forgetting what is over.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use model::agent::CheckpointOrder;
use model::{CheckpointId, Millis, Role, Task};

use super::{Agent, Event, Folder};
use crate::checkpoint;
use crate::clock;
use crate::control_file;
use crate::gateway::{self, Served};
use crate::ledger::Key;
use crate::task::environment::local_path;

/// A file system that has not made a folder by then does not answer.
const FOLDER_LIMIT: Duration = Duration::from_secs(20);

impl Agent {
    /// Shows the generation's workers what the master wants, once the folder for it is there.
    pub(super) fn order(&mut self, key: Key, order: Option<CheckpointOrder>, now: Millis) {
        let (Some(held), Some(live)) =
            (self.ledger.generations.get_mut(&key), self.live.get_mut(&key))
        else {
            return;
        };
        let same = held.order == order;
        if same && (live.control_written || live.folder != Folder::None) {
            return;
        }
        if let Some(telemetry) = &mut live.telemetry {
            telemetry.ordered(order.as_ref());
        }
        let workers = held.tasks.keys().any(|task| task.role == Role::Worker);
        held.order.clone_from(&order);
        if let Some(files) = &live.files {
            files.want(|wanted| wanted.order.clone_from(&order));
        }
        live.control_written = false;
        if !same {
            live.trouble = None;
            self.unsaved_since.get_or_insert(now);
        }
        let Some(order) = order else { return self.write_control(key, now) };
        let id = order.checkpoint;
        match live.folder {
            Folder::Making(of) | Folder::Failed(of) if of == id => {}
            Folder::Made(of) if of == id => self.write_control(key, now),
            // Only the agents of workers make it; a node of servers has nothing to add.
            _ if !workers => self.write_control(key, now),
            Folder::None | Folder::Making(_) | Folder::Made(_) | Folder::Failed(_) => {
                live.folder = Folder::Making(id);
                self.make_folder(key, &order);
            }
        }
    }

    fn make_folder(&self, key: Key, order: &CheckpointOrder) {
        let (checkpoint, events) = (order.checkpoint, self.events.clone());
        let (user, gateway) = (self.user_held(key), Arc::clone(&self.gateway));
        let files = self.live.get(&key).and_then(|live| live.files.as_ref());
        let (directory, resume) = (order.directory.clone(), files.and_then(Served::resume));
        tokio::spawn(async move {
            let make = tokio::task::spawn_blocking(move || {
                if gateway::is_remote(&directory) {
                    return gateway.prepare(&directory, resume.as_deref());
                }
                checkpoint::make_folder(&local_path(&directory)?, &user)
            });
            let made = match tokio::time::timeout(FOLDER_LIMIT, make).await {
                Ok(Ok(made)) => made,
                Ok(Err(panic)) => Err(panic.to_string()),
                Err(_) => Err(format!(
                    "storage has not made the checkpoint folder in {} s",
                    FOLDER_LIMIT.as_secs()
                )),
            };
            // The loop has ended where nobody listens any more.
            let _ = events.send(Event::Folder { key, checkpoint, made }).await;
        });
    }

    pub(super) fn on_folder(
        &mut self,
        key: Key,
        checkpoint: CheckpointId,
        made: Result<(), String>,
        now: Millis,
    ) {
        let Some(live) = self.live.get_mut(&key) else { return };
        if live.folder != Folder::Making(checkpoint) {
            return;
        }
        match made {
            Ok(()) => {
                live.folder = Folder::Made(checkpoint);
                self.write_control(key, now);
            }
            Err(why) => self.order_failed(key, &why, now),
        }
    }

    /// A part of the present checkpoint could not be stored from here.
    pub(super) fn on_part(&mut self, key: Key, checkpoint: CheckpointId, why: &str, now: Millis) {
        let held = self.ledger.generations.get(&key);
        let order = held.and_then(|held| held.order.as_ref());
        if order.is_some_and(|order| order.checkpoint == checkpoint) {
            self.order_failed(key, why, now);
        }
    }

    /// Writes the ledger's order to the generation's `control.json`.
    fn write_control(&mut self, key: Key, now: Millis) {
        let folder = self.folder(key);
        let (Some(held), Some(live)) = (self.ledger.generations.get(&key), self.live.get_mut(&key))
        else {
            return;
        };
        match control_file::write(&folder, held.order.as_ref()) {
            Ok(()) => live.control_written = true,
            Err(error) => {
                self.order_failed(key, &format!("cannot write control.json: {error}"), now);
            }
        }
    }

    /// Reports the present order as failed, in the name of the first worker here.
    fn order_failed(&mut self, key: Key, why: &str, now: Millis) {
        tracing::warn!(%key, why, "an order for a checkpoint failed");
        let (Some(held), Some(live)) = (self.ledger.generations.get(&key), self.live.get_mut(&key))
        else {
            return;
        };
        let Some(order) = &held.order else { return };
        live.folder = Folder::Failed(order.checkpoint);
        live.trouble = Some((order.checkpoint, why.to_owned()));
        let workers = held.tasks.keys().filter(|task| task.role == Role::Worker);
        let first = workers.map(|task: &Task| task.index).min();
        if let (Some(telemetry), Some(worker)) = (&mut live.telemetry, first) {
            let why = crate::telemetry::printable(why, 500);
            telemetry.checkpoint_failed(worker, order.checkpoint, why);
        }
        self.urgent(now);
    }

    /// Drops a generation that has no process left, with its folder. Its logs stay for a while.
    pub(super) fn forget(&mut self, key: Key, now: Millis) {
        tracing::info!(%key, "forgotten");
        self.ledger.generations.remove(&key);
        self.live.remove(&key);
        self.forget_isolated(key);
        self.forget_outputs(key);
        self.changed(now);
        self.tidy(vec![key]);
        self.tend_forks(now);
    }

    /// Removes folders of generations that are over, and logs past their bounds. Blocking work:
    /// a task may have left a million files.
    pub(super) fn tidy(&self, over: Vec<Key>) {
        let folders: Vec<_> = over.into_iter().map(|key| self.folder(key)).collect();
        let held: std::collections::BTreeSet<Key> =
            self.ledger.generations.keys().copied().collect();
        let (logs, gateway) = (self.logs.clone(), Arc::clone(&self.gateway));
        tokio::task::spawn_blocking(move || {
            for folder in folders {
                match fs::remove_dir_all(&folder) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        tracing::warn!(folder = %folder.display(), %error, "cannot remove a folder");
                    }
                    Ok(()) | Err(_) => {}
                }
            }
            logs.prune(|key| held.contains(&key));
            gateway.prune(|job| held.iter().any(|key| key.job == job), clock::unix_ms());
        });
    }
}
