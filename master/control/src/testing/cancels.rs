//! Cancels that meet a job at every moment, one that obeys nothing, and nodes that are gone; and
//! what is left of a job that is not remembered any more.

use model::client::{Change, ErrorKind};
use model::reason::PhaseName;
use model::{Finish, JobId, JobSpec, OnDisconnect, Shape};

use super::{World, job, n, settings};
use crate::Settings;

fn long(name: &str) -> JobSpec {
    let mut spec = job(name);
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    spec
}

fn small(name: &str) -> JobSpec {
    let mut spec = long(name);
    (spec.workers.max, spec.servers.max) = (1, 1);
    spec
}

fn cancel(world: &mut World, job: JobId, now: bool) {
    let reply = world.change(Change::Cancel { job, now });
    assert!(reply.is_ok(), "{reply:?}");
}

/// Cancels a copy of the world at this moment.
#[track_caller]
fn ends_at_once(world: &World, id: JobId) {
    let mut world = world.clone();
    if world.phase(id).is_final() {
        let refused = world.change(Change::Cancel { job: id, now: true }).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Conflict);
        return;
    }
    let what = format!("{} at {} ends", world.phase(id).name(), world.now.0);
    cancel(&mut world, id, true);
    world.until(4, &what, |world| world.phase(id) == PhaseName::Cancelled);
    assert_eq!(world.alive(id), 0);
}

#[test]
fn a_cancel_that_waits_for_nothing_works_at_any_moment() {
    let mut world = World::new(2, 8);
    let id = world.submit(long("any"));
    let mut seen = std::collections::BTreeSet::new();
    let mut live = |world: &mut World, seconds: u64| {
        for _ in 0..seconds * 4 {
            world.tick();
            seen.insert(world.phase(id));
            ends_at_once(world, id);
        }
    };
    live(&mut world, 12);
    world.until(60, "it was measured", |world| world.phase(id) == PhaseName::Running);
    world.pin(id, Shape::new(1, 2));
    live(&mut world, 15);
    assert!(world.change(Change::Pause { job: id }).is_ok());
    live(&mut world, 10);
    world.until_phase(id, PhaseName::Paused, 60);
    live(&mut world, 1);
    assert!(world.change(Change::Resume { job: id }).is_ok());
    live(&mut world, 5);
    world.until(60, "it trains again", |world| world.phase(id) == PhaseName::Running);
    cancel(&mut world, id, false);
    live(&mut world, 10);
    world.until_phase(id, PhaseName::Cancelled, 60);
    live(&mut world, 1);
    for phase in [
        PhaseName::Queued,
        PhaseName::Profiling,
        PhaseName::Starting,
        PhaseName::Running,
        PhaseName::Rescaling,
        PhaseName::Paused,
        PhaseName::Stopping,
        PhaseName::Cancelled,
    ] {
        assert!(seen.contains(&phase), "it was never {}: {seen:?}", phase.name());
    }
}

#[test]
fn a_job_that_ignores_its_last_checkpoint_is_waited_for_and_then_ended() {
    let mut world = World::new(2, 8);
    let id = world.running(long("deaf"), Shape::new(1, 2));
    let generation = world.row(id).generation.unwrap();
    world.trainings.get_mut(&(id, generation)).unwrap().stuck = true;
    cancel(&mut world, id, false);
    world.run(20);
    assert!(!world.phase(id).is_final(), "it still has time");
    assert!(world.row(id).reason.contains("CANCELLED"), "{}", world.row(id).reason);
    ends_at_once(&world, id);
    world.until_phase(id, PhaseName::Cancelled, 60);
    assert!(world.row(id).reason.contains("no last checkpoint"), "{}", world.row(id).reason);
}

#[test]
fn a_cancel_leaves_stopping_though_agent_or_node_is_gone() {
    for rule in [OnDisconnect::Keep, OnDisconnect::Stop, OnDisconnect::Replace] {
        for (powered, before) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut world = World::new(3, 4);
            let id =
                world.running(JobSpec { on_disconnect: rule, ..long("met") }, Shape::new(1, 4));
            let away = world.detail(id).placement.0.last().expect("it has a place").node.clone();
            if !before {
                cancel(&mut world, id, false);
                world.tick();
            }
            if powered {
                let agent = world.agents.get_mut(&away).unwrap();
                (agent.agent_runs, agent.session) = (false, None);
            } else {
                world.power_off(&away);
            }
            if before {
                world.run(2);
                cancel(&mut world, id, true);
            }
            // What is DOWN is not waited for, whatever a checkpoint may take.
            world.until_phase(id, PhaseName::Cancelled, 75);
            if powered {
                let agent = world.agents.get_mut(&away).unwrap();
                agent.agent_runs = true;
                agent.incarnation = agent.incarnation.next();
            } else {
                world.reboot(&away);
            }
            world.run(10);
            let what = format!("{rule:?}, {powered}, {before}");
            assert_eq!(world.alive(id), 0, "fenced on return: {what}");
            assert_eq!(world.phase(id), PhaseName::Cancelled, "{what}");
            assert!(world.node_row(&away).used.is_zero(), "{what}");
        }
    }
}

#[test]
fn what_an_agent_holds_of_a_forgotten_job_is_stopped_and_its_room_given_on() {
    let mut world = World::with(Settings { jobs_finished_kept: 1, ..settings() }, 2, 4);
    world.run(2);
    let id = world.running(long("forgotten"), Shape::new(1, 3));
    let node = world.node_of(id, model::Task::worker(0));
    let here = world.detail(id).placement.tasks_on(&node).len();
    world.cut(&node);
    cancel(&mut world, id, true);
    world.until_phase(id, PhaseName::Cancelled, 120);
    assert!(world.agents[&node].running().count() >= here, "its agent was not told");
    // Others end, so that nothing of it is remembered.
    for number in 0..2 {
        let other = world.submit(small(&format!("other {number}")));
        cancel(&mut world, other, true);
        world.until(5, "it ends", |world| {
            world.control.jobs.get(&other).is_none_or(|job| job.phase().is_final())
        });
    }
    assert!(!world.control.jobs.contains_key(&id), "it is remembered");
    world.heal(&node);
    world.until(10, "unknown means stop", |world| world.agents[&node].ledger.is_empty());
    let mut whole = small("whole");
    whole.worker.cpus_milli = 3_500;
    let jobs = [world.submit(whole.clone()), world.submit(whole)];
    world.until(60, "both nodes are used whole", |world| {
        jobs.iter().all(|job| world.row(*job).step > 0)
    });
}

#[test]
fn a_server_that_takes_long_to_die_keeps_its_port() {
    let mut world = World::new(2, 8);
    let id = world.running(long("slow"), Shape::new(1, 2));
    let port = |world: &World| {
        let mut sets = world.agents.values().flat_map(|agent| &agent.desired.generations);
        sets.find(|wanted| wanted.job == id).map(|wanted| wanted.launch.root_port)
    };
    let (before, generation) = (port(&world), world.row(id).generation);
    for agent in world.agents.values_mut() {
        agent.exit_ms = 30_000;
    }
    world.pin(id, Shape::new(2, 2));
    world.until(30, "its tasks are told to go", |world| world.row(id).reason.contains("to go out"));
    // Another one comes meanwhile, on whichever host.
    let second = world.submit(small("second"));
    world.until(25, "the second starts", |world| world.alive(second) > 0);
    assert!(world.alive(id) > 0, "the first is still going");
    let held = world.control.ports.values().flat_map(|ports| ports.held.keys());
    let held: Vec<u16> = held.copied().collect();
    assert!(before.is_some_and(|port| held.contains(&port)), "{before:?} of {held:?}");
    world.until(90, "the first has moved", |world| {
        world.row(id).generation > generation && world.phase(id) == PhaseName::Running
    });
    assert_ne!(port(&world), before);
}

#[test]
fn a_job_that_finds_no_port_waits_in_words_and_starts_when_one_is_free() {
    let mut world = World::with(Settings { root_ports: (20_000, 20_000), ..settings() }, 1, 8);
    let first = world.running(small("first"), Shape::new(1, 1));
    let second = world.submit(small("second"));
    world.run(90);
    assert_eq!(world.phase(second), PhaseName::Queued);
    let reason = world.row(second).reason;
    assert!(reason.contains("limits.root_ports"), "{reason}");
    let told = world.control.events.values().filter(|event| event.job == Some(second)).count();
    assert!(told < 20, "{told} events for one that waits");
    cancel(&mut world, first, true);
    world.until(60, "the second trains", |world| world.row(second).step > 0);
    assert_eq!(world.node_of(second, model::Task::SCHEDULER), n(1));
}
