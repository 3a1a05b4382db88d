//! Jobs whose loss is no number any more.

use model::client::{Answer, Change};
use model::diverged::OnNan;
use model::reason::PhaseName;
use model::{Finish, Generation, JobId, JobOptions};

use super::{World, job};

/// A job that trains and has a checkpoint.
fn world(on_nan: OnNan) -> (World, JobId) {
    let mut world = World::new(1, 8);
    let mut spec = job("diverges");
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    spec.checkpoint_interval_s = 30;
    let options = JobOptions::default();
    let change = Change::SubmitWatched { spec, request_id: None, options, on_nan };
    let Ok(Answer::Submitted { job: id, .. }) = world.change(change) else {
        panic!("not submitted");
    };
    world.until(300, "it has a checkpoint", |world| !kept(world, id).is_empty());
    world.until(100, "it runs", |world| world.phase(id) == PhaseName::Running);
    (world, id)
}

/// Steps of the checkpoints that are kept.
fn kept(world: &World, id: JobId) -> Vec<u64> {
    world.control.job(id).record.checkpoints.iter().map(|kept| kept.step).collect()
}

/// Waits until another generation than this one is on its way.
fn until_another(world: &mut World, id: JobId, before: Option<Generation>) {
    world.until(100, "it goes back", |world| {
        world.control.job(id).life().is_some_and(|life| Some(life.generation) != before)
    });
}

/// From the next step on the loss is no number, for as long as the generation lives.
fn diverge(world: &mut World, id: JobId) -> u64 {
    let generation = world.row(id).generation.unwrap();
    let training = world.trainings.get_mut(&(id, generation)).unwrap();
    let since = training.step() + 5;
    training.nan_from = Some(since);
    since
}

#[test]
fn a_job_that_asks_for_it_fails_at_once() {
    let (mut world, id) = world(OnNan::Stop);
    let since = diverge(&mut world, id);
    world.until_phase(id, PhaseName::Failed, 60);
    let wanted = format!("the loss is not finite since step {since}: on_nan = \"stop\"");
    assert_eq!(world.row(id).reason, wanted);
}

#[test]
fn a_job_goes_back_to_before_it_twice_and_then_fails() {
    let (mut world, id) = world(OnNan::RollBack);
    for times in 1..=2 {
        let before = world.row(id).generation;
        let since = diverge(&mut world, id);
        until_another(&mut world, id, before);
        let resumed = world.control.job(id).life().unwrap().resume.unwrap();
        let checkpoints = &world.control.job(id).record.checkpoints;
        let from = checkpoints.iter().find(|kept| kept.id == resumed).unwrap();
        assert!(from.step < since, "{} is not before {since}", from.step);
        let fault = world.detail(id).faults.pop().unwrap();
        assert!(fault.cause.contains(&format!("back to {resumed}")), "{}", fault.cause);
        world.until(100, "it trains", |world| world.phase(id) == PhaseName::Running);
        assert_eq!(world.control.job(id).record.failures_in_row, 0, "time {times}");
        // A master's restart does not forget how often.
        world.restart_master();
        world.until(100, "it is heard of", |world| world.control.job(id).live.is_some());
        world.run(10);
    }
    diverge(&mut world, id);
    world.until_phase(id, PhaseName::Failed, 60);
    assert!(world.row(id).reason.contains("it went back 2 times"), "{}", world.row(id).reason);
}

#[test]
fn what_was_saved_since_is_never_resumed_from() {
    let (mut world, id) = world(OnNan::RollBack);
    let good = kept(&world, id);
    let generation = world.row(id).generation.unwrap();
    let since = world.trainings[&(id, generation)].step() + 1;
    // It saves once more before it is found: its reports do not come through.
    world.change(Change::Checkpoint { job: id }).unwrap();
    let training = world.trainings.get_mut(&(id, generation)).unwrap();
    (training.nan_from, training.nan_hidden) = (Some(since), true);
    world.until(100, "another checkpoint", |world| kept(world, id).last() > good.last());
    world.until(100, "it runs", |world| world.phase(id) == PhaseName::Running);
    assert!(since <= *kept(&world, id).last().unwrap());
    world.trainings.get_mut(&(id, generation)).unwrap().nan_hidden = false;
    until_another(&mut world, id, Some(generation));
    let life = world.control.job(id).life().unwrap();
    assert!(good.contains(&life.base_step), "from step {}, of {good:?}", life.base_step);
}
