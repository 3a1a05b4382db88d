//! What the node has and how busy it is.

pub(crate) mod gpu;
pub(crate) mod host;
pub(crate) mod nvml;
pub(crate) mod sockets;
