//! Stories about slow workers and slow nodes.

use std::net::SocketAddr;

use model::client::{Answer, Read};
use model::notes::{ArrivalReport, LinkReport, Notes};
use model::reason::PhaseName;
use model::{Bounds, Finish, JobId, JobSpec, Mode, NodeId, Shape, Task};

use super::{World, job, n};
use crate::Event;

/// A job that trains long, of one server and some workers that each fill a node of 2 cores.
fn long(name: &str, mode: Mode, workers: u32) -> JobSpec {
    let mut spec = job(name);
    spec.mode = mode;
    spec.epochs_max = 100_000;
    spec.finish = Finish::Epochs(100_000);
    spec.worker.cpus_milli = 1500;
    spec.server.cpus_milli = 500;
    spec.workers = Bounds { min: workers, max: workers };
    spec.servers = Bounds { min: 1, max: 1 };
    spec.checkpoint_interval_s = 600;
    spec
}

/// A world of nodes that hold one worker each, and a job of some workers that has run a while.
fn training(mode: Mode, nodes: u32, workers: u32) -> (World, JobId) {
    let mut world = World::new(nodes, 2);
    let id = world.submit(long("team", mode, workers));
    world.until(90, "it runs and was measured", |world| {
        world.phase(id) == PhaseName::Running && world.row(id).shape.workers == workers
    });
    world.run(40);
    (world, id)
}

fn events(world: &World, kind: &str) -> Vec<String> {
    let events = world.control.events.values().filter(|event| event.kind == kind);
    events.map(|event| event.text.clone()).collect()
}

fn node_of(world: &World, id: JobId, worker: u32) -> NodeId {
    let placement = world.control.job(id).placement();
    placement.node_of(Task::worker(worker)).expect("it is placed").clone()
}

fn workers_on(world: &World, id: JobId, node: &NodeId) -> u32 {
    world.control.job(id).placement().on(node).workers
}

fn node_reason(world: &World, node: &NodeId) -> String {
    match world.read(&Read::Node { node: node.clone() }) {
        Ok(Answer::Node(detail)) => detail.row.reason,
        other => panic!("no node: {other:?}"),
    }
}

fn why(world: &World, id: JobId) -> String {
    match world.read(&Read::Why { job: id }) {
        Ok(Answer::Why(why)) => why.notes.join("; "),
        other => panic!("no reason: {other:?}"),
    }
}

fn a_slow_node_loses_its_worker_once(mode: Mode) {
    let (mut world, id) = training(mode, 5, 4);
    let before = world.row(id).steps_per_s.expect("it was measured");
    let slow = node_of(&world, id, 2);
    let others: Vec<NodeId> = [0, 1, 3].map(|worker| node_of(&world, id, worker)).to_vec();
    let spare = (1..=5).map(n).find(|node| workers_on(&world, id, node) == 0).unwrap();
    world.speeds.insert(slow.clone(), 0.4);
    let since = world.now;
    world.until(30, "it is named", |world| !events(world, "straggler").is_empty());
    // Three windows of 5 to 6 s, after the one in which it began.
    assert!(world.now.since(since) <= 24_000, "named after {} ms", world.now.since(since));
    let told = events(&world, "straggler");
    assert!(told[0].starts_with(&format!("worker2 on {slow} is slow")), "{told:?}");
    assert!(why(&world, id).contains("is slow"), "{}", why(&world, id));
    world.until(60, "it moved", |world| workers_on(world, id, &spare) == 1);
    assert_eq!(workers_on(&world, id, &slow), 0);
    assert!(others.iter().all(|node| workers_on(&world, id, node) == 1), "others stay");
    world.until(60, "the node is flagged", |world| !events(world, "slow").is_empty());
    assert!(node_reason(&world, &slow).starts_with("slow: worker2 of"), "{told:?}");
    world.run(20);
    let after = world.row(id).steps_per_s.expect("it was measured");
    assert!(after >= 0.9 * before, "{after} after {before}");
    let moves = world.detail(id).decisions.iter().filter(|d| d.from == d.to).count();
    assert_eq!(moves, 1, "replaced once");
    // The slow time is no part of what the job's shape can do.
    let samples = world.detail(id).speed_fit.expect("a speed function").samples;
    let sample = samples.iter().find(|sample| sample.shape == Shape::new(1, 4)).unwrap();
    assert!(sample.steps_per_s >= 0.95 * before, "{} {before}", sample.steps_per_s);
    world.run(120);
    let moves = world.detail(id).decisions.iter().filter(|d| d.from == d.to).count();
    assert_eq!(moves, 1, "and no more");
    assert!(world.findings.is_empty(), "{:?}", world.findings);
}

#[test]
fn a_slow_node_loses_its_worker_once_in_sync_mode() {
    a_slow_node_loses_its_worker_once(Mode::Sync);
}

#[test]
fn a_slow_node_loses_its_worker_once_in_async_mode() {
    a_slow_node_loses_its_worker_once(Mode::Async);
}

#[test]
fn one_of_eight_is_named_and_replaced_once() {
    let (mut world, id) = training(Mode::Sync, 9, 8);
    let slow = node_of(&world, id, 5);
    world.speeds.insert(slow.clone(), 0.4);
    world.until(30, "it is named", |world| !events(world, "straggler").is_empty());
    assert!(events(&world, "straggler")[0].starts_with(&format!("worker5 on {slow} is slow")));
    world.until(90, "the node is flagged", |world| !events(world, "slow").is_empty());
    assert_eq!(workers_on(&world, id, &slow), 0);
}

#[test]
fn nobody_is_named_where_all_are_slow_or_nobody_is() {
    for mode in [Mode::Sync, Mode::Async] {
        let (mut world, id) = training(mode, 5, 4);
        world.run(60);
        for node in 1..=5 {
            world.speeds.insert(n(node), 0.4);
        }
        world.run(120);
        assert_eq!(events(&world, "straggler"), Vec::<String>::new(), "{mode:?}");
        assert_eq!(world.row(id).rescales, 0, "{mode:?}");
    }
}

#[test]
fn without_room_it_is_only_flagged_and_why_says_so() {
    let (mut world, id) = training(Mode::Sync, 4, 4);
    let slow = node_of(&world, id, 1);
    world.speeds.insert(slow.clone(), 0.4);
    world.until(30, "it is named", |world| !events(world, "straggler").is_empty());
    world.run(60);
    assert_eq!(world.row(id).rescales, 0);
    assert!(why(&world, id).contains("no other node has room"), "{}", why(&world, id));
    let task = world.detail(id).tasks.into_iter().find(|task| task.task == "worker1").unwrap();
    assert_eq!(task.state, "running, slow");
    assert!(events(&world, "slow").is_empty(), "nothing shows that the node is to blame");
    world.speeds.clear();
    world.run(40);
    assert!(!why(&world, id).contains("is slow"), "{}", why(&world, id));
}

#[test]
fn a_worker_that_is_slow_on_two_nodes_is_its_own_and_stays() {
    let (mut world, id) = training(Mode::Sync, 6, 4);
    let first = node_of(&world, id, 0);
    let free: Vec<NodeId> = (1..=6).map(n).filter(|n| workers_on(&world, id, n) == 0).collect();
    // Wherever it comes, it is slow there.
    for node in free.iter().chain([&first]) {
        world.speeds.insert(node.clone(), 0.4);
    }
    world.until(120, "it was tried elsewhere", |world| world.row(id).rescales == 1);
    world.until(90, "it is its own", |world| why(world, id).contains("it is its own"));
    world.run(300);
    assert_eq!(world.row(id).rescales, 1, "never moved again for it");
    assert!(events(&world, "slow").is_empty(), "the node is cleared");
    world.restart_master();
    world.run(120);
    assert!(why(&world, id).contains("it is its own"), "{}", why(&world, id));
    assert_eq!(world.row(id).rescales, 1);
}

#[test]
fn a_lone_worker_is_judged_by_its_own_past_and_only_flagged() {
    for mode in [Mode::Sync, Mode::Async] {
        let mut world = World::new(3, 2);
        let id = world.submit(long("lone", mode, 1));
        world.until(90, "it runs", |world| world.phase(id) == PhaseName::Running);
        world.run(60);
        world.speeds.insert(node_of(&world, id, 0), 0.4);
        world.run(45);
        assert!(why(&world, id).contains("a lone worker is not moved"), "{}", why(&world, id));
        assert_eq!(world.row(id).rescales, 0);
    }
}

#[test]
fn the_servers_waiting_for_one_names_it_though_its_computing_is_as_fast() {
    let (mut world, id) = training(Mode::Sync, 5, 4);
    let end = |worker: u16| SocketAddr::from(([10, 0, 0, 1], 40_000 + worker));
    let generation = world.control.job(id).life().unwrap().generation;
    let server = world.control.job(id).placement().node_of(Task::server(0)).unwrap().clone();
    let mut looks = 0;
    for _ in 0..120 {
        world.run(1);
        looks += 5;
        for worker in 0..4_u16 {
            let node = node_of(&world, id, u32::from(worker));
            let (from, worker) = (vec![end(worker)], u32::from(worker));
            let link = LinkReport { job: id, generation, worker, from };
            let mut notes = Notes { links: vec![link], ..Notes::default() };
            if node == server {
                let behind = vec![(end(3), looks * 3 / 5), (end(1), looks / 5)];
                let report = ArrivalReport { job: id, generation, server: 0, looks, behind };
                notes.arrivals.push(report);
            }
            let Some(session) = world.agents[&node].session else { continue };
            world.event(Event::Notes { node, session, notes: Box::new(notes) });
        }
        if !events(&world, "straggler").is_empty() {
            break;
        }
    }
    let told = events(&world, "straggler");
    assert!(told.first().is_some_and(|told| told.starts_with("worker3 on ")), "{told:?}");
    assert!(told[0].contains("its gradients were missing in 60 %"), "{told:?}");
}

#[test]
fn a_flag_ends_after_a_quiet_time_and_is_avoided_until_then() {
    let (mut world, id) = training(Mode::Async, 5, 4);
    let slow = node_of(&world, id, 3);
    world.speeds.insert(slow.clone(), 0.4);
    world.until(120, "the node is flagged", |world| !events(world, "slow").is_empty());
    let quick = long("second", Mode::Async, 1);
    let second = world.submit(quick);
    world.run(5);
    // All else is full: it waits at first, then is put where there is room at all.
    world.until(180, "a job that waits gets the slow node in the end", |world| {
        world.alive(second) > 0
    });
    assert_eq!(workers_on(&world, second, &slow), 1);
    world.control.settings.slow_node_ms = 1;
    world.settings.slow_node_ms = 1;
    let until = world.control.nodes[&slow].slow.as_ref().unwrap().until;
    assert!(until.since(world.now) > 1_000_000);
    world.run(1900);
    assert!(world.control.nodes[&slow].slow.is_none());
    assert_eq!(events(&world, "slow").len(), 2, "{:?}", events(&world, "slow"));
}

#[test]
fn workers_of_two_jobs_that_are_slow_on_a_node_blame_it() {
    let mut world = World::new(4, 4);
    let mut spec = long("one", Mode::Sync, 4);
    // One worker of each fits on a node.
    (spec.server.cpus_milli, spec.worker.cpus_milli) = (100, 2500);
    let one = world.submit(spec.clone());
    world.until(90, "one runs", |world| world.phase(one) == PhaseName::Running);
    spec.worker.cpus_milli = 1200;
    let two = world.submit(spec);
    world.until(90, "both run", |world| {
        [one, two].iter().all(|id| world.phase(*id) == PhaseName::Running)
    });
    world.run(40);
    let spread = |world: &World, id| (1..=4).all(|node| workers_on(world, id, &n(node)) == 1);
    assert!(spread(&world, one) && spread(&world, two), "each has a worker on each node");
    world.speeds.insert(n(3), 0.4);
    world.until(60, "the node is flagged", |world| !events(world, "slow").is_empty());
    let told = events(&world, "slow");
    assert!(told[0].contains("workers of j1 and j2 are slow here"), "{told:?}");
    world.restart_master();
    world.run(3);
    assert!(node_reason(&world, &n(3)).contains("workers of"), "the flag is kept");
    world.speeds.clear();
    world.until(90, "a worker at speed clears it", |world| {
        world.control.nodes[&n(3)].slow.is_none()
    });
}
