//! Masters and agents that start again in any order, and two masters with one state.

use model::client::{Change, ErrorKind};
use model::nodes::{Finding, Severity};
use model::reason::{PhaseName, Reachability};
use model::{Finish, JobSpec, OnDisconnect, Shape, UnixMs};

use super::{World, job, n};
use crate::record::Meta;
use crate::{Key, Record};

fn long(on_disconnect: OnDisconnect) -> JobSpec {
    let mut spec = job("long");
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    spec.on_disconnect = on_disconnect;
    spec.checkpoint_interval_s = 10;
    spec
}

/// Every order of these.
fn orders(of: &[u32]) -> Vec<Vec<u32>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for first in of {
        let rest: Vec<u32> = of.iter().copied().filter(|other| other != first).collect();
        for mut order in orders(&rest) {
            order.insert(0, *first);
            all.push(order);
        }
    }
    all
}

/// The master is 0, the nodes are 1 to 3.
fn all_start_again(world: &World, order: &[u32], boots: bool, apart_ms: u64) -> World {
    let mut world = world.clone();
    for node in 1..=3 {
        if boots {
            world.power_off(&n(node));
        } else {
            world.agents.get_mut(&n(node)).unwrap().agent_runs = false;
            world.agents.get_mut(&n(node)).unwrap().session = None;
        }
    }
    // Nothing is heard until the master's own turn comes.
    let mut waiting = Vec::new();
    let mut master = false;
    for who in order {
        match who {
            0 => {
                world.restart_master();
                master = true;
                for node in waiting.drain(..) {
                    world.agents.get_mut(&n(node)).unwrap().hears = true;
                }
            }
            node => {
                let id = n(*node);
                if boots {
                    world.reboot(&id);
                } else {
                    world.restart_agent(&id);
                    world.agents.get_mut(&id).unwrap().agent_runs = true;
                }
                if !master {
                    world.agents.get_mut(&id).unwrap().hears = false;
                    waiting.push(*node);
                }
            }
        }
        if master {
            world.run(apart_ms / 1000);
        }
    }
    world
}

#[test]
fn whoever_starts_first_after_a_blackout_all_jobs_go_on() {
    let mut world = World::new(3, 4);
    let ids = [
        world.running(long(OnDisconnect::Keep), Shape::new(1, 4)),
        world.running(long(OnDisconnect::Replace), Shape::new(1, 1)),
    ];
    world.until(60, "both train and save", |world| {
        ids.iter().all(|id| !world.detail(*id).checkpoints.is_empty())
    });
    for order in orders(&[0, 1, 2, 3]) {
        for boots in [false, true] {
            for apart_ms in [0, 7_000] {
                let mut again = all_start_again(&world, &order, boots, apart_ms);
                let what = format!("all to train in order {order:?}, boots {boots}, {apart_ms} ms");
                let before: Vec<u64> = ids.iter().map(|id| world.row(*id).step).collect();
                again.until(240, &what, |world| {
                    ids.iter().zip(&before).all(|(id, before)| {
                        let row = world.row(*id);
                        row.phase == PhaseName::Running && row.step > before + 20
                    })
                });
                let same =
                    ids.iter().all(|id| again.row(*id).generation == world.row(*id).generation);
                // Where only agents started again, their tasks never noticed.
                assert!(boots || same, "{order:?} {apart_ms}");
            }
        }
    }
}

/// Another master starts from a copy of the store, as `optimus snapshot restore` makes it.
fn promote(world: &mut World, now: UnixMs) {
    let Some(Record::MetaV1(meta)) = world.store.get(&Key::Meta) else { panic!("no counters") };
    let meta = Record::MetaV1(meta.succeeding(now));
    world.store.insert(Key::Meta, meta);
    world.restart_master();
}

/// Agents reach one master or the other, as an address moves.
fn swap_masters(world: &mut World, other: &mut World) {
    std::mem::swap(&mut world.control, &mut other.control);
    std::mem::swap(&mut world.store, &mut other.store);
    for agent in world.agents.values_mut() {
        agent.session = None;
    }
}

#[test]
fn a_master_whose_place_was_taken_starts_nothing_and_says_so() {
    for starts_again in [false, true] {
        let mut world = World::new(3, 4);
        let id = world.running(long(OnDisconnect::Replace), Shape::new(1, 4));
        world.until(60, "a checkpoint", |world| !world.detail(id).checkpoints.is_empty());
        // The old one is suspended here, and a copy of its store promoted.
        let mut old = world.clone();
        let unix = super::clocks(world.now).unix;
        promote(&mut world, unix);
        world.run(5);
        world.pin(id, Shape::new(1, 2));
        world.until(60, "the new one decides", |world| {
            world.row(id).shape == Shape::new(1, 2) && world.phase(id) == PhaseName::Running
        });
        let generation = world.row(id).generation;

        swap_masters(&mut world, &mut old);
        if starts_again {
            // By a service manager, say, which counts one life more.
            world.restart_master();
        }
        let step = old.control.job(id).progress().step;
        world.run(120);
        let alert = world.control.status(super::clocks(world.now)).alerts.join("; ");
        assert!(alert.contains("another master works with this cluster's state"), "{alert}");
        let told = world.control.findings(super::clocks(world.now));
        let fault = |one: &Finding| one.subject == "master" && one.severity == Severity::Fault;
        assert!(told.iter().any(fault), "{told:?}");
        let refused = world.change(Change::Cancel { job: id, now: true }).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Conflict, "{refused:?}");
        let submitted = world.change(Change::Submit { spec: job("late"), request_id: None });
        assert!(submitted.is_err(), "{submitted:?}");
        let held = world.agents.values().flat_map(super::agent::Agent::running);
        let held: Vec<_> = held.map(|(_, held, _)| Some(held)).collect();
        assert_eq!(held, vec![generation; 4], "every task of the new master's lives, and no other");

        swap_masters(&mut world, &mut old);
        world.until(30, "the new one goes on", |world| world.row(id).step > step + 20);
        assert_eq!(world.row(id).generation, generation);
        assert!(world.control.status(super::clocks(world.now)).alerts.is_empty());
    }
}

#[test]
fn an_old_snapshot_is_obeyed_and_what_it_does_not_know_is_stopped() {
    let mut world = World::new(2, 4);
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 4));
    world.until(60, "a checkpoint", |world| !world.detail(id).checkpoints.is_empty());
    let snapshot = world.store.clone();
    // Storage keeps what the copy may start from.
    let (saved, published) = (world.saved.clone(), world.published.clone());
    // The master that is lost later starts many times since, and the job moves twice.
    for shape in [Shape::new(1, 2), Shape::new(1, 3)] {
        world.restart_master();
        world.run(10);
        world.pin(id, shape);
        world.until(90, "it moved", |world| {
            world.row(id).shape == shape && world.phase(id) == PhaseName::Running
        });
    }
    let later = world.submit(long(OnDisconnect::Keep));
    world.until(60, "another one", |world| world.alive(later) > 0);
    world.store = snapshot;
    let unix = super::clocks(world.now).unix;
    promote(&mut world, unix);
    world.saved.extend(saved);
    world.published.extend(published);
    // Numbers of generations come again: what trained under them is none of the new ones' matter.
    world.run(1);
    world.trainings.clear();
    world.run(20);
    let step = world.row(id).step;
    world.until(120, "it trains again", |world| {
        world.phase(id) == PhaseName::Running && world.row(id).step > step + 20
    });
    assert_eq!(world.alive(later), 0, "unknown means stop");
    let record = &world.control.job(id).record;
    assert!(!record.faults.is_empty() && record.failures_in_row == 0, "{:?}", record.faults);
    for node in [n(1), n(2)] {
        assert_eq!(world.node_row(&node).reachability, Reachability::Up);
    }
}

#[test]
fn a_store_that_begins_anew_counts_on_from_the_clock() {
    let at = |s: u64| UnixMs((1_577_836_800 + s) * 1000);
    let meta = Meta { starts: 3, jobs: 12, ..Meta::default() };
    assert_eq!(meta.succeeding(at(5)), Meta { starts: 5, ..meta });
    assert_eq!(meta.succeeding(at(2)), meta);
    assert_eq!(meta.succeeding(UnixMs(0)), meta);
    assert!(meta.succeeding(UnixMs(u64::MAX)).starts < 1 << 31, "lives are left");
    // A master whose disk is lost, without any snapshot: agents obey it, and stop everything.
    let mut world = World::new(1, 4);
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 2));
    world.restart_master();
    world.run(10);
    world.store.clear();
    world.restart_master();
    world.until(30, "nothing is left", |world| world.agents[&n(1)].running().next().is_none());
    let again = world.submit(long(OnDisconnect::Keep));
    assert_eq!(again, id, "it counts jobs anew");
    world.until(60, "it trains", |world| world.row(again).step > 3);
}

#[test]
fn an_agent_of_another_cluster_is_refused_and_holds_nothing_up() {
    let mut world = World::new(2, 4);
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 2));
    let mut other = super::agent::Agent::new(model::Resources::new(4000, 1 << 30, 0), 9);
    other.desired.revision = model::Revision(u64::MAX >> 1);
    world.agents.insert(n(9), other);
    let refusals = |world: &World| world.control.refused.get("introduction refused").copied();
    world.until(10, "it is refused", |world| refusals(world) > Some(0));
    assert!(world.control.status(super::clocks(world.now)).alerts.is_empty());
    let step = world.row(id).step;
    world.pin(id, Shape::new(1, 3));
    world.until(90, "work goes on", |world| {
        world.row(id).shape == Shape::new(1, 3) && world.row(id).step > step
    });
}
