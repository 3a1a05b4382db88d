//! The replay of the Pollux paper's workloads.

#![expect(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod golden;
mod loading;
mod parity;
mod small;
mod world;
