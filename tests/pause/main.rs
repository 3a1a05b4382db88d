//! How long training stands still when a job moves, and what the time goes into.
//!
//! `cargo bench --package cluster-tests --bench pause` prints the figures; nothing passes or
//! fails by them. From the last step of one generation to the first of the next, as the master
//! hears of them, everything on this machine: the medians of some moves between two shapes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::cluster::rows;
use harness::jobs::{Finish, JobFile};
use harness::process::{say, talk};
use harness::{Cluster, ClusterOptions, wait};
use serde_json::Value;

const MINUTE: Duration = Duration::from_secs(60);
const MOVES: usize = 10;
/// Steps between two moves.
const STEPS: u64 = 3;

const MASTER: &str = "\
[rounds]
interval = \"10s\"
spacing = \"500ms\"
profile_shapes_max = 1
profile_time = \"1s\"
change_spacing = \"1s\"
rescale_cost = \"1s\"
";

/// Names in `show`, and in the table.
const PARTS: [(&str, &str); 10] = [
    ("save_s", "save"),
    ("publish_s", "publish"),
    ("stop_s", "stop processes"),
    ("launch_s", "launch"),
    ("begin_s", "begin, of which"),
    ("script_s", "  the script's own"),
    ("connect_s", "  connect"),
    ("restore_s", "  restore"),
    ("step_s", "  first step"),
    ("total_s", "pause"),
];

struct Model {
    name: &'static str,
    script: &'static str,
    arguments: &'static [&'static str],
    batch: &'static str,
    /// Servers and workers, taken in turn.
    shapes: [(u32, u32); 2],
}

const MODELS: [Model; 2] = [
    Model {
        name: "digits CNN, 62,000 parameters, Adam",
        script: "digits_cnn.py",
        arguments: &["--samples", "7680"],
        batch: "global = 256",
        shapes: [(1, 2), (1, 1)],
    },
    Model {
        name: "wide MLP, 25,000,000 parameters, SGD with momentum",
        script: "wide_mlp.py",
        arguments: &[],
        batch: "global = 8",
        shapes: [(2, 2), (2, 1)],
    },
];

fn main() -> Result<()> {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    for model in MODELS {
        if chosen.is_empty() || chosen.iter().any(|name| model.script.starts_with(name.as_str())) {
            report(&model, &measure(&model)?);
        }
    }
    Ok(())
}

/// The parts of all pauses of a job that moves to and fro.
fn measure(model: &Model) -> Result<Vec<Value>> {
    let mut options = ClusterOptions::quick(&[4.0, 4.0]);
    options.master_toml = MASTER.to_owned();
    let cluster = Cluster::start(&options)?;
    let mut file = JobFile::new("moved", model.script, &cluster.checkpoints());
    file.arguments = model.arguments.iter().map(|word| (*word).to_owned()).collect();
    file.batch = model.batch.to_owned();
    file.checkpoint_interval = "1h".to_owned();
    file.finish = Finish::Epochs(100_000);
    file.epochs_max = 100_000;
    let path = cluster.folder.join("job.toml");
    std::fs::write(&path, file.text(&cluster.environment))?;
    let answer = cluster.json(&["submit", &path.display().to_string()])?;
    let job = answer["id"].as_str().context("submit printed no id")?.to_owned();
    let mut pauses: Vec<Value> = Vec::new();
    for at in 0..=MOVES {
        let (servers, workers) = model.shapes[at % 2];
        let (servers, workers) = (servers.to_string(), workers.to_string());
        wait_steps(&cluster, &job, STEPS)?;
        cluster.run(["resize", &job, "--servers", &servers, "--workers", &workers, "--pin"])?;
        let shown = wait::until("the job in its new shape", 2 * MINUTE, || {
            let shown = cluster.json(&["show", &job])?;
            let there = shown["shape"]["servers"] == model.shapes[at % 2].0
                && shown["shape"]["workers"] == model.shapes[at % 2].1;
            Ok((there && shown["phase"] == "RUNNING").then_some(shown))
        })?;
        // The first may lead from the profiled shape to the same one: no move at all.
        if let Some(pause) = rows(&shown, "pauses").last()
            && pauses.last().is_none_or(|last| last["generation"] != pause["generation"])
        {
            talk(&format!("{} to {servers}+{workers}: {} s", model.script, pause["total_s"]));
            pauses.push(pause.clone());
        }
    }
    cluster.run(["cancel", &job, "--now"])?;
    cluster.wait_no_task()?;
    Ok(pauses)
}

fn wait_steps(cluster: &Cluster, job: &str, steps: u64) -> Result<()> {
    let step =
        || -> Result<u64> { Ok(cluster.json(&["show", job])?["step"].as_u64().unwrap_or(0)) };
    let first = step()?;
    wait::until("steps", 2 * MINUTE, || Ok((step()? >= first + steps).then_some(())))
}

fn report(model: &Model, pauses: &[Value]) {
    say(&format!("{}: {} moves between {:?}", model.name, pauses.len(), model.shapes));
    for (field, name) in PARTS {
        let mut found: Vec<f64> = pauses.iter().filter_map(|pause| pause[field].as_f64()).collect();
        found.sort_by(f64::total_cmp);
        let Some(median) = found.get(found.len() / 2) else { continue };
        let (least, most) = (found[0], found[found.len() - 1]);
        say(&format!("{name:20} {median:6.3} s   ({least:.3} to {most:.3})"));
    }
}
