//! An agent as the contract has it: it obeys sets, never decides, and reports its whole state.

use std::collections::BTreeMap;

use model::agent::{
    CheckpointReport, Desired, DesiredGeneration, EpochReport, Exit, Heartbeat, Introduction,
    Order, TaskReport, TaskState, WorkerReport,
};
use model::notes::Extras;
use model::{BootId, Generation, Incarnation, JobId, Millis, OnDisconnect, Resources, Task};

use crate::SessionId;

type Name = (JobId, Generation, Task);

#[derive(Clone)]
pub(crate) struct Agent {
    pub(crate) capacity: Resources,
    pub(crate) session: Option<SessionId>,
    pub(crate) incarnation: Incarnation,
    pub(crate) boot: String,
    pub(crate) powered: bool,
    pub(crate) agent_runs: bool,
    /// False while the network is cut.
    pub(crate) hears: bool,
    pub(crate) contact: Millis,
    pub(crate) beaten: Millis,
    pub(crate) desired: Desired,
    /// What came with it.
    pub(crate) extras: Extras,
    pub(crate) orders: model::nodes::NodeOrders,
    pub(crate) ledger: BTreeMap<Name, Entry>,
    pub(crate) cards: super::gpus::Cards,
    /// How long a task takes to go out.
    pub(crate) exit_ms: u64,
    /// Why it starts nothing.
    pub(crate) rejects: Option<String>,
    /// Where others reach its tasks.
    pub(crate) address: String,
    sequence: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) exit: Option<Exit>,
    pub(crate) out_at: Option<(Millis, Exit)>,
    pub(crate) on_disconnect: OnDisconnect,
}

/// What a node's training processes told its agent.
#[derive(Default)]
pub(crate) struct Reports {
    pub(crate) workers: Vec<WorkerReport>,
    pub(crate) epochs: Vec<EpochReport>,
    pub(crate) checkpoints: Vec<CheckpointReport>,
}

impl Agent {
    pub(crate) fn new(capacity: Resources, number: u32) -> Self {
        Self {
            capacity,
            session: None,
            incarnation: Incarnation(1),
            boot: format!("boot-{number}-1"),
            powered: true,
            agent_runs: true,
            hears: true,
            contact: Millis(0),
            beaten: Millis(0),
            desired: Desired::default(),
            extras: Extras::default(),
            orders: model::nodes::NodeOrders::default(),
            ledger: BTreeMap::new(),
            cards: super::gpus::Cards::default(),
            exit_ms: 500,
            rejects: None,
            address: "10.0.0.1".to_owned(),
            sequence: 0,
        }
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = Name> + '_ {
        self.ledger.iter().filter(|(_, entry)| entry.exit.is_none()).map(|(name, _)| *name)
    }

    pub(crate) fn introduction(&mut self, now: Millis, reports: Reports) -> Introduction {
        self.sequence = 0;
        Introduction {
            incarnation: self.incarnation,
            boot_id: BootId(self.boot.clone()),
            software: "0.1.0".to_owned(),
            unix_ms: super::clocks(now).unix.0,
            task_address: self.address.clone(),
            beat_ms: 500,
            first: self.heartbeat(now, reports),
        }
    }

    pub(crate) fn heartbeat(&mut self, now: Millis, reports: Reports) -> Heartbeat {
        self.beaten = now;
        self.contact = now;
        self.sequence += 1;
        self.deal_cards();
        let tasks = self.ledger.iter().map(|((job, generation, task), entry)| TaskReport {
            job: *job,
            generation: *generation,
            task: *task,
            state: match &entry.exit {
                Some(exit) => TaskState::Exited(exit.clone()),
                None => TaskState::Running { pid: 7, ready: true },
            },
        });
        Heartbeat {
            sequence: self.sequence,
            obeyed: self.desired.revision,
            capacity: self.capacity.clone(),
            gpus: self.cards.reports(),
            tasks: tasks.collect(),
            workers: reports.workers,
            epochs: reports.epochs,
            checkpoints: reports.checkpoints,
            ..Heartbeat::default()
        }
    }

    pub(crate) fn obey(&mut self, desired: Desired, now: Millis) {
        if desired.revision < self.desired.revision {
            return;
        }
        self.desired = desired;
        self.reconcile(now);
    }

    pub(crate) fn wanted(&self, job: JobId, generation: Generation) -> Option<&DesiredGeneration> {
        self.desired
            .generations
            .iter()
            .find(|wanted| wanted.job == job && wanted.generation == generation)
    }

    fn reconcile(&mut self, now: Millis) {
        let ordered = |reason: &str| Exit {
            code: Some(0),
            signal: None,
            reason: reason.to_owned(),
            ordered: true,
        };
        let out_at = now.plus(self.exit_ms);
        let desired = self.desired.clone();
        let is_wanted = |name: &Name| {
            desired.generations.iter().any(|g| g.job == name.0 && g.generation == name.1)
        };
        self.ledger.retain(|name, entry| is_wanted(name) || entry.exit.is_none());
        for (name, entry) in &mut self.ledger {
            if !is_wanted(name) && entry.out_at.is_none() {
                entry.out_at = Some((out_at, ordered("not wanted")));
            }
        }
        for wanted in &desired.generations {
            for task in &wanted.launch.tasks {
                let name = (wanted.job, wanted.generation, *task);
                match (&wanted.order, self.ledger.get_mut(&name)) {
                    (Order::Start, None) => {
                        let mut entry = Entry::new(wanted.launch.on_disconnect);
                        entry.exit =
                            self.rejects.clone().map(|reason| Exit { reason, ..Exit::default() });
                        self.ledger.insert(name, entry);
                    }
                    (Order::Keep, None) => {
                        let mut entry = Entry::new(wanted.launch.on_disconnect);
                        entry.exit = Some(Exit {
                            reason: "not held by this agent".to_owned(),
                            ..Exit::default()
                        });
                        self.ledger.insert(name, entry);
                    }
                    (Order::Stop { .. }, Some(entry)) if entry.exit.is_none() => {
                        let at = (out_at, ordered("stopped as told"));
                        entry.out_at = entry.out_at.take().or(Some(at));
                    }
                    (Order::Start | Order::Keep | Order::Stop { .. }, _) => {}
                }
            }
        }
    }

    /// Time passes on the node, whoever listens.
    pub(crate) fn tend(&mut self, now: Millis) {
        let silent_ms = now.since(self.contact);
        for entry in self.ledger.values_mut() {
            let ends = silent_ms >= 45_000 && entry.on_disconnect != OnDisconnect::Keep;
            if ends && entry.exit.is_none() && entry.out_at.is_none() {
                let reason = "no contact with a master for 45 s".to_owned();
                let exit = Exit { signal: Some(15), reason, ..Exit::default() };
                entry.out_at = Some((now, exit));
            }
            if let Some((at, exit)) = &entry.out_at
                && *at <= now
            {
                entry.exit = Some(exit.clone());
                entry.out_at = None;
            }
        }
        let desired = &self.desired;
        self.ledger.retain(|(job, generation, _), entry| {
            let wanted =
                desired.generations.iter().any(|g| g.job == *job && g.generation == *generation);
            wanted || entry.exit.is_none()
        });
    }

    /// The machine starts again: every process is dead, and so is the ledger's memory of them.
    pub(crate) fn reboot(&mut self) {
        self.boot = format!("{}+", self.boot);
        self.incarnation = self.incarnation.next();
        self.ledger.clear();
        self.session = None;
        self.powered = true;
        self.hears = true;
    }
}

impl Entry {
    fn new(on_disconnect: OnDisconnect) -> Self {
        Self { exit: None, out_at: None, on_disconnect }
    }
}
