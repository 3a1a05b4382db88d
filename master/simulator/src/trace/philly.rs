//! Microsoft's Philly traces: `timestamp,duration,num_gpus,gpu_time,cluster`, in any order.

use model::job::TASKS_MAX;

use super::table::{Row, TIME_S_MAX, TraceError, read};

/// The header.
pub(super) const COLUMNS: &[&str] = &["timestamp", "duration", "num_gpus", "gpu_time", "cluster"];

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct PhillyRow {
    pub line: usize,
    /// Since the first submission of the file, in s.
    pub arrival_s: f64,
    /// At its GPUs, in s.
    pub duration_s: f64,
    pub num_gpus: u32,
    /// The virtual cluster that it was sent to.
    pub cluster: String,
}

impl PhillyRow {
    /// The file names its jobs by nothing: its line does.
    #[must_use]
    pub fn id(&self) -> String {
        format!("philly-{}", self.line)
    }
}

/// Reads a file, sorted by submission; time zero is the first one.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn rows(text: &str) -> Result<Vec<PhillyRow>, TraceError> {
    let mut rows = read(text, COLUMNS, one)?;
    rows.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s).then(a.line.cmp(&b.line)));
    let first = rows.first().map_or(0.0, |row| row.arrival_s);
    for row in &mut rows {
        row.arrival_s -= first;
    }
    Ok(rows)
}

fn one(row: &mut Row<'_>) -> Option<PhillyRow> {
    let at = seconds(row.text(0));
    if at.is_none() {
        row.wrong(0, "a time such as 2017-10-09 07:01:55");
    }
    let fits = |value: f64| value > 0.0 && value <= TIME_S_MAX;
    let duration_s = row.number(1, "seconds above 0, up to 1e9", fits);
    let num_gpus = row.count(2, (1, TASKS_MAX));
    let fits = |value: f64| value >= 0.0;
    let gpu_time = row.number(3, "GPU seconds of at least 0", fits);
    gpu_time?;
    Some(PhillyRow {
        line: row.line,
        arrival_s: at?,
        duration_s: duration_s?,
        num_gpus: num_gpus?,
        cluster: row.text(4).to_owned(),
    })
}

/// Seconds since the year 0 of `2017-10-09 07:01:55`, with a T or a space between.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let [year, month, day] = three(date, '-')?;
    let [hour, minute, second] = three(time, ':')?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31_u32];
    let length = *lengths.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    let fits = (1..=9999).contains(&year)
        && (1..=length).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !fits {
        return None;
    }
    let before = year - 1;
    let of_years = before * 365 + before / 4 - before / 100 + before / 400;
    let of_months: u32 = (1..month).zip(lengths).map(|(_, length)| length).sum();
    let days = of_years + of_months + day;
    Some(f64::from(days) * 86_400.0 + f64::from(hour * 3600 + minute * 60 + second))
}

fn three(text: &str, between: char) -> Option<[u32; 3]> {
    let mut parts = text.split(between).map(|part| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if digits && part.len() <= 4 { part.parse().ok() } else { None }
    });
    let three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(three)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_over_months_and_leap_years() {
        let between = |a: &str, b: &str| seconds(b).unwrap() - seconds(a).unwrap();
        assert!((between("2017-10-09 07:01:55", "2017-10-09 07:02:00") - 5.0).abs() < 1e-9);
        let day = 86_400.0;
        for (a, b, days) in [
            ("2016-02-28 00:00:00", "2016-03-01T00:00:00", 2.0),
            ("2017-02-28 00:00:00", "2017-03-01 00:00:00", 1.0),
            ("2016-12-31 00:00:00", "2017-01-01 00:00:00", 1.0),
            ("1999-12-31 00:00:00", "2000-12-31 00:00:00", 366.0),
            ("1970-01-01 00:00:00", "2017-10-09 00:00:00", 17_448.0),
        ] {
            assert!((between(a, b) - days * day).abs() < 1e-6, "{a} {b}");
        }
        for wrong in [
            "",
            "2017-10-09",
            "2017-13-09 00:00:00",
            "2017-02-29 00:00:00",
            "2017-10-09 24:00:00",
            "2017-10-09 07:01",
            "-017-10-09 07:01:55",
            "99999-10-09 07:01:55",
            "2017-10-09 07:01:55.5",
        ] {
            assert_eq!(seconds(wrong), None, "{wrong:?}");
        }
    }
}
