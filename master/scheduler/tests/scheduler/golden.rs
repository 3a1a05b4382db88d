//! Allocations by Eqn. (9) with Table 2's function on the paper's kind of cluster, worked out by
//! hand and by two other programs.

use model::{Resources, Shape};
use scheduler::allocate::{Claim, Progress, allocate};

use crate::world::paper_sync;

const MEGABYTE: u64 = 1_000_000;

fn amounts(cpus: u64, gigabytes: u64, gpus: u64) -> Resources {
    Resources::new(cpus * 1000, gigabytes * 1000 * MEGABYTE, gpus)
}

/// Shapes and the sum of remaining times for jobs of these numbers of steps.
fn allocated(steps: &[f64]) -> (Vec<(u32, u32)>, f64) {
    let speed = paper_sync();
    let (server, worker) = (amounts(3, 9, 0), amounts(2, 8, 1));
    let total = amounts(13 * 16, 13 * 48, 13 * 2);
    let claims: Vec<Claim<'_>> = steps
        .iter()
        .map(|steps| Claim {
            least: Shape::new(1, 1),
            max: Shape::new(1000, 1000),
            server: &server,
            worker: &worker,
            weight: 1.0,
            progress: Some(Progress { speed: &speed, work: *steps }),
        })
        .collect();
    let shapes = allocate(&total, &total, &claims);
    let seconds = claims
        .iter()
        .zip(&shapes)
        .map(|(claim, shape)| claim.progress.unwrap().seconds_left(*shape))
        .sum();
    (shapes.into_iter().map(|shape| (shape.servers, shape.workers)).collect(), seconds)
}

#[test]
fn three_jobs_skip_what_does_not_fit_and_go_on() {
    let (shapes, seconds) = allocated(&[10.0, 50.0, 100.0]);
    assert_eq!(shapes, [(5, 4), (17, 9), (26, 11)]);
    assert!((seconds - 1573.1).abs() < 0.05, "{seconds}");
}

#[test]
fn six_jobs_share_the_cluster() {
    let (shapes, seconds) = allocated(&[10.0, 50.0, 100.0, 200.0, 400.0, 30.0]);
    assert_eq!(shapes, [(2, 2), (4, 3), (7, 4), (12, 6), (18, 8), (3, 3)]);
    assert!((seconds - 10109.6).abs() < 0.05, "{seconds}");
}

#[test]
fn units_do_not_matter() {
    let speed = paper_sync();
    let shapes = |unit: u64| {
        let scaled = |cpus: u64, bytes: u64, gpus: u64| Resources::new(cpus, bytes * unit, gpus);
        let (server, worker) = (scaled(3000, 9, 0), scaled(2000, 8, 1));
        let total = scaled(208_000, 624, 26);
        let claim = |work: f64| Claim {
            least: Shape::new(1, 1),
            max: Shape::new(1000, 1000),
            server: &server,
            worker: &worker,
            weight: 1.0,
            progress: Some(Progress { speed: &speed, work }),
        };
        allocate(&total, &total, &[claim(10.0), claim(50.0), claim(100.0)])
    };
    assert_eq!(shapes(1), shapes(1 << 30));
}

#[test]
fn a_job_that_gains_nothing_takes_nothing_more() {
    let (mut fast, resources) = (paper_sync(), amounts(1, 1, 0));
    // Constant time: no task helps.
    fast.theta = vec![0.0, 5.0, 0.0, 0.0, 0.0];
    let claim = Claim {
        least: Shape::new(1, 1),
        max: Shape::new(4096, 4096),
        server: &resources,
        worker: &resources,
        weight: 1.0,
        progress: Some(Progress { speed: &fast, work: 1000.0 }),
    };
    let total = amounts(10_000, 10_000, 0);
    let scaling = paper_sync();
    let bounded = Claim {
        max: Shape::new(3, 2),
        progress: Some(Progress { speed: &scaling, work: 1e9 }),
        ..claim.clone()
    };
    let unknown = Claim { progress: None, ..claim.clone() };
    let shapes = allocate(&total, &total, &[claim, bounded, unknown]);
    assert_eq!(shapes, [Shape::new(1, 1), Shape::new(3, 2), Shape::new(1, 1)]);
}

#[test]
fn least_shapes_go_by_arrival_and_weight_decides_the_rest() {
    let speed = paper_sync();
    let resources = amounts(1, 1, 0);
    let claim = |weight: f64| Claim {
        least: Shape::new(1, 1),
        max: Shape::new(9, 9),
        server: &resources,
        worker: &resources,
        weight,
        progress: Some(Progress { speed: &speed, work: 100.0 }),
    };
    let total = amounts(5, 5, 0);
    let three = allocate(&total, &total, &[claim(1.0), claim(1.0), claim(9.0)]);
    assert_eq!(three, [Shape::new(1, 2), Shape::new(1, 1), Shape::new(0, 0)], "ties go first");
    let two = allocate(&total, &total, &[claim(1.0), claim(9.0)]);
    assert_eq!(two[0], Shape::new(1, 1));
    assert_eq!(two[1].servers + two[1].workers, 3);
}
