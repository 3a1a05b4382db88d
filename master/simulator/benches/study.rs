//! The table of the policy study: `cargo bench -p simulator --bench study [FIRST [SEEDS]]`.

#![expect(clippy::print_stdout, reason = "a bench is read on the terminal")]

use std::path::Path;

use simulator::outcome::{Outcome, mean};
use simulator::study::{Arrivals, Kind, Met, Setting, Workload, bounds, run};

/// Submission times of philly.csv in s, sorted; none where the file is not there.
fn philly() -> Option<Vec<f64>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces/philly.csv");
    let text = std::fs::read_to_string(root).ok()?;
    Some(simulator::study::submission_times(&text))
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let first = numbers.first().copied().unwrap_or(1);
    let seeds = numbers.get(1).copied().unwrap_or(100);
    let setting = Setting::default();
    let exact = Setting { work_error: 0.0, speed_error: 0.0, ..setting };
    let free = Setting { rescale_cost_s: 0.0, ..exact };
    let wild = Setting { work_error: 0.5, speed_error: 0.25, ..setting };
    let mut loads = vec![
        ("uniform", Arrivals::Uniform, setting),
        ("poisson", Arrivals::Poisson, setting),
        ("45 slots", Arrivals::Uniform, Setting { slots: 45, ..setting }),
        ("30 slots", Arrivals::Uniform, Setting { slots: 30, ..setting }),
        ("50 % errors", Arrivals::Uniform, wild),
        ("no errors", Arrivals::Uniform, exact),
        ("free changes", Arrivals::Uniform, free),
    ];
    if let Some(times) = philly() {
        loads.insert(2, ("trace", Arrivals::Trace(times.into()), setting));
    }
    println!(
        "seeds {first} to {}; ratios to optimus at 600 s: mean of ratios (ratio of means)",
        first + seeds - 1
    );
    for (name, arrivals, setting) in loads {
        let workloads: Vec<Workload> = (first..first + seeds)
            .map(|seed| Workload::generate(seed, &arrivals, setting))
            .collect();
        let all = |kind: Kind| -> Vec<Outcome> {
            workloads.iter().map(|workload| run(workload, kind)).collect()
        };
        let papers = all(Kind::PAPERS);
        let kinds = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0].map(|fairness| Kind::Horizon { fairness });
        let others = [Kind::PAPERS, Kind::Optimus { period_s: None }];
        println!("{name}");
        for kind in others.into_iter().chain(kinds) {
            let runs = all(kind);
            let Some(met) = Met::of(&workloads, &runs, &papers) else { continue };
            println!(
                "  {:24} jct {:.4} ({:.4})  makespan {:.4} ({:.4})  finish-time ratio p99 {:.2} max {:.2}  mean {:.0} s, rescales {:.0} s",
                kind.name(),
                met.jct,
                met.jct_of_means,
                met.makespan,
                met.makespan_of_means,
                met.ratio_p99,
                met.ratio_max,
                met.mean_s,
                met.rescale_s
            );
        }
        let bounds: Vec<f64> = workloads
            .iter()
            .zip(&papers)
            .filter_map(|(workload, run)| {
                let bounds = bounds(workload);
                Some(bounds.alone_s.max(bounds.pooled_s) / mean(&run.completion_times())?)
            })
            .collect();
        println!("  no policy is below       jct {:.4}", mean(&bounds).unwrap_or(0.0));
    }
}
