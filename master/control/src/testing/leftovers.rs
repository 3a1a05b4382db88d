//! Stories of what must not be left behind: wishes, ports, and names of what is long gone.

use model::client::Change;
use model::reason::PhaseName;
use model::{Finish, JobId, NodeId, OnDisconnect, Shape, Task};

use super::{World, job, settings};

fn long(on_disconnect: OnDisconnect) -> model::JobSpec {
    let mut spec = job("long");
    spec.epochs_max = 200;
    spec.finish = Finish::Epochs(200);
    spec.on_disconnect = on_disconnect;
    spec.checkpoint_interval_s = 10;
    spec
}

/// The node of a job on two nodes that does not carry its PS scheduler.
fn other_node(world: &World, id: JobId) -> NodeId {
    let root = world.node_of(id, Task::SCHEDULER);
    let placement = world.detail(id).placement;
    assert_eq!(placement.0.len(), 2, "{placement:?}");
    placement.0.iter().find(|share| share.node != root).expect("two nodes").node.clone()
}

#[test]
fn a_checkpoint_that_was_asked_for_dies_with_the_processes() {
    let mut world = World::new(1, 8);
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 2));
    world.saves_fail = true;
    assert!(world.change(Change::Checkpoint { job: id }).is_ok());
    world.exit(id, Task::worker(0), 1, "boom");
    world.until(10, "it is out", |world| world.alive(id) == 0);
    world.saves_fail = false;
    let before = world.row(id).generation;
    world.until(120, "it trains again", |world| {
        let row = world.row(id);
        row.phase == PhaseName::Running && row.generation > before
    });
}

#[test]
fn a_port_is_held_only_for_a_scheduler_that_may_live() {
    let mut world = World::new(3, 4);
    let id = world.running(long(OnDisconnect::Replace), Shape::new(1, 4));
    let other = other_node(&world, id);
    let before = world.row(id).generation.expect("it runs");
    world.cut(&other);
    world.until(200, "it runs elsewhere", |world| {
        let row = world.row(id);
        row.phase == PhaseName::Running && row.generation > Some(before)
    });
    // Its scheduler stood on a node that told its end.
    let held = world.control.ports.values().flat_map(|ports| ports.held.values());
    let old: Vec<_> = held.filter(|holder| holder.generation <= before).collect();
    assert!(old.is_empty(), "{old:?}");
}

#[test]
fn a_port_is_free_where_the_node_is_back_before_the_others_are_out() {
    let mut world = World::new(3, 4);
    let id = world.running(long(OnDisconnect::Replace), Shape::new(1, 4));
    let (root, other) = (world.node_of(id, Task::SCHEDULER), other_node(&world, id));
    let before = world.row(id).generation;
    // Whatever the order in which they come back, nothing is held for the old generation.
    for (first, second) in [(&root, &other), (&other, &root)] {
        world.cut(&root);
        world.cut(&other);
        world.run(62);
        world.heal(first);
        world.run(1);
        world.heal(second);
        world.run(20);
        let present = world.control.job(id).life().map(|life| life.generation);
        let held = world.control.ports.values().flat_map(|ports| ports.held.values());
        let old: Vec<_> = held.filter(|holder| Some(holder.generation) != present).collect();
        assert!(old.is_empty(), "{old:?} of {before:?}, {present:?} lives");
    }
}

#[test]
fn a_port_comes_round_while_other_tasks_of_its_last_holder_are_awaited() {
    let mut world =
        World::with(super::Settings { root_ports: (20_000, 20_000), ..settings() }, 2, 4);
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 4));
    let (root, other) = (world.node_of(id, Task::SCHEDULER), other_node(&world, id));
    world.cut(&other);
    world.reboot(&root);
    world.until_phase(id, PhaseName::Stopping, 60);
    let mut small = job("small");
    // The room of the first is not free until all of it is out.
    (small.workers.max, small.servers.max) = (1, 1);
    (small.worker.cpus_milli, small.server.cpus_milli) = (250, 250);
    let second = world.submit(small);
    world.until(60, "the second runs", |world| world.row(second).step > 3);
    assert_eq!(world.node_of(second, Task::SCHEDULER), root);
    assert_eq!(world.phase(id), PhaseName::Stopping, "it waits for {other}");
    world.control.assert_invariants();
}
