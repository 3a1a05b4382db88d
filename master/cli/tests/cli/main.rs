//! The real binary against a master of the test's own.

#![expect(clippy::unwrap_used, reason = "a helper of tests may panic as tests do")]

mod certificates;
mod exits;
mod fake;
mod files;
mod forecast;
mod golden;
mod gpus;
mod names;
mod nodes;
mod offline_fits;
mod offline_plan;
mod offline_simulate;
mod offline_speed;
mod offline_world;
mod offline_wrong;
mod refusals;
mod skew;
mod streams;
mod views;
