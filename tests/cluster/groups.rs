//! Where processes lie among the machine's control groups: each task in one of its own, nothing of
//! the agent's in one of them, and none in the agent's, whoever started it and however often the
//! agent is started anew. Where no v2 tree is mounted, or without root, there are no groups.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use harness::jobs::{Finish, JobFile};
use harness::process::{self, TaskProcess, fork_servers_below, talk};
use harness::setup::is_root;
use harness::{Cluster, ClusterOptions, wait};
use nix::sys::signal::Signal;

use crate::common::{MINUTE, faults, show, submit, task, wait_job, wait_steps};
use crate::outputs::talker;

/// The v2 group of a process; none where it has ended.
fn group_of(pid: i32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

fn has_groups() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found = mounts.lines().any(|line| line.split(' ').nth(2) == Some("cgroup2"));
    if !found || !is_root() {
        talk("skipped: control groups need a v2 tree and root");
    }
    found && is_root()
}

/// What a process may lie in: `…/tasks/j1-g2/worker0` for that task.
fn is_in_its_own(task: &TaskProcess) -> bool {
    let own = format!("/tasks/{}-g{}/{}", task.job(), task.generation(), task.role());
    group_of(task.pid).is_some_and(|found| found.ends_with(&own))
}

fn score(pid: i32) -> Result<i32> {
    Ok(fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?.trim().parse()?)
}

/// A job that trains for minutes.
fn long(cluster: &Cluster) -> JobFile {
    let mut file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    file.arguments = ["--step-ms", "30"].map(str::to_owned).to_vec();
    file.checkpoint_interval = "5s".to_owned();
    file.finish = Finish::Epochs(4000);
    file.epochs_max = 5000;
    file.workers = (2, 2);
    file.servers = (1, 1);
    file
}

#[test]
fn every_process_lies_in_its_own_group_through_ten_restarts_of_the_agent() -> Result<()> {
    if !has_groups() {
        return Ok(());
    }
    let mut cluster = Cluster::start(&ClusterOptions::quick(&[4.0]))?;
    // As the service manager does for the agent's unit; where this process has not the right, the
    // other way round shows as well that tasks do not inherit it.
    let agent = cluster.agents[0].pid().context("the agent runs")?;
    let path = format!("/proc/{agent}/oom_score_adj");
    let own = if fs::write(&path, "-500").is_ok() { -500 } else { 500 };
    fs::write(&path, own.to_string())?;
    let job = submit(&cluster, &long(&cluster))?;
    // The first life is a profiling run.
    let mut phases = Vec::new();
    wait::until("tasks in groups in each phase", 3 * MINUTE, || {
        let phase = show(&cluster, &job)?["phase"].as_str().unwrap_or_default().to_owned();
        let tasks = cluster.tasks();
        if 4 <= tasks.len() && tasks.iter().all(is_in_its_own) && !phases.contains(&phase) {
            phases.push(phase);
        }
        Ok(phases.iter().any(|phase| phase == "RUNNING").then_some(()))
    })?;
    talk(&format!("seen in groups of their own while {phases:?}"));
    wait_steps(&cluster, &job, 5)?;
    let tasks = cluster.tasks();
    for task in &tasks {
        ensure!(is_in_its_own(task), "{} lies in {:?}", task.task, group_of(task.pid));
        ensure!(score(task.pid)? == 0, "{} is spared before others", task.task);
    }
    for server in fork_servers_below(&cluster.folder) {
        let found = group_of(server.pid).unwrap_or_default();
        ensure!(found.contains("/servers/"), "{} lies in {found}", server.name);
        ensure!(score(server.pid)? == 0, "{} is spared before others", server.name);
    }
    ensure!(score(agent)? == own);
    let groups: Vec<_> = tasks.iter().map(|task| group_of(task.pid)).collect();
    for restart in 0..10 {
        cluster.agents[0].end(if restart % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM })?;
        cluster.agents[0].start()?;
        let agent = cluster.agents[0].pid().context("the agent runs")?;
        wait::until("the tasks to be taken back", MINUTE, || {
            let back = cluster.agents[0].log().matches("taken back").count();
            Ok(((restart + 1) * tasks.len() <= back).then_some(()))
        })?;
        let now: Vec<_> = tasks.iter().map(|task| group_of(task.pid)).collect();
        ensure!(now == groups, "after restart {restart}: {now:?}");
        ensure!(!groups.contains(&group_of(agent)), "the agent lies in a task's group");
    }
    ensure!(cluster.tasks() == tasks, "tasks were started anew");
    wait_steps(&cluster, &job, 10)?;
    wait_job(&cluster, &job, "a checkpoint", MINUTE, |shown| {
        shown["checkpoints"].as_array().is_some_and(|all| !all.is_empty())
    })?;
    ensure!(faults(&show(&cluster, &job)?).is_empty(), "a restart of the agent is no fault");
    cluster.run(["cancel", &job, "--now", "--yes"])?;
    cluster.wait_no_task()?;
    let of: Vec<String> = groups.into_iter().flatten().collect();
    wait::until("the groups to be gone", MINUTE, || {
        Ok(of.iter().all(|group| !mounted(group).exists()).then_some(()))
    })
}

fn mounted(group: &str) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = mounts.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        (words.get(2) == Some(&"cgroup2")).then(|| PathBuf::from(words[1]))
    });
    mount.unwrap_or_default().join(group.trim_start_matches('/'))
}

#[test]
fn a_task_that_another_one_kills_is_told_with_who_it_may_have_been() -> Result<()> {
    if !has_groups() {
        return Ok(());
    }
    let cluster = Cluster::start(&ClusterOptions::quick(&[4.0]))?;
    let job = submit(&cluster, &long(&cluster))?;
    wait_steps(&cluster, &job, 5)?;
    let first = task(&cluster, &job, "worker1")?;
    // As systemd-oomd does it: its mark on the group, and its own signal.
    let group = mounted(&group_of(first.pid).context("it has a group")?);
    let marked = std::process::Command::new("/usr/bin/python3")
        .args(["-c", "import os, sys; os.setxattr(sys.argv[1], 'user.oomd_kill', b'1')"])
        .arg(&group)
        .status()?;
    ensure!(marked.success(), "this kernel keeps no attributes of groups");
    process::signal(first.pid, Signal::SIGKILL);
    let cause = |count: usize| -> Result<String> {
        let shown = wait_job(&cluster, &job, "the fault to be recorded", MINUTE, |shown| {
            count <= faults(shown).len()
        })?;
        let mut all = faults(&shown).iter().filter_map(|fault| fault["cause"].as_str());
        Ok(all.next_back().unwrap_or_default().to_owned())
    };
    let told = cause(1)?;
    ensure!(told.contains("killed by systemd-oomd"), "{told}");
    wait_steps(&cluster, &job, 5)?;
    process::signal(task(&cluster, &job, "worker1")?.pid, Signal::SIGKILL);
    let told = cause(2)?;
    ensure!(told.contains("SIGKILL") && told.contains("nobody here sent"), "{told}");
    Ok(())
}

/// A group of cgroup v1 with a limit, which no agent knows of; gone with this value.
struct Bound(PathBuf);

impl Bound {
    /// None where this machine has no memory controller on v1, or has not for this user.
    fn make(bytes: u64) -> Option<Self> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/memory/optimus-{}", std::process::id()));
        let made = is_root() && fs::create_dir(&path).is_ok();
        let bound = made.then(|| Self(path))?;
        let limited = fs::write(bound.0.join("memory.limit_in_bytes"), bytes.to_string()).is_ok();
        limited.then_some(bound)
    }

    fn take(&self, pid: i32) -> Result<()> {
        Ok(fs::write(self.0.join("cgroup.procs"), pid.to_string())?)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _busy = wait::until("the group to be empty", MINUTE, || {
            Ok(fs::remove_dir(&self.0).is_ok().then_some(()))
        });
    }
}

#[test]
fn a_kill_by_the_kernel_for_want_of_memory_is_told_also_where_no_group_counts_it() -> Result<()> {
    let Some(bound) = Bound::make(64 << 20) else {
        talk("skipped: this needs root and the memory controller on cgroup v1");
        return Ok(());
    };
    let cluster = Cluster::start(&ClusterOptions::quick(&[4.0]))?;
    let go = cluster.folder.join("go");
    let file = talker(&cluster, "hog", &format!("hog {}", go.display()))?;
    let job = submit(&cluster, &file)?;
    wait_steps(&cluster, &job, 5)?;
    bound.take(task(&cluster, &job, "worker0")?.pid)?;
    fs::write(&go, "")?;
    let shown = wait_job(&cluster, &job, "the fault to be recorded", MINUTE, |shown| {
        !faults(shown).is_empty()
    })?;
    fs::remove_file(&go)?;
    let told = faults(&shown)[0]["cause"].as_str().unwrap_or_default().to_owned();
    talk(&told);
    ensure!(told.contains("SIGKILL") && told.contains("for want of memory"), "{told}");
    drop(cluster);
    Ok(())
}
