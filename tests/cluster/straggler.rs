//! A node on which whatever runs is stopped for 60 % of the time: its worker is named, replaced
//! once, and the node flagged. Slowness of all names nobody; a lone worker stays where it is.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::{NodeOptions, rows};
use harness::jobs::{Finish, JobFile};
use harness::process::{self, talk, tasks_below};
use harness::wait::{self, Clock};
use harness::{Cluster, ClusterOptions};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{MINUTE, show, submit, wait_job, wait_steps};

/// Of each period, the stopped part and the other one: two fifths of the speed are left.
const STOPPED: Duration = Duration::from_millis(150);
const RUNNING: Duration = Duration::from_millis(100);
/// Periods after which it is looked anew who runs on the slow nodes.
const PERIODS: u32 = 4;
const WINDOW_S: u64 = 2;

/// Nodes whose workers are stopped and continued, until dropped.
struct Slow {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slow {
    fn begin(cluster: &Cluster, nodes: &[&str]) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (told, folder) = (Arc::clone(&ends), cluster.folder.clone());
        let nodes: Vec<String> = nodes.iter().map(|node| format!("{node}/")).collect();
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let pids = workers_on(&folder, &nodes);
                for _ in 0..PERIODS {
                    for (signal, time) in [(Signal::SIGSTOP, STOPPED), (Signal::SIGCONT, RUNNING)] {
                        for pid in &pids {
                            process::signal(*pid, signal);
                        }
                        wait::pause(time);
                    }
                }
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // It leaves every process continued.
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn workers_on(folder: &std::path::Path, nodes: &[String]) -> Vec<i32> {
    tasks_below(folder)
        .into_iter()
        .filter(|task| task.role().starts_with("worker"))
        .filter(|task| nodes.iter().any(|node| task.task.starts_with(node)))
        .map(|task| task.pid)
        .collect()
}

/// A cluster whose nodes hold one worker each, with short windows.
fn cluster(nodes: u32) -> Result<Cluster> {
    let mut options = ClusterOptions::quick(&[]);
    options.nodes = (1..=nodes)
        .map(|node| NodeOptions { name: format!("n{node}"), cpus: 1.3, ..NodeOptions::default() })
        .collect();
    let stragglers = format!("[stragglers]\nwindow = \"{WINDOW_S}s\"\n");
    options.master_toml.push_str(&stragglers);
    let cluster = Cluster::start(&options)?;
    let script = harness::binaries::checkout().join("tests/cluster/scripts/paced.py");
    fs::copy(script, cluster.environment.scripts.join("paced.py"))?;
    Ok(cluster)
}

fn team(cluster: &Cluster, name: &str, mode: &'static str, workers: u32) -> JobFile {
    let mut file = JobFile::new(name, "paced.py", &cluster.checkpoints());
    file.mode = mode;
    file.server_cpus = 0.2;
    file.workers = (workers, workers);
    file.servers = (1, 1);
    file.checkpoint_interval = "1h".to_owned();
    file.finish = Finish::Epochs(100_000);
    file.epochs_max = 100_000;
    file
}

fn events(cluster: &Cluster, kind: &str) -> Result<Vec<String>> {
    let listing = cluster.json(&["events"])?;
    let all = rows(&listing, "events").iter().filter(|event| event["kind"] == kind);
    Ok(all.filter_map(|event| event["text"].as_str()).map(str::to_owned).collect())
}

/// The node of each worker, by its number.
fn nodes_of(shown: &Value) -> Vec<String> {
    let tasks = rows(shown, "tasks").iter();
    let mut workers: Vec<(String, String)> = tasks
        .filter_map(|task| {
            let name = task["task"].as_str()?.strip_prefix("worker")?.to_owned();
            Some((name, task["node"].as_str()?.to_owned()))
        })
        .collect();
    workers.sort();
    workers.into_iter().map(|(_, node)| node).collect()
}

/// Steps a second of a job once it is measured in its present generation.
fn speed(cluster: &Cluster, job: &str, limit: Duration, least: f64) -> Result<f64> {
    let what = format!("{job} to make {least:.2} steps/s");
    let shown = wait_job(cluster, job, &what, limit, |shown| {
        shown["phase"] == "RUNNING" && shown["steps_per_s"].as_f64().is_some_and(|v| v >= least)
    })?;
    shown["steps_per_s"].as_f64().context("no speed")
}

/// Slows the node of one worker and waits until it is replaced, the job as fast as it was `before`
/// (steps/s), and the node flagged.
fn is_replaced(cluster: &Cluster, job: &str, worker: usize, before: f64) -> Result<()> {
    let shown = show(cluster, job)?;
    let nodes = nodes_of(&shown);
    let slow = nodes[worker].clone();
    let rescales = shown["rescales"].as_u64();
    let told = events(cluster, "straggler")?.len();
    let clock = Clock::start();
    let slowed = Slow::begin(cluster, &[&slow]);
    let named = wait::until("the straggler to be named", MINUTE, || {
        Ok(events(cluster, "straggler")?.get(told).cloned())
    })?;
    let named_s = clock.elapsed().as_secs_f64();
    ensure!(named.starts_with(&format!("worker{worker} on {slow} is slow")), "{named}");
    talk(&format!("named after {named_s:.1} s, in windows of {WINDOW_S} s: {named}"));
    if shown["spec"]["mode"] == "sync" {
        ensure!(
            named.contains("gradients were missing in"),
            "the sockets are not looked at: {named}"
        );
    }
    let moved = wait_job(cluster, job, "the worker to be replaced", 2 * MINUTE, |shown| {
        shown["phase"] == "RUNNING" && shown["rescales"].as_u64() > rescales
    })?;
    let replaced_s = clock.elapsed().as_secs_f64();
    let clock = Clock::start();
    let after = speed(cluster, job, MINUTE, 0.9 * before)?;
    talk(&format!(
        "replaced after {replaced_s:.1} s; {before:.2} steps/s before, {after:.2} again {:.1} s later",
        clock.elapsed().as_secs_f64()
    ));
    let stay = nodes.iter().enumerate().filter(|(at, _)| *at != worker);
    let now = nodes_of(&moved);
    ensure!(stay.clone().all(|(_, node)| now.contains(node)), "others moved too: {now:?}");
    ensure!(!now.contains(&slow), "it stayed: {now:?}");
    let flagged = wait::until("the node to be flagged", MINUTE, || {
        Ok(events(cluster, "slow")?.into_iter().find(|text| text.contains("is flagged slow")))
    })?;
    ensure!(flagged.starts_with(&slow), "{flagged}");
    let listing = cluster.json(&["nodes"])?;
    let row = rows(&listing, "nodes").iter().find(|node| node["id"] == slow.as_str());
    let reason = row.and_then(|row| row["reason"].as_str()).unwrap_or_default();
    ensure!(reason.starts_with("slow: "), "the listing does not say it: {reason:?}");
    drop(slowed);
    wait_steps(cluster, job, 30)?;
    let once = show(cluster, job)?["rescales"].as_u64().zip(rescales);
    ensure!(once.is_some_and(|(now, before)| now == before + 1), "replaced {once:?}");
    Ok(())
}

#[test]
fn one_of_four_synchronous_workers_is_replaced_and_never_all() -> Result<()> {
    let cluster = cluster(5)?;
    let job = submit(&cluster, &team(&cluster, "team", "sync", 4))?;
    let before = speed(&cluster, &job, 2 * MINUTE, 0.1)?;
    let all = Slow::begin(&cluster, &["n1", "n2", "n3", "n4", "n5"]);
    // Four windows and more, of all at two fifths of some six steps a second.
    wait_steps(&cluster, &job, 24)?;
    drop(all);
    ensure!(events(&cluster, "straggler")?.is_empty(), "{:?}", events(&cluster, "straggler")?);
    is_replaced(&cluster, &job, 2, before)?;
    cluster.run(["cancel", &job, "--now"])?;
    cluster.wait_no_task()
}

#[test]
fn one_of_eight_asynchronous_workers_is_replaced_and_a_lone_one_is_not() -> Result<()> {
    let cluster = cluster(10)?;
    let lone = submit(&cluster, &team(&cluster, "lone", "async", 1))?;
    let job = submit(&cluster, &team(&cluster, "team", "async", 8))?;
    speed(&cluster, &lone, 2 * MINUTE, 0.1)?;
    let before = speed(&cluster, &job, 2 * MINUTE, 0.1)?;
    is_replaced(&cluster, &job, 5, before)?;
    let node = nodes_of(&show(&cluster, &lone)?).remove(0);
    let slowed = Slow::begin(&cluster, &[&node]);
    wait_job(&cluster, &lone, "the lone worker to be flagged", MINUTE, |shown| {
        shown["reason"].as_str().is_some_and(|words| words.contains("a lone worker is not moved"))
    })?;
    drop(slowed);
    wait_steps(&cluster, &lone, 10)?;
    let shown = show(&cluster, &lone)?;
    ensure!(shown["rescales"] == 0, "a lone worker was moved: {}", shown["rescales"]);
    for job in [&lone, &job] {
        cluster.run(["cancel", job, "--now"])?;
    }
    cluster.wait_no_task()
}
