//! Checks the agent's settings of its tasks' ports.

use std::net::IpAddr;

use super::{AgentConfig, FILTERS};
use crate::job::Fault;

/// Fewer would be used up by a few jobs.
const PORTS_MIN: u16 = 100;

pub(super) fn check(config: &AgentConfig, faults: &mut Vec<Fault>) {
    if config.task_address.parse::<IpAddr>().is_err() {
        faults.push(Fault::new(
            "task_address",
            format!("{:?} is not a numeric address", config.task_address),
            "give the address of this node's training network, such as 10.0.0.7",
        ));
    }
    let (first, last) = config.task_ports;
    if first < 1024 || last < first || last - first < PORTS_MIN {
        faults.push(Fault::new(
            "task_ports",
            format!("[{first}, {last}] is not a range of at least 100 ports from 1024 on"),
            "give two ports outside the system's ephemeral range and the master's \
             limits.root_ports, such as [10000, 19999]",
        ));
    }
    if !FILTERS.contains(&config.filter.as_str()) {
        faults.push(Fault::new(
            "filter",
            format!("{:?} is not known", config.filter),
            format!("give one of {}", FILTERS.join(", ")),
        ));
    }
    // Other nodes' tasks are told it as it is.
    if let Ok(address) = config.task_address.parse::<IpAddr>()
        && (address.is_unspecified() || address.is_multicast())
    {
        faults.push(Fault::new(
            "task_address",
            format!("{address} is no address of one host"),
            "give the address of this node's training network, such as 10.0.0.7",
        ));
    }
}
