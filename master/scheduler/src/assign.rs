//! Which parameter server holds which block of a model (section 5.3).
//!
//! A model's parameters come in blocks, in the order of their keys. A block lies whole on one
//! server or is cut into parts on several; each part is one request of every worker in every
//! step. Three measures count, each the smaller the better: the largest difference between two
//! servers in parameters, the requests in all, and the largest difference in requests.

mod best;
mod level;
mod mxnet;
mod paa;
mod search;

use model::job::TASKS_MAX;

/// How blocks are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// No worse than [`Algorithm::Paa`] in any of the three measures, better where a bounded
    /// search finds that.
    Best,
    /// The paper's parameter assignment algorithm.
    Paa,
    /// MXNet's default: small blocks by their key, large ones cut over all servers.
    Mxnet,
}

impl Algorithm {
    pub const ALL: [Self; 3] = [Self::Best, Self::Paa, Self::Mxnet];

    /// The word for the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Paa => "paa",
            Self::Mxnet => "mxnet",
        }
    }

    /// The algorithm of this name, if there is one.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// What one server holds of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Counted from 0.
    pub server: u32,
    pub parameters: u64,
}

/// What one server carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub parameters: u64,
    /// Parts that lie here: requests of a worker in a step.
    pub requests: u64,
}

/// Where each block lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// In the blocks' order; a block's parts are in the order of its parameters, and none is
    /// empty but the one part of an empty block. The paper's algorithm can put two parts of a
    /// block on one server; the best is the paper's where nothing as good was found.
    pub blocks: Vec<Vec<Part>>,
    pub servers: Vec<Load>,
}

impl Assignment {
    fn new(blocks: Vec<Vec<Part>>, servers: u32) -> Self {
        let mut loads: Vec<Load> = (0..servers).map(|_| Load::default()).collect();
        for part in blocks.iter().flatten() {
            let load = &mut loads[at(part.server)];
            load.parameters += part.parameters;
            load.requests += 1;
        }
        Self { blocks, servers: loads }
    }

    /// Parameters of the fullest server less those of the emptiest.
    #[must_use]
    pub fn size_difference(&self) -> u64 {
        spread(self.servers.iter().map(|server| server.parameters))
    }

    /// Requests of the most asked server less those of the least asked.
    #[must_use]
    pub fn request_difference(&self) -> u64 {
        spread(self.servers.iter().map(|server| server.requests))
    }

    /// Requests of a worker in a step, to all servers together.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.servers.iter().map(|server| server.requests).sum()
    }
}

/// Largest less smallest; 0 of nothing.
fn spread(values: impl Iterator<Item = u64> + Clone) -> u64 {
    values.clone().max().unwrap_or(0) - values.min().unwrap_or(0)
}

/// A server's place in a list.
fn at(server: u32) -> usize {
    usize::try_from(server).expect("a u32 fits a usize on the machines we build for")
}

/// Most parts of an assignment: a fixed rule that cuts every block over every server could ask
/// for more than memory holds.
const PARTS_MAX: u64 = 1 << 24;

/// Assigns blocks of these numbers of parameters to servers.
///
/// # Errors
/// In words, with the field and the remedy: no blocks, no servers or more than a job may have,
/// more than 2^64 − 1 parameters in all, or more than 2^24 parts.
pub fn assign(
    parameters: &[u64],
    servers: u32,
    algorithm: Algorithm,
) -> Result<Assignment, String> {
    if servers == 0 || servers > TASKS_MAX {
        return Err(format!(
            "servers: {servers} is not within 1 to {TASKS_MAX}; give one of these"
        ));
    }
    if parameters.is_empty() {
        return Err("parameters: there are no blocks; give a row for each block".to_owned());
    }
    let sum = parameters.iter().try_fold(0_u64, |sum, block| sum.checked_add(*block));
    let Some(total) = sum else {
        return Err(format!(
            "parameters: the blocks have more than {} parameters in all; count parameters, not bits",
            u64::MAX
        ));
    };
    match algorithm {
        Algorithm::Mxnet => {
            let parts = mxnet::parts(parameters, servers);
            if parts > PARTS_MAX {
                return Err(format!(
                    "servers: {servers} would cut the blocks into {parts} parts, at most \
                     {PARTS_MAX} are allowed; give fewer servers, or use best or paa"
                ));
            }
            Ok(mxnet::assign(parameters, servers))
        }
        Algorithm::Paa => Ok(paa::assign(parameters, servers, total)),
        Algorithm::Best => Ok(best::assign(parameters, servers, total)),
    }
}
