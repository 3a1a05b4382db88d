//! `node show`, `round show` and `status`.

use crate::contract::ResourcesJson;
use crate::contract::node::NodeDetailJson;
use crate::contract::node_more::NodeMoreJson;
use crate::contract::round::RoundDetailJson;
use crate::contract::status::{CountJson, StatusJson};
use crate::grid::Cell;
use crate::page::Block;
use crate::text::{bytes, number, percent};

/// What newer masters tell; facts that are not known are left out.
fn more_facts(more: &NodeMoreJson) -> Vec<(&'static str, Cell)> {
    let mut facts = Vec::new();
    if let Some(closed) = &more.closed {
        let by = closed.by.clone().unwrap_or_default();
        facts.push(("closed by", Cell::Text(by)));
        facts.push(("closed", Cell::time(closed.since.map(|since| since.0))));
    }
    if let Some(drain) = &more.drain {
        let left = format!("{} of {}", drain.tasks_left, drain.tasks_before.max(drain.tasks_left));
        facts.push(("tasks left", Cell::Text(left)));
        if drain.deadline.is_some() {
            facts.push(("deadline", Cell::time(drain.deadline.map(|deadline| deadline.0))));
        }
    }
    if let Some(isolation) = &more.isolation {
        facts.push(("isolation", Cell::Text(isolation.words())));
    }
    if let Some(trouble) = &more.gpu_trouble {
        facts.push(("gpu trouble", Cell::text(trouble.as_str())));
    }
    if let Some(ends) = more.certificate_ends {
        facts.push(("certificate ends", Cell::time(Some(ends.0))));
    }
    facts
}

fn more_blocks(more: &NodeMoreJson) -> Vec<Block> {
    let leaving = more.drain.iter().flat_map(|drain| &drain.jobs);
    let leaving = leaving.map(|job| vec![Cell::id(&job.job), Cell::text(job.waits_for.as_str())]);
    let text = |title: &str, lines: &[String]| Block::Text {
        title: title.to_owned(),
        lines: lines.to_vec(),
    };
    let missing = more.isolation.as_ref().map(|isolation| isolation.missing.clone());
    vec![
        Block::table("leaving", &["job", "waits for"], leaving.collect()),
        text("not enforced", &missing.unwrap_or_default()),
        text("alerts", &more.alerts),
        text("rejects", &more.rejects),
    ]
}

#[must_use]
pub(crate) fn node(node: &NodeDetailJson) -> Vec<Block> {
    let row = &node.row;
    let facts = vec![
        ("id", Cell::text(row.id.as_str())),
        ("reachability", row.reachability_cell()),
        ("schedulability", row.schedulability_cell()),
        ("reason", Cell::text(row.reason.as_str())),
        ("last heartbeat", Cell::span(row.heartbeat_age_s)),
        ("cpus used", row.cpus_cell()),
        ("memory given to tasks", row.memory_cell()),
        ("memory used", Cell::bytes(node.memory_bytes_used)),
        ("gpus used", row.gpus_cell()),
        ("load", Cell::Number(row.cpu_share, percent(row.cpu_share))),
        ("disk free", Cell::bytes(node.disk_bytes_free)),
        ("task address", Cell::text(node.task_address.as_str())),
        ("clock differs by", Cell::span(Some(node.clock_skew_s))),
        ("reports dropped", Cell::count(node.reports_dropped)),
        ("software", Cell::text(row.software.as_str())),
        ("boot", Cell::text(node.boot_id.as_str())),
        ("incarnation", Cell::id(&node.incarnation)),
    ];
    let facts = [facts, more_facts(&node.more)].concat();
    let facts = facts.into_iter().filter(|(_, cell)| *cell != Cell::text("")).collect();
    let gpus = node.gpus.iter().map(|gpu| {
        [&gpu.uuid, &gpu.name, &gpu.state].map(|text| Cell::text(text.as_str())).to_vec()
    });
    let running = node.running.iter().map(|task| {
        vec![
            Cell::Text(format!("{}/{}/{}", task.job, task.generation, task.task)),
            Cell::text(task.state.as_str()),
        ]
    });
    let blocks = vec![
        Block::facts("", facts),
        Block::table("gpus", &["uuid", "name", "state"], gpus.collect()),
        Block::table("tasks", &["task", "state"], running.collect()),
    ];
    [blocks, more_blocks(&node.more)].concat()
}

#[must_use]
pub(crate) fn round(round: &RoundDetailJson) -> Vec<Block> {
    let row = &round.row;
    let used: Vec<String> = round
        .used
        .iter()
        .map(|used| format!("{} {}", percent(used.share), used.resource))
        .collect();
    let facts = vec![
        ("id", Cell::id(&row.id)),
        ("time", Cell::Time(row.at.0)),
        ("cause", Cell::text(row.cause.as_str())),
        ("policy", Cell::text(round.policy.as_str())),
        ("jobs", Cell::count(u64::from(row.jobs))),
        ("started", Cell::count(u64::from(row.started))),
        ("rescaled", Cell::count(u64::from(row.rescaled))),
        ("waiting", Cell::count(u64::from(row.waiting))),
        ("took", Cell::span(Some(row.elapsed_s))),
        ("cluster in use", Cell::Text(used.join(", "))),
    ];
    let jobs = round.decisions.iter().map(|job| {
        let placed: Vec<String> = job
            .placement
            .iter()
            .map(|share| format!("{} {}+{}", share.node, share.servers, share.workers))
            .collect();
        vec![
            Cell::id(&job.id),
            Cell::text(job.verb.as_str()),
            Cell::text(job.from.short()),
            Cell::text(job.to.short()),
            Cell::number(job.predicted_steps_per_s),
            Cell::number(job.measured_steps_per_s),
            Cell::span(job.remaining_s),
            Cell::Text(placed.join(", ")),
            Cell::text(job.reason.as_str()),
        ]
    });
    let titles =
        ["job", "verb", "from", "to", ">predicted", ">measured", ">left", "placement", "reason"];
    vec![
        Block::facts("", facts),
        Block::table("decisions", &titles, jobs.collect()),
        Block::Text { title: "dropped".to_owned(), lines: round.dropped.clone() },
    ]
}

fn share(used: f64, capacity: f64) -> String {
    if capacity > 0.0 { format!(" ({})", percent(used / capacity)) } else { String::new() }
}

#[expect(clippy::cast_precision_loss, reason = "a share in whole percent")]
fn usage(used: &ResourcesJson, capacity: &ResourcesJson) -> Vec<(&'static str, Cell)> {
    let memory = (used.memory_bytes as f64, capacity.memory_bytes as f64);
    let gpus = (used.gpus as f64, capacity.gpus as f64);
    vec![
        (
            "cpus used",
            Cell::Text(format!(
                "{} of {}{}",
                number(used.cpus),
                number(capacity.cpus),
                share(used.cpus, capacity.cpus)
            )),
        ),
        (
            "memory used",
            Cell::Text(format!(
                "{} of {}{}",
                bytes(used.memory_bytes),
                bytes(capacity.memory_bytes),
                share(memory.0, memory.1)
            )),
        ),
        (
            "gpus used",
            Cell::Text(format!("{} of {}{}", used.gpus, capacity.gpus, share(gpus.0, gpus.1))),
        ),
    ]
}

fn counts(counts: &[CountJson]) -> Cell {
    let words: Vec<String> =
        counts.iter().map(|count| format!("{} {}", count.count, count.name)).collect();
    if words.is_empty() { Cell::text("none") } else { Cell::Text(words.join(", ")) }
}

#[must_use]
pub(crate) fn status(status: &StatusJson) -> Vec<Block> {
    let mut facts = vec![
        ("cluster", Cell::text(status.cluster.as_str())),
        ("master", Cell::text(status.version.as_str())),
        ("oldest agent", status.oldest_agent.as_deref().map_or(Cell::None, Cell::text)),
        ("started", Cell::Time(status.started.0)),
        ("up", Cell::span(Some(status.uptime_s))),
        ("policy", Cell::text(status.policy.as_str())),
        ("rounds every", Cell::span(Some(status.round_interval_s))),
        ("last round", status.last_round.as_ref().map_or(Cell::None, Cell::id)),
        ("last round age", Cell::span(status.last_round_age_s)),
        ("jobs", counts(&status.jobs_by_phase)),
        ("nodes", counts(&status.nodes_by_state)),
    ];
    facts.extend(usage(&status.used, &status.capacity));
    if !status.reports_refused.is_empty() {
        facts.push(("reports refused", counts(&status.reports_refused)));
    }
    let alerts = Block::Text { title: "alerts".to_owned(), lines: status.alerts.clone() };
    vec![Block::facts("", facts), alerts]
}
