//! Checkpoints on a real HDFS: a job goes on over rescales as if they lay on a disk of its own, and
//! no fault of storage loses one or stops training.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use harness::cluster::rows;
use harness::hdfs::{Hdfs, HdfsOptions};
use harness::jobs::{Finish, JobFile};
use harness::process::talk;
use harness::wait::Clock;
use harness::{Cluster, ClusterOptions};
use serde_json::Value;

use crate::common::{MINUTE, show, submit, wait_job, wait_shape, wait_steps};
use crate::rescale::{BATCH, Rescaled, STEPS, arguments};

/// An HDFS with its cluster of three nodes, each with a state folder of its own.
fn start(hdfs: &HdfsOptions) -> Result<(Hdfs, Cluster)> {
    let hdfs = Hdfs::start(hdfs).map_err(|words| anyhow!(words))?;
    hdfs.make_dir("/ckpt").map_err(|words| anyhow!(words))?;
    let conf = format!("hadoop_conf_dir = {:?}\n", hdfs.conf_dir().display().to_string());
    let mut options = ClusterOptions::quick(&[1.5, 1.5, 1.5]);
    options.master_toml = format!("{conf}{}", options.master_toml);
    options.agent_toml.push_str(&conf);
    let cluster = Cluster::start(&options)?;
    Ok((hdfs, cluster))
}

fn job_file(hdfs: &Hdfs, interval: &str) -> JobFile {
    let mut file = JobFile::new("probe", "linear_probe.py", &hdfs.url("/ckpt"));
    file.arguments = arguments("sgd").map(str::to_owned).to_vec();
    file.batch = format!("global = {BATCH}");
    file.checkpoint_interval = interval.to_owned();
    file.finish = Finish::Epochs(100_000);
    file.epochs_max = 100_000;
    file.worker_cpus = 0.5;
    file.environment = vec![("MXNET_KVSTORE_BIGARRAY_BOUND".to_owned(), "1000".to_owned())];
    file
}

fn resize(cluster: &Cluster, job: &str, servers: u32, workers: u32) -> Result<()> {
    let (servers, workers) = (servers.to_string(), workers.to_string());
    cluster.run(["resize", job, "--servers", &servers, "--workers", &workers, "--pin"]).map(drop)
}

/// Number and step of the newest checkpoint, and the path of its manifest on HDFS.
fn newest(hdfs: &Hdfs, shown: &Value) -> Result<(u64, u64, String)> {
    let number = |checkpoint: &Value| -> Option<u64> {
        checkpoint["id"].as_str()?.strip_prefix('c')?.parse().ok()
    };
    let newest = rows(shown, "checkpoints").iter().max_by_key(|of| number(of));
    let newest = newest.context("there is no checkpoint")?;
    let url = newest["url"].as_str().context("a checkpoint has a url")?;
    let path = url.strip_prefix(&hdfs.url("")).with_context(|| format!("{url} is elsewhere"))?;
    let step = newest["step"].as_u64().context("a checkpoint has a step")?;
    Ok((number(newest).context("its number")?, step, path.to_owned()))
}

/// Puts a checkpoint together from what the nodes keep of it.
fn collected(cluster: &Cluster, job: &str, manifest: &str) -> Result<PathBuf> {
    let name = Path::new(manifest).file_stem().context("a manifest has a name")?;
    let name = name.to_string_lossy().replace("manifest-", "");
    let to = cluster.folder.join(format!("collected-{name}"));
    fs::create_dir(&to)?;
    for node in ["n1", "n2", "n3"] {
        let kept = cluster.folder.join(node).join("spool").join(job).join(&name);
        for entry in fs::read_dir(kept).into_iter().flatten() {
            let entry = entry?;
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(to)
}

#[test]
fn a_job_with_checkpoints_on_hdfs_is_rescaled() -> Result<()> {
    let (hdfs, cluster) = start(&HdfsOptions::default())?;
    let job = submit(&cluster, &job_file(&hdfs, "1h"))?;
    wait_steps(&cluster, &job, 20)?;
    resize(&cluster, &job, 1, 1)?;
    wait_shape(&cluster, &job, "1+1")?;
    wait_steps(&cluster, &job, 20)?;
    for (port, servers, workers) in [(30_500, 2, 2), (30_501, 3, 1), (30_502, 1, 3)] {
        let shape = format!("{servers}+{workers}");
        let clock = Clock::start();
        resize(&cluster, &job, servers, workers)?;
        let shown = wait_shape(&cluster, &job, &shape)?;
        talk(&format!("{shape} after {:.1} s", clock.elapsed().as_secs_f64()));
        let (_, step, manifest) = newest(&hdfs, &shown)?;
        let look = hdfs.look(&manifest).map_err(|words| anyhow!(words))?;
        let look = look.with_context(|| format!("no {manifest} on HDFS"))?;
        ensure!(look.closed && look.bytes > 0, "{manifest} is {look:?}");
        wait_steps(&cluster, &job, STEPS + 10)?;
        let checkpoint = collected(&cluster, &job, &manifest)?;
        let generation = shown["generation"].as_str().context("no generation")?.to_owned();
        let run = Rescaled { job: &job, generation: &generation, shape: &shape, step };
        run.equals_control(&cluster, "sgd", &checkpoint, port)?;
    }
    cluster.run(["cancel", &job, "--now"])?;
    cluster.wait_no_task()
}

/// One story of faults, with the job that lives through them.
struct Story {
    hdfs: Hdfs,
    cluster: Cluster,
    job: String,
}

impl Story {
    fn do_hdfs(&self, what: impl FnOnce(&Hdfs) -> Result<(), String>) -> Result<()> {
        what(&self.hdfs).map_err(|words| anyhow!(words))
    }

    /// Waits until `why` has all of the words, with training going on.
    fn wait_why(&self, words: &[&str]) -> Result<()> {
        let mut last = String::new();
        let told = harness::wait::until("the reason to be told", MINUTE, || {
            last = self.cluster.run(["why", &self.job])?;
            Ok(words.iter().all(|word| last.contains(word)).then_some(()))
        });
        told.with_context(|| format!("why says:\n{last}"))?;
        let line = last.lines().find(|line| line.contains(words[0])).unwrap_or_default();
        talk(&format!("why: {}", line.trim()));
        wait_steps(&self.cluster, &self.job, 10).map(drop)
    }

    /// Waits for a checkpoint that is newer than those before.
    fn wait_checkpoint(&self, after: &str) -> Result<()> {
        let (before, _, _) = newest(&self.hdfs, &show(&self.cluster, &self.job)?)?;
        let clock = Clock::start();
        let shown = wait_job(&self.cluster, &self.job, after, 2 * MINUTE, |shown| {
            newest(&self.hdfs, shown).is_ok_and(|(number, _, _)| before < number)
        })?;
        let (_, _, manifest) = newest(&self.hdfs, &shown)?;
        ensure!(
            self.hdfs.look(&manifest).map_err(|words| anyhow!(words))?.is_some(),
            "{manifest} is not there"
        );
        talk(&format!("a checkpoint {after}: {:.1} s", clock.elapsed().as_secs_f64()));
        Ok(())
    }
}

#[test]
fn no_fault_of_hdfs_loses_a_checkpoint_or_stops_training() -> Result<()> {
    let (hdfs, cluster) = start(&HdfsOptions { name_nodes: 2, ..HdfsOptions::default() })?;
    let mut file = job_file(&hdfs, "5s");
    file.workers = (1, 2);
    file.servers = (2, 2);
    let job = submit(&cluster, &file)?;
    let story = Story { hdfs, cluster, job };
    let Story { cluster, job, .. } = &story;
    wait_steps(cluster, job, 20)?;
    resize(cluster, job, 2, 1)?;
    wait_shape(cluster, job, "2+1")?;
    wait_job(cluster, job, "a checkpoint", MINUTE, |shown| !rows(shown, "checkpoints").is_empty())?;

    // Safe mode: the rescale waits, and comes by itself afterwards.
    story.do_hdfs(|hdfs| hdfs.safe_mode(true))?;
    resize(cluster, job, 2, 2)?;
    story.wait_why(&["storage is away", "safe mode"])?;
    ensure!(crate::common::shape(&show(cluster, job)?) == "2+1", "it left its shape");
    story.do_hdfs(|hdfs| hdfs.safe_mode(false))?;
    wait_shape(cluster, job, "2+2")?;

    // A quota that is used up.
    story.do_hdfs(|hdfs| hdfs.quota("/ckpt", 0, 1))?;
    story.wait_why(&["storage is away", "quota", "/ckpt"])?;
    story.do_hdfs(|hdfs| hdfs.quota("/ckpt", 0, 0))?;
    story.wait_checkpoint("after the quota")?;

    // The active NameNode dies while a checkpoint is made; the other takes over after a while.
    cluster.run(["checkpoint", job])?;
    story.do_hdfs(|hdfs| hdfs.kill_name_node(0))?;
    wait_steps(cluster, job, 10)?;
    story.do_hdfs(|hdfs| hdfs.make_active(1))?;
    story.wait_checkpoint("after the failover")?;

    story.do_hdfs(|hdfs| hdfs.kill_data_node(0))?;
    story.wait_checkpoint("without a DataNode")?;
    let shown = show(cluster, job)?;
    ensure!(crate::common::faults(&shown).is_empty(), "training stopped: {}", shown["faults"]);
    resize(cluster, job, 2, 1)?;
    wait_shape(cluster, job, "2+1")?;
    wait_steps(cluster, job, 10)?;
    cluster.run(["cancel", job, "--now"])?;
    cluster.wait_no_task()
}
