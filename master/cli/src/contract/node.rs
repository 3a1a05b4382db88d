//! Lines of `nodes` and the answer of `node show`.

use model::nodes::NodeMore;
use model::reason::{Reachability, Schedulability};
use model::view::{NodeDetail, NodeRow};
use serde::Serialize;

use super::ResourcesJson;
use super::node_more::NodeMoreJson;
use crate::grid::{Cell, Tone};
use crate::listing::{Column, Item, Kind};
use crate::text;

#[must_use]
pub(crate) const fn reachability_tone(state: Reachability) -> Tone {
    match state {
        Reachability::Up => Tone::Good,
        Reachability::Suspect => Tone::Warn,
        Reachability::Down | Reachability::Gone => Tone::Bad,
    }
}

/// `optimus.node/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NodeJson {
    pub schema: &'static str,
    pub id: String,
    pub reachability: &'static str,
    pub schedulability: &'static str,
    pub reason: String,
    pub capacity: ResourcesJson,
    pub used: ResourcesJson,
    pub tasks: u32,
    pub heartbeat_age_s: Option<f64>,
    pub cpu_share: f64,
    pub gpus_ok: u32,
    pub software: String,
    #[serde(skip)]
    pub shown: NodeShown,
}

/// What the table shows but JSON says in other fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeShown {
    pub cpus: String,
    pub cpus_milli: u64,
    pub reachability: Option<Tone>,
    pub schedulability: Option<Tone>,
}

impl From<&NodeRow> for NodeJson {
    fn from(row: &NodeRow) -> Self {
        let (used, capacity) = (row.used.cpus_milli, row.capacity.cpus_milli);
        Self {
            schema: "optimus.node/1",
            id: row.id.to_string(),
            reachability: row.reachability.name(),
            schedulability: row.schedulability.name(),
            reason: row.reason.clone(),
            capacity: (&row.capacity).into(),
            used: (&row.used).into(),
            tasks: row.tasks,
            heartbeat_age_s: row.heartbeat_age_s,
            cpu_share: row.cpu_share,
            gpus_ok: row.gpus_ok,
            software: row.software.clone(),
            shown: NodeShown {
                cpus: format!("{}/{}", text::cpus(used), text::cpus(capacity)),
                cpus_milli: used,
                reachability: Some(reachability_tone(row.reachability)),
                schedulability: match row.schedulability {
                    Schedulability::Open => None,
                    Schedulability::Cordoned
                    | Schedulability::Draining
                    | Schedulability::Drained => Some(Tone::Warn),
                },
            },
        }
    }
}

fn toned(text: &str, tone: Option<Tone>) -> Cell {
    tone.map_or_else(|| Cell::text(text), |tone| Cell::Toned(text.to_owned(), tone))
}

impl NodeJson {
    #[must_use]
    pub(crate) fn reachability_cell(&self) -> Cell {
        toned(self.reachability, self.shown.reachability)
    }

    #[must_use]
    pub(crate) fn schedulability_cell(&self) -> Cell {
        toned(self.schedulability, self.shown.schedulability)
    }

    #[must_use]
    pub(crate) fn cpus_cell(&self) -> Cell {
        Cell::Number(model::time::seconds(self.shown.cpus_milli), self.shown.cpus.clone())
    }

    #[must_use]
    pub(crate) fn memory_cell(&self) -> Cell {
        let (used, capacity) = (self.used.memory_bytes, self.capacity.memory_bytes);
        Cell::text(format!("{}/{}", text::bytes(used), text::bytes(capacity)))
    }

    #[must_use]
    pub(crate) fn gpus_cell(&self) -> Cell {
        Cell::text(format!("{}/{}", self.used.gpus, self.capacity.gpus))
    }
}

impl Item for NodeJson {
    fn key(&self) -> String {
        self.id.clone()
    }

    fn settled(&self) -> Self {
        Self { heartbeat_age_s: None, cpu_share: 0.0, ..self.clone() }
    }
}

pub(crate) static NODES: Kind<NodeJson> = Kind {
    schema: "optimus.nodes/1",
    field: "nodes",
    columns: &[
        Column::left("id", |node: &NodeJson| Cell::text(node.id.as_str())),
        Column::left("reachability", NodeJson::reachability_cell),
        Column::left("schedulability", NodeJson::schedulability_cell).rank(1),
        Column::right("cpus", NodeJson::cpus_cell),
        Column::right("memory", NodeJson::memory_cell),
        Column::right("gpus", NodeJson::gpus_cell),
        Column::right("tasks", |node: &NodeJson| Cell::count(u64::from(node.tasks))),
        Column::right("heartbeat", |node: &NodeJson| Cell::span(node.heartbeat_age_s)).rank(2),
        Column::right("load", |node: &NodeJson| {
            Cell::Number(node.cpu_share, text::percent(node.cpu_share))
        })
        .wide(),
        Column::right("gpus_ok", |node: &NodeJson| Cell::count(u64::from(node.gpus_ok))).wide(),
        Column::left("software", |node: &NodeJson| Cell::text(node.software.as_str())).wide(),
        Column::sentence("reason", |node: &NodeJson| Cell::text(node.reason.as_str())),
    ],
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct GpuJson {
    pub uuid: String,
    pub name: String,
    pub state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeTaskJson {
    pub job: String,
    pub generation: String,
    pub task: String,
    pub state: String,
}

/// `optimus.node/1` with everything that is known of the node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NodeDetailJson {
    #[serde(flatten)]
    pub row: NodeJson,
    pub boot_id: String,
    pub incarnation: String,
    pub task_address: String,
    pub clock_skew_s: f64,
    pub memory_bytes_used: u64,
    pub disk_bytes_free: u64,
    pub reports_dropped: u64,
    pub gpus: Vec<GpuJson>,
    pub running: Vec<NodeTaskJson>,
    #[serde(flatten)]
    pub more: NodeMoreJson,
}

impl NodeDetailJson {
    /// `more` is none from a master that does not tell it.
    #[must_use]
    pub(crate) fn new(detail: &NodeDetail, more: Option<&NodeMore>) -> Self {
        let gpu = |(uuid, name, state): &(String, String, String)| GpuJson {
            uuid: uuid.clone(),
            name: name.clone(),
            state: state.clone(),
        };
        let running = detail.tasks.iter().map(|(job, generation, task, state)| NodeTaskJson {
            job: job.to_string(),
            generation: generation.to_string(),
            task: task.clone(),
            state: state.clone(),
        });
        Self {
            row: (&detail.row).into(),
            boot_id: detail.boot_id.clone(),
            incarnation: format!("i{}", detail.incarnation),
            task_address: detail.task_address.clone(),
            clock_skew_s: detail.clock_skew_s,
            memory_bytes_used: detail.memory_bytes_used,
            disk_bytes_free: detail.disk_bytes_free,
            reports_dropped: detail.reports_dropped,
            gpus: detail.gpus.iter().map(gpu).collect(),
            running: running.collect(),
            more: more.map(NodeMoreJson::from).unwrap_or_default(),
        }
    }
}

impl Item for NodeDetailJson {
    fn key(&self) -> String {
        self.row.id.clone()
    }

    fn settled(&self) -> Self {
        Self {
            row: self.row.settled(),
            memory_bytes_used: 0,
            disk_bytes_free: 0,
            clock_skew_s: 0.0,
            ..self.clone()
        }
    }
}
