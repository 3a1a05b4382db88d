//! Opening and closing nodes: cordon, drain, undrain.

use std::time::Duration;

use model::NodeId;
use model::client::{Answer, Change, Read};
use model::nodes::NodeMore;
use model::reason::Schedulability;

use super::Context;
use super::change::{Wanted, apply, confirm};
use super::read::POLL;
use crate::args::{DrainArgs, NodesChangeArgs};
use crate::client::unexpected;
use crate::failure::{Exit, Failure};
use crate::text::{count, escape, span};

fn wanted(nodes: &[NodeId], change: impl Fn(NodeId) -> Change) -> Vec<Wanted> {
    let of = |node: &NodeId| Wanted { id: node.to_string(), change: change(node.clone()) };
    nodes.iter().map(of).collect()
}

pub(super) async fn cordon(
    context: &mut Context<'_>,
    args: &NodesChangeArgs,
) -> Result<(), Failure> {
    let changes = wanted(&args.nodes, |node| Change::NodeCordon { node });
    apply(context, "node cordon", &args.change, changes).await
}

pub(super) async fn undrain(
    context: &mut Context<'_>,
    args: &NodesChangeArgs,
) -> Result<(), Failure> {
    let changes = wanted(&args.nodes, |node| Change::NodeUndrain { node });
    apply(context, "node undrain", &args.change, changes).await
}

pub(super) async fn drain(context: &mut Context<'_>, args: &DrainArgs) -> Result<(), Failure> {
    let reason = args.change.reason.as_deref().unwrap_or_default();
    if reason.trim().is_empty() {
        return Err(Failure::invalid("a drain needs a reason", "give one with --reason TEXT"));
    }
    let mut nodes = args.nodes.clone();
    nodes.sort();
    nodes.dedup();
    if nodes.len() > 1 && !args.yes && !args.change.dry_run {
        list(context, &nodes).await?;
        let question = format!("Drain these {}?", count(nodes.len(), "node", "nodes"));
        confirm(context, &question, "add --yes to drain them without being asked").await?;
    }
    let deadline_ms = args.deadline.0;
    let changes = wanted(&nodes, |node| Change::NodeDrain { node, deadline_ms });
    apply(context, "node drain", &args.change, changes).await?;
    if !args.wait || args.change.dry_run {
        return Ok(());
    }
    let Some(ms) = args.timeout.and_then(|limit| limit.0) else {
        return until_drained(context, nodes).await;
    };
    let limit = Duration::from_millis(ms);
    let waited = tokio::time::timeout(limit, until_drained(context, nodes)).await;
    waited.unwrap_or_else(|_| {
        let waited = model::units::DurationMs(ms);
        let message = format!("not all are DRAINED after {waited}");
        Err(Failure::new(Exit::TimedOut, message, "the drain goes on; see optimus node show"))
    })
}

/// Names what a question is about.
async fn list(context: &mut Context<'_>, nodes: &[NodeId]) -> Result<(), Failure> {
    let answer = context.master.read(Read::Nodes).await?;
    let Answer::Nodes(rows) = answer else { return Err(unexpected(&answer)) };
    for node in nodes {
        let row = rows.iter().find(|row| row.id == *node);
        let line = row.map_or_else(
            || format!("  {node}  (not known)"),
            |row| {
                let tasks = count(usize::try_from(row.tasks).unwrap_or(0), "task", "tasks");
                format!("  {node}  {}  {tasks}", row.reachability.name())
            },
        );
        context.output.talk(&line);
    }
    Ok(())
}

/// Waits for the nodes one after another and says how far each is.
async fn until_drained(context: &mut Context<'_>, nodes: Vec<NodeId>) -> Result<(), Failure> {
    for node in nodes {
        let mut told = String::new();
        loop {
            let read = Read::NodeMore { node: node.clone() };
            let answer = context.master.read_patiently(read, context.output).await?;
            let Answer::NodeMore(more) = answer else { return Err(unexpected(&answer)) };
            match more.schedulability {
                Schedulability::Drained => break,
                Schedulability::Draining => {}
                Schedulability::Open | Schedulability::Cordoned => {
                    let state = more.schedulability.name();
                    let message = format!("{node} is {state}: somebody took its drain back");
                    return Err(Failure::new(Exit::Conflict, message, "see optimus events"));
                }
            }
            let words = progress(&more, context.output.style(false).now);
            if context.output.talk_terminal {
                context.output.progress(&words);
            } else if words != told {
                context.output.talk(&words);
            }
            told = words;
            tokio::time::sleep(POLL).await;
        }
        context.output.end_progress();
        context.output.talk(&format!("{node} is DRAINED"));
    }
    Ok(())
}

/// One line: how many tasks are left, and what the jobs wait for.
fn progress(more: &NodeMore, now: model::UnixMs) -> String {
    let Some(drain) = &more.drain else { return format!("{} is DRAINING", more.node) };
    let (left, before) = (drain.tasks_left, drain.tasks_before.max(drain.tasks_left));
    let mut words = vec![format!("{}: {left} tasks left of {before}", more.node)];
    let jobs = drain.jobs.iter().take(3);
    words.extend(jobs.map(|(job, waits)| format!("{job} {}", escape(waits))));
    if let Some(deadline) = drain.deadline.filter(|deadline| now < *deadline) {
        // Whole tens of seconds, so that a log gets no line for every look.
        let left_s = deadline.0.saturating_sub(now.0).div_ceil(10_000) * 10;
        let left_s = u32::try_from(left_s).map_or(f64::INFINITY, f64::from);
        words.push(format!("{} until its deadline", span(left_s)));
    }
    words.join(" · ")
}
