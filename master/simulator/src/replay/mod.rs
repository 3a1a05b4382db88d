//! The Pollux paper's workloads (OSDI'21, section 5) in virtual time: jobs that advance as they
//! were measured to, and a policy that hands out GPUs every minute.
//!
//! A job of N nodes, K replicas and a local batch m takes the step time that was measured for its
//! placement; what a step is worth follows from the gradients that were measured in that epoch.
//! The job ends when it has made as much progress as its epochs take at the initial batch.

mod agent;
pub mod app;
mod bound;
mod horizon;
mod job;
mod planner;
mod policies;
mod pollux;
mod profile;
mod read;
mod rows;
mod run;
mod tables;

pub use app::{App, Curve, Folders, Profiles, find_profiles};
pub use bound::{Bounds, bounds};
pub use horizon::Horizon;
pub use planner::{Batching, JobView, Planner, View};
pub use policies::{OptimusOracle, Tiresias};
pub use pollux::Pollux;
pub use profile::Timing;
pub use rows::{Row, read_rows};
pub use run::{Options, POLICIES, run, run_with};
