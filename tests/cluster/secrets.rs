//! Who may do what over real binaries, what is written of it, and that nothing secret is told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use harness::jobs::{Finish, JobFile};
use harness::{Binaries, Cluster, ClusterOptions, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{MINUTE, wait_steps};

const SECRET: &str = "hunter2-in-the-environment";

/// A person with a certificate of their own.
pub(crate) struct Person<'a> {
    cluster: &'a Cluster,
    folder: PathBuf,
}

impl<'a> Person<'a> {
    pub(crate) fn new(cluster: &'a Cluster, role: &str, name: &str) -> Result<Self> {
        let folder = cluster.folder.join(format!("{role}-{name}"));
        let (pki, out) = (cluster.folder.join("pki"), folder.display().to_string());
        let pki = pki.display().to_string();
        cluster.run(["cert", "issue", role, name, "--dir", &pki, "--out", &out])?;
        Ok(Self { cluster, folder })
    }

    pub(crate) fn optimus(&self, args: &[&str]) -> Result<Output> {
        Command::new(&Binaries::build()?.optimus)
            .args(args)
            .env("OPTIMUS_MASTER", &self.cluster.address)
            .env("OPTIMUS_TLS_DIR", &self.folder)
            .output()
            .context("cannot run optimus")
    }

    pub(crate) fn json(&self, args: &[&str]) -> Result<Value> {
        let output = self.optimus(&[args, &["-o", "json"]].concat())?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{args:?}: {words}");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Refused for the role, in words that name it.
    fn refused(&self, args: &[&str], word: &str) -> Result<()> {
        let output = self.optimus(args)?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(4), "{args:?}: {:?} {words}", output.status);
        ensure!(words.contains("needs") && words.contains(word), "{args:?}: {words}");
        Ok(())
    }
}

fn key(folder: &Path, name: &str, digits: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, digits.repeat(32))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

/// Files below a folder that hold the secret.
fn tellers(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(tellers(&path)?);
        } else if path.is_file()
            && fs::read(&path)?.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
        {
            found.push(path);
        }
    }
    Ok(found)
}

fn job_file(cluster: &Cluster) -> Result<String> {
    let mut file = JobFile::new("secretive", "linear_probe.py", &cluster.checkpoints());
    file.environment = vec![("TOKEN".to_owned(), SECRET.to_owned())];
    file.arguments = vec!["--step-ms".to_owned(), "20".to_owned()];
    (file.workers, file.servers) = ((1, 1), (1, 1));
    (file.finish, file.epochs_max) = (Finish::Epochs(1_000), 1_000);
    let path = cluster
        .folder
        .parent()
        .context("a folder above")?
        .join(format!("secretive-{}.toml", std::process::id()));
    fs::write(&path, file.text(&cluster.environment))?;
    Ok(path.display().to_string())
}

#[test]
fn roles_are_kept_apart_and_nothing_secret_is_told() -> Result<()> {
    let keys = tempfile::tempdir()?;
    let (own, other) = (key(keys.path(), "own", "5a")?, key(keys.path(), "other", "a5")?);
    let mut options = ClusterOptions::quick(&[2.0]);
    options.master_toml = format!("store_key = {:?}\n{}", own, options.master_toml);
    let mut cluster = Cluster::start(&options)?;
    let path = job_file(&cluster)?;
    let job = people(&cluster, &path)?;
    fs::remove_file(&path)?;
    // The values are in the training processes' environment and the agent's ledger, both of which
    // only root and the task's user read; never in a log, a listing or the master's files.
    wait_steps(&cluster, &job, 5)?;
    for process in cluster.tasks() {
        let line = fs::read(format!("/proc/{}/cmdline", process.pid))?;
        ensure!(!String::from_utf8_lossy(&line).contains(SECRET), "on a command line");
    }
    for line in [cluster.master.log(), cluster.agents[0].log()] {
        ensure!(!line.contains(SECRET), "a log tells it");
    }
    for args in [["ps"], ["events"], ["rounds"], ["audit"], ["nodes"]] {
        ensure!(!cluster.json(&args)?.to_string().contains(SECRET), "{args:?} tells it");
    }
    ensure!(!cluster.run(["why", &job])?.contains(SECRET), "why tells it");
    store(&mut cluster, &own, &other)
}

/// Ada's job, and what others may do with it.
fn people(cluster: &Cluster, path: &str) -> Result<String> {
    let ada = Person::new(cluster, "user", "ada")?;
    let bob = Person::new(cluster, "user", "bob")?;
    let olga = Person::new(cluster, "operator", "olga")?;
    let root = Person::new(cluster, "admin", "root")?;
    let job = ada.json(&["submit", path])?["id"].as_str().context("no id")?.to_owned();
    let shown = |person: &Person<'_>| -> Result<Value> {
        Ok(person.json(&["show", &job])?["spec"]["environment"]["TOKEN"].clone())
    };
    ensure!(shown(&ada)? == SECRET && shown(&root)? == SECRET, "owner and admin see it");
    ensure!(shown(&bob)? == "***" && shown(&olga)? == "***", "others do not");
    wait_steps(cluster, &job, 5)?;
    bob.refused(&["cancel", &job, "--yes", "--reason", "mine now"], "its owner")?;
    bob.refused(&["logs", &job], "its owner")?;
    bob.refused(&["node", "lost", "n1", "--yes"], "operator")?;
    let saved = cluster.folder.join("stolen.snapshot").display().to_string();
    for person in [&bob, &olga] {
        person.refused(&["snapshot", "save", &saved], "admin")?;
        person.refused(&["audit"], "admin")?;
    }
    // A name is one person under every role; an operator may with any job.
    let ada_as_operator = Person::new(cluster, "operator", "ada")?;
    ensure!(shown(&ada_as_operator)? == SECRET, "her own job, whatever her role");
    olga.json(&["update", &job, "--priority", "2", "--dry-run"])?;
    ada.json(&["logs", &job])?;
    let audit = root.json(&["audit"])?;
    let lines = audit["lines"].as_array().context("lines")?;
    let line = |user: &str, request: &str| {
        lines
            .iter()
            .find(|line| {
                line["user"] == user
                    && line["request"].as_str().is_some_and(|text| text.starts_with(request))
            })
            .with_context(|| format!("no {request} of {user} in {audit}"))
    };
    ensure!(line("ada", "submit secretive")?["outcome"] == format!("done: {job}"));
    let refused = line("bob", "cancel")?;
    ensure!(refused["role"] == "user" && refused["reason"] == "mine now", "{refused}");
    ensure!(refused["outcome"].as_str().is_some_and(|text| text.contains("needs")), "{refused}");
    ensure!(line("bob", "node lost n1")?["address"].as_str().is_some_and(|a| a.contains("127.")));
    ensure!(line("olga", "update")?["dry_run"] == true, "{audit}");
    line("olga", "snapshot save")?;
    let of_bob = root.json(&["audit", "--user", "bob"])?;
    ensure!(of_bob["lines"].as_array().is_some_and(|l| l.iter().all(|l| l["user"] == "bob")));
    Ok(job)
}

/// The store tells nothing without its key.
fn store(cluster: &mut Cluster, own: &Path, other: &Path) -> Result<()> {
    let state = cluster.folder.join("master");
    let saved = cluster.folder.join("copy.snapshot").display().to_string();
    cluster.run(["snapshot", "save", &saved])?;
    let own_key = own.display().to_string();
    cluster.run(["snapshot", "verify", &saved, "--store-key", &own_key])?;
    for args in [vec![], vec!["--store-key", other.to_str().context("UTF-8")?]] {
        let output = cluster.optimus([vec!["snapshot", "verify", &saved], args].concat())?;
        ensure!(output.status.code() == Some(2), "{output:?}");
    }
    cluster.master.end(Signal::SIGTERM)?;
    ensure!(tellers(&state)? == Vec::<PathBuf>::new(), "the state folder tells it");
    ensure!(fs::read(&saved)?.windows(SECRET.len()).all(|part| part != SECRET.as_bytes()));
    let config = cluster.folder.join("master.toml");
    let text = fs::read_to_string(&config)?;
    let line = format!("store_key = {own:?}\n");
    for (changed, words) in [
        (text.replace(&line, ""), "LoadCredential=store-key"),
        (text.replace(&line, &format!("store_key = {other:?}\n")), "another store key"),
    ] {
        fs::write(&config, changed)?;
        cluster.master.start()?;
        wait::until("it to refuse", MINUTE, || Ok((!cluster.master.lives()?).then_some(())))?;
        ensure!(cluster.master.log().contains(words), "no {words:?}: {}", cluster.master.log());
        cluster.master.end(Signal::SIGKILL)?;
    }
    fs::write(&config, text)?;
    cluster.master.start()?;
    wait::until("it to serve again", MINUTE, || Ok(cluster.json(&["status"]).ok()))?;
    Ok(())
}
