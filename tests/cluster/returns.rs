//! Agents that die at a bad moment, and what is said and done while they are away.

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::process::{signal, talk};
use harness::wait::Clock;
use harness::{Cluster, ClusterOptions, wait};
use nix::sys::signal::Signal;

use crate::common::{
    MINUTE, assert_nothing_twice, faults, show, submit, task, wait_job, wait_steps,
};
use crate::links::{endless, hasty, tasks_of, wait_gone, wait_reach};

#[test]
fn an_old_proof_is_told_and_a_cancel_leaves_a_dead_agent_behind() -> Result<()> {
    let mut cluster = Cluster::start(&hasty(&[1.0]))?;
    let job = submit(&cluster, &endless(&cluster, "proof", "keep"))?;
    wait_steps(&cluster, &job, 5)?;
    let tasks = cluster.tasks();
    cluster.agents[0].kill()?;
    let shown = wait_job(&cluster, &job, "the silence to be told", MINUTE, |shown| {
        shown["reason"].as_str().is_some_and(|reason| reason.contains("n1 is silent for"))
    })?;
    ensure!(shown["phase"] == "RUNNING", "{}", shown["phase"]);
    let listing = cluster.json(&["ps"])?;
    ensure!(rows(&listing, "jobs")[0]["reason"] == shown["reason"], "ps tells less: {listing}");
    cluster.agents[0].start()?;
    let clock = Clock::start();
    wait_job(&cluster, &job, "a fresh proof", MINUTE, |shown| {
        shown["reason"].as_str().is_some_and(|reason| !reason.contains("silent"))
    })?;
    talk(&format!("proved again {:.1} s after the agent's start", clock.elapsed().as_secs_f64()));
    ensure!(cluster.tasks() == tasks && show(&cluster, &job)?["generation"] == "g1");

    cluster.agents[0].kill()?;
    cluster.run(["cancel", &job])?;
    let clock = Clock::start();
    wait_gone(&cluster, &job)?;
    talk(&format!(
        "CANCELLED {:.1} s after a cancel without its agent",
        clock.elapsed().as_secs_f64()
    ));
    ensure!(cluster.tasks() == tasks, "nobody could end them");
    cluster.agents[0].start()?;
    cluster.wait_no_task()?;
    wait_reach(&cluster, "n1", "UP")
}

#[test]
fn whatever_is_under_way_when_an_agent_dies_is_accounted_for() -> Result<()> {
    let mut cluster = Cluster::start(&ClusterOptions::quick(&[1.0]))?;
    // Each time a little later in the launch: at its order, with one process, with more.
    for (number, least) in [0, 1, 2, 3].into_iter().enumerate() {
        let lines = cluster.agents[0].log().matches("starting").count();
        let mut file = endless(&cluster, &format!("launch{number}"), "keep");
        // A fault of its own would end it.
        file.restarts_max = 0;
        let job = submit(&cluster, &file)?;
        wait::until("the launch", MINUTE, || {
            let begun = cluster.agents[0].log().matches("starting").count() > lines;
            Ok((begun && tasks_of(&cluster, &job).len() >= least).then_some(()))
        })?;
        cluster.agents[0].kill()?;
        cluster.agents[0].start()?;
        wait_steps(&cluster, &job, 5)?;
        assert_nothing_twice(&cluster)?;
        let shown = show(&cluster, &job)?;
        let told: Vec<_> = faults(&shown).iter().map(|fault| fault["cause"].to_string()).collect();
        let generation = format!("g{}", told.len() + 1);
        ensure!(shown["generation"] == generation.as_str(), "{} of {told:?}", shown["generation"]);
        talk(&format!("killed with {least} processes or more: {generation}, {told:?}"));
        cluster.run(["cancel", &job, "--now"])?;
        wait_gone(&cluster, &job)?;
        cluster.wait_no_task()?;
    }
    // An end that it has seen and not told.
    let job = submit(&cluster, &endless(&cluster, "ended", "keep"))?;
    wait_steps(&cluster, &job, 5)?;
    let worker = task(&cluster, &job, "worker0")?;
    let agent = cluster.agents[0].pid().context("no agent")?;
    ensure!(signal(agent, Signal::SIGSTOP) && signal(worker.pid, Signal::SIGKILL));
    cluster.agents[0].kill()?;
    cluster.agents[0].start()?;
    let shown = wait_job(&cluster, &job, "its end to be told", MINUTE, |s| !faults(s).is_empty())?;
    wait_steps(&cluster, &job, 5)?;
    ensure!(faults(&show(&cluster, &job)?).len() == 1, "told twice");
    ensure!(faults(&shown)[0]["cause"].to_string().contains("worker0"), "{shown}");
    cluster.run(["cancel", &job, "--now"])?;
    cluster.wait_no_task()
}
