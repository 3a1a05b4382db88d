//! Arguments of `node gpus`.

use clap::Args;
use model::NodeId;

use super::{ChangeArgs, Connect, ReadArgs};

#[derive(Clone, Debug, Args)]
pub(crate) struct NodeGpusArgs {
    /// Only the GPUs of this node
    #[arg(value_name = "NODE")]
    pub node: Option<NodeId>,
    /// Take a GPU of the node out for good; may be repeated
    #[arg(long, value_name = "UUID", requires = "node")]
    pub retire: Vec<String>,
    /// Let a GPU that is out be probed, and work again; may be repeated
    #[arg(long = "return", value_name = "UUID", requires = "node", conflicts_with = "retire")]
    pub give_back: Vec<String>,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// With --retire or --return: check and answer, change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// With --retire or --return: why; kept with the event
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    pub read: ReadArgs,
}

impl NodeGpusArgs {
    /// What every change takes.
    #[must_use]
    pub(crate) fn change(&self) -> ChangeArgs {
        ChangeArgs {
            connect: Connect::default(),
            dry_run: self.dry_run,
            reason: self.reason.clone(),
        }
    }
}
