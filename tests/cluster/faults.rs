//! kill -9 at each part in mid-training: the job completes, nothing runs twice, nothing is left.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::jobs::{Finish, JobFile};
use harness::process::{self, talk};
use harness::wait::{self, Clock};
use harness::{Cluster, ClusterOptions};
use nix::sys::signal::Signal;

use crate::common::{
    MINUTE, assert_nothing_twice, faults, show, submit, task, wait_job, wait_phase, wait_steps,
};

/// A cluster with one job of two servers and two workers, in mid-training.
fn training() -> Result<(Cluster, String)> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[1.5, 1.5]))?;
    let mut file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    file.arguments = vec!["--step-ms".to_owned(), "30".to_owned()];
    file.checkpoint_interval = "5s".to_owned();
    file.finish = Finish::Epochs(40);
    file.workers = (2, 2);
    file.servers = (2, 2);
    let job = submit(&cluster, &file)?;
    wait_steps(&cluster, &job, 20)?;
    wait_job(&cluster, &job, "a checkpoint", MINUTE, |shown| {
        shown["checkpoints"].as_array().is_some_and(|all| !all.is_empty())
    })?;
    Ok((cluster, job))
}

fn completes(cluster: &Cluster, job: &str) -> Result<()> {
    wait::until("the job's end", 4 * MINUTE, || {
        assert_nothing_twice(cluster)?;
        let Ok(shown) = show(cluster, job) else { return Ok(None) };
        ensure!(shown["phase"] != "FAILED", "it failed: {}", shown["reason"]);
        Ok((shown["phase"] == "COMPLETED").then_some(()))
    })
    .or_else(|error| {
        // For its story.
        wait_phase(cluster, job, "COMPLETED", Duration::from_secs(1))?;
        Err(error)
    })?;
    cluster.wait_no_task()
}

fn a_task_is_killed(role: &str) -> Result<()> {
    let (cluster, job) = training()?;
    let victim = task(&cluster, &job, role)?;
    let clock = Clock::start();
    ensure!(process::signal(victim.pid, Signal::SIGKILL), "{role} was gone already");
    let shown = wait_job(&cluster, &job, "the fault to be recorded", MINUTE, |shown| {
        !faults(shown).is_empty()
    })?;
    let cause = faults(&shown)[0]["cause"].as_str().context("a fault has a cause")?.to_owned();
    ensure!(cause.contains(role), "the fault does not name {role}: {cause}");
    let back = wait_job(&cluster, &job, "training to go on", MINUTE, |shown| {
        shown["phase"] == "RUNNING" && !faults(shown)[0]["lost_s"].is_null()
    })?;
    talk(&format!(
        "{role} killed: training again after {:.1} s, {} s without a step; step {} resumed from {}",
        clock.elapsed().as_secs_f64(),
        faults(&back)[0]["lost_s"],
        faults(&back)[0]["step"],
        faults(&back)[0]["resumed_from"],
    ));
    ensure!(!faults(&back)[0]["resumed_from"].is_null(), "it began anew, checkpoint unused");
    completes(&cluster, &job)
}

#[test]
fn a_killed_worker_costs_little() -> Result<()> {
    a_task_is_killed("worker1")
}

#[test]
fn a_killed_worker_of_rank_zero_costs_little() -> Result<()> {
    a_task_is_killed("worker0")
}

#[test]
fn a_killed_server_costs_little() -> Result<()> {
    a_task_is_killed("server0")
}

#[test]
fn a_killed_ps_scheduler_costs_little() -> Result<()> {
    a_task_is_killed("scheduler")
}

#[test]
fn training_lives_through_the_agents_death() -> Result<()> {
    let (mut cluster, job) = training()?;
    let before = cluster.tasks();
    let clock = Clock::start();
    cluster.agents[0].kill()?;
    ensure!(cluster.tasks() == before, "the agent took tasks with it");
    cluster.agents[0].start()?;
    let step = wait_steps(&cluster, &job, 10)?;
    talk(&format!(
        "agent killed: seen at step {step} again after {:.1} s; training never stopped",
        clock.elapsed().as_secs_f64()
    ));
    ensure!(cluster.tasks() == before, "tasks were not adopted: {:?}", cluster.tasks());
    ensure!(faults(&show(&cluster, &job)?).is_empty(), "adoption is no fault");
    completes(&cluster, &job)
}

#[test]
fn a_task_that_dies_while_its_agent_is_down_is_reported() -> Result<()> {
    let (mut cluster, job) = training()?;
    let victim = cluster
        .tasks()
        .into_iter()
        .find(|task| task.task.starts_with("n1/"))
        .context("n1 has no task")?;
    cluster.agents[0].kill()?;
    process::signal(victim.pid, Signal::SIGKILL);
    cluster.agents[0].start()?;
    let shown = wait_job(&cluster, &job, "the fault to be recorded", MINUTE, |shown| {
        !faults(shown).is_empty()
    })?;
    let cause = faults(&shown)[0]["cause"].as_str().unwrap_or_default();
    ensure!(cause.contains("agent was down"), "the cause does not say it: {cause}");
    completes(&cluster, &job)
}

#[test]
fn training_lives_through_the_masters_death() -> Result<()> {
    let (mut cluster, job) = training()?;
    let before = cluster.tasks();
    let clock = Clock::start();
    cluster.master.kill()?;
    ensure!(cluster.tasks() == before, "the master took tasks with it");
    cluster.master.start()?;
    let step = wait_steps(&cluster, &job, 10)?;
    talk(&format!(
        "master killed: seen at step {step} again after {:.1} s; training never stopped",
        clock.elapsed().as_secs_f64()
    ));
    ensure!(cluster.tasks() == before, "tasks were restarted");
    ensure!(faults(&show(&cluster, &job)?).is_empty(), "a master's restart is no fault");
    completes(&cluster, &job)
}
