//! What a job asked for where its node is silent, and a cancel that meets a dead node or agent.

use anyhow::{Context as _, Result, ensure};
use harness::hosts::Direction;
use harness::wait;

use crate::world::{MINUTE, World, extra_job};

fn started(world: &mut World, name: &str, rule: &'static str) -> Result<(String, String)> {
    let id = world.submit(&extra_job(name, rule))?;
    world.wait_job(name, "to train", |row| {
        row["phase"] == "RUNNING" && row["step"].as_u64() > Some(20)
    })?;
    // A restart needs a checkpoint to go on from.
    world.run(&["checkpoint", &id])?;
    wait::until("a checkpoint", MINUTE, || {
        let shown = world.show(name)?;
        Ok((!harness::cluster::rows(&shown, "checkpoints").is_empty()).then_some(()))
    })?;
    let node = world.node_of(name)?;
    Ok((id, node))
}

fn tasks_of(world: &World, job: &str) -> usize {
    world.site.tasks().iter().filter(|task| task.job() == job).count()
}

/// `replace`: begins anew on another node while the old one is still cut off, and not before the
/// old tasks have ended there.
pub(crate) fn replace(world: &mut World) -> Result<()> {
    let (id, node) = started(world, "replaced", "replace")?;
    world.site.cut(&node, Direction::Both)?;
    world.wait_job("replaced", "to begin anew elsewhere", |row| {
        row["phase"] == "RUNNING" && row["generation"] != "g1"
    })?;
    ensure!(
        world.site.tasks().iter().all(|task| task.job() != id || task.host != node),
        "it still runs on the node that was cut off"
    );
    world.site.heal()?;
    world.wait_all_up()?;
    end(world, "replaced")
}

/// `stop`: its tasks end on the silent node, and it begins anew once that is back.
pub(crate) fn stop(world: &mut World) -> Result<()> {
    let (id, node) = started(world, "stopped", "stop")?;
    world.site.cut(&node, Direction::Both)?;
    wait::until("its tasks to end on their own node", MINUTE, || {
        Ok((tasks_of(world, &id) == 0).then_some(()))
    })?;
    world.site.heal()?;
    world.wait_job("stopped", "to begin anew", |row| {
        row["phase"] == "RUNNING" && row["generation"] != "g1"
    })?;
    end(world, "stopped")
}

fn end(world: &mut World, name: &str) -> Result<()> {
    world.watch.nothing_twice()?;
    // One worker: no other could be an epoch ahead.
    world.ask_to_end(name, 0)?;
    world.wait_job(name, "to complete", |row| row["phase"] == "COMPLETED")?;
    world.loss_continues(name)?;
    world.forget(name);
    Ok(())
}

/// A cancel that meets a host without power leaves STOPPING, and its node may come back.
pub(crate) fn cancel_meets_power_cut(world: &mut World) -> Result<()> {
    let (id, node) = started(world, "cancelled", "keep")?;
    world.forget("cancelled");
    world.site.host_mut(&node).power_off()?;
    world.run(&["cancel", &id, "--yes"])?;
    wait::until("the cancelled job's end", MINUTE, || {
        let shown = world.json(&["show", &id])?;
        Ok((shown["phase"] == "CANCELLED").then_some(()))
    })
    .with_context(|| world.run(&["why", &id]).unwrap_or_default())?;
    world.site.host_mut(&node).power_on()?;
    world.site.host_mut(&node).wait_ready()?;
    world.wait_all_up()?;
    world.all_train()?;
    ensure!(tasks_of(world, &id) == 0, "a cancelled job came back with its node");
    Ok(())
}

/// The same with an agent that is dead while its host lives.
pub(crate) fn cancel_meets_dead_agent(world: &mut World) -> Result<()> {
    let (id, node) = started(world, "given-up", "keep")?;
    world.forget("given-up");
    world.site.host(&node).ssh("systemctl stop optimus-agent")?;
    world.run(&["cancel", &id, "--yes"])?;
    world.site.host(&node).ssh("systemctl start optimus-agent")?;
    wait::until("the tasks of a cancelled job to end", MINUTE, || {
        let shown = world.json(&["show", &id])?;
        Ok((shown["phase"] == "CANCELLED" && tasks_of(world, &id) == 0).then_some(()))
    })?;
    world.wait_all_up()
}
