//! A node is drained, its agent stopped, and the node opened again.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::jobs::{Finish, JobFile};
use harness::process::talk;
use harness::wait::{self, Clock};
use harness::{Cluster, ClusterOptions};
use nix::sys::signal::Signal;

use crate::common::{MINUTE, assert_nothing_twice, faults, show, submit, wait_phase, wait_steps};

fn schedulability(cluster: &Cluster, node: &str) -> Result<String> {
    let listing = cluster.json(&["nodes"])?;
    let row = rows(&listing, "nodes").iter().find(|row| row["id"] == node);
    let row = row.with_context(|| format!("no {node} in {listing}"))?;
    Ok(row["schedulability"].as_str().unwrap_or_default().to_owned())
}

fn tasks_on(cluster: &Cluster, node: &str) -> usize {
    let here = format!("{node}/");
    cluster.tasks().iter().filter(|task| task.task.starts_with(&here)).count()
}

#[test]
fn a_drained_node_is_empty_and_its_job_trains_on_elsewhere() -> Result<()> {
    let mut cluster = Cluster::start(&ClusterOptions::quick(&[1.5, 1.5]))?;
    let mut file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    file.arguments = vec!["--step-ms".to_owned(), "30".to_owned()];
    file.finish = Finish::Epochs(60);
    file.workers = (1, 1);
    file.servers = (1, 1);
    let job = submit(&cluster, &file)?;
    let before = wait_steps(&cluster, &job, 20)?;
    let shown = show(&cluster, &job)?;
    let node = rows(&shown, "placement")[0]["node"].as_str().context("it stands nowhere")?;
    let node = node.to_owned();
    ensure!(tasks_on(&cluster, &node) == 3, "{:?}", cluster.tasks());

    let clock = Clock::start();
    let drain = ["node", "drain", &node, "--reason", "a disk is changed", "--deadline", "2m"];
    cluster.run([&drain[..], &["--wait", "--timeout", "90s"]].concat())?;
    talk(&format!("{node} drained in {:.1} s", clock.elapsed().as_secs_f64()));
    ensure!(schedulability(&cluster, &node)? == "DRAINED", "it is not DRAINED");
    ensure!(tasks_on(&cluster, &node) == 0, "left there: {:?}", cluster.tasks());
    let page = cluster.json(&["node", "show", &node])?;
    ensure!(page["closed"]["reason"] == "a disk is changed", "{page}");
    ensure!(page["drain"]["tasks_left"] == 0, "{page}");
    let doctor = cluster.json(&["doctor"])?;
    let told = rows(&doctor, "findings").iter().any(|one| one["subject"] == node.as_str());
    ensure!(told, "doctor does not name it: {doctor}");

    // The service is stopped: nothing was left there that it could leave behind.
    let number: usize = node.trim_start_matches('n').parse()?;
    cluster.agents[number - 1].end(Signal::SIGTERM)?;
    let step = wait_steps(&cluster, &job, 20)?;
    ensure!(step > before, "it lost steps: {step} after {before}");
    ensure!(faults(&show(&cluster, &job)?).is_empty(), "a drain is no fault");
    assert_nothing_twice(&cluster)?;

    cluster.agents[number - 1].start()?;
    cluster.master.kill()?;
    cluster.master.start()?;
    wait::until("the node to be back", MINUTE, || {
        let Ok(listing) = cluster.json(&["nodes"]) else { return Ok(None) };
        let back = rows(&listing, "nodes")
            .iter()
            .any(|row| row["id"] == node.as_str() && row["reachability"] == "UP");
        Ok(back.then_some(()))
    })?;
    ensure!(schedulability(&cluster, &node)? == "DRAINED", "a restart opened it");
    cluster.run(["node", "undrain", &node])?;
    ensure!(schedulability(&cluster, &node)? == "OPEN", "it is not open");
    wait_phase(&cluster, &job, "COMPLETED", 3 * MINUTE)?;
    wait::until("no task to be left", Duration::from_secs(20), || {
        Ok(cluster.tasks().is_empty().then_some(()))
    })
}
