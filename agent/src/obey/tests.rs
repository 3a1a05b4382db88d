use std::collections::BTreeMap;

use model::agent::{Exit, Launch};
use model::{Batch, BootId, CheckpointId, Generation, JobId, Mode, OnDisconnect, Resources, Shape};

use super::*;
use crate::ledger::{HeldTask, State, Stopping};

fn key(generation: u64) -> Key {
    Key { job: JobId(1), generation: Generation(generation) }
}

fn wanted(generation: u64, order: Order, tasks: &[Task]) -> DesiredGeneration {
    let launch = Launch {
        job_name: "digits".to_owned(),
        command: vec!["true".to_owned()],
        working_directory: "/".to_owned(),
        environment: BTreeMap::new(),
        mode: Mode::Sync,
        batch: Batch::Global(8),
        epochs_max: 1,
        shape: Shape::new(1, 2),
        tasks: tasks.to_vec(),
        worker: Resources::default(),
        server: Resources::default(),
        root_host: "127.0.0.1".to_owned(),
        root_port: 21_000,
        resume: None,
        on_disconnect: OnDisconnect::Keep,
    };
    let Key { job, generation } = key(generation);
    DesiredGeneration { job, generation, order, launch, checkpoint: None }
}

fn desired(generations: Vec<DesiredGeneration>) -> Desired {
    Desired { revision: Revision(10), generations }
}

fn running() -> HeldTask {
    let state =
        State::Running { pid: 9, start_ticks: 1, boot: BootId("b".to_owned()), ready: false };
    HeldTask { gpus: Vec::new(), state }
}

fn dead() -> HeldTask {
    HeldTask::exited(Exit::default())
}

fn ledger(held: &[(u64, Task, HeldTask)]) -> Ledger {
    let mut ledger = Ledger::default();
    for (generation, task, state) in held {
        let entry = ledger.generations.entry(key(*generation)).or_insert_with(|| Held {
            on_disconnect: OnDisconnect::Keep,
            uid: 1,
            gid: 1,
            stopping: None,
            order: None,
            tasks: BTreeMap::new(),
        });
        entry.tasks.insert(*task, state.clone());
    }
    ledger
}

fn obeyed(ledger: &Ledger, generations: Vec<DesiredGeneration>) -> Vec<Action> {
    obey(ledger, &desired(generations), 10_000).unwrap()
}

const TASKS: [Task; 3] = [Task::worker(0), Task::server(0), Task::SCHEDULER];

#[test]
fn a_start_goes_scheduler_servers_workers() {
    let actions = obeyed(&ledger(&[]), vec![wanted(1, Order::Start, &TASKS)]);
    let tasks = vec![Task::SCHEDULER, Task::server(0), Task::worker(0)];
    assert_eq!(
        actions,
        [Action::Start { key: key(1), tasks }, Action::Order { key: key(1), order: None }]
    );
}

#[test]
fn a_start_that_comes_twice_starts_nothing_twice() {
    let held = [
        (1, Task::SCHEDULER, running()),
        (1, Task::server(0), HeldTask { gpus: Vec::new(), state: State::Intent }),
        (1, Task::worker(0), dead()),
    ];
    let actions = obeyed(&ledger(&held), vec![wanted(1, Order::Start, &TASKS)]);
    assert_eq!(actions, [Action::Order { key: key(1), order: None }]);
}

#[test]
fn an_older_set_is_refused_and_the_same_one_is_obeyed_again() {
    let mut ledger = ledger(&[]);
    ledger.obeyed = Revision(11);
    assert!(obey(&ledger, &desired(Vec::new()), 1).is_err());
    ledger.obeyed = Revision(10);
    assert_eq!(obey(&ledger, &desired(Vec::new()), 1), Ok(Vec::new()));
}

#[test]
fn what_is_not_desired_is_stopped_and_then_forgotten() {
    let stop = Action::Stop { key: key(1), grace_ms: 10_000 };
    let live = ledger(&[(1, Task::worker(0), running()), (1, Task::worker(1), dead())]);
    assert_eq!(obeyed(&live, Vec::new()), [stop]);
    let over = ledger(&[(1, Task::worker(0), dead())]);
    assert_eq!(obeyed(&over, Vec::new()), [Action::Forget { key: key(1) }]);
}

#[test]
fn a_dead_generation_stays_reported_for_as_long_as_it_is_desired() {
    let over = ledger(&[(1, Task::worker(0), dead())]);
    for order in [Order::Keep, Order::Stop { grace_ms: 1 }, Order::Start] {
        let actions = obeyed(&over, vec![wanted(1, order, &[Task::worker(0)])]);
        assert!(!actions.contains(&Action::Forget { key: key(1) }), "{actions:?}");
        assert!(!actions.iter().any(|action| matches!(action, Action::Start { .. })));
    }
}

#[test]
fn keep_and_stop_report_what_was_never_here() {
    for order in [Order::Keep, Order::Stop { grace_ms: 5 }] {
        let actions = obeyed(&ledger(&[]), vec![wanted(1, order, &TASKS)]);
        let absent = |task| Action::Absent { key: key(1), task, reason: NOT_HELD };
        let all = [Task::SCHEDULER, Task::server(0), Task::worker(0)].map(absent);
        assert_eq!(actions, all, "{order:?}");
    }
}

#[test]
fn a_stop_reaches_the_living() {
    let live = ledger(&[(1, Task::worker(0), running())]);
    let actions = obeyed(&live, vec![wanted(1, Order::Stop { grace_ms: 5 }, &[Task::worker(0)])]);
    assert_eq!(actions, [Action::Stop { key: key(1), grace_ms: 5 }]);
}

#[test]
fn a_generation_being_stopped_never_starts_again() {
    let mut held = ledger(&[(1, Task::worker(0), running())]);
    let stopping = Stopping { reason: String::new(), ordered: true, grace_ms: 1 };
    held.generations.get_mut(&key(1)).unwrap().stopping = Some(stopping);
    let tasks = [Task::worker(0), Task::worker(1)];
    let actions = obeyed(&held, vec![wanted(1, Order::Start, &tasks)]);
    let task = Task::worker(1);
    assert_eq!(actions, [Action::Absent { key: key(1), task, reason: BEING_STOPPED }]);
}

#[test]
fn a_new_generation_waits_for_the_last_process_of_the_old() {
    let old = [(1, Task::worker(0), running())];
    let stop = Action::Stop { key: key(1), grace_ms: 10_000 };
    let actions = obeyed(&ledger(&old), vec![wanted(2, Order::Start, &[Task::worker(0)])]);
    assert!(actions.contains(&stop) && !is_started(&actions, 2), "{actions:?}");
    let gone = [(1, Task::worker(0), dead())];
    let actions = obeyed(&ledger(&gone), vec![wanted(2, Order::Start, &[Task::worker(0)])]);
    assert!(is_started(&actions, 2), "{actions:?}");
}

#[test]
fn a_generation_older_than_one_held_is_not_started() {
    let held = ledger(&[(2, Task::worker(0), running())]);
    let both = vec![
        wanted(1, Order::Start, &[Task::worker(0)]),
        wanted(2, Order::Keep, &[Task::worker(0)]),
    ];
    let actions = obeyed(&held, both);
    assert!(!is_started(&actions, 1), "{actions:?}");
    let task = Task::worker(0);
    assert!(actions.contains(&Action::Absent { key: key(1), task, reason: NEWER_HELD }));
}

fn is_started(actions: &[Action], generation: u64) -> bool {
    actions.iter().any(
        |action| matches!(action, Action::Start { key: found, .. } if *found == key(generation)),
    )
}

#[test]
fn orders_for_a_checkpoint_reach_what_runs() {
    let order = CheckpointOrder {
        checkpoint: CheckpointId(4),
        at_step: Some(7),
        directory: "file:///x".to_owned(),
        hold: true,
        released: false,
    };
    let mut generation = wanted(1, Order::Keep, &[Task::worker(0)]);
    generation.checkpoint = Some(order.clone());
    let live = ledger(&[(1, Task::worker(0), running())]);
    let actions = obeyed(&live, vec![generation]);
    assert_eq!(actions, [Action::Order { key: key(1), order: Some(order) }]);
}
