//! The story of one cluster: rolled out, used, hurt in every way, and each job completes.

use anyhow::{Context as _, Result};
use harness::process::talk;
use harness::wait::Clock;

use crate::steps;
use crate::world::World;

type Step = fn(&mut World) -> Result<()>;

const STEPS: &[(&str, Step)] = &[
    ("rolls out from nothing, and again without a change", steps::rollout::from_nothing),
    ("trains the quickstart's jobs across the hosts", steps::rollout::trains),
    ("restarts each agent", steps::agents::restarts),
    ("finishes", World::finish),
];

#[test]
fn a_cluster_is_rolled_out_and_survives() -> Result<()> {
    let whole = Clock::start();
    let mut world = World::boot()?;
    for (name, step) in STEPS {
        talk(&format!("-- {name}"));
        let clock = Clock::start();
        step(&mut world).with_context(|| format!("the cluster {name}"))?;
        world.watch.nothing_twice()?;
        talk(&format!("   {:.1} s", clock.elapsed().as_secs_f64()));
    }
    let (looks, generations) = world.watch.seen();
    talk(&format!(
        "{looks} looks at all processes, generations {generations:?}, {:.0} s in all",
        whole.elapsed().as_secs_f64()
    ));
    world.site.succeeded();
    Ok(())
}
