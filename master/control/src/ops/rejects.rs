//! Servers that start nothing: no process to be had, no control group, no space. Such a rejection
//! is not the job's fault; a server that rejects again and again is cordoned, until an operator
//! opens it.

use std::collections::{BTreeSet, VecDeque};

use model::agent::{Exit, TaskReport};
use model::nodes::{NodeNotes, RejectReport};
use model::{Generation, JobId, Millis, NodeId, Task};

use crate::job::phase::{Next, Phase};
use crate::step::Control;

/// So many starts in a row that a server rejected within this time close it.
const REJECTS_MAX: usize = 3;
const WITHIN_MS: u64 = 600_000;
/// After a rejection nothing is placed there for this long, unless nowhere else is room.
const AVOIDED_MS: u64 = 60_000;
/// Rejections that are remembered of a node, and looked at in one report.
const KEPT_MAX: usize = 16;
const REPORTS_MAX: usize = 256;
/// Longest words that are kept.
const WORDS_CHARS_MAX: usize = 500;
/// How an exit says that there never was a process.
const NO_START: &str = "cannot start";
/// What only the server can be blamed for, in words of agents that send no errno.
const SERVERS_OWN: [&str; 14] = [
    "Resource temporarily unavailable",
    "Cannot allocate memory",
    "No space left",
    "Too many open files",
    "Read-only file system",
    "Input/output error",
    "os error 11",
    "os error 12",
    "os error 23",
    "os error 24",
    "os error 28",
    "the ledger cannot be written",
    "never runs as root",
    "are free here",
];

/// What a server rejected, newest last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rejects {
    kept: VecDeque<Reject>,
    /// Of the newest report, which tells old ones again.
    seen: BTreeSet<(JobId, Generation, Task)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Reject {
    at: Millis,
    job: JobId,
    generation: Generation,
    words: String,
}

impl Rejects {
    /// One for each generation: its tasks fail together.
    fn push(&mut self, reject: Reject) -> bool {
        let known = |old: &Reject| old.job == reject.job && old.generation == reject.generation;
        if self.kept.iter().any(known) {
            return false;
        }
        if self.kept.len() >= KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(reject);
        true
    }

    /// Something was started, or an operator opened the node.
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
    }

    fn lately(&self, now: Millis) -> usize {
        self.kept.iter().filter(|reject| now.since(reject.at) < WITHIN_MS).count()
    }

    /// True for a while after each rejection.
    pub(crate) fn are_fresh(&self, now: Millis) -> bool {
        self.kept.back().is_some_and(|reject| now.since(reject.at) < AVOIDED_MS)
    }

    /// For people, oldest first.
    pub(crate) fn words(&self) -> Vec<String> {
        let words =
            |reject: &Reject| format!("{} {}: {}", reject.job, reject.generation, reject.words);
        self.kept.iter().map(words).collect()
    }
}

/// The name of an error number of Linux that a start may end with.
fn errno_name(errno: i32) -> String {
    let name = match errno {
        1 => "EPERM",
        2 => "ENOENT",
        5 => "EIO",
        7 => "E2BIG",
        8 => "ENOEXEC",
        11 => "EAGAIN",
        12 => "ENOMEM",
        13 => "EACCES",
        16 => "EBUSY",
        20 => "ENOTDIR",
        22 => "EINVAL",
        23 => "ENFILE",
        24 => "EMFILE",
        26 => "ETXTBSY",
        28 => "ENOSPC",
        30 => "EROFS",
        36 => "ENAMETOOLONG",
        _ => return format!("errno {errno}"),
    };
    format!("{name} ({errno})")
}

fn plain(words: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    words.chars().map(plain).take(WORDS_CHARS_MAX).collect()
}

fn describe(report: &RejectReport) -> String {
    let errno = report.errno.map(|errno| format!("{} ", errno_name(errno))).unwrap_or_default();
    format!("{errno}{}", plain(&report.words))
}

impl Control {
    /// Whether a task that never started is its server's fault; none where it did start.
    pub(crate) fn is_servers_fault(
        &self,
        id: &NodeId,
        report: &TaskReport,
        exit: &Exit,
    ) -> Option<bool> {
        if !exit.reason.starts_with(NO_START) {
            return None;
        }
        let notes = self.nodes.get(id).and_then(|node| node.notes.as_ref());
        let told = notes.and_then(|notes| told_of(notes, report));
        let by_words = || SERVERS_OWN.iter().any(|own| exit.reason.contains(own));
        Some(told.map_or_else(by_words, |told| told.server))
    }

    /// An agent that tells no rejections: its exits say as much.
    pub(crate) fn note_exit_rejected(&mut self, id: &NodeId, report: &TaskReport, exit: &Exit) {
        let told = self.nodes.get(id).is_some_and(|node| node.notes.is_some());
        if !told {
            let words = plain(&exit.reason);
            self.reject(id, (report.job, report.generation), words);
        }
    }

    /// New rejections in an agent's notes.
    pub(crate) fn note_rejects(&mut self, id: &NodeId, notes: &NodeNotes) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let told: Vec<&RejectReport> = notes.rejects.iter().take(REPORTS_MAX).collect();
        let key = |report: &RejectReport| (report.job, report.generation, report.task);
        let seen: BTreeSet<_> = told.iter().map(|report| key(report)).collect();
        let before = std::mem::replace(&mut node.rejects.seen, seen);
        for report in told {
            if !report.server || before.contains(&key(report)) {
                continue;
            }
            self.forgive(report);
            self.reject(id, (report.job, report.generation), describe(report));
        }
    }

    fn reject(&mut self, id: &NodeId, (job, generation): (JobId, Generation), words: String) {
        let at = self.now.mono;
        let Some(node) = self.nodes.get_mut(id) else { return };
        if !node.rejects.push(Reject { at, job, generation, words: words.clone() }) {
            return;
        }
        let times = node.rejects.lately(at);
        let open = node.is_open();
        let known = self.jobs.contains_key(&job).then_some(job);
        self.tell(
            known,
            Some(id),
            "rejected",
            format!("{id} rejects {generation} of {job}: {words}"),
        );
        if times >= REJECTS_MAX && open {
            let reason =
                format!("rejects launches: {words} ({times} times without one that went well)");
            let text =
                format!("{id} is CORDONED: {reason}; mend it, then optimus node undrain {id}");
            self.cordon(id, "the master".to_owned(), reason);
            self.tell(None, Some(id), "cordoned", text);
        }
    }

    /// All tasks of a generation are up: its servers start what they are told.
    pub(crate) fn note_started(&mut self, id: JobId) {
        let Some(life) = self.job(id).life() else { return };
        let nodes: Vec<NodeId> = life.placement.0.iter().map(|share| share.node.clone()).collect();
        for node in nodes {
            if let Some(node) = self.nodes.get_mut(&node) {
                node.rejects.clear();
            }
        }
    }

    /// A fault that was counted as the job's own, as the agent's notes came after its exit.
    fn forgive(&mut self, report: &RejectReport) {
        let backoff_ms = self.settings.backoff_ms;
        let grace_ms = self.settings.stop_grace_ms;
        let Some(job) = self.jobs.get_mut(&report.job) else { return };
        if job.blamed_start.take_if(|generation| *generation == report.generation).is_none() {
            return;
        }
        job.record.failures_in_row = job.record.failures_in_row.saturating_sub(1);
        self.touch(report.job);
        if let Phase::Stopping { next: Next::Fail { cause }, .. } = self.job(report.job).phase() {
            let next = Next::BackOff { ms: backoff_ms, cause: cause.clone() };
            self.stop(report.job, next, grace_ms);
        }
    }
}

/// What the notes say of a task.
fn told_of<'a>(notes: &'a NodeNotes, report: &TaskReport) -> Option<&'a RejectReport> {
    notes.rejects.iter().take(REPORTS_MAX).find(|told| {
        (told.job, told.generation, told.task) == (report.job, report.generation, report.task)
    })
}
