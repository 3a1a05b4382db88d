//! An agent: it obeys desired sets by the rules of the real one, decides nothing, and reports its
//! whole state.

use std::collections::{BTreeMap, BTreeSet};

use control::SessionId;
use model::agent::{
    CheckpointOrder, Desired, DesiredGeneration, Exit, Order, TaskReport, TaskState,
};
use model::{
    Generation, Incarnation, JobId, Millis, NodeId, OnDisconnect, Resources, Revision, Task,
};

/// One life of a job's processes.
pub(super) type Name = (JobId, Generation);

pub(super) const NOT_HELD: &str = "not held by this agent";
const NEWER_HELD: &str = "a newer generation is held by this agent";
const BEING_STOPPED: &str = "the generation is being stopped";

#[derive(Clone, Debug)]
pub(super) struct Agent {
    pub(super) id: NodeId,
    pub(super) capacity: Resources,
    pub(super) session: Option<SessionId>,
    pub(super) incarnation: Incarnation,
    pub(super) boots: u64,
    pub(super) powered: bool,
    /// False while the agent's process is down; tasks live on.
    pub(super) runs: bool,
    pub(super) link: Link,
    /// When the last of its messages got through.
    pub(super) contact: Millis,
    pub(super) off_since: Option<Millis>,
    /// The set that it last obeyed: part of the ledger, so that it outlives the agent's process.
    pub(super) obeyed: Revision,
    pub(super) desired: Vec<DesiredGeneration>,
    pub(super) ledger: BTreeMap<Name, Held>,
    pub(super) sequence: u64,
    /// A heartbeat is on its way to be sent.
    pub(super) soon: bool,
    /// Generations with news, where only news is reported.
    pub(super) news: BTreeSet<Name>,
    /// Factor on the speed of its tasks.
    pub(super) speed: f64,
    /// Counts the lives of the regular heartbeat.
    pub(super) beats: u64,
}

/// The way between an agent and the master.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Link {
    pub(super) cut: bool,
    pub(super) delay_ms: u64,
    /// Messages that are still to be lost, in either direction.
    pub(super) losses: u32,
    /// What was sent arrives in its order.
    pub(super) up_until: Millis,
    pub(super) down_until: Millis,
}

/// Tasks of one generation.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) tasks: BTreeMap<Task, Option<Exit>>,
    /// Counts orders to stop, so that an earlier one's end is told apart.
    pub(super) stopping: bool,
    pub(super) on_disconnect: OnDisconnect,
}

impl Held {
    pub(super) fn is_live(&self) -> bool {
        self.tasks.values().any(Option::is_none)
    }
}

/// What the agent does about its desired set.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Start { wanted: Box<DesiredGeneration>, tasks: Vec<Task> },
    Stop { name: Name },
    Order { name: Name, order: Option<CheckpointOrder> },
}

impl Agent {
    pub(super) fn new(id: NodeId, capacity: Resources, delay_ms: u64) -> Self {
        Self {
            id,
            capacity,
            session: None,
            incarnation: Incarnation(1),
            boots: 1,
            powered: true,
            runs: true,
            link: Link { delay_ms, ..Link::default() },
            contact: Millis::default(),
            off_since: None,
            obeyed: Revision::default(),
            desired: Vec::new(),
            ledger: BTreeMap::new(),
            sequence: 0,
            soon: false,
            news: BTreeSet::new(),
            speed: 1.0,
            beats: 0,
        }
    }

    /// True where it could talk to a master.
    pub(super) const fn hears(&self) -> bool {
        self.powered && self.runs && !self.link.cut
    }

    pub(super) fn wants(&self, name: Name) -> bool {
        self.desired.iter().any(|wanted| (wanted.job, wanted.generation) == name)
    }

    /// Takes a set; false where it is older than one that was obeyed.
    pub(super) fn take(&mut self, desired: Desired) -> bool {
        if desired.revision < self.obeyed {
            return false;
        }
        self.obeyed = desired.revision;
        self.desired = desired.generations;
        true
    }

    /// What to do so that the node runs what is desired and nothing else; ends before starts.
    pub(super) fn reconcile(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        let desired = std::mem::take(&mut self.desired);
        let wanted: BTreeSet<Name> = desired.iter().map(|w| (w.job, w.generation)).collect();
        self.ledger.retain(|name, held| wanted.contains(name) || held.is_live());
        for (name, held) in &self.ledger {
            if !wanted.contains(name) && !held.stopping {
                actions.push(Action::Stop { name: *name });
            }
        }
        let is_end = |wanted: &&DesiredGeneration| matches!(wanted.order, Order::Stop { .. });
        for wanted in desired.iter().filter(is_end) {
            self.one(wanted, &mut actions);
        }
        for wanted in desired.iter().filter(|wanted| !is_end(wanted)) {
            self.one(wanted, &mut actions);
        }
        self.desired = desired;
        actions
    }

    fn one(&mut self, wanted: &DesiredGeneration, actions: &mut Vec<Action>) {
        let name = (wanted.job, wanted.generation);
        let held = self.ledger.get(&name);
        let (is_live, stopping) =
            held.map_or((false, false), |held| (held.is_live(), held.stopping));
        let is_held = held.is_some();
        let missing: Vec<Task> = wanted
            .launch
            .tasks
            .iter()
            .copied()
            .filter(|task| held.is_none_or(|held| !held.tasks.contains_key(task)))
            .collect();
        match wanted.order {
            // The master waits for an exit of each task, so one that never came is reported too.
            Order::Stop { .. } => {
                self.absent(wanted, &missing, NOT_HELD);
                if is_live && !stopping {
                    actions.push(Action::Stop { name });
                }
                return;
            }
            Order::Keep => self.absent(wanted, &missing, NOT_HELD),
            Order::Start if stopping => self.absent(wanted, &missing, BEING_STOPPED),
            Order::Start if self.is_outdated(name) => self.absent(wanted, &missing, NEWER_HELD),
            Order::Start if missing.is_empty() || self.older_lives(name) => {}
            Order::Start => {
                let wanted = Box::new(wanted.clone());
                actions.push(Action::Start { wanted, tasks: missing });
            }
        }
        if !stopping && (is_held || wanted.order == Order::Start) {
            actions.push(Action::Order { name, order: wanted.checkpoint.clone() });
        }
    }

    fn absent(&mut self, wanted: &DesiredGeneration, tasks: &[Task], reason: &str) {
        if tasks.is_empty() {
            return;
        }
        let name = (wanted.job, wanted.generation);
        let held = self.held(name, wanted.launch.on_disconnect);
        for task in tasks {
            let exit = Exit { reason: reason.to_owned(), ..Exit::default() };
            held.tasks.insert(*task, Some(exit));
        }
    }

    pub(super) fn held(&mut self, name: Name, on_disconnect: OnDisconnect) -> &mut Held {
        self.ledger.entry(name).or_insert_with(|| Held {
            tasks: BTreeMap::new(),
            stopping: false,
            on_disconnect,
        })
    }

    fn is_outdated(&self, (job, generation): Name) -> bool {
        self.ledger.keys().any(|other| other.0 == job && generation < other.1)
    }

    /// An earlier generation of the job has a process here: it must be gone first.
    fn older_lives(&self, (job, generation): Name) -> bool {
        self.ledger
            .iter()
            .any(|(other, held)| other.0 == job && other.1 < generation && held.is_live())
    }

    pub(super) fn task_reports(&self) -> Vec<TaskReport> {
        let mut reports = Vec::new();
        for ((job, generation), held) in &self.ledger {
            for (task, exit) in &held.tasks {
                let state = match exit {
                    Some(exit) => TaskState::Exited(exit.clone()),
                    None => TaskState::Running { pid: 1, ready: true },
                };
                let (job, generation) = (*job, *generation);
                reports.push(TaskReport { job, generation, task: *task, state });
            }
        }
        reports
    }

    /// Ends what lives of a generation; the tasks that ended.
    pub(super) fn end(&mut self, name: Name, exit: &Exit) -> Vec<Task> {
        let Some(held) = self.ledger.get_mut(&name) else { return Vec::new() };
        let mut ended = Vec::new();
        for (task, state) in &mut held.tasks {
            if state.is_none() {
                *state = Some(exit.clone());
                ended.push(*task);
            }
        }
        ended
    }
}
