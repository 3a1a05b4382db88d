//! Arguments of the commands that open and close nodes, and of `doctor`.

use clap::Args;
use model::NodeId;

use super::{ChangeArgs, Limit, ReadArgs, limit};

#[derive(Clone, Debug, Args)]
pub(crate) struct NodesChangeArgs {
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<NodeId>,
    #[command(flatten)]
    pub change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DrainArgs {
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<NodeId>,
    /// What is left then is stopped without a checkpoint, such as 30m
    #[arg(long, value_name = "TIME", value_parser = limit, default_value = "none")]
    pub deadline: Limit,
    /// Wait until nothing runs there any more
    #[arg(long)]
    pub wait: bool,
    /// Wait no longer than this; the drain goes on
    #[arg(long, value_name = "TIME", value_parser = limit, requires = "wait")]
    pub timeout: Option<Limit>,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub read: ReadArgs,
}
