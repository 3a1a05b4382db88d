//! What a round costs: `cargo bench -p scheduler --bench round`.
//!
//! Prints a table over cluster sizes, in milliseconds on one core, medians of several runs, for a
//! cold round, the checker, and a warm round in which one job changed, before and after the first
//! plan was carried out; and the memory that a round takes beyond its input.

use std::time::Instant;

use model::{JobId, Millis, Mode, NodeId, Resources, Shape};
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::plan::{Plan, Verb};
use scheduler::snapshot::{JobInput, NodeInput, Policy, Remaining, Snapshot, Want};
use scheduler::{Cache, Stage, check, plan, plan_watched};

const GIB: u64 = 1 << 30;

/// A number in 0..1 of a job and a purpose, well mixed (splitmix64).
fn drawn(id: u64, purpose: u64) -> f64 {
    let mut bits = (id << 8 | purpose).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    f64::from(u32::try_from((bits ^ (bits >> 31)) >> 32).expect("32 bits")) / f64::from(u32::MAX)
}

fn one_of<T: Copy>(choices: &[T], id: u64, purpose: u64) -> T {
    let count = f64::from(u32::try_from(choices.len()).expect("a few"));
    let at = (1..).find(|at| drawn(id, purpose) * count <= f64::from(*at)).unwrap_or(1);
    choices[usize::try_from(at - 1).expect("small")]
}

/// Jobs around the measured coefficients of `paper_coefficients.json`, each with its own; about
/// 25 tasks each is what a cluster with four nodes for each job gives them.
fn job(id: u64) -> JobInput {
    let around = |theta: &[f64]| {
        (10..).zip(theta).map(|(at, theta)| theta * (0.5 + drawn(id, at))).collect::<Vec<f64>>()
    };
    let speed = if drawn(id, 1) < 0.5 {
        let theta = around(&[1.0223, 2.8222, 4.9029, 0.0001, 0.0125]);
        SpeedModel::of_theta(SpeedForm::SyncGlobal { batch: 40 }, theta)
    } else {
        let measured: [[f64; 4]; 4] = [
            [2.8335, 3.9188, 0.0, 0.505],
            [1.8432, 3.8148, 0.0331, 0.3584],
            [4.0933, 3.6790, 0.0, 0.6471],
            [1.188, 3.7519, 0.071, 0.028],
        ];
        SpeedModel::of_theta(SpeedForm::Async, around(&one_of(&measured, id, 2)))
    };
    let work = 100.0 + 19_900.0 * drawn(id, 3);
    JobInput {
        id: JobId(id),
        mode: Mode::Sync,
        worker: Resources::new(
            one_of(&[2000, 2500, 4000, 5000], id, 4),
            one_of(&[4, 8, 10], id, 5) * GIB,
            u64::from(drawn(id, 6) < 0.3),
        ),
        server: Resources::new(
            one_of(&[1000, 2000, 3000], id, 7),
            one_of(&[4, 8, 9], id, 8) * GIB,
            0,
        ),
        min: Shape::new(1, 1),
        max: Shape::new(4096, 4096),
        priority: 1.0,
        arrival: Millis(id),
        current: None,
        want: Want::Share {
            speed,
            remaining: Some(Remaining { value: work, low: work, high: work }),
        },
        requested: None,
        attained_s: 0.0,
        goodput: None,
        rescale_cost_s: 10.0,
    }
}

fn cluster(jobs: u64, nodes: usize) -> Snapshot {
    let node = |at: usize| NodeInput {
        id: format!("n{at:06}").parse::<NodeId>().expect("a plain name"),
        capacity: if at % 13 < 7 {
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

/// Bytes of a line of this process's status, such as the most that was ever resident.
fn status_bytes(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let kib = line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<f64>();
    kib.unwrap_or(f64::NAN) * 1024.0
}

/// What a round takes beyond its input, its plan and the kept cache included, in bytes a node
/// where each job counts as two and a half nodes.
fn bytes_a_node(snapshot: &Snapshot) -> f64 {
    // Forgets the peak so far.
    let forgotten = std::fs::write("/proc/self/clear_refs", "5").is_ok();
    let before = status_bytes("VmRSS:");
    let mut cache = Cache::default();
    let made = plan(snapshot, &Policy::default(), &mut cache);
    let peak = status_bytes("VmHWM:");
    drop((made, cache));
    let count = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let nodes = count(snapshot.nodes.len()) + 2.5 * count(snapshot.jobs.len());
    if forgotten { (peak - before) / nodes } else { f64::NAN }
}

const RUNS: usize = 9;

/// Jobs and nodes: four nodes a job, and the paper's two largest clusters.
const SIZES: [(u64, usize); 9] = [
    (250, 1_000),
    (500, 2_000),
    (1_000, 4_000),
    (2_000, 8_000),
    (4_000, 16_000),
    (8_000, 32_000),
    (8_000, 64_000),
    (16_000, 64_000),
    (32_000, 128_000),
];

#[expect(clippy::print_stdout, reason = "the benchmark's answer")]
fn main() {
    println!("nodes jobs tasks allocate_ms place_ms total_ms check_ms warm_ms running_ms bytes");
    let policy = Policy::default();
    for (jobs, nodes) in SIZES {
        let snapshot = cluster(jobs, nodes);
        let bytes = bytes_a_node(&snapshot);
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
            "{nodes} {jobs} {placed} {allocate:.2} {place:.2} {:.2} {:.2} {:.2} {:.2} {bytes:.0}",
            allocate + place,
            median(checking),
            median(warm),
            median(warm_running)
        );
    }
}
