//! Random clusters, jobs and numbers: the checker finds nothing, whatever comes in, and things
//! come to rest.

use model::{Batch, JobId, Millis, Mode, Placement, Resources, Shape};
use proptest::prelude::*;
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::plan::Verb;
use scheduler::snapshot::{Current, JobInput, NodeInput, Policy, Remaining, Snapshot, Want};
use scheduler::{Cache, check, plan};

use crate::world::{carry_out, is_still, node_id, planned};

fn counts(top: u32) -> impl Strategy<Value = Shape> {
    (0..=top, 0..=top).prop_map(|(servers, workers)| Shape::new(servers, workers))
}

fn amounts(top: u64) -> impl Strategy<Value = Resources> {
    (0..=top, 0..=top, 0..=top / 2, proptest::option::of(0..=top)).prop_map(
        |(cpus, memory, gpus, named)| {
            let mut resources = Resources::new(cpus, memory, gpus);
            resources.named.extend(named.map(|amount| ("licence".to_owned(), amount)));
            resources
        },
    )
}

/// Any number, the absurd ones often.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.01..1e4_f64,
        1 => prop::num::f64::ANY,
        1 => prop::sample::select(vec![0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300]),
    ]
}

fn speed(
    number: impl Strategy<Value = f64> + Clone + 'static,
) -> impl Strategy<Value = SpeedModel> {
    (prop::bool::ANY, 0_u32..100, proptest::collection::vec(number, 4..=5)).prop_map(
        |(sync, batch, mut theta)| {
            let form = if sync {
                SpeedForm::SyncGlobal { batch }
            } else {
                SpeedForm::of(Mode::Async, Batch::Global(batch))
            };
            if !sync {
                theta.truncate(4);
            }
            SpeedModel::of_theta(form, theta)
        },
    )
}

fn want() -> impl Strategy<Value = Want> {
    let remaining = (number(), number(), number()).prop_map(|(value, low, high)| Remaining {
        value,
        low,
        high,
    });
    prop_oneof![
        4 => (speed(number().boxed()), proptest::option::of(remaining))
            .prop_map(|(speed, remaining)| Want::Share { speed, remaining }),
        4 => (speed((0.001..1.0_f64).boxed()), 1.0..1e6_f64)
            .prop_map(|(speed, steps)| crate::world::share(speed, steps)),
        1 => proptest::collection::vec(counts(4), 0..4).prop_map(|shapes| Want::Profile { shapes }),
        1 => counts(3).prop_map(|shape| Want::Pinned { shape }),
    ]
}

fn job(nodes: usize) -> impl Strategy<Value = JobInput> {
    // One node more than there are: it may be gone.
    let on = prop_oneof![9 => 0..nodes, 1 => Just(nodes)];
    let shares = proptest::collection::btree_map(on, counts(2), 1..3);
    let current = (shares, prop::bool::ANY, 0_u64..200_000).prop_map(|(shares, movable, since)| {
        let first = shares.keys().next().copied();
        let shares =
            shares.into_iter().filter(|(_, here)| !here.is_empty()).map(|(at, mut here)| {
                // A server and a worker at least, in most cases.
                if Some(at) == first {
                    here = Shape::new(here.servers.max(1), here.workers + 1);
                }
                model::NodeShare {
                    node: node_id(&format!("n{at:02}")),
                    servers: here.servers,
                    workers: here.workers,
                }
            });
        Current { placement: Placement(shares.collect()), movable, since_change_ms: since }
    });
    let task = prop_oneof![8 => amounts(2), 1 => amounts(4), 1 => amounts(u64::MAX)];
    let least = prop_oneof![8 => Just(Shape::new(1, 1)), 2 => counts(2)];
    let most = prop_oneof![8 => Just(Shape::new(6, 6)), 2 => counts(6), 1 => counts(u32::MAX)];
    let bounds = (least, most);
    (
        (task.clone(), task, bounds, number(), number()),
        (0_u64..5, proptest::option::of(current), want()),
    )
        .prop_map(
            |((worker, server, (min, max), priority, cost), (arrival, current, want))| JobInput {
                id: JobId(0),
                mode: Mode::Sync,
                worker,
                server,
                min,
                max,
                priority,
                arrival: Millis(arrival),
                current,
                want,
                requested: None,
                attained_s: 0.0,
                goodput: None,
                rescale_cost_s: cost,
            },
        )
}

pub(crate) fn world() -> impl Strategy<Value = Snapshot> {
    let capacity = prop_oneof![
        8 => (8_u64..30, 8_u64..30, 0_u64..20).prop_map(|(cpus, memory, gpus)| {
            let mut resources = Resources::new(cpus, memory, gpus);
            resources.named.insert("licence".to_owned(), cpus);
            resources
        }),
        1 => amounts(9),
        1 => amounts(u64::MAX)
    ];
    let held = prop_oneof![6 => Just(Resources::default()), 1 => amounts(9)];
    let node = (capacity, held, prop::bool::weighted(0.9));
    (1_usize..5, proptest::collection::vec(node, 5))
        .prop_flat_map(|(count, nodes)| {
            (Just(nodes[..count].to_vec()), proptest::collection::vec(job(count), 0..6))
        })
        .prop_map(|(nodes, mut jobs)| {
            for (at, job) in (1..).zip(&mut jobs) {
                job.id = JobId(at);
            }
            let nodes = (0..)
                .zip(nodes)
                .map(|(at, (capacity, held, open))| NodeInput {
                    id: node_id(&format!("n{at:02}")),
                    capacity,
                    held,
                    open,
                })
                .collect();
            Snapshot { revision: 3, now: Millis(9), nodes, jobs }
        })
}

/// A waiting job whose least shape has room beside what runs.
fn overlooked(world: &Snapshot) -> Option<JobId> {
    let left: Vec<_> = world
        .nodes
        .iter()
        .map(|node| {
            let mut left = node.capacity.clone();
            for job in &world.jobs {
                let current = job.current.as_ref().map(|current| current.placement.on(&node.id));
                let here = current.unwrap_or_default();
                left = left.minus_saturating(&here.demand(&job.worker, &job.server));
            }
            (node.id.clone(), left)
        })
        .collect();
    let waits = |job: &&JobInput| {
        let fits = scheduler::place::place(job.min, &job.server, &job.worker, &left);
        job.current.is_none() && fits.is_some()
    };
    world.jobs.iter().find(waits).map(|job| job.id)
}

/// Sound jobs that start with nothing, on at most this many sound nodes.
pub(crate) fn calm_world(nodes_max: usize) -> impl Strategy<Value = Snapshot> {
    let theta = 0.001..1.0_f64;
    let job = (speed(theta.boxed()), 1.0..1e6_f64, 0.0..60.0_f64, 1_u64..4, 1_u64..4);
    let node = (4_u64..16, 4_u64..16);
    (proptest::collection::vec(node, 1..=nodes_max), proptest::collection::vec(job, 1..7)).prop_map(
        |(nodes, jobs)| Snapshot {
            revision: 1,
            now: Millis(1),
            nodes: (0..)
                .zip(nodes)
                .map(|(at, (cpus, memory))| NodeInput {
                    id: node_id(&format!("n{at:02}")),
                    capacity: Resources::new(cpus, memory, 0),
                    held: Resources::default(),
                    open: true,
                })
                .collect(),
            jobs: (1..)
                .zip(jobs)
                .map(|(id, (speed, steps, cost, server, worker))| JobInput {
                    worker: Resources::new(worker, server, 0),
                    server: Resources::new(server, worker, 0),
                    requested: None,
                    attained_s: 0.0,
                    goodput: None,
                    rescale_cost_s: cost,
                    ..crate::world::job(id, crate::world::share(speed, steps))
                })
                .collect(),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_checker_finds_nothing_whatever_comes_in(world in world()) {
        let policy = Policy::default();
        let plan = plan(&world, &policy, &mut Cache::default());
        prop_assert_eq!(check(&world, &plan), Vec::<String>::new(), "{:#?}", plan);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Jobs arrive one by one; after each, the plans are carried out until nothing moves. Then
    /// nothing moves any more, and that comes soon.
    #[test]
    fn things_come_to_rest(world in prop_oneof![3 => calm_world(5), 1 => calm_world(30)]) {
        let mut now = Snapshot { jobs: Vec::new(), ..world.clone() };
        for job in world.jobs {
            now.jobs.push(job);
            let mut rounds = 0;
            loop {
                let plan = planned(&now);
                if is_still(&plan) {
                    break;
                }
                carry_out(&mut now, &plan);
                rounds += 1;
                prop_assert!(rounds < 12, "no rest: {plan:#?}");
            }
            prop_assert_eq!(overlooked(&now), None);
        }
    }

    /// An absurd job changes nothing for the others but the room it takes: with nothing to give
    /// it, their decisions are as without it.
    #[test]
    fn an_absurd_job_does_not_disturb_the_others(
        world in calm_world(5), theta in proptest::collection::vec(number(), 5),
        numbers in (number(), number(), number()),
    ) {
        let before = planned(&world);
        let mut with = world.clone();
        let speed = SpeedModel { theta, ..crate::world::scalable() };
        let mut odd = crate::world::job(99, crate::world::share(speed, numbers.0));
        (odd.priority, odd.rescale_cost_s) = (numbers.1, numbers.2);
        odd.worker = Resources::new(u64::MAX, u64::MAX, u64::MAX);
        with.jobs.push(odd);
        let mut after = planned(&with);
        let last = after.decisions.pop().expect("decided");
        prop_assert_eq!(last.verb, Verb::Wait);
        prop_assert_eq!(before.decisions, after.decisions);
    }
}
