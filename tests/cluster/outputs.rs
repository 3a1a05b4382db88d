//! The output of tasks, and full disks below an agent: training goes on, and a person is told.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use harness::cluster::rows;
use harness::jobs::{Finish, JobFile};
use harness::process::{self, talk};
use harness::setup::is_root;
use harness::{Binaries, Cluster, ClusterOptions, wait};
use nix::sys::signal::Signal;

use crate::common::{MINUTE, faults, show, submit, task, wait_job, wait_phase, wait_steps};

/// A small disk of its own, gone with this value.
#[derive(Debug)]
struct Disk(PathBuf);

impl Disk {
    /// None where this user may not mount one.
    fn mount(folder: &Path, size: &str) -> Result<Option<Self>> {
        if !is_root() {
            talk("skipped: mounting a small disk needs root");
            return Ok(None);
        }
        fs::create_dir_all(folder)?;
        let options = format!("size={size},mode=0711");
        let mut command = Command::new("mount");
        let done = command.args(["-t", "tmpfs", "-o", &options, "optimus-test"]).arg(folder);
        ensure!(done.status()?.success(), "cannot mount a small disk at {}", folder.display());
        Ok(Some(Self(folder.to_owned())))
    }

    /// Writes until nothing more fits.
    fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("filler");
        let mut file = File::create(&path)?;
        for block in [vec![1_u8; 65_536], vec![1_u8; 4096]] {
            while file.write_all(&block).is_ok() {}
        }
        Ok(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whoever still has a file of it keeps that.
        let _done = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A job that trains for as long as it takes, and whose first worker talks.
pub(crate) fn talker(cluster: &Cluster, name: &str, talk: &str) -> Result<JobFile> {
    let script = cluster.folder.join("talker.py");
    fs::write(&script, include_str!("scripts/talker.py"))?;
    let mut file = JobFile::new(name, &script.display().to_string(), &cluster.checkpoints());
    file.arguments = ["--step-ms", "30"].map(str::to_owned).to_vec();
    file.finish = Finish::Epochs(4000);
    file.epochs_max = 5000;
    file.workers = (1, 1);
    file.servers = (1, 1);
    let probe = cluster.environment.scripts.join("linear_probe.py").display().to_string();
    file.environment =
        vec![("TALK".to_owned(), talk.to_owned()), ("TALK_SCRIPT".to_owned(), probe)];
    Ok(file)
}

fn alerts(cluster: &Cluster, node: &str) -> Result<Vec<String>> {
    let shown = cluster.json(&["node", "show", node])?;
    Ok(rows(&shown, "alerts")
        .iter()
        .filter_map(|words| words.as_str().map(str::to_owned))
        .collect())
}

fn wait_alert(cluster: &Cluster, node: &str, words: &str) -> Result<String> {
    wait::until(&format!("an alert of {node}: {words}"), MINUTE, || {
        Ok(alerts(cluster, node)?.into_iter().find(|alert| alert.contains(words)))
    })
}

fn wait_no_alert(cluster: &Cluster, node: &str) -> Result<()> {
    wait::until("the alerts to be gone", MINUTE, || {
        let full = alerts(cluster, node)?.iter().any(|alert| alert.contains("full"));
        Ok((!full).then_some(()))
    })
}

/// Most memory that a process has had, in KiB.
fn peak_kib(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let words = line.context("no VmHWM")?.trim().trim_end_matches(" kB").trim();
    Ok(words.parse()?)
}

fn cancelled(cluster: &Cluster, job: &str) -> Result<()> {
    cluster.run(["cancel", job, "--now", "--yes"])?;
    wait_phase(cluster, job, "CANCELLED", MINUTE)?;
    cluster.wait_no_task()
}

/// `optimus logs --follow`, with each of its lines as it comes.
struct Follower {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Follower {
    fn start(cluster: &Cluster, job: &str) -> Result<Self> {
        let mut child = Command::new(&Binaries::build()?.optimus)
            .args(["logs", job, "--follow", "--bytes", "16MiB"])
            .env("OPTIMUS_MASTER", &cluster.address)
            .env("OPTIMUS_TLS_DIR", cluster.folder.join("pki"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(cluster.folder.join("follow.err"))?)
            .spawn()?;
        let output = child.stdout.take().context("it is piped")?;
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if tell.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }

    /// Reads on until a line is there for which `enough` holds.
    fn until(&self, said: &mut Vec<Said>, enough: impl Fn(&[Said]) -> bool) -> Result<()> {
        while !enough(said) {
            let line = self.lines.recv_timeout(2 * MINUTE).context("nothing more is followed")?;
            said.extend(Said::read(&line)?);
        }
        Ok(())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// One line of `talker.py`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    generation: String,
    number: u64,
}

impl Said {
    fn read(line: &str) -> Result<Option<Self>> {
        let Some(rest) = line.strip_prefix("talk ") else { return Ok(None) };
        let mut words = rest.split(' ');
        let (Some(generation), Some(number)) = (words.next(), words.next()) else {
            bail!("a line was cut: {line:?}");
        };
        ensure!(line.ends_with('|'), "a line was cut: {line:?}");
        Ok(Some(Self { generation: generation.to_owned(), number: number.parse()? }))
    }
}

/// Bytes of a line, and lines that fill a log of 64 KiB by half as much again.
const LINE: usize = 1000;
const LINES_TO_A_CUT: u64 = 100;

#[test]
fn a_log_is_followed_through_its_bounds_and_a_restart_without_gap_or_repeat() -> Result<()> {
    let mut options = ClusterOptions::quick(&[3.0]);
    options.agent_toml += "log_bytes_max = \"64KiB\"\n";
    let cluster = Cluster::start(&options)?;
    let job = submit(&cluster, &talker(&cluster, "talker", &format!("lines 25 {LINE}"))?)?;
    wait_steps(&cluster, &job, 5)?;
    let follower = Follower::start(&cluster, &job)?;
    let mut said = Vec::new();
    follower.until(&mut said, |said| !said.is_empty())?;
    let first = said[0].clone();
    // Three times more than the log holds.
    let enough = |said: &[Said], generation: &str, count: u64| {
        let of = said.iter().filter(|said| said.generation == generation);
        u64::try_from(of.count()).is_ok_and(|found| count <= found)
    };
    follower.until(&mut said, |said| enough(said, &first.generation, 4 * LINES_TO_A_CUT))?;
    let victim = task(&cluster, &job, "worker0")?;
    ensure!(process::signal(victim.pid, Signal::SIGKILL), "it was gone already");
    wait_job(&cluster, &job, "the fault to be recorded", MINUTE, |shown| {
        !faults(shown).is_empty()
    })?;
    wait_steps(&cluster, &job, 5)?;
    follower.until(&mut said, |said| {
        said.last().is_some_and(|last| last.generation != first.generation && 150 < last.number)
    })?;
    let words = fs::read_to_string(cluster.folder.join("follow.err"))?;
    for pair in said.windows(2) {
        if pair[0].generation == pair[1].generation {
            ensure!(pair[0].number + 1 == pair[1].number, "{pair:?}; it said: {words}");
        } else {
            ensure!(pair[1].number == 0, "the new life is not seen from its begin: {pair:?}");
        }
    }
    ensure!(!words.contains("skipped"), "{words}");
    ensure!(words.contains("goes on as"), "{words}");
    // All of the old life: as many lines as were printed until its end.
    let old = format!("g{}", first.generation);
    let kept = cluster.run(["logs", &job, "--generation", &old, "--bytes", "1MiB"])?;
    let last = kept.lines().filter_map(|line| Said::read(line).ok().flatten()).next_back();
    let seen = said.iter().rfind(|said| said.generation == first.generation).cloned();
    ensure!(last == seen, "the end of the old life: printed {last:?}, seen {seen:?}");
    ensure!(kept.len() < 3 * 65_536, "{} bytes are kept", kept.len());
    cancelled(&cluster, &job)
}

#[test]
fn a_flood_of_output_holds_nobody_up_and_what_is_lost_is_told() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[3.0]))?;
    let agent = cluster.agents[0].pid().context("the agent runs")?;
    let before = peak_kib(agent)?;
    let job = submit(&cluster, &talker(&cluster, "flood", "flood 5")?)?;
    let told = wait::until("the end of the flood", 2 * MINUTE, || {
        let text = cluster.optimus(["logs", &job, "--bytes", "1KiB"])?.stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        let found = text.lines().find_map(|line| line.strip_prefix("flooded "));
        Ok(found.and_then(|line| line.split(' ').next()?.parse::<u64>().ok()))
    })?;
    let alert = wait_alert(&cluster, "n1", "printed faster than its log holds")?;
    ensure!(alert.contains("worker0") && alert.contains(&job), "{alert}");
    let events = cluster.run(["events", &job])?;
    ensure!(events.contains("printed faster than its log holds"), "the job is not told: {events}");
    let after = peak_kib(agent)?;
    talk(&format!(
        "{} MiB printed in 5 s; the agent's memory {before} KiB before and {after} KiB after; {alert}",
        told >> 20
    ));
    ensure!(after < before + 64 * 1024, "the agent took {} KiB for it", after - before);
    let disk = used(&cluster.folder.join("n1/logs"))?;
    ensure!(disk < 64 << 20, "{disk} bytes are kept on the disk");
    wait_steps(&cluster, &job, 10)?;
    ensure!(faults(&show(&cluster, &job)?).is_empty(), "the job paid for it");
    cancelled(&cluster, &job)
}

/// Bytes on the disk.
fn used(folder: &Path) -> Result<u64> {
    let output = Command::new("du").args(["-s", "-B1"]).arg(folder).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().context("du says nothing")?.parse()?)
}

#[test]
fn a_full_disk_of_output_ends_no_task_and_is_told() -> Result<()> {
    let mut options = ClusterOptions::quick(&[3.0]);
    options.agent_toml += "log_bytes_max = \"64KiB\"\n";
    let mut cluster = Cluster::prepare(&options)?;
    fs::create_dir(cluster.folder.join("n1"))?;
    let Some(disk) = Disk::mount(&cluster.folder.join("n1/logs"), "2m")? else { return Ok(()) };
    cluster.launch(1)?;
    let job = submit(&cluster, &talker(&cluster, "talker", &format!("lines 50 {LINE}"))?)?;
    wait_steps(&cluster, &job, 5)?;
    let before = task(&cluster, &job, "worker0")?;
    let filler = disk.fill()?;
    let alert = wait_alert(&cluster, "n1", "disk of the output of tasks is full")?;
    ensure!(alert.contains("n1/logs") && alert.contains(&job), "{alert}");
    let events = cluster.run(["events", &job])?;
    ensure!(events.contains("disk of the output"), "the job is not told: {events}");
    talk(&alert);
    // Far more than fits into what it has.
    let start = newest(&cluster, &job)?;
    wait::until("further output on the full disk", 2 * MINUTE, || {
        ensure!(faults(&show(&cluster, &job)?).is_empty(), "the job paid for it");
        Ok((start + 3 * LINES_TO_A_CUT < newest(&cluster, &job)?).then_some(()))
    })?;
    wait_steps(&cluster, &job, 10)?;
    ensure!(task(&cluster, &job, "worker0")? == before, "it was started anew");
    fs::remove_file(filler)?;
    wait_no_alert(&cluster, "n1")?;
    cancelled(&cluster, &job)
}

/// The number of the newest line that the job's talker has printed.
fn newest(cluster: &Cluster, job: &str) -> Result<u64> {
    let text = cluster.run(["logs", job, "--bytes", "8KiB"])?;
    let mut said = text.lines().filter_map(|line| Said::read(line).ok().flatten());
    said.next_back().map(|said| said.number).with_context(|| format!("nothing was said: {text}"))
}

#[test]
fn an_agent_without_space_starts_nothing_keeps_what_runs_and_comes_back() -> Result<()> {
    let mut options = ClusterOptions::quick(&[6.0]);
    options.agent_toml += "log_bytes_max = \"64KiB\"\n";
    let mut cluster = Cluster::prepare(&options)?;
    let Some(disk) = Disk::mount(&cluster.folder.join("n1"), "6m")? else { return Ok(()) };
    cluster.launch(1)?;
    let job = submit(&cluster, &talker(&cluster, "first", "lines 500 100")?)?;
    wait_steps(&cluster, &job, 5)?;
    let before = cluster.tasks();
    let filler = disk.fill()?;
    let second = submit(&cluster, &talker(&cluster, "second", "lines 500 100")?)?;
    let rejects = wait::until("a launch to be refused", 2 * MINUTE, || {
        let shown = cluster.json(&["node", "show", "n1"])?;
        let found = rows(&shown, "rejects").to_vec();
        Ok((!found.is_empty()).then_some(found))
    })?;
    let words = rejects[0].as_str().unwrap_or_default();
    talk(words);
    ensure!(words.contains(&second), "it does not name the job: {words}");
    ensure!(words.contains("No space left on device"), "{words}");
    wait_alert(&cluster, "n1", "full")?;
    wait_steps(&cluster, &job, 10)?;
    ensure!(faults(&show(&cluster, &job)?).is_empty(), "the first job paid for it");
    // Daemon and tasks: both as before, also where the agent itself is started anew meanwhile.
    ensure!(before.iter().all(|task| cluster.tasks().contains(task)), "not all live");
    cluster.agents[0].kill()?;
    cluster.agents[0].start()?;
    wait_steps(&cluster, &job, 10)?;
    ensure!(before.iter().all(|task| cluster.tasks().contains(task)), "not all live");
    fs::remove_file(filler)?;
    wait_no_alert(&cluster, "n1")?;
    // Three rejections in a row have closed it by now, or not yet.
    let shown = cluster.json(&["node", "show", "n1"])?;
    if shown["schedulability"] != "OPEN" {
        cluster.run(["node", "undrain", "n1"])?;
    }
    wait_steps(&cluster, &second, 5)?;
    ensure!(faults(&show(&cluster, &job)?).is_empty(), "the first job paid for it");
    cluster.run(["cancel", &job, &second, "--now", "--yes"])?;
    cluster.wait_no_task()
}
