//! The storage on a real HDFS: the same contract as `file://`, and what HDFS does when it is ill.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop at once")]

mod contract;
mod faults;
#[path = "../../../../tests/harness/hdfs.rs"]
#[expect(unreachable_pub, dead_code, reason = "the file is shared with the end-to-end tests")]
mod hdfs;
mod killed;
mod support;
