//! Traces of jobs from files, told apart by their header line: our own, the workloads of the
//! Pollux paper, and Microsoft's Philly traces. Whatever is wrong with a file is told by line and
//! column, all of it at once up to a bound.

mod build;
mod ours;
mod philly;
mod pollux;
mod table;

pub use self::build::{Built, build};
pub use self::ours::OursRow;
pub use self::philly::PhillyRow;
pub use self::pollux::{APPLICATIONS, PolluxRow};
pub use self::table::{FAULTS_MAX, Located, TraceError};

/// The jobs of a file, sorted by arrival.
#[derive(Clone, Debug, PartialEq)]
pub enum Trace {
    /// Jobs of the known models.
    Ours(Vec<OursRow>),
    /// Jobs whose batch size may change, on replicas without servers.
    Pollux(Vec<PolluxRow>),
    /// Jobs of which only GPUs and duration are known.
    Philly(Vec<PhillyRow>),
}

impl Trace {
    /// What kind of file it came from.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Ours(_) => "optimus",
            Self::Pollux(_) => "pollux",
            Self::Philly(_) => "philly",
        }
    }

    /// The ids of the jobs, by arrival.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        match self {
            Self::Ours(rows) => rows.iter().map(|row| row.id.clone()).collect(),
            Self::Pollux(rows) => rows.iter().map(|row| row.name.clone()).collect(),
            Self::Philly(rows) => rows.iter().map(PhillyRow::id).collect(),
        }
    }

    #[must_use]
    pub const fn jobs(&self) -> usize {
        match self {
            Self::Ours(rows) => rows.len(),
            Self::Pollux(rows) => rows.len(),
            Self::Philly(rows) => rows.len(),
        }
    }
}

/// Reads a trace. A file whose header is that of no kind is read as the kind that it shares most
/// columns with, and told what it lacks.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read(text: &str) -> Result<Trace, TraceError> {
    let header = table::header(text)?;
    let shared = |columns: &[&str]| {
        columns.iter().filter(|name| header.iter().any(|column| column == **name)).count()
    };
    let (ours, pollux, philly) =
        (shared(ours::COLUMNS), shared(pollux::COLUMNS), shared(philly::COLUMNS));
    if philly > ours && philly > pollux {
        return philly::rows(text).map(Trace::Philly);
    }
    if pollux > ours {
        return pollux::rows(text).map(Trace::Pollux);
    }
    ours::rows(text).map(Trace::Ours)
}
