//! Agents that restart, stop, hang and are upgraded: training does not notice.

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::hosts::HostTask;
use harness::process::signal;
use nix::sys::signal::Signal;

use crate::rollout::NODES;
use crate::world::{CNN, World};

/// Runs `deed`: every task goes on as the same process, and no fault is told of any job.
pub(crate) fn unnoticed(
    world: &mut World,
    deed: impl FnOnce(&mut World) -> Result<()>,
) -> Result<()> {
    let names = world.names();
    let (before, faults) = (world.tasks_of(&names), world.faults(&names)?);
    deed(world)?;
    world.wait_all_up()?;
    world.train(&names)?;
    let after = world.tasks_of(&names);
    ensure!(after == before, "tasks changed from {before:#?} to {after:#?}");
    ensure!(world.faults(&names)? == faults, "a fault of {names:?} was told of");
    Ok(())
}

/// Restarts each agent in turn, by an operator's word and by a kill.
pub(crate) fn restarts(world: &mut World) -> Result<()> {
    unnoticed(world, |world| {
        for node in NODES {
            let before = world.json(&["node", "show", node])?["incarnation"].clone();
            let deed = if node == NODES[0] { "kill --signal=KILL" } else { "restart" };
            world.site.host(node).ssh(&format!("systemctl {deed} optimus-agent"))?;
            world.wait_new_incarnation(node, &before)?;
        }
        Ok(())
    })
}

/// An agent that is busy, or a suspended process: late is not dead.
pub(crate) fn hangs(world: &mut World) -> Result<()> {
    let node = world.node_of(CNN)?;
    unnoticed(world, |world| {
        let since = world.newest_event()?;
        let send = |name: &str| {
            let all = format!("systemctl kill --kill-whom=main --signal={name} optimus-agent");
            world.site.host(&node).ssh(&all).map(drop)
        };
        send("STOP")?;
        world.wait_node(&node, "reachability", "SUSPECT")?;
        send("CONT")?;
        world.wait_node(&node, "reachability", "UP")?;
        world.saw(&node, since, &["suspect", "up"])
    })
}

/// Another release of everything, one node after the other.
pub(crate) fn upgrade(world: &mut World) -> Result<()> {
    unnoticed(world, |world| {
        let recap = world.rollout.upgrade(&world.site)?;
        ensure!(
            recap.hosts.iter().filter(|(name, _)| NODES.contains(&name.as_str())).count() == 3
                && recap.hosts.iter().all(|(_, changed)| 0 < *changed),
            "not every host was upgraded: {recap:?}"
        );
        for node in NODES {
            let same = "cmp /proc/$(systemctl show -P MainPID optimus-agent)/exe \
                        /usr/lib/optimus/optimus-agent";
            world.site.host(node).ssh(same).context("an old agent runs")?;
        }
        Ok(())
    })
}

/// Stopping an agent is not stopping its tasks: the node goes DOWN, and training goes on.
pub(crate) fn stops(world: &mut World) -> Result<()> {
    let node = world.node_of(CNN)?;
    unnoticed(world, |world| {
        let since = world.newest_event()?;
        world.site.host(&node).ssh("systemctl stop optimus-agent")?;
        world.wait_node(&node, "reachability", "DOWN")?;
        let why = world.run(&["why", &world.jobs[CNN]])?;
        ensure!(why.contains(&format!("{node} is silent for")), "why says {why}");
        ensure!(!world.site.host(&node).tasks().is_empty(), "the tasks ended with the agent");
        world.site.host(&node).ssh("systemctl start optimus-agent")?;
        world.wait_node(&node, "reachability", "UP")?;
        world.saw(&node, since, &["suspect", "down", "up"])
    })
}

/// A task that ends while no agent looks, and whose number a stranger has by then: the job
/// restarts, and the stranger lives.
pub(crate) fn task_vanishes(world: &mut World) -> Result<()> {
    let job = world.jobs[CNN].clone();
    let is_worker = |task: &&HostTask| task.job() == job && task.role() == "worker1";
    let victim = world.site.tasks().iter().find(is_worker).cloned().context("no worker1")?;
    let host = world.site.host(&victim.host);
    let before = rows(&world.show(CNN)?, "faults").len();
    host.ssh("systemctl stop optimus-agent")?;
    let number = host.number_of(victim.pid)?;
    host.ssh(&format!("kill -KILL {number}"))?;
    let stranger = host.start_stranger(number)?;
    host.ssh("systemctl start optimus-agent")?;
    world.wait_job(CNN, "to tell the fault", |row| row["restarts"].as_u64() > Some(0))?;
    world.all_train()?;
    let shown = world.show(CNN)?;
    let told = rows(&shown, "faults");
    ensure!(told.len() == before + 1, "faults: {told:?}");
    let cause = told.iter().map(|fault| fault["cause"].as_str().unwrap_or_default());
    ensure!(cause.clone().any(|c| c.contains("agent was down")), "faults: {told:?}");
    ensure!(signal(stranger, Signal::SIGKILL), "the agent ended a process that is none of its own");
    Ok(())
}
