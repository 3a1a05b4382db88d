//! Certificates: made and listed here. [`super::rotate`] renews them and takes them back.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::UnixMs;
use model::client::Answer;
use model::nodes::{CertificateCall, CertificateView};
use net::pki::{self, CA_DAYS, Existing, LEAF_DAYS};
use net::{CertificateStatus, Ending, PkiError, Revocations, Role, ending_words};

use super::Context;
use crate::args::{CertStatusArgs, InitArgs, IssueArgs, Lasting, RoleArg};
use crate::client::unexpected;
use crate::clock;
use crate::contract::Time;
use crate::contract::certificate::{CERTIFICATES, CertificateJson};
use crate::failure::{Exit, Failure};
use crate::listing::Format;

/// `optimus.certificates/1`.
#[derive(serde::Serialize)]
struct CertificatesJson {
    schema: &'static str,
    files: Vec<String>,
}

pub(super) fn made(context: &mut Context<'_>, files: &[&Path]) -> Result<(), Failure> {
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let json = CertificatesJson { schema: "optimus.certificates/1", files: files.clone() };
    match context.format {
        Format::Table | Format::Wide | Format::Name => {
            let lines = files.iter().map(|file| crate::text::escape(file) + "\n");
            context.output.data(&lines.collect::<String>())
        }
        Format::Json | Format::Jsonl => context.done(&json, "", ""),
    }
}

pub(super) fn pki_failure(error: &PkiError) -> Failure {
    let exit = match error {
        PkiError::Exists { .. } => Exit::Conflict,
        PkiError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Exit::NotFound
        }
        PkiError::Read { .. }
        | PkiError::Write { .. }
        | PkiError::NotPem { .. }
        | PkiError::Expired { .. }
        | PkiError::NotYetValid { .. }
        | PkiError::WrongRole { .. }
        | PkiError::KeyMismatch { .. }
        | PkiError::OtherCa { .. }
        | PkiError::Unusable { .. }
        | PkiError::NoList { .. }
        | PkiError::Exposed { .. }
        | PkiError::Invalid { .. }
        | PkiError::NoOperator { .. } => Exit::Invalid,
    };
    let message = error.to_string();
    let (message, hint) = message.split_once("; ").unwrap_or((&message, ""));
    Failure::new(exit, message, hint)
}

pub(super) fn cert_init(context: &mut Context<'_>, args: &InitArgs) -> Result<(), Failure> {
    let folder = args.dir.clone().unwrap_or_else(|| context.environment.pki());
    let now = clock::wall();
    let ca = pki::init_cluster(&folder, &args.cluster, CA_DAYS, now)
        .map_err(|error| pki_failure(&error))?;
    let request = pki::Request {
        role: Role::Master,
        name: "master",
        addresses: &args.addresses,
        days: LEAF_DAYS,
    };
    let master =
        ca.issue(&request, &folder, Existing::Refuse, now).map_err(|error| pki_failure(&error))?;
    made(context, &[&master.ca, &folder.join("ca.key"), &master.certificate, &master.key])?;
    context.output.talk(&format!(
        "keep {} safe: whoever has it can issue certificates; next: `optimus cert issue operator \
         NAME` and `optimus cert issue agent NODE`",
        folder.join("ca.key").display()
    ));
    Ok(())
}

pub(super) fn cert_issue(context: &mut Context<'_>, args: &IssueArgs) -> Result<(), Failure> {
    let folder = args.dir.clone().unwrap_or_else(|| context.environment.pki());
    let now = clock::wall();
    let role = role(args.role);
    let existing = if args.replace { Existing::Replace } else { Existing::Refuse };
    let request =
        pki::Request { role, name: &args.name, addresses: &args.addresses, days: LEAF_DAYS };
    let lasts = lasts(&args.lasting)?;
    let ca = pki::load_ca(&folder, now).map_err(|error| pki_failure(&error))?;
    if let Some(bundle) = &args.bundle {
        ca.issue_bundle(&request, lasts, bundle, now).map_err(|error| pki_failure(&error))?;
        return made(context, &[bundle]);
    }
    let out = args.out.as_deref().unwrap_or(&folder);
    let files = ca.issue_lasting(&request, lasts, out, existing, now).map_err(|error| {
        let failure = pki_failure(&error);
        if matches!(error, PkiError::Exists { .. }) {
            return Failure { hint: "add --replace to renew it".to_owned(), ..failure };
        }
        failure
    })?;
    made(context, &[&files.certificate, &files.key])
}

pub(super) fn role(role: RoleArg) -> Role {
    match role {
        RoleArg::Master => Role::Master,
        RoleArg::Agent => Role::Agent,
        RoleArg::Operator => Role::Operator,
        RoleArg::Admin => Role::Admin,
        RoleArg::User => Role::User,
    }
}

pub(super) fn lasts(lasting: &Lasting) -> Result<Duration, Failure> {
    match lasting.lasts {
        Some(lasts) => Ok(Duration::from_millis(lasts.0)),
        None => pki::days(lasting.days).map_err(|error| pki_failure(&error)),
    }
}

pub(super) fn unix_ms(at: SystemTime) -> UnixMs {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Certificates in files and in use at the cluster, with what is to be said of each. An end is a
/// warning, not a failure.
pub(super) async fn cert_status(
    context: &mut Context<'_>,
    args: &CertStatusArgs,
) -> Result<(), Failure> {
    let view = args.read.view(context.format);
    if view.watch {
        let hint = "ask again, or watch optimus status, whose alerts hold it too";
        return Err(Failure::invalid("cert status cannot watch files", hint));
    }
    let choice = CERTIFICATES.choose(&view)?;
    let now = clock::wall();
    let mut rows = local(context, args, now)?;
    if !args.offline {
        match context.master.certificate(CertificateCall::Status, None).await {
            Ok(Answer::Certificates(views)) => {
                rows.extend(views.iter().map(|view| in_use(view, now)));
            }
            Ok(other) => return Err(unexpected(&other)),
            Err(failure) => {
                let words = format!("only files are shown: {}", failure.message);
                context.output.talk(&words);
            }
        }
    }
    let style = context.output.style(view.utc);
    let rows = CERTIFICATES.select(rows, &choice, &style);
    context.output.data(&CERTIFICATES.render(&rows, &choice, &view, &style))
}

/// The files that were named, or every certificate of the folder.
fn local(
    context: &Context<'_>,
    args: &CertStatusArgs,
    now: SystemTime,
) -> Result<Vec<CertificateJson>, Failure> {
    let fail = |error: PkiError| pki_failure(&error);
    if !args.files.is_empty() {
        let none = Revocations::default();
        let read = |file: &PathBuf| {
            let statuses = net::certificate_statuses(file).map_err(fail)?;
            Ok(statuses.iter().map(|status| in_file(status, &none, now)).collect::<Vec<_>>())
        };
        let all: Result<Vec<_>, Failure> = args.files.iter().map(read).collect();
        return Ok(all?.into_iter().flatten().collect());
    }
    let folder = args.dir.clone().unwrap_or_else(|| context.master.folder().to_owned());
    let Ok(entries) = std::fs::read_dir(&folder) else {
        // Where none are kept here, those of the cluster are shown.
        return match args.dir {
            Some(_) => {
                let message = format!("{} is no folder of certificates", folder.display());
                Err(Failure::new(Exit::NotFound, message, "name the folder with --dir"))
            }
            None => Ok(Vec::new()),
        };
    };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| {
        file.extension().is_some_and(|end| end == "pem") && !file.ends_with("crl.pem")
    });
    files.sort();
    let revoked = Revocations::kept(&folder.join("crl.pem"), &folder.join("ca.pem"));
    let revoked = if folder.join("ca.pem").exists() {
        revoked.map_err(fail)?
    } else {
        Revocations::default()
    };
    let mut rows = Vec::new();
    for file in files {
        // A file of something else is no fault of the others.
        let statuses = net::certificate_statuses(&file).unwrap_or_default();
        rows.extend(statuses.iter().map(|status| in_file(status, &revoked, now)));
    }
    Ok(rows)
}

/// `expires-soon` and so on, and the sentence beside it.
fn judged(not_after: SystemTime, revoked: bool, now: SystemTime) -> (&'static str, String) {
    if revoked {
        return ("REVOKED", "it is refused".to_owned());
    }
    let words = ending_words(not_after, now);
    match Ending::of(not_after, now) {
        Some(Ending::Over) => ("EXPIRED", words),
        Some(Ending::Day) => ("ENDS-IN-1-DAY", words),
        Some(Ending::Week) => ("ENDS-IN-7-DAYS", words),
        Some(Ending::Month) => ("ENDS-IN-30-DAYS", words),
        None => ("OK", words),
    }
}

fn in_file(status: &CertificateStatus, revoked: &Revocations, now: SystemTime) -> CertificateJson {
    let identity = status.identity.as_ref();
    let since = revoked.since(&status.serial);
    let (mut state, mut words) = judged(status.not_after, since.is_some(), now);
    if since.is_none() && now < status.not_before {
        (state, words) = ("NOT-YET-VALID", "its begin is in the future: look at the clocks".into());
    }
    CertificateJson {
        identity: identity.map_or_else(
            || status.subject.clone(),
            |identity| format!("{}/{}", identity.role, identity.name),
        ),
        place: status.path.display().to_string(),
        serial: status.serial.clone(),
        ends: Time(unix_ms(status.not_after)),
        state,
        words,
    }
}

fn in_use(view: &CertificateView, now: SystemTime) -> CertificateJson {
    // What is renewed already is judged by the end of the new one.
    let ends = view.next_ends.unwrap_or(view.ends).max(view.ends);
    let (state, words) = judged(UNIX_EPOCH + Duration::from_millis(ends.0), view.revoked, now);
    let renewed = ends != view.ends;
    CertificateJson {
        identity: view.identity.clone(),
        place: if view.connected { "connected" } else { "cluster" }.to_owned(),
        serial: view.serial.clone(),
        ends: Time(view.ends),
        state,
        words: if renewed { format!("renewed; the new one {words}") } else { words },
    }
}
