//! What happens to the cluster, and what must be true after each of it.

pub(crate) mod agents;
pub(crate) mod disk;
pub(crate) mod drain;
pub(crate) mod master;
pub(crate) mod network;
pub(crate) mod policies;
pub(crate) mod power;
pub(crate) mod rebuilt;
pub(crate) mod rollout;
