//! Tasks are forked from a process that has imported MXNet; whatever becomes of that process, they
//! train on, and it never outlives its job.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::jobs::{Finish, JobFile};
use harness::process::{self, ForkServer};
use harness::{Cluster, ClusterOptions, wait};
use nix::sys::signal::Signal;

use crate::common::{
    MINUTE, assert_nothing_twice, faults, show, submit, task, wait_job, wait_shape, wait_steps,
};

/// A cluster of one node with a job that trains until it is cancelled.
fn training(command: &[&str]) -> Result<(Cluster, String)> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[4.0]))?;
    let mut file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    file.arguments = ["--step-ms", "20"].map(str::to_owned).to_vec();
    file.flags = command.iter().map(|word| (*word).to_owned()).collect();
    file.checkpoint_interval = "1h".to_owned();
    file.finish = Finish::Epochs(100_000);
    file.epochs_max = 100_000;
    let job = submit(&cluster, &file)?;
    wait_steps(&cluster, &job, 5)?;
    cluster.run(["resize", &job, "--servers", "1", "--workers", "2", "--pin"])?;
    wait_shape(&cluster, &job, "1+2")?;
    Ok((cluster, job))
}

fn the_fork_server(cluster: &Cluster, but: Option<i32>) -> Result<ForkServer> {
    wait::until("one fork server", MINUTE, || {
        let found = process::fork_servers_below(&cluster.folder);
        let fresh = found.iter().all(|server| Some(server.pid) != but);
        Ok((found.len() == 1 && fresh).then(|| found[0].clone()))
    })
}

fn cancelled_without_a_trace(cluster: &Cluster, job: &str) -> Result<()> {
    cluster.run(["cancel", job, "--now"])?;
    cluster.wait_no_task()?;
    wait::until("the end of the fork servers", Duration::from_secs(20), || {
        Ok(process::fork_servers_below(&cluster.folder).is_empty().then_some(()))
    })
}

#[test]
fn tasks_live_on_when_their_fork_server_is_killed() -> Result<()> {
    let (cluster, job) = training(&[])?;
    let server = the_fork_server(&cluster, None)?;
    let worker = task(&cluster, &job, "worker1")?;
    ensure!(process::parent(worker.pid) == Some(server.pid), "{worker:?} of {server:?}");
    let before = cluster.tasks();
    ensure!(process::signal(server.pid, Signal::SIGKILL), "it was gone already");
    wait_steps(&cluster, &job, 20)?;
    ensure!(cluster.tasks() == before, "{:?} became {:?}", before, cluster.tasks());
    ensure!(faults(&show(&cluster, &job)?).is_empty(), "it is no fault of the job");
    // Of a task whose end nobody tells, the end is seen all the same, and the job comes back.
    process::signal(worker.pid, Signal::SIGKILL);
    wait_job(&cluster, &job, "the fault, and training to go on", MINUTE, |shown| {
        shown["phase"] == "RUNNING" && faults(shown).iter().any(|fault| !fault["lost_s"].is_null())
    })?;
    // Another server is there by now, and the next generation comes from it.
    let other = the_fork_server(&cluster, Some(server.pid))?;
    cluster.run(["resize", &job, "--servers", "1", "--workers", "1", "--pin"])?;
    wait_shape(&cluster, &job, "1+1")?;
    assert_nothing_twice(&cluster)?;
    let worker = task(&cluster, &job, "worker0")?;
    ensure!(process::parent(worker.pid) == Some(other.pid), "{worker:?} of {other:?}");
    cancelled_without_a_trace(&cluster, &job)
}

#[test]
fn a_fork_server_that_hangs_holds_nothing_up_and_ends_with_its_agents_next_life() -> Result<()> {
    let (mut cluster, job) = training(&[])?;
    let server = the_fork_server(&cluster, None)?;
    process::signal(server.pid, Signal::SIGSTOP);
    let before = cluster.tasks();
    cluster.agents[0].kill()?;
    cluster.agents[0].start()?;
    // It did not see the end of its agent, and must not serve another one.
    let other = the_fork_server(&cluster, Some(server.pid))?;
    ensure!(cluster.tasks() == before, "{:?} became {:?}", before, cluster.tasks());
    // This one stops in the middle of a rescale: the tasks start from nothing.
    process::signal(other.pid, Signal::SIGSTOP);
    cluster.run(["resize", &job, "--servers", "1", "--workers", "1", "--pin"])?;
    wait_shape(&cluster, &job, "1+1")?;
    assert_nothing_twice(&cluster)?;
    let worker = task(&cluster, &job, "worker0")?;
    ensure!(process::parent(worker.pid) != Some(other.pid), "{worker:?} of {other:?}");
    cancelled_without_a_trace(&cluster, &job)
}

#[test]
fn an_interpreter_with_flags_of_its_own_starts_from_nothing() -> Result<()> {
    let (cluster, job) = training(&["-X", "dev"])?;
    ensure!(process::fork_servers_below(&cluster.folder).is_empty(), "nobody could use it");
    let worker = task(&cluster, &job, "worker0")?;
    let agent = cluster.agents[0].pid().context("the agent runs")?;
    ensure!(process::parent(worker.pid) == Some(agent), "{worker:?}");
    cancelled_without_a_trace(&cluster, &job)
}
