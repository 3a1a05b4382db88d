//! Pages of one thing each, built from the contract's JSON so that both say the same.

pub(crate) mod cluster;
pub(crate) mod job;
