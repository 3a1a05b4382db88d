//! The story of one cluster: rolled out, used, hurt in every way, and each job completes.

use anyhow::{Context as _, Result};
use harness::process::talk;
use harness::wait::Clock;

use crate::steps;
use crate::world::World;

type Step = fn(&mut World) -> Result<()>;

const STEPS: &[(&str, Step)] = &[
    ("is rolled out from nothing, and again without a change", steps::rollout::from_nothing),
    ("trains the quickstart's jobs across its hosts", steps::rollout::trains),
    ("has each agent restarted", steps::agents::restarts),
    ("has an agent that hangs", steps::agents::hangs),
    ("has an agent stopped", steps::agents::stops),
    ("has a task vanish while its agent is down", steps::agents::task_vanishes),
    ("is upgraded", steps::agents::upgrade),
    ("has a host frozen", steps::power::freeze),
    ("has a host cut off", steps::network::cut_both_ways),
    ("has a host cut off one way", steps::network::cut_one_way),
    ("has a host without power", steps::power::power_cut),
    ("has the master's disk filled", steps::disk::fills),
    ("has the master restarted", steps::master::restarts),
    ("has a job end while the master is away", steps::master::job_ends_meanwhile),
    ("has a node drained", steps::drain::drains),
    ("replaces a job on a silent node", steps::policies::replace),
    ("stops a job on a silent node", steps::policies::stop),
    ("cancels a job on a host without power", steps::policies::cancel_meets_power_cut),
    ("cancels a job of a dead agent", steps::policies::cancel_meets_dead_agent),
    ("loses the power of all hosts at once", steps::power::blackout),
    ("ends its jobs", World::finish),
];

/// What takes another roll-out for each of them, and minutes.
const BY_HAND: &[(&str, Step)] = &[
    ("is rolled out from nothing, after a run that only checks", steps::rebuilt::only_checked),
    ("trains the quickstart's jobs across its hosts", steps::rollout::trains),
    ("has a node removed, and taken back", steps::rebuilt::removed),
    ("has a host set up anew", steps::rebuilt::host_is_new),
    ("has a host's address changed", steps::rebuilt::address_changes),
    ("ends its jobs", World::finish),
];

#[test]
fn a_cluster_is_rolled_out_and_survives() -> Result<()> {
    tell(STEPS)
}

#[test]
#[ignore = "takes minutes, for what changes once in years: by hand with --ignored"]
fn a_cluster_survives_new_hosts_and_addresses() -> Result<()> {
    tell(BY_HAND)
}

fn tell(steps: &[(&str, Step)]) -> Result<()> {
    let whole = Clock::start();
    let mut world = World::boot()?;
    // A person may leave steps out: names in part, with commas between.
    let skipped = std::env::var_os("OPTIMUS_SKIP").unwrap_or_default();
    let skipped = skipped.to_string_lossy().into_owned();
    for (name, step) in steps {
        if skipped.split(',').any(|part| !part.is_empty() && name.contains(part)) {
            talk(&format!("-- left out: {name}"));
            continue;
        }
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
