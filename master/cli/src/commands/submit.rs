//! `submit`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use model::client::{Answer, Call, Change, Request};

use model::JobOptions;
use model::diverged::OnNan;

use super::{Context, Done, wait};
use crate::args::SubmitArgs;
use crate::client::unexpected;
use crate::contract::status::SubmittedJson;
use crate::failure::Failure;
use crate::jobfile;
use crate::text::ago;

/// A job file far larger than any job; what is larger is some other file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The text of a file, or of stdin for `-`, and the folder that it stands in.
pub(super) fn read_file(path: &Path) -> Result<(String, PathBuf), Failure> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        Failure::invalid(format!("cannot read {shown}: {error}"), "name a file that you can read")
    };
    let mut bytes = Vec::new();
    let folder = if path == Path::new("-") {
        std::io::stdin().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
        std::env::current_dir().map_err(cannot)?
    } else {
        let file = std::fs::File::open(path).map_err(cannot)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        std::fs::canonicalize(parent.unwrap_or_else(|| Path::new("."))).map_err(cannot)?
    };
    if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        let limit = crate::text::bytes(FILE_BYTES_MAX);
        return Err(Failure::invalid(
            format!("{shown} is larger than {limit}"),
            "name a TOML file",
        ));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::invalid(format!("{shown} is not UTF-8 text"), "save it as UTF-8"))?;
    Ok((text, folder))
}

/// Reads a job file with all its faults.
pub(super) fn read_job(path: &Path) -> Result<jobfile::Job, Failure> {
    let (text, folder) = read_file(path)?;
    let name = if path == Path::new("-") { "stdin".into() } else { path.display().to_string() };
    jobfile::parse(&text, &folder).map_err(|faults| Failure::faulty(&name, faults))
}

/// An id that no other submission has, so that sending again after a lost connection cannot make
/// a second job.
fn fresh_id() -> Result<String, Failure> {
    let mut bytes = [0_u8; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| {
        Failure::invalid(format!("cannot read /dev/urandom: {error}"), "give --request-id")
    })?;
    Ok(bytes.iter().fold(String::from("optimus-"), |id, byte| id + &format!("{byte:02x}")))
}

/// A job without options is sent as every master understands it.
fn change((spec, options, on_nan): jobfile::Job, request_id: Option<String>) -> Change {
    if on_nan != OnNan::Alert {
        Change::SubmitWatched { spec, request_id, options, on_nan }
    } else if options == JobOptions::default() {
        Change::Submit { spec, request_id }
    } else {
        Change::SubmitWith { spec, request_id, options }
    }
}

pub(super) async fn submit(context: &mut Context<'_>, args: SubmitArgs) -> Result<Done, Failure> {
    let job = read_job(&args.file)?;
    let name = job.0.name.clone();
    let own_id = args.request_id.is_none();
    let request_id = match args.request_id {
        Some(id) => id,
        None => fresh_id()?,
    };
    let request = Request {
        dry_run: args.change.dry_run,
        reason: args.change.reason,
        call: Call::Change(change(job, Some(request_id))),
    };
    let answer = context.master.submit(&request, context.output).await?;
    if let (true, Answer::Accepted { note, .. }) = (request.dry_run, &answer) {
        let json = submitted(None, &name, true, 0.0, true);
        let note = if note.is_empty() { "dry run: it would be accepted" } else { note };
        context.done(&json, &name, &format!("{name}: {note}"))?;
        return Ok(Done::Well);
    }
    let Answer::Submitted { job, created, submitted_s_ago } = answer else {
        return Err(unexpected(&answer));
    };
    // Under an id of our own, "not created" is our first try, whose answer was lost.
    let created = created || own_id;
    let id = (!request.dry_run).then(|| job.to_string());
    let json = submitted(id, &name, created, submitted_s_ago, request.dry_run);
    let sentence = if request.dry_run {
        format!("dry run: {name} would be accepted")
    } else if created {
        format!("submitted {job} ({name})")
    } else {
        let now = crate::clock::now();
        let ms = model::UnixMs(now.0.saturating_sub(milliseconds(submitted_s_ago)));
        format!("existing job {job} (submitted {})", ago(now, ms))
    };
    context.done(&json, &job.to_string(), &sentence)?;
    if args.wait && !request.dry_run {
        return wait::wait(context, job, args.timeout.unwrap_or_default()).await;
    }
    Ok(Done::Well)
}

fn submitted(
    id: Option<String>,
    name: &str,
    created: bool,
    submitted_s_ago: f64,
    dry_run: bool,
) -> SubmittedJson {
    let name = name.to_owned();
    let schema = "optimus.submitted/1";
    SubmittedJson { schema, id, name, created, submitted_s_ago, dry_run }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what a job can have aged"
)]
fn milliseconds(seconds: f64) -> u64 {
    (seconds.clamp(0.0, 1e12) * 1000.0) as u64
}
