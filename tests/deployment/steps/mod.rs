//! What happens to the cluster, and what must be true after each of it.

pub(crate) mod agents;
pub(crate) mod rollout;
