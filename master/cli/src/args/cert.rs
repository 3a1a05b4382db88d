//! Arguments of the commands on certificates.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use model::units::DurationMs;

use super::{ChangeArgs, ReadArgs};

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Make the cluster's CA and the master's certificate
    Init(InitArgs),
    /// Issue a certificate
    Issue(IssueArgs),
    /// Renew certificates over the master: keys never leave their hosts, no connection is lost
    Rotate(RotateArgs),
    /// Take certificates back: the master refuses them and closes their sessions
    Revoke(RevokeArgs),
    /// When certificates end, those in files and those in use at the cluster
    Status(CertStatusArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArg {
    Master,
    Agent,
    Operator,
    /// May do everything
    Admin,
    /// May change its own jobs only
    User,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct InitArgs {
    /// Folder to make them in [default: where the master looks]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = "optimus")]
    pub cluster: String,
    /// A further address or name of the master; may be repeated
    #[arg(long = "address", value_name = "ADDR")]
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct IssueArgs {
    /// Who it is for
    #[arg(value_enum)]
    pub role: RoleArg,
    /// The node's name, or the person's: whose jobs are whose goes by it, whatever the role
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Folder of the CA [default: where the master looks]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Folder to put it in, with a copy of ca.pem [default: the CA's]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write certificate, key and CA as one file instead, for `tls.enrolment` of the daemon
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "replace"])]
    pub bundle: Option<PathBuf>,
    #[command(flatten)]
    pub lasting: Lasting,
    /// A further address or name of a master; may be repeated
    #[arg(long = "address", value_name = "ADDR")]
    pub addresses: Vec<String>,
    /// Renew one that exists
    #[arg(long)]
    pub replace: bool,
}

/// How long a certificate lasts.
#[derive(Clone, Debug, Args)]
pub(crate) struct Lasting {
    /// Days that it lasts
    #[arg(long, value_name = "N", default_value_t = 365)]
    pub days: u32,
    /// A time that it lasts instead, such as 12h
    #[arg(long, value_name = "TIME", conflicts_with = "days")]
    pub lasts: Option<DurationMs>,
}

#[derive(Clone, Debug, Args)]
#[group(id = "whose", required = true, args = ["role", "all"])]
pub(crate) struct RotateArgs {
    /// Whose: `master`, or `agent NODE` over the master, or `operator NAME` in files here
    #[arg(value_enum, conflicts_with = "all")]
    pub role: Option<RoleArg>,
    /// The node's name, or the person's: whose jobs are whose goes by it, whatever the role
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// The master's and every connected agent's
    #[arg(long)]
    pub all: bool,
    /// Folder of the CA and its key [default: where the master looks]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Folder of an operator's files [default: the CA's]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub lasting: Lasting,
    /// A further address or name of a master; may be repeated
    #[arg(long = "address", value_name = "ADDR")]
    pub addresses: Vec<String>,
    #[command(flatten)]
    pub change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
#[group(id = "which", required = true, multiple = true, args = ["role", "serials", "files"])]
pub(crate) struct RevokeArgs {
    /// Every certificate of `agent NODE` or `operator NAME` that is known and has not ended
    #[arg(value_enum, requires = "name")]
    pub role: Option<RoleArg>,
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// One certificate by its serial number, as `cert status` shows it; may be repeated
    #[arg(long = "serial", value_name = "HEX")]
    pub serials: Vec<String>,
    /// One certificate by its file; may be repeated
    #[arg(long = "certificate", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Folder of the CA and its key [default: where the master looks]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Only write crl.pem; give it to the master as `tls.revocations`
    #[arg(long)]
    pub offline: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CertStatusArgs {
    /// Certificates in files [default: all of the folder]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Folder of certificates [default: that of --tls-dir]
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    pub dir: Option<PathBuf>,
    /// Do not ask the master
    #[arg(long)]
    pub offline: bool,
    #[command(flatten)]
    pub read: ReadArgs,
}
