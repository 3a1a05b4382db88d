//! Commands on files, certificates and the programs themselves.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use model::client::{Answer, Read};
use tokio::io::AsyncWriteExt as _;

use super::{Context, submit};
use crate::args::{ConfigCheckArgs, SnapshotRestoreArgs};
use crate::client::unexpected;
use crate::configfile;
use crate::contract::status::VersionJson;
use crate::failure::{Exit, Failure};
use crate::listing::Format;

/// What is wrong in a file is the failure; a right one is said to be so.
#[derive(serde::Serialize)]
struct CheckedJson {
    schema: &'static str,
    file: String,
    faults: [(); 0],
}

pub(super) fn config_check(
    context: &mut Context<'_>,
    args: &ConfigCheckArgs,
) -> Result<(), Failure> {
    let (file, faults) = match (&args.master_file, &args.agent_file, &args.job_file) {
        (Some(file), _, _) => (file, configfile::master(&submit::read_file(file)?.0)),
        (None, Some(file), _) => (file, configfile::agent(&submit::read_file(file)?.0)),
        (None, None, Some(file)) => {
            submit::read_job(file)?;
            (file, Vec::new())
        }
        (None, None, None) => {
            return Err(Failure::invalid("no file is named", "give --master, --agent or --job"));
        }
    };
    let shown = file.display().to_string();
    if !faults.is_empty() {
        return Err(Failure::faulty(&shown, faults));
    }
    let json = CheckedJson { schema: "optimus.config_check/1", file: shown.clone(), faults: [] };
    context.done(&json, &shown, &format!("{shown} is right"))
}

#[derive(serde::Serialize)]
struct SavedJson {
    schema: &'static str,
    file: String,
    bytes: u64,
}

/// Writes beside the file and links the whole into place: a reader never sees a part of it, and
/// an older copy is never overwritten.
pub(super) async fn save(context: &mut Context<'_>, file: &Path) -> Result<(), Failure> {
    let shown = file.display().to_string();
    let exists = || {
        let message = format!("{shown} exists and is left as it is");
        Failure::new(Exit::Conflict, message, "name a file that does not exist yet")
    };
    if file.exists() {
        return Err(exists());
    }
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
    let Some(name) = name else {
        return Err(Failure::invalid(format!("{shown} is no file name"), "name a new file"));
    };
    let part = file.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let result = fill(context, &part).await;
    let result = result.and_then(|bytes| {
        fs::hard_link(&part, file).map_err(|error| {
            let there = error.kind() == std::io::ErrorKind::AlreadyExists;
            if there { exists() } else { cannot_write(file, &error) }
        })?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let synced =
            fs::File::open(folder.unwrap_or_else(|| Path::new("."))).and_then(|dir| dir.sync_all());
        synced.map_err(|error| cannot_write(file, &error))?;
        Ok(bytes)
    });
    // The part is of no use either way.
    let _ = fs::remove_file(&part);
    let bytes = result?;
    let json = SavedJson { schema: "optimus.snapshot/1", file: shown.clone(), bytes };
    let size = crate::text::bytes(bytes);
    context.done(&json, &shown, &format!("saved {size} to {shown}"))
}

fn cannot_write(file: &Path, error: &std::io::Error) -> Failure {
    let message = format!("cannot write {}: {error}", file.display());
    Failure::invalid(message, "name a file on a disk with room, in a folder that you may write")
}

async fn fill(context: &mut Context<'_>, part: &Path) -> Result<u64, Failure> {
    let connection = context.master.connect().await?;
    drop(connection);
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(part);
    let mut file = opened.map_err(|error| cannot_write(part, &error))?;
    let mut total = 0_u64;
    let output = &mut *context.output;
    context
        .master
        .snapshot(|bytes| {
            total += u64::try_from(bytes.len()).unwrap_or(0);
            output.progress(&format!("{} saved", crate::text::bytes(total)));
            file.write_all(bytes).map_err(|error| cannot_write(part, &error))
        })
        .await?;
    file.sync_all().map_err(|error| cannot_write(part, &error))?;
    Ok(total)
}

/// The master's program: the one beside this program, else the one on the path. Only it knows
/// its store.
fn master_program() -> PathBuf {
    let name = "optimus-master";
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name))
}

/// Runs the master's program on a snapshot, with these settings alone; its words are ours.
async fn run_master(
    context: &mut Context<'_>,
    what: &str,
    settings: &str,
    arguments: [&std::ffi::OsStr; 2],
) -> Result<String, Failure> {
    let program = master_program();
    let shown = program.display().to_string();
    let failed = |error: std::io::Error| {
        let message = format!("cannot run {shown}: {error}");
        Failure::new(Exit::Unavailable, message, "install optimus-master here, or run it there")
    };
    context.output.progress(what);
    let mut child = tokio::process::Command::new(&program)
        .args(["--config", "/dev/stdin"])
        .args(arguments)
        .env_remove("OPTIMUS_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read them says why itself.
        let _ = stdin.write_all(settings.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    context.output.end_progress();
    let words = last_words(&String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(words);
    }
    let words = if words.is_empty() { "it gave no reason".to_owned() } else { words };
    Err(Failure::invalid(format!("cannot {what}: {words}"), ""))
}

/// The last line of a log without its time and level.
fn last_words(log: &str) -> String {
    let line = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let levels = [" ERROR ", " WARN ", " INFO "];
    let words = levels.iter().find_map(|level| line.split_once(level)).map(|(_, words)| words);
    words.unwrap_or(line).trim().to_owned()
}

/// A line of settings that names a file, or none.
fn path_setting(key: &str, path: Option<&Path>) -> Result<String, Failure> {
    let Some(path) = path else { return Ok(String::new()) };
    let whole = std::path::absolute(path).map_err(|error| cannot_write(path, &error))?;
    let whole = whole.to_str().ok_or_else(|| {
        Failure::invalid(format!("{key}: the file's name is not UTF-8"), "give it a plain name")
    })?;
    Ok(toml::Table::from_iter([(key.to_owned(), whole.into())]).to_string())
}

#[derive(serde::Serialize)]
struct SnapshotJson {
    schema: &'static str,
    file: String,
    note: String,
}

pub(super) async fn verify(
    context: &mut Context<'_>,
    file: &Path,
    store_key: Option<&Path>,
) -> Result<(), Failure> {
    let settings = path_setting("store_key", store_key)?;
    let shown = file.display().to_string();
    let arguments = ["--verify".as_ref(), file.as_os_str()];
    let note = run_master(context, "verify the snapshot", &settings, arguments).await?;
    let sentence = format!("{shown}: {note}");
    let json = SnapshotJson { schema: "optimus.snapshot_check/1", file: shown.clone(), note };
    context.done(&json, &shown, &sentence)
}

pub(super) async fn restore(
    context: &mut Context<'_>,
    args: &SnapshotRestoreArgs,
) -> Result<(), Failure> {
    if args.dry_run {
        return verify(context, &args.file, args.store_key.as_deref()).await;
    }
    let folder = std::path::absolute(&args.state_dir)
        .map_err(|error| cannot_write(&args.state_dir, &error))?;
    let folder = folder.to_str().ok_or_else(|| {
        Failure::invalid("the state folder's name is not UTF-8", "give a folder with a plain name")
    })?;
    let settings = toml::Table::from_iter([("state_dir".to_owned(), folder.into())]).to_string()
        + &path_setting("store_key", args.store_key.as_deref())?;
    let arguments = ["--restore".as_ref(), args.file.as_os_str()];
    let note = run_master(context, "restore the snapshot", &settings, arguments).await?;
    let shown = args.file.display().to_string();
    let sentence = format!("{folder}: {note}");
    let json = SnapshotJson { schema: "optimus.snapshot_restore/1", file: shown.clone(), note };
    context.done(&json, &shown, &sentence)
}

pub(super) async fn version(context: &mut Context<'_>) -> Result<(), Failure> {
    let client = env!("CARGO_PKG_VERSION").to_owned();
    let status = match context.master.read(Read::Status).await {
        Ok(Answer::Status(status)) => Ok(status),
        Ok(other) => Err(unexpected(&other)),
        Err(failure) => Err(failure),
    };
    let (status, unavailable) = match status {
        Ok(status) => (Some(status), None),
        Err(failure) => (None, Some(failure.message)),
    };
    let json = VersionJson {
        schema: "optimus.version/1",
        client,
        master: status.as_ref().map(|status| status.version.clone()),
        oldest_agent: status.and_then(|status| status.oldest_agent),
        unavailable,
    };
    if context.format.is_json() || context.format == Format::Name {
        return context.done(&json, &json.client, "");
    }
    let unknown = json.unavailable.as_deref().unwrap_or("none is known");
    let line = |name: &str, version: Option<&str>| {
        format!("{name}\t{}\n", crate::text::escape(version.unwrap_or(unknown)))
    };
    let text = line("client", Some(&json.client))
        + &line("master", json.master.as_deref())
        + &line("oldest agent", json.oldest_agent.as_deref());
    context.output.data(&text)
}
