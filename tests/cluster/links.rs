//! Links to the master that are slow, cut or lead to another one.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::jobs::{Finish, JobFile};
use harness::process::{TaskProcess, signal, talk};
use harness::wait::Clock;
use harness::{Cluster, ClusterOptions, Link, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{
    MINUTE, assert_nothing_twice, faults, show, submit, wait_job, wait_phase, wait_shape,
    wait_steps,
};

/// What follows the table of jobs of a quick cluster.
const HASTY: &str = "checkpoint_timeout = \"5s\"\n[nodes]\nsuspect = \"2s\"\ndown = \"6s\"\n\
                     start_grace = \"3s\"\ndown_share_max = 1.0\n";

/// A job of one server and one worker, which ends by a cancel only.
pub(crate) fn endless(cluster: &Cluster, name: &str, rule: &'static str) -> JobFile {
    let mut file = JobFile::new(name, "linear_probe.py", &cluster.checkpoints());
    file.arguments = vec!["--step-ms".to_owned(), "50".to_owned()];
    file.checkpoint_interval = "5s".to_owned();
    file.finish = Finish::Epochs(100_000);
    file.epochs_max = 100_000;
    (file.workers, file.servers) = ((1, 1), (1, 1));
    (file.worker_cpus, file.server_cpus) = (0.3, 0.2);
    file.on_disconnect = rule;
    file
}

/// A quick cluster that judges its nodes within seconds.
pub(crate) fn hasty(cpus: &[f64]) -> ClusterOptions {
    let mut options = ClusterOptions::quick(cpus);
    options.master_toml.push_str(HASTY);
    options
}

/// Lets an agent that has not started reach the master over a link of its own.
fn link(cluster: &Cluster, node: &str) -> Result<Link> {
    let master: SocketAddr = cluster.address.parse()?;
    let link = Link::to(master)?;
    let path = cluster.folder.join(format!("{node}.toml"));
    let text = fs::read_to_string(&path)?;
    let own = format!("master = \"{}\"", link.address);
    fs::write(&path, text.replace(&format!("master = \"{master}\""), &own))?;
    Ok(link)
}

pub(crate) fn node(cluster: &Cluster, name: &str) -> Result<Value> {
    let listing = cluster.json(&["nodes"])?;
    let row = rows(&listing, "nodes").iter().find(|row| row["id"] == name).cloned();
    row.with_context(|| format!("no {name} in {listing}"))
}

pub(crate) fn wait_reach(cluster: &Cluster, name: &str, wanted: &str) -> Result<()> {
    wait::until(&format!("{name} to be {wanted}"), MINUTE, || {
        Ok(node(cluster, name).is_ok_and(|row| row["reachability"] == wanted).then_some(()))
    })
    .with_context(|| format!("{:?}", node(cluster, name)))
}

pub(crate) fn tasks_of(cluster: &Cluster, job: &str) -> Vec<TaskProcess> {
    cluster.tasks().into_iter().filter(|task| task.job() == job).collect()
}

#[test]
fn five_seconds_each_way_end_no_job_and_keep_no_agent_out() -> Result<()> {
    let mut cluster = Cluster::prepare(&ClusterOptions::quick(&[1.0, 1.0]))?;
    let links = [link(&cluster, "n1")?, link(&cluster, "n2")?];
    cluster.master.start()?;
    cluster.agents[0].start()?;
    wait::until("the master to answer", MINUTE, || Ok(node(&cluster, "n1").ok().map(drop)))?;
    wait_reach(&cluster, "n1", "UP")?;
    let job = submit(&cluster, &endless(&cluster, "slow-link", "replace"))?;
    wait_steps(&cluster, &job, 10)?;
    let before = cluster.tasks();
    for link in &links {
        link.delay(Duration::from_secs(5));
    }
    cluster.agents[1].start()?;
    let clock = Clock::start();
    wait::until("n2 to be registered", 2 * MINUTE, || {
        Ok(node(&cluster, "n2").is_ok_and(|row| row["reachability"] == "UP").then_some(()))
    })
    .with_context(|| format!("n2 says:\n{}", cluster.agents[1].log()))?;
    talk(&format!("registered after {:.1} s", clock.elapsed().as_secs_f64()));
    let mut seen = Vec::new();
    let from = show(&cluster, &job)?["step"].as_u64().context("no step")?;
    wait::until("training to be seen to go on", 2 * MINUTE, || {
        let age = node(&cluster, "n1")?["heartbeat_age_s"].as_f64();
        seen.extend(age);
        let reach = node(&cluster, "n1")?["reachability"].clone();
        ensure!(reach == "UP" || reach == "SUSPECT", "n1 is {reach}");
        let shown = show(&cluster, &job)?;
        ensure!(faults(&shown).is_empty(), "a slow link is no fault: {:?}", faults(&shown));
        Ok((shown["step"].as_u64() >= Some(from + 400)).then_some(()))
    })?;
    let most = seen.iter().copied().fold(0.0, f64::max);
    talk(&format!("5 s each way: the oldest heartbeat was {most:.1} s old"));
    ensure!(cluster.tasks() == before, "tasks changed");
    for link in &links {
        link.delay(Duration::ZERO);
    }
    wait_steps(&cluster, &job, 10)?;
    cluster.run(["cancel", &job, "--now"])?;
    Ok(())
}

#[test]
fn each_job_chooses_what_becomes_of_it_on_a_silent_node() -> Result<()> {
    let mut options = hasty(&[2.0, 2.0]);
    options.agent_toml.push_str("disconnect_stop = \"3s\"\n");
    let mut cluster = Cluster::prepare(&options)?;
    let link = link(&cluster, "n1")?;
    cluster.launch(2)?;
    cluster.run(["node", "cordon", "n2", "--reason", "all begin on n1"])?;
    let mut jobs = Vec::new();
    for rule in ["keep", "stop", "replace"] {
        let job = submit(&cluster, &endless(&cluster, rule, rule))?;
        wait_steps(&cluster, &job, 5)?;
        wait_job(&cluster, &job, "a checkpoint", MINUTE, |shown| {
            !rows(shown, "checkpoints").is_empty()
        })?;
        jobs.push(job);
    }
    let [keep, stop, replace] = &jobs[..] else { anyhow::bail!("three jobs") };
    cluster.run(["node", "undrain", "n2"])?;
    let kept = tasks_of(&cluster, keep);
    ensure!(!kept.is_empty() && cluster.tasks().iter().all(|task| task.task.starts_with("n1/")));
    link.cut(true);
    wait_reach(&cluster, "n1", "DOWN")?;
    wait::until("those of the others to end on n1", MINUTE, || {
        let here =
            |job: &str| tasks_of(&cluster, job).iter().any(|task| task.task.starts_with("n1/"));
        Ok((!here(stop) && !here(replace)).then_some(()))
    })?;
    let shown = wait_job(&cluster, replace, "it to train on n2", MINUTE, |shown| {
        shown["phase"] == "RUNNING" && shown["generation"] != "g1"
    })?;
    ensure!(rows(&shown, "placement")[0]["node"] == "n2", "{}", shown["placement"]);
    ensure!(show(&cluster, stop)?["phase"] == "STOPPING", "it waits for its node");
    let shown = show(&cluster, keep)?;
    ensure!(shown["phase"] == "RUNNING", "{}", shown["phase"]);
    let reason = shown["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("n1 is silent for"), "an old proof is not told: {reason}");
    ensure!(tasks_of(&cluster, keep) == kept, "those of keep were touched");
    link.cut(false);
    wait_reach(&cluster, "n1", "UP")?;
    wait_steps(&cluster, keep, 5)?;
    ensure!(tasks_of(&cluster, keep) == kept, "those of keep were touched on return");
    wait_job(&cluster, stop, "it to begin anew", MINUTE, |shown| {
        shown["phase"] == "RUNNING" && shown["generation"] != "g1"
    })?;
    wait_steps(&cluster, replace, 5)?;
    assert_nothing_twice(&cluster)?;
    cluster.run(["cancel", keep, stop, replace, "--now", "--yes"])?;
    cluster.wait_no_task()
}

#[test]
fn what_a_node_holds_of_a_job_that_nobody_remembers_is_stopped() -> Result<()> {
    let mut cluster = Cluster::prepare(&hasty(&[0.6]))?;
    // The harness writes the table of limits itself.
    let path = cluster.folder.join("master.toml");
    let text = fs::read_to_string(&path)?;
    fs::write(&path, text.replace("[limits]\n", "[limits]\njobs_finished_kept = 1\n"))?;
    let link = link(&cluster, "n1")?;
    cluster.launch(1)?;
    let job = submit(&cluster, &endless(&cluster, "forgotten", "keep"))?;
    wait_steps(&cluster, &job, 5)?;
    link.cut(true);
    cluster.run(["cancel", &job, "--now"])?;
    wait_job(&cluster, &job, "it to leave STOPPING", MINUTE, |s| s["phase"] == "CANCELLED")?;
    ensure!(!tasks_of(&cluster, &job).is_empty(), "its agent cannot know");
    for number in 0..2 {
        let other = submit(&cluster, &endless(&cluster, &format!("other{number}"), "keep"))?;
        cluster.run(["cancel", &other, "--now"])?;
    }
    let forgotten = cluster.optimus(["show", &job])?;
    ensure!(forgotten.status.code() == Some(3), "it is remembered");
    link.cut(false);
    wait::until("unknown to mean stop", MINUTE, || {
        Ok(tasks_of(&cluster, &job).is_empty().then_some(()))
    })?;
    // It takes the whole node.
    let next = submit(&cluster, &endless(&cluster, "next", "keep"))?;
    wait_steps(&cluster, &next, 5)?;
    cluster.run(["cancel", &next, "--now"])?;
    cluster.wait_no_task()
}

/// What a service manager or an operator would do for each agent, so that nobody waits until a
/// connection to a master that is not there any more ends.
fn restart_agents(cluster: &mut Cluster) -> Result<()> {
    for agent in &mut cluster.agents {
        agent.kill()?;
        agent.start()?;
    }
    Ok(())
}

#[test]
fn a_master_that_wakes_up_after_another_took_its_place_starts_nothing() -> Result<()> {
    let mut cluster = Cluster::prepare(&ClusterOptions::quick(&[1.0, 1.0]))?;
    let links = [link(&cluster, "n1")?, link(&cluster, "n2")?];
    cluster.launch(2)?;
    let mut file = endless(&cluster, "one-at-a-time", "replace");
    file.workers = (1, 2);
    let job = submit(&cluster, &file)?;
    cluster.run(["resize", &job, "--servers", "1", "--workers", "1", "--pin"])?;
    wait_shape(&cluster, &job, "1+1")?;
    wait_steps(&cluster, &job, 5)?;
    wait_job(&cluster, &job, "a checkpoint", MINUTE, |s| !rows(s, "checkpoints").is_empty())?;
    let copy = cluster.folder.join("copy.snapshot").display().to_string();
    cluster.run(["snapshot", "save", &copy])?;
    // What the copy does not know: starts of the master, a generation, checkpoints.
    cluster.master.kill()?;
    cluster.master.start()?;
    wait_steps(&cluster, &job, 5)?;
    cluster.run(["resize", &job, "--servers", "1", "--workers", "2", "--pin"])?;
    wait_shape(&cluster, &job, "1+2")?;
    wait_steps(&cluster, &job, 5)?;

    let old = cluster.address.clone();
    let pid = cluster.master.pid().context("no master")?;
    ensure!(signal(pid, Signal::SIGSTOP), "no master");
    let second = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    let text = fs::read_to_string(cluster.folder.join("master.toml"))?;
    let state = cluster.folder.join("master").display().to_string();
    let fresh = cluster.folder.join("second").display().to_string();
    let path = cluster.folder.join("second.toml");
    fs::write(&path, text.replace(&old, &second.to_string()).replace(&state, &fresh))?;
    cluster.run(["snapshot", "restore", &copy, "--state-dir", &fresh])?;
    let mut promoted = cluster.master_with(&path);
    promoted.start()?;
    for link in &links {
        link.move_to(second);
    }
    restart_agents(&mut cluster)?;
    cluster.address = second.to_string();
    let clock = Clock::start();
    wait_shape(&cluster, &job, "1+1").context("under the promoted master")?;
    wait_steps(&cluster, &job, 5)?;
    talk(&format!("promoted: training again after {:.1} s", clock.elapsed().as_secs_f64()));
    assert_nothing_twice(&cluster)?;
    let before = cluster.tasks();

    ensure!(signal(pid, Signal::SIGCONT), "no master");
    for link in &links {
        link.move_to(old.parse()?);
    }
    restart_agents(&mut cluster)?;
    let new = std::mem::replace(&mut cluster.address, old);
    let words = "another master works with this cluster's state";
    wait::until("the old master to say so", MINUTE, || {
        Ok(cluster.run(["status"]).is_ok_and(|status| status.contains(words)).then_some(()))
    })?;
    ensure!(cluster.run(["doctor"])?.contains(words), "doctor does not tell");
    for refused in [&["cancel", &job, "--now"][..], &["unpin", &job]] {
        let output = cluster.optimus(refused)?;
        ensure!(output.status.code() == Some(5), "{refused:?}: {:?}", output.status.code());
    }
    ensure!(cluster.agents[0].log().contains("another master"), "the agent says nothing");
    ensure!(cluster.tasks() == before, "the old master changed what runs");

    for link in &links {
        link.move_to(second);
    }
    cluster.address = new;
    wait_reach(&cluster, "n1", "UP")?;
    wait_reach(&cluster, "n2", "UP")?;
    wait_steps(&cluster, &job, 5)?;
    ensure!(cluster.tasks() == before, "something was started twice");
    cluster.run(["cancel", &job])?;
    wait_job(&cluster, &job, "its end", MINUTE, |shown| shown["phase"] == "CANCELLED")?;
    promoted.end(Signal::SIGTERM)?;
    cluster.wait_no_task()
}

/// Waits until a job that was cancelled has left STOPPING.
pub(crate) fn wait_gone(cluster: &Cluster, job: &str) -> Result<()> {
    wait_phase(cluster, job, "CANCELLED", MINUTE).map(drop)
}
