//! Tests over real daemons, real training processes and real signals.
//!
//! Run them with `cargo verify cluster`: one at a time, since each trains on all cores.

mod assignment;
mod certificates;
mod clocks;
mod common;
mod data;
mod disk;
mod drain;
mod ends;
mod faults;
mod filter;
mod forks;
mod gpus;
mod gpus_begin;
mod groups;
mod hdfs;
mod hostile;
mod large;
mod life;
mod links;
mod malformed;
mod names;
mod outputs;
mod readme;
mod rescale;
mod returns;
mod secrets;
mod straggler;
mod submits;
mod submitters;
