//! Jobs with the longest programs that are allowed, more of them on one node than a message holds:
//! no agent is lost over them, and a cancel ends them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::{Cluster, ClusterOptions, wait};
use serde_json::Value;

use crate::common::MINUTE;

/// Together over 4 MiB, the longest message.
const JOBS: usize = 66;
/// As long as is allowed: of the command, and of the environment.
const BYTES_MAX: usize = 32 * 1024;

/// A job that sleeps, with a command and an environment as long as they may be.
fn text(cluster: &Cluster) -> String {
    let sleep = ["/bin/sh", "-c", "exec sleep 600"];
    let used: usize = sleep.iter().map(|word| word.len()).sum();
    let padding = "x".repeat(BYTES_MAX - used);
    let mut command: Vec<&str> = sleep.to_vec();
    command.push(&padding);
    let task = |role: &str| {
        format!("[{role}]\ncpus = 0.01\nmemory = \"8MiB\"\ncount = {{ min = 1, max = 1 }}\n")
    };
    format!(
        "name = \"large\"\ncommand = {}\nworking_directory = \"/tmp\"\nframework = \"mxnet\"\n\
         mode = \"sync\"\nepochs = 1\nepochs_max = 1\ncheckpoint = \"{}\"\n\
         checkpoint_interval = \"60s\"\n[batch]\nglobal = 1\n{}{}[environment]\nV = \"{}\"\n",
        Value::from(command),
        cluster.checkpoints(),
        task("worker"),
        task("server"),
        "y".repeat(BYTES_MAX - 1),
    )
}

fn up(cluster: &Cluster) -> Result<usize> {
    let nodes = cluster.json(&["nodes"])?;
    Ok(rows(&nodes, "nodes").iter().filter(|node| node["reachability"] == "UP").count())
}

#[test]
fn the_longest_programs_neither_part_an_agent_from_its_master_nor_outlive_a_cancel() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[4.0]))?;
    let path = cluster.folder.join("large.toml");
    fs::write(&path, text(&cluster))?;
    let path = path.display().to_string();
    let mut jobs: Vec<String> = Vec::new();
    for _ in 0..JOBS {
        let answer = cluster.json(&["submit", &path])?;
        jobs.push(answer["id"].as_str().context("no id")?.to_owned());
    }
    // A PS scheduler, a server and a worker each.
    wait::until("all tasks to run", 3 * MINUTE, || {
        let running = cluster.tasks().len();
        Ok((running >= 3 * JOBS).then_some(()))
    })?;
    ensure!(up(&cluster)? == 1, "the node is not UP");
    let told = cluster.json(&["show", &jobs[0]])?;
    ensure!(told["id"] == jobs[0].as_str(), "a job of this size cannot be shown: {told}");
    for job in &jobs {
        cluster.run(["cancel", job, "--now"])?;
    }
    cluster.wait_no_task()?;
    wait::until("all jobs to be CANCELLED", MINUTE, || {
        let shown = cluster.json(&["ps", "--all"])?;
        let done = rows(&shown, "jobs").iter().filter(|job| job["phase"] == "CANCELLED").count();
        Ok((done == JOBS).then_some(()))
    })?;
    ensure!(up(&cluster)? == 1, "the node is not UP");
    let log = cluster.master.log();
    for odd in ["closed an agent's session", "an agent disconnected", "is not sent"] {
        ensure!(!log.contains(odd), "the master says {odd:?}");
    }
    Ok(())
}
