//! One thing on a page of its own: facts and small tables for a person, `field<TAB>value` lines
//! for a pipe.

use serde::Serialize;

use crate::grid::{Cell, Heading, SENTENCE_MIN, Style, aligned};
use crate::listing::{Column, Item, Kind};
use crate::text::{escape, width, wrap};

/// A part of a page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Block {
    Facts {
        title: String,
        facts: Vec<(String, Cell)>,
    },
    Table {
        title: String,
        headings: Vec<Heading>,
        rows: Vec<Vec<Cell>>,
    },
    /// Sentences.
    Text {
        title: String,
        lines: Vec<String>,
    },
}

impl Block {
    /// A table whose last column may be cut; a title with a `>` in front stands at the right.
    pub(crate) fn table(title: &str, titles: &[&str], rows: Vec<Vec<Cell>>) -> Self {
        let heading = |(at, title): (usize, &&str)| Heading {
            title: title.trim_start_matches('>').to_uppercase(),
            right: title.starts_with('>'),
            flexible: (at + 1 == titles.len()).then_some(SENTENCE_MIN),
            rank: 0,
        };
        let headings = titles.iter().enumerate().map(heading).collect();
        Self::Table { title: title.to_owned(), headings, rows }
    }

    pub(crate) fn facts(title: &str, facts: Vec<(&str, Cell)>) -> Self {
        let facts = facts.into_iter().map(|(name, cell)| (name.to_owned(), cell)).collect();
        Self::Facts { title: title.to_owned(), facts }
    }
}

/// A line of a page when piped.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Field {
    pub field: String,
    #[serde(skip)]
    pub value: Option<Cell>,
}

impl Item for Field {
    fn key(&self) -> String {
        self.field.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

/// The columns of a piped page.
pub(crate) static FIELDS: Kind<Field> = Kind {
    schema: "optimus.fields/1",
    field: "fields",
    columns: &[
        Column::left("field", |row| Cell::text(row.field.as_str())),
        Column::sentence("value", |row| row.value.clone().unwrap_or(Cell::None)),
    ],
};

/// The page as it looks on a terminal.
#[must_use]
pub(crate) fn render(blocks: &[Block], style: &Style, fit: bool) -> String {
    let mut text = String::new();
    for block in blocks {
        let (title, body) = match block {
            Block::Facts { title, facts } => (title, facts_text(facts, style)),
            Block::Table { rows, .. } if rows.is_empty() => continue,
            Block::Table { title, headings, rows } => {
                let narrow = Style { width: style.width.saturating_sub(2), ..*style };
                let table = aligned(headings, rows, &narrow, true, fit);
                (title, indented(table.lines()))
            }
            Block::Text { title, lines } => {
                let room = style.width.saturating_sub(2);
                let lines: Vec<String> =
                    lines.iter().flat_map(|line| wrap(&escape(line), room)).collect();
                (title, indented(lines.iter().map(String::as_str)))
            }
        };
        if body.is_empty() {
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        if !title.is_empty() {
            text.push_str(&escape(title));
            text.push('\n');
        }
        text.push_str(&body);
    }
    text
}

fn indented<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(|line| format!("  {line}\n")).collect()
}

fn facts_text(facts: &[(String, Cell)], style: &Style) -> String {
    let names = facts.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let room = style.width.saturating_sub(names + 4);
    let mut text = String::new();
    for (name, cell) in facts {
        if *cell == Cell::None {
            continue;
        }
        let pad = " ".repeat(names.saturating_sub(width(name)));
        let mut lead = format!("  {name}{pad}  ");
        for line in wrap(&cell.show(style), room) {
            text.push_str(&lead);
            text.push_str(&line);
            text.push('\n');
            lead = " ".repeat(names + 4);
        }
    }
    text
}

/// Every value of the page under a name of its own. A table's row is named by its first cell, a
/// sentence by its number.
#[must_use]
pub(crate) fn fields(blocks: &[Block], style: &Style) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut add = |field: String, value: Cell| fields.push(Field { field, value: Some(value) });
    let word = |words: &str| words.to_lowercase().replace(' ', "_");
    let inside = |title: &str| if title.is_empty() { String::new() } else { word(title) + "." };
    for block in blocks {
        match block {
            Block::Facts { title, facts } => {
                for (name, cell) in facts {
                    add(inside(title) + &word(name), cell.clone());
                }
            }
            Block::Table { title, headings, rows } => {
                for (number, row) in rows.iter().enumerate() {
                    let name = match row.first() {
                        Some(cell @ (Cell::Text(_) | Cell::Number(..))) => cell.show(style),
                        Some(Cell::Toned(..) | Cell::Time(_) | Cell::None) | None => {
                            (number + 1).to_string()
                        }
                    };
                    for (heading, cell) in headings.iter().zip(row) {
                        let field = format!("{}{name}.{}", inside(title), word(&heading.title));
                        add(field, cell.clone());
                    }
                }
            }
            Block::Text { title, lines } => {
                for (number, line) in lines.iter().enumerate() {
                    let name = if lines.len() == 1 {
                        word(title)
                    } else {
                        format!("{}{}", inside(title), number + 1)
                    };
                    add(name, Cell::text(line.as_str()));
                }
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks() -> Vec<Block> {
        vec![
            Block::facts("", vec![("id", Cell::id("j1")), ("none", Cell::None)]),
            Block::facts("speed", vec![("measured now", Cell::text("word ".repeat(40)))]),
            Block::table(
                "tasks",
                &["task", ">pid", "state"],
                vec![
                    vec![Cell::text("Worker0"), Cell::count(7), Cell::text("x ".repeat(100))],
                    vec![Cell::None, Cell::None, Cell::text("a\tb\nc")],
                ],
            ),
            Block::table("faults", &["time"], Vec::new()),
            Block::Text { title: "notes".to_owned(), lines: vec!["漢字 ".repeat(50)] },
        ]
    }

    fn style(width: usize) -> Style {
        let now = model::UnixMs(0);
        Style { terminal: true, colour: false, width, utc: false, now }
    }

    #[test]
    fn a_page_stays_within_the_terminal_and_leaves_out_what_is_empty() {
        for room in [60, 80, 120] {
            let text = render(&blocks(), &style(room), true);
            for line in text.lines() {
                assert!(width(line) <= room, "{room}: {line:?}");
            }
            assert!(!text.contains("faults") && !text.contains("none"), "{text}");
        }
    }

    #[test]
    fn every_value_of_a_page_has_a_field() {
        let names: Vec<String> =
            fields(&blocks(), &style(80)).into_iter().map(|field| field.field).collect();
        let expected = [
            "id",
            "none",
            "speed.measured_now",
            "tasks.Worker0.task",
            "tasks.Worker0.pid",
            "tasks.Worker0.state",
            "tasks.2.task",
            "tasks.2.pid",
            "tasks.2.state",
            "notes",
        ];
        assert_eq!(names, expected);
    }
}
