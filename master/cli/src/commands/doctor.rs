//! `doctor`: what the master knows should be looked at, and what can be checked from here: the
//! way to it, its clock, and the files and certificate of this machine.

use std::path::Path;

use model::UnixMs;
use model::client::{Answer, Read};
use model::nodes::{Finding, PROTOCOL_OF_NODES, Severity};
use model::view::Status;

use super::read::{POLL, Screen};
use super::{Context, Done};
use crate::args::DoctorArgs;
use crate::client::unexpected;
use crate::clock;
use crate::configfile;
use crate::contract::doctor::{FINDINGS, FindingJson};
use crate::failure::{Exit, Failure};
use crate::listing::Format;

/// Settings of daemons that run on this machine, where there are any.
const FILES: [(&str, Check); 2] = [
    ("/etc/optimus/master.toml", configfile::master),
    ("/etc/optimus/agent.toml", configfile::agent),
];
type Check = fn(&str) -> Vec<crate::failure::Located>;
/// A file that is longer is no settings file of ours.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The master's time is known to about this: its own clock may have been set since it started.
const SKEW_S_MAX: f64 = 2.0;

/// Tells what was found, also without the master: its exit code then says that it was not there.
///
/// # Errors
/// What the master refuses, and where the output cannot be written.
pub(super) async fn doctor(context: &mut Context<'_>, args: &DoctorArgs) -> Result<Done, Failure> {
    let view = args.read.view(context.format);
    let choice = FINDINGS.choose(&view)?;
    let style = context.output.style(view.utc);
    let (found, done) = findings(context).await?;
    let first = FINDINGS.select(found, &choice, &style);
    if !view.watch {
        let table = matches!(view.format, Format::Table | Format::Wide);
        if first.is_empty() && table && view.filters.is_empty() {
            context.output.talk("nothing to look at");
        }
        context.output.data(&FINDINGS.render(&first, &choice, &view, &style))?;
        return Ok(done);
    }
    let mut screen = Screen::start(context, &FINDINGS, &choice, &view)?;
    screen.show(context, first)?;
    loop {
        tokio::time::sleep(POLL).await;
        let style = context.output.style(view.utc);
        let rows = FINDINGS.select(findings(context).await?.0, &choice, &style);
        screen.show(context, rows)?;
    }
}

async fn findings(context: &mut Context<'_>) -> Result<(Vec<FindingJson>, Done), Failure> {
    let mut findings = Vec::new();
    let mut done = Done::Well;
    let (connected, told) = match context.master.connect().await {
        Ok(_) => (true, of_master(context).await),
        Err(failure) => (false, Err(failure)),
    };
    match told {
        Ok(more) => findings.extend(more),
        // It answers, and its answer is no: the asker's certificate is not for this question.
        Err(failure) if connected && failure.exit == Exit::NotAllowed => return Err(failure),
        // What keeps an operator from the master is the first thing to look at.
        Err(failure) => {
            done = Done::Without(failure.exit);
            let Failure { message, hint, .. } = failure;
            findings.push(finding(Severity::Fault, "master", message, hint));
        }
    }
    findings.extend(of_certificate(context));
    findings.extend(FILES.iter().filter_map(|(path, check)| of_file(Path::new(path), *check)));
    findings.sort_by(|a, b| {
        let key = |finding: &Finding| (finding.subject.clone(), finding.words.clone());
        b.severity.cmp(&a.severity).then_with(|| key(a).cmp(&key(b)))
    });
    Ok((findings.iter().map(FindingJson::from).collect(), done))
}

fn finding(
    severity: Severity,
    subject: &str,
    words: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding { severity, subject: subject.to_owned(), words: words.into(), remedy: remedy.into() }
}

async fn of_master(context: &mut Context<'_>) -> Result<Vec<Finding>, Failure> {
    let asked = clock::now();
    let answer = context.master.read(Read::Status).await?;
    let Answer::Status(status) = answer else { return Err(unexpected(&answer)) };
    let mut findings = Vec::new();
    findings.extend(of_clock(&status, asked, clock::now()));
    if context.master.speaks(PROTOCOL_OF_NODES).await? {
        let answer = context.master.read(Read::Doctor).await?;
        let Answer::Doctor(told) = answer else { return Err(unexpected(&answer)) };
        findings.extend(told);
        return Ok(findings);
    }
    let remedy = "see optimus nodes and optimus status";
    let alerts = status.alerts.iter();
    findings.extend(alerts.map(|words| finding(Severity::Warning, "cluster", words, remedy)));
    let words = format!("it is of version {}, which tells only its alerts", status.version);
    findings.push(finding(Severity::Note, "master", words, "upgrade it"));
    Ok(findings)
}

/// The master's time is its start and how long it has run; the way there and back lies between.
fn of_clock(status: &Status, before: UnixMs, after: UnixMs) -> Option<Finding> {
    let seconds = |at: UnixMs| std::time::Duration::from_millis(at.0).as_secs_f64();
    let master_s = seconds(status.started) + status.uptime_s;
    let off_s = if master_s < seconds(before) {
        seconds(before) - master_s
    } else {
        (master_s - seconds(after)).max(0.0)
    };
    (off_s > SKEW_S_MAX).then(|| {
        let words = format!("its clock differs by {off_s:.0} s from the master's");
        finding(Severity::Warning, "this machine", words, "keep both by NTP, such as chrony")
    })
}

/// The operator's own certificate.
fn of_certificate(context: &Context<'_>) -> Option<Finding> {
    let (name, days) = context.master.certificate_days(clock::wall()).ok()??;
    let subject = format!("certificate of {name}");
    let (severity, words) = match days {
        _ if days <= 0.0 => (Severity::Fault, "it has ended".to_owned()),
        _ if days < 1.0 => (Severity::Fault, "it ends within a day".to_owned()),
        _ if days < 7.0 => (Severity::Warning, format!("it ends in {days:.0} days")),
        _ if days < 30.0 => (Severity::Note, format!("it ends in {days:.0} days")),
        _ => return None,
    };
    Some(finding(severity, &subject, words, "make a new one with optimus cert issue operator"))
}

/// What is wrong in a daemon's settings on this machine; nothing where there are none.
fn of_file(path: &Path, check: Check) -> Option<Finding> {
    let subject = path.display().to_string();
    let meta = std::fs::metadata(path).ok()?;
    if meta.len() > FILE_BYTES_MAX {
        let words = format!("it has {} bytes", meta.len());
        return Some(finding(Severity::Fault, &subject, words, "write a settings file"));
    }
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let words = format!("cannot read it: {error}");
            return Some(finding(Severity::Note, &subject, words, "look at it as its owner"));
        }
    };
    let faults = check(&text);
    let first = faults.first()?;
    let line = first.line.map(|line| format!("line {line}: ")).unwrap_or_default();
    let first = format!("{line}{}: {}", first.fault.field, first.fault.problem);
    let words = match faults.len() {
        1 => first,
        many => format!("{many} faults, the first: {first}"),
    };
    let option = if subject.ends_with("master.toml") { "--master" } else { "--agent" };
    let remedy = format!("see optimus config check {option} {subject}");
    Some(finding(Severity::Fault, &subject, words, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settings_file_that_is_wrong_is_told_and_none_is_nothing() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("agent.toml");
        assert_eq!(of_file(&file, configfile::agent), None);
        std::fs::write(&file, "beat = 7\nmastre = \"a:1\"\n").unwrap();
        let told = of_file(&file, configfile::agent).unwrap();
        assert_eq!(told.severity, Severity::Fault);
        assert!(told.words.starts_with("2 faults, the first: "), "{told:?}");
        std::fs::write(&file, "").unwrap();
        assert_eq!(of_file(&file, configfile::agent), None);
    }
}
