//! What a cluster would have done: the daemon's own decisions in virtual time, with modelled
//! servers and jobs. The same seed gives the same bytes on every machine.

pub mod experiment;
pub mod models;
pub mod outcome;
pub mod plot;
pub mod random;
pub mod replay;
pub mod report;
pub mod speed;
pub mod study;
pub mod trace;
pub mod words;
pub mod workload;
pub mod world;
