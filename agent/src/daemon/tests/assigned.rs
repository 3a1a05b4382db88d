use model::notes::{AssignmentOrder, BlockPart, JobExtras};

use super::*;

fn extras(number: u64, assignment: AssignmentOrder) -> Extras {
    let Key { job, generation } = key(number);
    let extra = JobExtras { job, generation, assignment, data: None, index_base: String::new() };
    Extras { jobs: vec![extra], ..Extras::default() }
}

const ASK: &str = "echo \"asked to ${OPTIMUS_ASSIGNMENT:-nothing}\"; exec sleep 1000";

#[tokio::test]
async fn workers_that_wait_get_the_assignment_whenever_it_comes() {
    let mut world = world("assigned-1");
    let wanted = generation(1, Order::Start, ASK);
    world.desire_with(vec![wanted.clone()], extras(1, AssignmentOrder::Wait));
    world.until_printed(Task::worker(0), "asked to wait").await;
    let file = world.state_dir().join("tasks/j1-g1/assignment.json");
    assert!(!file.exists());

    let given =
        |parameters| AssignmentOrder::Given(vec![vec![BlockPart { server: 0, parameters }]]);
    world.desire_with(vec![wanted.clone()], extras(1, given(9)));
    let read = || fs::read_to_string(&file).unwrap();
    assert!(read().contains("[[[0,9]]]"), "{}", read());

    // After a restart it is shown again, whatever lies there.
    fs::write(&file, "junk").unwrap();
    world.restart(|_| {});
    world.desire_with(vec![wanted], extras(1, given(9)));
    assert!(read().contains("[[[0,9]]]"), "{}", read());
}

#[tokio::test]
async fn an_assignment_that_is_known_is_there_from_the_start() {
    let mut world = world("assigned-2");
    let given = AssignmentOrder::Given(vec![vec![BlockPart { server: 0, parameters: 9 }]]);
    world.desire_with(vec![generation(1, Order::Start, ASK)], extras(1, given));
    assert!(world.state_dir().join("tasks/j1-g1/assignment.json").exists());
    world.until_printed(Task::worker(0), "asked to wait").await;
}

#[tokio::test]
async fn a_generation_without_an_assignment_is_not_asked_to_wait() {
    let mut world = world("assigned-3");
    // Of another generation.
    let other = extras(2, AssignmentOrder::Wait);
    world.desire_with(vec![generation(1, Order::Start, ASK)], other);
    world.until_printed(Task::worker(0), "asked to nothing").await;
}
