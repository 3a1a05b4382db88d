//! Stories of whole runs, told to the millisecond.

#![expect(clippy::unwrap_used, reason = "a missing value should stop the test at once")]

mod refused;
mod stories;
mod trouble;

use model::{Batch, Mode, NodeId, Resources, Shape};
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use simulator::outcome::Outcome;
use simulator::workload::{Cluster, Job, Speed, Workload};
use simulator::world::{Options, run};

fn n(number: usize) -> NodeId {
    format!("n{number:03}").parse().unwrap()
}

/// So many nodes with so many cores each.
fn cluster(nodes: usize, cores: u64) -> Cluster {
    let node = |number| (n(number), Resources::new(cores * 1000, 64 << 30, 0));
    Cluster { nodes: (0..nodes).map(node).collect() }
}

/// A job of 1,000 steps that makes 2 a second with one worker.
fn job(id: &str, arrival_s: f64) -> Job {
    let theta = vec![0.4 / 64.0, 0.05, 0.05, 0.0, 0.0];
    Job {
        id: id.to_owned(),
        arrival_s,
        model: "m".to_owned(),
        mode: Mode::Sync,
        batch: Batch::Global(64),
        worker: Resources::new(1000, 1 << 30, 0),
        server: Resources::new(1000, 1 << 30, 0),
        min: Shape::new(1, 1),
        max: Shape::new(4, 4),
        requested: None,
        priority: 1.0,
        speed: Speed::Theta(SpeedModel::of_theta(SpeedForm::SyncGlobal { batch: 64 }, theta)),
        work: 1000.0,
        rescale_cost_s: 15.0,
        loss: None,
    }
}

fn done(cluster: &Cluster, jobs: Vec<Job>, options: &Options) -> Outcome {
    let outcome = run(cluster, &Workload { jobs }, options, &mut |_| {}).unwrap();
    for job in &outcome.jobs {
        assert!(job.completion_s.is_some(), "{} never ended", job.id);
    }
    outcome
}
