//! Bad input gets a clear answer or is counted and dropped, and nothing else is disturbed.

use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::jobs::{Finish, JobFile};
use harness::{Binaries, Cluster, ClusterOptions, wait};
use serde_json::Value;

use crate::common::{MINUTE, show, submit, wait_phase, wait_steps};

#[test]
fn malformed_reports_are_counted_and_training_goes_on() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0]))?;
    let noisy = cluster.environment.scripts.join("noisy.py");
    fs::copy(harness::binaries::checkout().join("tests/cluster/scripts/noisy.py"), &noisy)?;
    let mut file = JobFile::new("noisy", "noisy.py", &cluster.checkpoints());
    let script = cluster.environment.scripts.join("linear_probe.py");
    file.environment = vec![("NOISY_SCRIPT".to_owned(), script.display().to_string())];
    file.arguments = vec!["--step-ms".to_owned(), "20".to_owned()];
    file.workers = (1, 1);
    file.finish = Finish::Epochs(30);
    let job = submit(&cluster, &file)?;
    wait_steps(&cluster, &job, 20)?;
    wait::until("the agent to count nonsense", MINUTE, || {
        let node = cluster.json(&["node", "show", "n1"])?;
        Ok(node["reports_dropped"].as_u64().filter(|count| *count > 100))
    })?;
    let done = wait_phase(&cluster, &job, "COMPLETED", 3 * MINUTE)?;
    for epoch in done["epochs"].as_array().context("no epochs")? {
        let loss = epoch["loss"].as_f64().context("a loss is a number")?;
        ensure!(loss.is_finite() && loss < 100.0, "nonsense got into the losses: {loss}");
    }
    ensure!(show(&cluster, &job)?["faults"].as_array().is_some_and(Vec::is_empty), "a fault");
    Ok(())
}

#[test]
fn a_wrong_job_file_names_every_fault() -> Result<()> {
    let mut cluster = Cluster::prepare(&ClusterOptions::quick(&[]))?;
    cluster.master.start()?;
    let path = cluster.folder.join("wrong.toml");
    fs::write(
        &path,
        "name = \"\"\ncommand = \"python\"\nframework = \"caffe\"\nmode = \"sync\"\n\
         epochs_max = -1\ncheckpoint = \"s3://bucket\"\ncheckpoint_interval = 600\n\
         colour = \"red\"\n[batch]\nglobal = 0\n[worker]\ncpus = nan\nmemory = \"lots\"\n\
         [server]\ncpus = 1\nmemory = \"1GiB\"\ncount = { min = 3, max = 2 }\n",
    )?;
    let output = cluster.optimus(["submit".as_ref(), path.as_os_str()])?;
    ensure!(output.status.code() == Some(2), "exit {:?}", output.status.code());
    let text = String::from_utf8(output.stderr)?;
    for field in [
        "name",
        "command",
        "framework",
        "epochs_max",
        "checkpoint",
        "checkpoint_interval",
        "colour",
        "batch.global",
        "worker.cpus",
        "worker.memory",
        "server.count",
        "convergence",
    ] {
        ensure!(text.contains(field), "{field} is not named in:\n{text}");
    }
    Ok(())
}

#[test]
fn wrong_settings_are_refused_by_both_daemons() -> Result<()> {
    let binaries = Binaries::build()?;
    let folder = tempfile::tempdir()?;
    for (program, text, wanted) in [
        (&binaries.master, "listen = \"nowhere\"\n", "listen"),
        (&binaries.master, "colour = \"red\"\n", "colour"),
        (&binaries.master, "[rounds]\ninterval = 600\n", "rounds.interval"),
        (&binaries.agent, "task_user = \"root\"\n", "task_user"),
        (&binaries.agent, "[capacity]\ncpus = -1.0\n", "capacity.cpus"),
        (&binaries.agent, "name = [\n", "line"),
    ] {
        let path = folder.path().join("wrong.toml");
        fs::write(&path, text)?;
        let output = Command::new(program).arg("--config").arg(&path).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "{text:?} was taken by {}", program.display());
        ensure!(said.contains(wanted), "{text:?} gave no {wanted:?}: {said}");
    }
    Ok(())
}

#[test]
fn roles_are_enforced_and_strangers_kept_out() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0]))?;
    let pki = cluster.folder.join("pki");
    let job = cluster.folder.join("job.toml");
    let file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    fs::write(&job, file.text(&cluster.environment))?;
    // An agent's certificate in an operator's place.
    let stolen = cluster.folder.join("stolen");
    fs::create_dir(&stolen)?;
    fs::copy(pki.join("ca.pem"), stolen.join("ca.pem"))?;
    fs::copy(pki.join("agent-n1.pem"), stolen.join("operator.pem"))?;
    fs::copy(pki.join("agent-n1.key"), stolen.join("operator.key"))?;
    let submit_with = |tls: &std::path::Path| -> Result<(Option<i32>, Value)> {
        let output = Command::new(&Binaries::build()?.optimus)
            .args(["submit", "-o", "json"])
            .arg(&job)
            .env("OPTIMUS_MASTER", &cluster.address)
            .env("OPTIMUS_TLS_DIR", tls)
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let error = serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))?;
        Ok((output.status.code(), error))
    };
    let (code, error) = submit_with(&stolen)?;
    ensure!(code == Some(4), "an agent's certificate: exit {code:?}, {error}");
    // A certificate of another cluster.
    let other = Cluster::prepare(&ClusterOptions::quick(&[]))?;
    let (code, error) = submit_with(&other.folder.join("pki"))?;
    ensure!(matches!(code, Some(4 | 6)), "a stranger's certificate: exit {code:?}, {error}");
    let message = error["message"].as_str().unwrap_or_default();
    ensure!(message.contains("certificate"), "no word of the certificate: {error}");
    let listing = cluster.json(&["ps"])?;
    ensure!(listing["jobs"].as_array().is_some_and(Vec::is_empty), "a job came in: {listing}");
    Ok(())
}

#[test]
fn noise_on_the_port_disturbs_nobody() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0]))?;
    let noise = UdpSocket::bind("127.0.0.1:0")?;
    let mut state: u64 = 42;
    for round in 0..2000_usize {
        let mut datagram = vec![0_u8; 1 + round % 1400];
        for byte in &mut datagram {
            // xorshift: any bytes will do, the same ones in every run.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state.to_le_bytes()[0];
        }
        // Half of them look like the start of a QUIC connection.
        if round % 2 == 0 {
            datagram[0] |= 0xc0;
        }
        let _full = noise.send_to(&datagram, &cluster.address);
    }
    let status = cluster.json(&["status"])?;
    ensure!(status["schema"] == "optimus.status/1", "no status: {status}");
    wait::until("the node to be UP", Duration::from_secs(10), || {
        let nodes = cluster.json(&["nodes"])?;
        Ok((nodes["nodes"][0]["reachability"] == "UP").then_some(()))
    })
}
