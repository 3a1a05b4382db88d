//! Stories of trouble: processes, nodes, networks and disks that fail.

use model::client::{Answer, Change, ErrorKind, Read};
use model::reason::{PhaseName, Reachability};
use model::{Finish, JobId, NodeId, OnDisconnect, Shape, Task};

use super::{World, job, n, settings};

fn long(on_disconnect: OnDisconnect) -> model::JobSpec {
    let mut spec = job("long");
    spec.epochs_max = 200;
    spec.finish = Finish::Epochs(200);
    spec.on_disconnect = on_disconnect;
    spec.checkpoint_interval_s = 10;
    spec
}

fn reach(world: &World, node: &NodeId) -> Reachability {
    let Ok(Answer::Node(detail)) = world.read(&Read::Node { node: node.clone() }) else {
        panic!("no {node}")
    };
    detail.row.reachability
}

/// A job spread over both nodes, with a checkpoint behind it.
fn spread(world: &mut World, on_disconnect: OnDisconnect) -> (JobId, NodeId) {
    let id = world.running(long(on_disconnect), Shape::new(1, 4));
    world.until(40, "a checkpoint", |world| !world.detail(id).checkpoints.is_empty());
    let placement = world.detail(id).placement;
    assert_eq!(placement.0.len(), 2, "{placement:?}");
    let other = placement.0.iter().find(|share| share.servers == 0).unwrap().node.clone();
    (id, other)
}

#[test]
fn a_task_that_ran_out_of_memory_is_named_with_peak_and_limit() {
    let mut world = World::new(2, 4);
    let (id, node) = spread(&mut world, OnDisconnect::Keep);
    let words = "OUT_OF_MEMORY: peak 2048 MiB of limit 2048 MiB; ask for more memory in [worker]";
    let task = world.detail(id).placement.tasks_on(&node).into_iter().next().unwrap();
    world.exit(id, task, 137, words);
    world.until(5, "back-off", |world| world.row(id).reason.contains("RESTARTING (1 of 5"));
    assert!(world.row(id).reason.contains(words), "{}", world.row(id).reason);
    world.until_phase(id, PhaseName::Running, 60);
    let cause = world.detail(id).faults.last().unwrap().cause.clone();
    assert!(cause.contains(words) && cause.contains(node.as_str()), "{cause}");
}

#[test]
fn any_process_that_dies_brings_the_job_back_from_its_checkpoint() {
    for task in [Task::worker(0), Task::server(0), Task::SCHEDULER] {
        let mut world = World::new(2, 4);
        let (id, _) = spread(&mut world, OnDisconnect::Keep);
        let before = world.row(id).generation;
        world.exit(id, task, 1, "ValueError: boom");
        world.until(5, "back-off", |world| world.row(id).reason.contains("RESTARTING (1 of 5"));
        assert!(world.row(id).reason.contains("boom"), "{}", world.row(id).reason);
        world.until_phase(id, PhaseName::Running, 60);
        let detail = world.detail(id);
        assert!(detail.row.generation > before);
        let fault = detail.faults.last().unwrap();
        assert!(fault.cause.contains("boom") && fault.resumed_from.unwrap() > 0);
        assert!(fault.lost_s.unwrap() < 30.0);
        assert_eq!(detail.row.restarts, 1);
    }
}

#[test]
fn back_off_doubles_and_a_job_that_never_gets_on_fails_with_the_cause() {
    let mut world = World::new(1, 8);
    let mut spec = long(OnDisconnect::Keep);
    spec.restarts_max = 3;
    let id = world.submit(spec);
    let mut began = Vec::new();
    for _ in 0..4 {
        world.until(120, "it steps", |world| world.alive(id) > 0 && world.row(id).step > 0);
        began.push(world.now.0);
        world.exit(id, Task::worker(0), 1, "cannot import name train");
        world.until(10, "it is out", |world| world.alive(id) == 0);
    }
    world.until_phase(id, PhaseName::Failed, 10);
    assert!(world.row(id).reason.contains("cannot import name train"));
    let gaps: Vec<u64> = began.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps[1] > gaps[0] && gaps[2] > gaps[1], "{gaps:?}");
}

#[test]
fn a_busy_port_is_no_fault_of_the_job() {
    let mut world = World::new(1, 8);
    let id = world.submit(long(OnDisconnect::Keep));
    let mut ports = Vec::new();
    for _ in 0..2 {
        world.until(60, "it starts", |world| world.alive(id) > 0);
        let agent = world.agents.values().next().unwrap();
        ports.push(agent.desired.generations[0].launch.root_port);
        world.exit(id, Task::SCHEDULER, 1, "bind failed: root port in use");
        world.until(10, "it is out", |world| world.alive(id) == 0);
    }
    world.until(60, "it runs", |world| world.row(id).step > 3);
    ports.push(world.agents.values().next().unwrap().desired.generations[0].launch.root_port);
    assert!(ports[0] < ports[1] && ports[1] < ports[2], "{ports:?}");
    assert_eq!(world.control.job(id).record.failures_in_row, 0);
}

#[test]
fn a_hung_job_and_one_that_never_starts_are_found() {
    let mut world = World::new(1, 8);
    let id = world.submit(long(OnDisconnect::Keep));
    world.until(60, "it runs", |world| world.row(id).step > 3);
    let generation = world.row(id).generation.unwrap();
    world.trainings.get_mut(&(id, generation)).unwrap().stuck = true;
    world.until(120, "the stall is found", |world| {
        world.detail(id).faults.iter().any(|fault| fault.cause.contains("no worker made a step"))
    });
    // The next life hangs before its first step.
    world.hang_at_start = true;
    world.until(100, "the late start is found", |world| {
        world.detail(id).faults.iter().any(|fault| fault.cause.contains("no first step within"))
    });
    world.hang_at_start = false;
    world.until(60, "it runs again", |world| world.row(id).step > 20);
}

#[test]
fn a_damaged_checkpoint_gives_way_to_the_one_before() {
    let mut world = World::new(1, 8);
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 2));
    world.until(60, "two checkpoints", |world| world.detail(id).checkpoints.len() == 2);
    let kept = world.detail(id).checkpoints;
    let newest = world.published.iter().next_back().unwrap().clone();
    world.damaged.insert(newest);
    world.exit(id, Task::worker(1), 1, "boom");
    world.until_phase(id, PhaseName::Queued, 10);
    world.until_phase(id, PhaseName::Running, 90);
    let resumed = world.detail(id).faults.last().unwrap().resumed_from;
    assert_eq!(resumed, Some(kept[0].step));
    assert!(world.row(id).step >= kept[0].step);
}

#[test]
fn a_silent_node_is_suspect_then_down_and_a_kept_job_goes_on_when_it_returns() {
    let mut world = World::new(2, 4);
    let (id, node) = spread(&mut world, OnDisconnect::Keep);
    let generation = world.row(id).generation;
    world.cut(&node);
    world.until(15, "SUSPECT", |world| reach(world, &node) == Reachability::Suspect);
    world.until(60, "DOWN", |world| reach(world, &node) == Reachability::Down);
    world.run(120);
    assert_eq!(world.phase(id), PhaseName::Running);
    assert!(world.row(id).reason.contains("silent for"), "{}", world.row(id).reason);
    world.heal(&node);
    world.until(5, "UP", |world| reach(world, &node) == Reachability::Up);
    let step = world.row(id).step;
    world.until(20, "it trains on", |world| world.row(id).step > step + 10);
    assert_eq!(world.row(id).generation, generation, "nothing was restarted");
}

#[test]
fn a_stopped_job_waits_for_its_node_and_a_replaced_one_does_not() {
    let mut world = World::new(2, 4);
    let (id, node) = spread(&mut world, OnDisconnect::Stop);
    world.cut(&node);
    world.until(80, "it is being stopped", |world| world.phase(id) == PhaseName::Stopping);
    world.run(60);
    assert_eq!(world.phase(id), PhaseName::Stopping, "{}", world.row(id).reason);
    world.heal(&node);
    world.until_phase(id, PhaseName::Running, 60);
    assert_eq!(world.control.job(id).record.failures_in_row, 0, "not the job's fault");

    let mut world = World::new(3, 4);
    let (id, node) = spread(&mut world, OnDisconnect::Replace);
    world.cut(&node);
    world.until(80, "it left the node", |world| {
        world.phase(id) == PhaseName::Queued || world.phase(id) == PhaseName::Starting
    });
    world.until_phase(id, PhaseName::Running, 60);
    assert!(world.detail(id).placement.0.iter().all(|share| share.node != node));
    world.heal(&node);
    world.run(20);
    assert!(world.agents[&node].ledger.is_empty(), "the old tasks are gone when it returns");
}

#[test]
fn an_operators_word_or_a_new_boot_proves_death() {
    let mut world = World::new(3, 4);
    let (id, node) = spread(&mut world, OnDisconnect::Keep);
    let lost = |node: &NodeId| Change::NodeLost { node: node.clone() };
    assert_eq!(world.change(lost(&node)).unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(world.change(lost(&n(99))).unwrap_err().kind, ErrorKind::NotFound);
    world.power_off(&node);
    world.until(80, "DOWN", |world| reach(world, &node) == Reachability::Down);
    assert!(world.change(lost(&node)).is_ok());
    assert_eq!(reach(&world, &node), Reachability::Gone);
    world.until_phase(id, PhaseName::Running, 60);
    world.reboot(&node);
    world.until(10, "UP again", |world| reach(world, &node) == Reachability::Up);

    let root = world.node_of(id, Task::SCHEDULER);
    let generation = world.row(id).generation;
    world.power_off(&root);
    world.run(15);
    world.reboot(&root);
    world.until(60, "a new generation", |world| {
        world.row(id).generation > generation && world.phase(id) == PhaseName::Running
    });
    let fault = world.detail(id).faults.last().unwrap().cause.clone();
    assert!(fault.contains("rebooted"), "{fault}");
}

#[test]
fn a_cancel_needs_no_proof_from_a_dead_node() {
    let mut world = World::new(2, 4);
    let (id, node) = spread(&mut world, OnDisconnect::Keep);
    world.power_off(&node);
    world.run(5);
    assert!(world.change(Change::Cancel { job: id, now: true }).is_ok());
    world.run(10);
    assert_eq!(world.phase(id), PhaseName::Stopping);
    world.until_phase(id, PhaseName::Cancelled, 80);
    world.reboot(&node);
    world.run(5);
    assert_eq!(world.alive(id), 0);
}

#[test]
fn agents_that_restart_and_second_agents_of_one_name() {
    let mut world = World::new(2, 4);
    let (id, node) = spread(&mut world, OnDisconnect::Keep);
    let generation = world.row(id).generation;
    world.restart_agent(&node);
    world.run(20);
    assert_eq!(world.row(id).generation, generation, "tasks live over their agent");
    let session = world.agents[&node].session;
    let mut other = super::agent::Agent::new(model::Resources::new(4000, 1 << 30, 0), 7);
    let introduction = other.introduction(world.now, super::agent::Reports::default());
    world.event(crate::Event::NodeConnected {
        node: node.clone(),
        session: crate::SessionId(10_000),
        introduction: Box::new(introduction),
    });
    world.run(5);
    assert_eq!(world.agents[&node].session, session, "the one that is heard stays");
    assert_eq!(world.row(id).generation, generation);
    // On the same machine with a state folder of its own it holds none of the tasks, which live.
    let refusals = |world: &World| world.control.refused["introduction refused"];
    for incarnation in [0, u64::MAX] {
        let before = refusals(&world);
        let now = world.now;
        let present = world.agents.get_mut(&node).expect("it is there");
        let mut introduction = present.introduction(now, super::agent::Reports::default());
        introduction.incarnation = model::Incarnation(incarnation);
        introduction.first.tasks.clear();
        world.event(crate::Event::NodeConnected {
            node: node.clone(),
            session: crate::SessionId(10_001),
            introduction: Box::new(introduction),
        });
        assert_eq!(refusals(&world), before + 1, "i{incarnation} was taken");
        world.run(5);
        assert_eq!(world.row(id).generation, generation);
    }
}

#[test]
fn a_pause_given_while_the_job_starts_ends_with_the_first_resume() {
    let mut world = World::new(1, 4);
    let id = world.submit(long(OnDisconnect::Keep));
    world.until(30, "a start", |world| world.row(id).generation.is_some());
    assert_eq!(world.row(id).step, 0, "it has not trained yet");
    world.change(model::client::Change::Pause { job: id }).expect("it can be paused");
    world.until_phase(id, model::reason::PhaseName::Paused, 120);
    world.change(model::client::Change::Resume { job: id }).expect("it can be resumed");
    world.until(120, "training", |world| world.row(id).step > 0);
}

#[test]
fn a_checkpoint_that_cannot_be_written_keeps_the_shape_and_says_so() {
    let mut world = World::new(2, 8);
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 2));
    world.saves_fail = true;
    world.pin(id, Shape::new(1, 4));
    world.until(60, "the failure is told", |world| world.row(id).reason.contains("disk quota"));
    assert_eq!((world.phase(id), world.row(id).shape), (PhaseName::Running, Shape::new(1, 2)));
    let step = world.row(id).step;
    world.run(10);
    assert!(world.row(id).step > step + 20, "it trains on");
    world.saves_fail = false;
    world.until(400, "it moves in the end", |world| {
        world.row(id).shape == Shape::new(1, 4) && world.phase(id) == PhaseName::Running
    });
    world.store_fails = true;
    assert!(world.change(Change::Pause { job: id }).is_ok());
    world.until(200, "the pause is given up", |world| world.row(id).reason.contains("given up"));
    world.store_fails = false;
    world.saves_fail = true;
    assert!(world.change(Change::Cancel { job: id, now: false }).is_ok());
    world.until_phase(id, PhaseName::Cancelled, 60);
    assert!(world.row(id).reason.contains("no last checkpoint"), "{}", world.row(id).reason);
}

/// A world whose rounds are so far apart that only asking for one brings it.
fn with_rare_rounds() -> World {
    let mut rare = settings();
    rare.interval_ms = 3_600_000;
    World::with(rare, 2, 8)
}

fn moves_within(world: &mut World, id: JobId, limit_s: u64) {
    world.until(limit_s, "the operator's shape", |world| {
        world.row(id).shape == Shape::new(1, 4) && world.phase(id) == PhaseName::Running
    });
}

#[test]
fn an_operators_shape_does_not_wait_for_an_interval_after_a_periodic_checkpoint() {
    for fails in [false, true] {
        let mut world = with_rare_rounds();
        let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 2));
        world.run(15);
        world.saves_fail = fails;
        assert!(world.change(Change::Checkpoint { job: id }).is_ok());
        world.until(20, "the checkpoint to be made", |world| {
            world.row(id).reason.contains("makes checkpoint")
        });
        world.pin(id, Shape::new(1, 4));
        world.until(60, "the checkpoint to be over", |world| {
            !world.row(id).reason.contains("makes checkpoint c")
        });
        world.saves_fail = false;
        moves_within(&mut world, id, 60);
    }
}

#[test]
fn an_operators_shape_does_not_wait_for_an_interval_after_a_masters_restart() {
    let mut world = with_rare_rounds();
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 2));
    world.run(15);
    world.pin(id, Shape::new(1, 4));
    world.until(20, "its checkpoint", |world| world.phase(id) == PhaseName::Rescaling);
    world.restart_master();
    moves_within(&mut world, id, 120);
}

#[test]
fn a_loss_that_is_not_finite_is_shown_and_never_used() {
    let mut world = World::new(1, 8);
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 2));
    let generation = world.row(id).generation.unwrap();
    let training = world.trainings.get_mut(&(id, generation)).unwrap();
    let since = training.done + 1000;
    training.nan_from = Some(since);
    world.until(300, "it is shown", |world| world.detail(id).loss_not_finite_since == Some(since));
    world.run(30);
    assert_eq!(world.phase(id), PhaseName::Running);
    assert!(world.row(id).reason.contains("loss not finite since step"));
    let points = &world.control.job(id).record.progress.points;
    assert!(points.iter().all(|(work, loss)| work.is_finite() && loss.is_finite()));
}

#[test]
fn capacity_that_shrinks_under_running_work_gives_nothing_new_away() {
    let mut world = World::new(1, 8);
    let id = world.running(long(OnDisconnect::Keep), Shape::new(1, 4));
    world.agents.get_mut(&n(1)).unwrap().capacity.cpus_milli = 2000;
    world.run(5);
    let second = world.submit(job("second"));
    world.run(100);
    assert_eq!(world.phase(second), PhaseName::Queued);
    assert_eq!(world.phase(id), PhaseName::Running);
}

#[test]
fn a_paused_master_blames_nobody() {
    let mut world = World::new(2, 4);
    let (id, node) = spread(&mut world, OnDisconnect::Replace);
    let generation = world.row(id).generation;
    // The master's host was suspended: two minutes in which it neither heard nor ticked.
    world.now = world.now.plus(120_000);
    for agent in world.agents.values_mut() {
        agent.contact = world.now;
    }
    world.event(crate::Event::Tick);
    assert_ne!(reach(&world, &node), Reachability::Down);
    world.run(30);
    assert_eq!(world.row(id).generation, generation);
}
