//! The JSON that scripts may rely on. Fields are only added within a schema's number; ids are
//! strings, times RFC 3339 UTC, durations seconds, sizes bytes, CPUs decimals. The recorded
//! examples in `tests/golden` hold it.

pub(crate) mod access;
pub(crate) mod certificate;
pub(crate) mod detail;
pub(crate) mod doctor;
pub(crate) mod gpu;
pub(crate) mod job;
pub(crate) mod node;
pub(crate) mod node_more;
pub(crate) mod round;
pub(crate) mod status;

use std::collections::BTreeMap;

use model::{Placement, Resources, Shape, UnixMs};
use serde::{Serialize, Serializer};

use crate::text::rfc3339;

/// A time as RFC 3339 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub UnixMs);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&rfc3339(self.0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ShapeJson {
    pub servers: u32,
    pub workers: u32,
}

impl ShapeJson {
    /// `2 PS + 4 workers` in the short form of a table.
    #[must_use]
    pub(crate) fn short(self) -> String {
        Shape::new(self.servers, self.workers).to_string()
    }
}

impl From<Shape> for ShapeJson {
    fn from(shape: Shape) -> Self {
        Self { servers: shape.servers, workers: shape.workers }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ResourcesJson {
    pub cpus: f64,
    pub memory_bytes: u64,
    pub gpus: u64,
    pub named: BTreeMap<String, u64>,
}

impl From<&Resources> for ResourcesJson {
    fn from(resources: &Resources) -> Self {
        Self {
            cpus: model::time::seconds(resources.cpus_milli),
            memory_bytes: resources.memory_bytes,
            gpus: resources.gpus,
            named: resources.named.clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ShareJson {
    pub node: String,
    pub servers: u32,
    pub workers: u32,
}

/// A placement as `plan` prints it.
#[must_use]
pub(crate) fn placement(placement: &Placement) -> Vec<ShareJson> {
    let share = |share: &model::NodeShare| ShareJson {
        node: share.node.to_string(),
        servers: share.servers,
        workers: share.workers,
    };
    placement.0.iter().map(share).collect()
}
