//! Cordons and drains: jobs leave by checkpoint, or wait; nothing comes back before an operator
//! says so.

use model::client::{Answer, Change, ErrorKind, Read};
use model::nodes::NodeMore;
use model::reason::{PhaseName, Schedulability};
use model::view::NodeRow;
use model::{Finish, JobId, JobSpec, NodeId, OnDisconnect, Shape, Task};

use super::{World, clocks, job, n};
use crate::{Event, RequestKey};

fn long(name: &str) -> JobSpec {
    let mut spec = job(name);
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    spec
}

impl World {
    #[track_caller]
    pub(crate) fn drain(&mut self, node: &NodeId, deadline_ms: Option<u64>) {
        let reply = self.change(Change::NodeDrain { node: node.clone(), deadline_ms });
        assert!(reply.is_ok(), "{reply:?}");
    }

    #[track_caller]
    pub(crate) fn undrain(&mut self, node: &NodeId) {
        let reply = self.change(Change::NodeUndrain { node: node.clone() });
        assert!(reply.is_ok(), "{reply:?}");
    }

    #[track_caller]
    pub(crate) fn cordon(&mut self, node: &NodeId) {
        let reply = self.change(Change::NodeCordon { node: node.clone() });
        assert!(reply.is_ok(), "{reply:?}");
    }

    pub(crate) fn node_row(&self, node: &NodeId) -> NodeRow {
        self.control.node_row(clocks(self.now), &self.control.nodes[node])
    }

    pub(crate) fn node_more(&self, node: &NodeId) -> NodeMore {
        match self.read(&Read::NodeMore { node: node.clone() }) {
            Ok(Answer::NodeMore(more)) => *more,
            other => panic!("no more of {node}: {other:?}"),
        }
    }

    pub(crate) fn state(&self, node: &NodeId) -> Schedulability {
        self.node_row(node).schedulability
    }

    pub(crate) fn stands_on(&self, job: JobId, node: &NodeId) -> bool {
        let lives = self.control.job(job).placement();
        lives.0.iter().any(|share| share.node == *node)
    }

    pub(crate) fn events_tell(&self, words: &str) -> bool {
        self.control.events.values().any(|event| event.text.contains(words))
    }
}

/// A job that trains on one of some nodes, and the node that has its PS scheduler.
fn running_on(world: &mut World, name: &str, shape: Shape) -> (JobId, NodeId) {
    let id = world.running(long(name), shape);
    let node = world.node_of(id, Task::SCHEDULER);
    (id, node)
}

#[test]
fn jobs_leave_a_drained_node_by_checkpoint() {
    let mut world = World::new(3, 4);
    let (id, node) = running_on(&mut world, "moves", Shape::new(1, 2));
    let (before, step) = (world.row(id), world.row(id).step);
    world.drain(&node, None);
    assert_eq!(world.state(&node), Schedulability::Draining);
    let view = world.node_more(&node).drain.expect("it drains");
    assert!(view.tasks_before > 0 && view.tasks_left == view.tasks_before, "{view:?}");
    assert_eq!(view.jobs.len(), 1, "{view:?}");
    world.until(60, "it is empty", |world| world.state(&node) == Schedulability::Drained);
    world.until(30, "it trains elsewhere", |world| {
        world.phase(id) == PhaseName::Running && !world.stands_on(id, &node)
    });
    let after = world.row(id);
    assert!(after.step >= step, "nothing was lost: {after:?}");
    assert_eq!(after.shape, Shape::new(1, 2), "a pinned job keeps its shape");
    assert_eq!(after.restarts, before.restarts, "that is no fault");
    assert!(world.detail(id).faults.is_empty());
    let last = world.detail(id).decisions.pop().unwrap();
    assert!(last.reason.contains(&format!("{node} is draining")), "{last:?}");
    assert!(world.events_tell(&format!("{node} is DRAINED")));
    assert_eq!(world.agents[&node].running().count(), 0);
    let row = world.node_row(&node);
    assert!(row.reason.contains("a test (ada)"), "{row:?}");
    assert!(world.findings.is_empty(), "{:?}", world.findings);
}

#[test]
fn a_drained_node_stays_so_over_restarts_of_everything() {
    let mut world = World::new(2, 8);
    let (id, node) = running_on(&mut world, "stays away", Shape::new(1, 2));
    world.drain(&node, None);
    world.until(60, "it is empty", |world| world.state(&node) == Schedulability::Drained);
    world.restart_master();
    world.run(40);
    assert_eq!(world.state(&node), Schedulability::Drained);
    world.restart_agent(&node);
    world.run(5);
    world.reboot(&node);
    world.run(5);
    assert_eq!(world.state(&node), Schedulability::Drained);
    let others: Vec<JobId> = (0..3).map(|_| world.submit(long("comes later"))).collect();
    world.run(90);
    for other in &others {
        assert!(!world.stands_on(*other, &node), "{other} was placed on a drained node");
    }
    world.undrain(&node);
    assert_eq!(world.state(&node), Schedulability::Open);
    world.restart_master();
    world.run(30);
    assert_eq!(world.state(&node), Schedulability::Open, "also over a restart");
    world.until(180, "it is used again", |world| {
        others.iter().chain([&id]).any(|job| world.stands_on(*job, &node))
    });
}

#[test]
fn a_drain_that_the_master_forgets_in_between_goes_on() {
    let mut world = World::new(2, 8);
    let (id, node) = running_on(&mut world, "on its way", Shape::new(1, 2));
    world.saves_fail = true;
    world.drain(&node, None);
    world.run(20);
    assert_eq!(world.state(&node), Schedulability::Draining);
    world.restart_master();
    world.run(30);
    assert_eq!(world.state(&node), Schedulability::Draining);
    world.saves_fail = false;
    world.until(120, "it is empty", |world| world.state(&node) == Schedulability::Drained);
    world.until_phase(id, PhaseName::Running, 60);
}

#[test]
fn the_only_node_is_drained_and_its_job_waits_and_resumes() {
    let mut world = World::new(1, 8);
    let mut spec = job("waits");
    spec.finish = Finish::Epochs(30);
    let id = world.submit(spec);
    world.until(120, "some epochs", |world| world.row(id).epoch >= 3);
    let step = world.row(id).step;
    world.drain(&n(1), None);
    world.until(60, "it is empty", |world| world.state(&n(1)) == Schedulability::Drained);
    world.until_phase(id, PhaseName::Queued, 10);
    let reason = world.row(id).reason;
    assert!(reason.contains("n1 is draining; no room for its least shape"), "{reason}");
    world.run(120);
    let row = world.row(id);
    assert_eq!(row.phase, PhaseName::Queued, "{row:?}");
    assert!(row.reason.contains("n1 is DRAINED"), "{row:?}");
    assert!(world.detail(id).faults.is_empty());
    world.undrain(&n(1));
    world.until_phase(id, PhaseName::Completed, 400);
    let row = world.row(id);
    assert!(row.step == 1200 && row.restarts == 0 && step > 0, "{row:?}");
}

#[test]
fn a_cordoned_node_gets_no_task_and_what_runs_there_stays() {
    let mut world = World::new(2, 8);
    let (id, node) = running_on(&mut world, "stays", Shape::new(1, 2));
    let generation = world.row(id).generation;
    world.cordon(&node);
    let others: Vec<JobId> = (0..2).map(|_| world.submit(long("other"))).collect();
    world.until(120, "they run", |world| others.iter().all(|job| world.row(*job).step > 10));
    assert!(others.iter().all(|job| !world.stands_on(*job, &node)));
    assert_eq!(world.row(id).generation, generation, "it was not touched");
    // Growth goes elsewhere, with all its tasks: also the old ones would be started anew.
    for other in others {
        let _ = world.change(Change::Cancel { job: other, now: true });
    }
    world.run(10);
    world.pin(id, Shape::new(1, 4));
    world.until(90, "it grew", |world| {
        world.row(id).shape == Shape::new(1, 4) && world.phase(id) == PhaseName::Running
    });
    assert!(!world.stands_on(id, &node));
    assert_eq!(world.state(&node), Schedulability::Cordoned);
    assert!(world.findings.is_empty(), "{:?}", world.findings);
}

#[test]
fn at_the_deadline_what_is_left_is_stopped_and_resumes_from_its_last_checkpoint() {
    let mut world = World::new(2, 8);
    let (id, node) = running_on(&mut world, "stubborn", Shape::new(1, 2));
    world.until(90, "a checkpoint", |world| !world.detail(id).checkpoints.is_empty());
    world.saves_fail = true;
    world.drain(&node, Some(45_000));
    world.run(35);
    assert_eq!(world.state(&node), Schedulability::Draining);
    let words = world.node_more(&node).drain.unwrap().jobs.remove(0).1;
    assert!(words.contains("failed") || words.contains("checkpoint"), "{words}");
    world.until(30, "it is empty", |world| world.state(&node) == Schedulability::Drained);
    assert!(world.events_tell("without a checkpoint, as the drain's time is over"));
    world.saves_fail = false;
    world.until(60, "it is back", |world| {
        world.phase(id) == PhaseName::Running && !world.stands_on(id, &node)
    });
    let detail = world.detail(id);
    assert!(detail.faults.is_empty() && detail.row.restarts == 0, "{:?}", detail.faults);
    assert!(detail.row.step > 0, "it did not begin anew");
}

#[test]
fn a_job_that_starts_is_stopped_at_once() {
    let mut world = World::new(2, 8);
    world.hang_at_start = true;
    let id = world.submit(long("starts"));
    world.until(20, "it starts", |world| world.control.job(id).life().is_some());
    let node = world.node_of(id, Task::SCHEDULER);
    world.hang_at_start = false;
    world.drain(&node, None);
    world.until(20, "it is empty", |world| world.state(&node) == Schedulability::Drained);
    world.until(30, "it trains elsewhere", |world| world.row(id).step > 5);
    assert!(!world.stands_on(id, &node));
    assert!(world.detail(id).faults.is_empty());
}

#[test]
fn a_silent_node_is_drained_once_it_is_back() {
    let mut world = World::new(2, 8);
    let mut spec = long("keeps");
    spec.on_disconnect = OnDisconnect::Keep;
    let id = world.running(spec, Shape::new(1, 2));
    let node = world.node_of(id, Task::SCHEDULER);
    world.cut(&node);
    world.run(90);
    world.drain(&node, None);
    world.run(30);
    assert_eq!(world.state(&node), Schedulability::Draining);
    let words = world.node_more(&node).drain.unwrap().jobs.remove(0).1;
    assert!(words.contains("silent"), "{words}");
    world.heal(&node);
    world.until(60, "it is empty", |world| world.state(&node) == Schedulability::Drained);
    world.until_phase(id, PhaseName::Running, 30);
    assert!(!world.stands_on(id, &node) && world.detail(id).faults.is_empty());
}

#[test]
fn a_job_that_is_being_measured_moves_too() {
    let mut world = World::new(2, 8);
    let id = world.submit(long("measured"));
    world.until_phase(id, PhaseName::Profiling, 20);
    world.until(20, "its first steps", |world| world.row(id).step > 3);
    let node = world.node_of(id, Task::SCHEDULER);
    world.drain(&node, None);
    world.until(60, "it is empty", |world| world.state(&node) == Schedulability::Drained);
    world.until_phase(id, PhaseName::Running, 120);
    assert!(!world.stands_on(id, &node) && world.detail(id).faults.is_empty());
}

#[test]
fn what_an_operator_says_of_nodes_is_checked() {
    let mut world = World::new(2, 8);
    let (id, node) = running_on(&mut world, "there", Shape::new(1, 2));
    let kind = |reply: model::client::Reply| reply.expect_err("it is refused").kind;
    for change in [
        Change::NodeCordon { node: n(9) },
        Change::NodeUndrain { node: n(9) },
        Change::NodeDrain { node: n(9), deadline_ms: None },
    ] {
        assert_eq!(kind(world.change(change)), ErrorKind::NotFound);
    }
    let late = Change::NodeDrain { node: node.clone(), deadline_ms: Some(u64::MAX) };
    assert_eq!(kind(world.change(late)), ErrorKind::Invalid);
    let change = Box::new(Change::NodeDrain { node: node.clone(), deadline_ms: None });
    for reason in [None, Some("  \n".to_owned())] {
        let (request, user) = (RequestKey(u64::MAX), "ada".to_owned());
        let change = change.clone();
        world.event(Event::Change {
            request,
            user,
            rank: model::access::Rank::Operator,
            dry_run: false,
            reason,
            change,
        });
        let reply = world.replies.remove(&u64::MAX).unwrap();
        assert_eq!(kind(reply), ErrorKind::Invalid, "a drain needs a reason");
    }
    let note = |reply| match reply {
        Ok(Answer::Accepted { note, .. }) => note,
        other => panic!("{other:?}"),
    };
    let dry = note(world.change_as(*change, true));
    assert!(dry.contains("dry run") && dry.contains("1 jobs"), "{dry}");
    assert_eq!(world.state(&node), Schedulability::Open);
    world.cordon(&node);
    let again = note(world.change(Change::NodeCordon { node: node.clone() }));
    assert!(again.contains("already"), "{again}");
    world.undrain(&node);
    let again = note(world.change(Change::NodeUndrain { node: node.clone() }));
    assert!(again.contains("already"), "{again}");
    world.run(20);
    assert!(world.stands_on(id, &node), "nothing moved");
}

#[test]
fn an_undrain_in_between_leaves_jobs_where_they_are() {
    let mut world = World::new(2, 8);
    let (id, node) = running_on(&mut world, "hesitates", Shape::new(1, 2));
    world.saves_fail = true;
    world.drain(&node, Some(600_000));
    world.run(20);
    world.undrain(&node);
    world.saves_fail = false;
    let generation = world.row(id).generation;
    world.run(60);
    assert_eq!(world.state(&node), Schedulability::Open);
    assert_eq!(world.row(id).generation, generation, "no job moved");
    assert_eq!(world.phase(id), PhaseName::Running);
}
