//! `optimus assign`: which server holds which parameters.

use scheduler::assign::{Assignment, assign as assigned};
use serde::Serialize;

use super::csv::{Cells, Wanted};
use super::{csv, file};
use crate::args::AssignArgs;
use crate::commands::Context;
use crate::failure::Failure;
use crate::grid::Cell;
use crate::listing::{Column, Format, Item, Kind, View, line, pretty};
use crate::text::count;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct LoadJson {
    parameters: u64,
    requests: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct PartJson {
    server: u32,
    parameters: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct BlockJson {
    block: String,
    parts: Vec<PartJson>,
}

/// `optimus.assignment/1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct AssignmentJson {
    schema: &'static str,
    servers: Vec<LoadJson>,
    blocks: Vec<BlockJson>,
    size_difference: u64,
    request_difference: u64,
    requests: u64,
}

/// A server of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct ServerRow {
    server: u64,
    #[serde(flatten)]
    load: LoadJson,
}

impl Item for ServerRow {
    fn key(&self) -> String {
        self.server.to_string()
    }

    fn settled(&self) -> Self {
        *self
    }
}

static SERVERS: Kind<ServerRow> = Kind {
    schema: "optimus.assignment/1",
    field: "servers",
    columns: &[
        Column::right("server", |row| Cell::count(row.server)),
        Column::right("parameters", |row| Cell::count(row.load.parameters)),
        Column::right("requests", |row| Cell::count(row.load.requests)),
    ],
};

/// A count of the library, whatever its width.
fn wide(value: impl Into<u64>) -> u64 {
    value.into()
}

impl AssignmentJson {
    fn new(names: Vec<String>, assignment: &Assignment) -> Self {
        let load = |load: &scheduler::assign::Load| LoadJson {
            parameters: load.parameters,
            requests: wide(load.requests),
        };
        let part = |part: &scheduler::assign::Part| PartJson {
            server: part.server,
            parameters: part.parameters,
        };
        let blocks = names
            .into_iter()
            .zip(&assignment.blocks)
            .map(|(block, parts)| BlockJson { block, parts: parts.iter().map(part).collect() });
        Self {
            schema: "optimus.assignment/1",
            servers: assignment.servers.iter().map(load).collect(),
            blocks: blocks.collect(),
            size_difference: assignment.size_difference(),
            request_difference: wide(assignment.request_difference()),
            requests: wide(assignment.requests()),
        }
    }
}

/// A block's name, empty where the file has none, and its parameters.
fn row(cells: &Cells<'_>) -> Result<(String, u64), model::Fault> {
    Ok((cells.text(1).to_owned(), cells.whole(0, (0, u64::MAX))?))
}

/// Assigns the blocks of a file.
///
/// # Errors
/// Where the file cannot be read, or the blocks cannot be assigned.
pub(crate) fn assign(context: &mut Context<'_>, args: &AssignArgs) -> Result<(), Failure> {
    let source = file::read(&args.blocks)?;
    let wanted = Wanted {
        required: &["parameters"],
        optional: &["block"],
        filters: &args.filters,
        one_model: true,
    };
    let rows = csv::read(&source, &wanted, row)?;
    if rows.is_empty() {
        return Err(Failure::invalid(
            format!("{} has no blocks", source.name),
            "give one at least",
        ));
    }
    let (names, sizes): (Vec<String>, Vec<u64>) = rows.into_iter().unzip();
    let names = names
        .into_iter()
        .enumerate()
        .map(|(place, name)| if name.is_empty() { place.to_string() } else { name });
    let assignment = assigned(&sizes, args.servers, args.algorithm.into())
        .map_err(|error| unassigned(&error))?;
    print(context, &AssignmentJson::new(names.collect(), &assignment))
}

/// The library tells what is wrong, then what to do.
fn unassigned(error: &str) -> Failure {
    let (problem, remedy) =
        error.rsplit_once("; ").unwrap_or((error, "give fewer blocks, or smaller ones"));
    Failure::invalid(format!("cannot assign the blocks: {problem}"), remedy)
}

/// A row for each server; the totals are talk.
fn print(context: &mut Context<'_>, json: &AssignmentJson) -> Result<(), Failure> {
    match context.format {
        Format::Json => context.output.data(&(pretty(json) + "\n")),
        Format::Jsonl => context.output.data(&line(json)),
        Format::Name | Format::Table | Format::Wide => {
            let rows: Vec<ServerRow> = (0..)
                .zip(&json.servers)
                .map(|(server, load)| ServerRow { server, load: *load })
                .collect();
            let view = View { format: context.format, header: true, ..View::default() };
            let style = context.output.style(false);
            let text = SERVERS.render(&rows, &SERVERS.choose(&view)?, &view, &style);
            context.output.data(&text)?;
            context.output.talk(&summary(json));
            Ok(())
        }
    }
}

/// One line of totals.
fn summary(json: &AssignmentJson) -> String {
    format!(
        "{} on {}: size difference {}, request difference {}, requests {}",
        count(json.blocks.len(), "block", "blocks"),
        count(json.servers.len(), "server", "servers"),
        json.size_difference,
        json.request_difference,
        json.requests,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_assigned_has_a_remedy() {
        for error in ["blocks: there are many; give fewer", "blocks: no"] {
            let failure = unassigned(error);
            assert!(failure.hint.starts_with("give fewer"), "{failure}");
            assert!(!failure.message.contains("give"), "{failure}");
        }
    }
}
