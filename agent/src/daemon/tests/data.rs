use model::notes::{AssignmentOrder, DataReport, JobExtras};
use model::options::{DataFormat, DataSpec};
use storage::dataset::{LocalSource, scan};

use super::*;

const ASK: &str = "echo \"told ${OPTIMUS_DATA:-nothing}\"; exec sleep 1000";

/// A job with a set of three lines; its index is published where checkpoints lie.
fn extras(world: &World, index: Option<&[u8]>) -> Extras {
    let base = world.state_dir().join("checkpoints");
    if let Some(index) = index {
        fs::create_dir_all(base.join("j1")).unwrap();
        fs::write(base.join("j1/data.json"), index).unwrap();
    }
    let Key { job, generation } = key(1);
    let url = format!("file://{}/set", world.state_dir().display());
    let extra = JobExtras {
        job,
        generation,
        assignment: AssignmentOrder::Stock,
        data: Some(DataSpec { url, format: DataFormat::Lines, chunk_bytes: 1 << 20 }),
        index_base: format!("file://{}", base.display()),
    };
    Extras { jobs: vec![extra], ..Extras::default() }
}

fn index(world: &World) -> Vec<u8> {
    let set = world.state_dir().join("set");
    fs::write(&set, "a\nb\nc\n").unwrap();
    scan(&LocalSource::new(set), DataFormat::Lines, 1 << 20).unwrap().encode()
}

#[tokio::test]
async fn workers_get_the_index_that_was_published_also_after_a_restart() {
    let mut world = world("data-1");
    let text = index(&world);
    let extras = extras(&world, Some(&text));
    let wanted = generation(1, Order::Start, ASK);
    let file = world.state_dir().join("tasks/j1-g1/data-index.json");
    let report =
        DataReport { job: JobId(1), generation: Generation(1), chunks: 1, records: 3, bytes: 6 };
    world.desire_with(vec![wanted.clone()], extras.clone());
    world.until_printed(Task::worker(0), "told {").await;
    world.until("the size is told", |world| world.agent.notes().data == [report]).await;
    assert_eq!(fs::read(&file).unwrap(), text);
    assert!(world.log(Task::worker(0)).contains("\"format\":\"lines\""));

    fs::write(&file, "junk").unwrap();
    world.restart(|_| {});
    assert_eq!(world.agent.notes().data, []);
    world.desire_with(vec![wanted], extras);
    world.until("the size is told", |world| world.agent.notes().data == [report]).await;
    assert_eq!(fs::read(&file).unwrap(), text);
}

#[tokio::test]
async fn an_index_that_is_none_is_told_to_the_workers_in_words() {
    let mut world = world("data-2");
    let extras = extras(&world, Some(b"{\"schema\":\"optimus.data/1\"}"));
    let file = world.state_dir().join("tasks/j1-g1/data-error.txt");
    world.desire_with(vec![generation(1, Order::Start, ASK)], extras);
    world.until("it says why", |_| file.exists()).await;
    let words = fs::read_to_string(&file).unwrap();
    assert!(words.contains("is not understood"), "{words}");
    assert_eq!(world.agent.notes().data, []);
}

#[tokio::test]
async fn a_job_without_a_set_is_told_nothing() {
    let mut world = world("data-3");
    world.desire(vec![generation(1, Order::Start, ASK)]);
    world.until_printed(Task::worker(0), "told nothing").await;
}
