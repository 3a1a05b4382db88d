//! What newer masters tell of a node beside its row: fields of `optimus.node/1`.

use model::nodes::{DrainView, Isolation, NodeMore};
use serde::Serialize;

use super::Time;

/// Why a node takes no new tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ClosedJson {
    pub by: Option<String>,
    pub since: Option<Time>,
    pub reason: String,
}

/// How far a drain has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DrainJson {
    pub deadline: Option<Time>,
    pub tasks_before: u32,
    pub tasks_left: u32,
    pub jobs: Vec<LeavingJson>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeavingJson {
    pub job: String,
    pub waits_for: String,
}

/// What the server enforces of each task's limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct IsolationJson {
    pub cpu: bool,
    pub memory: bool,
    pub pids: bool,
    pub groups: bool,
    pub filter: bool,
    pub missing: Vec<String>,
}

/// Null where the master or the agent is too old to tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NodeMoreJson {
    pub closed: Option<ClosedJson>,
    pub drain: Option<DrainJson>,
    pub isolation: Option<IsolationJson>,
    pub gpu_trouble: Option<String>,
    pub alerts: Vec<String>,
    pub rejects: Vec<String>,
    pub certificate_ends: Option<Time>,
}

impl From<&NodeMore> for NodeMoreJson {
    fn from(more: &NodeMore) -> Self {
        let closed = more.since.map(|since| ClosedJson {
            by: more.by.clone(),
            since: Some(Time(since)),
            reason: more.reason.clone(),
        });
        Self {
            closed,
            drain: more.drain.as_ref().map(DrainJson::from),
            isolation: more.known.then(|| IsolationJson::from(&more.isolation)),
            gpu_trouble: more.gpu_trouble.clone(),
            alerts: more.alerts.clone(),
            rejects: more.rejects.clone(),
            certificate_ends: more.certificate_ends.map(Time),
        }
    }
}

impl From<&DrainView> for DrainJson {
    fn from(drain: &DrainView) -> Self {
        let jobs = drain.jobs.iter();
        let jobs =
            jobs.map(|(job, waits)| LeavingJson { job: job.to_string(), waits_for: waits.clone() });
        Self {
            deadline: drain.deadline.map(Time),
            tasks_before: drain.tasks_before,
            tasks_left: drain.tasks_left,
            jobs: jobs.collect(),
        }
    }
}

impl From<&Isolation> for IsolationJson {
    fn from(isolation: &Isolation) -> Self {
        Self {
            cpu: isolation.cpu,
            memory: isolation.memory,
            pids: isolation.pids,
            groups: isolation.groups,
            filter: isolation.filter,
            missing: isolation.missing.clone(),
        }
    }
}

impl IsolationJson {
    /// What is enforced, in words.
    #[must_use]
    pub(crate) fn words(&self) -> String {
        let all = [
            (self.cpu, "cpu"),
            (self.memory, "memory"),
            (self.pids, "pids"),
            (self.groups, "groups"),
            (self.filter, "filter"),
        ];
        let names = |wanted: bool| -> Vec<&str> {
            all.iter().filter(|(on, _)| *on == wanted).map(|(_, name)| *name).collect()
        };
        match (names(true).as_slice(), names(false).as_slice()) {
            ([], _) => "nothing is enforced".to_owned(),
            (on, []) => on.join(", "),
            (on, off) => format!("{}; not {}", on.join(", "), off.join(", ")),
        }
    }
}
