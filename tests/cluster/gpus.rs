//! GPUs over a stand-in for NVIDIA's library: capacity, one that is lost in mid-job, a driver that
//! hangs, a library that no longer fits, memory errors at the start, and memory that is not free.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::jobs::{Finish, JobFile};
use harness::nvml::Nvml;
use harness::process::talk;
use harness::wait::{self, Clock};
use harness::{Cluster, ClusterOptions};
use serde_json::Value;

use crate::common::{MINUTE, faults, show, submit, task, wait_job, wait_phase, wait_steps};

/// Nodes with GPUs; `before` changes their state before the agents start.
fn cluster(
    nodes: usize,
    count: u32,
    before: impl Fn(&mut [Nvml]) -> Result<()>,
) -> Result<(Cluster, Vec<Nvml>)> {
    let mut options = ClusterOptions::quick(&vec![2.0; nodes]);
    options.master_toml.push_str("[gpus]\nquiet = \"3s\"\nout_share = 1.0\n");
    let mut cluster = Cluster::prepare(&options)?;
    let mut nvml = Vec::new();
    for agent in 0..nodes {
        nvml.push(Nvml::give(&mut cluster, agent, count)?);
    }
    before(&mut nvml)?;
    cluster.launch(nodes)?;
    Ok((cluster, nvml))
}

/// A job of one server and one worker, which wants a GPU.
fn job(cluster: &Cluster, name: &str) -> JobFile {
    let mut file = JobFile::new(name, "linear_probe.py", &cluster.checkpoints());
    file.arguments = vec!["--step-ms".to_owned(), "120".to_owned()];
    file.checkpoint_interval = "5s".to_owned();
    // Longer than any story: each cancels its jobs.
    file.finish = Finish::Epochs(100);
    file.workers = (1, 1);
    file.servers = (1, 1);
    file.worker_cpus = 0.4;
    file.server_cpus = 0.3;
    file.worker_gpus = 1;
    file
}

fn gpus(cluster: &Cluster) -> Result<Vec<Value>> {
    Ok(rows(&cluster.json(&["node", "gpus"])?, "gpus").to_vec())
}

/// Waits until so many GPUs of a node are offered.
fn wait_offered(cluster: &Cluster, node: &str, count: u64) -> Result<()> {
    let what = format!("{node} to offer {count} GPUs");
    wait::until(&what, MINUTE, || {
        let nodes = cluster.json(&["nodes"])?;
        let found = rows(&nodes, "nodes").iter().find(|row| row["id"] == node);
        Ok(found.is_some_and(|row| row["capacity"]["gpus"] == count).then_some(()))
    })
    .with_context(|| format!("{:?}", gpus(cluster)))
}

fn wait_health(cluster: &Cluster, uuid: &str, health: &str) -> Result<Value> {
    wait::until(&format!("{uuid} to be {health}"), MINUTE, || {
        let gpus = gpus(cluster)?;
        Ok(gpus.into_iter().find(|gpu| gpu["uuid"] == uuid && gpu["health"] == health))
    })
    .with_context(|| format!("{:?}", gpus(cluster)))
}

/// The GPU that a worker was given, from its own environment.
fn given(cluster: &Cluster, job: &str) -> Result<String> {
    let pid = task(cluster, job, "worker0")?.pid;
    let environment = std::fs::read(format!("/proc/{pid}/environ"))?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let value = environment
        .split('\0')
        .find_map(|entry| entry.strip_prefix("CUDA_VISIBLE_DEVICES="))
        .context("it has no CUDA_VISIBLE_DEVICES")?;
    Ok(value.to_owned())
}

#[test]
fn a_gpu_lost_in_mid_job_restarts_the_job_elsewhere() -> Result<()> {
    let (cluster, mut nvml) = cluster(2, 4, |_| Ok(()))?;
    wait_offered(&cluster, "n1", 4)?;
    wait_offered(&cluster, "n2", 4)?;
    let id = submit(&cluster, &job(&cluster, "lost"))?;
    wait_steps(&cluster, &id, 20)?;
    wait_job(&cluster, &id, "a checkpoint", MINUTE, |shown| {
        shown["checkpoints"].as_array().is_some_and(|all| !all.is_empty())
    })?;
    let before = given(&cluster, &id)?;
    let server = task(&cluster, &id, "server0")?;
    let environment = std::fs::read_to_string(format!("/proc/{}/environ", server.pid))?;
    ensure!(environment.contains("CUDA_VISIBLE_DEVICES=\0"), "a server sees a GPU");
    let (at, index) = nvml
        .iter()
        .enumerate()
        .find_map(|(at, nvml)| Some((at, nvml.index(&before)?)))
        .with_context(|| format!("{before:?} is nobody's GPU"))?;
    let clock = Clock::start();
    nvml[at].add(&format!("lost.{index}"))?;
    let shown = wait_job(&cluster, &id, "training to go on", 2 * MINUTE, |shown| {
        shown["phase"] == "RUNNING"
            && faults(shown).len() == 1
            && !faults(shown)[0]["lost_s"].is_null()
    })?;
    let fault = &faults(&shown)[0];
    let cause = fault["cause"].as_str().unwrap_or_default();
    ensure!(cause.starts_with(&format!("gpu lost {before}")), "{cause}");
    ensure!(!fault["resumed_from"].is_null(), "it began anew");
    let after = given(&cluster, &id)?;
    ensure!(after != before && !after.is_empty(), "it has {after} again");
    talk(&format!(
        "GPU lost: on another one after {:.1} s, cause: {cause}",
        clock.elapsed().as_secs_f64()
    ));
    wait_health(&cluster, &before, "SUSPECT")?;
    let events = cluster.run(["events", id.as_str()])?;
    ensure!(events.contains(&before), "no event of the job names the GPU: {events}");
    nvml[at].remove(&format!("lost.{index}"))?;
    wait_health(&cluster, &before, "OK")?;
    cluster.run(["cancel", id.as_str(), "--now"])?;
    Ok(())
}

#[test]
fn a_driver_that_hangs_and_one_that_does_not_fit_leave_training_alone() -> Result<()> {
    let (cluster, mut nvml) = cluster(1, 4, |_| Ok(()))?;
    wait_offered(&cluster, "n1", 4)?;
    let id = submit(&cluster, &job(&cluster, "steady"))?;
    wait_steps(&cluster, &id, 10)?;
    let uuid = given(&cluster, &id)?;
    nvml[0].add("hang")?;
    wait_offered(&cluster, "n1", 0)?;
    let silent = wait_health(&cluster, &uuid, "SUSPECT")?;
    ensure!(silent["utilisation"].is_null(), "an old number is shown: {silent}");
    ensure!(silent["trouble"].as_str().is_some_and(|words| words.contains("NVML")), "{silent}");
    wait_steps(&cluster, &id, 10)?;
    nvml[0].remove("hang")?;
    wait_offered(&cluster, "n1", 3)?;
    // The driver's package is upgraded: the library goes on, new processes fail.
    nvml[0].add("init 18")?;
    let clock = Clock::start();
    wait_offered(&cluster, "n1", 0)?;
    talk(&format!("seen by a new process after {:.1} s", clock.elapsed().as_secs_f64()));
    let gpu = gpus(&cluster)?.into_iter().find(|gpu| gpu["uuid"] == uuid.as_str());
    let words = gpu.context("it is listed")?["trouble"].as_str().unwrap_or_default().to_owned();
    ensure!(words.contains("reboot") && words.contains("reload"), "{words}");
    let other = submit(&cluster, &job(&cluster, "waits"))?;
    wait_job(&cluster, &other, "a decision", MINUTE, |shown| {
        let decided = shown["reason"].as_str().is_some_and(|why| !why.contains("not evaluated"));
        shown["phase"] == "QUEUED" && decided
    })?;
    wait_steps(&cluster, &id, 10)?;
    ensure!(show(&cluster, &other)?["phase"] == "QUEUED", "it got a GPU that it cannot use");
    ensure!(faults(&show(&cluster, &id)?).is_empty(), "training was touched");
    nvml[0].remove("init 18")?;
    wait_phase(&cluster, &other, "RUNNING", 2 * MINUTE)?;
    cluster.run(["cancel", id.as_str(), other.as_str(), "--now", "--yes"])?;
    Ok(())
}

#[test]
fn memory_errors_at_the_start_keep_a_gpu_out_and_xids_are_told_apart() -> Result<()> {
    let (cluster, mut nvml) = cluster(1, 4, |nvml| nvml[0].add("ecc.0 1"))?;
    let uuid = nvml[0].uuid(0);
    let bad = wait_health(&cluster, &uuid, "BAD")?;
    ensure!(bad["reason"].as_str().is_some_and(|words| words.contains("memory error")), "{bad}");
    wait_offered(&cluster, "n1", 3)?;
    wait::until("events to be watched for", MINUTE, || {
        Ok(cluster.agents[0].log().contains("watching for Xid events").then_some(()))
    })?;
    let (user, once) = (nvml[0].uuid(1), nvml[0].uuid(2));
    nvml[0].add("xid 1 1 31")?;
    nvml[0].add("xid 2 2 94")?;
    wait_health(&cluster, &once, "PROBING")?;
    wait_health(&cluster, &once, "OK")?;
    let listed = gpus(&cluster)?;
    let find = |uuid: &str| listed.iter().find(|gpu| gpu["uuid"] == uuid);
    let told = find(&user).context("it is listed")?;
    ensure!(told["health"] == "OK" && told["history"].to_string().contains("Xid 31"), "{told}");
    let back = find(&once).context("it is listed")?;
    ensure!(back["history"].to_string().contains("Xid 94"), "{back}");
    cluster.run(["node", "gpus", "n1", "--retire", user.as_str(), "--reason", "a test"])?;
    wait_health(&cluster, &user, "RETIRED")?;
    wait_offered(&cluster, "n1", 2)?;
    cluster.run(["node", "gpus", "n1", "--return", user.as_str()])?;
    wait_health(&cluster, &user, "OK")?;
    Ok(())
}

/// A process of nobody's, which ends with the test.
struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

#[test]
fn memory_of_a_process_that_is_no_tasks_is_not_free() -> Result<()> {
    let (cluster, mut nvml) = cluster(1, 1, |_| Ok(()))?;
    wait_offered(&cluster, "n1", 1)?;
    let stranger = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn()?;
    let stranger = Stranger(stranger);
    let pid = stranger.0.id();
    nvml[0].add(&format!("process.0 {pid}"))?;
    wait_offered(&cluster, "n1", 0)?;
    let gpu = gpus(&cluster)?.into_iter().next().context("no GPU is listed")?;
    ensure!(gpu["reason"].as_str().is_some_and(|words| words.contains(&pid.to_string())), "{gpu}");
    let id = submit(&cluster, &job(&cluster, "waits"))?;
    wait_phase(&cluster, &id, "QUEUED", Duration::from_secs(20))?;
    // Its end is the end of its memory, whatever the list still says.
    drop(stranger);
    wait_offered(&cluster, "n1", 1)?;
    wait_phase(&cluster, &id, "RUNNING", 2 * MINUTE)?;
    cluster.run(["cancel", id.as_str(), "--now"])?;
    Ok(())
}

#[test]
fn a_split_gpu_offers_its_instances_as_they_are_now() -> Result<()> {
    let (cluster, mut nvml) = cluster(1, 1, |nvml| nvml[0].add("mig.0 7"))?;
    wait_offered(&cluster, "n1", 7)?;
    for (now, before) in [(3, 7), (5, 3)] {
        nvml[0].add(&format!("mig.0 {now}"))?;
        nvml[0].remove(&format!("mig.0 {before}"))?;
        wait_offered(&cluster, "n1", now)?;
    }
    ensure!(gpus(&cluster)?.iter().all(|gpu| gpu["health"] == "OK"), "one is held against");
    Ok(())
}
