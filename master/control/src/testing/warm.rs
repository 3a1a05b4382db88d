//! Nodes that a job is about to come to are told ahead.

use std::collections::BTreeSet;

use model::client::Change;
use model::reason::PhaseName;
use model::{Finish, JobId, Mode, Shape};

use super::{World, job, n};

/// Nodes that were told to prepare for the job, as they last heard.
fn warm(world: &World, id: JobId) -> BTreeSet<u32> {
    let told = |number: &u32| {
        let extras = &world.agents[&n(*number)].extras;
        extras.warm.iter().any(|warm| warm.job == id && !warm.command.is_empty())
    };
    (1..=3).filter(told).collect()
}

fn started_on(world: &World, id: JobId, number: u32) -> bool {
    let agent = &world.agents[&n(number)];
    agent.ledger.keys().any(|(job, _, _)| *job == id)
}

#[test]
fn a_new_node_is_told_seconds_before_its_tasks_come_and_nobody_after() {
    grows(Mode::Sync);
}

#[test]
fn asynchronous_workers_train_on_while_a_new_node_prepares() {
    grows(Mode::Async);
}

fn grows(mode: Mode) {
    let mut world = World::new(3, 4);
    let mut spec = job("grow");
    spec.mode = mode;
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    let id = world.running(spec, Shape::new(1, 2));
    world.run(5);
    assert!(warm(&world, id).is_empty(), "it stays where it is");
    let before: Vec<u32> = (1..=3).filter(|number| started_on(&world, id, *number)).collect();
    world.pin(id, Shape::new(2, 4));
    let (mut told_at, mut start_at) = (None, None);
    for _ in 0..200 {
        let told = warm(&world, id);
        for number in (1..=3).filter(|number| !before.contains(number)) {
            if told.contains(&number) {
                told_at.get_or_insert(world.now);
            }
            if started_on(&world, id, number) {
                start_at.get_or_insert(world.now);
            }
        }
        if world.phase(id) == PhaseName::Running && world.row(id).shape == Shape::new(2, 4) {
            break;
        }
        world.tick();
    }
    let (told_at, start_at) = (told_at.expect("told"), start_at.expect("started"));
    assert!(start_at.since(told_at) >= 3_000, "told {told_at:?}, started {start_at:?}");
    assert!(warm(&world, id).is_empty(), "it is there");
}

#[test]
fn a_node_whose_job_does_not_come_is_told_so() {
    let mut world = World::new(3, 4);
    let id = world.running(job("stay"), Shape::new(1, 2));
    world.pin(id, Shape::new(2, 4));
    world.until(60, "a node is warm", |world| !warm(world, id).is_empty());
    world.change(Change::Cancel { job: id, now: false }).unwrap();
    world.until_phase(id, PhaseName::Cancelled, 60);
    assert!(warm(&world, id).is_empty(), "{:?} {:?}", world.control.promised, warm(&world, id));
}
