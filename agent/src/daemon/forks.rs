//! The fork servers of the jobs that run here or soon will.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use model::agent::{Launch, Order};
use model::notes::Warm;
use model::{JobId, Millis};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, chown};

use super::{Agent, Event, NEVER};
use crate::cgroup::Limits;
use crate::config::TaskUser;
use crate::procfs;
use crate::task::environment::{self, threads, threads_of};
use crate::task::forkserver::{self, Gone, Handle, Recipe, Start};

/// A job that leaves for a moment, as one that is restarted, finds its servers again.
const LINGER_MS: u64 = 3000;
/// One that ended by itself is started again, but not at once and not for ever.
const AGAIN_MS: u64 = 5000;
const STARTS_MAX: u32 = 5;

/// Of which job, and for how many threads: those are settled at the import.
type Of = (JobId, u64);

/// A fork server, or the memory of one that ended.
#[derive(Debug)]
struct Fork {
    recipe: Recipe,
    handle: Option<Handle>,
    /// Grows with each start, so that the end of an earlier one is not taken for this one's.
    starts: u32,
    again_at: Millis,
}

/// All fork servers of this node.
#[derive(Debug, Default)]
pub(super) struct Forks {
    servers: BTreeMap<Of, Fork>,
    /// Starts so far: each server has a control group of its own.
    started: u64,
    /// Jobs that need them no longer, and since when.
    unneeded: BTreeMap<JobId, Millis>,
    /// When they are to be looked at again.
    due: Option<Millis>,
}

impl Forks {
    /// When something is to be done next.
    pub(super) fn due(&self) -> Millis {
        self.due.unwrap_or(NEVER)
    }

    fn plan(&mut self, at: Millis) {
        self.due = Some(self.due().min(at));
    }
}

impl Fork {
    /// True where it is not there and may be started again.
    fn may_start(&self) -> bool {
        self.handle.is_none() && self.starts < STARTS_MAX
    }
}

impl Agent {
    /// The fork servers for the tasks of a launch, started where they are missing: one import
    /// then serves all of them.
    pub(super) fn forks_for(
        &mut self,
        job: JobId,
        launch: &Launch,
        now: Millis,
    ) -> BTreeMap<u64, Handle> {
        let Some(recipe) = Recipe::of(&launch.command, &launch.environment) else {
            return BTreeMap::new();
        };
        let counts: BTreeSet<u64> =
            launch.tasks.iter().map(|&task| threads_of(launch, task)).collect();
        counts
            .into_iter()
            .filter_map(|count| Some((count, self.fork_server(job, count, &recipe, false, now)?)))
            .collect()
    }

    /// Starts what is missing and ends what nobody needs: the jobs that run here, and those of
    /// which tasks are likely to come.
    pub(super) fn tend_forks(&mut self, now: Millis) {
        let desired = self.desired.iter().flat_map(|set| &set.generations);
        let mut wanted: Vec<(Of, Recipe)> = Vec::new();
        for generation in desired.filter(|one| !matches!(one.order, Order::Stop { .. })) {
            let launch = &generation.launch;
            let Some(recipe) = Recipe::of(&launch.command, &launch.environment) else { continue };
            for &task in &launch.tasks {
                wanted.push(((generation.job, threads_of(launch, task)), recipe.clone()));
            }
        }
        for warm in &self.extras.warm {
            if self.user_of_job(warm.job).is_err() {
                // Whose it is comes with its tasks.
                continue;
            }
            let Some(recipe) = Recipe::of(&warm.command, &warm.environment) else { continue };
            let Warm { job, worker_cpus_milli, server_cpus_milli, .. } = warm;
            for cpus_milli in [1, *worker_cpus_milli, *server_cpus_milli] {
                wanted.push(((*job, threads(cpus_milli)), recipe.clone()));
            }
        }
        let held = self.ledger.generations.keys().map(|key| key.job);
        let needed: BTreeSet<JobId> = wanted.iter().map(|((job, _), _)| *job).chain(held).collect();
        self.forks.due = None;
        for ((job, count), recipe) in wanted {
            if self.fork_server(job, count, &recipe, true, now).is_none()
                && let Some(fork) = self.forks.servers.get(&(job, count))
                && fork.may_start()
            {
                let at = fork.again_at.max(now.plus(1));
                self.forks.plan(at);
            }
        }
        for &(job, _) in self.forks.servers.keys() {
            if !needed.contains(&job) {
                self.forks.unneeded.entry(job).or_insert(now);
            }
        }
        self.forks.unneeded.retain(|job, _| !needed.contains(job));
        let over: Vec<JobId> = self
            .forks
            .unneeded
            .iter()
            .filter(|(_, since)| since.plus(LINGER_MS) <= now)
            .map(|(&job, _)| job)
            .collect();
        for job in over {
            self.end_forks(job);
        }
        if let Some(first) = self.forks.unneeded.values().min() {
            let at = first.plus(LINGER_MS);
            self.forks.plan(at);
        }
    }

    /// Ends the fork servers of a job: its last handle is the server's end.
    pub(super) fn end_forks(&mut self, job: JobId) {
        self.forks.unneeded.remove(&job);
        let of: Vec<Of> = self.forks.servers.keys().filter(|of| of.0 == job).copied().collect();
        for of in of {
            self.forks.servers.remove(&of);
            let (folder, log) = (self.fork_folder(of), self.fork_log(of));
            tokio::task::spawn_blocking(move || {
                remove(&folder);
                // One that was never started has none.
                let _ = fs::remove_file(log);
            });
        }
    }

    /// A job's server; started if it is not there and may be. None where it cannot be used.
    fn fork_server(
        &mut self,
        job: JobId,
        count: u64,
        recipe: &Recipe,
        low: bool,
        now: Millis,
    ) -> Option<Handle> {
        let of = (job, count);
        let fork = self.forks.servers.get(&of);
        let starts = match fork {
            Some(fork) if fork.recipe == *recipe => {
                if fork.handle.is_some() {
                    return fork.handle.clone();
                }
                // Whoever needs it now starts from nothing rather than try a third import.
                if !fork.may_start() || now < fork.again_at {
                    return None;
                }
                fork.starts
            }
            Some(_) | None => 0,
        };
        let started = self.start_fork_server(of, recipe, low, starts + 1);
        let handle = match started {
            Ok(handle) => Some(handle),
            Err(why) => {
                tracing::warn!(%job, why, "cannot start a fork server; tasks start from nothing");
                None
            }
        };
        let again_at = now.plus(AGAIN_MS);
        let fork =
            Fork { recipe: recipe.clone(), handle: handle.clone(), starts: starts + 1, again_at };
        self.forks.servers.insert(of, fork);
        handle
    }

    fn start_fork_server(
        &mut self,
        of: Of,
        recipe: &Recipe,
        low: bool,
        start: u32,
    ) -> Result<Handle, String> {
        let (job, count) = of;
        let user = &self.user_of_job(job)?;
        let folder = self.fork_folder(of);
        self.make_fork_folder(&folder, user).map_err(|error| error.to_string())?;
        self.forks.started += 1;
        let group = self.tree.as_ref().map(|tree| tree.server(job, count, self.forks.started));
        if let (Some(tree), Some(group)) = (&self.tree, &group) {
            tree.make(group, &Limits::default()).map_err(|error| error.to_string())?;
        }
        let environment = environment::of_fork_server(
            recipe.environment(),
            count,
            &format!("{}/{job}/{count}", self.node),
            &folder,
            user,
            self.settings.python_package.as_deref(),
        );
        let state_dir = self.settings.state_dir.clone();
        let log = self.fork_log(of);
        let (handle, ended) = forkserver::start(Start {
            recipe,
            environment,
            folder,
            log,
            state_dir,
            user,
            group,
            low,
        })?;
        tracing::info!(%job, threads = count, low, "started a fork server");
        let events = self.events.clone();
        tokio::spawn(async move {
            let gone = ended.await.unwrap_or_default();
            // The loop has ended where nobody listens any more.
            let _ = events.send(Event::ForkServerEnded { job, threads: count, start, gone }).await;
        });
        Ok(handle)
    }

    pub(super) fn on_fork_server_ended(&mut self, of: Of, start: u32, gone: &Gone, now: Millis) {
        let (job, threads) = of;
        let why = gone.why.as_str();
        if why.is_empty() {
            tracing::info!(%job, threads, "a fork server is not needed any more");
            return;
        }
        let log = fs::read(self.fork_log(of)).unwrap_or_default();
        let log = log.get(log.len().saturating_sub(1000)..).unwrap_or_default();
        let log = crate::telemetry::printable(&String::from_utf8_lossy(log), 1000);
        tracing::warn!(%job, threads, why, log, "a fork server is gone");
        if let Some(fork) = self.forks.servers.get_mut(&of)
            && fork.starts == start
        {
            fork.handle = None;
            fork.again_at = now.plus(AGAIN_MS);
            if gone.for_good {
                fork.starts = STARTS_MAX;
            }
            self.forks.plan(now.plus(AGAIN_MS));
        }
    }

    fn fork_folder(&self, (job, threads): Of) -> PathBuf {
        self.settings.state_dir.join("tasks").join(format!("fork-{job}-{threads}"))
    }

    fn fork_log(&self, (job, threads): Of) -> PathBuf {
        self.settings.state_dir.join("logs").join(format!("fork-{job}-{threads}.log"))
    }

    fn make_fork_folder(&self, folder: &Path, user: &TaskUser) -> io::Result<()> {
        remove(folder);
        for made in [folder.to_owned(), folder.join("tmp")] {
            DirBuilder::new().mode(0o700).create(&made)?;
        }
        for given in [folder.join("tmp"), folder.to_owned()] {
            chown(&given, Some(user.uid), Some(user.gid))?;
        }
        Ok(())
    }

    /// Ends the fork servers of an earlier life. They end by themselves, unless they hang.
    pub(super) fn end_stale_forks(&self, uids: &BTreeSet<u32>) {
        if let Some(tree) = &self.tree {
            tree.end_servers();
        }
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let Some(pid) = pid else { continue };
            if procfs::owner(pid).is_some_and(|uid| uids.contains(&uid))
                && procfs::is_fork_server(pid, &self.settings.state_dir)
            {
                tracing::info!(pid, "ends a fork server of an earlier life");
                if let Err(error) = kill(Pid::from_raw(pid), Signal::SIGKILL) {
                    tracing::debug!(pid, %error, "it has ended by itself");
                }
            }
        }
        for folder in ["tasks", "logs"] {
            let listing = fs::read_dir(self.settings.state_dir.join(folder));
            for entry in listing.into_iter().flatten().flatten() {
                if !entry.file_name().to_str().is_some_and(|name| name.starts_with("fork-")) {
                    continue;
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    remove(&entry.path());
                } else if let Err(error) = fs::remove_file(entry.path()) {
                    tracing::debug!(%error, "the log of a fork server stays");
                }
            }
        }
    }
}

fn remove(folder: &Path) {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(folder = %folder.display(), %error, "cannot remove a folder");
        }
        Ok(()) | Err(_) => {}
    }
}
