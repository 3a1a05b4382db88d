//! Rounds of our own policy for jobs that state their goodput.

use std::sync::Arc;

use model::{Mode, Shape};
use proptest::prelude::*;
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::goodput::Elastic;
use scheduler::plan::{Plan, Verb};
use scheduler::snapshot::{JobInput, Policy, Remaining, Snapshot, Want};
use scheduler::{Cache, check, plan};

use crate::pollux::{elastic, machines, trainer, words};
use crate::properties::world;
use crate::world::{
    carry_out, decision_of, job, running, scalable, shape_of, share, snapshot, verb_of,
};

fn planned(snapshot: &Snapshot, cache: &mut Cache) -> Plan {
    let policy = Policy::by_name("horizon").unwrap();
    let plan = plan(snapshot, &policy, cache);
    assert_eq!(check(snapshot, &plan), Vec::<String>::new(), "{plan:#?}\n{snapshot:#?}");
    plan
}

/// So many steps at the initial batch are left; no speed is stated.
fn left(steps: f64, job: JobInput) -> JobInput {
    let form = SpeedForm::SyncGlobal { batch: 1 };
    let speed = SpeedModel::of_theta(form, vec![0.0; form.coefficients()]);
    let remaining = Some(Remaining { value: steps, low: steps, high: steps });
    JobInput { want: Want::Share { speed, remaining }, ..job }
}

fn workers(plan: &Plan, id: u64) -> u32 {
    shape_of(verb_of(plan, id)).map_or(0, |shape| shape.workers)
}

#[test]
fn jobs_get_workers_by_what_is_left_of_them() {
    let jobs = vec![left(1e7, trainer(1, 64)), left(20_000.0, trainer(2, 64))];
    let world = snapshot(machines(2), jobs);
    let plan = planned(&world, &mut Cache::default());
    assert!(workers(&plan, 2) > workers(&plan, 1), "{plan:#?}");
    assert_eq!(shape_of(verb_of(&plan, 2)).map(|shape| shape.servers), Some(0));
    let told = words(&plan, 2);
    assert!(told.contains("goodput") && told.contains("projected to end in"), "{told}");
    assert_eq!(plan, planned(&world, &mut Cache::default()));
}

#[test]
fn the_unit_of_the_work_counts() {
    let samples = |id, samples: f64| {
        let form = SpeedForm::SyncPerWorker { batch: 64 };
        let speed = SpeedModel::of_theta(form, vec![0.0; form.coefficients()]);
        let remaining = Some(Remaining { value: samples, low: samples, high: samples });
        JobInput { mode: Mode::Sync, want: Want::Share { speed, remaining }, ..trainer(id, 64) }
    };
    let steps = snapshot(machines(2), vec![left(5e4, trainer(1, 64)), left(2e4, trainer(2, 64))]);
    let same = snapshot(machines(2), vec![samples(1, 64.0 * 5e4), samples(2, 64.0 * 2e4)]);
    let plan = planned(&steps, &mut Cache::default());
    assert_eq!(plan, planned(&same, &mut Cache::default()));
}

#[test]
fn a_job_that_does_not_say_what_is_left_is_told_so() {
    let Want::Share { speed, .. } = left(1.0, trainer(1, 8)).want else { panic!("it shares") };
    let unknown = JobInput { want: Want::Share { speed, remaining: None }, ..trainer(1, 8) };
    let world = snapshot(machines(2), vec![unknown, left(1e4, trainer(2, 8))]);
    let plan = planned(&world, &mut Cache::default());
    assert!(workers(&plan, 1) > 0);
    assert!(words(&plan, 1).contains("its end is not known yet"), "{}", words(&plan, 1));
    assert!(!words(&plan, 2).contains("not known"), "{}", words(&plan, 2));
}

#[test]
fn least_and_most_workers_hold() {
    let mut narrow = left(1e5, trainer(1, 64));
    narrow.max.workers = 3;
    let mut wide = left(1e4, trainer(2, 64));
    wide.min.workers = 6;
    let plan =
        planned(&snapshot(machines(3), vec![narrow.clone(), wide.clone()]), &mut Cache::default());
    assert!((1..=3).contains(&workers(&plan, 1)), "{plan:#?}");
    assert!(workers(&plan, 2) >= 6, "{plan:#?}");
    let plan = planned(&snapshot(machines(1), vec![wide]), &mut Cache::default());
    assert_eq!(verb_of(&plan, 2), &Verb::Wait);
}

#[test]
fn beside_other_jobs_it_waits_or_stays_and_says_why() {
    let with_servers = job(1, share(scalable(), 1000.0));
    let stays = running(left(1e4, trainer(3, 8)), &[("n01", 0, 2)]);
    let both =
        JobInput { goodput: Some(Arc::new(elastic(8))), ..job(4, share(scalable(), 1000.0)) };
    let jobs = vec![with_servers, left(1e4, trainer(2, 8)), stays, both];
    let plan = planned(&snapshot(machines(4), jobs), &mut Cache::default());
    assert_eq!((verb_of(&plan, 2), verb_of(&plan, 3)), (&Verb::Wait, &Verb::Keep));
    for id in [2, 3] {
        assert!(words(&plan, id).contains("every job states one"), "{}", words(&plan, id));
    }
    // Who states both goes by its speed.
    for id in [1, 4] {
        let shape = shape_of(verb_of(&plan, id)).expect("starts");
        assert!(shape.servers > 0 && shape.workers > 0, "{shape}");
    }
}

#[test]
fn nothing_changes_once_all_is_as_it_should_be() {
    let jobs = (1..=5_u32).map(|id| left(3e4 * f64::from(id), trainer(u64::from(id), 16)));
    let mut world = snapshot(machines(4), jobs.collect());
    let mut cache = Cache::default();
    for _ in 0..6 {
        let plan = planned(&world, &mut cache);
        carry_out(&mut world, &plan);
    }
    let plan = planned(&world, &mut cache);
    let moved =
        plan.decisions.iter().filter(|decision| !matches!(decision.verb, Verb::Keep | Verb::Wait));
    assert_eq!(moved.count(), 0, "{plan:#?}");
    assert!(!decision_of(&plan, 1).reason.text().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn no_rule_is_broken_whatever_comes_in(mut world in world()) {
        let mut cache = Cache::default();
        for (at, job) in world.jobs.iter_mut().enumerate() {
            let replicas_max = [0, 1, 3, 70, u32::MAX][at % 5];
            let odd = [1.0, 0.0, f64::NAN, 1e308][at % 4];
            let mut elastic = Elastic { age_s: odd, ..elastic(replicas_max) };
            elastic.gradient.var = odd;
            if at % 7 == 3 {
                elastic.throughput = None;
            }
            job.goodput = Some(Arc::new(elastic));
            if at % 6 == 5 {
                job.min = Shape::new(1, 3);
            }
        }
        for _ in 0..3 {
            let plan = planned(&world, &mut cache);
            carry_out(&mut world, &plan);
        }
    }
}
