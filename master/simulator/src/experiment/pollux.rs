//! The Pollux paper's workloads, replayed under its policy and its baselines.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{Experiment, Report, Row, Settings, mean_of};
use crate::outcome::{Outcome, mean, percentile};
use crate::plot::{Bars, Chart};
use crate::replay::{self, Bounds, Folders, Options, POLICIES, Profiles, bounds, read_rows};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "pollux",
    figure: "Pollux (OSDI'21), section 5.3",
    title: "The workloads of the Pollux paper under its policies",
    runs: 1,
    run,
};

/// Where the data lies beside a checkout.
const DATA: &str = "../shared/data/pollux";
const WORKLOADS: [&str; 3] = ["workload-1", "workload-3", "workload-6"];
/// Nodes of four GPUs.
const NODES: u32 = 16;
/// What is told of a run: its numbers' names.
const METRICS: [&str; 4] = ["mean JCT", "p50 JCT", "p99 JCT", "makespan"];

/// Published by the artifact, in s, in the order of [`METRICS`].
const PUBLISHED: [(&str, &str, [Option<f64>; 4]); 5] = [
    ("workload-1", "pollux", [Some(2089.0), None, None, None]),
    ("workload-3", "pollux", [Some(2188.0), None, None, None]),
    ("workload-6", "pollux", [Some(2446.0), None, Some(36_394.0), Some(58_589.0)]),
    ("workload-6", "optimus-oracle", [Some(5301.9), Some(2494.0), Some(44_771.0), Some(66_246.0)]),
    ("workload-6", "tiresias", [Some(3469.7), Some(1247.5), Some(46_335.5), Some(78_556.0)]),
];

fn run(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = settings.runs.unwrap_or(EXPERIMENT.runs).max(1);
    let data = settings.data.clone().unwrap_or_else(|| PathBuf::from(DATA));
    if !data.join("workloads").is_dir() {
        return Err(format!(
            "{} holds no workloads: name the folder of the Pollux paper's data with --data",
            data.display()
        ));
    }
    let workloads = WORKLOADS
        .iter()
        .map(|name| rows_of(&data, name))
        .collect::<Result<Vec<Vec<replay::Row>>, String>>()?;
    let applications = workloads.iter().flatten().map(|row| row.application.as_str());
    let profiles = Profiles::load(&Folders::of(&data), applications)?;
    // Pollux searches by chance; the others come to the same in every run.
    let of = |policy: &str| if policy == "pollux" { runs } else { 1 };
    let pieces: Vec<(usize, &str, u32)> = POLICIES
        .iter()
        .flat_map(|policy| {
            let each = move |workload| (0..of(policy)).map(move |run| (workload, *policy, run));
            (0..WORKLOADS.len()).flat_map(each)
        })
        .collect();
    settings.hands.progress("the Pollux paper's workloads");
    let work = |at: u32| {
        let piece = usize::try_from(at).ok().and_then(|at| pieces.get(at));
        let (workload, policy, run) = *piece.ok_or("there is no such piece")?;
        let seed = settings.seed_of(run);
        let options = Options { policy: policy.to_owned(), seed, ..Options::default() };
        numbers(&replay::run(&profiles, &workloads[workload], NODES, &options)?)
    };
    let count = u32::try_from(pieces.len()).map_err(|error| error.to_string())?;
    let numbers = settings.hands.each(count, &work)?;
    let mut report = Report {
        runs,
        assumptions: vec![
            "16 nodes of 4 GPUs, rounds every 60 s, 30 s for each start and restart, no \
             interference, as the paper's own simulator has them"
                .to_owned(),
            "Pollux searches by chance: its mean varies by about 2 % between seeds".to_owned(),
        ],
        ..Report::default()
    };
    for (workload, name) in WORKLOADS.iter().enumerate() {
        let of = |policy: &str| {
            let is_its = |piece: &&(usize, &str, u32)| piece.0 == workload && piece.1 == policy;
            let its = pieces.iter().zip(&numbers).filter(|(piece, _)| is_its(piece));
            its.map(|(_, numbers)| numbers.clone()).collect::<Vec<Vec<f64>>>()
        };
        let policies: Vec<(&str, Vec<Vec<f64>>)> =
            POLICIES.iter().map(|policy| (*policy, of(policy))).collect();
        tell(name, &policies, &mut report);
        let restart_s = Options::default().restart_s;
        let bound = bounds(&profiles, &workloads[workload], NODES, restart_s)?;
        compare(name, &policies, &bound, &mut report);
    }
    Ok(report)
}

/// A workload's rows and its chart.
fn tell(workload: &str, policies: &[(&str, Vec<Vec<f64>>)], report: &mut Report) {
    let (mut papers, mut ours) = (Vec::new(), Vec::new());
    for (policy, runs) in policies {
        let published = PUBLISHED.iter().find(|known| known.0 == workload && known.1 == *policy);
        for (at, metric) in METRICS.iter().enumerate() {
            let number = mean_of(&runs.iter().map(|run| run[at]).collect::<Vec<f64>>());
            let paper = published.and_then(|known| known.2[at]);
            report
                .rows
                .push(Row::of(format!("{workload} {policy} {metric}"), paper, number).note("s"));
            if at == 0 {
                papers.push((paper.unwrap_or(0.0), 0.0));
                ours.push((number.0.unwrap_or(0.0), number.1.unwrap_or(0.0)));
            }
        }
    }
    report.charts.push(Chart::Bars(Bars {
        title: format!("{workload}: mean JCT"),
        y: "s".to_owned(),
        groups: policies.iter().map(|(policy, _)| (*policy).to_owned()).collect(),
        series: vec![("paper".to_owned(), papers), ("ours".to_owned(), ours)],
    }));
}

/// Our own policies beside Pollux, and what no policy can beat.
fn compare(
    workload: &str,
    policies: &[(&str, Vec<Vec<f64>>)],
    bound: &Bounds,
    report: &mut Report,
) {
    let number = |name: &str, at: usize| {
        let runs = &policies.iter().find(|(policy, _)| *policy == name)?.1;
        mean_of(&runs.iter().map(|run| run[at]).collect::<Vec<f64>>()).0
    };
    for (policy, _) in policies.iter().filter(|(policy, _)| policy.starts_with("horizon")) {
        for (at, metric) in METRICS.iter().enumerate().filter(|(at, _)| *at != 1) {
            let ratio = number(policy, at).zip(number("pollux", at));
            let ratio = ratio.map(|(ours, pollux)| ours / pollux);
            let what = format!("{workload} {policy} over pollux, {metric}");
            let bar = match at {
                0 => "wanted of horizon: 0.85 at most",
                2 => "wanted of horizon: 1 at most",
                _ => "",
            };
            report.rows.push(Row::new(what, None, ratio).note(bar));
        }
    }
    let mean_s = bound.mean_s();
    let told = format!(
        "s; no policy can be below: each job alone {:.0} s, all GPUs as one {:.0} s",
        bound.alone_s, bound.pooled_s
    );
    report.rows.push(Row::new(format!("{workload} bound mean JCT"), None, Some(mean_s)).note(told));
    let over = number("pollux", 0).map(|pollux| mean_s / pollux);
    report.rows.push(Row::new(format!("{workload} bound over pollux, mean JCT"), None, over));
}

fn rows_of(data: &Path, name: &str) -> Result<Vec<replay::Row>, String> {
    let path = data.join("workloads").join(format!("{name}.csv"));
    let wrong = |error: String| format!("{}: {error}", path.display());
    let file = File::open(&path).map_err(|error| wrong(error.to_string()))?;
    read_rows(file).map_err(wrong)
}

/// In the order of [`METRICS`]; not a number where a job never ended.
fn numbers(outcome: &Outcome) -> Result<Vec<f64>, String> {
    let times = outcome.completion_times();
    let numbers =
        [mean(&times), percentile(&times, 0.5), percentile(&times, 0.99), outcome.makespan_s()];
    let all: Option<Vec<f64>> = numbers.into_iter().collect();
    all.ok_or_else(|| format!("{}: a job never ended", outcome.policy))
}
