//! Our own policy against Pollux on the Pollux paper's workloads, the frontier with jobs that share
//! what was measured and with an oracle, what no policy can beat, and the bootstrapped workloads on which it was tuned:
//! `cargo bench -p simulator --bench goodput [-- SEED …]`, seeds of bootstrapped workloads. Printed
//! are ratios to Pollux of mean completion time, its 99th percentile, and makespan.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use rand::RngExt;
use simulator::outcome::{Outcome, mean, percentile};
use simulator::random::stream;
use simulator::replay::{Folders, Options, Profiles, Row, bounds, read_rows, run};

const WORKLOADS: [&str; 4] = [
    "workloads/workload-1",
    "workloads/workload-3",
    "workloads/workload-6",
    "workloads-2.0/workload-6",
];
const JOBS: usize = 160;
const NODES: u32 = 16;

fn read(data: &Path, name: &str) -> Result<Vec<Row>, String> {
    let path = data.join(format!("{name}.csv"));
    read_rows(File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// So many jobs drawn from all workloads, each at the time of another one, give or take ten
/// minutes.
fn bootstrapped(data: &Path, seed: u64) -> Result<Vec<Row>, String> {
    let mut pool = Vec::new();
    for name in WORKLOADS {
        pool.extend(read(data, name)?);
    }
    let mut chance = stream(seed, "boot");
    let mut rows: Vec<Row> = (0..JOBS)
        .map(|at| {
            let job = pool[chance.random_range(0..pool.len())].clone();
            let near = pool[chance.random_range(0..pool.len())].time;
            let time = (near + chance.random_range(-600.0..600.0)).clamp(0.0, 28_800.0).round();
            Row { name: format!("{}-{at}", job.application), time, ..job }
        })
        .collect();
    rows.sort_by(|a, b| a.time.total_cmp(&b.time));
    Ok(rows)
}

fn numbers(outcome: &Outcome) -> [f64; 3] {
    let times = outcome.completion_times();
    [mean(&times), percentile(&times, 0.99), outcome.makespan_s()]
        .map(|value| value.unwrap_or(f64::NAN))
}

fn bench() -> Result<(), String> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/pollux");
    if !data.is_dir() {
        println!("{} is not there", data.display());
        return Ok(());
    }
    let folders = Folders::of(&data);
    let names = folders.names();
    let profiles = Profiles::load(&folders, names.iter().map(String::as_str))?;
    let seeds = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let mut all: Vec<(String, Vec<Row>)> = Vec::new();
    for seed in seeds {
        all.push((format!("bootstrapped {seed}"), bootstrapped(&data, seed)?));
    }
    if all.is_empty() {
        for name in WORKLOADS {
            all.push((name.to_owned(), read(&data, name)?));
        }
    }
    for (name, rows) in all {
        let replay = |policy: &str| {
            let options = Options { policy: policy.to_owned(), ..Options::default() };
            run(&profiles, &rows, NODES, &options)
        };
        let pollux = numbers(&replay("pollux")?);
        let [jct, p99, makespan] = pollux;
        println!("{name}: pollux {jct:.1} s, p99 {p99:.1} s, makespan {makespan:.0} s");
        let bound = bounds(&profiles, &rows, NODES, Options::default().restart_s)?;
        let below = bound.mean_s() / jct;
        println!(
            "{:>16} {:8.1} s: {below:.3} (each alone {:.1} s, GPUs pooled {:.1} s)",
            "bound",
            bound.mean_s(),
            bound.alone_s,
            bound.pooled_s
        );
        for policy in ["horizon", "horizon-shared", "horizon-oracle"] {
            let found = numbers(&replay(policy)?);
            let [a, b, c] = [0, 1, 2].map(|at| found[at] / pollux[at]);
            println!("{policy:>16} {:8.1} s: {a:.3}, p99 {b:.3}, makespan {c:.3}", found[0]);
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("{fault}");
            ExitCode::FAILURE
        }
    }
}
