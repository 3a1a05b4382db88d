//! What each command does.

mod access;
mod admin;
mod cert;
mod change;
mod doctor;
mod follow;
mod forecast;
mod gpus;
mod manual;
mod node;
mod read;
mod rotate;
mod submit;
mod wait;

use crate::args::{
    CertCommand, Cli, Command, ConfigCommand, FitCommand, NodeCommand, RoundCommand,
    SnapshotCommand,
};
use crate::client::{Master, Target};
use crate::config::Environment;
use crate::failure::{Exit, Failure};
use crate::listing::Format;
use crate::offline;
use crate::output::Output;

/// What a command has at hand.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub master: Master,
    pub output: &'a mut Output,
    pub environment: &'a Environment,
    pub format: Format,
}

/// How a command ended that did what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Well,
    /// The job that was waited for ended FAILED or CANCELLED.
    JobFailed,
    /// It told what it could, without the master.
    Without(Exit),
}

impl Done {
    #[must_use]
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Well => 0,
            Self::JobFailed => Exit::JobFailed.code(),
            Self::Without(exit) => exit.code(),
        }
    }
}

/// Runs a command to its end.
///
/// # Errors
/// What could not be done, with its exit code.
pub(crate) async fn run(
    cli: Cli,
    environment: &Environment,
    output: &mut Output,
) -> Result<Done, Failure> {
    let Cli { global, command } = cli;
    let connect = command.connect();
    let target = Target::new(
        connect.master.or(global.master),
        connect.tls_dir.or(global.tls_dir),
        environment,
    );
    let mut context =
        Context { master: Master::new(target), output, environment, format: global.format };
    let result = dispatch(command, &mut context).await;
    context.output.end_progress();
    context.master.close().await;
    result
}

async fn dispatch(command: Command, context: &mut Context<'_>) -> Result<Done, Failure> {
    match command {
        Command::Submit(args) => return submit::submit(context, args).await,
        Command::Wait(args) => return wait::wait(context, args.job, args.timeout).await,
        Command::Doctor(args) => return doctor::doctor(context, &args).await,
        Command::Ps(args) => read::ps(context, &args.read, args.all).await,
        Command::Show(args) => read::show(context, &args).await,
        Command::Why(args) => read::why(context, &args).await,
        Command::Logs(args) => follow::logs(context, &args).await,
        Command::Events(args) => follow::events(context, &args).await,
        Command::Cancel(args) => change::cancel(context, &args).await,
        Command::Pause(args) => change::pause(context, &args).await,
        Command::Resume(args) => change::resume(context, &args).await,
        Command::Checkpoint(args) => change::checkpoint(context, &args).await,
        Command::Unpin(args) => change::unpin(context, &args).await,
        Command::Resize(args) => change::resize(context, &args).await,
        Command::Update(args) => change::update(context, &args).await,
        Command::Forecast(args) => forecast::forecast(context, &args).await,
        Command::Rounds(args) => read::rounds(context, &args).await,
        Command::Round(RoundCommand::Show(args)) => read::round(context, &args).await,
        Command::Nodes(args) => read::nodes(context, &args).await,
        Command::Node(NodeCommand::Show(args)) => read::node(context, &args).await,
        Command::Node(NodeCommand::Lost(args)) => change::node_lost(context, &args).await,
        Command::Node(NodeCommand::Cordon(args)) => node::cordon(context, &args).await,
        Command::Node(NodeCommand::Drain(args)) => node::drain(context, &args).await,
        Command::Node(NodeCommand::Undrain(args)) => node::undrain(context, &args).await,
        Command::Node(NodeCommand::Gpus(args)) => gpus::gpus(context, &args).await,
        Command::Status(args) => read::status(context, &args).await,
        Command::Plan(args) => offline::plan(context, &args),
        Command::Fit(FitCommand::Loss(args)) => offline::fit_loss(context, &args),
        Command::Fit(FitCommand::Speed(args)) => offline::fit_speed(context, &args),
        Command::Assign(args) => offline::assign(context, &args),
        Command::Simulate(args) => offline::simulate(context, &args),
        Command::Experiment(args) => offline::experiment(context, &args),
        Command::Config(ConfigCommand::Check(args)) => admin::config_check(context, &args),
        Command::Snapshot(SnapshotCommand::Save(args)) => admin::save(context, &args.file).await,
        Command::Snapshot(SnapshotCommand::Verify { file, store_key }) => {
            admin::verify(context, &file, store_key.as_deref()).await
        }
        Command::Snapshot(SnapshotCommand::Restore(args)) => admin::restore(context, &args).await,
        Command::Cert(CertCommand::Init(args)) => cert::cert_init(context, &args),
        Command::Cert(CertCommand::Issue(args)) => cert::cert_issue(context, &args),
        Command::Cert(CertCommand::Rotate(args)) => rotate::rotate(context, &args).await,
        Command::Cert(CertCommand::Revoke(args)) => rotate::revoke(context, &args).await,
        Command::Cert(CertCommand::Status(args)) => cert::cert_status(context, &args).await,
        Command::Audit(args) => access::audit(context, &args).await,
        Command::Roles => access::roles(context),
        Command::Version(_) => admin::version(context).await,
        Command::Completion { shell } => manual::completion(context, shell),
        Command::Man { dir } => manual::man(context, dir.as_deref()),
    }?;
    Ok(Done::Well)
}

impl Context<'_> {
    /// Prints the result of something done: a sentence, an id, or JSON.
    ///
    /// # Errors
    /// Where stdout does not take it.
    pub(crate) fn done<T: serde::Serialize>(
        &mut self,
        json: &T,
        id: &str,
        sentence: &str,
    ) -> Result<(), Failure> {
        let text = match self.format {
            Format::Json => crate::listing::pretty(json) + "\n",
            Format::Jsonl => crate::listing::line(json),
            Format::Name => crate::text::escape(id) + "\n",
            Format::Table | Format::Wide => crate::text::escape(sentence) + "\n",
        };
        self.output.data(&text)
    }
}
