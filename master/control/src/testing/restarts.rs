//! The master dies between any two commands, and another goes on from the store.

use std::collections::BTreeSet;

use model::client::{Answer, Change};
use model::reason::PhaseName;
use model::{Finish, JobId, Shape};

use super::{World, job};

fn short() -> model::JobSpec {
    let mut spec = job("short");
    spec.finish = Finish::Epochs(25);
    spec.checkpoint_interval_s = 600;
    spec
}

/// A job that runs and is told to move; returns the world just before the move is asked.
fn about_to_move() -> (World, JobId) {
    let mut world = World::new(2, 4);
    let id = world.running(short(), Shape::new(1, 2));
    (world, id)
}

fn move_and_finish(world: &mut World, id: JobId) {
    let shape = Shape::new(1, 4);
    // A master that died with the answer in its hands is asked again.
    for _ in 0..3 {
        let reply = world.try_change(Change::Resize { job: id, shape, pin: true }, false);
        if reply.is_some_and(|reply| reply.is_ok()) {
            break;
        }
        world.run(5);
    }
    world.until(240, "it moved", |world| world.row(id).shape == shape);
    world.until_phase(id, PhaseName::Completed, 400);
    assert_eq!(world.row(id).step, 1000, "every step was made");
    assert_eq!(world.alive(id), 0);
}

#[test]
fn at_every_boundary_of_a_move_the_job_survives() {
    let (before, id) = about_to_move();
    let mut world = before.clone();
    let first = world.carried_out;
    world.pin(id, Shape::new(1, 4));
    world.until(120, "it moved", |world| {
        world.row(id).shape == Shape::new(1, 4) && world.phase(id) == PhaseName::Running
    });
    let last = world.carried_out;
    assert!(last - first >= 12, "only {} commands", last - first);
    for boundary in first..=last {
        let mut world = before.clone();
        world.dies_after = Some(boundary);
        move_and_finish(&mut world, id);
        assert_eq!(world.starts, 2, "the master died at {boundary}");
        let detail = world.detail(id);
        assert!(detail.faults.is_empty(), "at {boundary}: {:?}", detail.faults);
    }
}

/// Submits, lets the job be measured and run, pauses and resumes it, and waits for its end.
fn whole_life(world: &mut World) -> JobId {
    let mut spec = short();
    spec.finish = Finish::Epochs(6);
    spec.checkpoint_interval_s = 15;
    let submit = Change::Submit { spec, request_id: Some("one".to_owned()) };
    let mut id = None;
    for _ in 0..3 {
        if let Some(Ok(Answer::Submitted { job, .. })) = world.try_change(submit.clone(), false) {
            id = Some(job);
            break;
        }
    }
    let id = id.expect("it is submitted at the latest when asked again");
    world.until(90, "it was measured", |world| world.phase(id) == PhaseName::Running);
    for _ in 0..3 {
        let reply = world.try_change(Change::Pause { job: id }, false);
        if reply.is_some_and(|reply| reply.is_ok()) {
            break;
        }
    }
    world.until_phase(id, PhaseName::Paused, 60);
    for _ in 0..3 {
        let reply = world.try_change(Change::Resume { job: id }, false);
        if reply.is_some() {
            break;
        }
    }
    world.until_phase(id, PhaseName::Completed, 120);
    id
}

#[test]
fn at_every_boundary_of_a_whole_life_the_job_survives() {
    let mut settings = super::settings();
    settings.profile_shapes_max = 2;
    let mut fresh = World::with(settings, 1, 8);
    fresh.run(2);
    let first = fresh.carried_out;
    let mut world = fresh.clone();
    whole_life(&mut world);
    for boundary in first..world.carried_out {
        let mut world = fresh.clone();
        world.dies_after = Some(boundary);
        let id = whole_life(&mut world);
        let detail = world.detail(id);
        assert_eq!(world.starts, 2, "the master died at {boundary}");
        assert_eq!(world.control.jobs.len(), 1, "one job, at {boundary}");
        assert_eq!((detail.row.step, detail.row.restarts), (240, 0), "at {boundary}");
        let epochs: Vec<u32> = detail.epochs.iter().map(|epoch| epoch.epoch).collect();
        assert_eq!(epochs, [0, 1, 2, 3, 4, 5], "at {boundary}");
        world.run(3);
        assert_eq!(world.alive(id), 0, "at {boundary}");
    }
}

#[test]
fn a_master_that_dies_again_and_again_loses_no_job_and_no_request() {
    let mut world = World::new(3, 16);
    let mut ids = BTreeSet::new();
    for number in 0..50_u32 {
        let request = format!("request-{number}");
        let mut spec = short();
        spec.name = format!("job {number}");
        spec.finish = Finish::Epochs(2);
        let submit = || Change::Submit { spec: spec.clone(), request_id: Some(request.clone()) };
        let Ok(Answer::Submitted { job, created: true, .. }) = world.change(submit()) else {
            panic!("{request} is new")
        };
        assert!(ids.insert(job));
        if number % 5 == 4 {
            world.restart_master();
            world.run(2);
        }
        let Ok(Answer::Submitted { job: again, created: false, .. }) = world.change(submit())
        else {
            panic!("{request} is known")
        };
        assert_eq!(again, job);
    }
    assert_eq!(ids.len(), 50);
    world.until(3_000, "all are done", |world| {
        ids.iter().all(|id| world.phase(*id) == PhaseName::Completed)
    });
}

#[test]
fn a_new_master_judges_no_node_until_the_grace_is_over() {
    let mut world = World::new(2, 4);
    let mut spec = short();
    spec.on_disconnect = model::OnDisconnect::Replace;
    let id = world.running(spec, Shape::new(1, 4));
    let generation = world.row(id).generation;
    // Ten minutes without a master, as far as the clock goes.
    world.now = world.now.plus(600_000);
    for agent in world.agents.values_mut() {
        agent.contact = world.now;
        agent.hears = false;
    }
    world.restart_master();
    world.run(15);
    for agent in world.agents.values_mut() {
        agent.hears = true;
    }
    world.run(10);
    assert_eq!(world.row(id).generation, generation);
    assert_eq!(world.phase(id), PhaseName::Running);
}

#[test]
fn a_store_that_is_not_whole_is_refused() {
    let mut world = World::new(1, 4);
    let _ = world.submit(short());
    let whole: Vec<_> = world.store.values().cloned().collect();
    let take_up = |records: Vec<crate::Record>| {
        crate::Control::new(super::settings(), super::clocks(world.now), records).map(|_| ())
    };
    assert_eq!(take_up(whole.clone()), Ok(()));
    let headless: Vec<_> =
        whole.iter().filter(|record| record.key() != crate::Key::Meta).cloned().collect();
    assert!(take_up(headless).is_err());
    let mut old = whole;
    for record in &mut old {
        if let crate::Record::MetaV1(meta) = record {
            meta.jobs = 0;
        }
    }
    assert!(take_up(old).is_err());
}

#[test]
fn revisions_grow_over_restarts() {
    let mut world = World::new(1, 4);
    let _ = world.running(short(), Shape::new(1, 2));
    let before = world.agents.values().next().unwrap().desired.revision;
    world.restart_master();
    world.run(3);
    let after = world.agents.values().next().unwrap().desired.revision;
    assert!(after.0 >> 32 > before.0 >> 32, "{before} {after}");
}
