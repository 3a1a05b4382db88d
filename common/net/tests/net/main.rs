//! The crate from outside: real sockets on loopback, real certificates.

#![expect(clippy::unwrap_used, reason = "a helper that fails should stop its test at once")]

mod certificates;
mod frames;
mod golden;
mod golden_certificates;
mod golden_four;
mod golden_gpus;
mod golden_three;
mod golden_watched;
mod handshake;
mod limits;
mod raw;
mod refused;
mod renewal;
mod restart;
mod weights;
mod world;
