//! Tasks that outlive their KILL.

use model::client::{Answer, Change, Read};
use model::nodes::{NodeNotes, Severity, StuckReport};
use model::reason::{PhaseName, Schedulability};
use model::{Finish, JobId, JobSpec, Shape, Task};

use super::{World, job, n};

const WORDS: &str = "process 4711 (state D, waits in rpc_wait_bit_killable)";

fn long(name: &str) -> JobSpec {
    let mut spec = job(name);
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    (spec.workers.max, spec.servers.max) = (2, 1);
    spec
}

/// Two jobs on one node; the first is cancelled, and a worker of it does not go.
fn stuck() -> (World, JobId, JobId, NodeNotes) {
    let mut world = World::new(1, 8);
    let id = world.running(long("stuck"), Shape::new(1, 1));
    let other = world.running(long("other"), Shape::new(1, 1));
    let generation = world.row(id).generation.unwrap();
    // Every task of the node takes for ever; those that are not stuck are let go below.
    world.agents.get_mut(&n(1)).unwrap().exit_ms = 1_000_000;
    assert!(world.change(Change::Cancel { job: id, now: true }).is_ok());
    world.run(2);
    for task in [Task::SCHEDULER, Task::server(0)] {
        world.exit(id, task, 0, "stopped as told");
    }
    let task = Task::worker(0);
    let stuck = vec![StuckReport { job: id, generation, task, words: WORDS.to_owned() }];
    let notes = NodeNotes { stuck, ..NodeNotes::default() };
    world.node_notes(&n(1), notes.clone());
    world.run(2);
    (world, id, other, notes)
}

#[test]
fn a_node_with_a_process_that_cannot_be_killed_takes_nothing_new_until_it_is_gone() {
    let (mut world, id, other, notes) = stuck();
    assert_eq!(world.state(&n(1)), Schedulability::Cordoned);
    let row = world.node_row(&n(1));
    assert!(row.reason.contains("cannot be killed") && row.reason.contains(WORDS), "{row:?}");
    assert!(world.node_more(&n(1)).alerts.iter().any(|alert| alert.contains(WORDS)));
    assert_eq!(world.phase(id), PhaseName::Stopping);
    assert!(world.row(id).reason.contains(WORDS), "{}", world.row(id).reason);
    let Ok(Answer::Doctor(findings)) = world.read(&Read::Doctor) else { panic!("no findings") };
    let found = findings.iter().find(|one| one.words.contains(WORDS)).expect("doctor names it");
    assert_eq!((found.severity, found.subject.as_str()), (Severity::Fault, "n1"));
    // The other job goes on, and nothing new comes.
    let step = world.row(other).step;
    let third = world.submit(long("third"));
    world.run(60);
    assert!(world.row(other).step > step + 20);
    assert_eq!(world.phase(third), PhaseName::Queued);
    // Neither a new life of the master nor one of the agent opens it.
    world.restart_master();
    world.run(5);
    world.node_notes(&n(1), notes);
    world.restart_agent(&n(1));
    world.run(5);
    world.node_notes(&n(1), NodeNotes::default());
    world.run(5);
    assert_eq!(world.state(&n(1)), Schedulability::Cordoned, "its process is still there");
    // The mount answers again.
    world.exit(id, Task::worker(0), 0, "stopped as told");
    world.until(5, "it is CANCELLED", |world| world.phase(id) == PhaseName::Cancelled);
    assert_eq!(world.state(&n(1)), Schedulability::Open);
    assert!(world.events_tell("n1 is OPEN"));
    world.until(60, "the third trains", |world| world.row(third).step > 3);
}

#[test]
fn an_operators_word_about_such_a_node_is_the_last() {
    let (mut world, id, _, notes) = stuck();
    world.undrain(&n(1));
    world.node_notes(&n(1), notes.clone());
    world.run(5);
    assert_eq!(world.state(&n(1)), Schedulability::Open, "opened against the odds");
    world.cordon(&n(1));
    world.exit(id, Task::worker(0), 0, "stopped as told");
    world.until_phase(id, PhaseName::Cancelled, 5);
    // Told late, of a task that is gone.
    world.node_notes(&n(1), notes);
    world.run(5);
    assert_eq!(world.state(&n(1)), Schedulability::Cordoned, "closed by an operator");
    assert!(world.node_more(&n(1)).alerts.is_empty());
    world.undrain(&n(1));
    assert_eq!(world.state(&n(1)), Schedulability::Open);
}
