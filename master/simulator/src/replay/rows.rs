//! The Pollux paper's workloads: `name,time,application,num_replicas,batch_size`.

use std::collections::BTreeSet;
use std::io::Read;

use csv::{ReaderBuilder, StringRecord};

/// A job of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub name: String,
    /// Second of its submission.
    pub time: f64,
    pub application: String,
    /// What its owner asks for, and trains with: for policies that do not choose themselves.
    pub num_replicas: u32,
    pub batch_size: u32,
}

/// Later than any workload ends: a hundred years.
pub(super) const TIME_MAX: f64 = 3.2e9;
/// As many replicas as a job may have anywhere.
const REPLICAS_MAX: u32 = 1 << 16;

/// Reads a workload, and sorts it by time; jobs of one time keep the order of the file.
///
/// # Errors
/// Names the line and the column that is wrong.
pub fn read_rows(source: impl Read) -> Result<Vec<Row>, String> {
    let mut reader = ReaderBuilder::new().trim(csv::Trim::All).from_reader(source);
    let header = reader.headers().map_err(|error| error.to_string())?;
    let mut places = [0; 5];
    let names = ["name", "time", "application", "num_replicas", "batch_size"];
    for (place, name) in places.iter_mut().zip(names) {
        let found = header.iter().position(|held| held == name);
        *place = found.ok_or_else(|| format!("line 1: there is no column {name}"))?;
    }
    let (mut rows, mut known) = (Vec::new(), BTreeSet::new());
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| error.to_string())? {
        let line = record.position().map_or(0, csv::Position::line);
        let text = |at: usize| record.get(places[at]).unwrap_or_default();
        let fault = |at: usize, what: &str| {
            format!("line {line}, column {}: {:?} {what}", names[at], text(at))
        };
        let count = |at: usize, most: u32| {
            let count = text(at).parse().ok().filter(|count| (1..=most).contains(count));
            count.ok_or_else(|| fault(at, &format!("is not a whole number from 1 to {most}")))
        };
        let time = text(1).parse().ok().filter(|time| (0.0..=TIME_MAX).contains(time));
        let row = Row {
            name: text(0).to_owned(),
            time: time.ok_or_else(|| fault(1, "is not a time in seconds of at least 0"))?,
            application: text(2).to_owned(),
            num_replicas: count(3, REPLICAS_MAX)?,
            batch_size: count(4, super::profile::BATCH_MAX)?,
        };
        for at in [0, 2] {
            if text(at).is_empty() {
                return Err(fault(at, "is empty"));
            }
        }
        if !known.insert(row.name.clone()) {
            return Err(fault(0, "is there twice"));
        }
        rows.push(row);
    }
    rows.sort_by(|a: &Row, b: &Row| a.time.total_cmp(&b.time));
    Ok(rows)
}
