//! Stories of what a job says about its own loss: a curve, and learning rates.

use model::agent::RateReport;
use model::client::{Change, ErrorKind};
use model::reason::PhaseName;
use model::{Finish, JobId, JobSpec, Shape, Task};
use scheduler::estimate::loss::LossFit;

use super::training::STEPS_PER_EPOCH;
use super::{World, job};
use crate::{Event, Key, SessionId};

fn by(curve: &str) -> JobSpec {
    let curve = curve.to_owned();
    let finish = Finish::ConvergenceBy { threshold: 0.004, patience: 2, curve };
    JobSpec { finish, ..job("own") }
}

fn fit(world: &World, id: JobId) -> Option<LossFit> {
    world.control.job(id).loss_fit.clone().and_then(Result::ok)
}

#[test]
fn a_job_is_estimated_by_its_own_curve_and_converges() {
    let mut world = World::new(2, 8);
    let id = world.submit(by("scale / (k + start) + floor"));
    world.until(120, "an estimate", |world| world.detail(id).remaining_epochs.is_some());
    let later = |world: &World| fit(world, id).is_some_and(|fit| fit.points >= 20);
    world.until(200, "a fit of some points", later);
    let found = fit(&world, id).expect("it was there a line ago");
    let names: Vec<&str> = found.constants.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["scale", "start", "floor"]);
    // The losses here are 1/(0.02 k + 1) + 0.1.
    assert!((found.loss_at(100.0) - (1.0 / 3.0 + 0.1)).abs() < 0.05, "{found:?}");
    world.restart_master();
    world.until(120, "an estimate of the next master", |world| fit(world, id).is_some());
    assert_eq!(fit(&world, id).unwrap().constants.len(), 3, "the curve is kept");
    world.until_phase(id, PhaseName::Completed, 600);
    assert!(world.row(id).reason.starts_with("converged"), "{}", world.row(id).reason);
}

#[test]
fn fits_of_a_users_curve_are_rarer() {
    let mut world = World::new(2, 8);
    let (own, plain) = (world.submit(by("a/(k+b)+c")), world.submit(job("plain")));
    world.until(120, "both fits", |world| fit(world, own).is_some() && fit(world, plain).is_some());
    let at = |world: &World, id| world.control.job(id).loss_fit_at;
    let (first, mut ages) = (at(&world, own), Vec::new());
    let until = first.plus(40_000);
    while world.now < until && world.phase(own) == PhaseName::Running {
        world.tick();
        ages.push(world.now.since(at(&world, plain)));
        assert_eq!(at(&world, own), first, "at {}", world.now.0);
    }
    assert!(ages.iter().all(|age| *age < 40_000), "{ages:?}");
}

#[test]
fn a_malformed_curve_is_refused_beside_the_other_faults() {
    let mut world = World::new(1, 8);
    for (curve, words) in [("a/(k+b", "character"), ("0.5", "constant"), ("a+b", "step")] {
        let mut spec = by(curve);
        spec.priority = 0.0;
        let change = Change::Submit { spec, request_id: None };
        let refusal = world.change_as(change, true).expect_err("it is refused");
        assert_eq!(refusal.kind, ErrorKind::Invalid);
        let fields: Vec<&str> = refusal.faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, ["priority", "convergence.curve"]);
        assert!(refusal.faults[1].problem.contains(words), "{}", refusal.faults[1]);
        assert!(refusal.faults[1].remedy.contains("a/(k+b)+c"));
    }
    assert!(world.control.jobs.is_empty());
}

impl World {
    /// A worker's node says a learning rate.
    fn say_rate(&mut self, id: JobId, step: u64, rate: f64) {
        let life = self.control.job(id).life().expect("it runs").clone();
        let node = life.placement.node_of(Task::worker(0)).expect("it has a worker").clone();
        let session = self.agents[&node].session.expect("the node is connected");
        let report = RateReport { job: id, generation: life.generation, worker: 0, step, rate };
        self.event(Event::Rates { node, session, rates: vec![report] });
    }

    fn rate_steps(&self, id: JobId) -> Vec<f64> {
        self.control.job(id).rates.steps()
    }
}

#[test]
fn a_fit_starts_anew_where_the_learning_rate_steps() {
    let mut world = World::new(2, 8);
    let spec = JobSpec { finish: Finish::Epochs(60), ..job("steps") };
    let id = world.running(spec, Shape::new(1, 2));
    world.until(120, "a fit", |world| fit(world, id).is_some());
    world.say_rate(id, 1, 0.1);
    world.run(30);
    assert!(fit(&world, id).is_some_and(|fit| fit.since_step < 1.0), "one rate");
    let step = world.row(id).step + 1;
    world.say_rate(id, step, 0.01);
    world.say_rate(id, step, 0.01);
    let from = step as f64;
    assert_eq!(world.rate_steps(id), [from]);
    let anew = |world: &World| fit(world, id).is_some_and(|fit| fit.since_step >= from);
    world.until(120, "a fit since the step", anew);
    // Nobody says it again to the next master.
    world.restart_master();
    assert_eq!(world.rate_steps(id), [from], "it is on disk");
    world.until(120, "the next master's fit since the step", anew);
    // The next generation has the same rate, and says so.
    world.pin(id, Shape::new(2, 4));
    world.until(120, "the move", |world| world.row(id).shape == Shape::new(2, 4));
    let step = world.row(id).step + 1;
    world.say_rate(id, step, 0.01);
    assert_eq!(world.rate_steps(id), [from]);
    let key = Key::Rates(id);
    assert!(world.store.contains_key(&key));
    assert_eq!(world.row(id).step / STEPS_PER_EPOCH, u64::from(world.row(id).epoch));
}

#[test]
fn a_rate_that_stepped_after_the_checkpoint_is_forgotten_with_the_steps() {
    let mut world = World::new(2, 8);
    let spec = JobSpec { finish: Finish::Epochs(60), ..job("back") };
    let id = world.running(spec, Shape::new(1, 2));
    world.say_rate(id, 1, 0.1);
    assert!(world.change(Change::Checkpoint { job: id }).is_ok());
    world.until(20, "a checkpoint", |world| {
        !world.detail(id).checkpoints.is_empty() && world.phase(id) == PhaseName::Running
    });
    world.run(5);
    let step = world.row(id).step;
    world.say_rate(id, step, 0.01);
    assert_eq!(world.rate_steps(id).len(), 1);
    let generation = world.control.job(id).life().unwrap().generation;
    world.exit(id, Task::worker(0), 1, "killed");
    world.until(120, "the next generation", |world| {
        world.control.job(id).life().is_some_and(|life| life.generation > generation)
    });
    assert!(world.rate_steps(id).is_empty());
    assert_eq!(world.control.job(id).rates.marks().len(), 1, "the first one holds again");
}

#[test]
fn rates_that_cannot_be_are_counted() {
    let mut world = World::new(2, 8);
    let id = world.running(job("liar"), Shape::new(1, 2));
    for (step, rate) in
        [(1, f64::NAN), (1, f64::INFINITY), (1, 0.0), (1, -0.1), (1, 1e300), (u64::MAX, 0.1)]
    {
        world.say_rate(id, step, rate);
    }
    assert_eq!(world.control.refused["learning rate out of range"], 6);
    let node = super::n(1);
    let report =
        RateReport { job: id, generation: model::Generation(99), worker: 0, step: 1, rate: 0.1 };
    let session = world.agents[&node].session.unwrap();
    world.event(Event::Rates { node: node.clone(), session, rates: vec![report] });
    assert_eq!(world.control.refused["learning rate of another generation"], 1);
    let unknown = RateReport { job: JobId(77), ..report };
    world.event(Event::Rates { node: node.clone(), session, rates: vec![unknown] });
    assert_eq!(world.control.refused["learning rate of an unknown job"], 1);
    let old = SessionId(0);
    world.event(Event::Rates { node, session: old, rates: vec![report] });
    assert_eq!(world.control.refused["learning rates of an old connection"], 1);
    assert!(world.control.job(id).rates.marks().is_empty());
}
