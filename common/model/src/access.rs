//! Who may do what: one table, read by the master where it decides and by the command line where
//! it explains. A peer's rank is that of the role in its certificate.

use std::fmt;

use crate::client::{Call, Change, Read};
use crate::nodes::CertificateCall;

/// What the role of a client's certificate entitles to, the least first. The name in it tells
/// whose a job is: one name under two roles is one person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    User,
    Operator,
    Admin,
}

impl Rank {
    pub const ALL: [Self; 3] = [Self::User, Self::Operator, Self::Admin];

    /// As the role in the certificate.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Who asks: what the certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    pub user: String,
    pub rank: Rank,
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Every client may.
    Any,
    /// At least this rank.
    Least(Rank),
    /// At least this rank, or that the job is the asker's own.
    Own(Rank),
}

impl Needs {
    #[must_use]
    pub fn admits(self, rank: Rank, own: bool) -> bool {
        match self {
            Self::Any => true,
            Self::Least(least) => least <= rank,
            Self::Own(least) => own || least <= rank,
        }
    }
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    Submit,
    Cancel,
    Pause,
    Resume,
    Checkpoint,
    Resize,
    Unpin,
    Update,
    NodeLost,
    NodeCordon,
    NodeDrain,
    NodeUndrain,
    Gpu,
    ReadJobs,
    ReadJob,
    ReadWhy,
    ReadEvents,
    ReadRounds,
    ReadNodes,
    ReadStatus,
    ReadLog,
    /// Not a request of its own: the values of a job's environment variables in `show`.
    ReadEnvironment,
    ReadDoctor,
    ReadSnapshot,
    ReadAudit,
    CertificateStatus,
    CertificateAsk,
    CertificateInstall,
    CertificateRevoke,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub deed: Deed,
    /// In words, as the command line names it.
    pub name: &'static str,
    pub needs: Needs,
}

const fn row(deed: Deed, name: &'static str, needs: Needs) -> Row {
    Row { deed, name, needs }
}

const OWN: Needs = Needs::Own(Rank::Operator);
const OPERATOR: Needs = Needs::Least(Rank::Operator);
const ADMIN: Needs = Needs::Least(Rank::Admin);

/// Every kind of request, once.
pub const TABLE: [Row; 29] = [
    row(Deed::Submit, "submit", Needs::Any),
    row(Deed::Cancel, "cancel", OWN),
    row(Deed::Pause, "pause", OWN),
    row(Deed::Resume, "resume", OWN),
    row(Deed::Checkpoint, "checkpoint", OWN),
    row(Deed::Resize, "resize", OWN),
    row(Deed::Unpin, "unpin", OWN),
    row(Deed::Update, "update", OWN),
    row(Deed::NodeLost, "node lost", OPERATOR),
    row(Deed::NodeCordon, "node cordon", OPERATOR),
    row(Deed::NodeDrain, "node drain", OPERATOR),
    row(Deed::NodeUndrain, "node undrain", OPERATOR),
    row(Deed::Gpu, "node gpus (changes)", OPERATOR),
    row(Deed::ReadJobs, "ps", Needs::Any),
    row(Deed::ReadJob, "show", Needs::Any),
    row(Deed::ReadWhy, "why", Needs::Any),
    row(Deed::ReadEvents, "events", Needs::Any),
    // They tell of jobs only what `ps` and `why` tell everyone.
    row(Deed::ReadRounds, "rounds, round show", Needs::Any),
    row(Deed::ReadNodes, "nodes, node show, node gpus", Needs::Any),
    row(Deed::ReadStatus, "status", Needs::Any),
    row(Deed::ReadLog, "logs", OWN),
    // Not an operator's: whoever looks after the machines need not know a user's tokens.
    row(Deed::ReadEnvironment, "show: environment values", Needs::Own(Rank::Admin)),
    row(Deed::ReadDoctor, "doctor", OPERATOR),
    // It holds everything, environment values included.
    row(Deed::ReadSnapshot, "snapshot save", ADMIN),
    row(Deed::ReadAudit, "audit", ADMIN),
    row(Deed::CertificateStatus, "cert status", ADMIN),
    row(Deed::CertificateAsk, "cert rotate (request)", ADMIN),
    row(Deed::CertificateInstall, "cert rotate (install)", ADMIN),
    row(Deed::CertificateRevoke, "cert revoke", ADMIN),
];

impl Deed {
    #[must_use]
    pub const fn of(call: &Call) -> Self {
        match call {
            Call::Change(change) => Self::of_change(change),
            Call::Read(read) => Self::of_read(read),
            Call::Certificate(CertificateCall::Ask { .. }) => Self::CertificateAsk,
            Call::Certificate(CertificateCall::Install { .. }) => Self::CertificateInstall,
            Call::Certificate(CertificateCall::Revocations { .. }) => Self::CertificateRevoke,
            Call::Certificate(CertificateCall::Status) => Self::CertificateStatus,
        }
    }

    #[must_use]
    pub const fn of_change(change: &Change) -> Self {
        match change {
            Change::Submit { .. } | Change::SubmitWith { .. } | Change::SubmitWatched { .. } => {
                Self::Submit
            }
            Change::Cancel { .. } => Self::Cancel,
            Change::Pause { .. } => Self::Pause,
            Change::Resume { .. } => Self::Resume,
            Change::Checkpoint { .. } => Self::Checkpoint,
            Change::Resize { .. } => Self::Resize,
            Change::Unpin { .. } => Self::Unpin,
            Change::Update { .. } => Self::Update,
            Change::NodeLost { .. } => Self::NodeLost,
            Change::NodeCordon { .. } => Self::NodeCordon,
            Change::NodeDrain { .. } => Self::NodeDrain,
            Change::NodeUndrain { .. } => Self::NodeUndrain,
            Change::Gpu { .. } => Self::Gpu,
        }
    }

    #[must_use]
    pub const fn of_read(read: &Read) -> Self {
        match read {
            Read::Jobs => Self::ReadJobs,
            Read::Job { .. } | Read::JobMore { .. } => Self::ReadJob,
            Read::Why { .. } => Self::ReadWhy,
            Read::Events { .. } => Self::ReadEvents,
            Read::Rounds { .. } | Read::Round { .. } => Self::ReadRounds,
            Read::Nodes | Read::Node { .. } | Read::NodeMore { .. } => Self::ReadNodes,
            Read::Status => Self::ReadStatus,
            Read::Log { .. } => Self::ReadLog,
            Read::Snapshot => Self::ReadSnapshot,
            Read::Doctor => Self::ReadDoctor,
            Read::Audit { .. } => Self::ReadAudit,
        }
    }

    /// Its line of the table.
    #[must_use]
    pub fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.deed == self).expect("a test finds every deed in the table")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deed_has_one_line_in_order() {
        let deeds: Vec<Deed> = TABLE.iter().map(|row| row.deed).collect();
        let mut sorted = deeds.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(deeds, sorted);
        // The last one's number is how many there are: none can be missing.
        assert_eq!(Deed::CertificateRevoke as usize + 1, TABLE.len());
    }

    #[test]
    fn a_higher_rank_may_all_that_a_lower_one_may() {
        for row in &TABLE {
            for own in [false, true] {
                let may: Vec<bool> =
                    Rank::ALL.iter().map(|rank| row.needs.admits(*rank, own)).collect();
                assert!(may.is_sorted(), "{row:?}");
                assert!(may[2], "an admin may everything: {row:?}");
            }
        }
    }
}
