//! Hosts that are suspended, lose power, and boot again.

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;

use super::agents::unnoticed;
use crate::rollout::{MASTER, NODES};
use crate::world::{CNN, World};

/// A suspended host comes back as it was, after a short while and after a long one.
pub(crate) fn freeze(world: &mut World) -> Result<()> {
    for state in ["SUSPECT", "DOWN"] {
        let node = world.node_of(CNN)?;
        unnoticed(world, |world| {
            world.site.host(&node).freeze()?;
            world.wait_node(&node, "reachability", state)?;
            world.site.host(&node).thaw()?;
            world.wait_node(&node, "reachability", "UP").map(drop)
        })?;
    }
    Ok(())
}

/// A host loses power and boots again: its jobs go on from their checkpoints, wherever.
pub(crate) fn power_cut(world: &mut World) -> Result<()> {
    let node = world.node_of(CNN)?;
    let before = world.json(&["node", "show", &node])?;
    let generation = world.show(CNN)?["generation"].clone();
    world.site.host_mut(&node).power_off()?;
    world.wait_node(&node, "reachability", "SUSPECT")?;
    world.site.host_mut(&node).power_on()?;
    world.site.host_mut(&node).wait_ready()?;
    world.wait_new_incarnation(&node, &before["incarnation"])?;
    let after = world.json(&["node", "show", &node])?;
    ensure!(before["boot_id"] != after["boot_id"], "the same boot: {after}");
    world.wait_job(CNN, "to begin anew", |row| row["generation"] != generation)?;
    world.all_train()?;
    let shown = world.show(CNN)?;
    let newest = rows(&shown, "faults").last().context("no fault was told of")?;
    ensure!(
        newest["cause"].as_str().is_some_and(|cause| cause.contains("rebooted")),
        "told as {newest}"
    );
    Ok(())
}

/// The power of the whole room: all hosts at once, and the master is the last to come back.
pub(crate) fn blackout(world: &mut World) -> Result<()> {
    for host in &mut world.site.hosts {
        host.power_off()?;
    }
    ensure!(world.site.tasks().is_empty(), "a task outlived its host");
    for name in NODES {
        world.site.host_mut(name).power_on()?;
    }
    for name in NODES {
        world.site.host_mut(name).wait_ready()?;
    }
    world.site.host_mut(MASTER).power_on()?;
    world.site.host_mut(MASTER).wait_ready()?;
    world.wait_all_up()?;
    world.all_train()
}
