//! Charts as SVG: lines over time, lines with error bars, and bars.
//!
//! The writer is our own: what charts here need is a page of it, and a library would bring fonts
//! and dates, hide text from screen readers, and leave the order of bytes to its version. Each
//! chart has a title and a description that a screen reader tells, axes with units, a legend, and
//! colours that can be told apart by people who see colours differently, on white.

mod axis;
mod chart;
mod svg;

pub use self::chart::{Bars, Chart, Line, Lines, Point, document};

use crate::outcome::Outcome;

/// The charts of runs over time: running tasks, the used share of the cluster, and waiting jobs.
#[must_use]
pub fn over_time(title: &str, runs: &[&Outcome]) -> String {
    type Of = fn(&crate::outcome::Sample) -> f64;
    let chart = |what: &str, unit: &str, of: Of, most: Option<f64>| {
        let line = |run: &&Outcome| Line {
            name: name(run, runs),
            points: run.samples.iter().map(|sample| Point::new(sample.at_s, of(sample))).collect(),
            steps: true,
        };
        let lines = runs.iter().map(line).collect();
        Chart::Lines(Lines {
            title: what.to_owned(),
            x: "time since the first arrival in s".to_owned(),
            y: unit.to_owned(),
            lines,
            y_most: most,
            log_x: false,
        })
    };
    document(
        title,
        &[
            chart("Running tasks", "servers and workers", |at| f64::from(at.tasks), None),
            chart("Utilisation", "largest used share in %", |at| at.used * 100.0, Some(100.0)),
            chart("Waiting jobs", "jobs", |at| f64::from(at.jobs_waiting), None),
        ],
    )
}

/// The policy, and the seed where one policy ran more than once.
fn name(run: &Outcome, runs: &[&Outcome]) -> String {
    if runs.iter().filter(|other| other.policy == run.policy).count() > 1 {
        return format!("{}, seed {}", run.policy, run.seed);
    }
    run.policy.clone()
}
