//! The disk of the master's state folder is full: what cannot be stored is refused at once and is
//! never seen, what was taken is never lost, and training goes on.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::jobs::{Finish, JobFile};
use harness::process::talk;
use harness::setup::is_root;
use harness::wait::{self, Clock};
use harness::{Cluster, ClusterOptions};
use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;

use crate::common::{MINUTE, show, submit, wait_job, wait_phase, wait_steps};

/// A file system of its own for the master's state folder.
struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// None, and a line of why, where it cannot be had: not every root may mount.
    fn mount(folder: PathBuf, size: &str) -> Result<Option<Self>> {
        fs::create_dir_all(&folder)?;
        let size = format!("size={size},mode=0700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&folder)
            .output()?;
        if !mounted.status.success() {
            let words = String::from_utf8_lossy(&mounted.stderr).into_owned();
            talk(&format!("skipped: cannot mount a small file system: {}", words.trim()));
            return Ok(None);
        }
        Ok(Some(Self { folder }))
    }

    fn free(&self) -> Result<u64> {
        let found = statvfs(&self.folder)?;
        Ok(found.blocks_available() * found.fragment_size())
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Takes all but so many bytes.
    fn fill(&self, left: u64) -> Result<()> {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.filler())?;
        while let Some(more) = self.free()?.checked_sub(left).filter(|more| *more > 0) {
            let piece = vec![7; usize::try_from(more.min(1 << 16))?];
            if file.write_all(&piece).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _left = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}

/// A change that must be refused at once, in words and with the code of "cannot take it now".
fn refused(cluster: &Cluster, args: &[&str], words: &str) -> Result<()> {
    let output = cluster.optimus(args)?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(6), "{args:?} exited with {output:?}");
    ensure!(told.contains(words), "{args:?} said {told}");
    ensure!(!told.contains("still trying") && !told.contains("may have been"), "{told}");
    let folder = cluster.folder.join("master");
    ensure!(told.contains(&folder.display().to_string()), "no folder named: {told}");
    Ok(())
}

fn listed(cluster: &Cluster) -> Result<Vec<String>> {
    let listing = cluster.json(&["ps"])?;
    let names = rows(&listing, "jobs").iter().filter_map(|job| job["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

fn restarted(cluster: &mut Cluster) -> Result<()> {
    cluster.master.kill()?;
    cluster.master.start()?;
    wait::until("the master to serve reads", MINUTE, || Ok(cluster.run(["ps"]).ok())).map(drop)
}

/// What an operator reads of it.
fn is_told(cluster: &Cluster, words: &str) -> Result<()> {
    for read in ["status", "doctor"] {
        let text = cluster.run([read])?;
        ensure!(text.contains(words), "{read} says nothing of it: {text}");
    }
    for read in [&["events"][..], &["nodes"], &["rounds"], &["why", "j1"], &["show", "j1"]] {
        cluster.run(read).context("reads are served")?;
    }
    Ok(())
}

struct Story {
    disk: SmallDisk,
    cluster: Cluster,
    /// A job that trains all the time.
    job: String,
    /// Path of the file of one that is to be refused.
    other: String,
}

fn story() -> Result<Option<Story>> {
    if !is_root() {
        talk("skipped: only root can mount a small file system");
        return Ok(None);
    }
    let mut cluster = Cluster::prepare(&ClusterOptions::quick(&[2.0]))?;
    let small = SmallDisk::mount(cluster.folder.join("master"), "48m")?;
    let Some(disk) = small else { return Ok(None) };
    cluster.launch(1)?;
    let mut file = JobFile::new("long", "linear_probe.py", &cluster.checkpoints());
    file.arguments = vec!["--step-ms".to_owned(), "30".to_owned()];
    (file.finish, file.epochs_max) = (Finish::Epochs(5_000), 5_000);
    (file.workers, file.servers) = ((1, 1), (1, 1));
    let job = submit(&cluster, &file)?;
    wait_steps(&cluster, &job, 5)?;
    (file.name, file.finish) = ("other".to_owned(), Finish::Epochs(3));
    let other = cluster.folder.join("other.toml");
    fs::write(&other, file.text(&cluster.environment))?;
    let other = other.display().to_string();
    Ok(Some(Story { disk, cluster, job, other }))
}

/// Lines of the master's log that speak of the disk: one a change of its state, not one a try.
fn lines_of_the_disk(log: &str) -> usize {
    let spoken = |line: &&str| line.contains(" WARN ") || line.contains("ERROR");
    log.lines().filter(spoken).filter(|line| line.contains("disk")).count()
}

#[test]
fn on_a_full_disk_changes_are_refused_at_once_and_jobs_train_on_and_end() -> Result<()> {
    let Some(Story { disk, mut cluster, job, other }) = story()? else { return Ok(()) };
    // Nearly full: no new job, but everything else.
    disk.fill(8 << 20)?;
    refused(&cluster, &["submit", &other], "is nearly full")?;
    cluster.run(["node", "cordon", "n1", "--reason", "on a nearly full disk"])?;
    cluster.run(["node", "undrain", "n1"])?;

    // Full between two looks of the master.
    disk.fill(0)?;
    let clock = Clock::start();
    let full = "state folder is full";
    refused(&cluster, &["submit", &other], full)?;
    refused(&cluster, &["node", "cordon", "n1", "--reason", "never stored"], full)?;
    refused(&cluster, &["checkpoint", &job], full)?;
    refused(&cluster, &["update", &job, "--priority", "7"], full)?;
    talk(&format!("four refusals in {:.1} s", clock.elapsed().as_secs_f64()));
    cluster.run(["submit", &other, "--dry-run"]).context("a rehearsal stores nothing")?;
    wait::until("the master to look", MINUTE, || Ok(is_told(&cluster, full).ok()))?;
    let seen = || -> Result<()> {
        ensure!(listed(&cluster)? == ["long"], "{:?}", listed(&cluster));
        let events = cluster.run(["events", "-o", "json"])?;
        ensure!(!events.contains("never stored"), "{events}");
        let nodes = cluster.json(&["nodes"])?;
        ensure!(rows(&nodes, "nodes")[0]["schedulability"] == "OPEN", "{nodes}");
        Ok(())
    };
    seen()?;
    wait_steps(&cluster, &job, 20).context("training goes on")?;

    // A kill, and a start without a byte to spare.
    let generation = show(&cluster, &job)?["generation"].clone();
    restarted(&mut cluster)?;
    ensure!(disk.free()? == 0, "{} bytes are free", disk.free()?);
    refused(&cluster, &["submit", &other], full)?;
    wait_steps(&cluster, &job, 20)?;
    ensure!(show(&cluster, &job)?["generation"] == generation, "it was restarted");
    // A job can be ended all the same, and that is never forgotten.
    cluster.run(["cancel", &job, "--yes", "--reason", "to save room"])?;
    let ended = |cluster: &Cluster| {
        wait::until("the job's end", MINUTE, || {
            Ok((show(cluster, &job)?["phase"] == "CANCELLED").then_some(()))
        })
    };
    ended(&cluster)?;
    cluster.wait_no_task()?;
    restarted(&mut cluster)?;
    ended(&cluster).context("after another kill")?;

    disk.empty()?;
    let id = wait::until("a submission to be taken", MINUTE, || {
        let output = cluster.optimus(["submit", &other, "-o", "name"])?;
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(output.status.success().then_some(id))
    })?;
    wait_phase(&cluster, &id, "COMPLETED", 2 * MINUTE)?;
    wait::until("the alerts to go", MINUTE, || {
        Ok((!cluster.run(["status"])?.contains("state folder")).then_some(()))
    })?;
    let lines = lines_of_the_disk(&cluster.master.log());
    ensure!(lines < 20, "{lines} lines of the disk:\n{}", cluster.master.log());
    restarted(&mut cluster)?;
    ended(&cluster).context("the store caught up with the journal")?;
    ensure!(show(&cluster, &id)?["phase"] == "COMPLETED", "{id} was lost");
    Ok(())
}

/// The log of the journal without the room that is set aside behind it, as a copy of the state
/// folder has it.
fn without_room(folder: &Path) -> Result<()> {
    let journal = folder.join("data/journal");
    for entry in fs::read_dir(&journal)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            let copy = path.with_extension("copy");
            fs::copy(&path, &copy)?;
            fs::rename(copy, path)?;
        }
    }
    Ok(fs::remove_file(folder.join("ballast"))?)
}

#[test]
fn with_nothing_set_aside_reads_are_served_and_every_change_waits_or_is_refused() -> Result<()> {
    let Some(Story { disk, mut cluster, job, other }) = story()? else { return Ok(()) };
    // One that must wait for the first to end.
    let mut file = JobFile::new("next", "linear_probe.py", &cluster.checkpoints());
    (file.worker_cpus, file.finish) = (1.2, Finish::Epochs(3));
    (file.workers, file.servers) = ((1, 1), (1, 1));
    let next = submit(&cluster, &file)?;
    cluster.master.end(Signal::SIGTERM)?;
    without_room(&disk.folder)?;
    disk.fill(0)?;
    cluster.master.start()?;
    let words = "nothing can be stored";
    wait::until("the master to say so", MINUTE, || Ok(is_told(&cluster, words).ok()))?;
    let full = "state folder is full";
    refused(&cluster, &["submit", &other], full)?;
    refused(&cluster, &["cancel", &job, "--yes"], full)?;
    let mut names = listed(&cluster)?;
    names.sort();
    ensure!(names == ["long", "next"], "{names:?}");
    let table = cluster.run(["ps"])?;
    ensure!(table.contains("the master's disk is full"), "ps does not say why it waits: {table}");
    let phase = show(&cluster, &job)?["phase"].clone();
    ensure!(phase == "RUNNING", "the job is {phase}");
    ensure!(cluster.tasks().len() == 3, "{:?}", cluster.tasks());
    restarted(&mut cluster)?;
    refused(&cluster, &["cancel", &job, "--yes"], full)?;
    disk.empty()?;
    wait_steps(&cluster, &job, 20).context("the job trained on")?;
    wait::until("a cancel to be taken", MINUTE, || {
        Ok(cluster.run(["cancel", &job, "--yes"]).ok())
    })?;
    wait_job(&cluster, &job, "the end", MINUTE, |shown| shown["phase"] == "CANCELLED")?;
    wait_phase(&cluster, &next, "COMPLETED", 2 * MINUTE)?;
    let lines = lines_of_the_disk(&cluster.master.log());
    ensure!(lines < 20, "{lines} lines of the disk:\n{}", cluster.master.log());
    Ok(())
}
