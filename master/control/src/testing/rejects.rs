//! Servers that start nothing: their jobs go elsewhere at no cost of theirs, and they themselves
//! are taken out.

use model::client::{Answer, Read};
use model::nodes::{NodeNotes, RejectReport, Severity};
use model::reason::{PhaseName, Schedulability};
use model::{Finish, JobSpec, NodeId, Shape, Task};

use super::{World, job, n};
use crate::Event;

const NO_PROCESS: &str = "cannot start python3: Resource temporarily unavailable (os error 11)";

fn long() -> JobSpec {
    let mut spec = job("rejected");
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    // One fault of its own would end it.
    spec.restarts_max = 0;
    spec
}

impl World {
    pub(crate) fn node_notes(&mut self, node: &NodeId, notes: NodeNotes) {
        let session = self.agents[node].session.expect("it is connected");
        let notes = Box::new(notes);
        self.event(Event::NodeNotes { node: node.clone(), session, notes });
    }
}

#[test]
fn a_node_that_starts_nothing_is_taken_out_and_no_job_pays_for_it() {
    let mut world = World::new(1, 8);
    world.run(2);
    world.agents.get_mut(&n(1)).unwrap().rejects = Some(NO_PROCESS.to_owned());
    let id = world.submit(long());
    world.until(120, "it is taken out", |world| world.state(&n(1)) == Schedulability::Cordoned);
    let row = world.node_row(&n(1));
    assert!(row.reason.contains("rejects launches") && row.reason.contains("3 times"), "{row:?}");
    assert!(row.reason.contains("os error 11"), "{row:?}");
    assert!(world.events_tell("n1 is CORDONED"));
    let rejects = world.node_more(&n(1)).rejects;
    assert_eq!(rejects.len(), 3, "{rejects:?}");
    let Ok(Answer::Doctor(findings)) = world.read(&Read::Doctor) else { panic!("no findings") };
    let about = findings.iter().find(|one| one.words.contains("it rejected 3 starts"));
    assert_eq!(about.map(|one| one.severity), Some(Severity::Warning), "{findings:?}");
    world.run(120);
    assert_eq!(world.phase(id), PhaseName::Queued, "it waits, and has not failed");
    assert_eq!(world.control.job(id).record.failures_in_row, 0);
    // Mended, and opened by an operator.
    world.agents.get_mut(&n(1)).unwrap().rejects = None;
    world.run(30);
    assert_eq!(world.state(&n(1)), Schedulability::Cordoned, "not by itself");
    world.undrain(&n(1));
    world.until(60, "it trains", |world| world.row(id).step > 5);
    assert!(world.node_more(&n(1)).rejects.is_empty());
}

#[test]
fn the_job_is_placed_elsewhere_meanwhile() {
    let mut world = World::new(2, 8);
    for node in [n(1), n(2)] {
        world.agents.get_mut(&node).unwrap().rejects = Some(NO_PROCESS.to_owned());
    }
    let id = world.submit(long());
    world.until(20, "a rejection", |world| !world.detail(id).faults.is_empty());
    let first = world.control.job(id).record.history[0].1.0[0].node.clone();
    for node in [n(1), n(2)] {
        if node != first {
            world.agents.get_mut(&node).unwrap().rejects = None;
        }
    }
    world.until(60, "it trains", |world| world.row(id).step > 5);
    assert!(!world.stands_on(id, &first));
    assert_eq!(world.state(&first), Schedulability::Open, "once is not often");
}

#[test]
fn a_fault_of_the_jobs_own_is_no_rejection() {
    let mut world = World::new(1, 8);
    let words = "cannot start python9 as user train: No such file or directory (os error 2)";
    world.agents.get_mut(&n(1)).unwrap().rejects = Some(words.to_owned());
    let id = world.submit(long());
    world.until_phase(id, PhaseName::Failed, 60);
    assert_eq!(world.state(&n(1)), Schedulability::Open);
    assert!(world.node_more(&n(1)).rejects.is_empty());
}

#[test]
fn an_agent_says_itself_whose_fault_it_was() {
    let mut world = World::new(1, 8);
    world.run(2);
    // It tells, so its words alone say nothing.
    world.node_notes(&n(1), NodeNotes::default());
    world.agents.get_mut(&n(1)).unwrap().rejects = Some("cannot start: no luck".to_owned());
    let id = world.submit(JobSpec { restarts_max: 1, ..long() });
    let report = |generation| RejectReport {
        job: id,
        generation,
        task: Task::SCHEDULER,
        errno: Some(28),
        words: "cannot make its control group\nhere".to_owned(),
        server: true,
    };
    let mut told = Vec::new();
    for known in 0..3 {
        world
            .until(60, "a start fails", |world| world.control.job(id).record.history.len() > known);
        let generation = world.control.job(id).record.history[known].0;
        told.push(report(generation));
        if known == 1 {
            // An introduction tells of the exit first.
            world.until(30, "its exit is told", |world| world.detail(id).faults.len() > known);
        }
        world.node_notes(&n(1), NodeNotes { rejects: told.clone(), ..NodeNotes::default() });
        world.node_notes(&n(1), NodeNotes { rejects: told.clone(), ..NodeNotes::default() });
        assert!(!world.phase(id).is_final(), "no fault of the job's own");
    }
    assert_eq!(world.state(&n(1)), Schedulability::Cordoned);
    let reason = world.node_row(&n(1)).reason;
    assert!(reason.contains("ENOSPC (28) cannot make its control group here"), "{reason}");
    assert_eq!(world.control.job(id).record.failures_in_row, 0);
}

#[test]
fn a_start_that_goes_well_ends_the_count() {
    let mut world = World::new(1, 8);
    let id = world.running(JobSpec { restarts_max: 5, ..long() }, Shape::new(1, 2));
    for _ in 0..4 {
        world.agents.get_mut(&n(1)).unwrap().rejects = Some(NO_PROCESS.to_owned());
        let before = world.detail(id).faults.len();
        world.exit(id, Task::worker(0), 1, "boom");
        world.until(60, "a start is rejected", |world| world.detail(id).faults.len() == before + 2);
        world.agents.get_mut(&n(1)).unwrap().rejects = None;
        let step = world.row(id).step;
        world.until(120, "it trains again", |world| world.row(id).step > step + 5);
        world.until(90, "and saves", |world| world.control.job(id).record.faults_in_row == 0);
    }
    assert_eq!(world.state(&n(1)), Schedulability::Open);
}

#[test]
fn an_alert_of_a_server_is_told_once_and_to_the_jobs_that_it_names() {
    let mut world = World::new(1, 8);
    let id = world.running(long(), Shape::new(1, 1));
    let other = world.running(JobSpec { name: "other".to_owned(), ..long() }, Shape::new(1, 1));
    let events = |world: &World, job| {
        let read = Read::Events { job, after: 0, limit: 1000 };
        let Ok(Answer::Events(events)) = world.read(&read) else { panic!("no events") };
        events.into_iter().filter(|event| event.kind == "alert").map(|event| event.text)
    };
    for lost in 1..=3 {
        let alerts = vec![
            format!("worker0 of {id}-g2 printed faster than its log holds: {lost} MiB were gone"),
            format!("the ledger cannot be written: try {lost}\u{1b}"),
        ];
        world.node_notes(&n(1), NodeNotes { alerts, ..NodeNotes::default() });
    }
    let told: Vec<String> = events(&world, Some(id)).collect();
    assert_eq!(
        told,
        [format!(
            "n1: worker0 of {id}-g2 printed faster than its log holds: 1 MiB \
                               were gone"
        )]
    );
    assert_eq!(events(&world, Some(other)).count(), 0);
    let told: Vec<String> = events(&world, None).collect();
    assert_eq!(told.len(), 2);
    assert_eq!(told[1], "n1: the ledger cannot be written: try 1 ");
    world.run(16 * 60);
    let alerts = vec!["the ledger cannot be written: try 9".to_owned()];
    world.node_notes(&n(1), NodeNotes { alerts, ..NodeNotes::default() });
    assert_eq!(events(&world, None).count(), 3, "that it still holds is told now and then");
}
