//! Figure 15: what errors of the estimates cost.

use super::compare::{Case, Measured, over};
use super::testbed::assumptions;
use super::{Experiment, Report, Row, Settings};
use crate::plot::{Chart, Line, Lines, Point};
use crate::world::Estimates;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "fig15",
    figure: "Figure 15",
    title: "Mean JCT and makespan over errors of the estimates",
    runs: 100,
    run,
};

/// Relative errors.
const ERRORS: [f64; 6] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5];

/// What is estimated.
#[derive(Clone, Copy, Debug)]
struct Estimated {
    name: &'static str,
    of: fn(f64) -> Estimates,
    /// What that shows of a difference.
    note: &'static str,
    /// The paper's JCT and makespan over those without error, read off the figure.
    jct: [f64; 6],
    makespan: [f64; 6],
}

const CONVERGENCE: ([f64; 6], [f64; 6]) =
    ([1.0, 1.027, 1.129, 1.254, 1.312, 1.340], [1.0, 1.015, 1.039, 1.057, 1.067, 1.076]);
const SPEED: ([f64; 6], [f64; 6]) =
    ([1.0, 1.073, 1.284, 1.357, 1.471, 1.460], [1.0, 1.059, 1.118, 1.157, 1.176, 1.176]);

const ESTIMATED: [Estimated; 3] = [
    Estimated {
        name: "convergence",
        of: |work| Estimates::Errors { work, speed: 0.0 },
        note: "over that without",
        jct: CONVERGENCE.0,
        makespan: CONVERGENCE.1,
    },
    Estimated {
        name: "speed",
        of: |speed| Estimates::Errors { work: 0.0, speed },
        note: "over that without",
        jct: SPEED.0,
        makespan: SPEED.1,
    },
    Estimated {
        name: "scattered speed",
        of: |speed| Estimates::Scattered { work: 0.0, speed },
        note: "each coefficient wrong by itself, so that the best shape is wrong too",
        jct: SPEED.0,
        makespan: SPEED.1,
    },
];

/// A number by error: its name, the paper's, where it is measured, and where its lines go.
type Curve<'a> = (&'static str, &'a [f64; 6], fn(&Measured) -> &Vec<f64>, &'a mut Vec<Line>);

fn run(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = settings.runs.unwrap_or(EXPERIMENT.runs).max(1);
    let mut report = Report { runs, assumptions: assumptions(), ..Report::default() };
    // Each experiment here sets its own errors.
    report.assumptions.retain(|text| !text.starts_with("remaining work is known"));
    report.assumptions.push(
        "an error e makes v·(1 ± e) of a value v, the sign drawn for each job, and fades with \
         the share of the job's work that is left (section 6.3); the other value is true"
            .to_owned(),
    );
    let (mut jcts, mut makespans) = (Vec::new(), Vec::new());
    for estimated in ESTIMATED {
        let measured = ERRORS
            .iter()
            .map(|error| {
                settings.hands.progress(&format!("{} error {error}", estimated.name));
                let case = Case { estimates: (estimated.of)(*error), ..Case::of(Vec::new(), runs) };
                case.measure(settings)?.pop().ok_or_else(|| "nobody was measured".to_owned())
            })
            .collect::<Result<Vec<Measured>, String>>()?;
        let curves: [Curve<'_>; 2] = [
            ("mean JCT", &estimated.jct, |measured| &measured.jct_s, &mut jcts),
            ("makespan", &estimated.makespan, |measured| &measured.makespan_s, &mut makespans),
        ];
        for (what, paper, of, lines) in curves {
            let line = |name: String| Line { name, ..Line::default() };
            let mut ours = line(estimated.name.to_owned());
            let mut theirs = line(format!("{}, paper", estimated.name));
            for ((error, paper), one) in ERRORS.iter().zip(paper).zip(&measured) {
                let ratio = over(of(one), of(&measured[0]));
                let percent = error * 100.0;
                theirs.points.push(Point::new(percent, *paper));
                let (y, error) = (ratio.0.unwrap_or(1.0), ratio.1.unwrap_or(0.0));
                ours.points.push(Point { x: percent, y, error });
                let what = format!("{what} at {percent} % {} error", estimated.name);
                report.rows.push(Row::of(what, Some(*paper), ratio).note(estimated.note));
            }
            lines.extend([ours, theirs]);
        }
    }
    for (what, lines) in [("Mean JCT", jcts), ("Makespan", makespans)] {
        report.charts.push(Chart::Lines(Lines {
            title: what.to_owned(),
            x: "error of the estimate in %".to_owned(),
            y: "over that without error".to_owned(),
            lines,
            y_most: None,
            log_x: false,
        }));
    }
    Ok(report)
}
