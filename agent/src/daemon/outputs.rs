//! The output of running tasks: looked at now and then, never passed through this process.

use std::collections::BTreeMap;
use std::path::Path;

use model::Task;
use model::nodes::NodeNotes;
use nix::sys::statvfs::statvfs;

use super::{Agent, Event, WATCH_MS};
use crate::clock;
use crate::ledger::Key;
use crate::task::output::Seen;

/// Tasks that an alert names.
const NAMED_MAX: usize = 5;

/// What the looks have found, by task.
pub(super) type Looks = BTreeMap<(Key, Task), Seen>;

#[derive(Debug, Default)]
pub(super) struct Outputs {
    seen: Looks,
    /// A look is under way; a disk may take its time.
    looking: bool,
}

impl Agent {
    /// Looks at the logs of running tasks, off this thread.
    pub(super) fn watch_logs(&mut self) {
        let live = self.live.iter();
        let tasks: Vec<(Key, Task)> =
            live.flat_map(|(&key, live)| live.tasks.keys().map(move |&task| (key, task))).collect();
        if self.outputs.looking || tasks.is_empty() {
            return;
        }
        self.outputs.looking = true;
        let seen = &self.outputs.seen;
        let seen: Vec<_> =
            tasks.iter().map(|of| seen.get(of).copied().unwrap_or_default()).collect();
        let (logs, events) = (self.logs.clone(), self.events.clone());
        tokio::task::spawn_blocking(move || {
            let mut looks = Looks::new();
            for ((key, task), before) in tasks.into_iter().zip(seen) {
                match logs.look(key, task, before) {
                    Ok(seen) => {
                        looks.insert((key, task), seen);
                    }
                    Err(error) => {
                        tracing::warn!(%key, %task, %error, "cannot bound the output of a task");
                    }
                }
            }
            // The loop has ended where nobody listens any more.
            let _ = events.blocking_send(Event::Looked(looks));
        });
    }

    pub(super) fn on_looked(&mut self, looks: Looks) {
        self.outputs.looking = false;
        if looks.values().any(|seen| seen.cut || seen.full) {
            // Whoever prints that much soon does so again; and without room each look makes some.
            self.due.watch = self.due.watch.min(clock::now().plus(WATCH_MS / 5));
        }
        for (of @ (key, task), seen) in looks {
            let before = self.outputs.seen.insert(of, seen).unwrap_or_default();
            if seen.full && !before.full {
                tracing::warn!(%key, %task, "no room for further output can be taken on the disk");
            }
            if before.lost == 0 && 0 < seen.lost {
                tracing::warn!(%key, %task, "output comes faster than its log can hold it");
            }
        }
    }

    /// A task has ended. What was lost of its output is told until its generation is forgotten.
    pub(super) fn end_output(&mut self, key: Key, task: Task) {
        self.logs.close(key, task);
        if let Some(seen) = self.outputs.seen.get_mut(&(key, task)) {
            seen.full = false;
        }
    }

    pub(super) fn forget_outputs(&mut self, key: Key) {
        self.outputs.seen.retain(|(of, _), _| *of != key);
    }

    /// Warnings of this node about the output of tasks, and about its own notes.
    pub(super) fn tell_outputs(&self, notes: &mut NodeNotes) {
        let seen = || self.outputs.seen.iter().map(|((key, task), seen)| (*key, *task, *seen));
        let full: Vec<_> = seen().filter(|(_, _, seen)| seen.full).map(named).collect();
        if let Some(free) = free(self.logs.folder()).filter(|free| *free < self.logs.ahead()) {
            let live = self.live.iter();
            let live = live.flat_map(|(key, live)| live.tasks.keys().map(move |task| (key, task)));
            let live: Vec<String> = live.map(|(key, task)| format!("{task} of {key}")).collect();
            let go_on = match live.as_slice() {
                [] => String::new(),
                live => format!("{} go on in the room that they have; ", listed(live)),
            };
            let also = match full.as_slice() {
                [] => String::new(),
                full => format!("further output of {} may be lost; ", listed(full)),
            };
            notes.alerts.push(format!(
                "the disk of the output of tasks is full: {} KiB are left in {}; {go_on}{also}\
                 no new tasks are started; free space there",
                free >> 10,
                self.logs.folder().display()
            ));
        }
        let lost: u64 = seen().map(|(_, _, seen)| seen.lost).sum();
        let losers: Vec<_> = seen().filter(|(_, _, seen)| 0 < seen.lost).map(named).collect();
        if !losers.is_empty() {
            notes.alerts.push(format!(
                "{} printed faster than its log holds: {} MiB were gone before anyone could read \
                 them; print less, or raise log_bytes_max, which is {} KiB",
                listed(&losers),
                lost.div_ceil(1 << 20),
                self.logs.bytes_max() >> 10
            ));
        }
        if let Some(why) = &self.unsaved_why {
            notes.alerts.push(format!(
                "the agent's ledger cannot be written: {why}; running tasks go on, and no new ones \
                 are started until it can; free space in {}",
                self.settings.state_dir.display()
            ));
        }
    }
}

/// Bytes that may still be written in a folder; none where its file system does not say.
fn free(folder: &Path) -> Option<u64> {
    let found = statvfs(folder).ok()?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}

fn named((key, task, _): (Key, Task, Seen)) -> String {
    format!("{task} of {key}")
}

fn listed(names: &[String]) -> String {
    match names.split_at_checked(NAMED_MAX) {
        Some((first, more)) if !more.is_empty() => {
            format!("{} and {} more", first.join(", "), more.len())
        }
        Some(_) | None => names.join(", "),
    }
}
