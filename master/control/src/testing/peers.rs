//! Every server of a generation is told who else has tasks of it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::nodes::NodeNotes;
use model::{Finish, JobId, Shape};

use super::{World, job, n};
use crate::Event;

/// Who a node lets in to a job's tasks, as it last heard.
fn peers(world: &World, number: u32, id: JobId) -> BTreeSet<IpAddr> {
    let orders = &world.agents[&n(number)].orders;
    orders.jobs.iter().filter(|job| job.job == id).flat_map(|job| job.peers.clone()).collect()
}

fn set(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

/// A node tells its addresses.
fn tell(world: &mut World, number: u32, addresses: &[&str]) {
    let session = world.agents[&n(number)].session.unwrap();
    let addresses = set(addresses).into_iter().collect();
    let notes = Box::new(NodeNotes { addresses, ..NodeNotes::default() });
    world.event(Event::NodeNotes { node: n(number), session, notes });
}

#[test]
fn all_servers_of_a_generation_and_nobody_else_are_let_in() {
    let mut world = World::new(3, 2);
    let mut spec = job("wide");
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    // Half of it fits a node.
    let id = world.running(spec, Shape::new(2, 3));
    let on: Vec<u32> = (1..=3).filter(|number| !peers(&world, *number, id).is_empty()).collect();
    let scheduler = world.control.job(id).life().unwrap().root_host.clone();
    assert!(on.len() > 1 && !peers(&world, on[0], id).is_disjoint(&set(&[&scheduler])));
    for number in &on {
        tell(&mut world, *number, &["127.0.0.1", "0.0.0.0", &format!("10.1.0.{number}")]);
    }
    let others: Vec<u32> = (1..=3).filter(|number| !on.contains(number)).collect();
    for number in &others {
        tell(&mut world, *number, &[&format!("10.1.0.{number}")]);
    }
    let told = |address: &IpAddr| address.to_string().starts_with("10.1.0.");
    let wanted: BTreeSet<IpAddr> =
        on.iter().map(|number| format!("10.1.0.{number}").parse().unwrap()).collect();
    for number in &on {
        let mut found = peers(&world, *number, id);
        assert!(!found.contains(&set(&["127.0.0.1"]).pop_first().unwrap()), "{found:?}");
        found.retain(told);
        assert_eq!(found, wanted, "n{number}");
    }
    assert!(others.iter().all(|number| peers(&world, *number, id).is_empty()));
}
