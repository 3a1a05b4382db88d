//! What a round costs: `cargo bench -p scheduler --bench round`.
//!
//! Prints a table over cluster sizes, in milliseconds on one core, medians of several runs, for a
//! cold round, the checker, and a warm round in which one job changed.

use std::time::Instant;

use model::{Batch, JobId, Millis, Mode, NodeId, Resources, Shape};
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::plan::{Plan, Verb};
use scheduler::snapshot::{JobInput, NodeInput, Policy, Remaining, Snapshot, Want};
use scheduler::{Cache, Stage, check, plan, plan_watched};

const GIB: u64 = 1 << 30;

/// Jobs of a few kinds that get about 25 tasks each.
fn job(id: u64) -> JobInput {
    let kind = f64::from(u32::try_from(id % 7 + 1).unwrap_or(1));
    let (form, theta) = if id.is_multiple_of(2) {
        (SpeedForm::of(Mode::Async, Batch::Global(32)), vec![1.0, 0.2 * kind, 0.01, 0.02])
    } else {
        (SpeedForm::SyncGlobal { batch: 64 }, vec![0.02, 0.01, 0.02 * kind, 0.002, 0.001])
    };
    let work = 1e4 * kind;
    JobInput {
        id: JobId(id),
        mode: Mode::Sync,
        worker: Resources::new(2000 + 500 * (id % 3), 8 * GIB, id % 2),
        server: Resources::new(1000, (4 + id % 3) * GIB, 0),
        min: Shape::new(1, 1),
        max: Shape::new(16, 24),
        priority: 1.0,
        arrival: Millis(id),
        current: None,
        want: Want::Share {
            speed: SpeedModel::of_theta(form, theta),
            remaining: Some(Remaining { value: work, low: work, high: work }),
        },
        requested: None,
        attained_s: 0.0,
        rescale_cost_s: 10.0,
    }
}

fn cluster(jobs: u64, nodes: usize) -> Snapshot {
    let node = |at: usize| NodeInput {
        id: format!("n{at:06}").parse::<NodeId>().expect("a plain name"),
        capacity: if at.is_multiple_of(2) {
            Resources::new(16_000, 80 * GIB, 0)
        } else {
            Resources::new(8_000, 48 * GIB, 2)
        },
        held: Resources::default(),
        open: true,
    };
    Snapshot {
        revision: 1,
        now: Millis(0),
        nodes: (0..nodes).map(node).collect(),
        jobs: (1..=jobs).map(job).collect(),
    }
}

fn tasks(plan: &Plan) -> u64 {
    let placed = |verb: &Verb| match verb {
        Verb::Start { placement } | Verb::Rescale { placement } => placement.shape(),
        Verb::Keep | Verb::Evict | Verb::Wait => Shape::default(),
    };
    let shapes = plan.decisions.iter().map(|decision| placed(&decision.verb));
    shapes.map(|shape| u64::from(shape.servers) + u64::from(shape.workers)).sum()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

const RUNS: usize = 9;

#[expect(clippy::print_stdout, reason = "the benchmark's answer")]
fn main() {
    println!("nodes jobs tasks allocate_ms place_ms total_ms check_ms warm_ms warm_running_ms");
    let policy = Policy::default();
    for (jobs, nodes) in [(4_000, 16_000)] {
        let snapshot = cluster(jobs, nodes);
        let (mut allocating, mut placing, mut checking) = (Vec::new(), Vec::new(), Vec::new());
        let (mut warm, mut warm_running) = (Vec::new(), Vec::new());
        let mut placed = 0;
        for _ in 0..RUNS {
            let mut cache = Cache::default();
            let (mut spent, mut last) = ([0.0; 2], now());
            let made = plan_watched(&snapshot, &policy, &mut cache, &mut |stage| {
                spent[usize::from(stage == Stage::Placed)] += ms(last);
                last = now();
            });
            placed = tasks(&made);
            allocating.push(spent[0]);
            placing.push(spent[1]);
            let start = now();
            let faults = check(&snapshot, &made);
            checking.push(ms(start));
            assert!(faults.is_empty(), "{:?}", faults.first());

            let mut changed = snapshot.clone();
            let at = changed.jobs.len() / 2;
            if let Want::Share { remaining: Some(remaining), .. } = &mut changed.jobs[at].want {
                remaining.value *= 2.0;
            }
            let mut copy = cache.clone();
            let start = now();
            let again = plan(&changed, &policy, &mut copy);
            warm.push(ms(start));
            assert_eq!(check(&changed, &again).len(), 0);

            for (job, decision) in changed.jobs.iter_mut().zip(&made.decisions) {
                if let Verb::Start { placement } = &decision.verb {
                    job.current = Some(scheduler::snapshot::Current {
                        placement: placement.clone(),
                        movable: true,
                        since_change_ms: u64::MAX,
                    });
                }
            }
            let start = now();
            let again = plan(&changed, &policy, &mut cache);
            warm_running.push(ms(start));
            assert_eq!(check(&changed, &again).len(), 0);
        }
        let (allocate, place) = (median(allocating), median(placing));
        println!(
            "{nodes} {jobs} {placed} {allocate:.2} {place:.2} {:.2} {:.2} {:.2} {:.2}",
            allocate + place,
            median(checking),
            median(warm),
            median(warm_running)
        );
    }
}
