//! The schedulers that Optimus is compared with (section 6.1).

use model::Shape;
use proptest::prelude::*;
use scheduler::baseline::{Ask, Nodes, Placer, Rule, drf, fifo, first_fit, pack, spread, tetris};

/// Of 1 to 100 servers and workers, for which half of them is a fixed part of the time.
fn ask<'a>(server: &'a [i64], worker: &'a [i64], seconds: &'a dyn Fn(Shape) -> f64) -> Ask<'a> {
    Ask {
        least: Shape::new(1, 1),
        max: Shape::new(100, 100),
        server,
        worker,
        weight: 1.0,
        requested: None,
        arrival_ms: 0,
        attained_gpu_s: 0.0,
        seconds_left: seconds,
    }
}

/// Seconds at one server and one worker; each more of both saves less.
fn halving(seconds: f64) -> impl Fn(Shape) -> f64 {
    move |shape| seconds * (0.1 + 0.9 / f64::from(shape.servers.min(shape.workers)))
}

fn shape(servers: u32, workers: u32) -> Shape {
    Shape::new(servers, workers)
}

/// The example of the DRF paper's section 4: 9 CPUs and 18 GB; tasks of A take 1 CPU and 4 GB,
/// those of B 3 CPUs and 1 GB. A gets three and B two.
#[test]
fn drf_fills_the_least_dominant_share() {
    let unknown = |_: Shape| f64::NAN;
    let nothing: &[i64] = &[0, 0];
    let asks = [ask(nothing, &[1, 4], &unknown), ask(nothing, &[3, 1], &unknown)];
    assert_eq!(drf(&[9, 18], &[9, 18], &asks), [shape(3, 3), shape(2, 2)]);
    // Twice the weight, twice the share.
    let heavy = [Ask { weight: 2.0, ..asks[0] }, asks[0]];
    assert_eq!(drf(&[24, 24], &[24, 24], &heavy), [shape(4, 4), shape(2, 2)]);
}

#[test]
fn growth_is_one_to_one_within_the_bounds() {
    let unknown = |_: Shape| f64::NAN;
    let of = |least: Shape, max: Shape, cpus: i64| {
        let ask = Ask { least, max, ..ask(&[1], &[1], &unknown) };
        drf(&[100], &[cpus], &[ask])[0]
    };
    assert_eq!(of(shape(1, 1), shape(9, 9), 7), shape(3, 3));
    assert_eq!(of(shape(1, 4), shape(9, 9), 4), shape(0, 0));
    assert_eq!(of(shape(1, 4), shape(9, 9), 7), shape(3, 4));
    assert_eq!(of(shape(1, 1), shape(2, 5), 100), shape(2, 2));
    assert_eq!(of(shape(0, 0), shape(1, 1), 100), shape(1, 1));
    assert_eq!(of(shape(3, 3), shape(2, 5), 100), shape(0, 0));
}

#[test]
fn a_job_that_does_not_fit_is_skipped() {
    let time = halving(100.0);
    let asks = [ask(&[8], &[8], &time), ask(&[1], &[2], &time)];
    for allocate in [drf, tetris] {
        assert_eq!(allocate(&[100], &[7], &asks), [shape(0, 0), shape(2, 2)]);
    }
}

#[test]
fn tetris_prefers_short_and_small_jobs() {
    let (short, long) = (halving(10.0), halving(1000.0));
    let by_time = [ask(&[1], &[1], &long), ask(&[1], &[1], &short)];
    assert_eq!(tetris(&[2], &[2], &by_time), [shape(0, 0), shape(1, 1)]);
    // The worker of the first takes all three kinds of which much is free; both are as long.
    let aligned = [ask(&[0, 1], &[0, 1], &short), ask(&[1, 0], &[1, 0], &short)];
    assert_eq!(tetris(&[10, 10], &[2, 9], &aligned)[0], shape(4, 4));
    // It grows while it gets faster: not beyond four, and not where the time is not known.
    let best_at_four = |shape: Shape| f64::from(shape.workers.abs_diff(4)) + 1.0;
    let unknown = |_: Shape| f64::NAN;
    let asks = [ask(&[1], &[1], &best_at_four), ask(&[1], &[1], &unknown)];
    assert_eq!(tetris(&[100], &[100], &asks), [shape(4, 4), shape(1, 1)]);
    assert_eq!(drf(&[100], &[100], &asks), [shape(25, 25), shape(25, 25)]);
}

#[test]
fn fifo_waits_behind_the_first_that_does_not_fit() {
    let unknown = |_: Shape| f64::NAN;
    let wants = |arrival_ms: u64, requested: Option<Shape>| Ask {
        arrival_ms,
        requested,
        ..ask(&[1], &[1], &unknown)
    };
    let asks = [
        wants(4, Some(shape(1, 1))),
        wants(3, Some(shape(3, 3))),
        wants(1, Some(shape(2, 3))),
        // These hold up nobody: no request, one outside the bounds, one beyond the cluster.
        wants(0, None),
        wants(0, Some(shape(0, 1))),
        wants(0, Some(shape(5, 6))),
    ];
    let mut given = vec![Shape::default(); 6];
    given[2] = shape(2, 3);
    assert_eq!(fifo(&[10], &[10], &asks), given);
    given[1] = shape(3, 3);
    assert_eq!(fifo(&[20], &[11], &asks[..5]), given[..5]);
}

/// Three nodes of 4 CPUs and 8 GB, the last with two GPUs; the third is half full.
struct World {
    left: Vec<i64>,
    open: Vec<bool>,
}

const CAPACITY: [i64; 12] = [4, 8, 0, 4, 8, 0, 4, 8, 0, 4, 8, 2];

impl World {
    fn new() -> Self {
        let mut left = CAPACITY.to_vec();
        left[6..8].copy_from_slice(&[2, 4]);
        Self { left, open: vec![true; 4] }
    }

    fn nodes(&mut self) -> Nodes<'_> {
        Nodes { kinds: 3, capacity: &CAPACITY, left: &mut self.left, open: &self.open }
    }
}

#[test]
fn each_rule_puts_tasks_where_it_should() {
    let (server, worker) = (&[1, 2, 0], &[1, 2, 0]);
    let mut world = World::new();
    let spots = spread(&mut world.nodes(), server, worker, shape(2, 1));
    assert_eq!(spots, Some(vec![(0, shape(1, 0)), (1, shape(1, 0)), (3, shape(0, 1))]));
    let mut world = World::new();
    let spots = pack(&mut world.nodes(), server, worker, shape(1, 2));
    assert_eq!(spots, Some(vec![(0, shape(0, 1)), (2, shape(1, 1))]));
    assert_eq!(world.left, [3, 6, 0, 4, 8, 0, 0, 0, 0, 4, 8, 2]);
    let mut world = World::new();
    let spots = first_fit(&mut world.nodes(), server, &[4, 0, 0], shape(2, 1));
    assert_eq!(spots, Some(vec![(0, shape(2, 0)), (1, shape(0, 1))]));
    // GPUs are only on the last; where it is closed, all is given back.
    let gpu = &[1, 1, 1];
    let mut world = World::new();
    let spots = pack(&mut world.nodes(), server, gpu, shape(1, 2));
    assert_eq!(spots, Some(vec![(2, shape(1, 0)), (3, shape(0, 2))]));
    let mut world = World::new();
    world.open[3] = false;
    assert_eq!(spread(&mut world.nodes(), server, gpu, shape(1, 1)), None);
    assert_eq!(world.left, World::new().left);
    for wrong in [shape(0, 1), shape(1, 0), shape(u32::MAX, 1), shape(1, u32::MAX)] {
        assert_eq!(first_fit(&mut world.nodes(), &[], &[], wrong), None);
    }
    assert_eq!(first_fit(&mut world.nodes(), &[0, 0, 0, 1], worker, shape(1, 1)), None);
    let mut none = Nodes { kinds: 3, capacity: &[], left: &mut [], open: &[] };
    assert_eq!(spread(&mut none, server, worker, shape(1, 1)), None);
}

fn amount() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 0_i64..6, 1 => prop::num::i64::ANY, 1 => Just(i64::MAX)]
}

fn plenty() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 0_i64..60, 1 => prop::num::i64::ANY]
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![9 => 0_u32..9, 1 => Just(u32::MAX)]
}

/// A job's numbers: server, worker, bounds and request, weight and two of its time.
type Row = ([i64; 2], [i64; 2], [u32; 6], [f64; 3], u64);

fn row() -> impl Strategy<Value = Row> {
    let amounts = || [amount(), amount()];
    let number = || prop_oneof![4 => 0.1..100.0_f64, 1 => prop::num::f64::ANY];
    let counts = [count(), count(), count(), count(), count(), count()];
    (amounts(), amounts(), counts, [number(), number(), number()], 0_u64..4)
}

/// What jobs take of a kind; below zero is nothing.
fn taken(rows: &[Row], given: &[Shape], kind: usize) -> i128 {
    let of = |(row, shape): (&Row, &Shape)| {
        i128::from(row.0[kind].max(0)) * i128::from(shape.servers)
            + i128::from(row.1[kind].max(0)) * i128::from(shape.workers)
    };
    rows.iter().zip(given).map(of).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Never more than is free, never outside the bounds, the same every time; and drf leaves out
    /// no least shape that would still fit.
    #[test]
    fn allocations_hold_whatever_comes_in(
        rows in proptest::collection::vec(row(), 0..8), total in [plenty(), plenty()],
        free in [plenty(), plenty()],
    ) {
        let times: Vec<_> = rows.iter().map(|row| {
            let [_, a, b] = row.3;
            move |shape: Shape| a + b / f64::from(shape.workers)
        }).collect();
        let asks: Vec<Ask<'_>> = rows.iter().zip(&times).map(|(row, time)| Ask {
            least: shape(row.2[0], row.2[1]),
            max: shape(row.2[2], row.2[3]),
            server: &row.0,
            worker: &row.1,
            weight: row.3[0],
            requested: Some(shape(row.2[4], row.2[5])),
            arrival_ms: row.4,
            attained_gpu_s: 0.0,
            seconds_left: time,
        }).collect();
        for allocate in [drf, tetris, fifo] {
            let given = allocate(&total, &free, &asks);
            prop_assert_eq!(&given, &allocate(&total, &free, &asks));
            prop_assert_eq!(given.len(), asks.len());
            for (given, ask) in given.iter().zip(&asks).filter(|(given, _)| !given.is_empty()) {
                // Only a job that may have no servers gets workers alone.
                let servers = ask.least.servers.max(1).min(ask.max.servers);
                prop_assert!((servers..=ask.max.servers).contains(&given.servers));
                prop_assert!((ask.least.workers.max(1)..=ask.max.workers).contains(&given.workers));
            }
            for (kind, free) in free.iter().enumerate() {
                prop_assert!(taken(&rows, &given, kind) <= i128::from(*free.max(&0)));
            }
        }
        let given = drf(&total, &free, &asks);
        for (at, ask) in asks.iter().enumerate().filter(|(at, _)| given[*at].is_empty()) {
            let least = shape(ask.least.servers.max(1), ask.least.workers.max(1));
            let mut more = given.clone();
            more[at] = least;
            let over = |kind: usize| taken(&rows, &more, kind) > i128::from(free[kind].max(0));
            let unfit = least.servers > ask.max.servers.min(4096) || least.workers > ask.max.workers.min(4096);
            prop_assert!(unfit || over(0) || over(1), "{given:?} leaves {at} out");
        }
    }

    /// The index finds what a walk over all nodes finds, and nothing leaks.
    #[test]
    fn placements_are_those_of_a_plain_walk(
        nodes in proptest::collection::vec(([0_i64..9, 0_i64..9], [0_i64..3, 0_i64..3], prop::bool::weighted(0.9)), 0..12),
        jobs in proptest::collection::vec(([0_i64..4, 0_i64..4], [0_i64..4, 0_i64..4], 1_u32..4, 1_u32..4), 1..8),
    ) {
        let capacity: Vec<i64> = nodes.iter().flat_map(|(has, ..)| *has).collect();
        let start: Vec<i64> = nodes.iter().flat_map(|(has, held, _)| [has[0] - held[0], has[1] - held[1]]).collect();
        let open: Vec<bool> = nodes.iter().map(|(.., open)| *open).collect();
        for rule in [Rule::Spread, Rule::Pack, Rule::FirstFit, Rule::Fill] {
            let (mut left, mut plain) = (start.clone(), start.clone());
            let mut placer = Placer::new(Nodes { kinds: 2, capacity: &capacity, left: &mut left, open: &open });
            for (server, worker, servers, workers) in &jobs {
                let found = placer.place(rule, server, worker, shape(*servers, *workers));
                let (servers, workers) = ((server, *servers), (worker, *workers));
                let mut walk = |first, second| walk(rule, (&capacity, &mut plain, &open), first, second);
                // The servers first, else the workers.
                let flipped = |spots: Vec<(usize, Shape)>| -> Vec<(usize, Shape)> {
                    spots.into_iter().map(|(node, here)| (node, shape(here.workers, here.servers))).collect()
                };
                let walked = match walk(servers, workers) {
                    Some(spots) => Some(spots),
                    None => walk(workers, servers).map(flipped),
                };
                prop_assert_eq!(found, walked);
            }
            prop_assert_eq!(&left, &plain);
            prop_assert!(left.iter().zip(&start).all(|(left, start)| *left >= 0 || left == start));
        }
    }
}

/// A rule by a look at every node for every task.
fn walk(
    rule: Rule,
    (capacity, left, open): (&[i64], &mut Vec<i64>, &[bool]),
    server: (&[i64; 2], u32),
    worker: (&[i64; 2], u32),
) -> Option<Vec<(usize, Shape)>> {
    let before = left.clone();
    let (mut on, mut last) = (vec![Shape::default(); open.len()], None);
    let tasks = (0..server.1).map(|_| (server.0, shape(1, 0)));
    for (need, one) in tasks.chain((0..worker.1).map(|_| (worker.0, shape(0, 1)))) {
        let fits = |node: &usize| {
            open[*node] && (0..2).all(|kind| need[kind] == 0 || need[kind] <= left[2 * node + kind])
        };
        let share = |node: usize| {
            let of = |kind: usize| left[2 * node + kind] as f64 / capacity[2 * node + kind] as f64;
            let shares: Vec<f64> =
                (0..2).filter(|kind| capacity[2 * node + kind] > 0).map(of).collect();
            if shares.is_empty() { 0.0 } else { shares.iter().sum::<f64>() / shares.len() as f64 }
        };
        let score = |node: usize| match rule {
            Rule::Fill if last == Some(node) => f64::NEG_INFINITY,
            Rule::Spread | Rule::Fill => -share(node),
            Rule::Pack => share(node),
            Rule::FirstFit => 0.0,
        };
        let best = (0..open.len()).filter(fits).min_by(|a, b| score(*a).total_cmp(&score(*b)));
        let Some(node) = best else {
            *left = before;
            return None;
        };
        last = Some(node);
        (0..2).for_each(|kind| left[2 * node + kind] -= need[kind]);
        on[node] = shape(on[node].servers + one.servers, on[node].workers + one.workers);
    }
    Some(on.into_iter().enumerate().filter(|(_, here)| !here.is_empty()).collect())
}
