//! The words of the command line. `--help`, completions and manual pages come from here.

mod admin;
mod cert;
mod gpus;
mod job;
mod node;
mod offline;
mod simulate;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand};

pub(crate) use admin::{
    AuditArgs, ConfigCheckArgs, ConfigCommand, ConnectOnlyArgs, NodeCommand, NodeLostArgs,
    NodeShowArgs, RoundCommand, RoundShowArgs, RoundsArgs, SnapshotCommand, SnapshotRestoreArgs,
};
pub(crate) use cert::{
    CertCommand, CertStatusArgs, InitArgs, IssueArgs, Lasting, RevokeArgs, RoleArg, RotateArgs,
};
pub(crate) use gpus::NodeGpusArgs;
pub(crate) use job::{
    CancelArgs, EventsArgs, ForecastArgs, JobReadArgs, JobsChangeArgs, LogsArgs, ResizeArgs,
    SubmitArgs, UpdateArgs, WaitArgs,
};
pub(crate) use node::{DoctorArgs, DrainArgs, NodesChangeArgs};
pub(crate) use offline::{AssignArgs, FitCommand, FitLossArgs, FitSpeedArgs, ModeArg, PlanArgs};
pub(crate) use simulate::{EstimatesArg, ExperimentArgs, SimulateArgs};

use crate::failure::Failure;
use crate::listing::{Format, View};

const AFTER: &str = "\
Exit codes: 0 done, 1 the job ended FAILED or CANCELLED (wait, submit --wait), 2 usage or invalid
input, 3 not found, 4 not allowed, 5 conflict, 6 master unavailable, 7 timed out waiting, 8 valid
but cannot be placed, 70 a fault of this program, 130 interrupted.";

/// Version, commit and protocols, for `--version`.
static VERSION: LazyLock<String> =
    LazyLock::new(|| net::version_line(env!("CARGO_PKG_VERSION"), env!("OPTIMUS_COMMIT")));

/// Schedules deep-learning training on a cluster of plain servers.
#[derive(Debug, Parser)]
#[command(name = "optimus", version = VERSION.as_str(), after_help = AFTER)]
#[command(propagate_version = false)]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// Address of the master [default: 127.0.0.1:7600]
    #[arg(long, value_name = "ADDR", env = "OPTIMUS_MASTER")]
    pub master: Option<String>,
    /// Folder with ca.pem and the operator's certificate and key
    #[arg(long, value_name = "DIR", env = "OPTIMUS_TLS_DIR")]
    pub tls_dir: Option<PathBuf>,
    /// How to print the answer
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        global = true,
        default_value = "table"
    )]
    pub format: Format,
}

/// The same two options behind a command's name; these win.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Connect {
    /// Address of the master [env: OPTIMUS_MASTER] [default: 127.0.0.1:7600]
    #[arg(long, value_name = "ADDR")]
    pub master: Option<String>,
    /// Folder with ca.pem and the operator's certificate and key [env: OPTIMUS_TLS_DIR]
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
}

/// What every read command takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub connect: Connect,
    /// Keep showing: a redrawn table on a terminal, else one line or JSON object a change
    #[arg(short = 'w', long)]
    pub watch: bool,
    /// No line of column names
    #[arg(long)]
    pub no_header: bool,
    /// Only these columns, in this order; JSON always holds every field
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Sort by these columns; -NAME for the largest first
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', allow_hyphen_values = true)]
    pub sort: Vec<String>,
    /// Only rows whose column has this value; several of one column: any of them
    #[arg(long = "filter", value_name = "NAME=VALUE", value_parser = pair)]
    pub filters: Vec<(String, String)>,
    /// Times in RFC 3339 instead of "4m ago"
    #[arg(long)]
    pub utc: bool,
}

impl ReadArgs {
    #[must_use]
    pub(crate) fn view(&self, format: Format) -> View {
        View {
            format,
            watch: self.watch,
            header: !self.no_header,
            columns: self.columns.clone(),
            sort: self.sort.clone(),
            filters: self.filters.clone(),
            utc: self.utc,
        }
    }
}

/// What every change takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub connect: Connect,
    /// Check and answer, change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Why; kept with the event
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as phase=RUNNING")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A duration with a unit; `none` is no limit.
fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let parsed: Result<model::units::DurationMs, _> = text.parse();
    parsed.map(|duration| Limit(Some(duration.0))).map_err(|error| error.to_string())
}

/// Milliseconds, or none for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limit(pub Option<u64>);

/// A size with a unit, or plain bytes.
fn size(text: &str) -> Result<u64, String> {
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    model::units::parse_bytes(text).map_err(|error| error.to_string())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Submit a job from a job file
    Submit(SubmitArgs),
    /// List jobs; on a terminal, those that ended over a day ago are left out
    Ps(job::PsArgs),
    /// Everything about a job: predicted and actual
    Show(JobReadArgs),
    /// Why a job is where it is
    Why(JobReadArgs),
    /// The output of a job's task
    Logs(LogsArgs),
    /// What happened to a job, or in the cluster
    Events(EventsArgs),
    /// Wait until a job ends
    Wait(WaitArgs),
    /// End jobs
    Cancel(CancelArgs),
    /// Checkpoint jobs and give back what they use
    Pause(JobsChangeArgs),
    /// Let paused jobs run again
    Resume(JobsChangeArgs),
    /// Write a checkpoint of jobs now
    Checkpoint(JobsChangeArgs),
    /// Give a job another shape than the policy would
    Resize(ResizeArgs),
    /// Give jobs back to the policy
    Unpin(JobsChangeArgs),
    /// Change the bounds or the priority of a job
    Update(UpdateArgs),
    /// When jobs will be done, and what more nodes would change
    Forecast(ForecastArgs),
    /// List the last scheduling rounds
    Rounds(RoundsArgs),
    /// One scheduling round
    #[command(subcommand)]
    Round(RoundCommand),
    /// List nodes
    Nodes(ReadArgs),
    /// One node
    #[command(subcommand)]
    Node(NodeCommand),
    /// The state of the master and the cluster
    Status(ReadArgs),
    /// What should be looked at: nodes, jobs, certificates, the way to the master
    Doctor(DoctorArgs),
    /// Plan one scheduling round from files, without a master
    Plan(PlanArgs),
    /// Fit the models to measurements in files
    #[command(subcommand)]
    Fit(FitCommand),
    /// Assign a model's parameters to servers
    Assign(AssignArgs),
    /// Simulate a cluster on a trace of jobs, without a master
    Simulate(Box<SimulateArgs>),
    /// Run one of the papers' experiments, or list them
    Experiment(ExperimentArgs),
    /// Configuration files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Copies of the master's store
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Certificates
    #[command(subcommand)]
    Cert(CertCommand),
    /// Who changed what, and what was refused
    Audit(AuditArgs),
    /// Who may do what: the roles of certificates
    Roles,
    /// Versions of this program, the master and the oldest agent
    Version(ConnectOnlyArgs),
    /// Print the completions for a shell
    Completion {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print this program's manual page, or write those of all commands
    Man {
        /// Folder to write them in, such as /usr/local/share/man/man1
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

impl Command {
    /// The connection options behind the command's name.
    #[must_use]
    pub(crate) fn connect(&self) -> Connect {
        match self {
            Self::Submit(args) => &args.change.connect,
            Self::Ps(args) => &args.read.connect,
            Self::Show(args) | Self::Why(args) => &args.read.connect,
            Self::Logs(args) => &args.connect,
            Self::Events(args) => &args.read.connect,
            Self::Wait(args) => &args.connect,
            Self::Cancel(args) => &args.change.connect,
            Self::Pause(args) | Self::Resume(args) | Self::Checkpoint(args) | Self::Unpin(args) => {
                &args.change.connect
            }
            Self::Resize(args) => &args.change.connect,
            Self::Update(args) => &args.change.connect,
            Self::Forecast(args) => &args.connect,
            Self::Rounds(args) => &args.read.connect,
            Self::Round(RoundCommand::Show(args)) => &args.read.connect,
            Self::Nodes(args) | Self::Status(args) => &args.connect,
            Self::Node(NodeCommand::Show(args)) => &args.read.connect,
            Self::Node(NodeCommand::Lost(args)) => &args.change.connect,
            Self::Node(NodeCommand::Cordon(args) | NodeCommand::Undrain(args)) => {
                &args.change.connect
            }
            Self::Node(NodeCommand::Drain(args)) => &args.change.connect,
            Self::Doctor(args) => &args.read.connect,
            Self::Node(NodeCommand::Gpus(args)) => &args.read.connect,
            Self::Snapshot(SnapshotCommand::Save(args)) => &args.connect,
            Self::Version(args) => &args.connect,
            Self::Audit(args) => &args.read.connect,
            Self::Cert(CertCommand::Rotate(args)) => &args.change.connect,
            Self::Cert(CertCommand::Revoke(args)) => &args.change.connect,
            Self::Cert(CertCommand::Status(args)) => &args.read.connect,
            Self::Plan(_)
            | Self::Fit(_)
            | Self::Assign(_)
            | Self::Simulate(_)
            | Self::Experiment(_)
            | Self::Config(_)
            | Self::Roles
            | Self::Cert(CertCommand::Init(_) | CertCommand::Issue(_))
            | Self::Completion { .. }
            | Self::Man { .. }
            | Self::Snapshot(SnapshotCommand::Verify { .. } | SnapshotCommand::Restore(_)) => {
                return Connect::default();
            }
        }
        .clone()
    }
}

/// What reading the arguments led to.
#[derive(Debug)]
pub(crate) enum Parsed {
    Command(Box<Cli>),
    /// Text that was asked for, such as help.
    Text(String),
    Failed(Failure),
}

/// Reads the arguments; the first is the program.
#[must_use]
pub(crate) fn parse(arguments: &[String]) -> Parsed {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
    match Cli::try_parse_from(arguments) {
        Ok(cli) => Parsed::Command(Box::new(cli)),
        Err(error) if matches!(error.kind(), DisplayHelp | DisplayVersion) => {
            Parsed::Text(error.render().to_string())
        }
        Err(error) => {
            let text = error.render().to_string();
            let text = text.trim().strip_prefix("error: ").unwrap_or_else(|| text.trim());
            let (message, hint) = text.split_once("\n\n").unwrap_or((text, ""));
            Parsed::Failed(Failure::invalid(message, hint.replace("\n\n", "\n")))
        }
    }
}

/// Whether unreadable arguments asked for JSON, so that their error is JSON too.
#[must_use]
pub(crate) fn wants_json(arguments: &[String]) -> bool {
    let json = |word: &str| matches!(word, "json" | "jsonl");
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let given = match word {
            "-o" | "--output" => words.next(),
            "--" => return false,
            _ => word
                .strip_prefix("--output=")
                .or_else(|| word.strip_prefix("-o="))
                .or_else(|| word.strip_prefix("-o")),
        };
        if given.is_some_and(json) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        std::iter::once("optimus").chain(line.split(' ')).map(str::to_owned).collect()
    }

    #[test]
    fn the_words_of_the_command_line_do_not_collide() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_master_may_be_named_before_and_behind_the_command() {
        for line in ["--master a:1 ps", "ps --master a:1"] {
            let Parsed::Command(cli) = parse(&words(line)) else { panic!("{line} was refused") };
            assert_eq!(cli.command.connect().master.or(cli.global.master).as_deref(), Some("a:1"));
        }
        let Parsed::Command(cli) = parse(&words("config check --master m.toml")) else {
            panic!("refused")
        };
        assert_eq!(cli.command.connect().master, None);
    }

    #[test]
    fn a_wrong_word_is_invalid_with_a_hint() {
        for (line, part) in [
            ("ps --output xml", "table"),
            ("wait j1 --timeout 90", "90s"),
            ("show x1", "j12"),
            ("frobnicate", "frobnicate"),
            ("cancel", "JOB"),
            ("ps --filter phase", "phase=RUNNING"),
        ] {
            let Parsed::Failed(failure) = parse(&words(line)) else { panic!("{line} was taken") };
            assert_eq!(failure.exit.code(), 2, "{line}");
            let text = failure.to_string();
            assert!(text.contains(part), "{line}: {text}");
        }
    }

    #[test]
    fn json_is_seen_in_arguments_that_do_not_parse() {
        for line in ["-o json frob", "frob -ojson", "x --output=jsonl", "x -o jsonl"] {
            assert!(wants_json(&words(line)), "{line}");
        }
        for line in ["ps", "-o table", "x -- -o json", "json"] {
            assert!(!wants_json(&words(line)), "{line}");
        }
    }
}
