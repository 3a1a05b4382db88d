//! Tables: fitted to a terminal, or tab-separated and whole for a pipe.

use std::cmp::Ordering;

use model::UnixMs;

use crate::text::{ago, cut, escape, rfc3339, width};

/// How a terminal or a pipe wants its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    pub terminal: bool,
    pub colour: bool,
    /// Columns of the terminal.
    pub width: usize,
    /// Times in RFC 3339 rather than relative to `now`.
    pub utc: bool,
    pub now: UnixMs,
}

/// What a cell means, shown as a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Busy,
    Warn,
    Bad,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Busy => "36",
            Self::Warn => "33",
            Self::Bad => "31",
        }
    }
}

/// One value of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    None,
    Text(String),
    Toned(String, Tone),
    /// Sorted by the number, shown as the text.
    Number(f64, String),
    Time(UnixMs),
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A number with three significant digits.
    pub(crate) fn number(value: Option<f64>) -> Self {
        value.map_or(Self::None, |value| Self::Number(value, crate::text::number(value)))
    }

    /// Seconds in two units.
    pub(crate) fn span(seconds: Option<f64>) -> Self {
        seconds.map_or(Self::None, |seconds| Self::Number(seconds, crate::text::span(seconds)))
    }

    pub(crate) fn count(value: u64) -> Self {
        Self::Number(float(value), value.to_string())
    }

    pub(crate) fn bytes(value: u64) -> Self {
        Self::Number(float(value), crate::text::bytes(value))
    }

    /// An id of a letter and a number, sorted by the number: `j9` before `j10`.
    pub(crate) fn id(id: impl ToString) -> Self {
        let text = id.to_string();
        let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
        match digits.parse() {
            Ok(number) => Self::Number(number, text),
            Err(_) => Self::Text(text),
        }
    }

    pub(crate) fn time(at: Option<UnixMs>) -> Self {
        at.map_or(Self::None, Self::Time)
    }

    /// The text of the cell on one line, safe for any terminal; `-` where there is nothing.
    pub(crate) fn show(&self, style: &Style) -> String {
        match self {
            Self::None => "-".to_owned(),
            Self::Text(text) | Self::Toned(text, _) | Self::Number(_, text) if text.is_empty() => {
                "-".to_owned()
            }
            Self::Text(text) | Self::Toned(text, _) | Self::Number(_, text) => escape(text),
            Self::Time(at) if style.utc => rfc3339(*at),
            Self::Time(at) => ago(style.now, *at),
        }
    }

    /// Nothing comes last, numbers by size, text by letters.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        match (self.size(), other.size()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => self.words().cmp(&other.words()),
        }
    }

    fn size(&self) -> Option<f64> {
        match self {
            Self::Number(value, _) => Some(*value),
            Self::Time(at) => Some(float(at.0)),
            Self::None | Self::Text(_) | Self::Toned(..) => None,
        }
    }

    fn words(&self) -> (bool, &str) {
        match self {
            Self::Text(text) | Self::Toned(text, _) | Self::Number(_, text) => (false, text),
            Self::None | Self::Time(_) => (true, ""),
        }
    }

    const fn tone(&self) -> Option<Tone> {
        match self {
            Self::Toned(_, tone) => Some(*tone),
            Self::None | Self::Text(_) | Self::Number(..) | Self::Time(_) => None,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "only for sorting and for rounded display")]
pub(crate) const fn float(value: u64) -> f64 {
    value as f64
}

/// The head of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heading {
    pub title: String,
    /// Numbers stand at the right.
    pub right: bool,
    /// May be cut with `…` to this many columns where the terminal is narrow.
    pub flexible: Option<usize>,
    /// Left out on a narrow terminal, the highest first; 0 never.
    pub rank: u8,
}

const GAP: usize = 2;
/// What a name keeps where the terminal is narrow.
pub(crate) const NAME_MIN: usize = 12;
/// What sentences keep: less says nothing.
pub(crate) const SENTENCE_MIN: usize = 28;

/// Tab-separated lines with nothing cut: every line has the same number of tabs.
#[must_use]
pub(crate) fn tabs(
    headings: &[Heading],
    rows: &[Vec<Cell>],
    style: &Style,
    header: bool,
) -> String {
    let mut text = String::new();
    let titles: Vec<String> = headings.iter().map(|heading| heading.title.clone()).collect();
    if header {
        text.push_str(&titles.join("\t"));
        text.push('\n');
    }
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| cell.show(style)).collect();
        text.push_str(&cells.join("\t"));
        text.push('\n');
    }
    text
}

/// Aligned columns. With `fit`, no line is wider than the terminal while a column can be cut or
/// left out.
#[must_use]
pub(crate) fn aligned(
    headings: &[Heading],
    rows: &[Vec<Cell>],
    style: &Style,
    header: bool,
    fit: bool,
) -> String {
    let shown: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| cell.show(style)).collect()).collect();
    let natural: Vec<usize> = headings
        .iter()
        .enumerate()
        .map(|(column, heading)| {
            let title = if header { width(&heading.title) } else { 0 };
            shown.iter().map(|row| width(&row[column])).fold(title, usize::max)
        })
        .collect();
    let columns = if fit { fitted(headings, &natural, style.width) } else { all(&natural) };
    let mut text = String::new();
    if header {
        let line = columns.iter().map(|(column, room)| {
            (pad(&headings[*column].title, *room, headings[*column].right), None)
        });
        push_line(&mut text, line, false);
    }
    for (row, cells) in rows.iter().zip(&shown) {
        let line = columns.iter().map(|(column, room)| {
            let cell = cut(&cells[*column], *room);
            (pad(&cell, *room, headings[*column].right), row[*column].tone())
        });
        push_line(&mut text, line, style.colour);
    }
    text
}

fn all(natural: &[usize]) -> Vec<(usize, usize)> {
    natural.iter().copied().enumerate().collect()
}

/// Which columns are shown, and how wide each is.
fn fitted(headings: &[Heading], natural: &[usize], room: usize) -> Vec<(usize, usize)> {
    let least = |column: usize| {
        headings[column].flexible.map_or(natural[column], |least| natural[column].min(least))
    };
    let gaps = |count: usize| GAP * count.saturating_sub(1);
    let mut kept: Vec<usize> = (0..headings.len()).collect();
    while kept.iter().map(|column| least(*column)).sum::<usize>() + gaps(kept.len()) > room {
        let Some(dropped) = (0..kept.len())
            .filter(|at| headings[kept[*at]].rank > 0)
            .max_by_key(|at| headings[kept[*at]].rank)
        else {
            break;
        };
        kept.remove(dropped);
    }
    let mut columns: Vec<(usize, usize)> =
        kept.into_iter().map(|column| (column, natural[column])).collect();
    let gaps = gaps(columns.len());
    loop {
        let total = columns.iter().map(|(_, wide)| wide).sum::<usize>() + gaps;
        let over = total.saturating_sub(room);
        let widest = columns
            .iter_mut()
            .filter(|(column, wide)| *wide > least(*column))
            .max_by_key(|(_, wide)| *wide);
        let (true, Some(widest)) = (over > 0, widest) else {
            return columns;
        };
        widest.1 -= 1;
    }
}

fn pad(text: &str, room: usize, right: bool) -> String {
    let space = " ".repeat(room.saturating_sub(width(text)));
    if right { format!("{space}{text}") } else { format!("{text}{space}") }
}

fn push_line(text: &mut String, cells: impl Iterator<Item = (String, Option<Tone>)>, colour: bool) {
    let start = text.len();
    for (at, (cell, tone)) in cells.enumerate() {
        if at > 0 {
            text.push_str("  ");
        }
        match tone {
            Some(tone) if colour => {
                text.extend(["\u{1b}[", tone.code(), "m", &cell, "\u{1b}[0m"]);
            }
            Some(_) | None => text.push_str(&cell),
        }
    }
    let kept = text[start..].trim_end_matches(' ').len();
    text.truncate(start + kept);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(width: usize) -> Style {
        Style { terminal: true, colour: false, width, utc: false, now: UnixMs(10_000) }
    }

    fn headings() -> Vec<Heading> {
        let heading = |title: &str, right, flexible, rank| Heading {
            title: title.to_owned(),
            right,
            flexible,
            rank,
        };
        vec![
            heading("ID", false, None, 0),
            heading("NAME", false, Some(NAME_MIN), 0),
            heading("LOSS", true, None, 2),
            heading("REASON", false, Some(NAME_MIN), 0),
        ]
    }

    fn rows() -> Vec<Vec<Cell>> {
        let reason = "waits for 4 GPUs: 12 nodes have too few, 3 are suspect";
        ["plain", "a\tb\nc", "🚂漢字\u{202e}x", &"very long ".repeat(30), ""]
            .iter()
            .enumerate()
            .map(|(at, name)| {
                vec![
                    Cell::id(format!("j{at}")),
                    Cell::text(*name),
                    Cell::number(Some(0.25)),
                    Cell::text(reason),
                ]
            })
            .collect()
    }

    #[test]
    fn every_piped_line_has_the_same_columns() {
        let text = tabs(&headings(), &rows(), &style(0), true);
        assert_eq!(text.lines().count(), 6);
        for line in text.lines() {
            assert_eq!(line.split('\t').count(), 4, "{line:?}");
        }
        assert!(text.contains(&"very long ".repeat(30)), "something was cut");
    }

    #[test]
    fn a_table_stays_within_the_terminal() {
        for room in [40, 60, 80, 100, 200] {
            let text = aligned(&headings(), &rows(), &style(room), true, true);
            assert_eq!(text.lines().count(), 6);
            for line in text.lines() {
                assert!(width(line) <= room, "{room}: {line:?}");
            }
        }
        let narrow = aligned(&headings(), &rows(), &style(32), true, true);
        assert!(!narrow.contains("LOSS"), "the least needed column goes first:\n{narrow}");
        let wide = aligned(&headings(), &rows(), &style(40), true, false);
        assert!(wide.contains("3 are suspect"), "{wide}");
    }

    #[test]
    fn columns_are_aligned_whatever_the_letters() {
        let text = aligned(&headings(), &rows()[..3], &style(100), true, true);
        let place = |line: &str, what: &str| width(&line[..line.find(what).unwrap()]);
        let mut lines = text.lines();
        let head = place(lines.next().unwrap(), "REASON");
        for line in lines {
            assert_eq!(place(line, "waits"), head, "{text}");
        }
    }

    #[test]
    fn colour_only_where_wanted() {
        let rows = [vec![Cell::Toned("UP".to_owned(), Tone::Good)]];
        let heading = [Heading { title: "S".to_owned(), right: false, flexible: None, rank: 0 }];
        let plain = aligned(&heading, &rows, &style(80), false, true);
        assert_eq!(plain, "UP\n");
        let bright = aligned(&heading, &rows, &Style { colour: true, ..style(80) }, false, true);
        assert_eq!(bright, "\u{1b}[32mUP\u{1b}[0m\n");
        assert!(
            !tabs(&heading, &rows, &Style { colour: true, ..style(80) }, true).contains('\u{1b}')
        );
    }

    #[test]
    fn ids_sort_by_number_and_nothing_comes_last() {
        let mut cells = [Cell::id("j10"), Cell::None, Cell::id("j9"), Cell::text("a")];
        cells.sort_by(Cell::order);
        assert_eq!(cells, [Cell::id("j9"), Cell::id("j10"), Cell::text("a"), Cell::None]);
    }
}
