//! Certificates are renewed under a training job, taken back, and handed over at the first start.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::{Daemon, rows};
use harness::jobs::{Finish, JobFile};
use harness::process::{self, talk};
use harness::wait::{self, Clock};
use harness::{Cluster, ClusterOptions};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{MINUTE, show, submit, wait_job, wait_steps};

const SOON: Duration = Duration::from_secs(30);

fn pki(cluster: &Cluster) -> PathBuf {
    cluster.folder.join("pki")
}

/// A cluster of one node, with an admin to work on it.
fn start(cpus: f64) -> Result<Cluster> {
    Cluster::start(&ClusterOptions::quick(&[cpus]))
}

/// The row of `cert status` of a certificate in use.
fn in_use(cluster: &Cluster, identity: &str) -> Result<Value> {
    let listed = cluster.json(&["cert", "status"])?;
    let all = rows(&listed, "certificates").iter();
    let row = all.filter(|row| row["where"] == "connected").find(|row| row["identity"] == identity);
    row.cloned().with_context(|| format!("{identity} is not in use: {listed:#}"))
}

fn serial(cluster: &Cluster, identity: &str) -> Result<String> {
    Ok(in_use(cluster, identity)?["serial"].as_str().context("no serial")?.to_owned())
}

/// Renews over the master; returns the new serial.
fn rotate(cluster: &Cluster, words: &[&str]) -> Result<String> {
    let folder = pki(cluster).display().to_string();
    let all = [&["cert", "rotate"], words, &["--dir", &folder]].concat();
    let done = cluster.json(&all)?;
    let serial = rows(&done, "certificates")[0]["serial"].as_str();
    Ok(serial.with_context(|| format!("not renewed: {done}"))?.to_owned())
}

fn wait_log(daemon: &Daemon, words: &str) -> Result<()> {
    wait::until(&format!("{words:?} in a log"), SOON, || {
        Ok(daemon.log().contains(words).then_some(()))
    })
    .with_context(|| format!("it has:\n{}", harness::cluster::tail(&daemon.log(), 15)))
}

fn hangup(daemon: &Daemon) -> Result<()> {
    let pid = daemon.pid().context("it does not run")?;
    ensure!(process::signal(pid, Signal::SIGHUP), "the daemon is gone");
    Ok(())
}

fn connections(daemon: &Daemon) -> usize {
    daemon.log().lines().filter(|line| line.contains(" connected cluster")).count()
}

fn training(cluster: &Cluster) -> Result<String> {
    let mut file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    file.arguments = vec!["--step-ms".to_owned(), "30".to_owned()];
    file.finish = Finish::Epochs(1000);
    file.epochs_max = 1000;
    (file.workers, file.servers) = ((1, 1), (1, 1));
    let job = submit(cluster, &file)?;
    wait_steps(cluster, &job, 5)?;
    Ok(job)
}

#[test]
fn certificates_are_renewed_and_taken_back_while_a_job_trains() -> Result<()> {
    let mut cluster = start(2.0)?;
    let job = training(&cluster)?;
    let generation = show(&cluster, &job)?["generation"].clone();
    let before = (serial(&cluster, "master/master")?, serial(&cluster, "agent/n1")?);
    let clock = Clock::start();
    let agent = rotate(&cluster, &["agent", "n1"])?;
    let master = rotate(&cluster, &["master"])?;
    talk(&format!("both were renewed in {:.1} s", clock.elapsed().as_secs_f64()));
    ensure!(master != before.0 && agent != before.1, "the certificates are the old ones");

    // The connection stays, and with it the certificate that was shown; the words tell the new one.
    ensure!(serial(&cluster, "master/master")? == master, "the master shows the old one");
    let row = in_use(&cluster, "agent/n1")?;
    ensure!(row["serial"] == before.1.as_str(), "the agent's connection is another: {row}");
    for daemon in [&cluster.master, &cluster.agents[0]] {
        hangup(daemon)?;
    }
    wait_log(&cluster.agents[0], "uses this certificate from the next connection on")?;
    wait_log(&cluster.master, "reads the certificates anew: SIGHUP")?;
    wait_steps(&cluster, &job, 10)?;
    ensure!(connections(&cluster.agents[0]) == 1, "the agent's connection was lost");

    // Bad files take nothing away, and are told.
    let file = pki(&cluster).join("master.pem");
    let good = fs::read(&file)?;
    fs::write(&file, "damaged")?;
    hangup(&cluster.master)?;
    wait::until("an alert", SOON, || {
        let status = cluster.json(&["status"])?;
        let told = |alert: &Value| alert.as_str().is_some_and(|text| text.contains("master.pem"));
        Ok(rows(&status, "alerts").iter().any(told).then_some(()))
    })?;
    fs::write(&file, good)?;

    // Both start anew: each shows the new certificate, and the job never noticed.
    cluster.agents[0].end(Signal::SIGTERM)?;
    cluster.master.end(Signal::SIGTERM)?;
    cluster.master.start()?;
    cluster.agents[0].start()?;
    wait::until("the agent to be back", MINUTE, || Ok(serial(&cluster, "agent/n1").ok()))?;
    ensure!(serial(&cluster, "agent/n1")? == agent, "the agent shows the old certificate");
    ensure!(serial(&cluster, "master/master")? == master, "the master shows the old certificate");
    wait_steps(&cluster, &job, 10)?;
    taken_back(&mut cluster, &job, &agent)?;
    let last = show(&cluster, &job)?;
    ensure!(last["generation"] == generation, "the job was started anew: {last:#}");
    cluster.run(["cancel", &job, "--now"])?;
    wait_job(&cluster, &job, "the end", MINUTE, |shown| shown["phase"] == "CANCELLED")?;
    cluster.wait_no_task()
}

/// Of an operator and of an agent: both are refused in words, the agent until it has another.
fn taken_back(cluster: &mut Cluster, job: &str, agent: &str) -> Result<()> {
    let folder = pki(cluster).display().to_string();
    let bob = cluster.folder.join("bob").display().to_string();
    cluster.run(["cert", "issue", "operator", "bob", "--dir", &folder, "--out", &bob])?;
    cluster.run(["ps", "--tls-dir", &bob])?;
    cluster.run(["cert", "revoke", "operator", "bob", "--dir", &folder])?;
    let refused = cluster.optimus(["ps", "--tls-dir", &bob])?;
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(4), "exit {:?}: {words}", refused.status.code());
    ensure!(words.contains("operator bob") && words.contains("is revoked since"), "{words}");
    talk(words.trim());

    cluster.run(["cert", "revoke", "--serial", agent, "--dir", &folder])?;
    wait_log(&cluster.agents[0], "certificate of agent n1")?;
    wait_log(&cluster.agents[0], "is revoked since")?;
    // The list outlives the master.
    cluster.master.kill()?;
    cluster.master.start()?;
    let refused = |log: &str| log.matches("is revoked since").count();
    let seen = refused(&cluster.master.log());
    wait::until("another refusal", MINUTE, || {
        Ok((seen < refused(&cluster.master.log())).then_some(()))
    })?;
    // A new one by file is used at the next attempt, without a restart.
    cluster.run(["cert", "issue", "agent", "n1", "--dir", &folder, "--replace"])?;
    wait::until("the agent to be back", MINUTE, || Ok(serial(cluster, "agent/n1").ok()))?;
    ensure!(serial(cluster, "agent/n1")? != agent, "a revoked certificate is in use");
    wait_steps(cluster, job, 5)?;
    Ok(())
}

/// A settings file like that of n1, with some text replaced.
fn settings(cluster: &Cluster, name: &str, replace: &[(&str, &str)]) -> Result<PathBuf> {
    let text = fs::read_to_string(cluster.folder.join("n1.toml"))?;
    let text = replace.iter().fold(text, |text, (old, new)| text.replace(old, new));
    let path = cluster.folder.join(format!("{name}.toml"));
    fs::write(&path, text)?;
    Ok(path)
}

fn agent(cluster: &Cluster, config: &Path) -> Result<Daemon> {
    let mut daemon = cluster.agent_with(config);
    daemon.start()?;
    Ok(daemon)
}

#[test]
fn of_two_agents_with_one_identity_the_second_is_told_of_the_first() -> Result<()> {
    let cluster = start(1.0)?;
    let state = cluster.folder.join("n1").display().to_string();
    let other = cluster.folder.join("twin-state").display().to_string();
    let twin = settings(&cluster, "twin", &[(&state, &other), ("127.0.0.11", "127.0.0.99")])?;
    let twin = agent(&cluster, &twin)?;
    wait_log(&twin, "another agent named n1 is connected (at 127.0.0.11, boot ")?;
    wait_log(&twin, "this one is at 127.0.0.99")?;
    ensure!(connections(&cluster.agents[0]) == 1, "the first one was sent away");
    let nodes = cluster.json(&["nodes"])?;
    ensure!(rows(&nodes, "nodes")[0]["reachability"] == "UP", "{nodes:#}");
    Ok(())
}

#[test]
fn an_agent_enrols_with_a_bundle_and_needs_it_no_more() -> Result<()> {
    let mut cluster = start(1.0)?;
    cluster.agents[0].end(Signal::SIGTERM)?;
    let folder = pki(&cluster).display().to_string();
    let bundle = cluster.folder.join("enrolment");
    let shown = bundle.display().to_string();
    let issue = ["cert", "issue", "agent", "n1", "--dir", &folder, "--bundle", &shown];
    cluster.run([&issue[..], &["--lasts", "1h"]].concat())?;
    let text = fs::read_to_string(cluster.folder.join("n1.toml"))?;
    // A state folder of its own, without any certificates beside it.
    let home = cluster.folder.join("home");
    fs::create_dir(&home)?;
    let state = |folder: &Path| format!("state_dir = \"{}\"", folder.join("n1").display());
    let text = text.replace(&state(&cluster.folder), &state(&home));
    let (before, after) = text.split_once("[tls]").context("no [tls]")?;
    let (_, after) = after.split_once("[capacity]").context("no [capacity]")?;
    let config = cluster.folder.join("n1.toml");
    let tls = format!("[tls]\nenrolment = \"{shown}\"\n");
    fs::write(&config, format!("{before}{tls}[capacity]{after}"))?;
    cluster.agents[0].start()?;
    wait_log(&cluster.agents[0], "enrolled")?;
    wait::until("the agent to be back", MINUTE, || Ok(serial(&cluster, "agent/n1").ok()))?;
    let row = in_use(&cluster, "agent/n1")?;
    ensure!(row["state"] == "ENDS-IN-1-DAY", "an end within the hour is not warned of: {row}");
    let status = cluster.json(&["status"])?.to_string();
    ensure!(status.contains("cert rotate agent n1"), "no alert: {status}");

    // Renewed, and started again without the bundle.
    let renewed = rotate(&cluster, &["agent", "n1"])?;
    fs::remove_file(&bundle)?;
    cluster.agents[0].end(Signal::SIGTERM)?;
    cluster.agents[0].start()?;
    let back = |cluster: &Cluster| serial(cluster, "agent/n1").is_ok_and(|it| it == renewed);
    wait::until("the renewed certificate", MINUTE, || Ok(back(&cluster).then_some(())))?;
    let row = in_use(&cluster, "agent/n1")?;
    ensure!(row["state"] == "OK", "{row}");
    Ok(())
}
