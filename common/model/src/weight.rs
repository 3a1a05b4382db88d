//! How long a message can be, in bytes, without writing it: so that what is decided about it is
//! decided where the messages are made. Never less than the wire takes; a test of `net` holds it.

use std::net::IpAddr;

use crate::agent::{CheckpointOrder, DesiredGeneration, Launch};
use crate::nodes::{JobOrders, NodeOrders};
use crate::notes::{AssignmentOrder, Extras, JobExtras, Warm};
use crate::options::DataSpec;
use crate::resources::Resources;

/// A number, a length or the number of a variant: a mark and at most eight bytes.
const NUMBER: usize = 9;
const ADDRESS: usize = 18;

const fn text(text: &str) -> usize {
    NUMBER + text.len()
}

fn texts(texts: &[String]) -> usize {
    NUMBER + texts.iter().map(|one| text(one)).sum::<usize>()
}

fn pairs<'a>(pairs: impl Iterator<Item = (&'a String, &'a String)>) -> usize {
    NUMBER + pairs.map(|(key, value)| text(key) + text(value)).sum::<usize>()
}

/// Of what one task takes.
#[must_use]
pub fn of_resources(resources: &Resources) -> usize {
    4 * NUMBER + resources.named.keys().map(|kind| text(kind) + NUMBER).sum::<usize>()
}

fn of_checkpoint(order: &CheckpointOrder) -> usize {
    5 * NUMBER + text(&order.directory)
}

/// The part of a launch that only a start needs.
#[must_use]
pub fn of_program(launch: &Launch) -> usize {
    texts(&launch.command) + text(&launch.working_directory) + pairs(launch.environment.iter())
}

/// Of one generation in a desired set.
#[must_use]
pub fn of_generation(generation: &DesiredGeneration) -> usize {
    let DesiredGeneration { launch, checkpoint, .. } = generation;
    let fixed = 16 * NUMBER;
    fixed
        + text(&launch.job_name)
        + of_program(launch)
        + launch.tasks.len() * 2 * NUMBER
        + of_resources(&launch.worker)
        + of_resources(&launch.server)
        + text(&launch.root_host)
        + launch.resume.as_deref().map_or(0, text)
        + checkpoint.as_ref().map_or(0, of_checkpoint)
}

/// Of a desired set.
#[must_use]
pub fn of_generations(generations: &[DesiredGeneration]) -> usize {
    3 * NUMBER + generations.iter().map(of_generation).sum::<usize>()
}

fn of_data(data: &DataSpec) -> usize {
    6 * NUMBER + data.url.len()
}

/// Of where a generation's blocks lie.
#[must_use]
pub fn of_assignment(assignment: &AssignmentOrder) -> usize {
    match assignment {
        AssignmentOrder::Stock | AssignmentOrder::Wait => NUMBER,
        AssignmentOrder::Given(blocks) => {
            let parts: usize = blocks.iter().map(|parts| NUMBER + parts.len() * 2 * NUMBER).sum();
            2 * NUMBER + parts
        }
    }
}

/// Of what is told of one generation beside the desired set.
#[must_use]
pub fn of_job_extras(extras: &JobExtras) -> usize {
    3 * NUMBER
        + of_assignment(&extras.assignment)
        + extras.data.as_ref().map_or(0, of_data)
        + text(&extras.index_base)
}

/// Of what a job that may come needs.
#[must_use]
pub fn of_warm(warm: &Warm) -> usize {
    4 * NUMBER
        + texts(&warm.command)
        + text(&warm.working_directory)
        + pairs(warm.environment.iter())
}

/// Of all that is told beside the desired set.
#[must_use]
pub fn of_extras(extras: &Extras) -> usize {
    let jobs: usize = extras.jobs.iter().map(of_job_extras).sum();
    3 * NUMBER + jobs + extras.warm.iter().map(of_warm).sum::<usize>()
}

fn of_job_orders(orders: &JobOrders) -> usize {
    3 * NUMBER + text(&orders.user) + of_addresses(&orders.peers)
}

/// Of addresses.
#[must_use]
pub const fn of_addresses(addresses: &[IpAddr]) -> usize {
    addresses.len() * ADDRESS
}

/// Of what is told of the server itself.
#[must_use]
pub fn of_orders(orders: &NodeOrders) -> usize {
    let jobs: usize = orders.jobs.iter().map(of_job_orders).sum();
    3 * NUMBER + jobs + texts(&orders.gpus_out) + texts(&orders.gpus_probed)
}
