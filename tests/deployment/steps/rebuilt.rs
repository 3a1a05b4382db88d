//! A host that is set up anew, or moves to another address: it is the same node.

use anyhow::{Result, ensure};
use harness::cluster::rows;

use crate::rollout::NODES;
use crate::world::{CNN, World};

fn no_ghost(world: &World) -> Result<()> {
    let nodes = world.json(&["nodes"])?;
    let mut names: Vec<_> =
        rows(&nodes, "nodes").iter().filter_map(|node| node["id"].as_str()).collect();
    names.sort_unstable();
    ensure!(names == NODES, "nodes are {names:?}");
    Ok(())
}

/// A new lease: the old address answers no more, and jobs that used it begin anew from their
/// checkpoints.
pub(crate) fn address_changes(world: &mut World) -> Result<()> {
    let node = world.node_of(CNN)?;
    let since = world.newest_event()?;
    world.site.host_mut(&node).change_address("10.77.0.99")?;
    world.rollout.write_inventory(&world.site)?;
    world.rollout.play(&world.site, "site.yml", &[])?;
    world.wait_all_up()?;
    no_ghost(world)?;
    let shown = world.json(&["node", "show", &node])?;
    ensure!(shown["task_address"] == "10.77.0.99", "node show says {shown}");
    let told = world.told_since(since)?;
    ensure!(told.iter().any(|(kind, _)| kind == "address"), "nobody told of it: {told:?}");
    world.all_train()
}

/// An empty disk under the old name: the tasks of the old one are proved dead by the new boot.
pub(crate) fn host_is_new(world: &mut World) -> Result<()> {
    let node = world.node_of(CNN)?;
    let before = world.json(&["node", "show", &node])?;
    world.site.reinstall(&node)?;
    crate::world::copy_scripts(&world.site, &node)?;
    world.rollout.play(&world.site, "site.yml", &[])?;
    world.wait_all_up()?;
    no_ghost(world)?;
    let after = world.json(&["node", "show", &node])?;
    ensure!(before["boot_id"] != after["boot_id"], "the same boot: {after}");
    world.all_train()
}
