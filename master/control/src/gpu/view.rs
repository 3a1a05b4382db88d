//! What operators see of GPUs.

use model::NodeId;
use model::agent::GpuReport;
use model::nodes::{GpuHealth, GpuView};

use super::notes::trouble_words;
use crate::node::Node;
use crate::step::Control;

impl Control {
    /// Every GPU of a node that is known, by UUID.
    pub(crate) fn gpu_views(&self, id: &NodeId) -> Vec<GpuView> {
        let Some(node) = self.nodes.get(id) else { return Vec::new() };
        let mut views: Vec<GpuView> = node.gpus.iter().map(|gpu| self.gpu_view(id, gpu)).collect();
        for uuid in self.gpus.of.get(id).into_iter().flat_map(|gpus| gpus.keys()) {
            if views.iter().any(|view| view.uuid == *uuid) {
                continue;
            }
            // One that the agent of today has never seen.
            views.push(self.gpu_view(
                id,
                &GpuReport {
                    uuid: uuid.clone(),
                    name: String::new(),
                    memory_bytes_total: 0,
                    memory_bytes_used: 0,
                    utilisation: None,
                    fault: Some("its server does not list it".to_owned()),
                },
            ));
        }
        views.sort_by(|a, b| a.uuid.cmp(&b.uuid));
        views
    }

    fn gpu_view(&self, id: &NodeId, report: &GpuReport) -> GpuView {
        let known = self.gpus.get(id, &report.uuid).map(|gpu| &gpu.record);
        let notes = self.nodes.get(id).and_then(|node| node.notes.as_ref());
        let note = notes.and_then(|notes| notes.gpus.iter().find(|n| n.uuid == report.uuid));
        let held = notes.and_then(|notes| {
            notes
                .held
                .iter()
                .find(|held| held.gpus.contains(&report.uuid))
                .map(|held| (held.job, held.generation, held.task.to_string()))
        });
        let health = known.map_or(GpuHealth::Ok, |known| known.health);
        // What the server sees beside the state: an OK one may be of no use for now.
        let fault = report.fault.clone().unwrap_or_default();
        let reason = match known.map(|known| known.reason.as_str()) {
            Some(reason) if health != GpuHealth::Ok => reason.to_owned(),
            Some(_) | None => fault,
        };
        GpuView {
            uuid: report.uuid.clone(),
            name: report.name.chars().take(128).collect(),
            health,
            since: known.and_then(|known| known.since),
            reason,
            memory_bytes_total: report.memory_bytes_total,
            memory_bytes_used: report.memory_bytes_used,
            utilisation: report.utilisation.filter(|share| (0.0..=1.0).contains(share)),
            ecc_uncorrected: note.and_then(|note| note.ecc_uncorrected),
            job: held,
            history: known.map(|known| known.history.clone()).unwrap_or_default(),
        }
    }

    /// Why new tasks do not get a GPU: its state, or what its server sees.
    pub(crate) fn gpu_fault(&self, id: &NodeId, report: &GpuReport) -> Option<String> {
        let known = self.gpus.get(id, &report.uuid).map(|gpu| &gpu.record);
        match known.filter(|known| known.health != GpuHealth::Ok) {
            Some(known) => Some(format!("{}: {}", known.health.name(), known.reason)),
            None => report.fault.clone(),
        }
    }

    /// What an operator should know of a node's GPUs.
    pub(crate) fn gpu_alerts(&self, node: &Node) -> Vec<String> {
        let id = node.id();
        let mut alerts = Vec::new();
        if let Some(trouble) = self.gpu_trouble(id) {
            alerts.push(format!("GPUs of {id}: {trouble}"));
        }
        let bad = self.gpus.in_states(id, |health| health == GpuHealth::Bad);
        if let Some(first) = bad.first() {
            alerts.push(format!("{} of {id} BAD, {first} the first", count_gpus(bad.len())));
        }
        alerts
    }

    /// What is wrong with all GPUs of a node.
    pub(crate) fn gpu_trouble(&self, id: &NodeId) -> Option<String> {
        let notes = self.nodes.get(id)?.notes.as_ref()?;
        notes.gpu_trouble.as_ref().map(|trouble| trouble_words(trouble).to_owned())
    }
}

fn count_gpus(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}
