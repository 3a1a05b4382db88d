//! The only output of a round: what each job gets, and why.

use std::fmt;

use model::{JobId, Placement, Shape};

/// One decision for each job of the snapshot, in the snapshot's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub revision: u64,
    pub decisions: Vec<Decision>,
}

/// Why a job cannot stay where it is, where a node under it is not in the snapshot any more.
pub const NODE_GONE: &str = "a node that it runs on is gone";

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub job: JobId,
    pub verb: Verb,
    pub reason: Reason,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// Stays exactly as it is (running or waiting with nothing).
    Keep,
    /// Has nothing, gets this.
    Start { placement: Placement },
    /// Runs, moves to this other shape or placement by checkpoint and restart.
    Rescale { placement: Placement },
    /// Runs, must give up everything by checkpoint and wait.
    Evict,
    /// Has nothing and gets nothing.
    Wait,
}

impl Verb {
    /// The word for tables and JSON.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Start { .. } => "start",
            Self::Rescale { .. } => "rescale",
            Self::Evict => "evict",
            Self::Wait => "wait",
        }
    }
}

/// One sentence for people, with the numbers in it. The sentences that thousands of jobs get in
/// one round are written out only where somebody reads them.
#[derive(Clone, Debug, PartialEq)]
pub enum Words {
    Plain(String),
    /// Starts on so many nodes; `of` is its allocation where it had to be shrunk.
    Starts {
        shape: Shape,
        nodes: usize,
        of: Option<Shape>,
        /// Seconds sooner done than with its least shape, and that shape.
        sooner: Option<(f64, Shape)>,
    },
    /// Has its allocation.
    Stays {
        shape: Shape,
    },
    /// Would gain by its allocation, but the nodes have no room.
    NoRoomYet {
        shape: Shape,
        allocated: Shape,
    },
    /// Would gain too little by its allocation.
    NotWorth {
        shape: Shape,
        allocated: Shape,
        saved_s: f64,
        cost_s: f64,
        factor: f64,
    },
}

impl Words {
    /// True where there is nothing to read.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Plain(text) => text.trim().is_empty(),
            Self::Starts { .. }
            | Self::Stays { .. }
            | Self::NoRoomYet { .. }
            | Self::NotWorth { .. } => false,
        }
    }
}

impl Default for Words {
    fn default() -> Self {
        Self::Plain(String::new())
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) => f.write_str(text),
            Self::Starts { shape, nodes, of, sooner } => {
                write!(f, "starts with {shape}")?;
                if let Some(allocated) = of {
                    write!(f, " of its allocation {allocated}")?;
                }
                write!(f, " on {nodes} node{}", if *nodes == 1 { "" } else { "s" })?;
                match sooner {
                    Some((seconds, least)) => {
                        write!(f, ", {seconds:.1} s sooner than with {least}")
                    }
                    None => Ok(()),
                }
            }
            Self::Stays { shape } => write!(f, "stays at {shape}, which is its allocation"),
            Self::NoRoomYet { shape, allocated } => {
                write!(
                    f,
                    "stays at {shape}: no room yet on the nodes for its allocation {allocated}"
                )
            }
            Self::NotWorth { shape, allocated, saved_s, .. } if *saved_s < 0.0 => {
                write!(f, "stays at {shape}, more than its allocation {allocated}: nobody needs it")
            }
            Self::NotWorth { shape, allocated, saved_s, cost_s, factor } => write!(
                f,
                "stays at {shape}: {allocated} would save {saved_s:.1} s and cost {cost_s:.1} s, \
                 {factor} times that is asked"
            ),
        }
    }
}

/// A decision in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reason {
    pub words: Words,
    /// True where the work left is a guess that the decision rests on.
    pub young: bool,
    /// What the allocation gave from the cluster's total, before placement.
    pub allocated: Shape,
    /// Steps a second that the model predicts for the shape held before and after.
    pub speed_before: Option<f64>,
    pub speed_after: Option<f64>,
    /// Seconds left at the shape after.
    pub remaining_s: Option<f64>,
    /// Seconds saved by the change, and what it costs.
    pub gain_s: Option<f64>,
    pub cost_s: Option<f64>,
    pub transfer_time: Option<f64>,
    pub cross_node_share: Option<f64>,
    /// For a job that waits: what the nodes lack.
    pub refused: Option<Box<Refused>>,
}

/// Why the nodes have no room for a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// How many nodes could not take its first task, by reason ("worker needs 1 CPUs, 0.25 CPUs
    /// free").
    pub nodes: Vec<(String, u32)>,
    /// The cheapest change that would start it, in words.
    pub remedy: String,
}

impl Reason {
    /// How many nodes could not take the job's first task, by reason.
    #[must_use]
    pub fn nodes_refused(&self) -> &[(String, u32)] {
        self.refused.as_ref().map_or(&[], |refused| &refused.nodes)
    }

    /// The cheapest change that would start the job, in words.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.refused.as_ref().map(|refused| refused.remedy.as_str())
    }

    /// The whole sentence.
    #[must_use]
    pub fn text(&self) -> String {
        let young = if self.young { "; its end is not known yet" } else { "" };
        format!("{}{young}", self.words)
    }
}
