//! CSV files: a header line, columns by name, unknown columns ignored, a malformed line refused
//! with its number.

use std::collections::BTreeSet;

use csv::StringRecord;
use model::Fault;
use simulator::words::line_at;

use super::file::Source;
use super::json::{FAULTS_MAX, exact};
use crate::failure::{Failure, Located};
use crate::text::nearest;

/// What is wanted of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Columns that must be there.
    pub required: &'a [&'a str],
    pub optional: &'a [&'a str],
    /// Only rows with these values in these columns.
    pub filters: &'a [(String, String)],
    /// Rows of more than one `model` are refused.
    pub one_model: bool,
}

/// The cells of one line, by the place of their column among those required, then optional.
#[derive(Debug)]
pub(super) struct Cells<'a> {
    record: &'a StringRecord,
    places: &'a [Option<usize>],
    names: &'a [&'a str],
    wanted: bool,
}

impl Cells<'_> {
    /// True for a line that the filters leave.
    pub(super) const fn wanted(&self) -> bool {
        self.wanted
    }

    /// The text of a column; empty where the file lacks it.
    pub(super) fn text(&self, column: usize) -> &str {
        self.places[column].and_then(|place| self.record.get(place)).unwrap_or("")
    }

    /// A finite number that `fits`, of which `wanted` tells what it must be.
    ///
    /// # Errors
    /// Where it is not.
    pub(super) fn number(
        &self,
        column: usize,
        wanted: &str,
        fits: impl Fn(f64) -> bool,
    ) -> Result<f64, Fault> {
        let value: Option<f64> = self.text(column).parse().ok();
        value
            .filter(|value| value.is_finite() && fits(*value))
            .ok_or_else(|| self.fault(column, wanted))
    }

    /// A whole number in a range; `2.0` is one.
    ///
    /// # Errors
    /// Where it is not.
    pub(super) fn whole(&self, column: usize, (low, high): (u64, u64)) -> Result<u64, Fault> {
        let text = self.text(column);
        let value = text.parse().ok().or_else(|| text.parse().ok().and_then(exact));
        value.filter(|value| (low..=high).contains(value)).ok_or_else(|| {
            let wanted = if high == u64::MAX {
                format!("a whole number of at least {low}, below 2^64")
            } else {
                format!("a whole number in {low} to {high}")
            };
            self.fault(column, &wanted)
        })
    }

    /// What is wrong with a cell.
    pub(super) fn fault(&self, column: usize, wanted: &str) -> Fault {
        let text: String = self.text(column).chars().take(80).collect();
        let problem = if text.is_empty() { "is empty".to_owned() } else { format!("is {text:?}") };
        Fault::new(self.names[column], problem, format!("give {wanted}"))
    }
}

/// Reads the rows that are wanted, each through `parse`.
///
/// # Errors
/// Where a column is missing, lines are malformed (all are told, up to a bound), a filter leaves
/// nothing, or rows are of several models.
pub(super) fn read<T>(
    source: &Source,
    wanted: &Wanted<'_>,
    parse: impl Fn(&Cells<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Failure> {
    let mut reader = csv::ReaderBuilder::new()
        // Lines of another length are told with their numbers here.
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(source.text.as_bytes());
    let unreadable = |error: csv::Error| {
        Failure::invalid(format!("{} is not a CSV file: {error}", source.name), "correct it")
    };
    let header = reader.headers().map_err(unreadable)?.clone();
    let names: Vec<&str> = wanted.required.iter().chain(wanted.optional).copied().collect();
    let places = columns(source, &header, wanted, &names)?;
    let filters = filters(source, &header, wanted.filters)?;
    let model = header.iter().position(|name| name == "model");
    let (mut rows, mut models) = (Vec::new(), BTreeSet::new());
    let (mut faults, mut left_out) = (Vec::new(), false);
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(unreadable)? {
        if record.len() == 1 && header.len() > 1 && record[0].is_empty() {
            continue;
        }
        let wanted_row = filters.iter().all(|(place, value)| record.get(*place) == Some(value));
        let parsed = if record.len() == header.len() {
            let (places, names) = (&places, &names);
            parse(&Cells { record: &record, places, names, wanted: wanted_row })
        } else {
            let problem = format!("has {} columns, the header {}", record.len(), header.len());
            Err(Fault::new("line", problem, "give every column a value"))
        };
        match parsed {
            Ok(row) if wanted_row => {
                rows.push(row);
                if let Some(name) = model.filter(|_| wanted.one_model)
                    && models.len() <= FAULTS_MAX
                    && !models.contains(&record[name])
                {
                    models.insert(record[name].to_owned());
                }
            }
            Ok(_) => left_out = true,
            Err(fault) => {
                faults.push(Located { line: Some(line(source, &record)), fault });
                if faults.len() == FAULTS_MAX {
                    break;
                }
            }
        }
    }
    if !faults.is_empty() {
        return Err(Failure::faulty(&source.name, faults));
    }
    if rows.is_empty() && left_out {
        let message = format!("{} has no row of {}", source.name, given(wanted.filters));
        return Err(Failure::invalid(message, "give a value that it has"));
    }
    one_model(source, &models)?;
    Ok(rows)
}

/// The line of a record.
fn line(source: &Source, record: &StringRecord) -> usize {
    let byte = record.position().map_or(0, csv::Position::byte);
    line_at(&source.text, usize::try_from(byte).unwrap_or(usize::MAX))
}

fn columns(
    source: &Source,
    header: &StringRecord,
    wanted: &Wanted<'_>,
    names: &[&str],
) -> Result<Vec<Option<usize>>, Failure> {
    if header.iter().all(str::is_empty) {
        let message = format!("{} has no header line", source.name);
        return Err(Failure::invalid(message, format!("begin it with {}", names.join(","))));
    }
    let mut places = Vec::with_capacity(names.len());
    for name in names {
        let mut found = header.iter().enumerate().filter(|(_, column)| column == name);
        let place = found.next().map(|(place, _)| place);
        if found.next().is_some() {
            let message = format!("{} has two columns {name}", source.name);
            return Err(Failure::invalid(message, "keep one"));
        }
        if place.is_none() && wanted.required.contains(name) {
            return Err(no_column(source, header, name));
        }
        places.push(place);
    }
    Ok(places)
}

fn filters<'a>(
    source: &Source,
    header: &StringRecord,
    filters: &'a [(String, String)],
) -> Result<Vec<(usize, &'a str)>, Failure> {
    let place = |(name, value): &'a (String, String)| {
        let place = header.iter().position(|column| column == name);
        let place = place.ok_or_else(|| no_column(source, header, name))?;
        Ok((place, value.as_str()))
    };
    filters.iter().map(place).collect()
}

fn no_column(source: &Source, header: &StringRecord, name: &str) -> Failure {
    let columns: Vec<&str> = header.iter().take(FAULTS_MAX).collect();
    let meant = nearest(name, header.iter())
        .map(|near| format!("did you mean {near}? "))
        .unwrap_or_default();
    Failure::invalid(
        format!("{} has no column {name}", source.name),
        format!("{meant}its columns are {}", columns.join(", ")),
    )
}

fn given(filters: &[(String, String)]) -> String {
    let words: Vec<String> =
        filters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.join(" and ")
}

fn one_model(source: &Source, models: &BTreeSet<String>) -> Result<(), Failure> {
    if models.len() < 2 {
        return Ok(());
    }
    let mut known: Vec<&str> = models.iter().take(FAULTS_MAX).map(String::as_str).collect();
    if models.len() > FAULTS_MAX {
        known.push("…");
    }
    Err(Failure::invalid(
        format!("{} holds several models: {}", source.name, known.join(", ")),
        format!("choose one: --where model={}", known[0]),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_ab(text: &str, filters: &[(String, String)]) -> Result<Vec<(u64, f64)>, Failure> {
        let source = Source { name: "x.csv".to_owned(), text: text.to_owned() };
        let wanted = Wanted { required: &["a"], optional: &["b"], filters, one_model: true };
        read(&source, &wanted, |cells| {
            let b = if cells.text(1).is_empty() {
                0.0
            } else {
                cells.number(1, "a number", |_| true)?
            };
            Ok((cells.whole(0, (1, 10))?, b))
        })
    }

    #[test]
    fn forms_of_the_same_table() {
        for text in [
            "a,b\n1,2\n3,4\n",
            "a,b\r\n1,2\r\n3,4\r\n",
            "b,x,a\n2,zzz,1\n4,\"q,\n\"\"\",3",
            " a , b \n\n 1 , 2.0 \n\n3,4e0\n\n\n",
            "\"a\",\"b\"\n\"1\",\"2\"\n\"3.0\",\"4\"\n   \n",
        ] {
            assert_eq!(read_ab(text, &[]).unwrap(), [(1, 2.0), (3, 4.0)], "{text:?}");
        }
        assert_eq!(read_ab("a\n1\n", &[]).unwrap(), [(1, 0.0)]);
        assert_eq!(read_ab("a,b\n", &[]).unwrap(), []);
    }

    #[test]
    fn a_malformed_line_has_its_number() {
        for (text, line) in [
            ("a,b\nx,2\n", 2),
            ("a,b\r\n1,2\r\n3\r\n", 3),
            ("a,b\n1,2\n\n\n3,4,5\n", 5),
            ("a,b\n1,2\n11,2\n", 3),
            ("a,b,c\n1,2,\"\n\n\"\n0,2,\n", 5),
            ("a,b\n1,inf\n", 2),
            ("a,b\n1.5,1\n", 2),
            ("a,b\n,1\n", 2),
            ("a,b\n1,2\n\"3,4\n", 3),
        ] {
            let failure = read_ab(text, &[]).expect_err(text);
            assert_eq!(failure.exit.code(), 2);
            assert_eq!(failure.faults[0].line, Some(line), "{text:?}: {failure}");
        }
        let many = format!("a\n{}", "x\n".repeat(100));
        assert_eq!(read_ab(&many, &[]).expect_err("malformed").faults.len(), FAULTS_MAX);
    }

    #[test]
    fn columns_are_found_or_named() {
        for (text, part) in [
            ("", "no header"),
            ("\n\n", "no header"),
            ("A,b\n1,2\n", "did you mean A?"),
            ("a,a\n1,2\n", "two columns a"),
            ("1,2\n3,4\n", "no column a"),
        ] {
            let failure = read_ab(text, &[]).expect_err(text);
            assert!(failure.to_string().contains(part), "{text:?}: {failure}");
        }
    }

    #[test]
    fn rows_are_chosen_and_models_are_not_mixed() {
        let text = "a,model\n1,x\n2,y\n3,x\n";
        let only = |value: &str| [("model".to_owned(), value.to_owned())];
        assert_eq!(read_ab(text, &only("x")).unwrap(), [(1, 0.0), (3, 0.0)]);
        for (filters, part) in [
            (Vec::new(), "several models: x, y"),
            (only("z").to_vec(), "no row of model=z"),
            (vec![("mode".to_owned(), "x".to_owned())], "did you mean model?"),
        ] {
            let failure = read_ab(text, &filters).expect_err(part);
            assert!(failure.to_string().contains(part), "{failure}");
        }
    }
}
