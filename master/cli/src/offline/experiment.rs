//! `optimus experiment`: the papers' figures with their numbers beside ours.

use std::sync::Mutex;
use std::time::Instant;

use serde::Serialize;
use simulator::experiment::{EXPERIMENTS, Hands, ReportJson, Row, SCHEMA, Settings, Work, find};
use simulator::plot;

use super::workers::{each, threads};
use super::{check_writable, write};
use crate::args::ExperimentArgs;
use crate::clock;
use crate::commands::Context;
use crate::failure::{Exit, Failure};
use crate::grid::Cell;
use crate::listing::{Column, Format, Item, Kind, View, line, pretty};
use crate::output::Output;
use crate::text::{count, span};

/// Runs an experiment, or lists all.
///
/// # Errors
/// Where there is no such experiment, or it came to nothing.
pub(crate) fn experiment(context: &mut Context<'_>, args: &ExperimentArgs) -> Result<(), Failure> {
    if args.name == "list" {
        return list(context);
    }
    let experiment = find(&args.name).map_err(|hint| {
        Failure::new(Exit::NotFound, format!("there is no experiment {:?}", args.name), hint)
    })?;
    args.svg.as_deref().map_or(Ok(()), check_writable)?;
    if let Some(data) = args.data.as_ref().filter(|data| !data.is_dir()) {
        let message = format!("{} is not a folder", data.display());
        return Err(Failure::invalid(message, "name the folder of the papers' data"));
    }
    let start = clock::instant();
    let hands = Lent { start, threads: threads(args.threads), output: Mutex::new(context.output) };
    let settings =
        Settings { runs: args.runs, seed: args.seed, data: args.data.clone(), hands: &hands };
    let report = (experiment.run)(&settings)
        .map_err(|error| Failure::invalid(format!("{}: {error}", experiment.name), ""))?;
    if let Some(path) = &args.svg {
        let title = format!("{}: {}", experiment.figure, experiment.title);
        write(path, &plot::document(&title, &report.charts))?;
    }
    let json = experiment.json(&report, args.seed);
    print(context, &json)?;
    let runs = usize::try_from(report.runs).unwrap_or(usize::MAX);
    let took = span(clock::instant().duration_since(start).as_secs_f64());
    context.output.talk(&format!("{}: {} in {took}", experiment.name, count(runs, "run", "runs")));
    Ok(())
}

/// Threads, clock and progress, lent to an experiment.
#[derive(Debug)]
struct Lent<'a> {
    start: Instant,
    threads: usize,
    output: Mutex<&'a mut Output>,
}

impl Hands for Lent<'_> {
    fn each(&self, count: u32, work: &Work<'_>) -> Result<Vec<Vec<f64>>, String> {
        let mut told = |done: u32| self.progress(&format!("{done} of {count} done"));
        each(count, self.threads, work, &mut told)
    }

    fn seconds(&self) -> f64 {
        clock::instant().duration_since(self.start).as_secs_f64()
    }

    fn progress(&self, text: &str) {
        // A thread that panicked while it showed progress ends the program anyway.
        if let Ok(mut output) = self.output.lock() {
            output.progress(text);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ExperimentItem {
    name: &'static str,
    figure: &'static str,
    title: &'static str,
    /// Without `--runs`.
    runs: u32,
}

impl Item for ExperimentItem {
    fn key(&self) -> String {
        self.name.to_owned()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

static EXPERIMENT_LIST: Kind<ExperimentItem> = Kind {
    schema: "optimus.experiments/1",
    field: "experiments",
    columns: &[
        Column::left("name", |row: &ExperimentItem| Cell::text(row.name)),
        Column::left("figure", |row: &ExperimentItem| Cell::text(row.figure)),
        Column::right("runs", |row: &ExperimentItem| Cell::count(u64::from(row.runs))).rank(1),
        Column::sentence("title", |row: &ExperimentItem| Cell::text(row.title)),
    ],
};

fn list(context: &mut Context<'_>) -> Result<(), Failure> {
    let item = |experiment: &simulator::experiment::Experiment| ExperimentItem {
        name: experiment.name,
        figure: experiment.figure,
        title: experiment.title,
        runs: experiment.runs,
    };
    let rows: Vec<ExperimentItem> = EXPERIMENTS.iter().map(item).collect();
    let view = View { format: context.format, header: true, ..View::default() };
    let style = context.output.style(false);
    let choice = EXPERIMENT_LIST.choose(&view)?;
    context.output.data(&EXPERIMENT_LIST.render(&rows, &choice, &view, &style))
}

/// A row as it is listed.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct RowItem(Row);

impl Item for RowItem {
    fn key(&self) -> String {
        self.0.what.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

static ROWS: Kind<RowItem> = Kind {
    schema: SCHEMA,
    field: "rows",
    columns: &[
        Column::name("what", |row: &RowItem| Cell::text(row.0.what.as_str())),
        Column::right("paper", |row: &RowItem| Cell::number(row.0.paper)),
        Column::right("ours", |row: &RowItem| Cell::number(row.0.ours)),
        Column::right("±", |row: &RowItem| Cell::number(row.0.error.or(row.0.deviation))).rank(2),
        Column::right("ours/paper", |row: &RowItem| Cell::number(row.0.ratio)).rank(1),
        Column::sentence("note", |row: &RowItem| Cell::text(row.0.note.as_str())),
    ],
};

fn print(context: &mut Context<'_>, json: &ReportJson<'_>) -> Result<(), Failure> {
    match context.format {
        Format::Json => context.output.data(&(pretty(json) + "\n")),
        Format::Jsonl => context.output.data(&line(json)),
        Format::Name | Format::Table | Format::Wide => {
            let rows: Vec<RowItem> = json.rows.iter().cloned().map(RowItem).collect();
            let view = View { format: context.format, header: true, ..View::default() };
            let style = context.output.style(false);
            let text = ROWS.render(&rows, &ROWS.choose(&view)?, &view, &style);
            context.output.data(&text)?;
            context.output.talk(&format!("{}: {}", json.figure, json.title));
            for assumption in json.assumptions {
                context.output.talk(&format!("assumed: {assumption}"));
            }
            Ok(())
        }
    }
}
