//! `optimus assign`: which server holds which parameters.

use scheduler::assign::{Assignment, assign as assigned};
use serde::Serialize;

use super::csv::{Cells, Wanted};
use super::{csv, file, show};
use crate::args::AssignArgs;
use crate::commands::Context;
use crate::failure::Failure;
use crate::grid::Cell;
use crate::page::Block;

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
        .map_err(|error| Failure::invalid(format!("cannot assign the blocks: {error}"), ""))?;
    let json = AssignmentJson::new(names.collect(), &assignment);
    show(context, &json, &source.name, &page(&json))
}

fn page(json: &AssignmentJson) -> Vec<Block> {
    let servers = json.servers.iter().zip(0_u64..).map(|(load, server)| {
        vec![Cell::count(server), Cell::count(load.parameters), Cell::count(load.requests)]
    });
    vec![
        Block::facts(
            "",
            vec![
                ("size difference", Cell::count(json.size_difference)),
                ("request difference", Cell::count(json.request_difference)),
                ("requests", Cell::count(json.requests)),
            ],
        ),
        Block::table("servers", &[">server", ">parameters", ">requests"], servers.collect()),
    ]
}
