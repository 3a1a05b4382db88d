//! Rounds that go on from the last one.

use model::{JobId, Shape};
use scheduler::plan::{Plan, Verb};
use scheduler::snapshot::{Policy, Snapshot, Want};
use scheduler::{Cache, check, plan};

use crate::scale::large;
use crate::world::carry_out;

/// Seconds that all jobs together have left by a plan; one without a place counts with a day.
fn seconds_left(plan: &Plan) -> f64 {
    plan.decisions.iter().map(|decision| decision.reason.remaining_s.unwrap_or(86_400.0)).sum()
}

/// A warm plan obeys the checker and is as good as one from the start, to 0.1 %.
fn compared(world: &Snapshot, cache: &mut Cache, what: &str) -> Plan {
    let policy = Policy::default();
    let warm = plan(world, &policy, cache);
    assert_eq!(check(world, &warm), Vec::<String>::new(), "{what}");
    let cold = plan(world, &policy, &mut Cache::default());
    let (warm_s, cold_s) = (seconds_left(&warm), seconds_left(&cold));
    assert!(warm_s <= cold_s * 1.001, "{what}: {warm_s} s where {cold_s} s are possible");
    warm
}

fn scale_work(world: &mut Snapshot, at: usize, factor: f64) {
    let Want::Share { remaining: Some(remaining), .. } = &mut world.jobs[at].want else {
        panic!("jobs here share")
    };
    remaining.value *= factor;
}

#[test]
fn one_job_of_many_changes() {
    for carried_out in [false, true] {
        let mut world = large(1200, 4800);
        let mut cache = Cache::default();
        let first = compared(&world, &mut cache, "the first round");
        if carried_out {
            carry_out(&mut world, &first);
        }
        for (at, factor) in [(17, 2.0), (200, 0.1), (1199, 30.0), (3, 0.0)] {
            scale_work(&mut world, at, factor);
            let plan = compared(&world, &mut cache, &format!("job {at} has {factor} of its work"));
            if carried_out {
                carry_out(&mut world, &plan);
            }
        }
        world.jobs.remove(100);
        compared(&world, &mut cache, "a job is gone");
        let mut more = large(1201, 1).jobs.pop().expect("the last of them");
        more.id = JobId(5_000);
        more.max = Shape::new(8, 8);
        world.jobs.push(more);
        let plan = compared(&world, &mut cache, "a job came");
        let last = &plan.decisions.last().expect("the new job").verb;
        assert!(matches!(last, Verb::Start { .. } | Verb::Wait), "{last:?}");
    }
}

#[test]
fn an_unchanged_job_stays_where_it_was_to_start() {
    let mut world = large(1200, 4800);
    let mut cache = Cache::default();
    let first = plan(&world, &Policy::default(), &mut cache);
    scale_work(&mut world, 10, 1.5);
    let second = plan(&world, &Policy::default(), &mut cache);
    let differs = first
        .decisions
        .iter()
        .zip(&second.decisions)
        .filter(|(before, after)| before.verb != after.verb)
        .count();
    assert!(differs <= 20, "{differs} of 1200 starts are others after one job changed");
}

#[test]
fn the_same_question_gets_the_same_answer() {
    let mut world = large(1200, 4800);
    let mut cache = Cache::default();
    for _ in 0..3 {
        let first = plan(&world, &Policy::default(), &mut cache);
        assert_eq!(first, plan(&world, &Policy::default(), &mut cache));
        assert_eq!(first, plan(&world, &Policy::default(), &mut Cache::default()));
        carry_out(&mut world, &first);
        cache = Cache::default();
    }
}

#[test]
fn other_nodes_or_another_policy_are_no_obstacle() {
    let mut world = large(1200, 4800);
    let mut cache = Cache::default();
    let first = plan(&world, &Policy::default(), &mut cache);
    carry_out(&mut world, &first);
    let mut nodes = world.nodes.to_vec();
    nodes.remove(0);
    nodes[5].open = false;
    world.nodes = nodes.into();
    compared(&world, &mut cache, "a node is gone and one is closed");
    let other = Policy { young_factor: 0.5, ..Policy::default() };
    let plan = plan(&world, &other, &mut cache);
    assert_eq!(check(&world, &plan), Vec::<String>::new());
}
