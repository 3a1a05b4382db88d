//! What is placed where the allocation does not fit, and the allocation against a plain greedy.

use model::{Resources, Shape};
use proptest::prelude::*;
use scheduler::allocate::{Claim, Progress, allocate};
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::place::place;
use scheduler::plan::Decision;

use crate::world::{job, node, nodes, paper_sync, planned, shape_of, share, snapshot};

const GB: u64 = 1_000_000_000;

/// Jobs of the golden allocation cases on 13 nodes: allocated and placed shapes.
fn golden(steps: &[f64]) -> Vec<(Shape, Shape)> {
    let jobs = (1..).zip(steps).map(|(id, steps)| {
        let mut job = job(id, share(paper_sync(), *steps));
        job.server = Resources::new(3000, 9 * GB, 0);
        job.worker = Resources::new(2000, 8 * GB, 1);
        job.max = Shape::new(1000, 1000);
        job
    });
    let world = snapshot(nodes(13, &Resources::new(16_000, 48 * GB, 2)), jobs.collect());
    let plan = planned(&world);
    let pair = |decision: &Decision| {
        (decision.reason.allocated, shape_of(&decision.verb).expect("all start"))
    };
    plan.decisions.iter().map(pair).collect()
}

#[test]
fn the_golden_cases_are_shrunk_by_the_least_loss() {
    let pairs = |pairs: &[(u32, u32)]| -> Vec<Shape> {
        pairs.iter().map(|(servers, workers)| Shape::new(*servers, *workers)).collect()
    };
    let (allocated, placed): (Vec<_>, Vec<_>) = golden(&[10.0, 50.0, 100.0]).into_iter().unzip();
    assert_eq!(allocated, pairs(&[(5, 4), (17, 9), (26, 11)]));
    // Beside the first two there is room for 21 servers and 9 workers, or 20 and 10, which are
    // quicker: found by trying all shapes.
    assert_eq!(placed, pairs(&[(5, 4), (17, 9), (20, 10)]));
    let six = golden(&[10.0, 50.0, 100.0, 200.0, 400.0, 30.0]);
    let (allocated, placed): (Vec<_>, Vec<_>) = six.into_iter().unzip();
    assert_eq!(allocated, pairs(&[(2, 2), (4, 3), (7, 4), (12, 6), (18, 8), (3, 3)]));
    assert_eq!(placed, pairs(&[(2, 2), (4, 3), (7, 4), (12, 6), (11, 8), (3, 3)]));
}

fn theta() -> impl Strategy<Value = SpeedModel> {
    proptest::collection::vec(0.001..3.0_f64, 5)
        .prop_map(|theta| SpeedModel::of_theta(SpeedForm::SyncGlobal { batch: 8 }, theta))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_lone_job_gets_the_quickest_shape_that_fits(
        speed in theta(), counts in proptest::collection::vec((0_u64..9, 0_u64..9), 1..5),
        (server, worker) in ((1_u64..4, 0_u64..4), (1_u64..4, 0_u64..4)),
    ) {
        let mut only = job(1, share(speed.clone(), 1000.0));
        only.server = Resources::new(server.0, server.1, 0);
        only.worker = Resources::new(worker.0, worker.1, 0);
        only.max = Shape::new(7, 7);
        let nodes: Vec<_> = (0..)
            .zip(&counts)
            .map(|(at, (cpus, memory)): (u32, _)| node(&format!("n{at}"), Resources::new(*cpus, *memory, 0)))
            .collect();
        let room: Vec<_> = nodes.iter().map(|node| (node.id.clone(), node.capacity.clone())).collect();
        let plan = planned(&snapshot(nodes, vec![only.clone()]));
        let allocated = plan.decisions[0].reason.allocated;
        let seconds = |shape: Shape| 1000.0 / speed.steps_per_s(shape);
        let found = shape_of(&plan.decisions[0].verb).map(seconds);
        let shapes = (1..=allocated.servers)
            .flat_map(|servers| (1..=allocated.workers).map(move |workers| Shape::new(servers, workers)));
        let fits = |shape: &Shape| place(*shape, &only.server, &only.worker, &room).is_some();
        let best = shapes.filter(fits).map(seconds).min_by(f64::total_cmp);
        match (found, best) {
            (Some(found), Some(best)) => prop_assert!(found <= best * (1.0 + 1e-9), "{found} s, not {best} s"),
            (None, None) => {}
            (found, best) => prop_assert!(false, "{found:?} where {best:?} is possible"),
        }
    }

    /// The sweeps give what a greedy gives that looks at every task each time.
    #[test]
    fn the_allocation_is_the_greedy_one(
        rows in proptest::collection::vec(
            (theta(), 1.0..1e5_f64, (1_u64..5, 0_u64..5, 0_u64..2), (1_u64..5, 0_u64..5), 0.1..4.0_f64), 1..7),
        total in (10_u64..150, 10_u64..150, 0_u64..60),
    ) {
        let total = Resources::new(total.0, total.1, total.2);
        let tasks: Vec<(Resources, Resources)> = rows
            .iter()
            .map(|(_, _, worker, server, _)| {
                (Resources::new(server.0, server.1, 0), Resources::new(worker.0, worker.1, worker.2))
            })
            .collect();
        let claims: Vec<Claim<'_>> = rows
            .iter()
            .zip(&tasks)
            .map(|((speed, work, _, _, weight), (server, worker))| Claim {
                least: Shape::new(1, 1),
                max: Shape::new(40, 40),
                server,
                worker,
                weight: *weight,
                progress: Some(Progress { speed, work: *work }),
            })
            .collect();
        prop_assert_eq!(allocate(&total, &total, &claims), greedy(&total, &claims));
    }
}

/// Section 4.1 word by word: the best task of all that fits, again and again.
fn greedy(total: &Resources, claims: &[Claim<'_>]) -> Vec<Shape> {
    let mut left = total.clone();
    let mut given = vec![Shape::default(); claims.len()];
    for (given, claim) in given.iter_mut().zip(claims) {
        let need = claim.least.demand(claim.worker, claim.server);
        if left.covers(&need) {
            (*given, left) = (claim.least, left.minus_saturating(&need));
        }
    }
    let share = |task: &Resources| {
        ["cpus", "memory", "gpus"]
            .map(|kind| task.amount(kind) as f64 / total.amount(kind).max(1) as f64)
            .into_iter()
            .fold(1e-9, f64::max)
    };
    let mut shut = vec![[false; 2]; claims.len()];
    loop {
        let mut best: Option<(f64, usize, usize)> = None;
        for (at, claim) in claims.iter().enumerate().filter(|(at, _)| !given[*at].is_empty()) {
            let held = given[at];
            let more = [
                Shape::new(held.servers + 1, held.workers),
                Shape::new(held.servers, held.workers + 1),
            ];
            for (kind, task) in [claim.server, claim.worker].into_iter().enumerate() {
                let inside = more[kind].servers <= claim.max.servers
                    && more[kind].workers <= claim.max.workers;
                let progress = claim.progress.expect("all have");
                let saved = progress.seconds_left(held) - progress.seconds_left(more[kind]);
                let gain = saved * claim.weight / share(task);
                if !shut[at][kind] && inside && gain > 0.0 && best.is_none_or(|best| gain > best.0)
                {
                    best = Some((gain, at, kind));
                }
            }
        }
        let Some((_, at, kind)) = best else { return given };
        let task = [claims[at].server, claims[at].worker][kind];
        if left.covers(task) {
            left = left.minus_saturating(task);
            let held = &mut given[at];
            if kind == 0 { held.servers += 1 } else { held.workers += 1 }
        } else {
            shut[at][kind] = true;
        }
    }
}

#[test]
fn a_job_left_out_takes_from_those_that_only_start() {
    // Two nodes of 4 CPUs: the first job would take all of both, the second needs 2 CPUs.
    let (mut first, second) = (job(1, share(paper_sync(), 1e4)), job(2, share(paper_sync(), 10.0)));
    first.max = Shape::new(20, 20);
    let world = snapshot(nodes(2, &Resources::new(4000, 64 << 30, 0)), vec![first, second]);
    let plan = planned(&world);
    let placed = |at: usize| shape_of(&plan.decisions[at].verb);
    assert!(placed(0).is_some() && placed(1).is_some(), "{plan:#?}");
}
