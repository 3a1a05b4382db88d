//! Agents that restart, stop and are upgraded: training does not notice.

use anyhow::{Result, ensure};

use crate::rollout::NODES;
use crate::world::World;

/// Restarts each agent in turn: every task goes on as the same process.
pub(crate) fn restarts(world: &mut World) -> Result<()> {
    let before = world.tasks();
    for node in NODES {
        world.site.host(node).ssh("systemctl restart optimus-agent")?;
        world.wait_node(node, "reachability", "UP")?;
    }
    world.all_train()?;
    ensure!(world.tasks() == before, "{before:?} became {:?}", world.tasks());
    Ok(())
}
