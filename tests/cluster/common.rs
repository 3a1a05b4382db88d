//! What the tests ask of a cluster, in a researcher's words.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::cluster::{rows, tail};
use harness::jobs::JobFile;
use harness::process::TaskProcess;
use harness::{Cluster, wait};
use serde_json::Value;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Writes the job's file and submits it; returns its id.
pub(crate) fn submit(cluster: &Cluster, job: &JobFile) -> Result<String> {
    let path = cluster.folder.join(format!("{}.toml", job.name));
    std::fs::write(&path, job.text(&cluster.environment))?;
    let path = path.display().to_string();
    let answer = cluster.json(&["submit", &path])?;
    let id = answer["id"].as_str().with_context(|| format!("no id in {answer}"))?;
    Ok(id.to_owned())
}

pub(crate) fn show(cluster: &Cluster, job: &str) -> Result<Value> {
    cluster.json(&["show", job])
}

/// Waits until the job is in a phase; stops early where its story ended otherwise.
pub(crate) fn wait_phase(
    cluster: &Cluster,
    job: &str,
    wanted: &str,
    limit: Duration,
) -> Result<Value> {
    wait_job(cluster, job, &format!("{job} to be {wanted}"), limit, |shown| {
        shown["phase"] == wanted
    })
}

/// Waits until `holds` of the job's `show`. A master that is just away is asked again.
pub(crate) fn wait_job(
    cluster: &Cluster,
    job: &str,
    what: &str,
    limit: Duration,
    holds: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let mut last = Value::Null;
    let waited = wait::until(what, limit, || {
        let Ok(shown) = show(cluster, job) else { return Ok(None) };
        last = shown;
        if holds(&last) {
            return Ok(Some(last.clone()));
        }
        if matches!(last["phase"].as_str(), Some("FAILED" | "CANCELLED" | "COMPLETED")) {
            bail!("{job} is {} instead: {}", last["phase"], last["reason"]);
        }
        Ok(None)
    });
    waited.with_context(|| story(cluster, job, &last))
}

/// What to read where a wait was in vain.
fn story(cluster: &Cluster, job: &str, last: &Value) -> String {
    let events = cluster.run(["events", job]).unwrap_or_default();
    let agents: Vec<_> = cluster.agents.iter().map(|agent| tail(&agent.log(), 8)).collect();
    format!(
        "{job} is {} ({}), at step {}, shape {}\nevents:\n{}\nmaster:\n{}\nagents:\n{}",
        last["phase"],
        last["reason"],
        last["step"],
        shape(last),
        tail(&events, 30),
        tail(&cluster.master.log(), 15),
        agents.join("\n")
    )
}

/// Waits until the job runs and has made `steps` further steps.
pub(crate) fn wait_steps(cluster: &Cluster, job: &str, steps: u64) -> Result<u64> {
    let first = wait_phase(cluster, job, "RUNNING", 2 * MINUTE)?["step"].as_u64().unwrap_or(0);
    let shown = wait_job(cluster, job, "further steps", 2 * MINUTE, |shown| {
        shown["phase"] == "RUNNING" && shown["step"].as_u64() >= Some(first + steps)
    })?;
    shown["step"].as_u64().context("no step")
}

/// `2+1` for two servers and one worker.
pub(crate) fn shape(shown: &Value) -> String {
    format!("{}+{}", shown["shape"]["servers"], shown["shape"]["workers"])
}

/// Waits until the job runs in a shape.
pub(crate) fn wait_shape(cluster: &Cluster, job: &str, wanted: &str) -> Result<Value> {
    wait_job(cluster, job, &format!("{job} to run as {wanted}"), 2 * MINUTE, |shown| {
        shown["phase"] == "RUNNING" && shape(shown) == wanted
    })
}

/// The living process of a task, such as `worker0`, of a job.
pub(crate) fn task(cluster: &Cluster, job: &str, role: &str) -> Result<TaskProcess> {
    cluster
        .tasks()
        .into_iter()
        .find(|task| task.job() == job && task.role() == role)
        .with_context(|| format!("{job} has no {role}"))
}

/// No task stands twice, and none of two generations of a job live at once.
pub(crate) fn assert_nothing_twice(cluster: &Cluster) -> Result<()> {
    let mut seen: Vec<TaskProcess> = Vec::new();
    for task in cluster.tasks() {
        for other in &seen {
            ensure!(other.task != task.task || other.pid == task.pid, "{} runs twice", task.task);
            let same_job = other.job() == task.job();
            ensure!(
                !same_job || other.generation() == task.generation(),
                "{} lives beside {}",
                task.task,
                other.task
            );
        }
        seen.push(task);
    }
    Ok(())
}

/// The faults that the master recorded for a job.
pub(crate) fn faults(shown: &Value) -> &[Value] {
    rows(shown, "faults")
}
