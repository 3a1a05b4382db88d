//! Cuts between hosts. A cut and a death look alike from the master.

use anyhow::{Result, ensure};
use harness::hosts::Direction;

use super::agents::unnoticed;
use crate::world::{CNN, World};

/// Nothing passes to or from a node until it is DOWN. Its tasks wait for their peers, and go on
/// as the same processes when the cut is healed.
pub(crate) fn cut_both_ways(world: &mut World) -> Result<()> {
    let node = world.node_of(CNN)?;
    unnoticed(world, |world| {
        let since = world.newest_event()?;
        world.site.cut(&node, Direction::Both)?;
        world.wait_node(&node, "reachability", "DOWN")?;
        let row = world.look()?.into_iter().find(|row| row["id"] == *world.jobs[CNN]);
        ensure!(
            row.as_ref().is_some_and(|row| row["phase"] == "RUNNING"),
            "a job that keeps its tasks is {row:?}"
        );
        world.site.heal()?;
        world.wait_node(&node, "reachability", "UP")?;
        world.saw(&node, since, &["suspect", "down", "up"])
    })
}

/// What the node hears is lost, then what it says.
pub(crate) fn cut_one_way(world: &mut World) -> Result<()> {
    let node = world.node_of(CNN)?;
    unnoticed(world, |world| {
        for direction in [Direction::In, Direction::Out] {
            let since = world.newest_event()?;
            world.site.cut(&node, direction)?;
            world.wait_node(&node, "reachability", "SUSPECT")?;
            world.site.heal()?;
            world.wait_node(&node, "reachability", "UP")?;
            world.saw(&node, since, &["suspect", "up"])?;
        }
        Ok(())
    })
}
