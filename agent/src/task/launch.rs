//! Starting the tasks of a generation: forked where their job has a fork server, else from nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::cgroup::Tree;
use crate::config::TaskUser;
use crate::procfs::{Census, Mark};
use crate::task::forkserver::{Forked, Handle};
use crate::task::process::{self, Prepared, Refused, Started, Waiter};

/// How long a process that was only half forked may take to be gone.
const NO_GROUP: &str =
    "cannot start: no control group; systemctl start optimus-tasks where it was stopped";
const CLEAR_LIMIT: Duration = Duration::from_secs(3);
const CLEAR_EVERY: Duration = Duration::from_millis(10);

/// What starts tasks, beside the tasks themselves.
#[derive(Debug)]
pub(crate) struct Starter {
    pub(crate) user: TaskUser,
    pub(crate) state_dir: PathBuf,
    /// Makes the tasks' groups; none where this machine has none.
    pub(crate) tree: Option<Tree>,
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
                Err(stopped_first())
            } else if let Some(why) = &failed {
                Err(Refused::untried(format!("not started: {why}")))
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
        let group = task.group.clone();
        let started = self.try_start(task).await;
        if let (Err(_), Some(group)) = (&started, group) {
            // Nothing is in it, or only what is not worth to wait for.
            group.kill();
            if let Err(error) = group.remove() {
                tracing::debug!(group = %group.path().display(), %error, "a control group stays");
            }
        }
        started
    }

    async fn try_start(&self, task: Prepared) -> Started {
        process::check(&task, &self.user)?;
        self.make_group(&task).await?;
        if let Some(server) = self.forks.get(&task.threads) {
            match server.fork(&task, &self.cancelled).await {
                Ok(Forked { pid, start_ticks, end }) => {
                    return Ok((Waiter::Forked(end), pid, start_ticks));
                }
                Err(why) => {
                    tracing::warn!(task = %task.mark, why, "not forked; starts from nothing");
                    self.clear(&task.mark).await?;
                }
            }
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(stopped_first());
            }
        }
        let user = self.user.clone();
        blocking(move || process::start(task, &user)).await
    }

    async fn make_group(&self, task: &Prepared) -> Result<(), Refused> {
        let (Some(tree), Some(group)) = (self.tree.clone(), task.group.clone()) else {
            return Ok(());
        };
        let limits = task.limits;
        blocking(move || {
            tree.make(&group, &limits).map_err(|error| {
                let refused = Refused::by(NO_GROUP, &error);
                Refused { server: true, ..refused }
            })
        })
        .await
    }

    /// A server may have ended between a fork and its answer. Such a process waits at its gate,
    /// which nobody opens any more, so it runs nothing and ends: a second one must not start
    /// beside it.
    async fn clear(&self, mark: &Mark) -> Result<(), Refused> {
        let uids = BTreeSet::from([self.user.uid.as_raw()]);
        let limit = Instant::now() + CLEAR_LIMIT;
        loop {
            let census = Census::take(&mark.node, &self.state_dir, &uids);
            let left = census.of_task(mark, None);
            if left.is_empty() {
                return Ok(());
            }
            process::signal(None, &left, Signal::SIGKILL);
            if limit < Instant::now() {
                return Err("cannot start: a process of it was half started and stays".into());
            }
            tokio::time::sleep(CLEAR_EVERY).await;
        }
    }
}

fn stopped_first() -> Refused {
    Refused::untried("not started: the generation was stopped first".to_owned())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(format!("cannot start: {panic}").into()))
}
