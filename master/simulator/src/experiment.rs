//! The papers' experiments: each gives the paper's numbers beside ours, with what was assumed, and
//! charts.
//!
//! An experiment decides nothing about threads and clocks: whoever runs it lends it [`Hands`].

mod adjust;
mod compare;
mod errors;
mod figures;
mod means;
mod policy_study;
mod pollux;
mod scheduling_time;
mod testbed;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::plot::Chart;
use crate::words::nearest;

/// Schema of a report.
pub const SCHEMA: &str = "optimus.experiment/1";

/// What an experiment has done for it, as this crate has no threads and no clock.
pub trait Hands: fmt::Debug + Sync {
    /// Does work number 0 to `count` − 1 in any order, several at a time, and gives the numbers
    /// that each came to in the order of the work.
    ///
    /// # Errors
    /// The first failure by number.
    fn each(&self, count: u32, work: &Work<'_>) -> Result<Vec<Vec<f64>>, String>;

    /// Seconds since some instant, for measuring how long something takes.
    fn seconds(&self) -> f64;

    /// Tells a person how far things are.
    fn progress(&self, text: &str);
}

/// One piece of an experiment, such as all runs of a seed: numbers, or why there are none.
pub type Work<'a> = dyn Fn(u32) -> Result<Vec<f64>, String> + Sync + 'a;

/// How to run an experiment.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// Runs with other seeds; none for as many as the paper has.
    pub runs: Option<u32>,
    /// The first seed; the others follow it.
    pub seed: u64,
    /// The folder with the papers' data, for experiments that need more than is built in.
    pub data: Option<PathBuf>,
    pub hands: &'a dyn Hands,
}

impl Settings<'_> {
    /// The seed of a run.
    #[must_use]
    pub fn seed_of(&self, run: u32) -> u64 {
        self.seed.wrapping_add(u64::from(run))
    }

    /// The data folder.
    ///
    /// # Errors
    /// Where none was named.
    pub fn data(&self) -> Result<&PathBuf, String> {
        self.data.as_ref().ok_or_else(|| "needs the papers' data: name it with --data".to_owned())
    }
}

/// One number of the paper beside ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    pub what: String,
    /// Null where the paper has none.
    pub paper: Option<f64>,
    /// Null where none came out.
    pub ours: Option<f64>,
    /// Standard deviation over runs; null where there was one run, or it says nothing.
    pub deviation: Option<f64>,
    /// Standard error of ours over runs; null where there was one run.
    pub error: Option<f64>,
    /// Ours over the paper's.
    pub ratio: Option<f64>,
    /// Unit of both, and what explains a difference.
    pub note: String,
}

impl Row {
    #[must_use]
    pub fn new(what: impl Into<String>, paper: Option<f64>, ours: Option<f64>) -> Self {
        let finite = |value: Option<f64>| value.filter(|value: &f64| value.is_finite());
        let (paper, ours) = (finite(paper), finite(ours));
        let ratio = finite(ours.zip(paper).map(|(ours, paper)| ours / paper));
        Self { what: what.into(), paper, ours, ratio, ..Self::default() }
    }

    /// Ours with its standard error.
    #[must_use]
    pub fn of(
        what: impl Into<String>,
        paper: Option<f64>,
        (ours, error): (Option<f64>, Option<f64>),
    ) -> Self {
        let error = error.filter(|error| error.is_finite());
        Self { error, ..Self::new(what, paper, ours) }
    }

    #[must_use]
    pub fn deviation(mut self, deviation: Option<f64>) -> Self {
        self.deviation = deviation.filter(|value| value.is_finite());
        self
    }

    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

/// What an experiment came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub rows: Vec<Row>,
    /// What was assumed where the paper is silent, in sentences.
    pub assumptions: Vec<String>,
    pub charts: Vec<Chart>,
    /// How many runs it was.
    pub runs: u32,
}

/// An experiment by its name.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    pub name: &'static str,
    /// Where the paper shows it.
    pub figure: &'static str,
    pub title: &'static str,
    /// Runs that the paper has.
    pub runs: u32,
    pub run: fn(&Settings<'_>) -> Result<Report, String>,
}

/// All of them, in the order that they are listed.
pub const EXPERIMENTS: &[Experiment] = &[
    figures::FIG11,
    scheduling_time::EXPERIMENT,
    means::EXPERIMENT,
    errors::EXPERIMENT,
    figures::FIG16,
    figures::FIG17,
    figures::FIG18,
    figures::FIG19,
    adjust::PRIORITY,
    adjust::OVERHEAD,
    policy_study::EXPERIMENT,
    pollux::EXPERIMENT,
];

/// The experiment of this name.
///
/// # Errors
/// Which one may have been meant.
pub fn find(name: &str) -> Result<&'static Experiment, String> {
    let names = || EXPERIMENTS.iter().map(|experiment| experiment.name);
    EXPERIMENTS.iter().find(|experiment| experiment.name == name).ok_or_else(|| {
        let meant =
            nearest(name, names()).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
        format!("{meant}there are {}", names().collect::<Vec<_>>().join(", "))
    })
}

/// The JSON of a report, `optimus.experiment/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportJson<'a> {
    pub schema: &'static str,
    pub name: &'static str,
    pub figure: &'static str,
    pub title: &'static str,
    pub runs: u32,
    pub seed: u64,
    pub rows: &'a [Row],
    pub assumptions: &'a [String],
}

impl Experiment {
    /// A report of this experiment as JSON has it.
    #[must_use]
    pub fn json<'a>(&self, report: &'a Report, seed: u64) -> ReportJson<'a> {
        ReportJson {
            schema: SCHEMA,
            name: self.name,
            figure: self.figure,
            title: self.title,
            runs: report.runs,
            seed,
            rows: &report.rows,
            assumptions: &report.assumptions,
        }
    }
}

/// Mean of one number over runs, and the standard error of that mean.
#[must_use]
pub fn mean_of(values: &[f64]) -> (Option<f64>, Option<f64>) {
    let (mean, deviation) = spread(values);
    let runs = u32::try_from(values.len()).map_or(f64::INFINITY, f64::from);
    (mean, deviation.map(|deviation| deviation / runs.sqrt()))
}

/// Mean and standard deviation (over n − 1) of one number over runs.
#[must_use]
pub fn spread(values: &[f64]) -> (Option<f64>, Option<f64>) {
    let Some(mean) = crate::outcome::mean(values) else { return (None, None) };
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    let others = u32::try_from(values.len()).ok().and_then(|count| count.checked_sub(1));
    let deviation = others.filter(|others| *others > 0).map(|others| squares / f64::from(others));
    (Some(mean), deviation.map(f64::sqrt))
}
