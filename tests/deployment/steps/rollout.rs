//! From empty hosts to jobs that train across them.

use anyhow::{Result, ensure};
use harness::cluster::rows;
use harness::wait;

use crate::rollout::MASTER;
use crate::world::{MINUTE, SECRET, World, quickstart_jobs};

/// What the master stores.
const STATE: &str = "/var/lib/optimus/master";

pub(crate) fn once(world: &mut World) -> Result<()> {
    let first = world.rollout.play(&world.site, "site.yml", &[])?;
    ensure!(first.hosts.iter().all(|(_, changed)| 0 < *changed), "nothing to do: {first:?}");
    world.wait_all_up()
}

pub(crate) fn from_nothing(world: &mut World) -> Result<()> {
    once(world)?;
    let second = world.rollout.play(&world.site, "site.yml", &[])?;
    ensure!(second.changed() == 0, "the second run changed something: {second:?}");
    let master = world.site.host(MASTER);
    let user = master.ssh("ps -o user= -p $(systemctl show -P MainPID optimus-master)")?;
    ensure!(user.trim() != "root", "the master runs as root");
    Ok(())
}

pub(crate) fn trains(world: &mut World) -> Result<()> {
    for file in quickstart_jobs() {
        world.submit(&file)?;
    }
    world.all_train()?;
    // What goes wrong from now on costs a job no more than what it made since.
    for name in world.names() {
        wait::until(&format!("a checkpoint of {name}"), MINUTE, || {
            let shown = world.show(&name)?;
            Ok((!rows(&shown, "checkpoints").is_empty()).then_some(()))
        })?;
    }
    let tasks = world.site.tasks();
    let hosts = |job: &str| {
        let mut hosts: Vec<_> =
            tasks.iter().filter(|t| t.job() == job).map(|t| t.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts.len()
    };
    ensure!(hosts(&world.jobs["digits-cnn"]) > 1, "the large job is on one host: {tasks:?}");
    // The key came as a credential, and the store tells nothing without it.
    let told = format!("grep --recursive --text --files-with-matches {SECRET} {STATE} || true");
    let told = world.site.host(MASTER).ssh(&told)?;
    ensure!(told.trim().is_empty(), "the master's files tell a job's environment: {told}");
    Ok(())
}
