//! `node gpus`.

use model::NodeId;
use model::client::{Answer, Change, Read};
use model::nodes::NodeMore;

use super::Context;
use super::change::{Wanted, apply, confirm};
use super::read::{POLL, Screen};
use crate::args::NodeGpusArgs;
use crate::client::unexpected;
use crate::contract::gpu::{GPUS, GpuJson};
use crate::failure::Failure;
use crate::text::{count, escape};

pub(super) async fn gpus(context: &mut Context<'_>, args: &NodeGpusArgs) -> Result<(), Failure> {
    match &args.node {
        Some(node) if !args.retire.is_empty() => {
            change(context, args, node, &args.retire, true).await
        }
        Some(node) if !args.give_back.is_empty() => {
            change(context, args, node, &args.give_back, false).await
        }
        Some(_) | None => list(context, args).await,
    }
}

async fn list(context: &mut Context<'_>, args: &NodeGpusArgs) -> Result<(), Failure> {
    if args.dry_run || args.reason.is_some() || args.yes {
        let message = "--dry-run, --reason and --yes go with --retire or --return";
        return Err(Failure::invalid(message, "name what to change, or leave them out"));
    }
    let view = args.read.view(context.format);
    let choice = GPUS.choose(&view)?;
    let first = ask(context, args.node.as_ref(), false).await?;
    let style = context.output.style(view.utc);
    let rows = GPUS.select(rows(&first), &choice, &style);
    if !view.watch {
        context.output.data(&GPUS.render(&rows, &choice, &view, &style))?;
        for node in first.iter().filter(|node| node.gpus.is_empty()) {
            // It has no row that could tell.
            if let Some(trouble) = &node.gpu_trouble {
                context.output.talk(&format!("{}: {}", node.node, escape(trouble)));
            }
        }
        return Ok(());
    }
    let mut screen = Screen::start(context, &GPUS, &choice, &view)?;
    screen.show(context, rows)?;
    loop {
        tokio::time::sleep(POLL).await;
        let next = ask(context, args.node.as_ref(), true).await?;
        let style = context.output.style(view.utc);
        let rows = GPUS.select(self::rows(&next), &choice, &style);
        screen.show(context, rows)?;
    }
}

fn rows(nodes: &[NodeMore]) -> Vec<GpuJson> {
    nodes.iter().flat_map(GpuJson::of).collect()
}

/// What is known of one node, or of all; `patiently` where the master was there before.
async fn ask(
    context: &mut Context<'_>,
    node: Option<&NodeId>,
    patiently: bool,
) -> Result<Vec<NodeMore>, Failure> {
    let nodes: Vec<NodeId> = match node {
        Some(node) => vec![node.clone()],
        None => {
            let answer = read(context, Read::Nodes, patiently).await?;
            let Answer::Nodes(rows) = answer else { return Err(unexpected(&answer)) };
            rows.into_iter().map(|row| row.id).collect()
        }
    };
    let mut found = Vec::with_capacity(nodes.len());
    for node in nodes {
        let answer = read(context, Read::NodeMore { node }, patiently).await?;
        let Answer::NodeMore(more) = answer else { return Err(unexpected(&answer)) };
        found.push(*more);
    }
    Ok(found)
}

async fn read(context: &mut Context<'_>, read: Read, patiently: bool) -> Result<Answer, Failure> {
    if patiently {
        return context.master.read_patiently(read, context.output).await;
    }
    context.master.read(read).await
}

async fn change(
    context: &mut Context<'_>,
    args: &NodeGpusArgs,
    node: &NodeId,
    uuids: &[String],
    retire: bool,
) -> Result<(), Failure> {
    if args.read.watch {
        return Err(Failure::invalid("--watch shows and changes nothing", "leave one of them out"));
    }
    let mut uuids = uuids.to_vec();
    uuids.sort();
    uuids.dedup();
    if uuids.len() > 1 && !args.yes && !args.dry_run {
        let known = ask(context, Some(node), false).await?;
        let known = rows(&known);
        for uuid in &uuids {
            let health = known.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| gpu.health);
            let health = health.unwrap_or("(not known)");
            context.output.talk(&format!("  {}  {health}", escape(uuid)));
        }
        let verb = if retire { "Retire" } else { "Return" };
        let question = format!("{verb} these {} of {node}?", count(uuids.len(), "GPU", "GPUs"));
        confirm(context, &question, "add --yes not to be asked").await?;
    }
    let verb = if retire { "gpu retire" } else { "gpu return" };
    let changes = uuids.into_iter().map(|uuid| Wanted {
        id: uuid.clone(),
        change: Change::Gpu { node: node.clone(), uuid, retire },
    });
    apply(context, verb, &args.change(), changes.collect()).await
}
