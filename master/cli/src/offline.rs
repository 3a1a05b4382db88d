//! Commands on files: the daemon's own models and decisions, without a master.

mod assign;
mod cluster;
mod csv;
mod experiment;
mod file;
mod fit_loss;
mod fit_speed;
mod jobs;
mod json;
mod plan;
mod replicas;
mod runner;
mod simulate;
mod simulated;
mod speed;
mod trace;
mod workers;

pub(crate) use assign::assign;
pub(crate) use experiment::experiment;
pub(crate) use fit_loss::fit_loss;
pub(crate) use fit_speed::fit_speed;
pub(crate) use plan::plan;
pub(crate) use simulate::simulate;

use std::path::Path;

use serde::Serialize;

use crate::commands::Context;
use crate::failure::Failure;
use crate::listing::{Format, View, line, pretty};
use crate::page::{Block, FIELDS, fields, render};

/// Prints one answer: JSON, or a page for a person; `name` is what it is about.
fn show<T: Serialize>(
    context: &mut Context<'_>,
    json: &T,
    name: &str,
    blocks: &[Block],
) -> Result<(), Failure> {
    let text = match context.format {
        Format::Json => pretty(json) + "\n",
        Format::Jsonl => line(json),
        Format::Name => crate::text::escape(name) + "\n",
        Format::Table | Format::Wide => {
            let style = context.output.style(false);
            if style.terminal {
                render(blocks, &style, context.format == Format::Table)
            } else {
                let view = View { format: context.format, header: true, ..View::default() };
                let choice = FIELDS.choose(&view)?;
                FIELDS.render(&fields(blocks, &style), &choice, &view, &style)
            }
        }
    };
    context.output.data(&text)
}

/// Fails where a file could not be written, before anything long is begun.
///
/// # Errors
/// Where its folder is not there, or it is a folder itself.
fn check_writable(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let name = path.display();
    if path.is_dir() {
        return Err(Failure::invalid(format!("{name} is a folder"), "name a file in it"));
    }
    if parent.is_some_and(|parent| !parent.is_dir()) {
        let message = format!("there is no folder for {name}");
        return Err(Failure::invalid(message, "make it, or name another file"));
    }
    Ok(())
}

/// Writes a file.
///
/// # Errors
/// Where it cannot be.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| {
        let message = format!("cannot write {}: {error}", path.display());
        Failure::invalid(message, "name a file that you can write")
    })
}

/// A number that JSON can hold.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// All of them where JSON can hold each.
fn all_finite(values: &[f64]) -> Option<Vec<f64>> {
    values.iter().all(|value| value.is_finite()).then(|| values.to_vec())
}
