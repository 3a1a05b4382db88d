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

impl DataFormat {
    /// The format's word, as job files and indexes have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RecordIo => "recordio",
            Self::Lines => "lines",
            Self::Fixed(_) => "fixed",
            Self::Files => "files",
        }
    }

    /// Bytes of each record, where that is what cuts them.
    #[must_use]
    pub const fn record_bytes(self) -> Option<u32> {
        match self {
            Self::Fixed(bytes) => Some(bytes),
            Self::RecordIo | Self::Lines | Self::Files => None,
        }
    }

    /// The format of a word, and of the bytes of a record that only `fixed` has.
    #[must_use]
    pub fn named(name: &str, record_bytes: Option<u32>) -> Option<Self> {
        match (name, record_bytes) {
            ("recordio", None) => Some(Self::RecordIo),
            ("lines", None) => Some(Self::Lines),
            ("fixed", Some(bytes)) if bytes > 0 => Some(Self::Fixed(bytes)),
            ("files", None) => Some(Self::Files),
            _ => None,
        }
    }
}

impl std::fmt::Display for DataFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(f, "fixed records of {bytes} bytes"),
            Self::RecordIo | Self::Lines | Self::Files => f.write_str(self.name()),
        }
    }
}

/// Size of a chunk: HDFS's blocks by default (section 5.1).
pub const CHUNK_BYTES: u64 = 128 << 20;
/// A smaller chunk would make the index as large as the data; a larger one could not be shared out.
pub const CHUNK_BYTES_MIN: u64 = 64 << 10;
pub const CHUNK_BYTES_MAX: u64 = 64 << 30;
const URL_BYTES_MAX: usize = 1024;

impl DataSpec {
    fn check(&self, faults: &mut Vec<Fault>) {
        let file = self.url.strip_prefix("file://").map(|path| path.starts_with('/'));
        // `hdfs:///path` asks the name service of the configuration.
        let hdfs = self.url.strip_prefix("hdfs://").map(|rest| rest.contains('/'));
        let odd = self.url.split('/').any(|part| part == "..")
            || self.url.chars().any(char::is_control)
            || self.url.len() > URL_BYTES_MAX;
        if odd || !file.or(hdfs).unwrap_or(false) {
            let shown: String = self.url.chars().take(200).collect();
            faults.push(Fault::new(
                "data.url",
                format!("{shown:?} is not a place of a data set"),
                "write file:// or hdfs:// and an absolute path without '..', such as \
                 hdfs://cluster/data/train",
            ));
        }
        if self.format == DataFormat::Fixed(0) {
            faults.push(Fault::new(
                "data.record_bytes",
                "0 is out of range",
                "give the bytes of one record",
            ));
        }
        if self.chunk_bytes < CHUNK_BYTES_MIN || CHUNK_BYTES_MAX < self.chunk_bytes {
            faults.push(Fault::new(
                "data.chunk",
                format!("{} bytes are out of range", self.chunk_bytes),
                "give 64KiB to 64GiB; 128MiB is usual",
            ));
        }
    }
}

impl JobOptions {
    /// Everything wrong with the options, all at once.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if let Some(data) = &self.data {
            data.check(&mut faults);
        }
        faults
    }
}
