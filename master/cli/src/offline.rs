//! Commands on files: the daemon's own models and decisions, without a master.

mod assign;
mod cluster;
mod csv;
mod file;
mod fit_loss;
mod fit_speed;
mod goodput;
mod jobs;
mod json;
mod plan;
mod speed;

pub(crate) use assign::assign;
pub(crate) use fit_loss::fit_loss;
pub(crate) use fit_speed::fit_speed;
pub(crate) use plan::plan;

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

/// A number that JSON can hold.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// All of them where JSON can hold each.
fn all_finite(values: &[f64]) -> Option<Vec<f64>> {
    values.iter().all(|value| value.is_finite()).then(|| values.to_vec())
}
