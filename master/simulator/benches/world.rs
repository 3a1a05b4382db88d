//! What whole runs cost, as a table.
//!
//! `cargo bench -p simulator --bench world -- [NODES]` with the Philly trace in `OPTIMUS_DATA` or
//! at `../shared/data`; without it, with jobs of its shape from a seed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock and its trace")]

use std::time::Instant;

use model::{Batch, Mode, NodeId, Resources, Shape};
use rand::RngExt;
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::snapshot::Policy;
use simulator::outcome::mean;
use simulator::random::stream;
use simulator::workload::{Cluster, Job, Speed, Workload};
use simulator::world::{Estimates, Options, Rounds, run};

/// Arrival, GPUs and seconds of each job.
fn trace() -> Vec<(f64, u32, f64)> {
    let folder = std::env::var("OPTIMUS_DATA").unwrap_or_else(|_| "../../../shared/data".into());
    let mut jobs = match std::fs::read_to_string(format!("{folder}/traces/philly.csv")) {
        Ok(text) => text.lines().skip(1).filter_map(line).collect(),
        Err(_) => made_up(),
    };
    jobs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let first = jobs.first().map_or(0.0, |job| job.0);
    jobs.into_iter().map(|(at, gpus, seconds)| (at - first, gpus, seconds)).collect()
}

fn line(line: &str) -> Option<(f64, u32, f64)> {
    let fields: Vec<&str> = line.split(',').collect();
    let (day, time) = fields.first()?.split_once(' ')?;
    let part = |text: &str, at: usize, by: char| -> Option<f64> {
        text.split(by).nth(at)?.parse::<f64>().ok()
    };
    // Days of 31 and a year of 12 keep the order of a trace of some months.
    let days = part(day, 1, '-')? * 31.0 + part(day, 2, '-')?;
    let at = days * 86_400.0
        + part(time, 0, ':')? * 3_600.0
        + part(time, 1, ':')? * 60.0
        + part(time, 2, ':')?;
    Some((at, fields.get(2)?.parse().ok()?, fields.get(1)?.parse().ok()?))
}

fn made_up() -> Vec<(f64, u32, f64)> {
    eprintln!("no trace at hand: 82,000 jobs of its shape instead");
    let mut stream = stream(1, "trace");
    let mut draw = || {
        let (at, kind, length) = (stream.random::<f64>(), stream.random::<f64>(), stream.random());
        let gpus = if kind < 0.86 {
            1
        } else if kind < 0.95 {
            4
        } else {
            8
        };
        let length: f64 = length;
        (at * 6.5e6, gpus, 60.0 * libm::exp(length * 7.0))
    };
    (0..82_000).map(|_| draw()).collect()
}

fn job(number: usize, (arrival_s, gpus, seconds): (f64, u32, f64)) -> Job {
    // A step a second with one worker, 5 % of it over the network at as many servers.
    let theta = vec![0.95, 0.0, 0.05, 0.0, 0.0];
    let form = SpeedForm::SyncPerWorker { batch: 1 };
    let model = SpeedModel::of_theta(form, theta);
    let shape = Shape::new(gpus, gpus);
    let work = seconds.max(1.0) * model.work_per_s(shape);
    Job {
        id: format!("p{number}"),
        arrival_s,
        model: "philly".to_owned(),
        mode: Mode::Sync,
        batch: Batch::PerWorker(1),
        worker: Resources::new(1_000, 1 << 30, 1),
        server: Resources::new(100, 1 << 30, 0),
        min: Shape::new(1, 1),
        max: Shape::new(gpus * 2, gpus * 2),
        requested: Some(shape),
        priority: 1.0,
        speed: Speed::Theta(model),
        work,
        rescale_cost_s: 15.0,
        loss: None,
    }
}

fn main() {
    let argument = |at: usize| std::env::args().filter(|a| !a.starts_with('-')).nth(at);
    let nodes = argument(1).and_then(|n| n.parse().ok()).unwrap_or(250_usize);
    let jobs_max = argument(2).and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
    let names = argument(3)
        .map_or_else(|| vec!["fifo".to_owned(), "optimus".to_owned()], |name| vec![name]);
    let spacing_s = argument(4).and_then(|n| n.parse().ok()).unwrap_or(60.0_f64);
    let node = |number: usize| {
        let id: NodeId = format!("n{number:05}").parse().expect("it is plain");
        (id, Resources::new(128_000, 512 << 30, 8))
    };
    let cluster = Cluster { nodes: (0..nodes).map(node).collect() };
    let jobs: Vec<Job> =
        trace().into_iter().take(jobs_max).enumerate().map(|(n, job)| self::job(n, job)).collect();
    let workload = Workload { jobs };
    println!(
        "{:10} {:>8} {:>8} {:>8} {:>9} {:>10} {:>9}",
        "policy", "jobs", "rounds", "restarts", "s", "mean JCT", "MB"
    );
    for name in names {
        let policy = Policy::by_name(&name).expect("it is a policy");
        let options = Options {
            policy,
            policy_name: name.clone(),
            estimates: Estimates::Errors { work: 0.2, speed: 0.1 },
            rounds: Rounds { interval_s: 600.0, spacing_s: Some(spacing_s) },
            ..Options::default()
        };
        let begun = Instant::now();
        let outcome = run(&cluster, &workload, &options, &mut |progress| {
            if std::env::var("PROGRESS").is_ok() {
                eprintln!("{progress:?} {:.1}", begun.elapsed().as_secs_f64());
            }
        });
        match outcome {
            Ok(outcome) => println!(
                "{name:10} {:8} {:8} {:8} {:9.1} {:10.0} {:9.0}",
                outcome.completion_times().len(),
                outcome.rounds,
                outcome.jobs.iter().map(|job| job.restarts).sum::<u32>(),
                begun.elapsed().as_secs_f64(),
                mean(&outcome.completion_times()).unwrap_or(f64::NAN),
                memory_megabytes()
            ),
            Err(error) => println!("{name:10} {error}"),
        }
    }
}

/// Most memory of this process so far, where the kernel says it.
fn memory_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.map_or(f64::NAN, |kilobytes| kilobytes / 1024.0)
}
