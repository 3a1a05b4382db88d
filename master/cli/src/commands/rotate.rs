//! Renews certificates and takes them back. The CA's key stays with the command: the holder makes
//! its own key, and only a request and a certificate cross the network.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use model::NodeId;
use model::client::Answer;
use model::nodes::{CertificateCall, CertificateView, Holder};
use net::pki::{self, Ca, Existing, LEAF_DAYS};
use net::{Revocations, Role, TlsFiles};

use super::Context;
use super::cert::{lasts, pki_failure, role, unix_ms};
use crate::args::{RevokeArgs, RotateArgs};
use crate::client::unexpected;
use crate::clock;
use crate::contract::Time;
use crate::failure::{Exit, Failure};
use crate::listing::Format;

/// A certificate that was renewed, or why it was not.
#[derive(Clone, Debug, serde::Serialize)]
struct RotatedJson {
    identity: String,
    serial: Option<String>,
    ends: Option<Time>,
    note: String,
}

/// `optimus.certificates_rotated/1`.
#[derive(serde::Serialize)]
struct RotatedListJson {
    schema: &'static str,
    certificates: Vec<RotatedJson>,
}

pub(super) async fn rotate(context: &mut Context<'_>, args: &RotateArgs) -> Result<(), Failure> {
    let folder = args.dir.clone().unwrap_or_else(|| context.environment.pki());
    let now = clock::wall();
    let ca = pki::load_ca(&folder, now).map_err(|error| pki_failure(&error))?;
    let wanted = args.role.map(role);
    let remote = wanted.is_none_or(|role| matches!(role, Role::Master | Role::Agent));
    if !remote {
        return rotate_files(context, args, &ca, now);
    }
    let holders = holders(context, args, wanted).await?;
    let (mut done, mut failure) = (Vec::new(), None);
    for holder in &holders {
        context.output.progress(&format!("renewing {}", path(holder)));
        match renew(context, args, &ca, holder).await {
            Ok(renewed) => done.push(renewed),
            // One that cannot be renewed now does not keep the others waiting.
            Err(refused) if args.all => {
                let note = format!("not renewed: {}", refused.message);
                let (identity, serial, ends) = (path(holder), None, None);
                done.push(RotatedJson { identity, serial, ends, note });
                failure = Some(refused);
            }
            Err(refused) => return Err(refused),
        }
    }
    context.output.end_progress();
    show(context, done)?;
    match failure {
        None => Ok(()),
        Some(Failure { exit, .. }) => {
            let hint = "see above for each; the others are renewed";
            Err(Failure::new(exit, "not every certificate was renewed", hint))
        }
    }
}

fn show(context: &mut Context<'_>, done: Vec<RotatedJson>) -> Result<(), Failure> {
    let names: Vec<&str> = done.iter().map(|one| &*one.identity).collect();
    let id = names.join(" ");
    if matches!(context.format, Format::Table | Format::Wide) {
        let line = |one: &RotatedJson| {
            crate::text::escape(&format!("{}: {}", one.identity, one.note)) + "\n"
        };
        return context.output.data(&done.iter().map(line).collect::<String>());
    }
    let json = RotatedListJson { schema: "optimus.certificates_rotated/1", certificates: done };
    context.done(&json, &id, "")
}

fn path(holder: &Holder) -> String {
    match holder {
        Holder::Master => "master".to_owned(),
        Holder::Agent(node) => format!("agent/{node}"),
    }
}

/// Whose certificates are renewed over the master.
async fn holders(
    context: &mut Context<'_>,
    args: &RotateArgs,
    wanted: Option<Role>,
) -> Result<Vec<Holder>, Failure> {
    match (wanted, &args.name) {
        (None, _) => {
            let agents = in_use(context).await?.into_iter().filter_map(|view| {
                let node: NodeId = view.identity.strip_prefix("agent/")?.parse().ok()?;
                Some(node)
            });
            // An agent that has just connected anew may be there twice.
            let agents: BTreeSet<NodeId> = agents.collect();
            let agents = agents.into_iter().map(Holder::Agent);
            Ok(std::iter::once(Holder::Master).chain(agents).collect())
        }
        (Some(Role::Agent), Some(name)) => {
            let node = name.parse().map_err(|error: model::InvalidName| {
                Failure::invalid(error.to_string(), "see optimus nodes for the names")
            })?;
            Ok(vec![Holder::Agent(node)])
        }
        (Some(Role::Agent), None) => {
            Err(Failure::invalid("no node is named", "give the node's name, or --all"))
        }
        (Some(_), _) => Ok(vec![Holder::Master]),
    }
}

async fn in_use(context: &mut Context<'_>) -> Result<Vec<CertificateView>, Failure> {
    let answer = context.master.certificate(CertificateCall::Status, None).await?;
    let Answer::Certificates(views) = answer else { return Err(unexpected(&answer)) };
    Ok(views)
}

/// The name in the certificate that the master shows.
async fn master_name(context: &mut Context<'_>) -> Result<String, Failure> {
    let views = in_use(context).await?;
    let name = views.iter().find_map(|view| view.identity.strip_prefix("master/"));
    Ok(name.unwrap_or("master").to_owned())
}

async fn renew(
    context: &mut Context<'_>,
    args: &RotateArgs,
    ca: &Ca,
    holder: &Holder,
) -> Result<RotatedJson, Failure> {
    let reason = args.change.reason.clone();
    let (role, name) = match holder {
        Holder::Master => (Role::Master, master_name(context).await?),
        Holder::Agent(node) => (Role::Agent, node.to_string()),
    };
    let lasts = lasts(&args.lasting)?;
    if args.change.dry_run {
        let note = "would be renewed".to_owned();
        return Ok(RotatedJson { identity: path(holder), serial: None, ends: None, note });
    }
    let ask = CertificateCall::Ask { holder: holder.clone() };
    let answer = context.master.certificate(ask, reason.clone()).await?;
    let Answer::CertificateRequest(request) = answer else { return Err(unexpected(&answer)) };
    let addresses: &[String] = if role == Role::Master { &args.addresses } else { &[] };
    let wanted = pki::Request { role, name: &name, addresses, days: LEAF_DAYS };
    let signed =
        ca.sign(&request, &wanted, lasts, clock::wall()).map_err(|error| pki_failure(&error))?;
    let install = CertificateCall::Install { holder: holder.clone(), pem: signed.pem };
    let answer = context.master.certificate(install, reason).await?;
    let Answer::Accepted { note, .. } = answer else { return Err(unexpected(&answer)) };
    Ok(RotatedJson {
        identity: path(holder),
        serial: Some(signed.serial),
        ends: Some(Time(unix_ms(signed.not_after))),
        note,
    })
}

/// A person's certificate lies in files: it is issued anew in their place.
fn rotate_files(
    context: &mut Context<'_>,
    args: &RotateArgs,
    ca: &Ca,
    now: SystemTime,
) -> Result<(), Failure> {
    let (Some(role), Some(name)) = (args.role.map(role), &args.name) else {
        return Err(Failure::invalid("nobody is named", "give the name in the certificate"));
    };
    let out = args.out.as_deref().unwrap_or_else(|| ca.folder());
    let files = TlsFiles::in_folder(out, role, name);
    if !files.certificate.exists() {
        let message = format!("there is no {}", files.certificate.display());
        let hint = "make a first one with optimus cert issue, or name its folder with --out";
        return Err(Failure::new(Exit::NotFound, message, hint));
    }
    let lasts = lasts(&args.lasting)?;
    let request = pki::Request { role, name, addresses: &[], days: LEAF_DAYS };
    if !args.change.dry_run {
        ca.issue_lasting(&request, lasts, out, Existing::Replace, now)
            .map_err(|error| pki_failure(&error))?;
    }
    let status = net::certificate_status(&files.certificate).map_err(|e| pki_failure(&e))?;
    let verb = if args.change.dry_run { "would be renewed" } else { "renewed" };
    let renewed = RotatedJson {
        identity: format!("{role}/{name}"),
        serial: Some(status.serial),
        ends: Some(Time(unix_ms(status.not_after))),
        note: format!("{verb}: {}", files.certificate.display()),
    };
    show(context, vec![renewed])
}

/// `optimus.certificates_revoked/1`.
#[derive(serde::Serialize)]
struct RevokedJson {
    schema: &'static str,
    serials: Vec<String>,
    list: String,
    number: u64,
    note: String,
}

pub(super) async fn revoke(context: &mut Context<'_>, args: &RevokeArgs) -> Result<(), Failure> {
    let folder = args.dir.clone().unwrap_or_else(|| context.environment.pki());
    let now = clock::wall();
    let ca = pki::load_ca(&folder, now).map_err(|error| pki_failure(&error))?;
    let serials = serials(context, args, &ca, now).await?;
    let before = ca.revocations().map_err(|error| pki_failure(&error))?;
    let list = folder.join("crl.pem");
    if args.change.dry_run {
        return tell(context, serials, &list, &before, "would be revoked".to_owned());
    }
    let lists = ca.revoke(&serials, now).map_err(|error| pki_failure(&error))?;
    if args.offline {
        let note = "give the list to the master as tls.revocations".to_owned();
        return tell(context, serials, &list, &lists, note);
    }
    let call = CertificateCall::Revocations { pem: lists.pem() };
    let note = match context.master.certificate(call, args.change.reason.clone()).await {
        Ok(Answer::Accepted { note, .. }) => note,
        Ok(other) => return Err(unexpected(&other)),
        // The master closes the session of whoever takes back their own.
        Err(failure) if context.master.serial().is_some_and(|own| serials.contains(&own)) => {
            format!("this command's own certificate is among them; {}", failure.message)
        }
        Err(failure) => {
            let message = format!(
                "{} is written, but the master has not got it: {}",
                list.display(),
                failure.message
            );
            let hint = "repeat the command once the master answers, or give it the list as \
                        tls.revocations and send it SIGHUP";
            return Err(Failure::new(failure.exit, message, hint));
        }
    };
    tell(context, serials, &list, &lists, note)
}

fn tell(
    context: &mut Context<'_>,
    serials: Vec<String>,
    list: &Path,
    lists: &Revocations,
    note: String,
) -> Result<(), Failure> {
    let id = serials.join(" ");
    let sentence = format!("{}: {id}; {note}", list.display());
    let json = RevokedJson {
        schema: "optimus.certificates_revoked/1",
        serials,
        list: list.display().to_string(),
        number: lists.number(),
        note,
    };
    context.done(&json, &id, &sentence)
}

/// Every serial that the arguments mean.
async fn serials(
    context: &mut Context<'_>,
    args: &RevokeArgs,
    ca: &Ca,
    now: SystemTime,
) -> Result<Vec<String>, Failure> {
    let fail = |error| pki_failure(&error);
    let mut found = BTreeSet::new();
    for serial in &args.serials {
        found.insert(net::parse_serial(serial).map_err(fail)?);
    }
    for file in &args.files {
        found.insert(net::certificate_status(file).map_err(fail)?.serial);
    }
    if let (Some(given), Some(name)) = (args.role, &args.name) {
        let role = role(given);
        let known = pki::issued_to(ca.folder(), role, name).map_err(fail)?;
        let held: BTreeSet<String> = known
            .into_iter()
            .filter(|issued| now <= issued.not_after)
            .map(|issued| issued.serial)
            .chain(in_folder(ca.folder(), role, name))
            .chain(connected(context, args, role, name).await)
            .collect();
        if held.is_empty() {
            let message = format!("no certificate of {role} {name} is known in this folder");
            let hint = "name it with --serial (see optimus cert status) or --certificate FILE";
            return Err(Failure::new(Exit::NotFound, message, hint));
        }
        found.extend(held);
    }
    Ok(found.into_iter().collect())
}

/// From before the register was kept.
fn in_folder(folder: &Path, role: Role, name: &str) -> Option<String> {
    let files = TlsFiles::in_folder(folder, role, name);
    Some(net::certificate_status(&files.certificate).ok()?.serial)
}

/// Issued elsewhere, and in use; none where the master cannot be asked.
async fn connected(
    context: &mut Context<'_>,
    args: &RevokeArgs,
    role: Role,
    name: &str,
) -> Vec<String> {
    if args.offline {
        return Vec::new();
    }
    let views = in_use(context).await.unwrap_or_default();
    let identity = format!("{role}/{name}");
    views.into_iter().filter(|view| view.identity == identity).map(|view| view.serial).collect()
}
