//! What a cluster would have done: the daemon's own decisions in virtual time, with modelled
//! servers and jobs. The same seed gives the same bytes on every machine.

pub mod outcome;
pub mod random;
pub mod replay;
pub mod study;
pub mod workload;
