//! The workloads of the Pollux paper: `name,time,application,num_replicas,batch_size`.

use std::collections::BTreeMap;

use model::job::TASKS_MAX;

use super::table::{Row, TraceError, read};

/// The header.
pub(super) const COLUMNS: &[&str] = &["name", "time", "application", "num_replicas", "batch_size"];

/// The applications that were profiled, with the least and the largest batch in samples.
pub const APPLICATIONS: [(&str, u32, u32); 6] = [
    ("bert", 12, 384),
    ("cifar10", 128, 4096),
    ("deepspeech2", 20, 640),
    ("imagenet", 200, 12_800),
    ("ncf", 256, 32_768),
    ("yolov3", 8, 512),
];

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct PolluxRow {
    pub line: usize,
    pub name: String,
    /// Submission, in s.
    pub time_s: f64,
    pub application: &'static str,
    /// GPUs that its owner asks for.
    pub num_replicas: u32,
    /// Samples of a step, of all replicas.
    pub batch_size: u32,
}

/// Reads a file, sorted by submission.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn rows(text: &str) -> Result<Vec<PolluxRow>, TraceError> {
    let mut seen = BTreeMap::new();
    let mut rows = read(text, COLUMNS, |row| one(row, &mut seen))?;
    rows.sort_by(|a, b| a.time_s.total_cmp(&b.time_s).then(a.line.cmp(&b.line)));
    Ok(rows)
}

fn one(row: &mut Row<'_>, seen: &mut BTreeMap<String, usize>) -> Option<PolluxRow> {
    let names: Vec<&str> = APPLICATIONS.iter().map(|(name, _, _)| *name).collect();
    let name = row.id(0, seen);
    let time_s = row.instant(1);
    let application = row.word(2, "application", &names).map(|place| APPLICATIONS[place]);
    let num_replicas = row.count(3, (1, TASKS_MAX));
    let range = application.map_or((1, 1 << 20), |(_, low, high)| (low, high));
    let batch_size = row.count(4, range);
    Some(PolluxRow {
        line: row.line,
        name: name?,
        time_s: time_s?,
        application: application?.0,
        num_replicas: num_replicas?,
        batch_size: batch_size?,
    })
}
