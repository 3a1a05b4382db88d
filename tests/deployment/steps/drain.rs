//! A node is emptied before its host is worked on.

use anyhow::{Result, ensure};

use crate::world::{CNN, MINUTE, World};
use harness::cluster::rows;
use harness::wait;

pub(crate) fn drains(world: &mut World) -> Result<()> {
    let node = world.node_of(CNN)?;
    let refused = world.operator.refused(&world.site, &["node", "drain", &node, "--yes"])?;
    ensure!(refused.contains("--reason"), "a drain without a reason: {refused}");
    let names = world.names();
    let faults = world.faults(&names)?;
    let args = ["node", "drain", &node, "--reason", "a new fan", "--deadline", "2m", "--yes"];
    world.run(&args)?;
    let line = world.wait_node(&node, "schedulability", "DRAINED")?;
    ensure!(
        line["reason"].as_str().is_some_and(|reason| reason.contains("a new fan")),
        "nodes shows {line}"
    );
    ensure!(world.site.host(&node).tasks().is_empty(), "tasks are left on a drained node");
    // What has no room elsewhere waits, and says so; nothing is on the books as a fault.
    let waiting: Vec<_> =
        world.look()?.into_iter().filter(|row| row["phase"] == "QUEUED").collect();
    for row in &waiting {
        let id = row["id"].as_str().unwrap_or_default();
        let why = world.json(&["why", id])?;
        ensure!(!why["decision"].as_str().unwrap_or_default().is_empty(), "why says {why}");
    }
    ensure!(world.faults(&names)? == faults, "a drain is no fault of {names:?}");
    world.run(&["node", "undrain", &node])?;
    world.wait_node(&node, "schedulability", "OPEN")?;
    world.all_train()?;
    let shown = world.show(CNN)?;
    ensure!(!rows(&shown, "checkpoints").is_empty(), "no checkpoint: {shown}");
    wait::until("the node to be used again", MINUTE, || {
        Ok((!world.site.host(&node).tasks().is_empty() || waiting.is_empty()).then_some(()))
    })
}
