//! Jobs and processes that do not go when they are told to, and ports that others took.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::process::{signal, talk};
use harness::setup::is_root;
use harness::wait::Clock;
use harness::{Cluster, ClusterOptions, wait};
use nix::sys::signal::Signal;

use crate::common::{MINUTE, faults, show, submit, task, wait_job, wait_steps};
use crate::links::{endless, hasty, node, wait_gone};

#[test]
fn a_job_that_ignores_its_last_checkpoint_is_cancelled_all_the_same() -> Result<()> {
    let cluster = Cluster::start(&hasty(&[1.0]))?;
    for now in [false, true] {
        let job = submit(&cluster, &endless(&cluster, &format!("deaf-{now}"), "keep"))?;
        wait_steps(&cluster, &job, 5)?;
        // It neither saves nor hears TERM.
        ensure!(signal(task(&cluster, &job, "worker0")?.pid, Signal::SIGSTOP));
        cluster.run(["cancel", &job])?;
        let shown = show(&cluster, &job)?;
        ensure!(shown["phase"] != "CANCELLED", "it had no time for a checkpoint");
        let clock = Clock::start();
        if now {
            cluster.run(["cancel", &job, "--now"])?;
        }
        wait_gone(&cluster, &job)?;
        cluster.wait_no_task()?;
        talk(&format!("deaf, --now {now}: gone after {:.1} s", clock.elapsed().as_secs_f64()));
        let shown = show(&cluster, &job)?;
        let reason = shown["reason"].as_str().unwrap_or_default();
        ensure!(reason.contains("checkpoint"), "{reason}");
    }
    Ok(())
}

/// A control group of version 1 whose processes are frozen: until it is thawed, not even KILL
/// ends them, as with a mount that hangs.
struct Frozen(PathBuf);

impl Frozen {
    /// None where this machine has no such groups.
    fn hold(pid: i32) -> Result<Option<Self>> {
        let root = PathBuf::from("/sys/fs/cgroup/freezer");
        if !is_root() || !root.join("cgroup.procs").exists() {
            return Ok(None);
        }
        let group = Self(root.join(format!("optimus-test-{}", std::process::id())));
        fs::create_dir(&group.0)?;
        fs::write(group.0.join("cgroup.procs"), pid.to_string())?;
        group.set("FROZEN")?;
        Ok(Some(group))
    }

    fn set(&self, state: &str) -> Result<()> {
        fs::write(self.0.join("freezer.state"), state)?;
        wait::until(state, MINUTE, || {
            let now = fs::read_to_string(self.0.join("freezer.state"))?;
            Ok((now.trim() == state).then_some(()))
        })
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _thawed = self.set("THAWED");
        let _gone = wait::until("an empty group", MINUTE, || Ok(fs::remove_dir(&self.0).ok()));
    }
}

#[test]
fn a_process_that_cannot_be_killed_closes_its_node_until_it_is_gone() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0]))?;
    let stuck = submit(&cluster, &endless(&cluster, "stuck", "keep"))?;
    let other = submit(&cluster, &endless(&cluster, "other", "keep"))?;
    wait_steps(&cluster, &stuck, 5)?;
    wait_steps(&cluster, &other, 5)?;
    let pid = task(&cluster, &stuck, "worker0")?.pid;
    let Some(frozen) = Frozen::hold(pid)? else {
        talk("no freezer of version 1 here: nothing can be made unkillable");
        return Ok(());
    };
    cluster.run(["cancel", &stuck, "--now"])?;
    wait::until("the node to be taken out", MINUTE, || {
        Ok((node(&cluster, "n1")?["schedulability"] == "CORDONED").then_some(()))
    })?;
    let words = format!("process {pid} (state D, waits in ");
    let row = node(&cluster, "n1")?;
    talk(&format!("n1: {}", row["reason"]));
    ensure!(row["reason"].as_str().is_some_and(|reason| reason.contains(&words)), "{row}");
    for command in [&["node", "show", "n1"][..], &["why", &stuck], &["doctor"]] {
        let told = cluster.json(command)?.to_string();
        ensure!(told.contains(&words), "{command:?} says {told}");
    }
    ensure!(show(&cluster, &stuck)?["phase"] == "STOPPING", "it is not out yet");
    wait_steps(&cluster, &other, 5)?;
    drop(frozen);
    wait_gone(&cluster, &stuck)?;
    wait::until("the node to open by itself", MINUTE, || {
        Ok((node(&cluster, "n1")?["schedulability"] == "OPEN").then_some(()))
    })?;
    wait_steps(&cluster, &other, 5)?;
    ensure!(faults(&show(&cluster, &other)?).is_empty(), "the other job was touched");
    cluster.run(["cancel", &other, "--now"])?;
    cluster.wait_no_task()
}

#[test]
fn a_root_port_that_another_program_took_costs_one_retry() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[1.0]))?;
    let text = fs::read_to_string(cluster.folder.join("master.toml"))?;
    let range = text.split("root_ports = [").nth(1).and_then(|rest| rest.split(',').next());
    let first: u16 = range.context("no range of root ports")?.trim().parse()?;
    let taken = TcpListener::bind(("127.0.0.11", first))?;
    let job = submit(&cluster, &endless(&cluster, "port", "keep"))?;
    wait_steps(&cluster, &job, 5)?;
    let shown = show(&cluster, &job)?;
    let told = faults(&shown);
    ensure!(told.len() == 1 && told[0]["cause"].to_string().contains("port"), "{told:?}");
    ensure!(shown["generation"] == "g2", "{}", shown["generation"]);
    let own = format!("DMLC_PS_ROOT_PORT={}\0", first + 1);
    for task in cluster.tasks() {
        let environment = fs::read(format!("/proc/{}/environ", task.pid))?;
        let environment = String::from_utf8_lossy(&environment).into_owned();
        ensure!(environment.contains(&own), "{} was told another port", task.task);
    }
    drop(taken);
    cluster.run(["cancel", &job, "--now"])?;
    wait_job(&cluster, &job, "its end", MINUTE, |shown| shown["phase"] == "CANCELLED")?;
    ensure!(rows(&show(&cluster, &job)?, "faults").len() == 1);
    cluster.wait_no_task()
}
