//! Identifiers. Each prints the way people and JSON see it and reads back from that.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A name or number that does not read as what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidName {
    pub what: &'static str,
    pub given: String,
    pub remedy: &'static str,
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a {}: {}", self.given, self.what, self.remedy)
    }
}

impl std::error::Error for InvalidName {}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub u64);

        impl $name {
            /// The one after this.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("nothing is counted 2^64 times"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!(concat!($prefix, "{}"), self.0))
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                let digits = text.strip_prefix($prefix).unwrap_or(text);
                // `parse` alone would take "+7".
                if digits.starts_with(|c: char| c.is_ascii_digit()) {
                    if let Ok(number) = digits.parse() {
                        return Ok(Self(number));
                    }
                }
                Err(InvalidName {
                    what: $what,
                    given: text.chars().take(80).collect(),
                    remedy: concat!("write it as ", $prefix, "12"),
                })
            }
        }
    };
}

numbered!(
    /// A job, as `j12`. Never reused.
    JobId, "j", "job id"
);
numbered!(
    /// One life of a job's processes; a message of an older one is stale. The first is 1.
    Generation, "g", "generation"
);
numbered!(
    /// A checkpoint of a job, counted within the job from 1.
    CheckpointId, "c", "checkpoint id"
);
numbered!(
    /// One scheduling decision.
    RoundId, "r", "round id"
);
numbered!(
    /// One life of an agent process, counted by the agent in its ledger.
    Incarnation, "i", "incarnation"
);
numbered!(
    /// Version of what a master wants of a node. Grows over master restarts: its upper half is
    /// the number of the master's start, so an agent can refuse anything older than it obeyed.
    Revision, "v", "revision"
);

/// The kernel's boot id: a new one proves that every process of the old boot is dead.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BootId(pub String);

/// A server's name, as its certificate carries it: 1 to 63 of `a-z 0-9 . -`, starting with a
/// letter or digit. Clones share the text: plans name nodes by the hundred thousand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(Arc<str>);

impl NodeId {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A name out of a file that no certificate carries: any printable text.
    ///
    /// # Errors
    /// Where it is longer than 253 characters, shows nothing, or holds a control character.
    pub fn for_file(text: &str) -> Result<Self, InvalidName> {
        let fits = (1..=253).contains(&text.chars().count())
            && crate::text::text_problem(text, 4 * 253).is_none();
        if fits {
            return Ok(Self(text.into()));
        }
        Err(InvalidName {
            what: "node name",
            given: text.chars().take(80).collect(),
            remedy: "use 1 to 253 characters that can be seen, without control characters",
        })
    }

    /// True where both are clones of one name: quicker than comparing the text.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for NodeId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let fits = (1..=63).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-')
            && text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if fits {
            return Ok(Self(text.into()));
        }
        Err(InvalidName {
            what: "node name",
            given: text.chars().take(80).collect(),
            remedy: "use 1 to 63 of a-z, 0-9, '.' and '-', starting with a letter or digit",
        })
    }
}

impl TryFrom<String> for NodeId {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<NodeId> for String {
    fn from(node: NodeId) -> Self {
        node.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_what_they_print() {
        let job: JobId = "j12".parse().unwrap();
        assert_eq!(job, JobId(12));
        assert_eq!(job.to_string(), "j12");
        assert_eq!("12".parse(), Ok(JobId(12)));
        for wrong in ["", "j", "j-1", "j+1", "x12", "j1e3", "j99999999999999999999"] {
            assert!(wrong.parse::<JobId>().is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn node_names_are_plain() {
        for good in ["n1", "gpu-07.rack2", "7"] {
            assert_eq!(good.parse::<NodeId>().unwrap().as_str(), good);
        }
        let long = "a".repeat(64);
        for wrong in ["", "-n", ".n", "N1", "n 1", "n\n1", "né", "../x", long.as_str()] {
            assert!(wrong.parse::<NodeId>().is_err(), "{wrong:?} was taken");
        }
        assert_eq!(NodeId::for_file("Rack 7_A").unwrap().as_str(), "Rack 7_A");
        assert!(NodeId::for_file("").is_err() && NodeId::for_file("n\n1").is_err());
    }
}
