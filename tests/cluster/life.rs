//! A job's plain life.

use anyhow::{Result, ensure};
use harness::cluster::rows;
use harness::jobs::{Finish, JobFile};
use harness::{Cluster, ClusterOptions};

use crate::common::{MINUTE, submit, wait_phase};

#[test]
fn a_submitted_job_trains_and_completes() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0, 2.0]))?;
    let mut file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    file.finish = Finish::Epochs(6);
    file.workers = (1, 2);
    file.servers = (1, 1);
    let job = submit(&cluster, &file)?;
    let done = wait_phase(&cluster, &job, "COMPLETED", 3 * MINUTE)?;
    ensure!(rows(&done, "epochs").len() >= 6, "epochs were lost: {done:#}");
    ensure!(!rows(&done, "checkpoints").is_empty(), "no final checkpoint");
    ensure!(rows(&done, "faults").is_empty(), "a plain life has no fault: {done:#}");
    cluster.wait_no_task()?;
    // The same answer for a script that only waits.
    let waited = cluster.optimus(["wait", &job])?;
    ensure!(waited.status.code() == Some(0), "wait exited with {:?}", waited.status.code());
    Ok(())
}

#[test]
fn a_job_converges_by_its_measured_losses() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0]))?;
    let mut file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    file.finish = Finish::Convergence { threshold: 0.05, patience: 2 };
    file.workers = (1, 1);
    file.servers = (1, 1);
    let job = submit(&cluster, &file)?;
    let done = wait_phase(&cluster, &job, "COMPLETED", 3 * MINUTE)?;
    let losses: Vec<f64> =
        rows(&done, "epochs").iter().filter_map(|epoch| epoch["loss"].as_f64()).collect();
    let scale = losses.iter().copied().fold(0.0, f64::max);
    let small = |pair: &[f64]| (pair[0] - pair[1]) / scale < 0.05;
    let pairs: Vec<bool> = losses.windows(2).map(small).collect();
    ensure!(pairs.len() >= 2, "too few epochs: {losses:?}");
    // Training goes on until the final checkpoint, so an epoch more than needed may be there.
    let first = pairs.windows(2).position(|two| two == [true, true]);
    ensure!(first.is_some(), "it was completed without having converged: {losses:?}");
    cluster.wait_no_task()
}

#[test]
fn a_cancelled_job_leaves_nothing() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0]))?;
    let mut file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    file.finish = Finish::Epochs(1000);
    file.epochs_max = 1000;
    file.workers = (1, 1);
    let job = submit(&cluster, &file)?;
    wait_phase(&cluster, &job, "RUNNING", 2 * MINUTE)?;
    cluster.run(["cancel", &job, "--reason", "not needed"])?;
    crate::common::wait_job(&cluster, &job, "the end", MINUTE, |s| s["phase"] == "CANCELLED")?;
    cluster.wait_no_task()?;
    let waited = cluster.optimus(["wait", &job])?;
    ensure!(waited.status.code() == Some(1), "wait exited with {:?}", waited.status.code());
    Ok(())
}
