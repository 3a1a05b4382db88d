//! Workloads of the Pollux paper: replicas on GPUs, from profiles that were measured.

use std::collections::BTreeSet;

use simulator::outcome::Outcome;
use simulator::replay::{self, Folders, Options, Profiles, Row, find_profiles};
use simulator::trace::PolluxRow;

use super::runner::{NoRun, Runner};
use super::trace::Input;
use crate::args::SimulateArgs;
use crate::failure::Failure;

/// What `optimus` is called where it knows the truth.
const ORACLE: &str = "optimus-oracle";

/// Runs of a workload.
#[derive(Debug)]
pub(super) struct Replicas {
    profiles: Profiles,
    rows: Vec<Row>,
    nodes: u32,
    options: Options,
}

/// A workload's runs on a cluster.
///
/// # Errors
/// Profiles that are not there, or a cluster on which nothing was measured.
pub(super) fn replicas(
    rows: &[PolluxRow],
    input: &Input,
    args: &SimulateArgs,
) -> Result<Replicas, Failure> {
    let options = Options::default();
    let folders = args.profiles.as_deref().map(folders).or_else(|| find_profiles(&args.trace));
    let folders = folders.filter(|folders| folders.profiles.is_dir()).ok_or_else(|| {
        let message = "found no profiles of the applications of this trace";
        Failure::invalid(message, "name the folder that holds profiles/ with --profiles")
    })?;
    let applications: BTreeSet<&str> = rows.iter().map(|row| row.application).collect();
    let profiles = Profiles::load(&folders, applications)
        .map_err(|error| Failure::invalid(error, "correct the profiles"))?;
    let row = |row: &PolluxRow| Row {
        name: row.name.clone(),
        time: row.time_s,
        application: row.application.to_owned(),
        num_replicas: row.num_replicas,
        batch_size: row.batch_size,
    };
    Ok(Replicas {
        profiles,
        rows: rows.iter().map(row).collect(),
        nodes: nodes(input)?,
        options: Options {
            interval_s: args.interval.unwrap_or(options.interval_s),
            interference: args.interference.unwrap_or(options.interference),
            ..options
        },
    })
}

/// The profiles in a folder: within it, or the folder itself.
fn folders(folder: &std::path::Path) -> Folders {
    let within = Folders::of(folder);
    let above = folder.parent().map(Folders::of).filter(|above| above.profiles == folder);
    if within.profiles.is_dir() { within } else { above.unwrap_or(within) }
}

/// Nodes with GPUs, each of which must have as many as those that were measured.
fn nodes(input: &Input) -> Result<u32, Failure> {
    let with_gpus = || input.cluster.nodes.iter().filter(|(_, capacity)| capacity.gpus > 0);
    if let Some((id, capacity)) = with_gpus().find(|(_, capacity)| capacity.gpus != 4) {
        let message = format!(
            "node {id} has {} GPUs: the applications were measured on nodes of 4",
            capacity.gpus
        );
        return Err(Failure::invalid(message, "give each node 4 GPUs for this kind of trace"));
    }
    let count = u32::try_from(with_gpus().count()).unwrap_or(u32::MAX);
    if count == 0 {
        let message = "no node of the cluster has GPUs";
        return Err(Failure::invalid(message, "give each node 4 GPUs for this kind of trace"));
    }
    Ok(count)
}

impl Runner for Replicas {
    fn policies(&self) -> Vec<&'static str> {
        let plain = |name: &'static str| if name == ORACLE { "optimus" } else { name };
        replay::POLICIES.into_iter().map(plain).collect()
    }

    fn run(&self, policy: &str, seed: u64, _told: &dyn Fn(f64)) -> Result<Outcome, NoRun> {
        let name = if policy == "optimus" { ORACLE } else { policy };
        let options = Options { policy: name.to_owned(), seed, ..self.options.clone() };
        let outcome = replay::run(&self.profiles, &self.rows, self.nodes, &options)
            .map_err(NoRun::Invalid)?;
        Ok(Outcome { policy: policy.to_owned(), ..outcome })
    }
}
