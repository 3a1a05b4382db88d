//! The policy study: one pool of task slots, without placement, in which our own policy was found.

use std::sync::Arc;

use super::{Experiment, Report, Row, Settings, spread};
use crate::outcome::{Outcome, mean, percentile};
use crate::plot::{Bars, Chart};
use crate::study::{Arrivals, Kind, Setting, Workload, bounds, finish_time_ratios, run};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "study",
    figure: "policy study",
    title: "Mean JCT and makespan of policies over those of the paper's at 600 s",
    runs: 100,
    run: study,
};

/// Beside the paper's at 600 s, with the ratios of mean JCT and makespan that a crude study of
/// these workloads gave under uniform arrivals, where it had the policy.
const KINDS: [(Kind, Option<(f64, f64)>); 4] = [
    (Kind::Optimus { period_s: None }, Some((0.86, 0.98))),
    (Kind::Horizon { fairness: 0.0 }, Some((0.61, 1.06))),
    (Kind::Horizon { fairness: 0.5 }, None),
    (Kind::Horizon { fairness: 1.0 }, None),
];

/// One kind of workload.
struct Load {
    name: &'static str,
    arrivals: Arrivals,
    setting: Setting,
}

fn study(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = settings.runs.unwrap_or(EXPERIMENT.runs).max(1);
    let mut report = Report {
        runs,
        assumptions: vec![
            "60 jobs over 12,000 s on 60 task slots, 15 s for a rescale, 20 % error in the work \
             left and 10 % in the speed that decay with the progress"
                .to_owned(),
            "the paper column is that of a crude study with 30 seeds and without the errors in \
             speed; its best policy is beside horizon"
                .to_owned(),
            "ratios are the mean over seeds of each seed's ratio".to_owned(),
        ],
        ..Report::default()
    };
    let setting = Setting::default();
    let mut loads = vec![
        Load { name: "uniform", arrivals: Arrivals::Uniform, setting },
        Load { name: "poisson", arrivals: Arrivals::Poisson, setting },
        Load {
            name: "45 slots",
            arrivals: Arrivals::Uniform,
            setting: Setting { slots: 45, ..setting },
        },
    ];
    match philly(settings)? {
        Some(times) => {
            let arrivals = Arrivals::Trace(times);
            loads.push(Load { name: "trace", arrivals, setting });
        }
        None => report.assumptions.push("without --data, no trace arrivals".to_owned()),
    }
    let names: Vec<String> = KINDS.iter().map(|(kind, _)| kind.name()).collect();
    let mut bars: Vec<(String, Vec<(f64, f64)>)> =
        names.into_iter().map(|name| (name, Vec::new())).collect();
    for load in &loads {
        let found = one(settings, load, runs)?;
        for ((at, (kind, study)), (_, bars)) in KINDS.iter().enumerate().zip(&mut bars) {
            let study = study.filter(|_| load.name == "uniform");
            bars.push(rows(&mut report, load, &kind.name(), (&found, at), study));
        }
        let (bound, deviation) = spread(&found.bounds);
        let what = format!("{}, no policy is below: mean JCT", load.name);
        report.rows.push(Row::new(what, None, bound).deviation(deviation).note("ratio"));
    }
    let groups = loads.iter().map(|load| load.name.to_owned()).collect();
    report.charts.push(Chart::Bars(Bars {
        title: "Mean JCT over that of the paper's allocation at 600 s".to_owned(),
        y: "ratio".to_owned(),
        groups,
        series: bars,
    }));
    Ok(report)
}

/// Submission times of the Philly trace, in s.
fn philly(settings: &Settings<'_>) -> Result<Option<Arc<[f64]>>, String> {
    let Some(data) = &settings.data else { return Ok(None) };
    let path = data.join("traces/philly.csv");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let crate::trace::Trace::Philly(rows) =
        crate::trace::read(&text).map_err(|error| format!("{}: {error}", path.display()))?
    else {
        return Err(format!("{} is not a Philly trace", path.display()));
    };
    Ok(Some(rows.iter().map(|row| row.arrival_s).collect()))
}

/// Ratios to the paper's policy of all seeds.
#[derive(Debug, Default)]
struct Found {
    /// By kind: of mean JCT, of the makespan, and the 99th percentile of the finish-time ratios of
    /// each seed's jobs.
    kinds: [[Vec<f64>; 3]; KINDS.len()],
    /// A bound of the mean JCT over the paper's.
    bounds: Vec<f64>,
}

fn one(settings: &Settings<'_>, load: &Load, runs: u32) -> Result<Found, String> {
    settings.hands.progress(&format!("{} arrivals", load.name));
    let all = settings.hands.each(runs, &|number| {
        let workload = Workload::generate(settings.seed_of(number), &load.arrivals, load.setting);
        let papers = met(&workload, &run(&workload, Kind::PAPERS))?;
        let mut numbers = Vec::new();
        for (kind, _) in KINDS {
            let [jct, makespan, late] = met(&workload, &run(&workload, kind))?;
            numbers.extend([jct / papers[0], makespan / papers[1], late]);
        }
        let bounds = bounds(&workload);
        numbers.push(bounds.alone_s.max(bounds.pooled_s) / papers[0]);
        Ok(numbers)
    })?;
    let mut found = Found::default();
    for numbers in all {
        let mut numbers = numbers.into_iter();
        let of_kinds = found.kinds.iter_mut().flatten();
        of_kinds.for_each(|list| list.extend(numbers.next()));
        found.bounds.extend(numbers.next());
    }
    Ok(found)
}

fn met(workload: &Workload, outcome: &Outcome) -> Result<[f64; 3], String> {
    let late = percentile(&finish_time_ratios(workload, outcome), 0.99);
    let found = mean(&outcome.completion_times()).zip(outcome.makespan_s()).zip(late);
    let ((jct, makespan), late) =
        found.ok_or_else(|| format!("seed {}: not every job ended", workload.seed))?;
    Ok([jct, makespan, late])
}

/// Adds a policy's rows and gives its bar.
fn rows(
    report: &mut Report,
    load: &Load,
    kind: &str,
    (found, at): (&Found, usize),
    study: Option<(f64, f64)>,
) -> (f64, f64) {
    let [jct, makespan, late] = &found.kinds[at];
    let mut bar = (0.0, 0.0);
    for (what, values, paper) in [
        ("mean JCT", jct, study.map(|(jct, _)| jct)),
        ("makespan", makespan, study.map(|(_, makespan)| makespan)),
        ("finish-time ratio p99", late, None),
    ] {
        let (mean, deviation) = spread(values);
        if what == "mean JCT" {
            bar = (mean.unwrap_or(0.0), deviation.unwrap_or(0.0));
        }
        let what = format!("{}, {kind}: {what}", load.name);
        report.rows.push(Row::new(what, paper, mean).deviation(deviation).note("ratio"));
    }
    bar
}
