//! The ports of tasks, and who may reach them.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use model::agent::Launch;
use model::nodes::NodeNotes;
use model::{Millis, NodeId, Role, Task};
use nix::ifaddrs::getifaddrs;

use super::Agent;
use super::sockets::inodes;
use crate::config::Settings;
use crate::filter::{Admitted, Filter, Rules};
use crate::ledger::{Key, Ledger, PortHeld, State};
use crate::ports::Ports;
use crate::probe::sockets::{LISTEN, Socket, Sockets};
use crate::task::process::Refused;

/// Between two looks whether the kernel still has the rules. A firewall that is loaded anew leaves
/// the ports open for as long.
const LOOK_MS: u64 = 15_000;
/// Addresses told of this host: more are no interfaces of its own.
const ADDRESSES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Guard {
    ports: Ports,
    filter: Arc<Filter>,
    look_at: Millis,
    /// Servers that have not been seen to listen where they should.
    unproved: BTreeSet<(Key, Task)>,
    /// This host's addresses, as peers see them.
    addresses: Vec<IpAddr>,
    alert: Option<String>,
}

impl Guard {
    pub(super) fn new(settings: &Settings, node: &NodeId, ledger: &Ledger) -> Self {
        let address = own_address(settings);
        let life = u32::try_from(ledger.incarnation.0 % 1_000_003).unwrap_or(0);
        let seed = crc32fast::hash(node.as_str().as_bytes()).wrapping_add(life.wrapping_mul(131));
        Self {
            ports: Ports::new(address, settings.task_ports, seed),
            filter: Arc::new(Filter::new(settings, node)),
            look_at: Millis(0),
            unproved: BTreeSet::new(),
            addresses: addresses(address),
            alert: ephemeral(settings.task_ports),
        }
    }

    pub(super) fn filter(&self) -> Arc<Filter> {
        Arc::clone(&self.filter)
    }
}

/// The address that tasks here bind.
fn own_address(settings: &Settings) -> IpAddr {
    // Checked where the settings are read.
    settings.task_address.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// What packets of this host may have as their source, of the family that its tasks use. A
/// connection to a peer leaves by the interface of the route there, whatever a task binds.
fn addresses(own: IpAddr) -> Vec<IpAddr> {
    let found = getifaddrs().into_iter().flatten().filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    let outside = |address: &IpAddr| address.is_ipv4() == own.is_ipv4() && !address.is_loopback();
    let found: BTreeSet<IpAddr> = found.filter(outside).collect();
    found.into_iter().take(ADDRESSES_MAX).collect()
}

/// In words, where the kernel gives out the ports of tasks by itself.
fn ephemeral((first, last): (u16, u16)) -> Option<String> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut bounds = text.split_whitespace().map(str::parse::<u16>);
    let (low, high) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
    (first <= high && low <= last).then(|| {
        format!(
            "task_ports [{first}, {last}] overlap the kernel's ephemeral ports, {low} to {high}: \
             answers to this host's own connections may be refused; choose others"
        )
    })
}

impl Agent {
    /// Holds a port for a task until that is proved gone; gives the one to tell it, where it has
    /// not its own way to know.
    ///
    /// # Errors
    /// In words, where there is none.
    pub(super) fn take_port(
        &mut self,
        key: Key,
        task: Task,
        launch: &Launch,
    ) -> Result<Option<u16>, Refused> {
        let held = &self.ledger.ports;
        let (at, told) = if task.role == Role::Scheduler {
            let Ok(host) = launch.root_host.parse::<IpAddr>() else { return Ok(None) };
            let at = SocketAddr::new(host, launch.root_port);
            if let Some(other) = held.get(&at).filter(|other| other.key != key) {
                let words = format!("root port {} is busy: {} holds it", at.port(), other.key);
                return Err(words.into());
            }
            (at, None)
        } else {
            let own = own_address(&self.settings);
            let is_held = |port| held.contains_key(&SocketAddr::new(own, port));
            let taken = self.guard.ports.take(is_held);
            let port = taken.map_err(|words| Refused { server: true, ..words.into() })?;
            (SocketAddr::new(own, port), Some(port))
        };
        let peers = self.peers_of(key);
        self.ledger.ports.insert(at, PortHeld { key, task, peers });
        Ok(told)
    }

    /// No process of the task is left: its port may go to another.
    pub(super) fn free_port(&mut self, key: Key, task: Task) {
        let of = |held: &PortHeld| held.key == key && held.task == task;
        let ports: Vec<SocketAddr> =
            self.ledger.ports.iter().filter(|(_, held)| of(held)).map(|(at, _)| *at).collect();
        for at in ports {
            self.ledger.ports.remove(&at);
            self.guard.ports.free(at.port());
        }
        self.guard.unproved.remove(&(key, task));
        self.tend_filter();
    }

    /// Servers with tasks of a generation, as the master says; none where it says nothing.
    fn peers_of(&self, key: Key) -> Option<BTreeSet<IpAddr>> {
        let of = self.orders.jobs.iter();
        let mut of = of.filter(|job| job.job == key.job && job.generation == key.generation);
        of.next().map(|job| job.peers.iter().copied().collect())
    }

    /// Takes what the newest orders say of tasks that are here already.
    pub(super) fn admit(&mut self, now: Millis) {
        let keys: BTreeSet<Key> = self.ledger.ports.values().map(|held| held.key).collect();
        let mut news = false;
        for key in keys {
            // A generation keeps its place, so nothing is ever taken back: a master that has just
            // started may not know all addresses of all servers yet, and a packet that is refused
            // would end a connection that ps-lite never makes again.
            let Some(peers) = self.peers_of(key) else { continue };
            for held in self.ledger.ports.values_mut().filter(|held| held.key == key) {
                let known = held.peers.get_or_insert_with(|| {
                    news = true;
                    BTreeSet::new()
                });
                let before = known.len();
                known.extend(&peers);
                news |= known.len() != before;
            }
        }
        if news {
            self.changed(now);
            self.tend_filter();
        }
    }

    /// Who may reach the tasks here, by what the ledger holds.
    fn rules(&self) -> Rules {
        let ports = self.ledger.ports.iter().filter_map(|(at, held)| {
            let uid = self.ledger.generations.get(&held.key)?.uid;
            Some((*at, Admitted { peers: held.peers.clone()?, uid }))
        });
        Rules { ports: ports.collect() }
    }

    /// Gives the kernel other rules where the ledger asks for them.
    pub(super) fn tend_filter(&self) {
        if self.guard.filter.want(self.rules()) {
            self.guard.filter.settle_soon();
        }
    }

    /// What is wanted of the kernel now, for one who waits for it.
    pub(super) fn filter_for_start(&self) -> Arc<Filter> {
        let _news = self.guard.filter.want(self.rules());
        self.guard.filter()
    }

    /// The start of a life: the kernel's table may be gone, or be of a life before.
    pub(super) fn raise_filter(&mut self) {
        let ledger = &mut self.ledger;
        let generations = &ledger.generations;
        ledger.ports.retain(|_, held| {
            let held_tasks = generations.get(&held.key).map(|generation| &generation.tasks);
            held_tasks.and_then(|tasks| tasks.get(&held.task)).is_some_and(|task| task.is_live())
        });
        let _news = self.guard.filter.want(self.rules());
        self.guard.filter.settle_soon();
    }

    /// From now on it is watched where this task listens.
    pub(super) fn watch_port(&mut self, key: Key, task: Task) {
        if task.role == Role::Server {
            self.guard.unproved.insert((key, task));
        }
    }

    /// Looks now and then at what may have changed by itself: the kernel's rules, and this host's
    /// addresses.
    pub(super) fn tend_guard(&mut self, now: Millis) {
        if self.guard.look_at <= now {
            self.guard.look_at = now.plus(LOOK_MS);
            self.guard.addresses = addresses(own_address(&self.settings));
            self.guard.filter.look_soon();
        }
    }

    /// Ends a generation of which a server listens at another port than its own.
    pub(super) fn look_at_ports(&mut self, now: Millis) {
        if self.guard.unproved.is_empty() {
            return;
        }
        let v6 = self.settings.task_address.contains(':');
        let listed = Sockets::open().and_then(|mut line| line.list(LISTEN, None, v6));
        // Without the kernel's word nothing is proved, and nothing held against a task.
        let Ok(all) = listed else { return };
        for (key, task) in self.guard.unproved.clone() {
            match self.listens(key, task, &all) {
                Listens::NotYet => {}
                Listens::Where => {
                    self.guard.unproved.remove(&(key, task));
                }
                Listens::Elsewhere(own) => {
                    self.guard.unproved.remove(&(key, task));
                    // ps-lite goes to any other port then, where nobody guards it.
                    let reason = format!(
                        "port {own} of {task} was taken by another program before it listened there"
                    );
                    self.stop(key, reason, false, self.settings.stop_grace_ms, now);
                }
            }
        }
    }

    fn listens(&self, key: Key, task: Task, all: &[Socket]) -> Listens {
        let mut ports = self.ledger.ports.iter();
        let held = ports.find(|(_, held)| held.key == key && held.task == task);
        let state = self.ledger.generations.get(&key).and_then(|held| held.tasks.get(&task));
        let (Some((at, _)), Some(State::Running { pid, .. })) = (held, state.map(|t| &t.state))
        else {
            return Listens::NotYet;
        };
        let own = inodes(*pid);
        let mut found = all.iter().filter(|socket| own.contains(&socket.inode));
        if found.clone().any(|socket| socket.local == *at) {
            Listens::Where
        } else if found.any(|socket| socket.local.ip() == at.ip()) {
            Listens::Elsewhere(at.port())
        } else {
            Listens::NotYet
        }
    }

    pub(super) fn tell_ports(&self, notes: &mut NodeNotes) {
        let trouble = self.guard.filter.trouble();
        notes.isolation.filter = trouble.is_none();
        notes.isolation.missing.extend(trouble);
        notes.addresses.clone_from(&self.guard.addresses);
        notes.alerts.extend(self.guard.alert.clone());
        notes.alerts.extend(self.ticket_alert());
    }
}

/// Where a server listens.
enum Listens {
    NotYet,
    /// Where it should.
    Where,
    /// Not there: its own port.
    Elsewhere(u16),
}
