//! What every read command shares: choosing, sorting and filtering columns, and the five formats.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::failure::Failure;
use crate::grid::{Cell, Heading, NAME_MIN, SENTENCE_MIN, Style, aligned, tabs};
use crate::text::nearest;

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Columns that fit a terminal; tab-separated and whole when piped.
    #[default]
    Table,
    /// All columns.
    Wide,
    /// One JSON document.
    Json,
    /// One JSON object a line.
    Jsonl,
    /// Ids only.
    Name,
}

impl Format {
    /// True for both forms of JSON.
    #[must_use]
    pub(crate) const fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::Jsonl)
    }
}

/// How the user wants to see something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub format: Format,
    pub watch: bool,
    pub header: bool,
    pub columns: Vec<String>,
    pub sort: Vec<String>,
    pub filters: Vec<(String, String)>,
    pub utc: bool,
}

/// A thing with an id that can be shown and watched.
pub(crate) trait Item: Clone + Serialize {
    fn key(&self) -> String;

    /// The same without what merely grows with time, such as an age: equal means unchanged.
    #[must_use]
    fn settled(&self) -> Self;
}

/// One column of a kind of thing.
#[derive(Debug)]
pub(crate) struct Column<T> {
    pub key: &'static str,
    pub right: bool,
    pub flexible: Option<usize>,
    /// Only with `-o wide` or by name.
    pub wide: bool,
    pub rank: u8,
    pub cell: fn(&T) -> Cell,
}

impl<T> Column<T> {
    /// Text that keeps its width.
    pub(crate) const fn left(key: &'static str, cell: fn(&T) -> Cell) -> Self {
        Self { key, right: false, flexible: None, wide: false, rank: 0, cell }
    }

    pub(crate) const fn right(key: &'static str, cell: fn(&T) -> Cell) -> Self {
        Self { right: true, ..Self::left(key, cell) }
    }

    /// A name of any length.
    pub(crate) const fn name(key: &'static str, cell: fn(&T) -> Cell) -> Self {
        Self { flexible: Some(NAME_MIN), ..Self::left(key, cell) }
    }

    /// A sentence.
    pub(crate) const fn sentence(key: &'static str, cell: fn(&T) -> Cell) -> Self {
        Self { flexible: Some(SENTENCE_MIN), ..Self::left(key, cell) }
    }

    /// Left out on a narrow terminal, the highest rank first.
    pub(crate) const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    pub(crate) const fn wide(self) -> Self {
        Self { wide: true, ..self }
    }
}

/// A kind of thing that is listed.
#[derive(Debug)]
pub(crate) struct Kind<T: 'static> {
    /// Schema of the whole list, and the field that holds it.
    pub schema: &'static str,
    pub field: &'static str,
    pub columns: &'static [Column<T>],
}

impl<T: Item> Kind<T> {
    fn find(&self, key: &str) -> Result<usize, Failure> {
        let lower = key.to_lowercase();
        let keys = || self.columns.iter().map(|column| column.key);
        keys().position(|known| known == lower).ok_or_else(|| {
            let known: Vec<&str> = keys().collect();
            let meant = nearest(&lower, keys())
                .map(|near| format!("did you mean {near}? "))
                .unwrap_or_default();
            Failure::invalid(
                format!("there is no column {key:?}"),
                format!("{meant}columns are {}", known.join(", ")),
            )
        })
    }

    /// Checks the names that the user gave before anything is asked of the master.
    ///
    /// # Errors
    /// Where a column does not exist.
    pub(crate) fn choose(&self, view: &View) -> Result<Choice, Failure> {
        let mut columns = Vec::new();
        for key in &view.columns {
            columns.push(self.find(key)?);
        }
        if columns.is_empty() {
            let wide = view.format == Format::Wide;
            columns = (0..self.columns.len())
                .filter(|column| wide || !self.columns[*column].wide)
                .collect();
        }
        let mut sort = Vec::new();
        for key in &view.sort {
            let (descending, key) =
                key.strip_prefix('-').map_or((false, &**key), |key| (true, key));
            sort.push((self.find(key)?, descending));
        }
        let mut filters: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for (key, value) in &view.filters {
            filters.entry(self.find(key)?).or_default().push(value.to_lowercase());
        }
        Ok(Choice { columns, sort, filters })
    }

    /// The rows that pass every filter, in the wanted order; rows that compare equal stay as
    /// they came.
    #[must_use]
    pub(crate) fn select(&self, mut rows: Vec<T>, choice: &Choice, style: &Style) -> Vec<T> {
        let exact = Style { utc: true, ..*style };
        rows.retain(|row| {
            choice.filters.iter().all(|(column, wanted)| {
                let shown = (self.columns[*column].cell)(row).show(&exact).to_lowercase();
                wanted.contains(&shown)
            })
        });
        rows.sort_by(|a, b| {
            choice.sort.iter().fold(Ordering::Equal, |order, (column, descending)| {
                order.then_with(|| {
                    let cell = self.columns[*column].cell;
                    let (a, b) = (cell(a), cell(b));
                    if *descending && a != Cell::None && b != Cell::None {
                        b.order(&a)
                    } else {
                        a.order(&b)
                    }
                })
            })
        });
        rows
    }

    /// All rows in the wanted format.
    #[must_use]
    pub(crate) fn render(&self, rows: &[T], choice: &Choice, view: &View, style: &Style) -> String {
        match view.format {
            Format::Json => {
                let list = List { schema: self.schema, field: self.field, rows };
                let mut text = pretty(&list);
                text.push('\n');
                text
            }
            Format::Jsonl => rows.iter().map(line).collect(),
            Format::Name => rows.iter().map(|row| crate::text::escape(&row.key()) + "\n").collect(),
            Format::Table | Format::Wide => {
                let headings = self.headings(choice);
                let cells: Vec<Vec<Cell>> =
                    rows.iter().map(|row| self.cells(row, choice)).collect();
                if style.terminal {
                    let fit = view.format == Format::Table;
                    aligned(&headings, &cells, style, view.header, fit)
                } else {
                    tabs(&headings, &cells, style, view.header)
                }
            }
        }
    }

    /// The head line of a piped table.
    #[must_use]
    pub(crate) fn head(&self, choice: &Choice, style: &Style) -> String {
        tabs(&self.headings(choice), &[], style, true)
    }

    /// One changed row as one line.
    #[must_use]
    pub(crate) fn change(&self, row: &T, choice: &Choice, view: &View, style: &Style) -> String {
        match view.format {
            Format::Json | Format::Jsonl => line(row),
            Format::Name => crate::text::escape(&row.key()) + "\n",
            Format::Table | Format::Wide => {
                tabs(&self.headings(choice), &[self.cells(row, choice)], style, false)
            }
        }
    }

    fn cells(&self, row: &T, choice: &Choice) -> Vec<Cell> {
        choice.columns.iter().map(|column| (self.columns[*column].cell)(row)).collect()
    }

    fn headings(&self, choice: &Choice) -> Vec<Heading> {
        let heading = |column: &usize| {
            let column = &self.columns[*column];
            Heading {
                title: column.key.replace('_', " ").to_uppercase(),
                right: column.right,
                flexible: column.flexible,
                rank: column.rank,
            }
        };
        choice.columns.iter().map(heading).collect()
    }
}

/// A checked choice of columns, order and filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    columns: Vec<usize>,
    sort: Vec<(usize, bool)>,
    /// A value matches any of one column's filters, a row all columns'.
    filters: BTreeMap<usize, Vec<String>>,
}

struct List<'a, T> {
    schema: &'static str,
    field: &'static str,
    rows: &'a [T],
}

impl<T: Serialize> Serialize for List<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("schema", self.schema)?;
        map.serialize_entry(self.field, self.rows)?;
        map.end()
    }
}

/// One compact JSON object and a line end.
#[must_use]
pub(crate) fn line<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("plain data with text keys always makes JSON") + "\n"
}

/// Indented JSON.
#[must_use]
pub(crate) fn pretty<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).expect("plain data with text keys always makes JSON")
}
