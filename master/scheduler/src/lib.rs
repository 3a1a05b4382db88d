//! One scheduling round as a function: the cluster and its jobs in, a decision for each job out.
//!
//! [`walk`] goes through one round with its numbers.
//!
//! Nothing here reads a clock, a socket or a file, and nothing is iterated in an order that
//! depends on chance: the same snapshot gives the same plan, bit by bit, on every machine.

mod admit;
pub mod allocate;
pub mod assign;
pub mod baseline;
mod cache;
pub mod check;
mod entry;
pub mod estimate;
mod explain;
pub mod goodput;
pub mod hysteresis;
mod lookahead;
pub mod place;
pub mod plan;
mod pollux;
mod preempt;
mod print;
mod ranks;
mod rebalance;
mod refusal;
mod refusals;
mod rival;
mod room;
pub mod round;
pub mod snapshot;
mod spare;
pub mod walk;
mod warm;
mod worth;

pub use cache::Cache;
pub use check::check;
pub use round::{Stage, plan, plan_watched};
