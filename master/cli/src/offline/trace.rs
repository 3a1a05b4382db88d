//! A trace and the cluster that it runs on.

use simulator::trace::{Built, Trace, TraceError, build, read as read_trace};
use simulator::workload::{Cluster, Workload};

use super::cluster;
use super::file::Source;
use crate::failure::{Failure, Located};

/// The jobs of a file on a cluster.
#[derive(Debug)]
pub(super) struct Input {
    pub trace: Trace,
    pub cluster: Cluster,
    /// The trace's file, for messages.
    name: String,
    /// What was assumed of it, in sentences.
    pub notes: Vec<String>,
}

/// Reads a trace and matches it against a cluster.
///
/// # Errors
/// Everything that is wrong with the file, jobs larger than the cluster included.
pub(super) fn read(source: &Source, cluster: cluster::Cluster) -> Result<Input, Failure> {
    let trace = read_trace(&source.text).map_err(|error| faulty(&source.name, error))?;
    let nodes = cluster.nodes.into_iter().map(|node| (node.id, node.capacity)).collect();
    let built =
        build(&trace, &Cluster { nodes }, 0).map_err(|error| faulty(&source.name, error))?;
    let Built { cluster, notes, .. } = built;
    Ok(Input { trace, cluster, name: source.name.clone(), notes })
}

impl Input {
    /// The jobs as a seed has them.
    ///
    /// # Errors
    /// None that reading did not have.
    pub(super) fn workload(&self, seed: u64) -> Result<Workload, String> {
        let built = build(&self.trace, &self.cluster, seed);
        built.map(|built| built.workload).map_err(|error| format!("{}: {error}", self.name))
    }
}

fn faulty(name: &str, error: TraceError) -> Failure {
    let TraceError { faults, count } = error;
    let told = faults.len();
    let located = |at: simulator::trace::Located| Located { line: at.line, fault: at.fault };
    let mut failure = Failure::faulty(name, faults.into_iter().map(located).collect());
    if count > told {
        failure.message = format!("{name} has {count} faults, the first {told} are");
    }
    failure
}
