//! Arguments of the commands on nodes, rounds and the cluster itself.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use model::{NodeId, RoundId};

use super::{ChangeArgs, Connect, DrainArgs, NodesChangeArgs, ReadArgs};

#[derive(Clone, Debug, Args)]
pub(crate) struct RoundsArgs {
    /// How many of the last
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: u32,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RoundCommand {
    /// What a round changed, why, and what was measured since
    Show(RoundShowArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RoundShowArgs {
    /// The last one where none is given
    #[arg(value_name = "ROUND")]
    pub round: Option<RoundId>,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Everything about a node
    Show(NodeShowArgs),
    /// Place no new tasks on nodes; what runs there goes on
    Cordon(NodesChangeArgs),
    /// Move all jobs away from nodes by checkpoint, and keep them empty
    Drain(DrainArgs),
    /// Open nodes that were cordoned or drained
    Undrain(NodesChangeArgs),
    /// Say that nodes are gone for good: their tasks are taken as dead
    Lost(NodeLostArgs),
    /// GPUs with their health; take one out, or let it be probed
    Gpus(super::NodeGpusArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct NodeShowArgs {
    #[arg(value_name = "NODE")]
    pub node: NodeId,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct NodeLostArgs {
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<NodeId>,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectOnlyArgs {
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Find everything wrong in a file, without any master
    Check(ConfigCheckArgs),
}

#[derive(Clone, Debug, Args)]
#[group(id = "file", required = true, multiple = false, args = ["master_file", "agent_file", "job_file"])]
pub(crate) struct ConfigCheckArgs {
    /// A master.toml
    #[arg(long = "master", value_name = "FILE")]
    pub master_file: Option<PathBuf>,
    /// An agent.toml
    #[arg(long = "agent", value_name = "FILE")]
    pub agent_file: Option<PathBuf>,
    /// A job file
    #[arg(long = "job", value_name = "FILE")]
    pub job_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Copy the master's store into a file while it runs
    Save(SnapshotSaveArgs),
    /// Check a copy to its last byte, by loading it into a folder of its own
    Verify {
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The key that the copied store was sealed with
        #[arg(long, value_name = "FILE")]
        store_key: Option<PathBuf>,
    },
    /// Fill an empty state folder from a copy; the master must not run on it
    Restore(SnapshotRestoreArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SnapshotSaveArgs {
    /// A file that does not exist yet
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SnapshotRestoreArgs {
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The state folder to fill
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    /// The key that the copied store was sealed with
    #[arg(long, value_name = "FILE")]
    pub store_key: Option<PathBuf>,
    /// Say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AuditArgs {
    /// Only what this user asked
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Only what is younger than this, such as 30m, 12h or 7d
    #[arg(long, value_name = "DURATION")]
    pub since: Option<model::units::DurationMs>,
    /// How many of the last lines to look at
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    #[command(flatten)]
    pub read: ReadArgs,
}
