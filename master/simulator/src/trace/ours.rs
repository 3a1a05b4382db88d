//! Our own traces: `id,arrival_s,model,mode,work_steps,min_workers,max_workers,max_servers`.

use std::collections::BTreeMap;

use model::job::TASKS_MAX;
use model::{Batch, Mode};

use super::table::{Row, TraceError, read};
use crate::models;

/// The header.
pub(super) const COLUMNS: &[&str] = &[
    "id",
    "arrival_s",
    "model",
    "mode",
    "work_steps",
    "min_workers",
    "max_workers",
    "max_servers",
];

/// Most steps of a job: in samples they are still told apart to the last one.
const STEPS_MAX: f64 = 1e9;

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct OursRow {
    pub line: usize,
    pub id: String,
    pub arrival_s: f64,
    /// Of the catalogue.
    pub model: &'static models::Known,
    pub mode: Mode,
    pub work_steps: f64,
    pub min_workers: u32,
    /// Where the workers share a step's samples, at most as many as these.
    pub max_workers: u32,
    pub max_servers: u32,
}

/// Reads a file, sorted by arrival.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn rows(text: &str) -> Result<Vec<OursRow>, TraceError> {
    let mut seen = BTreeMap::new();
    let mut rows = read(text, COLUMNS, |row| one(row, &mut seen))?;
    rows.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s).then(a.line.cmp(&b.line)));
    Ok(rows)
}

/// Most workers that share a step's samples, where they do.
fn feeds((model, mode): (&models::Known, Mode)) -> Option<u32> {
    match (mode, model.batch(mode)) {
        (Mode::Sync, Batch::Global(samples)) => Some(samples),
        (Mode::Sync, Batch::PerWorker(_)) | (Mode::Async, _) => None,
    }
}

fn one(row: &mut Row<'_>, seen: &mut BTreeMap<String, usize>) -> Option<OursRow> {
    let names: Vec<&str> = models::KNOWN.iter().map(|model| model.name).collect();
    let id = row.id(0, seen);
    let arrival_s = row.instant(1);
    let model = row.word(2, "model", &names);
    let mode = row.word(3, "mode", &["sync", "async"]);
    let fits = |value: f64| value > 0.0 && value <= STEPS_MAX;
    let work_steps = row.number(4, "steps above 0, up to 1e9", fits);
    let min_workers = row.count(5, (1, TASKS_MAX));
    let max_workers = row.count(6, (1, TASKS_MAX));
    let max_servers = row.count(7, (1, TASKS_MAX));
    if let (Some(min), Some(max)) = (min_workers, max_workers)
        && min > max
    {
        let problem = format!("{min} is above max_workers {max}");
        row.fault(5, problem, "raise max_workers or lower min_workers".to_owned());
        return None;
    }
    let mode = mode.map(|place| if place == 0 { Mode::Sync } else { Mode::Async });
    let model = model.map(|place| &models::KNOWN[place]);
    if let (Some(min), Some(most)) = (min_workers, model.zip(mode).and_then(feeds))
        && min > most
    {
        let problem = format!("is {min}, and a step has {most} samples in all");
        row.fault(5, problem, "lower it: each worker needs a sample".to_owned());
        return None;
    }
    Some(OursRow {
        line: row.line,
        id: id?,
        arrival_s: arrival_s?,
        model: model?,
        mode: mode?,
        work_steps: work_steps?,
        min_workers: min_workers?,
        max_workers: max_workers?.min(model.zip(mode).and_then(feeds).unwrap_or(u32::MAX)),
        max_servers: max_servers?,
    })
}
