//! Stories of a storage that is away for a while: nothing is lost and nothing stops.

use model::agent::STORAGE_AWAY;
use model::client::Change;
use model::notes::{Notes, TroubleReport};
use model::reason::PhaseName;
use model::{Finish, JobId, JobSpec, Shape, Task};

use super::{World, job, n};
use crate::Event;
use crate::job::phase::Phase;

fn long() -> JobSpec {
    let mut spec = job("long");
    spec.epochs_max = 500;
    spec.finish = Finish::Epochs(500);
    spec.checkpoint_interval_s = 10;
    spec
}

fn away(world: &mut World, away: bool) {
    world.saves_fail = away;
    world.storage_away = away;
}

#[test]
fn a_rescale_waits_for_storage_and_comes_by_itself() {
    let mut world = World::new(2, 8);
    let id = world.running(long(), Shape::new(1, 2));
    away(&mut world, true);
    world.pin(id, Shape::new(1, 4));
    world.until(60, "it is told", |world| {
        let reason = world.row(id).reason;
        reason.contains(STORAGE_AWAY) && reason.contains("until storage is back")
    });
    let step = world.row(id).step;
    world.run(300);
    assert_eq!((world.phase(id), world.row(id).shape), (PhaseName::Running, Shape::new(1, 2)));
    assert!(world.row(id).step > step + 400, "it trains on");
    let tries = world.control.job(id).live.as_ref().unwrap().storage_away;
    assert!((3..20).contains(&tries), "{tries} tries in 300 s: the pauses grow");
    away(&mut world, false);
    // The longest pause, and a round.
    world.until(700, "it moves", |world| {
        world.row(id).shape == Shape::new(1, 4) && world.phase(id) == PhaseName::Running
    });
    assert!(!world.row(id).reason.contains(STORAGE_AWAY), "{}", world.row(id).reason);
}

#[test]
fn a_job_at_its_end_waits_for_its_last_checkpoint() {
    let mut world = World::new(1, 8);
    let mut spec = long();
    spec.finish = Finish::Epochs(30);
    spec.epochs_max = 30;
    let id = world.running(spec, Shape::new(1, 2));
    away(&mut world, true);
    world.run(900);
    assert!(!matches!(world.phase(id), PhaseName::Completed | PhaseName::Failed));
    assert!(world.row(id).reason.contains(STORAGE_AWAY), "{}", world.row(id).reason);
    away(&mut world, false);
    world.until_phase(id, PhaseName::Completed, 700);
    let last = world.detail(id).checkpoints.last().map(|checkpoint| checkpoint.step);
    assert_eq!(last, Some(world.row(id).step));
}

#[test]
fn a_checkpoint_that_cannot_be_read_for_now_counts_against_nobody() {
    let mut world = World::new(1, 8);
    let mut spec = long();
    spec.restarts_max = 1;
    let id = world.running(spec, Shape::new(1, 2));
    for _ in 0..4 {
        let words = format!("optimus.gateway.StorageAway: {STORAGE_AWAY}safe mode");
        world.exit(id, Task::worker(0), 1, &words);
        world.until_phase(id, PhaseName::Queued, 30);
        world.until_phase(id, PhaseName::Running, 400);
    }
    assert_eq!(world.control.job(id).record.failures_in_row, 0);
}

/// The checkpoint that a job is at.
fn present(world: &World, id: JobId) -> Option<(model::Generation, model::CheckpointId)> {
    let Phase::Checkpointing { life, save, .. } = world.control.job(id).phase() else {
        return None;
    };
    Some((life.generation, save.order.checkpoint))
}

#[test]
fn a_node_of_servers_tells_of_its_trouble_at_once() {
    let mut world = World::new(1, 8);
    let id = world.running(long(), Shape::new(1, 2));
    assert!(world.change(Change::Checkpoint { job: id }).is_ok());
    world.until(30, "a checkpoint under way", |world| present(world, id).is_some());
    let (generation, checkpoint) = present(&world, id).unwrap();
    let session = world.agents[&n(1)].session.unwrap();
    let trouble = |checkpoint| {
        let words = format!("{STORAGE_AWAY}quota");
        let troubles = vec![TroubleReport { job: id, generation, checkpoint, words }];
        let notes = Box::new(Notes { troubles, ..Notes::default() });
        Event::Notes { node: n(1), session, notes }
    };
    world.event(trouble(checkpoint.next()));
    assert!(present(&world, id).is_some(), "that one is another");
    world.event(trouble(checkpoint));
    assert!(present(&world, id).is_none());
    assert!(world.row(id).reason.contains("n1: storage is away: quota"));
}
