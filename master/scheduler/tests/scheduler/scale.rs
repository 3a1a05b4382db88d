//! The paper's largest cluster, 4,000 jobs on 16,000 nodes, at a tenth of each side.

use model::{Batch, Mode, Shape};
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::plan::{Decision, Verb};

use crate::world::{carry_out, job, nodes, planned, resources, share, snapshot};

/// Jobs of a few kinds that can use about 25 tasks each.
pub(crate) fn large(jobs: u32, node_count: usize) -> scheduler::snapshot::Snapshot {
    let jobs = (1..=jobs).map(|id| {
        let kind = f64::from(id % 7 + 1);
        let (form, theta) = if id % 2 == 0 {
            (SpeedForm::of(Mode::Async, Batch::Global(32)), vec![1.0, 0.2 * kind, 0.01, 0.02])
        } else {
            (SpeedForm::SyncGlobal { batch: 64 }, vec![0.02, 0.01, 0.02 * kind, 0.002, 0.001])
        };
        let speed = SpeedModel::of_theta(form, theta);
        let mut job = job(u64::from(id), share(speed, 1e4 * kind));
        job.worker = resources(2000 + 500 * u64::from(id % 3), 8, u64::from(id % 2));
        job.server = resources(1000, 4 + u64::from(id % 3), 0);
        job.max = Shape::new(16, 24);
        job
    });
    snapshot(nodes(node_count, &resources(16_000, 64, 2)), jobs.collect())
}

#[test]
fn hundreds_of_jobs_start_at_once_and_then_rest() {
    let mut world = large(400, 1600);
    let plan = planned(&world);
    assert!(plan.decisions.iter().all(|decision| matches!(decision.verb, Verb::Start { .. })));
    carry_out(&mut world, &plan);
    // In a large cluster not every gap is found at once: a few may still move, ever fewer.
    let mut moved = Vec::new();
    for _ in 0..4 {
        let again = planned(&world);
        let keeps = |decision: &&Decision| matches!(decision.verb, Verb::Keep);
        moved.push(again.decisions.len() - again.decisions.iter().filter(keeps).count());
        carry_out(&mut world, &again);
    }
    assert!(moved[0] <= 4 && moved[3] == 0, "{moved:?}");
}

#[test]
fn in_an_overloaded_cluster_the_last_to_come_wait() {
    // 100 nodes of 16 CPUs hold some 500 least shapes of 3 to 4 CPUs.
    let mut world = large(900, 100);
    for job in &mut world.jobs {
        (job.worker.gpus, job.max) = (0, Shape::new(16, 24));
    }
    // Early numbers come late.
    for job in &mut world.jobs {
        job.arrival = model::Millis(10_000 - job.id.0);
    }
    let plan = planned(&world);
    let waits = |decision: &&Decision| matches!(decision.verb, Verb::Wait);
    let waiting = plan.decisions.iter().filter(waits).count();
    assert!((200..600).contains(&waiting), "{waiting}");
    for (waiting, _) in world.jobs.iter().zip(&plan.decisions).filter(|(_, d)| waits(d)) {
        let overtakes = world.jobs.iter().zip(&plan.decisions).find(|(job, decision)| {
            let asks_as_much =
                job.worker.covers(&waiting.worker) && job.server.covers(&waiting.server);
            job.arrival > waiting.arrival && asks_as_much && !waits(decision)
        });
        assert!(overtakes.is_none(), "{} waits, but {overtakes:?} starts", waiting.id);
    }
}

#[test]
fn amounts_too_large_for_the_quick_search_are_placed_too() {
    let mut job = job(1, share(crate::world::scalable(), 1e5));
    job.worker = model::Resources::new(1000, 1 << 62, 0);
    let world = snapshot(nodes(100, &model::Resources::new(64_000, u64::MAX, 0)), vec![job]);
    let plan = planned(&world);
    let Verb::Start { placement } = &plan.decisions[0].verb else { panic!("{plan:#?}") };
    assert_eq!(placement.shape(), plan.decisions[0].reason.allocated);
    assert!(placement.shape().workers > 3, "a node holds three of these");
}
