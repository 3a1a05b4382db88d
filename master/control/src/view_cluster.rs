//! What operators read of nodes and of the master itself.

use std::collections::BTreeMap;

use model::Resources;
use model::agent::TaskState;
use model::reason::Reachability;
use model::time::seconds;
use model::view::{NodeDetail, NodeRow, Status};

use crate::event::Now;
use crate::job::float;
use crate::node::Node;
use crate::step::Control;

impl Control {
    pub(crate) fn node_row(&self, now: Now, node: &Node) -> NodeRow {
        let age_s = node.received.map(|received| now.mono.seconds_since(received));
        let reach = match (&node.record.gone, node.reach, age_s) {
            (Some(words), _, _) => format!("declared lost: {words}"),
            (None, Reachability::Up, _) => {
                node.slow.as_ref().map(|slow| self.slow_reason(slow, now.mono)).unwrap_or_default()
            }
            (None, _, None) => "not heard from since the master started".to_owned(),
            (None, _, Some(age)) => format!("no heartbeat for {age:.0} s"),
        };
        let words = [self.ops_words(node), reach];
        let words: Vec<String> = words.into_iter().filter(|words| !words.is_empty()).collect();
        let reason = words.join("; ");
        let good = node.gpus.iter().filter(|gpu| self.gpu_fault(node.id(), gpu).is_none());
        let gpus_ok = u32::try_from(good.count()).unwrap_or(u32::MAX);
        let running =
            node.tasks.iter().filter(|task| matches!(task.state, TaskState::Running { .. }));
        NodeRow {
            id: node.id().clone(),
            reachability: node.reach,
            schedulability: node.schedulability(),
            reason,
            capacity: node.record.capacity.clone(),
            used: node.used.plus(&node.strangers_use),
            tasks: u32::try_from(running.count()).unwrap_or(u32::MAX),
            heartbeat_age_s: age_s,
            cpu_share: node.load.cpu_share,
            gpus_ok,
            software: node.record.software.clone(),
        }
    }

    pub(crate) fn node_detail(&self, now: Now, node: &Node) -> NodeDetail {
        let tasks = node.tasks.iter().map(|report| {
            let state = match &report.state {
                TaskState::Running { pid, .. } => format!("running as {pid}"),
                TaskState::Exited(exit) => {
                    let words: String = exit.reason.chars().take(200).collect();
                    format!("exited: {words}")
                }
            };
            (report.job, report.generation, report.task.to_string(), state)
        });
        let gpus = node.gpus.iter().map(|gpu| {
            let state = self.gpu_fault(node.id(), gpu).unwrap_or_else(|| "OK".to_owned());
            (gpu.uuid.clone(), gpu.name.clone(), state)
        });
        NodeDetail {
            row: self.node_row(now, node),
            boot_id: node.record.boot_id.0.clone(),
            incarnation: node.record.incarnation.0,
            task_address: node.record.task_address.clone(),
            clock_skew_s: skew_s(node),
            memory_bytes_used: node.load.memory_bytes_used,
            disk_bytes_free: node.load.disk_bytes_free,
            reports_dropped: node.reports_dropped,
            gpus: gpus.collect(),
            tasks: tasks.collect(),
        }
    }

    pub(crate) fn status(&self, now: Now) -> Status {
        let mut jobs_by_phase = BTreeMap::new();
        for job in self.jobs.values() {
            *jobs_by_phase.entry(job.phase_name()).or_insert(0_u32) += 1;
        }
        let mut nodes_by_state = BTreeMap::new();
        let (mut capacity, mut used) = (Resources::default(), Resources::default());
        for node in self.nodes.values() {
            *nodes_by_state.entry(node.reach).or_insert(0_u32) += 1;
            used = used.plus(&node.used).plus(&node.strangers_use);
            if node.is_up() {
                capacity = capacity.plus(&node.record.capacity);
            }
        }
        let age_s = |at| now.mono.seconds_since(at);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: self.settings.cluster.clone(),
            started: self.started.unix,
            uptime_s: age_s(self.started.mono),
            policy: self.settings.policy.name().to_owned(),
            round_interval_s: seconds(self.settings.interval_ms),
            last_round: self.rounding.finished.map(|(id, _, _)| id),
            last_round_age_s: self.rounding.finished.map(|(_, _, at)| age_s(at)),
            jobs_by_phase: jobs_by_phase.into_iter().collect(),
            nodes_by_state: nodes_by_state.into_iter().collect(),
            capacity,
            used,
            reports_refused: self
                .refused
                .iter()
                .map(|(kind, count)| ((*kind).to_owned(), *count))
                .collect(),
            alerts: self.alerts(now),
            oldest_agent: self
                .nodes
                .values()
                .filter(|node| node.is_up())
                .map(|node| node.record.software.clone())
                .min_by_key(|software| version_key(software)),
        }
    }

    /// Rounds that do not come.
    pub(crate) fn round_alerts(&self, now: Now) -> Vec<String> {
        let mut alerts = Vec::new();
        if let Some(flight) = &self.rounding.in_flight {
            let age_s = now.mono.since(flight.since) / 1000;
            if age_s >= 30 {
                alerts.push(format!("a round has been planned for {age_s} s"));
            }
        } else if let Some((round, _, at)) = self.rounding.finished {
            let age_ms = now.mono.since(at);
            let late_ms = self.settings.interval_ms.saturating_mul(2).saturating_add(60_000);
            if !self.unfinished.is_empty() && age_ms > late_ms {
                alerts.push(format!("the last round, {round}, is {} s old", age_ms / 1000));
            }
        }
        alerts
    }

    fn alerts(&self, now: Now) -> Vec<String> {
        let mut alerts: Vec<String> = self.held_alert().into_iter().collect();
        alerts.extend(self.superseded_alert().map(|(words, _)| words));
        alerts.extend(self.round_alerts(now));
        for node in self.nodes.values() {
            if node.reach == Reachability::Down {
                alerts.push(format!("{} is DOWN", node.id()));
            }
            if let Some(slow) = &node.slow {
                alerts.push(format!("{} is {}", node.id(), self.slow_reason(slow, now.mono)));
            }
            alerts.extend(self.gpu_alerts(node));
            if node.session.is_some() && skew_s(node).abs() >= 5.0 {
                alerts.push(format!("the clock of {} differs by {:.0} s", node.id(), skew_s(node)));
            }
            if alerts.len() >= 100 {
                alerts.push("and more".to_owned());
                break;
            }
        }
        alerts
    }
}

pub(crate) fn skew_s(node: &Node) -> f64 {
    let skew_ms = float(node.clock_skew_ms.unsigned_abs());
    if node.clock_skew_ms < 0 { -skew_ms / 1000.0 } else { skew_ms / 1000.0 }
}

/// Numbers of a version in order, so that 0.10.0 is after 0.9.0.
pub(crate) fn version_key(software: &str) -> Vec<u64> {
    software
        .split(|c: char| !c.is_ascii_digit())
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().unwrap_or(u64::MAX))
        .collect()
}
