//! What was asked, in one line for the audit log. Only what names a thing or a number gets in:
//! never a job's command, its environment, or the text of a certificate.

use model::client::{Call, Change, Read};
use model::job::Bounds;
use model::nodes::{CertificateCall, Holder};
use model::{JobOptions, JobSpec};

/// Longest part that is a user's own text.
const TEXT_CHARS_MAX: usize = 100;

fn text(words: &str) -> String {
    let mut kept: String = words.chars().take(TEXT_CHARS_MAX).collect();
    if kept.len() < words.len() {
        kept.push('…');
    }
    kept
}

/// A person's words as part of one line of the log: what would begin another line, or hide or
/// reorder this one on a terminal, is written out.
pub(crate) fn one_line(words: &str) -> String {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut line = String::with_capacity(words.len());
    for c in words.chars() {
        if odd(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

fn submission(spec: &JobSpec, request_id: Option<&str>, options: Option<&JobOptions>) -> String {
    let mut line = format!("submit {}", text(&spec.name));
    if let Some(id) = request_id {
        line.extend([" --request-id ", &text(id)]);
    }
    line.extend([" workers ", &bounds(spec.workers), " servers ", &bounds(spec.servers)]);
    if options.is_some_and(|options| options.checkpoint_shared) {
        line += " checkpoint_shared";
    }
    line
}

fn bounds(bounds: Bounds) -> String {
    format!("{}-{}", bounds.min, bounds.max)
}

fn change(change: &Change) -> String {
    match change {
        Change::Submit { spec, request_id } => submission(spec, request_id.as_deref(), None),
        Change::SubmitWith { spec, request_id, options }
        | Change::SubmitWatched { spec, request_id, options, .. } => {
            submission(spec, request_id.as_deref(), Some(options))
        }
        Change::Cancel { job, now } => format!("cancel {job}{}", if *now { " --now" } else { "" }),
        Change::Pause { job } => format!("pause {job}"),
        Change::Resume { job } => format!("resume {job}"),
        Change::Checkpoint { job } => format!("checkpoint {job}"),
        Change::Resize { job, shape, pin } => {
            format!("resize {job} {shape}{}", if *pin { " --pin" } else { "" })
        }
        Change::Unpin { job } => format!("unpin {job}"),
        Change::Update { job, workers, servers, priority } => {
            let mut line = format!("update {job}");
            if let Some(workers) = workers {
                line.extend([" workers ", &bounds(*workers)]);
            }
            if let Some(servers) = servers {
                line.extend([" servers ", &bounds(*servers)]);
            }
            if let Some(priority) = priority {
                line.extend([" priority ", &priority.to_string()]);
            }
            line
        }
        Change::NodeLost { node } => format!("node lost {node}"),
        Change::NodeCordon { node } => format!("node cordon {node}"),
        Change::NodeDrain { node, deadline_ms } => match deadline_ms {
            Some(ms) => format!("node drain {node} --deadline {ms}ms"),
            None => format!("node drain {node}"),
        },
        Change::NodeUndrain { node } => format!("node undrain {node}"),
        Change::Gpu { node, uuid, retire } => {
            let verb = if *retire { "retire" } else { "probe" };
            format!("node gpus {node} {verb} {}", text(uuid))
        }
    }
}

fn read(read: &Read) -> String {
    match read {
        Read::Jobs => "ps".to_owned(),
        Read::Job { job } | Read::JobMore { job } => format!("show {job}"),
        Read::Why { job } => format!("why {job}"),
        Read::Events { .. } => "events".to_owned(),
        Read::Rounds { .. } => "rounds".to_owned(),
        Read::Round { round } => format!("round show {round}"),
        Read::Nodes => "nodes".to_owned(),
        Read::Node { node } | Read::NodeMore { node } => format!("node show {node}"),
        Read::Status => "status".to_owned(),
        Read::Log { job, task, .. } => format!("logs {job} {task}"),
        Read::Snapshot => "snapshot save".to_owned(),
        Read::Doctor => "doctor".to_owned(),
        Read::Audit { .. } => "audit".to_owned(),
    }
}

fn holder(holder: &Holder) -> String {
    match holder {
        Holder::Master => "master".to_owned(),
        Holder::Agent(node) => format!("agent {node}"),
    }
}

/// The request as the command line would have it, as far as it is no secret.
pub(crate) fn line(call: &Call) -> String {
    match call {
        Call::Change(asked) => change(asked),
        Call::Read(asked) => read(asked),
        Call::Certificate(CertificateCall::Ask { holder: of }) => {
            format!("cert rotate {} (request)", holder(of))
        }
        Call::Certificate(CertificateCall::Install { holder: of, .. }) => {
            format!("cert rotate {} (install)", holder(of))
        }
        Call::Certificate(CertificateCall::Revocations { .. }) => "cert revoke".to_owned(),
        Call::Certificate(CertificateCall::Status) => "cert status".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_certificate_gets_in_and_long_names_are_cut() {
        let pem = "-----BEGIN SECRET-----".to_owned();
        let holder = Holder::Agent("n1".parse().unwrap());
        let call = Call::Certificate(CertificateCall::Install { holder, pem });
        assert_eq!(line(&call), "cert rotate agent n1 (install)");
        assert_eq!(text(&"é".repeat(300)).chars().count(), TEXT_CHARS_MAX + 1);
    }

    #[test]
    fn a_reason_forges_no_line_of_the_log() {
        let line = one_line("disk\nn9 is lost\r\u{1b}[2K\u{202e}\u{2028}");
        assert_eq!(line, "disk\\nn9 is lost\\r\\u{1b}[2K\\u{202e}\\u{2028}");
        assert_eq!(one_line("mémoire 漢 \\n"), "mémoire 漢 \\n");
    }
}
