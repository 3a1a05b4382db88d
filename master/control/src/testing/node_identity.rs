//! A node is its name: rebuilt hosts, changed addresses, late and lost messages.

use model::client::Change;
use model::reason::{PhaseName, Reachability};
use model::{Finish, Incarnation, JobSpec, OnDisconnect, Shape, Task};

use super::{World, clocks, job, n};
use crate::Event;

fn long() -> JobSpec {
    let mut spec = job("long");
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    spec
}

#[test]
fn a_rebuilt_host_takes_its_name_and_its_history() {
    let mut world = World::new(2, 8);
    let id = world.running(long(), Shape::new(1, 2));
    let node = world.node_of(id, Task::SCHEDULER);
    world.cordon(&node);
    world.power_off(&node);
    world.run(30);
    // Installed anew: another boot, and a ledger that begins at one.
    world.reboot(&node);
    world.agents.get_mut(&node).unwrap().incarnation = Incarnation(1);
    world.until(30, "it is back", |world| world.node_row(&node).reachability == Reachability::Up);
    assert_eq!(world.control.nodes.len(), 2, "no ghost");
    assert!(world.events_tell(&format!("{node} came back with a new boot")));
    let of_node = world.control.events.values().filter(|event| event.node.as_ref() == Some(&node));
    assert!(of_node.count() >= 4, "its history is there");
    assert!(!world.node_row(&node).reason.is_empty(), "closed as it was");
    world.until(90, "its job trains elsewhere", |world| {
        world.phase(id) == PhaseName::Running && !world.stands_on(id, &node)
    });
    assert_eq!(world.detail(id).faults.len(), 1, "one reason: {:?}", world.detail(id).faults);
}

#[test]
fn a_changed_address_is_the_same_node() {
    let mut world = World::new(2, 8);
    let id = world.running(long(), Shape::new(1, 2));
    let node = world.node_of(id, Task::SCHEDULER);
    let generation = world.row(id).generation;
    world.agents.get_mut(&node).unwrap().address = "10.0.9.9".to_owned();
    world.restart_agent(&node);
    world.run(20);
    assert_eq!(world.control.nodes.len(), 2, "no ghost");
    assert!(world.events_tell(&format!("{node} moved from 10.0.0.1 to 10.0.9.9")));
    let row = world.row(id);
    assert_eq!((row.generation, row.phase), (generation, PhaseName::Running), "kept: {row:?}");
    // The next generation is told the new one.
    world.pin(id, Shape::new(1, 4));
    world.until(90, "it moved", |world| {
        world.row(id).shape == Shape::new(1, 4) && world.phase(id) == PhaseName::Running
    });
    let life = world.control.job(id).life().unwrap().clone();
    let root = life.placement.scheduler_node().unwrap();
    assert_eq!(life.root_host, world.agents[root].address);
    world.run(5);
    let held: usize = world.control.ports.values().map(|ports| ports.held.len()).sum();
    assert_eq!(held, 1, "no port is held for the old address");
}

#[test]
fn stale_heartbeats_after_a_fresh_one_change_nothing() {
    let mut world = World::new(1, 8);
    world.run(5);
    let session = world.agents[&n(1)].session.unwrap();
    let reports = world.reports(&n(1));
    let fresh = world.agents.get_mut(&n(1)).unwrap().heartbeat(world.now, reports);
    let number = fresh.sequence;
    world.event(Event::Heartbeat { node: n(1), session, heartbeat: Box::new(fresh.clone()) });
    let before = world.control.nodes[&n(1)].received;
    world.now = world.now.plus(300);
    for back in 1..=20 {
        let mut stale = fresh.clone();
        stale.sequence = number.saturating_sub(back);
        stale.capacity = model::Resources::default();
        world.event(Event::Heartbeat { node: n(1), session, heartbeat: Box::new(stale) });
    }
    let node = &world.control.nodes[&n(1)];
    assert_eq!((node.reach, node.received), (Reachability::Up, before));
    assert!(!node.record.capacity.is_zero(), "what it has is as the fresh one said");
    assert_eq!(world.control.refused()["heartbeat out of order"], 20);
}

#[test]
fn a_pause_of_an_agent_is_no_death() {
    let mut world = World::new(2, 8);
    let id =
        world.running(JobSpec { on_disconnect: OnDisconnect::Replace, ..long() }, Shape::new(1, 2));
    let node = world.node_of(id, Task::SCHEDULER);
    let generation = world.row(id).generation;
    world.cut(&node);
    world.until(20, "it is SUSPECT", |world| {
        world.node_row(&node).reachability == Reachability::Suspect
    });
    world.run(5);
    // Its connection is the same one.
    world.agents.get_mut(&node).unwrap().hears = true;
    world.run(3);
    assert_eq!(world.node_row(&node).reachability, Reachability::Up);
    assert_eq!(world.row(id).generation, generation, "no job was restarted");
}

#[test]
fn a_node_that_is_cut_for_a_day_stays_in_the_list() {
    let mut world = World::new(2, 8);
    world.run(25);
    world.cut(&n(2));
    world.run(120);
    for _ in 0..288 {
        world.now = world.now.plus(300_000);
        world.agents.get_mut(&n(1)).unwrap().contact = world.now;
        let reports = world.reports(&n(1));
        let session = world.agents[&n(1)].session.unwrap();
        let beat = world.agents.get_mut(&n(1)).unwrap().heartbeat(world.now, reports);
        world.event(Event::Heartbeat { node: n(1), session, heartbeat: Box::new(beat) });
    }
    let row = world.node_row(&n(2));
    assert_eq!(row.reachability, Reachability::Down);
    assert!(row.reason.contains("no heartbeat for 86"), "{row:?}");
    assert!(world.control.events.values().any(|event| event.node == Some(n(2))));
    world.heal(&n(2));
    world.run(5);
    assert_eq!(world.node_row(&n(2)).reachability, Reachability::Up);
}

#[test]
fn what_was_decided_while_a_node_was_away_holds_when_it_is_back() {
    let mut world = World::new(2, 8);
    let spec = JobSpec { on_disconnect: OnDisconnect::Replace, ..long() };
    let id = world.running(spec, Shape::new(1, 2));
    let node = world.node_of(id, Task::SCHEDULER);
    world.cut(&node);
    world.until(120, "it goes on elsewhere", |world| {
        world.phase(id) == PhaseName::Running && !world.stands_on(id, &node)
    });
    let _ = world.change(Change::Resize { job: id, shape: Shape::new(1, 3), pin: true });
    world.run(60);
    world.heal(&node);
    world.run(10);
    let present = world.row(id).generation.unwrap();
    let old = world.agents[&node].running().filter(|(_, generation, _)| *generation != present);
    assert_eq!(old.count(), 0, "tasks of an old generation are stopped");
}

#[test]
fn a_clock_that_differs_is_told_in_words() {
    for (skew_ms, event, finding) in [
        (500_u64, false, None),
        (2_000, false, Some("its clock differs by 2.0 s from the master's")),
        (30_000, true, Some("its clock differs by 30 s from the master's")),
        (600_000, true, Some("its clock differs by 600 s from the master's")),
    ] {
        let mut world = World::new(1, 8);
        world.run(2);
        let reports = world.reports(&n(1));
        let now = world.now;
        let agent = world.agents.get_mut(&n(1)).unwrap();
        let mut introduction = agent.introduction(now, reports);
        introduction.unix_ms += skew_ms;
        let session = crate::SessionId(1_000);
        agent.session = Some(session);
        let introduction = Box::new(introduction);
        world.event(Event::NodeConnected { node: n(1), session, introduction });
        assert_eq!(world.node_row(&n(1)).reachability, Reachability::Up, "{skew_ms} ms");
        assert_eq!(world.events_tell("its clock differs"), event, "{skew_ms} ms");
        let findings = world.control.findings(clocks(world.now));
        let told = findings.iter().find(|one| one.words.contains("clock"));
        assert_eq!(told.map(|one| one.words.as_str()), finding, "{skew_ms} ms");
    }
}

#[test]
fn an_end_during_a_long_outage_is_told_once() {
    let mut world = World::new(1, 8);
    let id = world.running(long(), Shape::new(1, 2));
    world.cut(&n(1));
    world.run(10);
    world.exit(id, Task::worker(1), 7, "boom");
    world.run(300);
    world.heal(&n(1));
    world.until(30, "its end is told", |world| !world.detail(id).faults.is_empty());
    world.run(60);
    let faults = world.detail(id).faults;
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].cause.contains("worker1 on n1 exited with code 7: boom"), "{faults:?}");
    assert_eq!(world.phase(id), PhaseName::Running);
}
