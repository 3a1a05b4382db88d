//! The checker itself must find what is wrong, of every kind, and nothing else.

use std::sync::Arc;

use model::{JobId, NodeShare, Placement, Resources, Shape};
use proptest::prelude::*;
use scheduler::plan::{Decision, Plan, Verb, Words};
use scheduler::snapshot::{JobInput, NodeInput, Snapshot, Want};
use scheduler::{Cache, check, plan};

use crate::properties::{calm_world, world};
use crate::world::{
    job, node, node_id, nodes, placement, planned, resources, running, scalable, share, snapshot,
};

/// Two nodes of three cores; j1 waits, j2 holds 1+1 on n02 and must not be moved.
fn node_of(world: &mut Snapshot, at: usize) -> &mut NodeInput {
    &mut Arc::make_mut(&mut world.nodes)[at]
}

fn small() -> Snapshot {
    let waits = job(1, share(scalable(), 1e4));
    let mut fixed = running(job(2, share(scalable(), 1e4)), &[("n02", 1, 1)]);
    fixed.current.as_mut().unwrap().movable = false;
    snapshot(nodes(2, &resources(3000, 64, 0)), vec![waits, fixed])
}

/// A snapshot and a plan that the checker is to find this in.
struct Case {
    world: Snapshot,
    plan: Plan,
    part: &'static str,
}

impl Case {
    /// Of [`small`], with one thing made wrong.
    fn of(part: &'static str, spoil: impl FnOnce(&mut Snapshot, &mut [Decision])) -> Self {
        let mut world = small();
        let mut plan = planned(&world);
        spoil(&mut world, &mut plan.decisions);
        Self { world, plan, part }
    }

    /// Of [`small`], j1 starting there.
    fn start(part: &'static str, shares: &[(&str, u32, u32)]) -> Self {
        Self::of(part, |_, decisions| starts(&mut decisions[0], shares))
    }

    fn holds(&self) {
        let faults = check(&self.world, &self.plan);
        assert!(faults.iter().any(|fault| fault.contains(self.part)), "{}: {faults:?}", self.part);
    }
}

/// Tells the costs of a placement as they are.
fn starts(decision: &mut Decision, shares: &[(&str, u32, u32)]) {
    let placement = placement(shares);
    if placement.shape().servers > 0 {
        decision.reason.transfer_time = Some(scheduler::place::transfer_time(&placement));
        decision.reason.cross_node_share = Some(scheduler::place::cross_node_share(&placement));
    }
    decision.reason.allocated = placement.shape();
    decision.verb = Verb::Start { placement };
}

#[test]
fn a_sound_plan_has_no_fault() {
    let world = small();
    assert_eq!(check(&world, &planned(&world)), Vec::<String>::new());
    let sound = Case::start("", &[("n01", 1, 1), ("n02", 0, 1)]);
    assert_eq!(check(&sound.world, &sound.plan), Vec::<String>::new());
}

#[test]
fn faults_of_the_whole_plan_are_found() {
    let cut = |part, spoil: fn(&mut Plan)| {
        let mut case = Case::of(part, |_, _| {});
        spoil(&mut case.plan);
        case.holds();
    };
    cut("revision", |plan| plan.revision += 1);
    cut("the jobs are", |plan| drop(plan.decisions.pop()));
    cut("the jobs are", |plan| plan.decisions.swap(0, 1));
    cut("the jobs are", |plan| plan.decisions[0].job = JobId(7));
    cut("the jobs are", |plan| plan.decisions.push(plan.decisions[1].clone()));
}

#[test]
fn wrong_verbs_are_found() {
    let verb = |part, job: usize, verb: Verb| {
        Case::of(part, move |_, decisions| decisions[job].verb = verb).holds();
    };
    let there = || placement(&[("n02", 1, 1)]);
    verb("evict, but it holds nothing", 0, Verb::Evict);
    verb("rescale, but it holds nothing", 0, Verb::Rescale { placement: there() });
    verb("wait, but it runs", 1, Verb::Wait);
    verb("start, but it runs", 1, Verb::Start { placement: there() });
    verb("must not be moved", 1, Verb::Evict);
    verb("must not be moved", 1, Verb::Rescale { placement: placement(&[("n01", 1, 1)]) });
    Case::of("to where it stands", |world, decisions| {
        world.jobs[1].current.as_mut().unwrap().movable = true;
        decisions[1].verb = Verb::Rescale { placement: there() };
    })
    .holds();
}

#[test]
fn wrong_placements_are_found() {
    Case::start("not sorted", &[("n01", 1, 1), ("n01", 0, 1)]).holds();
    Case::start("not sorted", &[("n02", 1, 0), ("n01", 0, 1)]).holds();
    Case::start("nothing of it", &[("n01", 1, 1), ("n02", 0, 0)]).holds();
    Case::start("lacks a server", &[("n01", 0, 2)]).holds();
    Case::start("lacks a server", &[("n01", 2, 0)]).holds();
    Case::start("lacks a server", &[]).holds();
    Case::start("n03 is not in the snapshot", &[("n03", 1, 1)]).holds();
    Case::start("n0 is not in the snapshot", &[("n0", 1, 1)]).holds();
    Case::start("other is not in the snapshot", &[("other", 1, 1)]).holds();
    Case::start("outside its bounds", &[("n01", 9, 1)]).holds();
    Case::start("outside its bounds", &[("n01", 1, 9)]).holds();
    Case::start("servers and", &[("n01", u32::MAX, 1), ("n02", u32::MAX, 1)]).holds();
    Case::of("n01 is not open", |world, decisions| {
        node_of(world, 0).open = false;
        starts(&mut decisions[0], &[("n01", 1, 1)]);
    })
    .holds();
    let wanting = |part, want: Want, shares: &[(&str, u32, u32)]| {
        Case::of(part, |world, decisions| {
            world.jobs[0].want = want;
            starts(&mut decisions[0], shares);
        })
        .holds();
    };
    wanting("pinned to", Want::Pinned { shape: Shape::new(1, 2) }, &[("n01", 1, 1)]);
    let shapes = vec![Shape::new(1, 3)];
    wanting("was not offered", Want::Profile { shapes }, &[("n01", 1, 2)]);
    Case::of("outside its bounds", |world, decisions| {
        world.jobs[0].min = Shape::new(1, 2);
        starts(&mut decisions[0], &[("n01", 1, 1)]);
    })
    .holds();
}

#[test]
fn nodes_over_their_capacity_are_found() {
    Case::start("n01: 3500 cpus at once, it has 3000", &[("n01", 1, 3)]).holds();
    Case::start("n01: 3500 cpus in the end", &[("n01", 1, 3)]).holds();
    Case::start("n02: 3500 cpus at once", &[("n01", 1, 1), ("n02", 0, 2)]).holds();
    let spoiled = |part, spoil: fn(&mut Snapshot)| {
        Case::of(part, |world, decisions| {
            spoil(world);
            starts(&mut decisions[0], &[("n01", 1, 1)]);
        })
        .holds();
    };
    spoiled("memory at once", |world| world.jobs[0].server.memory_bytes = 65 << 30);
    spoiled("gpus at once", |world| world.jobs[0].worker.gpus = 1);
    spoiled("licence at once", |world| {
        world.jobs[0].worker.named.insert("licence".to_owned(), 2);
        node_of(world, 0).capacity.named.insert("licence".to_owned(), 1);
    });
    spoiled("cpus at once", |world| node_of(world, 0).held = resources(2000, 0, 0));
    spoiled("cpus at once", |world| world.jobs[0].worker.cpus_milli = u64::MAX);
    // A job that shrinks still holds its old tasks while another starts.
    Case::of("n02: 4500 cpus at once", |world, decisions| {
        world.jobs[1] = running(world.jobs[1].clone(), &[("n02", 2, 2)]);
        starts(&mut decisions[0], &[("n02", 1, 1)]);
        decisions[1].verb = Verb::Rescale { placement: placement(&[("n02", 1, 1)]) };
    })
    .holds();
    // One that moves away and one that moves in: right in the end, too much at once.
    Case::of("n01: 4500 cpus at once", |world, decisions| {
        world.jobs[0] = running(world.jobs[0].clone(), &[("n01", 1, 2)]);
        world.jobs[1].current.as_mut().unwrap().movable = true;
        decisions[0].verb = Verb::Evict;
        decisions[1].verb = Verb::Rescale { placement: placement(&[("n01", 2, 1)]) };
    })
    .holds();
}

#[test]
fn a_node_that_is_over_for_older_reasons_is_no_fault() {
    let mut world = small();
    node_of(&mut world, 1).capacity = resources(1000, 64, 0);
    let mut plan = planned(&small());
    starts(&mut plan.decisions[0], &[("n01", 1, 1)]);
    plan.decisions[1].verb = Verb::Keep;
    assert_eq!(check(&world, &plan), Vec::<String>::new());
    Case {
        plan: {
            starts(&mut plan.decisions[0], &[("n01", 1, 0), ("n02", 0, 1)]);
            plan
        },
        world,
        part: "n02: 2500 cpus at once, it has 1000",
    }
    .holds();
}

#[test]
fn wrong_reasons_are_found() {
    let reason = |part, spoil: fn(&mut scheduler::plan::Reason)| {
        Case::of(part, |_, decisions| {
            starts(&mut decisions[0], &[("n01", 1, 1), ("n02", 0, 1)]);
            spoil(&mut decisions[0].reason);
        })
        .holds();
    };
    reason("no reason in words", |reason| reason.words = Words::default());
    reason("no reason in words", |reason| reason.words = Words::Plain(" \n".to_owned()));
    reason("speed_before is NaN", |reason| reason.speed_before = Some(f64::NAN));
    reason("speed_after is inf", |reason| reason.speed_after = Some(f64::INFINITY));
    reason("remaining_s is -inf", |reason| reason.remaining_s = Some(f64::NEG_INFINITY));
    reason("gain_s is NaN", |reason| reason.gain_s = Some(f64::NAN));
    reason("cost_s is NaN", |reason| reason.cost_s = Some(f64::NAN));
    reason("transfer_time is NaN", |reason| reason.transfer_time = Some(f64::NAN));
    reason("cross_node_share is NaN", |reason| reason.cross_node_share = Some(f64::NAN));
    reason("transfer time is told as 2", |reason| reason.transfer_time = Some(2.0));
    reason("transfer time of 1 is not told", |reason| reason.transfer_time = None);
    reason("cross-node share is told as 0, it is 0.5", |reason| {
        reason.cross_node_share = Some(0.0);
    });
    reason("cross-node share of 0.5 is not told", |reason| reason.cross_node_share = None);
    reason("allocation 9+1 is outside", |reason| reason.allocated = Shape::new(9, 1));
    reason("allocation 0+3 is outside", |reason| reason.allocated = Shape::new(0, 3));
    reason("1+2 is more than its allocation 1+1", |reason| reason.allocated = Shape::new(1, 1));
    Case::of("tells a transfer time, but has no place", |_, decisions| {
        decisions[0].verb = Verb::Wait;
        decisions[0].reason.transfer_time = Some(0.0);
    })
    .holds();
    Case::of("its transfer time is told as 3", |_, decisions| {
        decisions[1].reason.transfer_time = Some(3.0);
    })
    .holds();
}

/// Nodes are found by their ids however these look and in whatever order they come.
#[test]
fn nodes_are_found_among_ids_of_any_kind() {
    let long = "a-name-of-more-than-sixteen-letters-that-ends-in";
    let mut names: Vec<String> = (0..300).map(|at| format!("{long}-{at}")).collect();
    names.extend((0..300).map(|at| format!("r{}n{at}", at % 7)));
    names.extend(["a", "ab", "abc", "z", "0", long].map(str::to_owned));
    // Not sorted; the last of two with one id has nothing and must not be taken.
    names.reverse();
    let mut cluster: Vec<NodeInput> =
        names.iter().map(|name| node(name, resources(2000, 64, 0))).collect();
    cluster.push(node("ab", Resources::default()));
    let jobs = (1..).zip(&names).map(|(id, _)| job(id, share(scalable(), 1e4))).collect();
    let world = snapshot(cluster, jobs);
    let starting = |(job, name): (&JobInput, &String)| {
        let reason = planned(&small()).decisions[0].reason.clone();
        let mut decision = Decision { job: job.id, verb: Verb::Wait, reason };
        starts(&mut decision, &[(name, 1, 1)]);
        decision
    };
    let decisions = world.jobs.iter().zip(&names).map(starting).collect();
    let mut plan = Plan { revision: world.revision, decisions };
    assert_eq!(check(&world, &plan), Vec::<String>::new());
    for wrong in ["", "-301", "-3x", "-10-and-more"] {
        starts(&mut plan.decisions[0], &[(&format!("{long}x{wrong}"), 1, 1)]);
        let faults = check(&world, &plan);
        assert!(faults.len() == 1 && faults[0].contains("not in the snapshot"), "{faults:?}");
    }
}

#[test]
fn nothing_in_is_nothing_wrong() {
    assert_eq!(check(&Snapshot::default(), &Plan::default()), Vec::<String>::new());
    let mut world = small();
    world.nodes = [].into();
    let plan = planned(&world);
    assert_eq!(check(&world, &plan), Vec::<String>::new());
}

/// A start of the plan that is spoiled in one of many ways; false where it cannot be.
fn spoil(world: &mut Snapshot, plan: &mut Plan, at: usize, way: usize) -> bool {
    let starting: Vec<usize> = (0..plan.decisions.len())
        .filter(|job| matches!(plan.decisions[*job].verb, Verb::Start { .. }))
        .collect();
    if starting.is_empty() {
        return false;
    }
    let job = starting[at % starting.len()];
    let decision = &mut plan.decisions[job];
    let Verb::Start { placement } = &mut decision.verb else { return false };
    let share = at % placement.0.len();
    match way {
        0 => placement.0[share].servers += 17,
        1 => placement.0[share].workers += 17,
        2 => placement.0[share].node = node_id("gone"),
        3 => placement.0.push(placement.0[share].clone()),
        4 => placement.0.push(NodeShare { node: node_id("z"), servers: 0, workers: 0 }),
        5 => *placement = Placement::default(),
        6 => {
            let id = &placement.0[share].node;
            Arc::make_mut(&mut world.nodes)
                .iter_mut()
                .filter(|node| node.id == *id)
                .for_each(|node| node.open = false);
        }
        7 => {
            let id = &placement.0[share].node;
            let nodes = Arc::make_mut(&mut world.nodes).iter_mut().filter(|node| node.id == *id);
            nodes.for_each(|node| node.held = node.capacity.clone());
        }
        8 => decision.reason.allocated = Shape::new(u32::MAX, 1),
        9 => decision.reason.transfer_time = decision.reason.transfer_time.map(|time| time + 0.5),
        10 => decision.reason.cross_node_share = None,
        11 => decision.reason.remaining_s = Some(f64::NAN),
        12 => decision.verb = Verb::Evict,
        13 => decision.reason.words = Words::default(),
        14 => decision.job = JobId(u64::MAX),
        _ => plan.revision += 1,
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn one_planted_fault_in_a_sound_plan_is_found(
        world in prop_oneof![calm_world(5), world()], at in 0_usize..100, way in 0_usize..16,
    ) {
        let policy = scheduler::snapshot::Policy::default();
        let mut plan = plan(&world, &policy, &mut Cache::default());
        prop_assert_eq!(check(&world, &plan), Vec::<String>::new());
        // Tasks that take nothing do not push a node over.
        let free = |job: &JobInput| job.worker.is_zero() || job.server.is_zero();
        prop_assume!(!world.jobs.iter().any(free));
        let mut spoiled = world.clone();
        if spoil(&mut spoiled, &mut plan, at, way) {
            prop_assert!(!check(&spoiled, &plan).is_empty(), "way {way}: {plan:#?}");
        }
    }
}
