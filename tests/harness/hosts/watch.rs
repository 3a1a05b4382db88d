//! Looks at the training processes of all hosts all the time: nothing may run twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::HostTask;
use super::host::tasks_below;
use crate::process;
use crate::wait;

const EVERY: Duration = Duration::from_millis(150);

#[derive(Debug, Default)]
struct Seen {
    looks: u64,
    /// In words.
    wrong: BTreeSet<String>,
    /// Generations of each job that were seen alive.
    generations: BTreeMap<String, BTreeSet<u32>>,
}

/// Ends with the value.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(run: String, frozen: BTreeMap<String, Arc<AtomicBool>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (stopped, filled) = (Arc::clone(&stop), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                let asleep: BTreeSet<&str> = frozen
                    .iter()
                    .filter(|(_, frozen)| frozen.load(Ordering::SeqCst))
                    .map(|(name, _)| name.as_str())
                    .collect();
                let tasks = tasks_below(&run);
                let wrong = twice(&tasks, &asleep);
                let mut seen = filled.lock().expect("nobody panics while holding it");
                seen.looks += 1;
                seen.wrong.extend(wrong);
                for (_, task) in &tasks {
                    let generation = task.generation().parse().unwrap_or(0);
                    seen.generations.entry(task.job().to_owned()).or_default().insert(generation);
                }
                drop(seen);
                wait::pause(EVERY);
            }
        });
        Self { stop, seen, thread: Some(thread) }
    }

    /// # Errors
    /// Names everything that ran twice up to now.
    ///
    /// # Panics
    /// Where the watching thread did.
    pub fn nothing_twice(&self) -> Result<()> {
        let seen = self.seen.lock().expect("nobody panics while holding it");
        ensure!(seen.wrong.is_empty(), "ran twice: {:#?}", seen.wrong);
        ensure!(seen.looks > 0, "nobody looked");
        Ok(())
    }

    /// How often it looked, and the generations of each job that it saw.
    ///
    /// # Panics
    /// Where the watching thread did.
    #[must_use]
    pub fn seen(&self) -> (u64, BTreeMap<String, BTreeSet<u32>>) {
        let seen = self.seen.lock().expect("nobody panics while holding it");
        (seen.looks, seen.generations.clone())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// The pairs of processes that may not live at one time: one task twice, or two generations of
/// one job. A process that is suspended runs nothing.
fn twice(tasks: &[(u64, HostTask)], asleep: &BTreeSet<&str>) -> Vec<String> {
    let awake: Vec<_> =
        tasks.iter().filter(|(_, task)| !asleep.contains(task.host.as_str())).collect();
    let mut wrong = Vec::new();
    for (index, one) in awake.iter().enumerate() {
        for other in &awake[index + 1..] {
            let (a, b) = (&one.1, &other.1);
            if a.job() != b.job() {
                continue;
            }
            let same = a.generation() == b.generation();
            if same && a.role() != b.role() {
                continue;
            }
            // A task's own child carries its mark.
            if same && (is_child(a, b) || is_child(b, a)) {
                continue;
            }
            // The list is not of one instant: what counts is that the first still lives now that
            // the second has been seen alive.
            if lives(one) && lives(other) {
                let (pid, other) = (a.pid, b.pid);
                wrong.push(format!("{} ({pid}) beside {} ({other})", a.task, b.task));
            }
        }
    }
    wrong
}

fn is_child(child: &HostTask, parent: &HostTask) -> bool {
    process::parent(child.pid) == Some(parent.pid)
}

fn lives((start, task): &(u64, HostTask)) -> bool {
    process::start_ticks(task.pid) == Some(*start)
        && process::mark(task.pid, "OPTIMUS_TASK").as_deref() == Some(&task.task)
}
