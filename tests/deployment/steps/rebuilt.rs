//! A host that is set up anew, moves to another address, or leaves and returns: it is the same node.

use anyhow::{Result, ensure};
use harness::cluster::rows;
use harness::wait;

use crate::rollout::NODES;
use crate::world::{CNN, MINUTE, World};

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
    // Tasks that talked over the old address wait for each other until their job counts as stalled.
    let generation = world.show(CNN)?["generation"].clone();
    let step = world.show(CNN)?["step"].as_u64();
    wait::until("its job to go on or to begin anew", 4 * MINUTE, || {
        let shown = world.show(CNN)?;
        let goes_on = shown["generation"] != generation || step < shown["step"].as_u64();
        Ok(goes_on.then_some(()))
    })?;
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

/// A run that only checks: says what it would do, on empty hosts and on those that are set up, and
/// does nothing.
pub(crate) fn only_checked(world: &mut World) -> Result<()> {
    let checked = world.rollout.play(&world.site, "site.yml", &["--check", "--diff"])?;
    ensure!(checked.changed() > 0, "nothing would be done on empty hosts: {checked:?}");
    for host in &world.site.hosts {
        let left = host.ssh("ls -d /etc/optimus /usr/lib/optimus /var/lib/optimus/* || true")?;
        // The master's small disk is mounted before anything is installed.
        ensure!(
            left.lines().all(|line| line == "/var/lib/optimus/master"),
            "a check left {left} on {}",
            host.name
        );
    }
    super::rollout::once(world)?;
    let again = world.rollout.play(&world.site, "site.yml", &["--check"])?;
    ensure!(again.changed() == 0, "a check would change hosts that are set up: {again:?}");
    Ok(())
}

/// A node is drained and removed with all that it stored, and comes back later.
pub(crate) fn removed(world: &mut World) -> Result<()> {
    let node = world.node_of(CNN)?;
    let names = world.names();
    let faults = world.faults(&names)?;
    let everything = ["--limit", &node, "--extra-vars", "optimus_remove_state=true"];
    world.rollout.play(&world.site, "remove.yml", &[&everything[..], &["--check"]].concat())?;
    ensure!(world.operator.node(&world.site, &node)?["schedulability"] == "OPEN", "only checked");
    world.rollout.play(&world.site, "remove.yml", &everything)?;
    ensure!(world.faults(&names)? == faults, "a removal is no fault of {names:?}");
    let line = world.operator.node(&world.site, &node)?;
    ensure!(line["reachability"] == "GONE", "nodes shows {line}");
    let host = world.site.host(&node);
    let left = host.ssh(
        "ls -d /etc/optimus /usr/lib/optimus /var/lib/optimus /usr/share/optimus /etc/credstore/* \
         /etc/systemd/system/optimus* /usr/bin/optimus 2>/dev/null || true; \
         systemctl list-units --all --plain --no-legend 'optimus-*'",
    )?;
    ensure!(left.trim().is_empty(), "left on the host: {left}");
    ensure!(host.tasks().is_empty(), "tasks are left on a removed node");
    let again = world.rollout.play(&world.site, "remove.yml", &everything)?;
    ensure!(again.changed() == 0, "the second removal changed something: {again:?}");
    world.rollout.play(&world.site, "site.yml", &[])?;
    world.wait_node(&node, "schedulability", "OPEN")?;
    world.wait_all_up()?;
    no_ghost(world)?;
    world.all_train()
}
