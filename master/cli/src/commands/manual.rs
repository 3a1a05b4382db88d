//! Completions and manual pages: the words of `--help` in other forms.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;

use super::Context;
use crate::args::Cli;
use crate::failure::Failure;

pub(super) fn completion(
    context: &mut Context<'_>,
    shell: clap_complete::Shell,
) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "optimus", &mut script);
    context.output.bytes(&script)
}

/// Prints `optimus.1`, or writes it and one page for each command, such as `optimus-cert-issue.1`,
/// into a folder.
pub(super) fn man(context: &mut Context<'_>, folder: Option<&Path>) -> Result<(), Failure> {
    let mut root = Cli::command();
    // Names the commands as they are called: `optimus cert issue`.
    root.build();
    let Some(folder) = folder else {
        return context.output.bytes(&page(&root)?);
    };
    let cannot = |error: &std::io::Error| {
        let message = format!("cannot write manual pages to {}: {error}", folder.display());
        Failure::invalid(message, "name a folder that you may write")
    };
    fs::create_dir_all(folder).map_err(|error| cannot(&error))?;
    let mut commands = vec![&root];
    while let Some(command) = commands.pop() {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        let file = folder.join(format!("{name}.1"));
        fs::write(&file, page(command)?).map_err(|error| cannot(&error))?;
        commands.extend(command.get_subcommands().filter(|command| !command.is_hide_set()));
    }
    Ok(())
}

fn page(command: &clap::Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    let made = clap_mangen::Man::new(command.clone()).render(&mut page);
    // Memory takes all that is written to it.
    made.map_err(|error| Failure::invalid(format!("cannot make a manual page: {error}"), ""))?;
    Ok(page)
}
