//! Optimus on hosts that boot systemd, rolled out by ansible over ssh from nothing.
//!
//! One master and three agents, each on a host of its own; the jobs of the quickstart train across
//! them while everything happens to them that happens to servers.

mod hosts;
mod operator;
mod rollout;
mod steps;
mod story;
mod world;
