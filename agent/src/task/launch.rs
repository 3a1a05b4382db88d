//! Starting the tasks of a generation: forked where their job has a fork server, else from nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::TaskUser;
use crate::procfs::{Census, Mark};
use crate::task::adopt::first_of;
use crate::task::forkserver::{Forked, Handle};
use crate::task::process::{self, Prepared, Started, Waiter};

/// What starts tasks, beside the tasks themselves.
#[derive(Debug)]
pub(crate) struct Starter {
    pub(crate) user: TaskUser,
    pub(crate) state_dir: PathBuf,
    /// The job's fork servers by threads.
    pub(crate) forks: BTreeMap<u64, Handle>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Starter {
    /// Starts tasks one after the other in the given order. After the first failure, or once
    /// cancelled, the rest is not started: a generation with a hole only waits for its missing
    /// process.
    pub(crate) async fn start_all<F: Future<Output = ()>>(
        self,
        tasks: Vec<Prepared>,
        mut report: impl FnMut(Mark, Started) -> F,
    ) {
        let mut failed: Option<String> = None;
        for task in tasks {
            let mark = task.mark.clone();
            let started = if self.cancelled.load(Ordering::Relaxed) {
                Err("not started: the generation was stopped first".to_owned())
            } else if let Some(why) = &failed {
                Err(format!("not started: {why}"))
            } else {
                self.start(task).await
            };
            if let Err(why) = &started
                && failed.is_none()
            {
                failed = Some(format!("{}: {why}", mark.task));
            }
            report(mark, started).await;
        }
    }

    async fn start(&self, task: Prepared) -> Started {
        process::check(&task, &self.user)?;
        if let Some(server) = self.forks.get(&task.threads) {
            match server.fork(&task, &self.cancelled).await {
                Ok(Forked { pid, start_ticks, end }) => {
                    return Ok((Waiter::Forked(end), pid, start_ticks));
                }
                Err(why) => {
                    tracing::warn!(task = %task.mark, why, "not forked; starts from nothing");
                    if let Some(started) = self.forked_all_the_same(&task.mark) {
                        return Ok(started);
                    }
                }
            }
            if self.cancelled.load(Ordering::Relaxed) {
                return Err("not started: the generation was stopped first".to_owned());
            }
        }
        let user = self.user.clone();
        tokio::task::spawn_blocking(move || process::start(task, &user))
            .await
            .unwrap_or_else(|panic| Err(format!("cannot start: {panic}")))
    }

    /// A server may have ended between a fork and its answer: then the task is there, and nobody
    /// will tell of its end.
    fn forked_all_the_same(&self, mark: &Mark) -> Option<(Waiter, i32, u64)> {
        let uids = BTreeSet::from([self.user.uid.as_raw()]);
        let census = Census::take(&mark.node, &self.state_dir, &uids);
        let members = census.of_task(mark, None);
        let first = first_of(&members)?;
        let (_, never) = tokio::sync::oneshot::channel();
        Some((Waiter::Forked(never), first.pid, first.start_ticks))
    }
}
