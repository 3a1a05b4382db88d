//! Rounds told as stories.

use model::{Millis, Shape};
use scheduler::estimate::speed::SpeedModel;
use scheduler::plan::Verb;
use scheduler::snapshot::{Policy, Remaining, Want};
use scheduler::{Cache, plan};

use crate::world::{
    carry_out, decision_of, is_still, job, node, nodes, paper_sync, placement, planned, resources,
    running, scalable, shape_of, share, snapshot, verb_of,
};

#[test]
fn a_running_job_gives_way_to_a_new_one_and_the_room_is_kept() {
    // 3.5 CPUs: job 1 holds all of them with a server and three workers.
    let one = running(job(1, share(scalable(), 1e5)), &[("n01", 1, 3)]);
    let two = job(2, share(scalable(), 1e5));
    let mut world = snapshot(vec![node("n01", resources(3500, 64, 0))], vec![one, two]);

    let first = planned(&world);
    let shrunk = shape_of(verb_of(&first, 1)).expect("job 1 shrinks");
    assert!(shrunk.workers < 3, "{first:#?}");
    assert!(decision_of(&first, 1).reason.text().contains("so that j2 can start"), "{first:#?}");
    assert_eq!(verb_of(&first, 2), &Verb::Wait, "its room is still taken");
    assert!(
        decision_of(&first, 2).reason.text().contains("room that j1 is giving up"),
        "{first:#?}"
    );

    // While job 1 stops, nothing else moves; once it starts smaller, job 2 gets the room at once.
    world.jobs[0].current.as_mut().unwrap().movable = false;
    let stopping = planned(&world);
    assert_eq!(verb_of(&stopping, 1), &Verb::Keep);
    assert_eq!(verb_of(&stopping, 2), &Verb::Wait);
    carry_out(&mut world, &first);
    world.jobs[0].current.as_mut().unwrap().movable = false;
    let mut third = job(3, share(scalable(), 1e9));
    third.priority = 100.0;
    world.jobs.push(third);
    let second = planned(&world);
    assert!(shape_of(verb_of(&second, 2)).is_some(), "{second:#?}");
    assert_eq!(verb_of(&second, 1), &Verb::Keep);
    assert_eq!(verb_of(&second, 3), &Verb::Wait, "later, and nobody can give way");
    let refused = &decision_of(&second, 3).reason;
    assert!(!refused.nodes_refused().is_empty() && refused.remedy().is_some(), "{refused:#?}");
}

#[test]
fn an_only_job_gets_what_the_paper_gives_it_and_then_stays() {
    let mut only = job(1, share(paper_sync(), 100.0));
    (only.worker, only.server) = (resources(2000, 8, 1), resources(3000, 9, 0));
    only.max = Shape::new(100, 100);
    let mut world = snapshot(nodes(13, &resources(16_000, 48, 2)), vec![only]);
    let first = planned(&world);
    let reason = &decision_of(&first, 1).reason;
    let shape = shape_of(verb_of(&first, 1)).unwrap();
    assert!(shape.workers > 8 && shape.servers > 20, "{first:#?}");
    assert!(reason.remaining_s.unwrap() > 0.0 && reason.transfer_time.unwrap() > 0.0);
    carry_out(&mut world, &first);
    assert!(is_still(&planned(&world)));
}

#[test]
fn a_change_must_save_more_than_it_costs_and_not_come_too_soon() {
    let small = |steps: f64| running(job(1, share(scalable(), steps)), &[("n01", 1, 1)]);
    let world = |steps| snapshot(nodes(2, &resources(8000, 64, 0)), vec![small(steps)]);
    let long = planned(&world(1e5));
    assert!(shape_of(verb_of(&long, 1)).is_some_and(|shape| shape.workers > 2), "{long:#?}");
    let reason = &decision_of(&long, 1).reason;
    assert!(reason.gain_s.unwrap() > 1.5 * reason.cost_s.unwrap());
    assert!(reason.speed_after.unwrap() > reason.speed_before.unwrap());
    // 10 steps are over in less than the 15 s that a change must save.
    let short = planned(&world(10.0));
    assert_eq!(verb_of(&short, 1), &Verb::Keep, "{short:#?}");
    let mut soon = world(1e5);
    soon.jobs[0].current.as_mut().unwrap().since_change_ms = 59_999;
    let soon = planned(&soon);
    assert_eq!(verb_of(&soon, 1), &Verb::Keep, "{soon:#?}");
    assert!(decision_of(&soon, 1).reason.text().contains("last change"), "{soon:#?}");
}

#[test]
fn a_job_that_holds_too_much_lets_another_grow() {
    // Job 1 took the cluster while it was alone; job 2 has as much to do and one worker.
    let one = running(job(1, share(scalable(), 1e5)), &[("n01", 3, 6)]);
    let two = running(job(2, share(scalable(), 1e5)), &[("n01", 1, 1)]);
    let mut world = snapshot(vec![node("n01", resources(9000, 64, 0))], vec![one, two]);
    let first = planned(&world);
    let shrunk = shape_of(verb_of(&first, 1)).expect("job 1 shrinks");
    assert!(shrunk.workers < 6, "{first:#?}");
    assert_eq!(verb_of(&first, 2), &Verb::Keep, "the room is not free yet");
    assert!(decision_of(&first, 2).reason.text().contains("j1 is giving up"), "{first:#?}");
    carry_out(&mut world, &first);
    let second = planned(&world);
    assert!(shape_of(verb_of(&second, 2)).is_some_and(|shape| shape.workers > 1), "{second:#?}");
    assert_eq!(verb_of(&second, 1), &Verb::Keep);
    carry_out(&mut world, &second);
    assert!(is_still(&planned(&world)));
}

#[test]
fn nobody_is_robbed_for_little() {
    let one = running(job(1, share(scalable(), 1e5)), &[("n01", 3, 6)]);
    let mut two = running(job(2, share(scalable(), 1e5)), &[("n01", 1, 1)]);
    two.rescale_cost_s = 1e6;
    let world = snapshot(vec![node("n01", resources(9000, 64, 0))], vec![one, two]);
    assert!(is_still(&planned(&world)));
}

#[test]
fn profiling_takes_the_first_shape_that_fits_beside_the_others() {
    let shapes = vec![Shape::new(2, 8), Shape::new(1, 3), Shape::new(1, 1)];
    let profile = |id| job(id, Want::Profile { shapes: shapes.clone() });
    let other = running(job(2, share(scalable(), 1e5)), &[("n01", 1, 1)]);
    let cluster = |cpus| vec![node("n01", resources(cpus, 64, 0))];
    let plan = planned(&snapshot(cluster(6000), vec![profile(1), other.clone()]));
    assert_eq!(shape_of(verb_of(&plan, 1)), Some(Shape::new(1, 3)), "{plan:#?}");
    // A third job must still get its least shape.
    let third = job(3, share(scalable(), 1e5));
    let plan = planned(&snapshot(cluster(6000), vec![profile(1), other.clone(), third]));
    assert_eq!(shape_of(verb_of(&plan, 1)), Some(Shape::new(1, 1)), "{plan:#?}");
    assert!(shape_of(verb_of(&plan, 3)).is_some(), "{plan:#?}");
    // Running at a measured shape, with no other that fits: it stays.
    let measured =
        running(job(1, Want::Profile { shapes: vec![Shape::new(2, 8)] }), &[("n01", 1, 3)]);
    let plan = planned(&snapshot(cluster(6000), vec![measured.clone(), other.clone()]));
    assert_eq!(verb_of(&plan, 1), &Verb::Keep, "{plan:#?}");
    // With room for it, it moves at once, whatever the last change.
    let mut recent = measured;
    recent.current.as_mut().unwrap().since_change_ms = 10;
    let plan = planned(&snapshot(cluster(20_000), vec![recent, other]));
    assert_eq!(shape_of(verb_of(&plan, 1)), Some(Shape::new(2, 8)), "{plan:#?}");
}

#[test]
fn a_pinned_job_gets_its_shape_or_nothing() {
    let pinned = |shape| Want::Pinned { shape };
    let cluster = || nodes(1, &resources(4000, 64, 0));
    let fits = planned(&snapshot(cluster(), vec![job(1, pinned(Shape::new(2, 3)))]));
    assert_eq!(shape_of(verb_of(&fits, 1)), Some(Shape::new(2, 3)));
    let too_large = planned(&snapshot(cluster(), vec![job(1, pinned(Shape::new(2, 4)))]));
    assert_eq!(verb_of(&too_large, 1), &Verb::Wait);
    let reason = &decision_of(&too_large, 1).reason;
    assert!(reason.text().contains("2+4") && reason.remedy().is_some(), "{reason:#?}");
    let runs = running(job(1, pinned(Shape::new(2, 4))), &[("n01", 1, 1)]);
    let stays = planned(&snapshot(cluster(), vec![runs]));
    assert_eq!(verb_of(&stays, 1), &Verb::Keep);
    assert!(decision_of(&stays, 1).reason.text().contains("no room for its pinned 2+4"));
    // Others make room for one that waits, and it is never shrunk itself.
    let other = running(job(1, share(scalable(), 1e5)), &[("n01", 1, 3)]);
    let mut world = snapshot(cluster(), vec![other, job(2, pinned(Shape::new(1, 2)))]);
    let plan = planned(&world);
    assert_eq!(shape_of(verb_of(&plan, 1)), Some(Shape::new(1, 1)), "{plan:#?}");
    carry_out(&mut world, &plan);
    let plan = planned(&world);
    assert_eq!(shape_of(verb_of(&plan, 2)), Some(Shape::new(1, 2)), "{plan:#?}");
    carry_out(&mut world, &plan);
    world.jobs.push(job(3, share(scalable(), 1e5)));
    assert!(is_still(&planned(&world)));
}

#[test]
fn closed_nodes_keep_what_they_have_and_get_nothing() {
    let mut cluster = nodes(2, &resources(4000, 64, 0));
    cluster[0].open = false;
    let stays = running(job(1, share(scalable(), 10.0)), &[("n01", 1, 2)]);
    let plan = planned(&snapshot(cluster.clone(), vec![stays, job(2, share(scalable(), 1e5))]));
    assert_eq!(verb_of(&plan, 1), &Verb::Keep);
    let Verb::Start { placement } = verb_of(&plan, 2) else { panic!("{plan:#?}") };
    assert!(placement.0.iter().all(|share| share.node.as_str() == "n02"));
    cluster[1].open = false;
    let plan = planned(&snapshot(cluster, vec![job(2, share(scalable(), 1e5))]));
    assert_eq!(verb_of(&plan, 2), &Verb::Wait);
    assert!(decision_of(&plan, 2).reason.remedy().unwrap().contains("no node is open"));
}

#[test]
fn lost_nodes_and_new_bounds_force_a_move() {
    let lost = running(job(1, share(scalable(), 10.0)), &[("gone", 1, 1), ("n01", 0, 1)]);
    let plan = planned(&snapshot(nodes(1, &resources(4000, 64, 0)), vec![lost.clone()]));
    assert!(shape_of(verb_of(&plan, 1)).is_some(), "{plan:#?}");
    let plan = planned(&snapshot(nodes(1, &resources(400, 64, 0)), vec![lost.clone()]));
    assert_eq!(verb_of(&plan, 1), &Verb::Evict, "{plan:#?}");
    let mut fixed = lost;
    fixed.current.as_mut().unwrap().movable = false;
    let plan = planned(&snapshot(nodes(1, &resources(4000, 64, 0)), vec![fixed]));
    assert_eq!(verb_of(&plan, 1), &Verb::Keep, "it must not be touched");
    let mut bounded = running(job(1, share(scalable(), 10.0)), &[("n01", 1, 3)]);
    bounded.max = Shape::new(2, 2);
    bounded.current.as_mut().unwrap().since_change_ms = 5;
    let plan = planned(&snapshot(nodes(1, &resources(4000, 64, 0)), vec![bounded]));
    assert!(shape_of(verb_of(&plan, 1)).is_some_and(|shape| shape.workers <= 2), "{plan:#?}");
    // A GPU was retired under two jobs: the later one moves.
    let mut gpu = [1, 2].map(|id| running(job(id, share(scalable(), 10.0)), &[("n01", 1, 1)]));
    for job in &mut gpu {
        job.worker = resources(1000, 1, 1);
        job.max = Shape::new(1, 1);
    }
    let cluster = vec![node("n01", resources(9000, 64, 1)), node("n02", resources(9000, 64, 1))];
    let plan = planned(&snapshot(cluster, gpu.to_vec()));
    assert_eq!(verb_of(&plan, 1), &Verb::Keep, "{plan:#?}");
    assert_eq!(verb_of(&plan, 2), &Verb::Rescale { placement: placement(&[("n02", 1, 1)]) });
}

#[test]
fn nobody_overtakes_in_the_queue() {
    let mut large = job(1, share(scalable(), 1e5));
    large.min = Shape::new(1, 3);
    let small = job(2, share(scalable(), 1e5));
    let holder = {
        let mut holder = running(job(9, share(scalable(), 1e5)), &[("n01", 1, 2)]);
        holder.current.as_mut().unwrap().movable = false;
        holder.arrival = Millis(0);
        holder
    };
    let cluster = vec![node("n01", resources(4000, 64, 0))];
    // Only 1.5 CPUs are free, so the large one cannot start and the small one may: room that
    // never suffices is not kept idle.
    let plan =
        planned(&snapshot(cluster.clone(), vec![large.clone(), small.clone(), holder.clone()]));
    assert_eq!(verb_of(&plan, 1), &Verb::Wait);
    assert!(shape_of(verb_of(&plan, 2)).is_some(), "{plan:#?}");
    // Where the holder can give way, the first in the queue gets the room.
    let mut gives = holder;
    gives.current.as_mut().unwrap().movable = true;
    let cluster = vec![node("n01", resources(5000, 64, 0))];
    let mut world = snapshot(cluster, vec![large, small, gives]);
    let plan = planned(&world);
    assert_eq!(verb_of(&plan, 2), &Verb::Wait, "{plan:#?}");
    carry_out(&mut world, &plan);
    let plan = planned(&world);
    assert_eq!(shape_of(verb_of(&plan, 1)), Some(Shape::new(1, 3)), "{plan:#?}");
}

#[test]
fn a_job_without_a_known_end_is_planned_for_a_while_and_a_bit_less() {
    let unknown = |speed: SpeedModel| Want::Share { speed, remaining: None };
    let plan =
        planned(&snapshot(nodes(2, &resources(4000, 64, 0)), vec![job(1, unknown(scalable()))]));
    assert!(shape_of(verb_of(&plan, 1)).is_some_and(|shape| shape.workers > 1), "{plan:#?}");
    assert!(decision_of(&plan, 1).reason.text().contains("not known yet"));
    // A model that says nothing, or an absurd end, does not stop the others.
    let mut broken = scalable();
    broken.theta = vec![f64::NAN; 5];
    let odd = Remaining { value: f64::INFINITY, low: f64::NAN, high: -1.0 };
    let jobs = vec![
        job(1, unknown(broken)),
        job(2, Want::Share { speed: scalable(), remaining: Some(odd) }),
        job(3, share(scalable(), 1e5)),
    ];
    let plan = planned(&snapshot(nodes(3, &resources(12_000, 64, 0)), jobs));
    assert_eq!(shape_of(verb_of(&plan, 1)), Some(Shape::new(1, 1)), "{plan:#?}");
    for id in [2, 3] {
        assert!(shape_of(verb_of(&plan, id)).is_some_and(|shape| shape.workers > 1), "{plan:#?}");
    }
}

#[test]
fn an_absurd_policy_counts_as_the_default() {
    let world = snapshot(
        nodes(2, &resources(8000, 64, 0)),
        vec![running(job(1, share(scalable(), 1e5)), &[("n01", 1, 1)])],
    );
    let odd = Policy { hysteresis_factor: f64::NAN, young_factor: -1.0, ..Policy::default() };
    assert_eq!(plan(&world, &odd, &mut Cache::default()), planned(&world));
}

#[test]
fn in_a_larger_cluster_a_few_tasks_make_the_room() {
    // Twenty nodes, full to the last half CPU with one job that uses them all.
    let names: Vec<String> = (1..=20).map(|at| format!("n{at:02}")).collect();
    let shares: Vec<(&str, u32, u32)> = names.iter().map(|name| (name.as_str(), 1, 2)).collect();
    let mut speed = scalable();
    speed.theta = vec![0.1, 0.01, 0.02, 1e-5, 1e-5];
    let mut one = running(job(1, share(speed, 1e9)), &shares);
    one.max = Shape::new(20, 40);
    let mut world = snapshot(nodes(20, &resources(2500, 64, 0)), vec![one]);
    for id in 2..=4 {
        let mut small = job(id, share(scalable(), 10.0));
        small.max = Shape::new(1, 1);
        world.jobs.push(small);
    }
    let first = planned(&world);
    let shrunk = shape_of(verb_of(&first, 1)).unwrap();
    assert!(shrunk.workers >= 34, "three small jobs need three nodes at most: {shrunk}");
    for id in 2..=4 {
        assert_eq!(verb_of(&first, id), &Verb::Wait);
    }
    carry_out(&mut world, &first);
    let second = planned(&world);
    for id in 2..=4 {
        assert_eq!(shape_of(verb_of(&second, id)), Some(Shape::new(1, 1)), "{second:#?}");
    }
    assert_eq!(verb_of(&second, 1), &Verb::Keep);
    carry_out(&mut world, &second);
    assert!(is_still(&planned(&world)));
}
