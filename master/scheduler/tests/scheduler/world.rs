//! Small clusters and jobs, and a way to carry a plan out.

use model::{JobId, Millis, Mode, NodeId, Placement, Resources, Shape};
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::plan::{Plan, Verb};
use scheduler::snapshot::{Current, JobInput, NodeInput, Policy, Remaining, Snapshot, Want};
use scheduler::{Cache, check, plan};

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn resources(cpus_milli: u64, gib: u64, gpus: u64) -> Resources {
    Resources::new(cpus_milli, gib * GIB, gpus)
}

pub(crate) fn node(name: &str, capacity: Resources) -> NodeInput {
    NodeInput {
        id: name.parse().expect("a plain name"),
        capacity,
        held: Resources::default(),
        open: true,
    }
}

/// Nodes n01, n02, …
pub(crate) fn nodes(count: usize, capacity: &Resources) -> Vec<NodeInput> {
    (1..=count).map(|at| node(&format!("n{at:02}"), capacity.clone())).collect()
}

pub(crate) fn node_id(name: &str) -> NodeId {
    name.parse().expect("a plain name")
}

/// Table 2's synchronous function with M = 40.
pub(crate) fn paper_sync() -> SpeedModel {
    SpeedModel::of_theta(
        SpeedForm::SyncGlobal { batch: 40 },
        vec![1.0223, 2.8222, 4.9029, 0.0001, 0.0125],
    )
}

/// A job that scales: little but computing, and a small transfer.
pub(crate) fn scalable() -> SpeedModel {
    SpeedModel::of_theta(SpeedForm::SyncGlobal { batch: 64 }, vec![0.01, 0.01, 0.02, 0.001, 0.001])
}

pub(crate) fn share(speed: SpeedModel, steps: f64) -> Want {
    let remaining = Some(Remaining { value: steps, low: steps * 0.8, high: steps * 1.2 });
    Want::Share { speed, remaining }
}

/// A job of 1 to 8 servers of half a core and 1 to 8 workers of a core, arrived at second `id`.
pub(crate) fn job(id: u64, want: Want) -> JobInput {
    JobInput {
        id: JobId(id),
        mode: Mode::Sync,
        worker: resources(1000, 1, 0),
        server: resources(500, 1, 0),
        min: Shape::new(1, 1),
        max: Shape::new(8, 8),
        priority: 1.0,
        arrival: Millis(id * 1000),
        current: None,
        want,
        requested: None,
        attained_s: 0.0,
        goodput: None,
        rescale_cost_s: 10.0,
    }
}

pub(crate) fn placement(shares: &[(&str, u32, u32)]) -> Placement {
    Placement(
        shares
            .iter()
            .map(|(node, servers, workers)| model::NodeShare {
                node: node_id(node),
                servers: *servers,
                workers: *workers,
            })
            .collect(),
    )
}

pub(crate) fn running(mut job: JobInput, shares: &[(&str, u32, u32)]) -> JobInput {
    job.current =
        Some(Current { placement: placement(shares), movable: true, since_change_ms: 3_600_000 });
    job
}

pub(crate) fn snapshot(nodes: Vec<NodeInput>, jobs: Vec<JobInput>) -> Snapshot {
    Snapshot { revision: 7, now: Millis(1_000_000), nodes: nodes.into(), jobs }
}

/// Plans with an empty cache, checks the plan, and holds that a used cache changes nothing.
pub(crate) fn planned(snapshot: &Snapshot) -> Plan {
    let mut cache = Cache::default();
    let policy = Policy::default();
    let first = plan(snapshot, &policy, &mut cache);
    assert_eq!(first, plan(snapshot, &policy, &mut cache), "a plan is a function of its input");
    assert_eq!(check(snapshot, &first), Vec::<String>::new(), "{first:#?}\n{snapshot:#?}");
    first
}

pub(crate) fn verb_of(plan: &Plan, id: u64) -> &Verb {
    &decision_of(plan, id).verb
}

pub(crate) fn decision_of(plan: &Plan, id: u64) -> &scheduler::plan::Decision {
    plan.decisions.iter().find(|decision| decision.job == JobId(id)).expect("decided")
}

/// The shape that a job starts with or goes to.
pub(crate) fn shape_of(verb: &Verb) -> Option<Shape> {
    match verb {
        Verb::Start { placement } | Verb::Rescale { placement } => Some(placement.shape()),
        Verb::Keep | Verb::Evict | Verb::Wait => None,
    }
}

/// Carries everything out, long enough ago that anything may change again.
pub(crate) fn carry_out(snapshot: &mut Snapshot, plan: &Plan) {
    snapshot.revision += 1;
    for (job, decision) in snapshot.jobs.iter_mut().zip(&plan.decisions) {
        match &decision.verb {
            Verb::Keep | Verb::Wait => {}
            Verb::Evict => job.current = None,
            Verb::Start { placement } | Verb::Rescale { placement } => {
                job.current = Some(Current {
                    placement: placement.clone(),
                    movable: true,
                    since_change_ms: 3_600_000,
                });
            }
        }
    }
}

/// True where the plan leaves everything as it is.
pub(crate) fn is_still(plan: &Plan) -> bool {
    plan.decisions.iter().all(|decision| matches!(decision.verb, Verb::Keep | Verb::Wait))
}
