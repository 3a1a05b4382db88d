//! Stories without trouble: from submission to the end, and what operators do in between.

use model::client::{Answer, Change, ErrorKind, Read, Refusal};
use model::reason::PhaseName;
use model::{Finish, JobId, Mode, Shape};

use super::{World, job, n};

fn kind(reply: Result<Answer, Refusal>) -> ErrorKind {
    reply.expect_err("it is refused").kind
}

#[test]
fn a_job_is_measured_runs_and_converges() {
    let mut world = World::new(2, 8);
    let id = world.submit(job("mnist"));
    world.until_phase(id, PhaseName::Profiling, 10);
    world.until(120, "profiling is over", |world| world.phase(id) == PhaseName::Running);
    let detail = world.detail(id);
    let profiled = detail.speed_fit.expect("a speed function").samples;
    assert_eq!(profiled.iter().filter(|sample| sample.profiled).count(), 3, "{profiled:?}");
    world.until_phase(id, PhaseName::Completed, 600);
    let detail = world.detail(id);
    assert!(detail.row.reason.starts_with("converged"), "{}", detail.row.reason);
    assert!(detail.row.restarts == 0 && detail.faults.is_empty());
    let epochs: Vec<u32> = detail.epochs.iter().map(|epoch| epoch.epoch).collect();
    assert_eq!(epochs, (0..=*epochs.last().unwrap()).collect::<Vec<_>>(), "no epoch is missing");
    for mark in &detail.epochs {
        // The mean over the epoch's own steps, whatever generations it was spread over.
        let steps = (u64::from(mark.epoch) * 40 + 1)..=(u64::from(mark.epoch) + 1) * 40;
        let mean = steps.map(|k| 1.0 / (0.02 * k as f64 + 1.0) + 0.1).sum::<f64>() / 40.0;
        assert!((mark.loss - mean).abs() < 1e-9, "epoch {}: {} {mean}", mark.epoch, mark.loss);
    }
    assert!(world.findings.is_empty(), "{:?}", world.findings);
    world.run(5);
    assert_eq!(world.alive(id), 0);
    assert!(world.agents.values().all(|agent| agent.ledger.is_empty()), "all is forgotten");
    assert!(!detail.checkpoints.is_empty());
}

#[test]
fn a_move_is_predicted_measured_and_written_down() {
    let mut world = World::new(2, 8);
    let id = world.running(job("move"), Shape::new(1, 2));
    world.run(10);
    world.pin(id, Shape::new(2, 4));
    let mut seen = Vec::new();
    for _ in 0..200 {
        let phase = world.phase(id);
        if seen.last() != Some(&phase) {
            seen.push(phase);
        }
        if phase == PhaseName::Running && world.row(id).shape == Shape::new(2, 4) {
            break;
        }
        world.tick();
    }
    assert_eq!(seen, [PhaseName::Running, PhaseName::Rescaling, PhaseName::Running]);
    world.run(20);
    let detail = world.detail(id);
    let decision = detail.decisions.last().unwrap();
    assert_eq!((decision.from, decision.to), (Shape::new(1, 2), Shape::new(2, 4)));
    assert!(decision.while_running && !decision.profiling);
    let cost = decision.cost_s.expect("it was measured");
    assert!((0.5..10.0).contains(&cost), "{cost}");
    let after = decision.measured_after.expect("it was measured");
    assert!((after - 1.0 / (0.05 + 0.02 + 0.04)).abs() < 0.5, "{after}");
    let (before, at_first) = (decision.loss_before.unwrap(), decision.loss_after.unwrap());
    assert!(at_first < before * 1.2, "training went on where it was: {before} {at_first}");
    let round = decision.round.unwrap();
    let Ok(Answer::Round(round)) = world.read(&Read::Round { round }) else { panic!("no round") };
    let entry = round.jobs.iter().find(|entry| entry.id == id).unwrap();
    assert!(entry.measured_steps_per_s.is_some());
    assert!(detail.row.rescales >= 1 && detail.paused_s >= cost);
    let Ok(Answer::JobMore(more)) = world.read(&Read::JobMore { job: id }) else {
        panic!("no more")
    };
    let pause = more.pauses.last().expect("its parts were measured");
    assert_eq!((pause.from, pause.to), (Shape::new(1, 2), Shape::new(2, 4)));
    let parts = [pause.save_s, pause.publish_s, pause.stop_s, pause.launch_s, pause.begin_s];
    assert!(parts.iter().all(|part| *part >= 0.0), "{pause:?}");
    assert!((parts.iter().sum::<f64>() - cost).abs() < 1e-6, "the parts are the whole: {pause:?}");
    assert!((pause.total_s - cost).abs() < 1e-6, "{pause:?}");
}

#[test]
fn jobs_of_one_key_are_measured_once() {
    let mut world = World::new(3, 16);
    let mut spec = job("first");
    spec.model_key = Some("resnet".to_owned());
    let first = world.submit(spec.clone());
    world.until_phase(first, PhaseName::Running, 120);
    let second = world.submit(spec);
    world.until_phase(second, PhaseName::Running, 60);
    let detail = world.detail(second);
    assert!(detail.decisions.iter().all(|decision| !decision.profiling), "{:?}", detail.decisions);
}

#[test]
fn an_async_job_counts_the_steps_of_all_its_workers() {
    let mut world = World::new(2, 8);
    let mut spec = job("async");
    spec.mode = Mode::Async;
    spec.finish = Finish::Epochs(30);
    let id = world.running(spec, Shape::new(1, 4));
    world.run(20);
    let measured = world.detail(id).steps_per_s_measured.unwrap();
    assert!((measured - 4.0 / (0.20 + 0.08)).abs() < 1.0, "{measured}");
    world.until_phase(id, PhaseName::Completed, 600);
    assert!(world.row(id).reason.starts_with("ran its 30 epochs"), "{}", world.row(id).reason);
}

#[test]
fn a_job_ends_after_its_epochs_or_at_epochs_max() {
    let mut world = World::new(2, 8);
    let mut epochs = job("epochs");
    epochs.finish = Finish::Epochs(5);
    let mut endless = job("endless");
    endless.finish = Finish::Convergence { threshold: 1e-9, patience: 3 };
    endless.epochs_max = 8;
    let (epochs, endless) = (world.submit(epochs), world.submit(endless));
    world.until_phase(epochs, PhaseName::Completed, 300);
    world.until_phase(endless, PhaseName::Completed, 300);
    assert!(world.row(epochs).reason.starts_with("ran its 5 epochs"));
    assert!(world.row(endless).reason.starts_with("epochs_max reached without convergence"));
    assert_eq!(world.row(epochs).step, 200);
}

#[test]
fn pause_resume_checkpoint_and_cancel() {
    let mut world = World::new(2, 8);
    let mut spec = job("long");
    spec.finish = Finish::Epochs(60);
    let id = world.running(spec, Shape::new(1, 2));
    assert!(world.change(Change::Checkpoint { job: id }).is_ok());
    world.until(20, "a checkpoint", |world| !world.detail(id).checkpoints.is_empty());
    assert_eq!(world.phase(id), PhaseName::Running);
    assert_eq!(kind(world.change(Change::Resume { job: id })), ErrorKind::Conflict);
    assert!(world.change(Change::Pause { job: id }).is_ok());
    world.until_phase(id, PhaseName::Paused, 30);
    let step = world.row(id).step;
    world.run(90);
    assert_eq!((world.phase(id), world.alive(id)), (PhaseName::Paused, 0));
    assert_eq!(kind(world.change(Change::Checkpoint { job: id })), ErrorKind::Conflict);
    let resize = Change::Resize { job: id, shape: Shape::new(1, 1), pin: false };
    assert_eq!(kind(world.change(resize)), ErrorKind::Conflict);
    assert!(world.change(Change::Resume { job: id }).is_ok());
    world.until_phase(id, PhaseName::Running, 30);
    assert!(world.row(id).step >= step, "nothing was lost");
    assert!(world.change(Change::Cancel { job: id, now: false }).is_ok());
    world.until_phase(id, PhaseName::Cancelled, 30);
    assert_eq!(world.alive(id), 0);
    assert_eq!(kind(world.change(Change::Pause { job: id })), ErrorKind::Conflict);
    assert_eq!(kind(world.change(Change::Pause { job: JobId(99) })), ErrorKind::NotFound);
}

#[test]
fn an_operators_shape_is_checked_applied_and_given_back() {
    let mut world = World::new(1, 6);
    let mut spec = job("resized");
    spec.finish = Finish::Epochs(60);
    spec.workers.max = 16;
    let id = world.running(spec, Shape::new(1, 2));
    let resize = |workers, pin| Change::Resize { job: id, shape: Shape::new(1, workers), pin };
    assert_eq!(kind(world.change(resize(99, true))), ErrorKind::Invalid);
    let refusal = world.change(resize(16, true)).unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::CannotPlace);
    assert!(world.detail(id).pinned, "the old pin stays");
    assert!(world.change_as(resize(4, false), true).is_ok());
    world.run(5);
    assert_eq!(world.row(id).shape, Shape::new(1, 2), "a dry run changes nothing");
    assert!(world.change(resize(4, false)).is_ok());
    world.until(60, "the shape once", |world| {
        world.row(id).shape == Shape::new(1, 4) && world.phase(id) != PhaseName::Rescaling
    });
    assert!(!world.detail(id).pinned);
    assert!(world.change(Change::Unpin { job: id }).is_ok());
}

#[test]
fn a_job_that_does_not_fit_waits_with_a_reason_and_starts_when_there_is_room() {
    let mut world = World::new(1, 2);
    let mut spec = job("large");
    spec.workers.min = 4;
    let id = world.submit(spec);
    world.run(5);
    assert_eq!(world.phase(id), PhaseName::Queued);
    let Ok(Answer::Why(why)) = world.read(&Read::Why { job: id }) else { panic!("no why") };
    assert!(why.round.is_some() && !why.decision.is_empty(), "{why:?}");
    world.agents.get_mut(&n(1)).unwrap().capacity.cpus_milli = 8000;
    world.until(60, "it starts", |world| world.alive(id) > 0);
}

#[test]
fn submits_are_checked_and_repeated_ones_return_the_first() {
    let mut world = World::new(1, 4);
    let mut wrong = job("a\nb");
    wrong.priority = f64::NAN;
    wrong.workers.min = 9;
    let refusal = world.change(Change::Submit { spec: wrong, request_id: None }).unwrap_err();
    assert_eq!((refusal.kind, refusal.faults.len()), (ErrorKind::Invalid, 3), "{refusal:?}");
    let submit = || Change::Submit { spec: job("once"), request_id: Some("r-1".to_owned()) };
    let Ok(Answer::Accepted { job: None, .. }) = world.change_as(submit(), true) else {
        panic!("a dry run is no job")
    };
    let Ok(Answer::Submitted { job: first, created: true, .. }) = world.change(submit()) else {
        panic!("it is new")
    };
    world.run(7);
    world.restart_master();
    let again = world.change(submit());
    let Ok(Answer::Submitted { job, created: false, submitted_s_ago }) = again else {
        panic!("{again:?}")
    };
    assert_eq!(job, first);
    assert!((7.0..9.0).contains(&submitted_s_ago), "{submitted_s_ago}");
}

#[test]
fn what_two_jobs_swap_is_free_before_it_is_taken() {
    let mut world = World::new(2, 4);
    let mut spec = job("swap");
    spec.finish = Finish::Epochs(60);
    spec.servers.max = 1;
    let (a, b) = (world.submit(spec.clone()), world.submit(spec));
    for id in [a, b] {
        world.until(90, "both run", |world| world.row(id).step > 3);
    }
    for shape in [Shape::new(1, 3), Shape::new(1, 1), Shape::new(1, 2)] {
        let reply = world.change(Change::Resize { job: a, shape, pin: true });
        if reply.is_ok() {
            world.until(120, "it got it", |world| {
                world.row(a).shape == shape && world.phase(a) == PhaseName::Running
            });
        }
        world.run(10);
    }
    assert!(world.findings.is_empty(), "{:?}", world.findings);
    world.until_phase(a, PhaseName::Completed, 900);
    world.until_phase(b, PhaseName::Completed, 900);
}
