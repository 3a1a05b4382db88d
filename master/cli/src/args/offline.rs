//! Arguments of the commands on files.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use model::Shape;
use model::job::TASKS_MAX;

#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    /// The nodes, as JSON; - for stdin
    #[arg(long, value_name = "FILE")]
    pub cluster: PathBuf,
    /// The jobs, as JSON
    #[arg(long, value_name = "FILE")]
    pub jobs: PathBuf,
    /// How to decide: optimus, drf, tetris, fifo, tiresias or pollux
    #[arg(long, value_name = "NAME", default_value = "optimus")]
    pub policy: String,
    /// Jobs of a second round, planned with what the first one left at hand
    #[arg(long, value_name = "FILE")]
    pub then: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum FitCommand {
    /// Fit a loss curve and say when it will have converged
    Loss(FitLossArgs),
    /// Fit a speed function and say what to measure next
    Speed(FitSpeedArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct FitLossArgs {
    /// CSV with the columns step and loss, and learning_rate where it changes; - for stdin
    #[arg(long, value_name = "FILE")]
    pub points: PathBuf,
    /// Converged where the loss drops by less than this share of the largest in an epoch
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub threshold: f64,
    /// Epochs in a row with so small a drop
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub patience: u32,
    /// Steps of an epoch, the first of which starts at step 0 [default: each row is an epoch]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub steps_per_epoch: Option<f64>,
    /// Another curve in k with free constants of 0 or more, such as 'a/(k+b)+c'
    #[arg(long, value_name = "CURVE")]
    pub curve: Option<String>,
    /// Only rows whose column has this value
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = pair)]
    pub filters: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    Sync,
    Async,
}

impl ModeArg {
    /// The word for it.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
        }
    }
}

fn tasks() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(TASKS_MAX))
}

#[derive(Clone, Debug, Args)]
pub(crate) struct FitSpeedArgs {
    /// CSV with the columns servers, workers and steps_per_s, without rows where nothing is
    /// measured yet; - for stdin
    #[arg(long, value_name = "FILE")]
    pub samples: PathBuf,
    /// How the job trains
    #[arg(long, value_enum)]
    pub mode: ModeArg,
    /// Samples of a step of all workers together; only with --mode sync
    #[arg(long, value_name = "M", conflicts_with = "worker_batch")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub global_batch: Option<u32>,
    /// Samples of a step of one worker; only with --mode sync
    #[arg(long, value_name = "M")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub worker_batch: Option<u32>,
    /// Only rows whose column has this value
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = pair)]
    pub filters: Vec<(String, String)>,
    /// Most servers of the best and the next shapes [default: the most measured; for the next
    /// twice as many, at least 4]
    #[arg(long, value_name = "P", value_parser = tasks())]
    pub max_servers: Option<u32>,
    /// Most workers of the best and the next shapes [default: the most measured; for the next
    /// twice as many, at least 4]
    #[arg(long, value_name = "W", value_parser = tasks())]
    pub max_workers: Option<u32>,
    /// CSV with the columns servers and workers: the shapes that can be measured next,
    /// of which those within --max-servers and --max-workers count
    #[arg(long, value_name = "FILE")]
    pub candidates: Option<PathBuf>,
    /// How many shapes to name for measuring next
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub count: u32,
    /// Also predict the speed of this shape: servers,workers
    #[arg(long, value_name = "P,W", value_parser = shape)]
    pub predict: Option<Shape>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AlgorithmArg {
    /// No worse than paa in any measure
    Best,
    /// The paper's
    Paa,
    /// MXNet's default
    Mxnet,
}

impl From<AlgorithmArg> for scheduler::assign::Algorithm {
    fn from(algorithm: AlgorithmArg) -> Self {
        match algorithm {
            AlgorithmArg::Best => Self::Best,
            AlgorithmArg::Paa => Self::Paa,
            AlgorithmArg::Mxnet => Self::Mxnet,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AssignArgs {
    /// CSV with the column parameters, and block for their names; - for stdin
    #[arg(long, value_name = "FILE")]
    pub blocks: PathBuf,
    /// Parameter servers
    #[arg(long, value_name = "P", value_parser = tasks())]
    pub servers: u32,
    /// How to assign
    #[arg(long, value_enum, default_value = "best")]
    pub algorithm: AlgorithmArg,
    /// Only rows whose column has this value
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = pair)]
    pub filters: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or("write COLUMN=VALUE, such as model=resnet-50")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn share(text: &str) -> Result<f64, String> {
    let share: Option<f64> = text.parse().ok();
    share
        .filter(|share| *share > 0.0 && *share < 1.0)
        .ok_or_else(|| "give a share above 0 and below 1, such as 0.01".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|number| number.is_finite() && *number > 0.0)
        .ok_or_else(|| "give a number above 0".to_owned())
}

fn shape(text: &str) -> Result<Shape, String> {
    let count = |text: &str| {
        let count: Option<u32> = text.trim().parse().ok();
        count.filter(|count| (1..=TASKS_MAX).contains(count))
    };
    text.split_once(',')
        .and_then(|(servers, workers)| Some(Shape::new(count(servers)?, count(workers)?)))
        .ok_or_else(|| format!("give SERVERS,WORKERS, each 1 to {TASKS_MAX}, such as 2,4"))
}
