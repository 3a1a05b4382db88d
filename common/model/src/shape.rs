//! How many tasks a job has, which they are, and where they stand.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;
use crate::resources::Resources;

/// Parameter servers and workers of a job.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Shape {
    pub servers: u32,
    pub workers: u32,
}

impl Shape {
    #[must_use]
    pub const fn new(servers: u32, workers: u32) -> Self {
        Self { servers, workers }
    }

    /// No tasks at all: the job waits.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.servers == 0 && self.workers == 0
    }

    /// Every process of a generation of this shape, the PS scheduler included; empty for an
    /// empty shape.
    #[must_use]
    pub fn tasks(self) -> BTreeSet<Task> {
        if self.is_empty() {
            return BTreeSet::new();
        }
        let servers = (0..self.servers).map(Task::server);
        let workers = (0..self.workers).map(Task::worker);
        std::iter::once(Task::SCHEDULER).chain(servers).chain(workers).collect()
    }

    /// What a job of this shape takes in all. The PS scheduler is charged to the first server.
    #[must_use]
    pub fn demand(self, worker: &Resources, server: &Resources) -> Resources {
        server.times(self.servers).plus(&worker.times(self.workers))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}+{}", self.servers, self.workers))
    }
}

/// What a process does in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    Scheduler,
    Server,
    Worker,
}

impl Role {
    /// As `DMLC_ROLE` spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Server => "server",
            Self::Worker => "worker",
        }
    }
}

/// One process of a job. The order is the order of starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Task {
    pub role: Role,
    pub index: u32,
}

impl Task {
    pub const SCHEDULER: Self = Self { role: Role::Scheduler, index: 0 };

    #[must_use]
    pub const fn server(index: u32) -> Self {
        Self { role: Role::Server, index }
    }

    #[must_use]
    pub const fn worker(index: u32) -> Self {
        Self { role: Role::Worker, index }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Scheduler => f.pad("scheduler"),
            Role::Server | Role::Worker => f.pad(&format!("{}{}", self.role.name(), self.index)),
        }
    }
}

impl std::str::FromStr for Task {
    type Err = crate::ids::InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let indexed = |prefix: &str| -> Option<u32> {
            let digits = text.strip_prefix(prefix)?;
            digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        if text == "scheduler" {
            return Ok(Self::SCHEDULER);
        }
        if let Some(index) = indexed("server") {
            return Ok(Self::server(index));
        }
        indexed("worker").map(Self::worker).ok_or_else(|| crate::ids::InvalidName {
            what: "task",
            given: text.chars().take(80).collect(),
            remedy: "write scheduler, server0 or worker0",
        })
    }
}

/// The tasks of one job on one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeShare {
    pub node: NodeId,
    pub servers: u32,
    pub workers: u32,
}

/// Which node carries how many tasks of a job: sorted by node, no node twice, no empty share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement(pub Vec<NodeShare>);

impl Placement {
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.0.iter().fold(Shape::default(), |sum, share| {
            Shape::new(
                sum.servers.saturating_add(share.servers),
                sum.workers.saturating_add(share.workers),
            )
        })
    }

    #[must_use]
    pub fn on(&self, node: &NodeId) -> Shape {
        self.0
            .iter()
            .find(|share| share.node == *node)
            .map_or_else(Shape::default, |share| Shape::new(share.servers, share.workers))
    }

    /// The node of the first server, which also carries the PS scheduler; none where the job has
    /// no server.
    #[must_use]
    pub fn scheduler_node(&self) -> Option<&NodeId> {
        self.0.iter().find(|share| share.servers > 0).map(|share| &share.node)
    }

    /// Numbers servers and workers through the nodes in order and says which stand on `node`;
    /// the PS scheduler stands with server 0.
    #[must_use]
    pub fn tasks_on(&self, node: &NodeId) -> BTreeSet<Task> {
        let mut tasks = BTreeSet::new();
        let (mut server, mut worker) = (0_u32, 0_u32);
        for share in &self.0 {
            if share.node == *node {
                if server == 0 && share.servers > 0 {
                    tasks.insert(Task::SCHEDULER);
                }
                tasks.extend((server..server + share.servers).map(Task::server));
                tasks.extend((worker..worker + share.workers).map(Task::worker));
            }
            server += share.servers;
            worker += share.workers;
        }
        tasks
    }

    /// The node that carries a task of this placement.
    #[must_use]
    pub fn node_of(&self, task: Task) -> Option<&NodeId> {
        let mut before = 0_u32;
        for share in &self.0 {
            let here = match task.role {
                Role::Scheduler => return self.scheduler_node(),
                Role::Server => share.servers,
                Role::Worker => share.workers,
            };
            if task.index < before + here {
                return Some(&share.node);
            }
            before += here;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(node: &str, servers: u32, workers: u32) -> NodeShare {
        NodeShare { node: node.parse().unwrap(), servers, workers }
    }

    #[test]
    fn every_task_stands_on_exactly_one_node() {
        let placement = Placement(vec![share("a", 0, 2), share("b", 2, 1), share("c", 1, 0)]);
        let mut seen = BTreeSet::new();
        for part in &placement.0 {
            for task in placement.tasks_on(&part.node) {
                assert!(seen.insert(task), "{task} stands twice");
                assert_eq!(placement.node_of(task), Some(&part.node), "{task}");
            }
        }
        assert_eq!(seen, placement.shape().tasks());
        assert_eq!(placement.scheduler_node().unwrap().as_str(), "b");
        assert_eq!(placement.node_of(Task::worker(3)), None);
    }

    #[test]
    fn tasks_read_back_what_they_print() {
        for task in Shape::new(2, 3).tasks() {
            assert_eq!(task.to_string().parse(), Ok(task));
        }
        for wrong in ["", "worker", "worker-1", "server+1", "scheduler0", "worker99999999999"] {
            assert!(wrong.parse::<Task>().is_err(), "{wrong:?} was taken");
        }
    }
}
