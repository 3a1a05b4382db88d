//! The table of transitions by itself.

use std::collections::BTreeMap;

use model::agent::CheckpointOrder;
use model::{CheckpointId, Generation, NodeShare, Placement, Shape, Task};

use super::n;
use crate::job::phase::{Goal, JobEvent, Life, Move, Next, Origin, Phase, Predicted, Save, Wait};

const G1: Generation = Generation(1);

fn place(workers: u32) -> Placement {
    Placement(vec![NodeShare { node: n(1), servers: 1, workers }])
}

fn life(generation: Generation, workers: u32) -> Life {
    Life { generation, placement: place(workers), ..Life::default() }
}

fn larger() -> Move {
    Move {
        placement: place(2),
        origin: Origin::Rescale,
        round: None,
        profiling: false,
        reason: String::new(),
        predicted: Predicted::default(),
    }
}

fn save(checkpoint: u64) -> Save {
    let order = CheckpointOrder {
        checkpoint: CheckpointId(checkpoint),
        at_step: Some(100),
        directory: "file:///ckpt/1".to_owned(),
        hold: true,
        released: false,
    };
    Save { order, reached: BTreeMap::new(), saved: None, renamed: 0, publishing: false }
}

fn running() -> Phase {
    Phase::Running { life: life(G1, 1), pending: None, released: None }
}

fn published(generation: Generation, checkpoint: u64) -> JobEvent {
    JobEvent::Published { generation, checkpoint: CheckpointId(checkpoint), grace_ms: 5 }
}

fn moving() -> Phase {
    let goal = Goal::Leave(Next::Start(larger()));
    running().on(JobEvent::CheckpointOrdered { generation: G1, save: save(7), goal }).unwrap()
}

#[test]
fn a_rescale_passes_checkpoint_stop_start() {
    let mut phase = moving().on(published(G1, 7)).unwrap();
    for task in Shape::new(1, 1).tasks() {
        phase = phase.on(JobEvent::TaskGone { generation: G1, task }).unwrap();
    }
    assert!(matches!(phase, Phase::Queued { wait: Wait::Room(_), last: Some(G1) }));
    let too_old = JobEvent::Placed { life: life(G1, 2) };
    assert!(phase.clone().on(too_old).is_err(), "a generation lives once");
    let phase = phase.on(JobEvent::Placed { life: life(Generation(2), 2) }).unwrap();
    assert_eq!(phase.state(), "starting");
}

#[test]
fn an_exit_reported_twice_is_stale_and_leaves_the_others_alive() {
    let next = Next::Queue { reason: String::new() };
    let stop = JobEvent::Stop { generation: G1, next, grace_ms: 5 };
    let gone = |task| JobEvent::TaskGone { generation: G1, task };
    let phase = running().on(stop).unwrap().on(gone(Task::worker(0))).unwrap();
    let stale = phase.clone().on(gone(Task::worker(0))).unwrap_err();
    assert_eq!(*stale.phase, phase, "nothing is lost with a stale event");
    let phase = phase.on(gone(Task::SCHEDULER)).unwrap();
    assert_eq!(phase.state(), "stopping");
    assert_eq!(phase.on(gone(Task::server(0))).unwrap().state(), "queued");
}

#[test]
fn events_of_another_generation_or_checkpoint_change_nothing() {
    let other = Generation(2);
    for (phase, event) in [
        (Phase::Starting { life: life(G1, 1) }, JobEvent::AllUp { generation: other }),
        (moving(), published(other, 7)),
        (moving(), published(G1, 6)),
        (moving(), JobEvent::CheckpointOver { generation: G1, checkpoint: CheckpointId(6) }),
        (running(), JobEvent::Stop { generation: other, next: Next::Pause, grace_ms: 0 }),
        (running(), JobEvent::TaskGone { generation: G1, task: Task::worker(0) }),
        (running(), JobEvent::Resume),
        (Phase::Completed { note: String::new() }, JobEvent::Resume),
    ] {
        let stale = phase.clone().on(event).unwrap_err();
        assert_eq!(*stale.phase, phase);
        assert!(stale.to_string().contains("stale event"));
    }
}

#[test]
fn a_checkpoint_that_came_to_nothing_releases_its_workers() {
    let over = JobEvent::CheckpointOver { generation: G1, checkpoint: CheckpointId(7) };
    let Phase::Running { released: Some(order), .. } = moving().on(over).unwrap() else {
        panic!("it trains on")
    };
    assert!(order.released);
}
