//! A rescaled job trains on as if nothing had happened.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::cluster::rows;
use harness::jobs::{Finish, JobFile};
use harness::process::talk;
use harness::{Cluster, ClusterOptions, wait};

use crate::common::{MINUTE, show, submit, wait_shape, wait_steps};

/// Steps compared after each rescale, and how much the losses may differ.
pub(crate) const STEPS: u64 = 50;
pub(crate) const TOLERANCE: f64 = 1e-4;

pub(crate) const BATCH: &str = "60";

/// Loss of the whole data set after each step, as a worker printed it.
pub(crate) fn losses(output: &str) -> BTreeMap<u64, f64> {
    output
        .lines()
        .filter_map(|line| {
            let (step, loss) = line.strip_prefix("step ")?.split_once(" loss ")?;
            Some((step.parse().ok()?, loss.parse().ok()?))
        })
        .collect()
}

/// Processes of a run that no daemon watches.
pub(crate) struct Control {
    children: Vec<Child>,
    pub(crate) output: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

/// Trains on from a checkpoint as one server and one worker, started by hand: what the job would
/// have done had it never been touched.
pub(crate) fn control_run(
    cluster: &Cluster,
    optimizer: &str,
    checkpoint: &Path,
    port: u16,
) -> Result<Control> {
    let folder = cluster.folder.join(format!("control-{port}"));
    fs::create_dir(&folder)?;
    let output = folder.join("worker.log");
    let mut children = Vec::new();
    for role in ["scheduler", "server", "worker"] {
        let log =
            if role == "worker" { output.clone() } else { folder.join(format!("{role}.log")) };
        let log = fs::File::create(log)?;
        let child = Command::new(&cluster.environment.python)
            .arg(cluster.environment.scripts.join("linear_probe.py"))
            .args(arguments(optimizer))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("PYTHONPATH", &cluster.environment.package)
            .env("PYTHONUNBUFFERED", "1")
            .env("OMP_NUM_THREADS", "1")
            .env("OPTIMUS_JOB", "control")
            .env("OPTIMUS_GENERATION", "1")
            .env("OPTIMUS_ROLE", role)
            .env("OPTIMUS_INDEX", "0")
            .env("OPTIMUS_SERVERS", "1")
            .env("OPTIMUS_WORKERS", "1")
            .env("OPTIMUS_MODE", "sync")
            .env("OPTIMUS_GLOBAL_BATCH", BATCH)
            .env("OPTIMUS_EPOCHS_MAX", "100000")
            .env("OPTIMUS_DIR", &folder)
            .env("OPTIMUS_RESUME", checkpoint)
            .env("DMLC_PS_ROOT_URI", "127.0.0.1")
            .env("DMLC_PS_ROOT_PORT", port.to_string())
            .env("DMLC_NODE_HOST", "127.0.0.1")
            .env("DMLC_NUM_SERVER", "1")
            .env("DMLC_NUM_WORKER", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        children.push(child);
    }
    Ok(Control { children, output })
}

pub(crate) fn arguments(optimizer: &str) -> [&str; 5] {
    ["--print-steps", "--optimizer", optimizer, "--step-ms", "10"]
}

/// The folder of the newest checkpoint in a job's `show`.
fn newest_checkpoint(shown: &serde_json::Value) -> Result<(u64, PathBuf)> {
    let newest = rows(shown, "checkpoints")
        .iter()
        .max_by_key(|checkpoint| checkpoint["step"].as_u64())
        .context("there is no checkpoint")?;
    let step = newest["step"].as_u64().context("a checkpoint has a step")?;
    let url = newest["url"].as_str().context("a checkpoint has a url")?;
    // The manifest `manifest-g00000002-c00000001.json` stands beside the folder of its parts.
    let manifest = PathBuf::from(url.strip_prefix("file://").context("not a file:// url")?);
    let name = manifest.file_stem().context("no name")?.to_string_lossy().into_owned();
    let folder = name.strip_prefix("manifest-").context("not a manifest")?;
    Ok((step, manifest.with_file_name(folder)))
}

/// A generation that went on from a checkpoint at a step.
pub(crate) struct Rescaled<'a> {
    pub(crate) job: &'a str,
    pub(crate) generation: &'a str,
    pub(crate) shape: &'a str,
    pub(crate) step: u64,
}

impl Rescaled<'_> {
    /// Its losses are those of a run that goes on from the same checkpoint untouched.
    pub(crate) fn equals_control(
        &self,
        cluster: &Cluster,
        optimizer: &str,
        checkpoint: &Path,
        port: u16,
    ) -> Result<()> {
        let Self { job, generation, shape, step } = *self;
        let args = ["logs", job, "--task", "worker0", "--generation", generation, "--bytes"];
        let rescaled = losses(&cluster.run(args.iter().chain(&["1000000"]))?);
        let control = control_run(cluster, optimizer, checkpoint, port)?;
        let expected = wait::until("the control run", MINUTE + Duration::from_secs(30), || {
            let found = losses(&fs::read_to_string(&control.output)?);
            Ok((found.len() as u64 > STEPS).then_some(found))
        })
        .with_context(|| fs::read_to_string(&control.output).unwrap_or_default())?;
        let mut worst: f64 = 0.0;
        for step in step + 1..=step + STEPS {
            let rescaled =
                rescaled.get(&step).with_context(|| format!("step {step} is missing"))?;
            let control = expected.get(&step).with_context(|| format!("no control at {step}"))?;
            worst = worst.max((rescaled - control).abs());
        }
        talk(&format!(
            "{optimizer} to {shape} at step {step}: losses differ by {worst:.1e} at most"
        ));
        ensure!(worst <= TOLERANCE, "{shape} differs by {worst} within {STEPS} steps");
        Ok(())
    }
}

/// With blocks of parameters where MXNet puts them, or where the master does.
fn rescaled_equals_control(optimizer: &str, assigned: bool, port: u16) -> Result<()> {
    let mut options = ClusterOptions::quick(&[2.0, 2.0]);
    options.master_toml =
        options.master_toml.replace("[jobs]\n", "[jobs]\ncheckpoints_kept = 50\n");
    let cluster = Cluster::start(&options)?;
    let mut file = JobFile::new("probe", "linear_probe.py", &cluster.checkpoints());
    file.arguments = arguments(optimizer).map(str::to_owned).to_vec();
    file.batch = format!("global = {BATCH}");
    file.checkpoint_interval = "1h".to_owned();
    file.finish = Finish::Epochs(100_000);
    file.epochs_max = 100_000;
    file.assignment = (!assigned).then_some("mxnet");
    // Blocks over this bound are cut into one slice a server: both ways of keeping a parameter.
    file.environment = vec![("MXNET_KVSTORE_BIGARRAY_BOUND".to_owned(), "1000".to_owned())];
    let job = submit(&cluster, &file)?;
    wait_steps(&cluster, &job, 20)?;
    cluster.run(["resize", &job, "--servers", "1", "--workers", "1", "--pin"])?;
    wait_shape(&cluster, &job, "1+1")?;
    wait_steps(&cluster, &job, 60)?;
    for (port, servers, workers) in [(port, 2, 2), (port + 1, 1, 2)] {
        let shape = format!("{servers}+{workers}");
        let (servers, workers) = (servers.to_string(), workers.to_string());
        cluster.run(["resize", &job, "--servers", &servers, "--workers", &workers, "--pin"])?;
        let shown = wait_shape(&cluster, &job, &shape)?;
        let (step, checkpoint) = newest_checkpoint(&shown)?;
        wait_steps(&cluster, &job, STEPS + 10)?;
        let spread = &show(&cluster, &job)?["assignment"];
        let by = if assigned { "best" } else { "mxnet" };
        ensure!(spread["algorithm"] == by && spread["blocks"] == 4, "spread: {spread}");
        let generation = shown["generation"].as_str().context("no generation")?.to_owned();
        let run = Rescaled { job: &job, generation: &generation, shape: &shape, step };
        run.equals_control(&cluster, optimizer, &checkpoint, port)?;
    }
    cluster.run(["cancel", &job, "--now"])?;
    cluster.wait_no_task()
}

#[test]
fn momentum_survives_rescales() -> Result<()> {
    rescaled_equals_control("sgd", true, 30_100)
}

#[test]
fn adam_moments_survive_rescales() -> Result<()> {
    rescaled_equals_control("adam", false, 30_300)
}
