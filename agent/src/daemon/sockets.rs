//! Looks at the sockets of local servers and workers: whose gradients come last.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;

use model::notes::{ArrivalReport, LinkReport};
use model::{Millis, Mode, Role, Task};

use super::{Agent, NEVER};
use crate::arrivals::Arrivals;
use crate::ledger::{Key, State};
use crate::probe::sockets::{ESTABLISHED, LISTEN, Socket, Sockets};

/// Between two looks at the servers' connections.
const LOOK_MS: u64 = 200;
/// Between two looks for the connections themselves: at first while some are not there yet, then
/// ever more, and once all are found.
const FIND_MS: u64 = 2_000;
const FIND_AGAIN_MS: u64 = 60_000;
/// The kernel did not answer: it is asked again then.
const RETRY_MS: u64 = 60_000;
/// Connections told of one worker.
const LINKS_MAX: usize = 1_024;

/// What is known of the sockets of one generation's tasks here.
#[derive(Debug, Default)]
pub(super) struct Seen {
    servers: BTreeMap<u32, (u16, Arrivals)>,
    links: BTreeMap<u32, Vec<SocketAddr>>,
    find_at: Millis,
    /// Times that not all were found.
    tries: u32,
}

/// The line to the kernel, and when it is used next.
#[derive(Debug, Default)]
pub(super) struct Line {
    sockets: Option<Sockets>,
    look_at: Millis,
    told: bool,
}

/// A generation whose gradients are worth looking at.
struct Team {
    key: Key,
    workers: u32,
    servers: u32,
    /// Local servers and workers with their first processes.
    tasks: BTreeMap<Task, i32>,
}

impl Agent {
    /// Synchronous generations of two workers or more with tasks that run here.
    fn teams(&self) -> Vec<Team> {
        let mut teams = Vec::new();
        for wanted in self.desired.iter().flat_map(|desired| &desired.generations) {
            let launch = &wanted.launch;
            let key = Key { job: wanted.job, generation: wanted.generation };
            let Some(held) = self.ledger.generations.get(&key) else { continue };
            if launch.mode != Mode::Sync || launch.shape.workers < 2 || held.stopping.is_some() {
                continue;
            }
            let running = held.tasks.iter().filter_map(|(task, held)| match &held.state {
                State::Running { pid, ready: true, .. } if task.role != Role::Scheduler => {
                    Some((*task, *pid))
                }
                State::Running { .. } | State::Intent | State::Exited(_) => None,
            });
            let tasks: BTreeMap<Task, i32> = running.collect();
            if !tasks.is_empty() {
                let (workers, servers) = (launch.shape.workers, launch.shape.servers);
                teams.push(Team { key, workers, servers, tasks });
            }
        }
        teams
    }

    pub(super) fn sockets_due(&self) -> Millis {
        // Whether there is anything to look at is known only then.
        if self.live.values().any(|live| !live.tasks.is_empty()) {
            self.line.look_at
        } else {
            NEVER
        }
    }

    pub(super) fn look_at_sockets(&mut self, now: Millis) {
        self.line.look_at = now.plus(LOOK_MS);
        let teams = self.teams();
        if teams.is_empty() {
            self.line.look_at = now.plus(FIND_MS);
            return;
        }
        if let Err(error) = self.try_look(&teams, now) {
            self.line.sockets = None;
            self.line.look_at = now.plus(RETRY_MS);
            if !std::mem::replace(&mut self.line.told, true) {
                tracing::warn!(
                    %error,
                    "the kernel does not tell of sockets: stragglers of synchronous jobs are \
                     found by their own computing time alone"
                );
            }
        }
    }

    fn try_look(&mut self, teams: &[Team], now: Millis) -> std::io::Result<()> {
        let mut sockets = match self.line.sockets.take() {
            Some(sockets) => sockets,
            None => Sockets::open()?,
        };
        // Tasks talk to each other at addresses of one family.
        let v6 = self.settings.task_address.contains(':');
        if teams.iter().any(|team| self.finds(team, now)) {
            let all = sockets.list(ESTABLISHED | LISTEN, None, v6)?;
            for team in teams {
                self.find(team, &all, now);
            }
        }
        let live = &mut self.live;
        let ports: Vec<u16> = teams
            .iter()
            .filter_map(|team| live.get(&team.key))
            .flat_map(|live| live.seen.servers.values().map(|(port, _)| *port))
            .collect();
        // One question, whatever the number of servers: the kernel walks all its sockets for each.
        let found = match ports[..] {
            [] => Vec::new(),
            [port] => sockets.list(ESTABLISHED, Some(port), v6)?,
            _ => sockets.list(ESTABLISHED, None, v6)?,
        };
        for team in teams {
            let Some(live) = live.get_mut(&team.key) else { continue };
            for (port, arrivals) in live.seen.servers.values_mut() {
                let here = found.iter().filter(|socket| socket.local.port() == *port);
                arrivals.look(here, team.workers);
            }
        }
        self.line.sockets = Some(sockets);
        Ok(())
    }

    /// Whether the sockets of a generation are to be looked for now.
    fn finds(&self, team: &Team, now: Millis) -> bool {
        self.live.get(&team.key).is_some_and(|live| live.seen.find_at <= now)
    }

    /// Finds a generation's sockets by the processes that hold them.
    fn find(&mut self, team: &Team, all: &[Socket], now: Millis) {
        if !self.finds(team, now) {
            return;
        }
        let Some(live) = self.live.get_mut(&team.key) else { return };
        let mut complete = true;
        for (task, pid) in &team.tasks {
            let own = inodes(*pid);
            let held: Vec<&Socket> =
                all.iter().filter(|socket| own.contains(&socket.inode)).collect();
            let listening: BTreeSet<u16> =
                held.iter().filter(|s| s.listens).map(|s| s.local.port()).collect();
            if task.role == Role::Server {
                match listening.first() {
                    Some(port) if listening.len() == 1 => {
                        let known = live.seen.servers.get(&task.index);
                        if known.is_none_or(|(old, _)| old != port) {
                            live.seen.servers.insert(task.index, (*port, Arrivals::default()));
                        }
                    }
                    Some(_) | None => complete = false,
                }
            } else {
                // What others opened to it comes in at the port that it listens at.
                let made = held
                    .iter()
                    .filter(|socket| !socket.listens && !listening.contains(&socket.local.port()));
                let made: Vec<SocketAddr> = made.map(|s| s.local).take(LINKS_MAX).collect();
                complete &= made.len() >= usize::try_from(team.servers).unwrap_or(usize::MAX);
                live.seen.links.insert(task.index, made);
            }
        }
        let wait_ms = FIND_MS << live.seen.tries.min(5);
        live.seen.tries = if complete { 0 } else { live.seen.tries.saturating_add(1) };
        live.seen.find_at = now.plus(if complete { FIND_AGAIN_MS } else { wait_ms });
    }

    pub(super) fn arrival_reports(&self) -> Vec<ArrivalReport> {
        let mut reports = Vec::new();
        for (Key { job, generation }, live) in &self.live {
            for (server, (_, arrivals)) in &live.seen.servers {
                let behind = arrivals.behind.iter().map(|(end, count)| (*end, *count)).collect();
                let looks = arrivals.looks;
                let (job, generation, server) = (*job, *generation, *server);
                reports.push(ArrivalReport { job, generation, server, looks, behind });
            }
        }
        reports
    }

    pub(super) fn link_reports(&self) -> Vec<LinkReport> {
        let links = self.live.iter().flat_map(|(key, live)| {
            live.seen.links.iter().map(|(worker, from)| LinkReport {
                job: key.job,
                generation: key.generation,
                worker: *worker,
                from: from.clone(),
            })
        });
        links.collect()
    }
}

/// The sockets that a process holds.
pub(super) fn inodes(pid: i32) -> BTreeSet<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let text = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
            text.parse().ok()
        })
        .collect()
}
