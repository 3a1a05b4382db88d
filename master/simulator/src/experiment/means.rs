//! Figure 13: mean JCT and makespan in seconds.

use super::compare::{Case, Measured, baselines};
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

/// The paper's means and standard deviations over its three runs, in s: JCT, then makespan.
const PAPER: [(&str, (f64, f64), (f64, f64)); 3] = [
    ("Optimus", (1161.0, 64.0), (14_835.0, 817.0)),
    ("DRF", (2780.0, 233.0), (24_255.0, 2518.0)),
    ("Tetris", (2016.0, 120.0), (18_127.0, 1263.0)),
];

fn run(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = settings.runs.unwrap_or(EXPERIMENT.runs).max(1);
    let case = Case::of(baselines((2.39, 1.63), (1.74, 1.22)), runs);
    let measured = case.measure(settings)?;
    let mut report = Report { runs, assumptions: assumptions(), ..Report::default() };
    type Of = fn(&Measured) -> &Vec<f64>;
    type PaperOf = fn(&(&str, (f64, f64), (f64, f64))) -> (f64, f64);
    let metrics: [(&str, Of, PaperOf); 2] = [
        ("mean JCT", |measured| &measured.jct_s, |paper| paper.1),
        ("makespan", |measured| &measured.makespan_s, |paper| paper.2),
    ];
    for (what, of, paper_of) in metrics {
        let (mut papers, mut ours) = (Vec::new(), Vec::new());
        for (paper, measured) in PAPER.iter().zip(&measured) {
            let (mean, deviation) = paper_of(paper);
            let (our_mean, our_deviation) = spread(of(measured));
            let row = Row::of(format!("{} {what}", paper.0), Some(mean), mean_of(of(measured)));
            let note = format!("s; the paper's standard deviation is {deviation} s");
            report.rows.push(row.deviation(our_deviation).note(note));
            papers.push((mean, deviation));
            ours.push((our_mean.unwrap_or(0.0), our_deviation.unwrap_or(0.0)));
        }
        report.charts.push(Chart::Bars(Bars {
            title: format!("Testbed: {what}"),
            y: "s".to_owned(),
            groups: PAPER.iter().map(|paper| paper.0.to_owned()).collect(),
            series: vec![("paper".to_owned(), papers), ("ours".to_owned(), ours)],
        }));
    }
    Ok(report)
}
