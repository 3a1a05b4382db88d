//! Starting the tasks of a generation.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use model::agent::{Exit, Launch};
use model::{Millis, Role, Task};
use nix::unistd::chown;

use super::{Agent, Event, Live, LiveTask, read_socket};
use crate::cgroup::Limits;
use crate::config::TaskUser;
use crate::control_file;
use crate::gateway::Served;
use crate::ledger::{Held, HeldTask, Key, State};
use crate::procfs::Mark;
use crate::task::environment::{self, Place};
use crate::task::launch::Starter;
use crate::task::process::{Prepared, Refused, Started};
use crate::telemetry::{self, Telemetry};

impl Agent {
    /// Writes down that these tasks are to be started, then starts them. One that cannot be
    /// prepared keeps all from starting: they would only wait for it.
    pub(super) fn start(&mut self, key: Key, tasks: &[Task], launch: &Launch, now: Millis) {
        self.look_for_unit();
        let user = match self.user_of(key) {
            Ok(user) => user,
            Err(why) => {
                tasks.iter().for_each(|&task| self.absent(key, task, &why, now));
                let why = why.into();
                return self.not_started(key, tasks, &why, now);
            }
        };
        let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
        self.ledger.generations.entry(key).or_insert_with(|| Held {
            on_disconnect: launch.on_disconnect,
            uid,
            gid,
            stopping: None,
            order: None,
            tasks: std::collections::BTreeMap::new(),
        });
        let prepared = match self.prepare(key, &user, tasks, launch, now) {
            Ok(prepared) => prepared,
            Err(why) => return self.not_started(key, tasks, &why, now),
        };
        self.changed(now);
        if !self.save(now) {
            let why = self.no_ledger();
            return self.not_started(key, tasks, &why, now);
        }
        let forks = self.forks_for(key.job, launch, now);
        let live = self.live.entry(key).or_default();
        let starter = Starter {
            user,
            state_dir: self.settings.state_dir.clone(),
            tree: self.tree.clone(),
            forks,
            cancelled: Arc::clone(&live.cancelled),
        };
        let events = self.events.clone();
        let filter = self.filter_for_start();
        tracing::info!(%key, tasks = tasks.len(), "starting");
        tokio::spawn(async move {
            // Nobody else may reach a task from its first moment on.
            filter.settle().await;
            let report = move |mark, started| {
                let events = events.clone();
                async move {
                    // Where the loop has ended, the next life finds the process by its mark.
                    let _ = events.send(Event::Started { mark, started }).await;
                }
            };
            starter.start_all(prepared, report).await;
        });
    }

    /// Words for a start that could not be written down: a process that no ledger knows is a stray.
    fn no_ledger(&self) -> Refused {
        let why = self.unsaved_why.clone().unwrap_or_default();
        let words = format!(
            "cannot start: the ledger cannot be written: {}; free space in {}",
            why.words,
            self.settings.state_dir.display()
        );
        Refused { words, server: true, ..why }
    }

    /// Makes all that the tasks need, and their intents in the ledger.
    fn prepare(
        &mut self,
        key: Key,
        user: &TaskUser,
        tasks: &[Task],
        launch: &Launch,
        now: Millis,
    ) -> Result<Vec<Prepared>, Refused> {
        let folder = self.folder(key);
        if self.live.get(&key).is_none_or(|live| live.telemetry.is_none()) {
            self.open_generation(key, &folder, user, launch).map_err(|error| {
                Refused::by(&format!("cannot start: cannot make {}", folder.display()), &error)
            })?;
        }
        let mut free = self.gpus_free(now);
        let data = self.data_of(key);
        let mut prepared = Vec::with_capacity(tasks.len());
        let mut intents = Vec::with_capacity(tasks.len());
        for &task in tasks {
            let gpus = take_gpus(&mut free, launch, task)?;
            let port = self.take_port(key, task, launch)?;
            let mark = self.mark(key, task);
            let place = Place {
                mark: &mark,
                folder: &folder,
                user,
                task_address: &self.settings.task_address,
                port,
                python_package: self.settings.python_package.as_deref(),
                gpus: &gpus,
                assigned: self.waits_for_assignment(key),
                data: data.as_deref(),
            };
            let environment = environment::of_task(launch, place)
                .map_err(|error| format!("cannot start: resume: {error}"))?;
            let output = self.logs.open(key, task);
            let output = output.map_err(|error| Refused::by("cannot start: cannot log", &error))?;
            prepared.push(Prepared {
                mark,
                command: launch.command.clone(),
                working_directory: launch.working_directory.clone(),
                environment,
                output,
                listens_at: root_address(launch, task)?,
                group: self.tree.as_ref().map(|tree| tree.task(key, task)),
                limits: limits_of(launch, task),
                threads: environment::threads_of(launch, task),
                gpus: !gpus.is_empty(),
            });
            intents.push((task, HeldTask { gpus, state: State::Intent }));
        }
        if let Some(held) = self.ledger.generations.get_mut(&key) {
            held.tasks.extend(intents);
        }
        Ok(prepared)
    }

    /// The generation's folder with its socket and `control.json`; given to the task's user
    /// last, so that nobody else's file can be in the way.
    fn open_generation(
        &mut self,
        key: Key,
        folder: &Path,
        user: &TaskUser,
        launch: &Launch,
    ) -> io::Result<()> {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        DirBuilder::new().mode(0o700).create(folder)?;
        let temporary = folder.join("tmp");
        DirBuilder::new().mode(0o700).create(&temporary)?;
        control_file::write(folder, None)?;
        let socket = telemetry::bind(folder, user.uid, user.gid)?;
        let here = launch.tasks.iter().filter(|task| task.role == Role::Worker).count();
        let alone = u32::try_from(here) == Ok(launch.shape.workers);
        let files = Served::open(&self.gateway, key, folder, (user.uid, user.gid), alone)?;
        files.want(|wanted| wanted.resume = launch.resume.clone());
        chown(&temporary, Some(user.uid), Some(user.gid))?;
        chown(folder, Some(user.uid), Some(user.gid))?;
        let mark = self.mark(key, Task::SCHEDULER);
        let telemetry = Telemetry::new(socket, user.uid.as_raw(), &mark, true);
        let reader = read_socket(key, telemetry.socket()?, self.events.clone())?;
        self.live.insert(
            key,
            Live {
                telemetry: Some(telemetry),
                reader,
                files: Some(files),
                control_written: true,
                ..Live::default()
            },
        );
        Ok(())
    }

    fn not_started(&mut self, key: Key, tasks: &[Task], why: &Refused, now: Millis) {
        tracing::warn!(%key, %why, "tasks are not started");
        for &task in tasks {
            self.set_exited(key, task, Exit { reason: why.words.clone(), ..Exit::default() }, now);
        }
        if let Some(&first) = tasks.first() {
            self.rejected(key, first, why);
        }
    }

    /// Holds a task as exited that never was here.
    pub(super) fn absent(&mut self, key: Key, task: Task, reason: &str, now: Millis) {
        let user = &self.settings.user;
        let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
        self.ledger.generations.entry(key).or_insert_with(|| Held {
            on_disconnect: model::OnDisconnect::Keep,
            uid,
            gid,
            stopping: None,
            order: None,
            tasks: std::collections::BTreeMap::new(),
        });
        self.set_exited(key, task, Exit { reason: reason.to_owned(), ..Exit::default() }, now);
    }

    pub(super) fn set_exited(&mut self, key: Key, task: Task, exit: Exit, now: Millis) {
        if let Some(held) = self.ledger.generations.get_mut(&key) {
            held.tasks.insert(task, HeldTask::exited(exit));
        }
        if let Some(live) = self.live.get_mut(&key) {
            live.tasks.remove(&task);
            if let Some(telemetry) = &mut live.telemetry {
                telemetry.remove(task);
            }
        }
        self.end_output(key, task);
        self.free_port(key, task);
        self.changed(now);
    }

    /// A launch has come to one task.
    pub(super) fn on_started(&mut self, mark: &Mark, started: Started, now: Millis) {
        let (key, task) = (mark.key, mark.task);
        let (waiter, pid, start_ticks) = match started {
            Ok(started) => started,
            Err(why) => {
                tracing::warn!(task = %mark, %why, "a task is not started");
                self.rejected(key, task, &why);
                let reason = why.words;
                let stopping = self.ledger.generations.get(&key).and_then(|h| h.stopping.as_ref());
                let ordered = stopping.is_some_and(|stopping| stopping.ordered);
                self.set_exited(key, task, Exit { reason, ordered, ..Exit::default() }, now);
                self.obey(now);
                return;
            }
        };
        let boot = self.boot.clone();
        let live = self.live.entry(key).or_default();
        let ready = live.telemetry.as_ref().is_some_and(|told| told.has_said_hello(task));
        self.ledger.task_mut(key, task).state = State::Running { pid, start_ticks, boot, ready };
        if let Some(telemetry) = &mut live.telemetry {
            telemetry.add(task, pid);
        }
        live.tasks.insert(task, LiveTask { group: Some(pid), ..LiveTask::default() });
        self.watch_port(key, task);
        self.due.watch = self.due.watch.min(now.plus(super::WATCH_MS));
        self.changed(now);
        let (mark, events) = (mark.clone(), self.events.clone());
        tokio::spawn(async move {
            let event = match waiter.wait().await {
                Some((code, signal)) => Event::Ended { mark, code, signal },
                None => Event::Orphaned { mark },
            };
            // The loop has ended where nobody listens any more.
            let _ = events.send(event).await;
        });
        self.stop_again(key, now);
    }
}

/// What the job states for a task. It states nothing for the PS scheduler, which only brings the
/// others together.
fn limits_of(launch: &Launch, task: Task) -> Limits {
    let stated = match task.role {
        Role::Scheduler => return Limits::default(),
        Role::Server => &launch.server,
        Role::Worker => &launch.worker,
    };
    let given = |amount: u64| (0 < amount).then_some(amount);
    Limits { cpus_milli: given(stated.cpus_milli), memory_bytes: given(stated.memory_bytes) }
}

/// The identifiers of a task's GPUs, taken from the free ones.
fn take_gpus(free: &mut Vec<String>, launch: &Launch, task: Task) -> Result<Vec<String>, String> {
    let wanted = match task.role {
        Role::Scheduler => 0,
        Role::Server => launch.server.gpus,
        Role::Worker => launch.worker.gpus,
    };
    let count = usize::try_from(wanted).unwrap_or(usize::MAX);
    if free.len() < count {
        let left = free.len();
        return Err(format!("cannot start: {task} wants {wanted} GPUs and {left} are free here"));
    }
    Ok(free.drain(..count).collect())
}

/// Where the PS scheduler listens; none for another task.
fn root_address(launch: &Launch, task: Task) -> Result<Option<SocketAddr>, String> {
    if task.role != Role::Scheduler {
        return Ok(None);
    }
    let host: IpAddr = launch
        .root_host
        .parse()
        .map_err(|_| format!("cannot start: root host {:?} is not numeric", launch.root_host))?;
    Ok(Some(SocketAddr::new(host, launch.root_port)))
}
