//! Sets up what the tests and the quickstart need, and runs real daemons, real training
//! processes and the real command line. Nothing here links the product's code.

pub mod ansible;
pub mod binaries;
pub mod clock;
pub mod cluster;
pub mod guest;
pub mod hdfs;
pub mod hosts;
pub mod jobs;
pub mod link;
pub mod nvml;
pub mod process;
pub mod setup;
pub mod wait;

pub use binaries::Binaries;
pub use cluster::{Cluster, ClusterOptions, NodeOptions};
pub use hdfs::{Hdfs, HdfsOptions};
pub use link::Link;
pub use setup::Environment;
