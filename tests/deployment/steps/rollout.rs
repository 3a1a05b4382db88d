//! From empty hosts to jobs that train across them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};

use anyhow::{Result, ensure};
use harness::cluster::rows;
use harness::hosts::TASK_UID;
use harness::wait;

use crate::rollout::{MASTER, NODES};
use crate::world::{MINUTE, SECRET, World, extra_job, quickstart_jobs};

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

/// Where the master may not write, no job is taken: it would lose every checkpoint.
fn storage_is_tried(world: &World) -> Result<()> {
    let closed = world.site.shared.join("closed");
    fs::create_dir(&closed)?;
    chown(&closed, Some(TASK_UID), Some(TASK_UID))?;
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755))?;
    let mut file = extra_job("closed", "keep");
    file.checkpoint.push_str("/closed");
    let path = world.write(&file)?;
    let refused = world.operator.refused(&world.site, &["submit", &path])?;
    ensure!(refused.contains("the master cannot write to"), "said {refused}");
    ensure!(refused.contains("optimus_storage"), "no remedy in {refused}");
    ensure!(fs::read_dir(&closed)?.next().is_none(), "a probe is left");
    Ok(())
}

pub(crate) fn trains(world: &mut World) -> Result<()> {
    storage_is_tried(world)?;
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
    for node in NODES {
        let shown = world.json(&["node", "show", node])?;
        ensure!(shown["isolation"]["filter"] == true, "strangers are not kept out: {shown}");
    }
    // The key came as a credential, and the store tells nothing without it.
    let told = format!("grep --recursive --text --files-with-matches {SECRET} {STATE} || true");
    let told = world.site.host(MASTER).ssh(&told)?;
    ensure!(told.trim().is_empty(), "the master's files tell a job's environment: {told}");
    Ok(())
}
