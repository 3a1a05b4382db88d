//! Many nodes that fall silent at once, and single ones.

use model::client::Change;
use model::reason::{PhaseName, Reachability};
use model::{Finish, JobSpec, OnDisconnect, Shape};

use super::{World, job, n};

fn long() -> JobSpec {
    let mut spec = job("replaced");
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    spec.on_disconnect = OnDisconnect::Replace;
    spec
}

fn reach(world: &World, node: u32) -> Reachability {
    world.node_row(&n(node)).reachability
}

fn alerts(world: &World) -> String {
    world.control.status(super::clocks(world.now)).alerts.join("; ")
}

#[test]
fn where_all_fall_silent_at_once_no_job_is_moved() {
    let mut world = World::new(4, 8);
    let id = world.running(long(), Shape::new(1, 2));
    let generation = world.row(id).generation;
    for node in 1..=4 {
        world.cut(&n(node));
    }
    // Shorter than what makes agents end tasks of such jobs by themselves, and than what is DOWN.
    world.run(40);
    for node in 1..=4 {
        world.agents.get_mut(&n(node)).unwrap().contact = world.now;
    }
    world.run(30);
    for node in 1..=4 {
        assert_eq!(reach(&world, node), Reachability::Suspect, "n{node}");
    }
    let words = "4 of 4 nodes fell silent at once: assuming the master's own network failed";
    assert!(alerts(&world).contains(words), "{}", alerts(&world));
    assert!(world.events_tell(words));
    for node in 1..=4 {
        world.heal(&n(node));
    }
    world.run(5);
    assert!(!alerts(&world).contains("at once"));
    assert_eq!(world.row(id).generation, generation, "its job was never touched");
    assert_eq!(world.phase(id), PhaseName::Running);
}

#[test]
fn one_node_of_few_is_down_and_two_at_once_are_not() {
    for nodes in 1..=3 {
        let mut world = World::new(nodes, 8);
        world.run(25);
        world.cut(&n(1));
        world.run(65);
        assert_eq!(reach(&world, 1), Reachability::Down, "of {nodes}");
        if nodes == 1 {
            continue;
        }
        // Long after the first.
        world.cut(&n(2));
        world.run(65);
        assert_eq!(reach(&world, 2), Reachability::Down, "one after another, of {nodes}");
        for node in [1, 2] {
            world.heal(&n(node));
        }
        world.run(5);
        for node in [1, 2] {
            world.cut(&n(node));
        }
        world.run(300);
        for node in [1, 2] {
            assert_eq!(reach(&world, node), Reachability::Suspect, "n{node} of {nodes}");
        }
        // An operator's word is enough.
        let lost = world.change(Change::NodeLost { node: n(1) });
        assert!(lost.is_ok(), "{lost:?}");
        world.run(8);
        assert_eq!(reach(&world, 2), Reachability::Down, "the rest is judged, of {nodes}");
    }
}

#[test]
fn who_does_not_come_back_with_the_others_is_down_after_the_whole_time() {
    let mut world = World::new(3, 8);
    world.run(25);
    for node in [1, 2] {
        world.cut(&n(node));
    }
    world.run(120);
    assert_eq!(reach(&world, 2), Reachability::Suspect);
    world.heal(&n(1));
    world.run(50);
    assert_eq!(reach(&world, 1), Reachability::Up);
    assert_eq!(reach(&world, 2), Reachability::Suspect, "it may be on its way");
    world.run(15);
    assert_eq!(reach(&world, 2), Reachability::Down);
}

#[test]
fn a_cancel_needs_nobody_who_is_held() {
    let mut world = World::new(2, 8);
    let id = world.running(long(), Shape::new(1, 2));
    for node in [1, 2] {
        world.cut(&n(node));
    }
    let _ = world.change(Change::Cancel { job: id, now: true });
    world.until_phase(id, PhaseName::Cancelled, 90);
    assert_eq!(reach(&world, 1), Reachability::Suspect);
}

#[test]
fn a_share_of_one_sets_no_limit() {
    let settings = crate::Settings { down_share_max: 1.0, ..super::settings() };
    let mut world = World::with(settings, 3, 8);
    world.run(25);
    for node in 1..=3 {
        world.cut(&n(node));
    }
    world.run(65);
    for node in 1..=3 {
        assert_eq!(reach(&world, node), Reachability::Down);
    }
}
