//! Our policy on workloads with goodput: `goodput SOURCE…`, where a source is a file or `boot:SEED`.
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use rand::RngExt;
use scheduler::allocate::horizon::Foresight;
use scheduler::goodput::horizon::Settings;
use simulator::outcome::{mean, percentile};
use simulator::random::stream;
use simulator::replay::{run, run_with, Folders, Horizon, Options, Profiles, Row, read_rows};

fn knob(name: &str, value: f64) -> f64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(value)
}

fn boot(data: &Path, seed: u64) -> Vec<Row> {
    let mut pool = Vec::new();
    for name in ["workloads/workload-1.csv", "workloads/workload-3.csv", "workloads/workload-6.csv", "workloads-2.0/workload-6.csv"] {
        pool.extend(read_rows(File::open(data.join(name)).unwrap()).unwrap());
    }
    let mut random = stream(seed, "boot");
    let mut rows: Vec<Row> = (0..160).map(|at| {
        let job = pool[random.random_range(0..pool.len())].clone();
        let near = &pool[random.random_range(0..pool.len())];
        let time = (near.time + random.random_range(-600.0..600.0)).clamp(0.0, 28_800.0).round();
        Row { name: format!("{}-{at}", job.application), time, ..job }
    }).collect();
    rows.sort_by(|a, b| a.time.total_cmp(&b.time));
    rows
}

fn main() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/pollux");
    let folders = Folders::of(&data);
    let names = folders.names();
    let profiles = Profiles::load(&folders, names.iter().map(String::as_str)).unwrap();
    let settings = Settings::default();
    let settings = Settings {
        foresight: Foresight { fairness: knob("FAIR", settings.foresight.fairness), coming: knob("COMING", settings.foresight.coming), span: knob("SPAN", settings.foresight.span) },
        unknown_s: knob("UNKNOWN", settings.unknown_s),
        early: knob("EARLY", settings.early),
        first_max: knob("FIRST", f64::from(settings.first_max)) as u32,
        growth_max: knob("GROW", f64::from(settings.growth_max)) as u32,
        first_power: knob("FIRSTPOW", settings.first_power),
        nodes_factor: knob("NODES", settings.nodes_factor),
        local_part: knob("LOCAL", settings.local_part),
        ..settings
    };
    let detail = knob("DETAIL", 0.0) > 0.0;
    let policy = std::env::var("POLICY").unwrap_or("horizon".into());
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let mut all = Vec::new();
    for source in &args {
        let rows = match source.split_once(':') {
            Some(("boot", seed)) => boot(&data, seed.parse().unwrap()),
            _ => read_rows(File::open(data.join(format!("{source}.csv"))).unwrap()).unwrap(),
        };
        let options = Options { policy: policy.clone(), interval_s: if policy == "horizon" { knob("TICK", 60.0) } else { 60.0 }, ..Options::default() };
        let start = std::time::Instant::now();
        let outcome = if policy == "horizon" {
            run_with(&profiles, &rows, 16, &options, &mut if knob("ORACLE", 0.0) > 0.0 { Horizon::with_oracle(settings) } else if knob("SHARE", 0.0) > 0.0 { Horizon::sharing(settings) } else { Horizon::new(settings) }).unwrap()
        } else { run(&profiles, &rows, 16, &options).unwrap() };
        let took = start.elapsed().as_secs_f64();
        let times = outcome.completion_times();
        let (m, p50, p99, mk) = (mean(&times).unwrap(), percentile(&times, 0.5).unwrap(), percentile(&times, 0.99).unwrap(), outcome.makespan_s().unwrap_or(0.0));
        let known: BTreeMap<String, [f64; 3]> = std::fs::read_to_string("/work/h/ghorizon/target/pollux.txt").unwrap_or_default().lines().filter_map(|l| {
            let f: Vec<&str> = l.split_whitespace().collect();
            Some((f.first()?.to_string(), [f[1].parse().ok()?, f[2].parse().ok()?, f[3].parse().ok()?]))
        }).collect();
        let base = known.get(source).copied().unwrap_or([f64::NAN; 3]);
        println!("{source} {m:.1} {p99:.1} {mk:.0} p50 {p50:.0} | to pollux {:.3} p99 {:.3} mk {:.3} | {} restarts {} rounds {took:.2} s",
            m / base[0], p99 / base[1], mk / base[2], outcome.jobs.iter().map(|j| j.restarts).sum::<u32>(), outcome.rounds);
        all.push([m / base[0], p99 / base[1], mk / base[2]]);
        if detail {
            let mut apps: BTreeMap<&str, Vec<(f64, f64, f64)>> = BTreeMap::new();
            for job in &outcome.jobs {
                let jct = job.completion_s.unwrap_or(f64::NAN) - job.arrival_s;
                apps.entry(&job.model).or_default().push((jct, f64::from(job.restarts), job.started_s.unwrap_or(f64::NAN) - job.arrival_s));
            }
            for (app, all) in apps {
                let n = all.len() as f64;
                let sum = all.iter().fold((0.0, 0.0, 0.0), |s, a| (s.0 + a.0, s.1 + a.1, s.2 + a.2));
                println!("   {app:12} n {n:3} mean {:8.1} share {:7.1} restarts {:.1} wait {:.1}", sum.0 / n, sum.0 / 160.0, sum.1 / n, sum.2 / n);
            }
            let mut longest: Vec<_> = outcome.jobs.iter().map(|j| (j.completion_s.unwrap_or(f64::NAN) - j.arrival_s, j.id.clone(), j.arrival_s)).collect();
            longest.sort_by(|a, b| b.0.total_cmp(&a.0));
            println!("   longest {:?}", &longest[..5]);
        }
        if knob("LINES", 0.0) > 0.0 {
            for job in &outcome.jobs {
                if std::env::var("JOB").is_ok_and(|name| name != job.id) { continue; }
                print!("  {} at {} jct {:.0}:", job.id, job.arrival_s, job.completion_s.unwrap_or(f64::NAN) - job.arrival_s);
                for span in &job.timeline { print!(" {:.0}:{}/{}", span.at_s - job.arrival_s, span.workers, span.nodes); }
                println!();
            }
        }
    }
    let n = all.len() as f64;
    let s = all.iter().fold([0.0; 3], |s, a| [s[0] + a[0], s[1] + a[1], s[2] + a[2]]);
    println!("MEAN {:.4} p99 {:.4} mk {:.4}", s[0] / n, s[1] / n, s[2] / n);
}
