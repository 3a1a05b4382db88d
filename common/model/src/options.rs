//! What a job may ask for beside its [`crate::JobSpec`].

use serde::{Deserialize, Serialize};

use crate::job::Fault;

/// Options of a job; all have a default, which a job without options gets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobOptions {
    pub assignment: AssignmentKind,
    pub data: Option<DataSpec>,
    /// The `file://` folder of the checkpoints is one that all hosts of the cluster share.
    pub checkpoint_shared: bool,
}

/// How a job's parameter blocks come to its servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AssignmentKind {
    /// Balanced by the master (section 5.3).
    #[default]
    Paa,
    /// As MXNet does by itself.
    Mxnet,
}

impl AssignmentKind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paa => "paa",
            Self::Mxnet => "mxnet",
        }
    }
}

/// A data set that the agents serve to a job's workers in chunks (section 5.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSpec {
    /// `file://` or `hdfs://`: a folder or a file.
    pub url: String,
    pub format: DataFormat,
    /// About how large a chunk is.
    pub chunk_bytes: u64,
}

/// How a data set is cut into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataFormat {
    /// MXNet's RecordIO.
    RecordIo,
    /// A record is a line.
    Lines,
    /// A record has this many bytes.
    Fixed(u32),
    /// A record is a file.
    Files,
}

impl JobOptions {
    /// Everything wrong with the options, all at once.
    #[must_use]
    pub const fn faults(&self) -> Vec<Fault> {
        Vec::new()
    }
}
