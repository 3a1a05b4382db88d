//! A CSV file read with every fault at once, each with its line and column.

use std::collections::BTreeMap;
use std::fmt;

use csv::StringRecord;
use model::Fault;
use model::job::{NAME_BYTES_MAX, name_problem};

use crate::words::{line_at, nearest, whole};

/// Faults that are told; the rest are counted.
pub const FAULTS_MAX: usize = 20;
/// Most rows: ten times the largest trace known.
const ROWS_MAX: usize = 1_000_000;
/// Latest instant and longest duration in s, some 30 years: sums of them in ms stay exact.
pub(super) const TIME_S_MAX: f64 = 1e9;

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// From 1; none where the fault is of the file as a whole.
    pub line: Option<usize>,
    /// Its `field` is the column.
    pub fault: Fault,
}

/// Everything that is wrong with a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceError {
    /// The first of them by line, at most [`FAULTS_MAX`].
    pub faults: Vec<Located>,
    /// All of them.
    pub count: usize,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Located { line, fault }) in self.faults.iter().enumerate() {
            if at > 0 {
                f.write_str("; ")?;
            }
            if let Some(line) = line {
                write!(f, "line {line}: ")?;
            }
            write!(f, "{}: {}: {}", fault.field, fault.problem, fault.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for TraceError {}

impl TraceError {
    pub(super) fn add(&mut self, line: Option<usize>, fault: Fault) {
        self.count += 1;
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(Located { line, fault });
        }
    }

    /// One fault of the file as a whole.
    #[must_use]
    pub fn of_file(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        let mut error = Self::default();
        error.add(None, Fault::new("file", problem, remedy));
        error
    }

    /// # Errors
    /// Itself, where there is any fault.
    pub(super) fn none(self) -> Result<(), Self> {
        if self.count == 0 { Ok(()) } else { Err(self) }
    }
}

/// One line of a file; what is wrong with it is collected.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub line: usize,
    record: &'a StringRecord,
    places: &'a [usize],
    names: &'a [&'static str],
    faults: &'a mut TraceError,
}

impl Row<'_> {
    /// The text of a column.
    pub(super) fn text(&self, column: usize) -> &str {
        self.record.get(self.places[column]).unwrap_or("")
    }

    /// Says what is wrong with a column.
    pub(super) fn fault(&mut self, column: usize, problem: String, remedy: String) {
        self.faults.add(Some(self.line), Fault::new(self.names[column], problem, remedy));
    }

    /// The column has a text that is not what is wanted.
    pub(super) fn wrong(&mut self, column: usize, wanted: &str) {
        let text: String = self.text(column).chars().take(80).collect();
        let problem = if text.is_empty() { "is empty".to_owned() } else { format!("is {text:?}") };
        self.fault(column, problem, format!("give {wanted}"));
    }

    /// A finite number that `fits`, of which `wanted` tells what it must be.
    pub(super) fn number(
        &mut self,
        column: usize,
        wanted: &str,
        fits: impl Fn(f64) -> bool,
    ) -> Option<f64> {
        let value: Option<f64> = self.text(column).parse().ok();
        let value = value.filter(|value| value.is_finite() && fits(*value));
        if value.is_none() {
            self.wrong(column, wanted);
        }
        value
    }

    /// An instant, in s.
    pub(super) fn instant(&mut self, column: usize) -> Option<f64> {
        let fits = |value: f64| (0.0..=TIME_S_MAX).contains(&value);
        self.number(column, "seconds since the start, from 0 to 1e9", fits)
    }

    /// A whole number in a range; `2.0` is one.
    pub(super) fn count(&mut self, column: usize, (low, high): (u32, u32)) -> Option<u32> {
        let text = self.text(column);
        let value: Option<u64> = text.parse().ok().or_else(|| text.parse().ok().and_then(whole));
        let value = value.and_then(|value| u32::try_from(value).ok());
        let value = value.filter(|value| (low..=high).contains(value));
        if value.is_none() {
            self.wrong(column, &format!("a whole number in {low} to {high}"));
        }
        value
    }

    /// One of some words, by their place; letters may be large or small.
    pub(super) fn word(&mut self, column: usize, what: &str, known: &[&str]) -> Option<usize> {
        let given = self.text(column).to_lowercase();
        let found = known.iter().position(|word| *word == given);
        if found.is_none() {
            let meant = nearest(&given, known.iter().copied())
                .map(|near| format!("did you mean {near}? "))
                .unwrap_or_default();
            let shown: String = self.text(column).chars().take(80).collect();
            let problem = if shown.is_empty() {
                "is empty".to_owned()
            } else {
                format!("{shown:?} is not a known {what}")
            };
            self.fault(column, problem, format!("{meant}known are {}", known.join(", ")));
        }
        found
    }

    /// An id that no line before has.
    pub(super) fn id(
        &mut self,
        column: usize,
        seen: &mut BTreeMap<String, usize>,
    ) -> Option<String> {
        let id = self.text(column).to_owned();
        if let Some(problem) = name_problem(&id) {
            let remedy = format!("use 1 to {NAME_BYTES_MAX} bytes of printable text");
            self.fault(column, problem, remedy);
            return None;
        }
        if let Some(line) = seen.get(&id) {
            let problem = format!("{id:?} is the id of line {line} too");
            self.fault(column, problem, "give each job its own".to_owned());
            return None;
        }
        seen.insert(id.clone(), self.line);
        Some(id)
    }
}

/// Reads the header line.
///
/// # Errors
/// Where there is none.
pub(super) fn header(text: &str) -> Result<StringRecord, TraceError> {
    let mut reader = reader(text);
    let header = reader.headers().map_err(|error| unreadable(&error))?.clone();
    if header.iter().all(str::is_empty) {
        return Err(TraceError::of_file("is empty", "begin it with a line of column names"));
    }
    Ok(header)
}

fn reader(text: &str) -> csv::Reader<&[u8]> {
    // A byte-order mark is no part of the first column's name.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // Lines of another length are told with their numbers here.
    csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes())
}

/// Counts lines as records are read, each from where the last one began.
#[derive(Debug)]
struct Lines<'a> {
    text: &'a str,
    byte: usize,
    line: usize,
}

impl Lines<'_> {
    /// The line of the record that the reader found at a byte, not before the last one.
    fn of(&mut self, byte: usize) -> usize {
        let from = self.byte.min(self.text.len());
        let rest = self.text.get(from..).unwrap_or("");
        self.line += line_at(rest, byte.saturating_sub(from)) - 1;
        // Line ends that stand before the record were counted: go past them.
        let ends = self.text.as_bytes().get(byte..).unwrap_or(&[]);
        self.byte = byte + ends.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        self.line
    }
}

fn unreadable(error: &csv::Error) -> TraceError {
    TraceError::of_file(format!("is not a CSV file: {error}"), "correct it")
}

/// Reads the rows of a file with these columns, each through `parse`, which tells the row what is
/// wrong with it and then gives none.
///
/// # Errors
/// Everything that is wrong with the file.
pub(super) fn read<T>(
    text: &str,
    names: &'static [&'static str],
    mut parse: impl FnMut(&mut Row<'_>) -> Option<T>,
) -> Result<Vec<T>, TraceError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let header = header(text)?;
    let places = places(&header, names)?;
    let (mut rows, mut faults) = (Vec::new(), TraceError::default());
    let mut record = StringRecord::new();
    let mut reader = reader(text);
    let mut lines = Lines { text, byte: 0, line: 1 };
    while reader.read_record(&mut record).map_err(|error| unreadable(&error))? {
        if record.len() == 1 && record[0].is_empty() {
            continue;
        }
        let byte = record.position().map_or(0, csv::Position::byte);
        let line = lines.of(usize::try_from(byte).unwrap_or(usize::MAX));
        if record.len() != header.len() {
            let problem = format!("has {} columns, the header {}", record.len(), header.len());
            faults.add(Some(line), Fault::new("line", problem, "give every column a value"));
            continue;
        }
        let faults = &mut faults;
        rows.extend(parse(&mut Row { line, record: &record, places: &places, names, faults }));
        if rows.len() > ROWS_MAX {
            let problem = format!("has more than {ROWS_MAX} rows");
            return Err(TraceError::of_file(problem, "give a part of it"));
        }
    }
    if rows.is_empty() && faults.count == 0 {
        return Err(TraceError::of_file("holds no job", "give it a line for each job"));
    }
    faults.none()?;
    Ok(rows)
}

/// Where the columns stand.
fn places(header: &StringRecord, names: &[&'static str]) -> Result<Vec<usize>, TraceError> {
    let mut faults = TraceError::default();
    let mut places = Vec::with_capacity(names.len());
    for name in names {
        let mut found = header.iter().enumerate().filter(|(_, column)| column == name);
        match (found.next(), found.next()) {
            (Some((place, _)), None) => places.push(place),
            (Some(_), Some(_)) => {
                faults.add(Some(1), Fault::new(*name, "stands twice in the header", "keep one"));
            }
            (None, _) => {
                let columns: Vec<&str> = header.iter().take(FAULTS_MAX).collect();
                let unknown = columns.iter().copied().filter(|column| !names.contains(column));
                let meant = nearest(name, unknown)
                    .map(|near| format!("did you mean {near} as it? "))
                    .unwrap_or_default();
                let remedy = format!("{meant}the header has {}", columns.join(", "));
                faults.add(Some(1), Fault::new(*name, "is missing from the header", remedy));
            }
        }
    }
    faults.none()?;
    Ok(places)
}
