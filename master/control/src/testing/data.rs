//! A job's data set: what the agents are told of it, and what they tell.

use model::client::{Answer, Change, Read};
use model::notes::{DataReport, Notes, WaitReport};
use model::options::{CHUNK_BYTES, DataFormat, DataSpec};
use model::view::{DataSize, DataView};
use model::{JobId, JobOptions, NodeId, Task};

use super::{World, clocks, job};
use crate::Event;

fn spec(url: &str) -> DataSpec {
    DataSpec { url: url.to_owned(), format: DataFormat::RecordIo, chunk_bytes: CHUNK_BYTES }
}

fn submit(url: &str) -> Change {
    let options = JobOptions { data: Some(spec(url)), ..JobOptions::default() };
    Change::SubmitWith { spec: job("digits"), request_id: None, options }
}

fn shown(world: &World, job: JobId) -> Option<DataView> {
    match world.control.read(clocks(world.now), &Read::JobMore { job }) {
        Ok(Answer::JobMore(more)) => more.data,
        other => panic!("{other:?}"),
    }
}

#[test]
fn agents_are_told_of_the_set_and_tell_its_size() {
    let mut world = World::new(2, 8);
    let Ok(Answer::Submitted { job: id, .. }) = world.change(submit("hdfs://ns/train")) else {
        panic!()
    };
    world.until(60, "it starts", |world| world.detail(id).row.generation.is_some());
    let node: NodeId = world.node_of(id, Task::worker(0));
    let told = world.agents[&node].extras.jobs.iter().find(|extra| extra.job == id).unwrap();
    assert_eq!(told.data, Some(spec("hdfs://ns/train")));
    assert_eq!(told.index_base, job("digits").checkpoint);
    assert_eq!(shown(&world, id), Some(DataView { spec: spec("hdfs://ns/train"), found: None }));

    let generation = world.detail(id).row.generation.unwrap();
    let session = world.agents[&node].session.expect("it is connected");
    let report = DataReport { job: id, generation, chunks: 7, records: 1000, bytes: 9000 };
    let unknown = DataReport { job: JobId(99), ..report };
    let notes = Notes { data: vec![unknown, report], ..Notes::default() };
    world.event(Event::Notes { node, session, notes: Box::new(notes) });
    let found = DataSize { chunks: 7, records: 1000, bytes: 9000 };
    assert_eq!(shown(&world, id).unwrap().found, Some(found));
}

#[test]
fn why_says_what_keeps_a_set_away() {
    let mut world = World::new(2, 8);
    let Ok(Answer::Submitted { job: id, .. }) = world.change(submit("hdfs://ns/train")) else {
        panic!()
    };
    world.until(60, "it starts", |world| world.detail(id).row.generation.is_some());
    let node: NodeId = world.node_of(id, Task::worker(0));
    let generation = world.detail(id).row.generation.unwrap();
    let session = world.agents[&node].session.expect("it is connected");
    let words = "no NameNode answers".to_owned();
    let wait = WaitReport { job: id, generation, words };
    let notes = |waits| Box::new(Notes { waits, ..Notes::default() });
    world.event(Event::Notes { node: node.clone(), session, notes: notes(vec![wait]) });
    let reason = world.detail(id).row.reason;
    assert!(reason.contains("no NameNode answers") && reason.contains(node.as_str()), "{reason}");
    world.event(Event::Notes { node, session, notes: notes(Vec::new()) });
    let reason = world.detail(id).row.reason;
    assert!(!reason.contains("no NameNode answers"), "{reason}");
}

#[test]
fn a_set_that_makes_no_sense_is_refused_with_the_rest() {
    let mut world = World::new(1, 8);
    let refusal = world.change(submit("s3://bucket/x")).unwrap_err();
    assert!(refusal.faults.iter().any(|fault| fault.field == "data.url"), "{refusal:?}");
}
