//! The replay of the Pollux paper's workloads.

mod golden;
mod loading;
mod parity;
mod small;
mod world;
