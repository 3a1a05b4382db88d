//! Figure 13: mean JCT and makespan in seconds.

use super::compare::{Case, Measured, baselines, horizon};
use super::testbed::assumptions;
use super::{Experiment, Report, Row, Settings, mean_of, spread};
use crate::plot::{Bars, Chart};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "fig13",
    figure: "Figure 13",
    title: "Mean JCT and makespan on the testbed in seconds",
    runs: 3,
    run,
};

/// A mean and a standard deviation.
type Given = (f64, f64);

/// The paper's means and standard deviations over its three runs, in s: JCT, then makespan.
const PAPER: [(&str, Given, Given); 3] = [
    ("Optimus", (1161.0, 64.0), (14_835.0, 817.0)),
    ("DRF", (2780.0, 233.0), (24_255.0, 2518.0)),
    ("Tetris", (2016.0, 120.0), (18_127.0, 1263.0)),
];

/// What is measured: its name, where it is, and the paper's by policy.
type Metric = (&'static str, fn(&Measured) -> &Vec<f64>, fn(usize) -> Option<Given>);

fn run(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = settings.runs.unwrap_or(EXPERIMENT.runs).max(1);
    let mut rivals = baselines((2.39, 1.63), (1.74, 1.22));
    rivals.extend(horizon());
    let case = Case::of(rivals, runs);
    let measured = case.measure(settings)?;
    let mut report = Report { runs, assumptions: assumptions(), ..Report::default() };
    let metrics: [Metric; 2] = [
        ("mean JCT", |measured| &measured.jct_s, |at| PAPER.get(at).map(|paper| paper.1)),
        ("makespan", |measured| &measured.makespan_s, |at| PAPER.get(at).map(|paper| paper.2)),
    ];
    for (what, of, paper_of) in metrics {
        let (mut groups, mut papers, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (contender, measured)) in case.contenders().zip(&measured).enumerate() {
            let paper = paper_of(at);
            let (mean, deviation) = spread(of(measured));
            let label = format!("{} {what}", contender.name);
            let row = Row::of(label, paper.map(|paper| paper.0), mean_of(of(measured)));
            let note = paper.map_or_else(
                || "s".to_owned(),
                |(_, deviation)| format!("s; the paper's standard deviation is {deviation} s"),
            );
            report.rows.push(row.deviation(deviation).note(note));
            groups.push(contender.name.to_owned());
            papers.push(paper.unwrap_or_default());
            ours.push((mean.unwrap_or(0.0), deviation.unwrap_or(0.0)));
        }
        report.charts.push(Chart::Bars(Bars {
            title: format!("Testbed: {what}"),
            y: "s".to_owned(),
            groups,
            series: vec![("paper".to_owned(), papers), ("ours".to_owned(), ours)],
        }));
    }
    Ok(report)
}
