//! Each allocation with each placement.

use std::sync::Arc;

use model::{Millis, Shape};
use proptest::prelude::*;
use scheduler::goodput::{Elastic, Gradient, Limits};
use scheduler::plan::{Plan, Verb};
use scheduler::snapshot::{Allocation, Placing, Policy, Snapshot, Want};
use scheduler::{Cache, check, plan};

use crate::properties::{calm_world, world};
use crate::world::{
    carry_out, decision_of, is_still, job, node, nodes, resources, scalable, share,
};
use crate::world::{shape_of, snapshot, verb_of};

const ALLOCATIONS: [Allocation; 6] = [
    Allocation::MarginalGain,
    Allocation::Drf,
    Allocation::Tetris,
    Allocation::Fifo,
    Allocation::Tiresias,
    Allocation::Horizon,
];
const PLACINGS: [Placing; 5] =
    [Placing::Transfer, Placing::Spread, Placing::Pack, Placing::FirstFit, Placing::Fill];

fn pairs() -> impl Iterator<Item = Policy> {
    ALLOCATIONS.into_iter().flat_map(|allocation| {
        PLACINGS.map(|placing| Policy { allocation, placing, ..Policy::default() })
    })
}

fn planned_by(world: &Snapshot, policy: &Policy) -> Plan {
    let plan = plan(world, policy, &mut Cache::default());
    assert_eq!(check(world, &plan), Vec::<String>::new(), "{policy:?} {plan:#?} {world:#?}");
    plan
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_pair_breaks_a_rule_whatever_comes_in(mut world in world()) {
        for (at, job) in world.jobs.iter_mut().enumerate() {
            job.requested = (at % 3 > 0).then_some(Shape::new(1, 2));
        }
        for policy in pairs() {
            planned_by(&world, &policy);
        }
    }

    #[test]
    fn a_plan_that_was_carried_out_comes_to_rest(
        mut world in prop_oneof![3 => calm_world(5), 1 => calm_world(30)]
    ) {
        let start = world.clone();
        for policy in pairs() {
            world.clone_from(&start);
            for job in &mut world.jobs {
                job.requested = Some(job.min);
            }
            let rests = (0..12).any(|_| {
                let plan = planned_by(&world, &policy);
                carry_out(&mut world, &plan);
                is_still(&plan)
            });
            prop_assert!(rests, "{policy:?} moves jobs for ever");
        }
    }
}

#[test]
fn names_are_known() {
    for name in ["optimus", "drf", "tetris", "fifo", "tiresias", "horizon"] {
        assert!(Policy::by_name(name).is_some(), "{name}");
    }
    assert_eq!(Policy::by_name("optimus"), Some(Policy::default()));
    assert_eq!(Policy::by_name("best"), None);
}

#[test]
fn fifo_gives_what_was_requested_and_blocks_behind_the_first_that_waits() {
    let asks = |id, requested| {
        let mut job = job(id, share(scalable(), 1e5));
        job.requested = Some(requested);
        job.arrival = Millis(100 - id);
        job
    };
    let (large, small) = (Shape::new(2, 6), Shape::new(1, 2));
    // Arrivals fall with the number: j3 is first.
    let jobs = vec![asks(1, small), asks(2, large), asks(3, large)];
    let world = snapshot(vec![node("n01", resources(10_000, 64, 0))], jobs);
    let fifo = Policy::by_name("fifo").expect("known");
    let plan = planned_by(&world, &fifo);
    assert_eq!(shape_of(verb_of(&plan, 3)), Some(large));
    assert_eq!(verb_of(&plan, 2), &Verb::Wait);
    assert_eq!(verb_of(&plan, 1), &Verb::Wait, "3 CPUs are free, but j2 is before it");
    assert!(decision_of(&plan, 1).reason.text().contains("behind j2"), "{plan:#?}");
}

#[test]
fn fairness_shares_evenly_and_tetris_prefers_the_short() {
    let mut long = job(1, share(scalable(), 1e6));
    let mut short = job(2, share(scalable(), 1e3));
    (long.max, short.max) = (Shape::new(8, 8), Shape::new(8, 8));
    let world = snapshot(nodes(4, &resources(3000, 64, 0)), vec![long, short]);
    let given = |name: &str| {
        let plan = planned_by(&world, &Policy::by_name(name).expect("known"));
        [1, 2].map(|id| decision_of(&plan, id).reason.allocated.workers)
    };
    let [long, short] = given("drf");
    assert_eq!(long, short, "fairness knows no length");
    let [long, short] = given("tetris");
    assert!(short > long, "{short} workers for the short job, {long} for the long one");
    let [long, short] = given("optimus");
    assert!(long > short, "by the paper's gain a long job gains more");
}

#[test]
fn tiresias_lets_who_had_little_before_who_had_much() {
    let asks = |id, attained_s, requested| {
        let mut job = job(id, share(scalable(), 1e5));
        (job.requested, job.attained_s, job.arrival) = (Some(requested), attained_s, Millis(id));
        job
    };
    let (whole, half) = (Shape::new(1, 5), Shape::new(1, 2));
    let mut world = snapshot(nodes(1, &resources(6000, 64, 0)), vec![asks(1, 0.0, whole)]);
    let tiresias = Policy::by_name("tiresias").expect("known");
    let plan = planned_by(&world, &tiresias);
    assert_eq!(shape_of(verb_of(&plan, 1)), Some(whole));
    carry_out(&mut world, &plan);
    // Who comes later waits behind one of the same queue.
    world.jobs.push(asks(2, 0.0, half));
    let plan = planned_by(&world, &tiresias);
    assert_eq!((verb_of(&plan, 1), verb_of(&plan, 2)), (&Verb::Keep, &Verb::Wait));
    assert!(decision_of(&plan, 2).reason.text().contains("beside the jobs before it"), "{plan:#?}");
    // 16 GPU hours later the first one gives way, and the other starts once it is gone.
    world.jobs[0].attained_s = 57_600.0;
    let plan = planned_by(&world, &tiresias);
    assert_eq!((verb_of(&plan, 1), verb_of(&plan, 2)), (&Verb::Evict, &Verb::Wait));
    assert!(decision_of(&plan, 1).reason.text().contains("gives way"), "{plan:#?}");
    assert!(decision_of(&plan, 2).reason.text().contains("j1 is giving up"), "{plan:#?}");
    carry_out(&mut world, &plan);
    let plan = planned_by(&world, &tiresias);
    assert_eq!((verb_of(&plan, 1), shape_of(verb_of(&plan, 2))), (&Verb::Wait, Some(half)));
    carry_out(&mut world, &plan);
    assert!(is_still(&planned_by(&world, &tiresias)));
    // Nobody comes back while the knob is as it is.
    let patient = Policy { queue_gpu_s: 1e6, ..tiresias };
    assert_eq!(verb_of(&planned_by(&world, &patient), 2), &Verb::Evict);
}

#[test]
fn tiresias_gives_workers_alone_to_jobs_that_exchange_gradients_themselves() {
    let asks = |id, attained_s, workers| {
        let mut job = job(id, share(scalable(), 1e5));
        (job.worker, job.server) = (resources(1000, 1, 1), resources(0, 0, 0));
        (job.requested, job.arrival) = (Some(Shape::new(0, workers)), Millis(id));
        (job.max, job.attained_s) = (Shape::new(0, 16), attained_s);
        job.goodput = Some(Arc::new(Elastic {
            throughput: None,
            gradient: Gradient { sqr: 1.0, var: 1.0 },
            limits: Limits {
                initial: 128,
                batch_max: 1024,
                local_min: 32,
                local_max: 256,
                accumulation: true,
            },
            replicas_max: 1,
            restarts: 0,
            age_s: 0.0,
        }));
        job
    };
    for placing in PLACINGS {
        let tiresias = Policy { placing, ..Policy::by_name("tiresias").expect("known") };
        let jobs = vec![asks(1, 1e9, 6), asks(2, 0.0, 5), asks(3, 0.0, 3)];
        let mut world = snapshot(nodes(2, &resources(16_000, 64, 4)), jobs);
        let plan = planned_by(&world, &tiresias);
        assert_eq!(verb_of(&plan, 1), &Verb::Wait, "{placing:?}");
        assert_eq!(shape_of(verb_of(&plan, 2)), Some(Shape::new(0, 5)), "{placing:?}");
        assert_eq!(shape_of(verb_of(&plan, 3)), Some(Shape::new(0, 3)), "{placing:?}");
        carry_out(&mut world, &plan);
        assert!(is_still(&planned_by(&world, &tiresias)), "{placing:?}");
    }
}

#[test]
fn tiresias_serves_the_next_where_the_nodes_have_no_room_for_the_first() {
    let asks = |id, requested| {
        let mut job = job(id, share(scalable(), 1e5));
        (job.requested, job.arrival) = (Some(requested), Millis(id));
        job
    };
    // Nine workers of 1 CPU fit in the total of four nodes, and no more than two on each.
    let jobs =
        vec![asks(1, Shape::new(2, 9)), asks(2, Shape::new(1, 3)), asks(3, Shape::new(2, 6))];
    let world = snapshot(nodes(4, &resources(2500, 64, 0)), jobs);
    let plan = planned_by(&world, &Policy::by_name("tiresias").expect("known"));
    assert_eq!(verb_of(&plan, 1), &Verb::Wait, "nine on four nodes of two");
    assert_eq!(shape_of(verb_of(&plan, 2)), Some(Shape::new(1, 3)));
    assert_eq!(verb_of(&plan, 3), &Verb::Wait);
}

#[test]
fn a_job_beside_one_that_is_profiled_is_not_in_its_own_way() {
    let with_gpu = |id, want| {
        let mut job = job(id, want);
        job.worker.gpus = 1;
        job.requested = Some(job.min);
        job
    };
    let profile = Want::Profile { shapes: vec![Shape::new(1, 1)] };
    let jobs = vec![with_gpu(1, share(scalable(), 1e5)), with_gpu(2, profile)];
    let world = snapshot(vec![node("n01", resources(8_000, 64, 1))], jobs);
    for policy in pairs() {
        let plan = planned_by(&world, &policy);
        // The policy that looks ahead lets new jobs be measured before others get more.
        let first = if policy.allocation == Allocation::Horizon { 2 } else { 1 };
        assert!(matches!(verb_of(&plan, first), Verb::Start { .. }), "{policy:?} {plan:#?}");
        assert_eq!(verb_of(&plan, 3 - first), &Verb::Wait, "{policy:?}");
    }
}
