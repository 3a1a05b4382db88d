//! Rounds of Pollux.

use std::sync::Arc;

use model::{JobId, Shape};
use proptest::prelude::*;
use scheduler::goodput::{Elastic, Gradient, Limits, Throughput};
use scheduler::plan::{Plan, Verb};
use scheduler::snapshot::{JobInput, NodeInput, Policy, Snapshot, Want};
use scheduler::{Cache, check, plan};

use crate::properties::world;
use crate::world::{
    carry_out, decision_of, job, nodes, resources, running, scalable, shape_of, share, snapshot,
    verb_of,
};

pub(crate) fn elastic(replicas_max: u32) -> Elastic {
    Elastic {
        throughput: Some(Throughput {
            alpha_c: 0.05,
            beta_c: 0.002,
            alpha_n: 0.06,
            beta_n: 0.002,
            alpha_r: 0.03,
            beta_r: 0.001,
            gamma: 1.6,
        }),
        gradient: Gradient { sqr: 1.0, var: 100.0 },
        limits: Limits {
            initial: 64,
            batch_max: 2048,
            local_min: 16,
            local_max: 256,
            accumulation: true,
        },
        replicas_max,
        restarts: 1,
        age_s: 3600.0,
    }
}

/// A job whose workers take a GPU each, and that has no servers.
pub(crate) fn trainer(id: u64, replicas_max: u32) -> JobInput {
    JobInput {
        worker: resources(1000, 1, 1),
        max: Shape::new(8, 64),
        goodput: Some(Arc::new(elastic(replicas_max))),
        ..job(id, share(scalable(), 1000.0))
    }
}

pub(crate) fn machines(count: usize) -> Vec<NodeInput> {
    nodes(count, &resources(8000, 64, 4))
}

fn planned(snapshot: &Snapshot, cache: &mut Cache) -> Plan {
    let policy = Policy::by_name("pollux").unwrap();
    let plan = plan(snapshot, &policy, cache);
    assert_eq!(check(snapshot, &plan), Vec::<String>::new(), "{plan:#?}\n{snapshot:#?}");
    plan
}

pub(crate) fn words(plan: &Plan, id: u64) -> String {
    decision_of(plan, id).reason.text()
}

#[test]
fn jobs_start_on_gpus_without_servers() {
    let world = snapshot(machines(4), vec![trainer(1, 1), trainer(2, 4), trainer(3, 2)]);
    let plan = planned(&world, &mut Cache::default());
    let shapes: Vec<Shape> =
        (1..=3).map(|id| shape_of(verb_of(&plan, id)).expect("starts")).collect();
    assert_eq!(shapes, [Shape::new(0, 1), Shape::new(0, 4), Shape::new(0, 2)]);
    let told = words(&plan, 2);
    assert!(told.contains("starts with 4 workers on 1 node") && told.contains("goodput"), "{told}");
    // The revision is the seed: the same snapshot, the same plan.
    assert_eq!(plan, planned(&world, &mut Cache::default()));
}

#[test]
fn a_job_without_goodput_waits_and_says_why() {
    let other = JobInput { goodput: None, ..trainer(2, 4) };
    let held = running(JobInput { goodput: None, ..trainer(3, 4) }, &[("n01", 1, 2)]);
    let world = snapshot(machines(1), vec![trainer(1, 4), other, held]);
    let plan = planned(&world, &mut Cache::default());
    assert_eq!(verb_of(&plan, 2), &Verb::Wait);
    assert_eq!(verb_of(&plan, 3), &Verb::Keep);
    for id in [2, 3] {
        assert!(words(&plan, id).contains("states no goodput"), "{}", words(&plan, id));
    }
    // What it holds is not shared out.
    assert_eq!(shape_of(verb_of(&plan, 1)), Some(Shape::new(0, 2)));
}

#[test]
fn who_must_not_be_moved_stays_and_keeps_its_room() {
    let mut starting = running(trainer(1, 1), &[("n01", 0, 3)]);
    starting.current.as_mut().unwrap().movable = false;
    let mut closed = machines(2);
    closed[1].open = false;
    let on_closed = running(trainer(3, 4), &[("n02", 0, 2)]);
    let world = snapshot(closed, vec![starting, trainer(2, 4), on_closed]);
    let plan = planned(&world, &mut Cache::default());
    assert_eq!((verb_of(&plan, 1), verb_of(&plan, 3)), (&Verb::Keep, &Verb::Keep));
    assert_eq!(shape_of(verb_of(&plan, 2)), Some(Shape::new(0, 1)), "one GPU is left");
    assert!(words(&plan, 3).contains("no new tasks"));
}

#[test]
fn a_job_leaves_a_node_that_is_gone() {
    let lost = running(trainer(1, 2), &[("gone", 0, 2)]);
    let world = snapshot(machines(1), vec![lost]);
    let plan = planned(&world, &mut Cache::default());
    assert_eq!(shape_of(verb_of(&plan, 1)), Some(Shape::new(0, 2)));
}

#[test]
fn a_pinned_shape_is_given_or_nothing() {
    let pinned = |id, workers, servers| JobInput {
        want: Want::Pinned { shape: Shape::new(servers, workers) },
        ..trainer(id, 16)
    };
    let jobs = vec![pinned(1, 3, 0), trainer(2, 4), pinned(3, 2, 1)];
    let world = snapshot(machines(1), jobs);
    let plan = planned(&world, &mut Cache::default());
    let given = shape_of(verb_of(&plan, 1));
    assert!(given.is_none_or(|shape| shape == Shape::new(0, 3)), "{given:?}");
    assert_eq!(verb_of(&plan, 3), &Verb::Wait);
    assert!(words(&plan, 3).contains("gives no servers"));
}

#[test]
fn other_resources_than_gpus_count_too() {
    let mut narrow = machines(2);
    narrow[0].capacity = resources(2000, 64, 4);
    let mut large = trainer(1, 8);
    large.worker = resources(4000, 1, 1);
    let world = snapshot(narrow, vec![large, trainer(2, 8), trainer(3, 8)]);
    let plan = planned(&world, &mut Cache::default());
    assert!(plan.decisions.iter().any(|decision| shape_of(&decision.verb).is_some()));
    let mut huge = trainer(4, 8);
    huge.worker = resources(9000, 1, 1);
    let world = snapshot(machines(2), vec![huge]);
    let plan = planned(&world, &mut Cache::default());
    assert_eq!(verb_of(&plan, 4), &Verb::Wait);
    let refused = decision_of(&plan, 4).reason.nodes_refused();
    assert!(refused.iter().any(|(why, count)| why.contains("CPUs") && *count == 2), "{refused:?}");
}

/// Two jobs hold what the other needs: nobody can move first, so one gives way.
#[test]
fn rounds_come_to_the_fittest_plan_though_nodes_are_full() {
    // With interference avoided, a job on several nodes keeps others of its kind away.
    let jobs = vec![
        running(trainer(1, 4), &[("n01", 0, 2), ("n02", 0, 2)]),
        running(trainer(2, 4), &[("n01", 0, 2), ("n02", 0, 2)]),
    ];
    let mut world = snapshot(machines(2), jobs);
    let mut cache = Cache::default();
    for _ in 0..6 {
        let plan = planned(&world, &mut cache);
        carry_out(&mut world, &plan);
    }
    for job in &world.jobs {
        let placement = &job.current.as_ref().expect("runs").placement;
        assert_eq!(placement.0.len(), 1, "{placement:?}");
    }
}

#[test]
fn rounds_fill_the_cluster_and_new_jobs_get_in() {
    let mut world = snapshot(machines(4), (1..=3).map(|id| trainer(id, 8)).collect());
    let mut cache = Cache::default();
    for round in 0..8_u64 {
        let plan = planned(&world, &mut cache);
        carry_out(&mut world, &plan);
        for job in &mut world.jobs {
            let held = job.current.as_ref().map_or(0, |held| held.placement.shape().workers);
            job.attained_s += 60.0 * f64::from(held);
        }
        if round == 3 {
            world.jobs.push(trainer(9, 1));
        }
    }
    let held =
        |job: &JobInput| job.current.as_ref().map_or(0, |held| held.placement.shape().workers);
    assert!(world.jobs.iter().all(|job| held(job) > 0), "{:#?}", world.jobs);
    assert_eq!(world.jobs[3].id, JobId(9));
    assert!(world.jobs.iter().map(held).sum::<u32>() >= 13);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn no_rule_is_broken_whatever_comes_in(mut world in world()) {
        let mut cache = Cache::default();
        for (at, job) in world.jobs.iter_mut().enumerate() {
            let replicas_max = [0, 1, 3, 70, u32::MAX][at % 5];
            let mut known = elastic(replicas_max);
            if at % 4 == 1 {
                known.throughput = None;
                known.age_s = f64::NAN;
            }
            job.goodput = (at % 6 > 0).then(|| Arc::new(known));
        }
        for _ in 0..3 {
            let plan = planned(&world, &mut cache);
            carry_out(&mut world, &plan);
        }
    }
}
