//! Where parameter blocks lie: what the workers of a generation are told.

use model::client::{Answer, Change, Read};
use model::notes::{AssignmentOrder, BlocksReport, Extras, JobExtras, Notes};
use model::options::AssignmentKind;
use model::view::AssignmentView;
use model::{Generation, JobId, JobOptions, NodeId, Shape, Task};

use super::{World, clocks, job};
use crate::Event;

const BLOCKS: [u64; 4] = [1000, 400, 300, 300];

/// A job whose options are given, and which runs.
fn running(world: &mut World, assignment: AssignmentKind) -> JobId {
    let options = JobOptions { assignment, ..JobOptions::default() };
    let change = Change::SubmitWith { spec: job("digits"), request_id: None, options };
    let Ok(Answer::Submitted { job, .. }) = world.change(change) else { panic!() };
    world.until(60, "it starts", |world| world.generation(job).is_some());
    job
}

impl World {
    fn generation(&self, job: JobId) -> Option<Generation> {
        self.detail(job).row.generation
    }

    /// The node of the first worker.
    fn worker(&self, job: JobId) -> NodeId {
        self.node_of(job, Task::worker(0))
    }

    /// The worker of rank 0 tells its blocks.
    fn tell_blocks(&mut self, job: JobId, generation: Generation, blocks: &[u64]) {
        let node = self.worker(job);
        let session = self.agents[&node].session.expect("it is connected");
        let report = BlocksReport { job, generation, blocks: blocks.to_vec() };
        let notes = Box::new(Notes { blocks: vec![report], ..Notes::default() });
        self.event(Event::Notes { node, session, notes });
    }

    /// What the workers' node was told last of the present generation.
    fn told(&self, job: JobId) -> AssignmentOrder {
        let generation = self.generation(job).expect("it runs");
        let Extras { jobs, .. } = &self.agents[&self.worker(job)].extras;
        let of = |extra: &&JobExtras| (extra.job, extra.generation) == (job, generation);
        jobs.iter().find(of).map_or(AssignmentOrder::Stock, |extra| extra.assignment.clone())
    }

    fn spread(&self, job: JobId) -> Option<AssignmentView> {
        match self.control.read(clocks(self.now), &Read::JobMore { job }) {
            Ok(Answer::JobMore(more)) => more.assignment,
            other => panic!("{other:?}"),
        }
    }
}

/// Parameters of each block, as its parts have them.
fn sums(order: &AssignmentOrder) -> Vec<u64> {
    let AssignmentOrder::Given(blocks) = order else { panic!("{order:?}") };
    blocks.iter().map(|parts| parts.iter().map(|part| part.parameters).sum()).collect()
}

#[test]
fn workers_wait_until_the_blocks_are_known_and_later_ones_do_not() {
    let mut world = World::new(2, 8);
    let id = running(&mut world, AssignmentKind::Paa);
    assert_eq!(world.told(id), AssignmentOrder::Wait);
    assert_eq!(world.spread(id), None);
    let first = world.generation(id).unwrap();
    world.tell_blocks(id, first, &BLOCKS);
    assert_eq!(sums(&world.told(id)), BLOCKS);

    let to = Shape::new(2, 2);
    world.change(Change::Resize { job: id, shape: to, pin: true }).unwrap();
    world.until(120, "the new shape", |world| world.detail(id).row.shape == to);
    assert_ne!(world.generation(id), Some(first));
    assert_eq!(sums(&world.told(id)), BLOCKS);
    let spread = world.spread(id).unwrap();
    let shown = (spread.algorithm.as_str(), spread.parameters_largest, spread.requests);
    assert_eq!(shown, ("best", 1000, 4));
}

#[test]
fn an_agent_that_does_not_know_the_message_leaves_all_to_mxnet() {
    let mut world = World::new(2, 8);
    world.notes = false;
    let id = running(&mut world, AssignmentKind::Paa);
    assert_eq!(world.told(id), AssignmentOrder::Stock);
    // Even where the agent has learnt it meanwhile: the workers have begun without.
    let first = world.generation(id).unwrap();
    world.tell_blocks(id, first, &BLOCKS);
    assert_eq!(world.told(id), AssignmentOrder::Stock);
    assert_eq!(world.spread(id).unwrap().algorithm, "mxnet");
}

#[test]
fn a_job_that_asks_for_mxnets_rule_gets_it() {
    let mut world = World::new(2, 8);
    let id = running(&mut world, AssignmentKind::Mxnet);
    let first = world.generation(id).unwrap();
    world.tell_blocks(id, first, &BLOCKS);
    assert_eq!(world.told(id), AssignmentOrder::Stock);
    assert_eq!(world.spread(id).unwrap().algorithm, "mxnet");
}

#[test]
fn a_restart_of_the_master_changes_nothing_of_what_workers_are_told() {
    let mut world = World::new(2, 8);
    let id = running(&mut world, AssignmentKind::Paa);
    world.restart_master();
    world.run(5);
    assert_eq!(world.told(id), AssignmentOrder::Wait);
    let first = world.generation(id).unwrap();
    world.tell_blocks(id, first, &BLOCKS);
    let told = world.told(id);
    world.restart_master();
    world.run(5);
    assert_eq!(world.generation(id), Some(first));
    assert_eq!(world.told(id), told);
}

#[test]
fn blocks_of_a_changed_script_replace_the_old_ones() {
    let mut world = World::new(2, 8);
    let id = running(&mut world, AssignmentKind::Paa);
    let first = world.generation(id).unwrap();
    world.tell_blocks(id, first, &BLOCKS);
    world.tell_blocks(id, first, &[5, 6]);
    assert_eq!(sums(&world.told(id)), [5, 6]);
}

#[test]
fn blocks_that_cannot_be_are_refused_where_they_enter() {
    let mut world = World::new(2, 8);
    let id = running(&mut world, AssignmentKind::Paa);
    let first = world.generation(id).unwrap();
    world.tell_blocks(id, first, &[]);
    world.tell_blocks(id, first, &[u64::MAX, 1]);
    world.tell_blocks(id, first, &vec![1; model::notes::BLOCKS_MAX + 1]);
    world.tell_blocks(id, first.next(), &BLOCKS);
    assert_eq!(world.told(id), AssignmentOrder::Wait);
    world.tell_blocks(id, first, &BLOCKS);
    assert_eq!(sums(&world.told(id)), BLOCKS);
}
