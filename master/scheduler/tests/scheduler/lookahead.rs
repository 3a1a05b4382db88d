//! Rounds of the policy that looks ahead.

use model::{Millis, Shape};
use scheduler::plan::{Plan, Verb};
use scheduler::snapshot::{Policy, Remaining, Snapshot, Want};
use scheduler::{Cache, check, plan};

use crate::world::{carry_out, decision_of, is_still, job, nodes, resources, scalable, share};
use crate::world::{running, shape_of, snapshot, verb_of};

fn planned(world: &Snapshot) -> Plan {
    let policy = Policy::by_name("horizon").expect("known");
    let plan = plan(world, &policy, &mut Cache::default());
    assert_eq!(check(world, &plan), Vec::<String>::new(), "{plan:#?}\n{world:#?}");
    plan
}

/// Rounds until nothing changes.
fn settled(world: &mut Snapshot) {
    for _ in 0..12 {
        let plan = planned(world);
        carry_out(world, &plan);
        if is_still(&plan) {
            return;
        }
    }
    panic!("never comes to rest: {world:#?}");
}

#[test]
fn alone_a_job_starts_at_its_best_size() {
    let mut one = job(1, share(scalable(), 1e5));
    one.max = Shape::new(4, 16);
    let world = snapshot(nodes(4, &resources(8000, 64, 0)), vec![one]);
    let shape = shape_of(verb_of(&planned(&world), 1)).expect("starts");
    assert!(shape.workers > 8, "{shape}");
}

#[test]
fn a_short_job_takes_room_from_a_long_one_and_gets_it_once_it_is_free() {
    let mut long = job(1, share(scalable(), 1e6));
    let mut short = job(2, share(scalable(), 2e3));
    (long.max, short.max) = (Shape::new(8, 16), Shape::new(8, 16));
    let long = running(long, &[("n01", 2, 7), ("n02", 2, 7)]);
    let mut world = snapshot(nodes(2, &resources(8000, 64, 0)), vec![long, short]);
    let first = planned(&world);
    let given = shape_of(verb_of(&first, 1)).expect("gives tasks up");
    assert!(given.workers < 14, "{first:#?}");
    assert!(decision_of(&first, 1).reason.text().contains("worth more to others"), "{first:#?}");
    assert_eq!(verb_of(&first, 2), &Verb::Wait);
    assert!(decision_of(&first, 2).reason.text().contains("waits for room that j1"), "{first:#?}");
    carry_out(&mut world, &first);
    let second = planned(&world);
    let started = shape_of(verb_of(&second, 2)).expect("starts in the next round");
    assert!(started.workers >= given.workers, "{second:#?}");
    carry_out(&mut world, &second);
    settled(&mut world);
}

#[test]
fn who_waits_is_told_why() {
    // One node for one job at a time: each takes at least all of it.
    let hog = |id, work| {
        let mut one = job(id, share(scalable(), work));
        (one.min, one.max) = (Shape::new(2, 7), Shape::new(2, 7));
        one
    };
    let world = snapshot(nodes(1, &resources(8000, 64, 0)), vec![hog(1, 1e6), hog(2, 1e3)]);
    let plan = planned(&world);
    assert_eq!(shape_of(verb_of(&plan, 2)), Some(Shape::new(2, 7)), "{plan:#?}");
    assert_eq!(verb_of(&plan, 1), &Verb::Wait);
    let text = decision_of(&plan, 1).reason.text();
    assert!(text.contains("others first, it is projected to end in"), "{text}");
}

#[test]
fn a_job_whose_end_is_not_known_counts_with_what_it_ran() {
    // Room for one of them at a time.
    let unknown = |id, attained_s| {
        let mut one = job(id, Want::Share { speed: scalable(), remaining: None });
        (one.min, one.max) = (Shape::new(2, 7), Shape::new(2, 7));
        one.attained_s = attained_s;
        one
    };
    let world = snapshot(nodes(1, &resources(8000, 64, 0)), vec![unknown(1, 1e6), unknown(2, 1e3)]);
    let plan = planned(&world);
    assert_eq!(verb_of(&plan, 1), &Verb::Wait, "the one that ran long runs longer: {plan:#?}");
    assert_eq!(shape_of(verb_of(&plan, 2)), Some(Shape::new(2, 7)), "{plan:#?}");
}

#[test]
fn a_job_whose_end_is_not_known_has_its_equal_part_at_most() {
    // Room for 20 tasks, of which the other takes two.
    let world = |remaining| {
        let mut one = job(1, Want::Share { speed: scalable(), remaining });
        let mut other = job(2, share(scalable(), 1e6));
        (one.max, other.max) = (Shape::new(8, 16), Shape::new(1, 1));
        snapshot(nodes(2, &resources(8000, 64, 0)), vec![one, other])
    };
    let given = |remaining| {
        let allocated = decision_of(&planned(&world(remaining)), 1).reason.allocated;
        allocated.servers + allocated.workers
    };
    let known = Some(Remaining { value: 1e6, low: 1e6, high: 1e6 });
    assert!(given(known) > 10, "{} tasks", given(known));
    assert!((2..=10).contains(&given(None)), "{} tasks", given(None));
}

#[test]
fn nothing_new_changes_nothing() {
    let jobs = (1..=12).map(|id| {
        let mut one = job(id, share(scalable(), 1e3 * f64::from(u32::try_from(id * id).unwrap())));
        one.arrival = Millis(id * 1000);
        one
    });
    let mut world = snapshot(nodes(6, &resources(8000, 64, 0)), jobs.collect());
    settled(&mut world);
    assert!(is_still(&planned(&world)));
    // Neither do small news.
    for job in &mut world.jobs {
        if let Want::Share { remaining: Some(Remaining { value, low, high }), .. } = &mut job.want {
            (*value, *low, *high) = (*value * 0.999, *low * 0.999, *high * 0.999);
        }
    }
    assert!(is_still(&planned(&world)));
}

#[test]
fn a_new_job_gets_the_room_to_be_measured_in_from_one_that_runs() {
    // A short job holds all but one core, which no job fits on alone with its server.
    for steps in [50.0, 2e3, 1e6] {
        let mut first = job(1, share(scalable(), steps));
        first.max = Shape::new(1, 2);
        let first = running(first, &[("n01", 1, 1), ("n02", 0, 1)]);
        let second = job(2, Want::Profile { shapes: vec![Shape::new(1, 1)] });
        let three = [(1500, "n01"), (1000, "n02"), (1000, "n03")];
        let three = three.map(|(cpus, name)| crate::world::node(name, resources(cpus, 64, 0)));
        let mut world = snapshot(three.to_vec(), vec![first, second]);
        let plan = planned(&world);
        let left = shape_of(verb_of(&plan, 1)).expect("it shrinks at once");
        assert_eq!(left, Shape::new(1, 1), "{plan:#?}");
        carry_out(&mut world, &plan);
        let plan = planned(&world);
        assert_eq!(shape_of(verb_of(&plan, 2)), Some(Shape::new(1, 1)), "{plan:#?}");
    }
}
