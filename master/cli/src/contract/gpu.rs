//! Lines of `node gpus`.

use model::NodeId;
use model::nodes::{GpuHealth, GpuView, NodeMore};
use serde::Serialize;

use super::Time;
use crate::grid::{Cell, Tone};
use crate::listing::{Column, Item, Kind};
use crate::text;

/// An event of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct GpuEventJson {
    pub at: Time,
    pub text: String,
}

/// `optimus.gpu/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct GpuJson {
    pub schema: &'static str,
    pub node: String,
    pub uuid: String,
    pub name: String,
    pub health: &'static str,
    pub since: Option<Time>,
    pub reason: String,
    pub memory_bytes_total: u64,
    pub memory_bytes_used: u64,
    pub utilisation: Option<f64>,
    pub ecc_uncorrected: Option<u64>,
    pub job: Option<String>,
    pub generation: Option<String>,
    pub task: Option<String>,
    /// What is wrong with all GPUs of its node.
    pub trouble: Option<String>,
    pub history: Vec<GpuEventJson>,
    #[serde(skip)]
    pub tone: Tone,
}

const fn tone(health: GpuHealth) -> Tone {
    match health {
        GpuHealth::Ok => Tone::Good,
        GpuHealth::Suspect | GpuHealth::Probing => Tone::Warn,
        GpuHealth::Bad | GpuHealth::Retired => Tone::Bad,
    }
}

impl GpuJson {
    /// The GPUs of a node.
    #[must_use]
    pub(crate) fn of(more: &NodeMore) -> Vec<Self> {
        more.gpus.iter().map(|gpu| Self::new(&more.node, gpu, more.gpu_trouble.clone())).collect()
    }

    fn new(node: &NodeId, gpu: &GpuView, trouble: Option<String>) -> Self {
        let history = gpu.history.iter();
        Self {
            schema: "optimus.gpu/1",
            node: node.to_string(),
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            health: gpu.health.name(),
            since: gpu.since.map(Time),
            reason: gpu.reason.clone(),
            memory_bytes_total: gpu.memory_bytes_total,
            memory_bytes_used: gpu.memory_bytes_used,
            utilisation: gpu.utilisation,
            ecc_uncorrected: gpu.ecc_uncorrected,
            job: gpu.job.as_ref().map(|(job, _, _)| job.to_string()),
            generation: gpu.job.as_ref().map(|(_, generation, _)| generation.to_string()),
            task: gpu.job.as_ref().map(|(_, _, task)| task.clone()),
            trouble,
            history: history
                .map(|(at, text)| GpuEventJson { at: Time(*at), text: text.clone() })
                .collect(),
            tone: tone(gpu.health),
        }
    }

    fn health_cell(&self) -> Cell {
        Cell::Toned(self.health.to_owned(), self.tone)
    }

    fn since_cell(&self) -> Cell {
        self.since.map_or(Cell::None, |at| Cell::Time(at.0))
    }

    fn memory_cell(&self) -> Cell {
        if self.memory_bytes_total == 0 {
            return Cell::None;
        }
        let (used, total) = (self.memory_bytes_used, self.memory_bytes_total);
        Cell::text(format!("{}/{}", text::bytes(used), text::bytes(total)))
    }

    fn load_cell(&self) -> Cell {
        self.utilisation.map_or(Cell::None, |share| Cell::Number(share, text::percent(share)))
    }

    fn task_cell(&self) -> Cell {
        match (&self.job, &self.task) {
            (Some(job), Some(task)) => Cell::text(format!("{job}/{task}")),
            (_, _) => Cell::None,
        }
    }

    /// Its state's reason, or what is wrong with all of the node's.
    fn reason_cell(&self) -> Cell {
        let trouble = self.trouble.as_deref().unwrap_or_default();
        Cell::text(if self.reason.is_empty() { trouble } else { &self.reason })
    }
}

impl Item for GpuJson {
    fn key(&self) -> String {
        self.uuid.clone()
    }

    fn settled(&self) -> Self {
        Self { memory_bytes_used: 0, utilisation: None, ..self.clone() }
    }
}

pub(crate) static GPUS: Kind<GpuJson> = Kind {
    schema: "optimus.gpus/1",
    field: "gpus",
    columns: &[
        Column::left("node", |gpu: &GpuJson| Cell::text(gpu.node.as_str())),
        Column::left("uuid", |gpu: &GpuJson| Cell::text(gpu.uuid.as_str())),
        Column::left("name", |gpu: &GpuJson| Cell::text(gpu.name.as_str())).rank(3),
        Column::left("health", GpuJson::health_cell),
        Column::left("since", GpuJson::since_cell).rank(2),
        Column::left("task", GpuJson::task_cell),
        Column::right("memory", GpuJson::memory_cell).rank(1),
        Column::right("load", GpuJson::load_cell).wide(),
        Column::right("ecc", |gpu: &GpuJson| gpu.ecc_uncorrected.map_or(Cell::None, Cell::count))
            .wide(),
        Column::sentence("reason", GpuJson::reason_cell),
    ],
};
