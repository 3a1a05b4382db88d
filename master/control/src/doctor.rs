//! What an operator should look at: `optimus doctor`.

use std::collections::BTreeSet;

use model::nodes::{Finding, GpuHealth, Severity};
use model::reason::{Reachability, Schedulability};
use model::{JobId, UnixMs};

use crate::event::Now;
use crate::job::Job;
use crate::job::phase::{Phase, Wait};
use crate::node::Node;
use crate::node_more::plain;
use crate::step::Control;
use crate::view_cluster::{skew_s, version_key};

/// Findings of one answer: beyond it the first ones are enough to do.
const FINDINGS_MAX: usize = 1_000;
/// A clock that differs by more is told.
const SKEW_S_MAX: f64 = 1.0;
/// From here on certificates, leases and the order of logs suffer.
const SKEW_S_BAD: f64 = 30.0;
/// A node that has been closed for so long was forgotten, perhaps.
const CLOSED_MS_LONG: u64 = 24 * 3_600_000;
/// A job that waits for so long, or restarts so often in a row, should be looked at.
const WAIT_MS_LONG: u64 = 3_600_000;
const RESTARTS_MANY: u32 = 3;

/// A finding in one line.
#[must_use]
pub fn finding(
    severity: Severity,
    subject: impl Into<String>,
    words: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding { severity, subject: subject.into(), words: words.into(), remedy: remedy.into() }
}

/// The worst first, then by what they are about; no more than an answer holds.
#[must_use]
pub fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by(|a, b| {
        let key = |finding: &Finding| (finding.subject.clone(), finding.words.clone());
        b.severity.cmp(&a.severity).then_with(|| key(a).cmp(&key(b)))
    });
    findings.dedup();
    findings.truncate(FINDINGS_MAX);
    findings
}

impl Control {
    /// Everything that should be looked at, the worst first.
    #[must_use]
    pub fn findings(&self, now: Now) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.cluster_findings(now, &mut findings);
        findings.extend(self.shared_user());
        for node in self.nodes.values() {
            if findings.len() > FINDINGS_MAX {
                break;
            }
            self.node_findings(now, node, &mut findings);
        }
        for id in &self.unfinished {
            if findings.len() > FINDINGS_MAX {
                break;
            }
            self.job_findings(now, *id, &mut findings);
        }
        sorted(findings)
    }

    /// Jobs of several people that run as one user of a server can read each other's files,
    /// environment and memory.
    fn shared_user(&self) -> Option<Finding> {
        let people: BTreeSet<&str> =
            self.unfinished.iter().map(|id| self.job(*id).record.user.as_str()).collect();
        let one = |node: &&Node| {
            let notes = node.notes.as_ref().filter(|_| node.session.is_some());
            notes.is_some_and(|notes| notes.one_user.is_some())
        };
        let mut nodes = self.nodes.values().filter(one);
        let first = nodes.next().filter(|_| people.len() > 1)?;
        let user = first.notes.as_ref().and_then(|notes| notes.one_user.as_deref());
        let words = format!(
            "jobs of {} people run as one user, as {} on {}{}: they can read each other's files \
             and environment",
            people.len(),
            plain(user.unwrap_or_default()),
            first.id(),
            match nodes.count() {
                0 => String::new(),
                more => format!(" and {more} more nodes"),
            }
        );
        let remedy = "set task_user_from = \"submitter\" in agent.toml where each has a user, or \
                      put no secrets into jobs";
        Some(finding(Severity::Note, "tasks", words, remedy))
    }

    fn cluster_findings(&self, now: Now, findings: &mut Vec<Finding>) {
        if let Some(words) = self.held_alert() {
            let remedy = "check the master's own network; declare nodes lost that are really off";
            findings.push(finding(Severity::Fault, "network", words, remedy));
        }
        if let Some((words, remedy)) = self.superseded_alert() {
            findings.push(finding(Severity::Fault, "master", words, remedy));
        }
        for words in self.round_alerts(now) {
            let remedy = "look at the master's log and its load";
            findings.push(finding(Severity::Fault, "rounds", words, remedy));
        }
        if self.nodes.is_empty() {
            let remedy = "start optimus-agent on the servers";
            findings.push(finding(Severity::Warning, "cluster", "it has no nodes yet", remedy));
        } else if !self.nodes.values().any(|node| node.takes_nothing().is_none()) {
            let words = "no node takes tasks";
            let remedy = "see optimus nodes for the reason of each";
            findings.push(finding(Severity::Fault, "cluster", words, remedy));
        }
    }

    fn node_findings(&self, now: Now, node: &Node, findings: &mut Vec<Finding>) {
        let id = node.id().as_str();
        let mut add = |severity, words: String, remedy: &str| {
            findings.push(finding(severity, id, words, remedy));
        };
        let silent_s = node.received.map(|received| now.mono.since(received) / 1000);
        let silent = silent_s.map_or_else(
            || "not heard from since the master started".to_owned(),
            |seconds| format!("no heartbeat for {seconds} s"),
        );
        match node.reach {
            Reachability::Up => {}
            Reachability::Suspect => add(
                Severity::Warning,
                format!("it is SUSPECT: {silent}"),
                "look at its agent and the network to it",
            ),
            Reachability::Down => add(
                Severity::Fault,
                format!("it is DOWN: {silent}"),
                "look at the host; optimus node lost says that it is dead",
            ),
            Reachability::Gone => add(
                Severity::Note,
                "it is GONE by an operator's word".to_owned(),
                "start its agent once it is back",
            ),
        }
        self.closed_findings(now, node, &mut add);
        let skew = skew_s(node);
        if node.session.is_some() && skew.abs() > SKEW_S_MAX {
            let bad = skew.abs() >= SKEW_S_BAD;
            let severity = if bad { Severity::Fault } else { Severity::Warning };
            let words = format!("its clock differs by {} from the master's", seconds(skew));
            add(severity, words, "keep both by NTP, such as chrony");
        }
        for words in node.stuck_words(None).into_iter().take(16) {
            let remedy = "mend what it waits for, such as a mount that hangs, or reboot the host; \
                          the node opens by itself";
            add(Severity::Fault, words, remedy);
        }
        notes_findings(node, &mut add);
        self.gpu_findings(node, &mut add);
        if let Some(slow) = &node.slow {
            let words = self.slow_reason(slow, now.mono);
            add(Severity::Warning, words, "look at what else the server does");
        }
        if node.is_up() && is_older(&node.record.software) {
            let words = format!("its agent is {}", node.record.software);
            add(Severity::Note, words, "upgrade it; its tasks go on meanwhile");
        }
    }

    fn gpu_findings(&self, node: &Node, add: &mut impl FnMut(Severity, String, &str)) {
        if let Some(trouble) = self.gpu_trouble(node.id()) {
            add(Severity::Fault, plain(&trouble), "see optimus node gpus");
        }
        for gpu in self.gpu_views(node.id()) {
            let severity = match gpu.health {
                GpuHealth::Ok => continue,
                GpuHealth::Suspect | GpuHealth::Probing => Severity::Warning,
                GpuHealth::Bad => Severity::Fault,
                GpuHealth::Retired => Severity::Note,
            };
            let reason = plain(&gpu.reason);
            let words = format!("GPU {} is {}: {reason}", plain(&gpu.uuid), gpu.health.name());
            add(severity, words, "see optimus node gpus");
        }
    }

    fn closed_findings(&self, now: Now, node: &Node, add: &mut impl FnMut(Severity, String, &str)) {
        let rejects = node.rejects.words();
        if let Some(newest) = rejects.last() {
            let times = rejects.len();
            let words = format!("it rejected {times} starts lately, the last: {newest}");
            add(Severity::Warning, words, "mend what the words name");
        }
        let Some(ops) = &node.ops else { return };
        let age_ms = now.unix.0.saturating_sub(ops.since.0);
        let state = ops.state.name();
        let words = format!("it is {state}: {}", self.ops_words(node));
        let late = ops.deadline.is_some_and(|(_, at)| at <= now.mono);
        match ops.state {
            Schedulability::Draining if late => add(
                Severity::Warning,
                format!("{words}; its deadline is over"),
                "see optimus node show for what is left there",
            ),
            Schedulability::Open
            | Schedulability::Cordoned
            | Schedulability::Draining
            | Schedulability::Drained => {
                let long = age_ms >= CLOSED_MS_LONG || !rejects.is_empty();
                let severity = if long { Severity::Warning } else { Severity::Note };
                let since = format!("{words}, for {}", span(age_ms));
                add(severity, since, "optimus node undrain opens it");
            }
        }
    }

    fn job_findings(&self, now: Now, id: JobId, findings: &mut Vec<Finding>) {
        let job = self.job(id);
        let name = id.to_string();
        let mut add = |severity, words: String, remedy: &str| {
            findings.push(finding(severity, name.clone(), words, remedy));
        };
        let faults = job.record.faults_in_row;
        if faults >= RESTARTS_MANY {
            let cause = job.record.faults.last().map(|fault| fault.cause.clone());
            let words = format!(
                "it came back from {faults} faults without a step that lasts; the last: {}",
                plain(&cause.unwrap_or_default())
            );
            add(Severity::Warning, words, "see optimus logs and optimus why");
        }
        let waited_ms = now.unix.0.saturating_sub(waits_since(job).0);
        if matches!(job.phase(), Phase::Queued { wait: Wait::Round { .. }, .. })
            && waited_ms >= WAIT_MS_LONG
        {
            let words = format!("it waits for {}: {}", span(waited_ms), self.reason(job));
            add(Severity::Warning, words, "see optimus why for what would start it");
        }
        if let Some(step) = job.progress().loss_not_finite_since.filter(|_| job.life().is_some()) {
            let words = format!("its loss is not finite since step {step}");
            add(Severity::Warning, words, "lower its learning rate, or look at its data");
        }
        if let Some(note) = &job.record.note {
            add(Severity::Note, plain(note), "see optimus why");
        }
    }
}

/// What the agent itself tells.
fn notes_findings(node: &Node, add: &mut impl FnMut(Severity, String, &str)) {
    let Some(notes) = &node.notes else { return };
    for missing in notes.isolation.missing.iter().take(16) {
        let words = format!("not enforced: {}", plain(missing));
        add(Severity::Warning, words, "mend it as it says, then restart the agent");
    }
    for alert in notes.alerts.iter().take(16) {
        add(Severity::Warning, plain(alert), "see the agent's log");
    }
}

fn waits_since(job: &Job) -> UnixMs {
    let fault = job.record.faults.last().map(|fault| fault.at);
    let moved = job.record.decisions.last().map(|decision| decision.at);
    job.record.submitted.max(fault.unwrap_or_default()).max(moved.unwrap_or_default())
}

/// An agent of a version before this program's.
fn is_older(software: &str) -> bool {
    let own = version_key(env!("CARGO_PKG_VERSION"));
    let theirs = version_key(software);
    !theirs.is_empty() && theirs < own
}

/// Seconds for people, without digits that say nothing.
fn seconds(value: f64) -> String {
    let value = value.abs();
    if value < 10.0 { format!("{value:.1} s") } else { format!("{value:.0} s") }
}

fn span(ms: u64) -> String {
    let minutes = ms / 60_000;
    match minutes {
        0..120 => format!("{minutes} min"),
        120..2_880 => format!("{} h", minutes / 60),
        2_880.. => format!("{} days", minutes / 1_440),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first() {
        let of = |severity, subject| finding(severity, subject, "w", "r");
        let all = sorted(vec![
            of(Severity::Note, "a"),
            of(Severity::Fault, "z"),
            of(Severity::Fault, "b"),
            of(Severity::Note, "a"),
        ]);
        let subjects: Vec<&str> = all.iter().map(|finding| finding.subject.as_str()).collect();
        assert_eq!(subjects, ["b", "z", "a"]);
    }

    #[test]
    fn an_agent_of_another_release_is_older_only_if_it_is() {
        assert!(is_older("optimus-agent 0.0.1"));
        assert!(!is_older(&format!("optimus-agent {}", env!("CARGO_PKG_VERSION"))));
        assert!(!is_older("optimus-agent 99.0.0"));
        assert!(!is_older(""));
    }
}
