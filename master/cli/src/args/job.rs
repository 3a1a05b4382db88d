//! Arguments of the commands on jobs.

use std::path::PathBuf;

use clap::Args;
use model::{Generation, JobId, NodeId, Task};

use super::{ChangeArgs, Connect, Limit, ReadArgs, limit, size};

#[derive(Clone, Debug, Args)]
pub(crate) struct SubmitArgs {
    /// The job file; - reads it from stdin
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A name for this submission: repeating it returns the first job
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Wait until the job ends
    #[arg(long)]
    pub wait: bool,
    /// With --wait, wait at most this long, such as 2h30m
    #[arg(long, value_name = "TIME", value_parser = limit, requires = "wait")]
    pub timeout: Option<Limit>,
    #[command(flatten)]
    pub change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PsArgs {
    /// On a terminal too, list jobs that ended long ago
    #[arg(short = 'a', long)]
    pub all: bool,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct JobReadArgs {
    #[arg(value_name = "JOB")]
    pub job: JobId,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ForecastArgs {
    #[command(flatten)]
    pub connect: Connect,
    /// Only these jobs; all are simulated
    #[arg(value_name = "JOB")]
    pub jobs: Vec<JobId>,
    /// Also with so many more nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub add_nodes: Option<u32>,
    /// The added nodes have what this one has [default: the first]
    #[arg(long, value_name = "NODE", requires = "add_nodes")]
    pub like: Option<NodeId>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct LogsArgs {
    #[arg(value_name = "JOB")]
    pub job: JobId,
    /// Which task: worker0, server0, scheduler
    #[arg(long, value_name = "TASK", default_value = "worker0")]
    pub task: Task,
    /// Which generation, such as g3; the last where none is given
    #[arg(long, value_name = "GEN")]
    pub generation: Option<Generation>,
    /// How much of the end to print
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64KiB")]
    pub bytes: u64,
    /// Keep printing what is added, over restarts too
    #[arg(short = 'f', long)]
    pub follow: bool,
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only this job's
    #[arg(value_name = "JOB")]
    pub job: Option<JobId>,
    /// How many of the last
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: u32,
    /// Keep printing new ones
    #[arg(short = 'f', long)]
    pub follow: bool,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct WaitArgs {
    #[arg(value_name = "JOB")]
    pub job: JobId,
    /// Wait at most this long, such as 2h30m
    #[arg(long, value_name = "TIME", value_parser = limit, default_value = "none")]
    pub timeout: Limit,
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CancelArgs {
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<JobId>,
    /// Without a final checkpoint and without grace
    #[arg(long)]
    pub now: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct JobsChangeArgs {
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<JobId>,
    #[command(flatten)]
    pub change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ResizeArgs {
    #[arg(value_name = "JOB")]
    pub job: JobId,
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    pub servers: u32,
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..))]
    pub workers: u32,
    /// Keep this shape until `unpin`
    #[arg(long)]
    pub pin: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
#[group(id = "what", required = true, multiple = true, args = [
    "workers_min", "workers_max", "servers_min", "servers_max", "priority",
])]
pub(crate) struct UpdateArgs {
    #[arg(value_name = "JOB")]
    pub job: JobId,
    #[arg(long, value_name = "N")]
    pub workers_min: Option<u32>,
    #[arg(long, value_name = "N")]
    pub workers_max: Option<u32>,
    #[arg(long, value_name = "N")]
    pub servers_min: Option<u32>,
    #[arg(long, value_name = "N")]
    pub servers_max: Option<u32>,
    /// 0.01 to 100; 1 is usual
    #[arg(long, value_name = "X")]
    pub priority: Option<f64>,
    #[command(flatten)]
    pub change: ChangeArgs,
}
