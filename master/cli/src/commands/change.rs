//! Commands that change something.

use model::client::{Answer, Change, Read};
use model::{Bounds, JobId, Shape};

use super::Context;
use crate::args::{CancelArgs, ChangeArgs, JobsChangeArgs, NodeLostArgs, ResizeArgs, UpdateArgs};
use crate::client::unexpected;
use crate::contract::status::ChangeJson;
use crate::failure::{Exit, Failure};
use crate::listing::{Format, pretty};
use crate::text::count;

/// One thing to change, by the name that the user gave it.
pub(super) struct Wanted {
    pub(super) id: String,
    pub(super) change: Change,
}

fn wanted(jobs: &[JobId], change: impl Fn(JobId) -> Change) -> Vec<Wanted> {
    jobs.iter().map(|job| Wanted { id: job.to_string(), change: change(*job) }).collect()
}

/// Makes all changes, one after another; those that are refused do not keep the others back.
pub(super) async fn apply(
    context: &mut Context<'_>,
    verb: &'static str,
    args: &ChangeArgs,
    changes: Vec<Wanted>,
) -> Result<(), Failure> {
    let several = changes.len() > 1;
    let total = changes.len();
    let mut done = Vec::new();
    let mut failures: Vec<(String, Failure)> = Vec::new();
    for Wanted { id, change } in changes {
        match context.master.change(change, args.dry_run, args.reason.as_deref()).await {
            Ok(Answer::Accepted { job, node, note }) => {
                let json = ChangeJson {
                    schema: "optimus.change/1",
                    verb,
                    job: job.map(|job| job.to_string()),
                    node: node.map(|node| node.to_string()),
                    note,
                    dry_run: args.dry_run,
                };
                if !several || context.format != Format::Json {
                    let sentence = sentence(&id, &json);
                    context.done(&json, &id, &sentence)?;
                }
                done.push(json);
            }
            Ok(other) => return Err(unexpected(&other)),
            Err(failure) if !several || failure.exit == Exit::Unavailable => return Err(failure),
            Err(failure) => failures.push((id, failure)),
        }
    }
    if several && context.format == Format::Json {
        #[derive(serde::Serialize)]
        struct Changes {
            schema: &'static str,
            changes: Vec<ChangeJson>,
        }
        let all = Changes { schema: "optimus.changes/1", changes: done };
        context.output.data(&(pretty(&all) + "\n"))?;
    }
    let Some((_, first)) = failures.first() else { return Ok(()) };
    let words: Vec<String> =
        failures.iter().map(|(id, failure)| format!("{id}: {}", failure.message)).collect();
    let message = format!("{} of {total} refused: {}", failures.len(), words.join("; "));
    Err(Failure::new(first.exit, message, first.hint.clone()))
}

fn sentence(id: &str, change: &ChangeJson) -> String {
    let note = if change.note.is_empty() { change.verb } else { &change.note };
    // The master's own note says so as a rule.
    let dry = if change.dry_run && !note.contains("dry run") { "dry run: " } else { "" };
    format!("{id}: {dry}{note}")
}

/// Asks on stderr; only a clear yes is one.
pub(super) async fn confirm(
    context: &mut Context<'_>,
    question: &str,
    remedy: &str,
) -> Result<(), Failure> {
    if !context.output.questions {
        let message = format!("{question} There is nobody to ask");
        return Err(Failure::invalid(message, remedy));
    }
    context.output.ask(&format!("{question} [y/N]"));
    let read = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = read.await.ok().and_then(Result::ok).unwrap_or_default();
    if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(Exit::Interrupted, "nothing was changed", ""))
}

pub(super) async fn cancel(context: &mut Context<'_>, args: &CancelArgs) -> Result<(), Failure> {
    let mut jobs = args.jobs.clone();
    jobs.sort_unstable();
    jobs.dedup();
    if jobs.len() > 1 && !args.yes && !args.change.dry_run {
        let Answer::Jobs(rows) = context.master.read(Read::Jobs).await? else {
            return Err(Failure::new(Exit::Unavailable, "the master did not list its jobs", ""));
        };
        for job in &jobs {
            let row = rows.iter().find(|row| row.id == *job);
            let line = row.map_or_else(
                || format!("  {job}  (not known)"),
                |row| format!("  {job}  {}  {}", crate::text::escape(&row.name), row.phase.name()),
            );
            context.output.talk(&line);
        }
        let question = format!("Cancel these {}?", count(jobs.len(), "job", "jobs"));
        confirm(context, &question, "add --yes to cancel them without being asked").await?;
    }
    let changes = wanted(&jobs, |job| Change::Cancel { job, now: args.now });
    apply(context, "cancel", &args.change, changes).await
}

pub(super) async fn pause(context: &mut Context<'_>, args: &JobsChangeArgs) -> Result<(), Failure> {
    let changes = wanted(&args.jobs, |job| Change::Pause { job });
    apply(context, "pause", &args.change, changes).await
}

pub(super) async fn resume(
    context: &mut Context<'_>,
    args: &JobsChangeArgs,
) -> Result<(), Failure> {
    let changes = wanted(&args.jobs, |job| Change::Resume { job });
    apply(context, "resume", &args.change, changes).await
}

pub(super) async fn checkpoint(
    context: &mut Context<'_>,
    args: &JobsChangeArgs,
) -> Result<(), Failure> {
    let changes = wanted(&args.jobs, |job| Change::Checkpoint { job });
    apply(context, "checkpoint", &args.change, changes).await
}

pub(super) async fn unpin(context: &mut Context<'_>, args: &JobsChangeArgs) -> Result<(), Failure> {
    let changes = wanted(&args.jobs, |job| Change::Unpin { job });
    apply(context, "unpin", &args.change, changes).await
}

pub(super) async fn resize(context: &mut Context<'_>, args: &ResizeArgs) -> Result<(), Failure> {
    let shape = Shape::new(args.servers, args.workers);
    let changes = wanted(&[args.job], |job| Change::Resize { job, shape, pin: args.pin });
    apply(context, "resize", &args.change, changes).await
}

/// The given ends of a range, with the present ones for those not given.
fn bounds(min: Option<u32>, max: Option<u32>, present: Bounds) -> Option<Bounds> {
    if min.is_none() && max.is_none() {
        return None;
    }
    Some(Bounds { min: min.unwrap_or(present.min), max: max.unwrap_or(present.max) })
}

pub(super) async fn update(context: &mut Context<'_>, args: &UpdateArgs) -> Result<(), Failure> {
    let answer = context.master.read(Read::Job { job: args.job }).await?;
    let Answer::Job(detail) = answer else { return Err(unexpected(&answer)) };
    let change = Change::Update {
        job: args.job,
        workers: bounds(args.workers_min, args.workers_max, detail.spec.workers),
        servers: bounds(args.servers_min, args.servers_max, detail.spec.servers),
        priority: args.priority,
    };
    let changes = vec![Wanted { id: args.job.to_string(), change }];
    apply(context, "update", &args.change, changes).await
}

pub(super) async fn node_lost(
    context: &mut Context<'_>,
    args: &NodeLostArgs,
) -> Result<(), Failure> {
    if !args.yes && !args.change.dry_run {
        let Answer::Nodes(rows) = context.master.read(Read::Nodes).await? else {
            return Err(Failure::new(Exit::Unavailable, "the master did not list its nodes", ""));
        };
        for node in &args.nodes {
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
        let question = "Take every task on them as dead, and start their jobs elsewhere? A node \
                        that still runs would train the same job twice.";
        confirm(context, question, "make sure that the nodes are off, then add --yes").await?;
    }
    let changes = args.nodes.iter().map(|node| Wanted {
        id: node.to_string(),
        change: Change::NodeLost { node: node.clone() },
    });
    apply(context, "node lost", &args.change, changes.collect()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_is_not_given_stays() {
        let present = Bounds { min: 2, max: 8 };
        assert_eq!(bounds(None, None, present), None);
        assert_eq!(bounds(Some(3), None, present), Some(Bounds { min: 3, max: 8 }));
        assert_eq!(bounds(None, Some(4), present), Some(Bounds { min: 2, max: 4 }));
    }
}
