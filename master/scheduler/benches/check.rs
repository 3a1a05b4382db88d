//! How long the checker takes on the paper's largest cluster: 4,000 jobs with about 100,000 tasks
//! on 16,000 nodes.

use std::process::ExitCode;
use std::time::Instant;

use model::{JobId, Millis, Mode, NodeShare, Placement, Resources, Shape};
use scheduler::check;
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::place::{cross_node_share, transfer_time};
use scheduler::plan::{Decision, Plan, Reason, Verb, Words};
use scheduler::snapshot::{Current, JobInput, NodeInput, Snapshot, Want};

const NODES: usize = 16_000;
const JOBS: usize = 4_000;
/// Nodes of a job, and its tasks on each: 26 tasks.
const NODES_EACH: usize = 13;
const HERE: Shape = Shape::new(1, 1);

fn node(at: usize) -> NodeInput {
    NodeInput {
        id: format!("rack{:03}-node{at:05}", at / 40).parse().expect("a plain name"),
        capacity: Resources::new(16_000, 64 << 30, 2),
        held: Resources::default(),
        open: true,
    }
}

/// The nodes of each job lie apart: a job that runs for long finds its room where it is.
fn placement(nodes: &[NodeInput], job: usize) -> Placement {
    let mut at: Vec<usize> =
        (0..NODES_EACH).map(|share| (job * NODES_EACH + share * 7_919) % NODES).collect();
    at.sort_unstable();
    at.dedup();
    let share = |at: usize| NodeShare {
        node: nodes[at].id.clone(),
        servers: HERE.servers,
        workers: HERE.workers,
    };
    Placement(at.into_iter().map(share).collect())
}

/// All jobs start, or all run and are kept.
fn world(runs: bool) -> (Snapshot, Plan) {
    let nodes: Vec<NodeInput> = (0..NODES).map(node).collect();
    let (mut jobs, mut decisions) = (Vec::new(), Vec::new());
    for job in 0..JOBS {
        let placement = placement(&nodes, job);
        let id = JobId(u64::try_from(job).expect("a usize fits"));
        let speed = SpeedModel::of_theta(
            SpeedForm::SyncGlobal { batch: 64 },
            vec![0.01, 0.01, 0.02, 0.001, 0.001],
        );
        let reason = Reason {
            words: Words::Plain("starts".to_owned()),
            allocated: placement.shape(),
            transfer_time: Some(transfer_time(&placement)),
            cross_node_share: Some(cross_node_share(&placement)),
            ..Reason::default()
        };
        let current = runs.then(|| Current {
            placement: placement.clone(),
            movable: true,
            since_change_ms: 0,
        });
        let verb = if runs { Verb::Keep } else { Verb::Start { placement } };
        decisions.push(Decision { job: id, verb, reason });
        jobs.push(JobInput {
            id,
            mode: Mode::Sync,
            worker: Resources::new(2_000, 8 << 30, 0),
            server: Resources::new(1_000, 4 << 30, 0),
            min: Shape::new(1, 1),
            max: Shape::new(64, 64),
            priority: 1.0,
            arrival: Millis(0),
            current,
            want: Want::Share { speed, remaining: None },
            requested: None,
            attained_s: 0.0,
            goodput: None,
            rescale_cost_s: 10.0,
        });
    }
    let snapshot = Snapshot { revision: 1, now: Millis(0), nodes: nodes.into(), jobs };
    (snapshot, Plan { revision: 1, decisions })
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn median_ms(snapshot: &Snapshot, plan: &Plan) -> Option<f64> {
    let mut times = Vec::new();
    for _ in 0..51 {
        let start = Instant::now();
        let faults = check(snapshot, plan);
        times.push(start.elapsed().as_secs_f64() * 1000.0);
        if !faults.is_empty() {
            return None;
        }
    }
    times.sort_by(f64::total_cmp);
    Some(times[times.len() / 2])
}

#[expect(clippy::print_stdout, reason = "a benchmark tells what it measured")]
fn main() -> ExitCode {
    for (name, runs) in [("all start", false), ("all kept", true)] {
        let (snapshot, plan) = world(runs);
        match median_ms(&snapshot, &plan) {
            Some(median) => println!("check, {name}: {median:.2} ms (median of 51)"),
            None => return ExitCode::FAILURE,
        }
    }
    ExitCode::SUCCESS
}
