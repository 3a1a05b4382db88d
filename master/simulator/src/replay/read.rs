//! Columns of measured tables, from files as people keep them.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use csv::{ByteRecord, ReaderBuilder};
use flate2::read::MultiGzDecoder;

/// Largest table that is read, unpacked: a packed file of a few bytes can hold any number.
const BYTES_MAX: u64 = 1 << 30;
/// Larger than anything that was measured: sums and ratios of such numbers are numbers still.
const VALUE_MAX: f64 = 1e60;

/// Hands the numbers of these columns to `row`, line by line, with the line's number.
///
/// # Errors
/// Where the file cannot be read, lacks a column, or holds something else than a number from 0 to
/// [`VALUE_MAX`] in one of them: with its name, line and column. Also what `row` refuses.
pub(super) fn columns<const N: usize>(
    path: &Path,
    names: [&str; N],
    mut row: impl FnMut([f64; N]) -> Result<(), String>,
) -> Result<(), String> {
    let fault = |what: String| format!("{}: {what}", path.display());
    let file = File::open(path).map_err(|error| fault(error.to_string()))?;
    let source: Box<dyn Read> = if path.extension().is_some_and(|extension| extension == "gz") {
        Box::new(MultiGzDecoder::new(BufReader::new(file)).take(BYTES_MAX))
    } else {
        Box::new(file.take(BYTES_MAX))
    };
    let mut reader =
        ReaderBuilder::new().flexible(true).buffer_capacity(1 << 16).from_reader(source);
    let header = reader.byte_headers().map_err(|error| fault(error.to_string()))?;
    let mut places = [0; N];
    for (place, name) in places.iter_mut().zip(names) {
        let found = header.iter().position(|held| held.trim_ascii() == name.as_bytes());
        *place = found.ok_or_else(|| fault(format!("line 1: there is no column {name}")))?;
    }
    let sound = |value: &f64| (0.0..=VALUE_MAX).contains(value);
    let mut record = ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(|error| fault(error.to_string()))? {
        let line = || record.position().map_or(0, csv::Position::line);
        let mut values = [0.0; N];
        for ((value, place), name) in values.iter_mut().zip(places).zip(names) {
            let text = record.get(place).unwrap_or_default();
            let read = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
            *value = read.filter(sound).ok_or_else(|| {
                let text = String::from_utf8_lossy(text);
                fault(format!(
                    "line {}, column {name}: {text:?} is not a number from 0 to {VALUE_MAX:e}",
                    line()
                ))
            })?;
        }
        row(values).map_err(|what| fault(format!("line {}, {what}", line())))?;
    }
    Ok(())
}

/// A count out of a column of numbers, between `least` and `most`.
///
/// # Errors
/// Names the column.
pub(super) fn whole(value: f64, column: &str, least: u32, most: u32) -> Result<u32, String> {
    let is_whole = libm::floor(value).total_cmp(&value).is_eq();
    if !is_whole || value < f64::from(least) || value > f64::from(most) {
        return Err(format!(
            "column {column}: {value} is not a whole number from {least} to {most}"
        ));
    }
    Ok(narrow(value))
}

/// A whole number of at least 0 that fits.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "cut off at both ends, and a number that is not one counts as 0"
)]
pub(super) fn narrow(value: f64) -> u32 {
    value.clamp(0.0, f64::from(u32::MAX)) as u32
}
