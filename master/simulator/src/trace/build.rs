//! Jobs of a workload from the lines of a trace, matched against a cluster.
//!
//! Assumed of every job: it may start with one server; its owner asks for four workers, or the
//! nearest number within its bounds, and as many servers, where a policy without estimates needs
//! to know; most tasks are also bounded by what the cluster holds.
//!
//! Assumed of a Philly job: its curve is that of one of the eight measured models, drawn by the
//! seed, asynchronous, with the linear overheads divided by its GPUs over four, so that it is as
//! far from saturation at its own size as the measured model at four workers; its work is what it
//! does in its duration with as many servers as GPUs; it may have 1 to four times its GPUs in
//! workers and as many servers; a worker takes a GPU, a CPU and 4 GB, a server a CPU and 4 GB.
//!
//! CPUs or memory of which no node of the cluster has any are taken to be plenty: a file that
//! leaves memory out does not mean machines without memory. Where no node has GPUs, workers take
//! none. Where nodes name a kind `slots`, each task takes one.

use std::collections::{BTreeMap, BTreeSet};

use model::job::TASKS_MAX;
use model::{Batch, Fault, Mode, NodeId, Resources, Shape};
use rand::RngExt;
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::place::place;

use super::table::TraceError;
use super::{OursRow, PhillyRow, PolluxRow, Trace};
use crate::models::{self, KNOWN, Known};
use crate::random;
use crate::workload::{Cluster, Job, Speed, Workload};

/// Models that were measured: the first of [`KNOWN`].
const MEASURED: usize = 8;
/// Workers that an owner asks for.
const REQUESTED: u32 = 4;
/// A Philly job may grow to so many times its GPUs.
const GROWTH: u32 = 4;

/// CPUs in thousandths and memory in bytes of a node, where no node names any: as good as without
/// a bound, and the sum over all nodes stays far from one.
const PLENTY: [u64; 2] = [1_000_000_000, 1 << 44];

/// A trace on a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    pub workload: Workload,
    /// The cluster with what was assumed about it.
    pub cluster: Cluster,
    /// What was assumed about this trace on this cluster, in sentences.
    pub notes: Vec<String>,
}

/// The jobs of our own or a Philly trace.
///
/// # Errors
/// Jobs larger than the cluster, by line, or a trace of the Pollux paper's, whose jobs have no
/// servers and are replayed in another way; [`PolluxRow`]s are only matched against the cluster.
pub fn build(trace: &Trace, cluster: &Cluster, seed: u64) -> Result<Built, TraceError> {
    let (cluster, mut notes) = assumed(cluster, matches!(trace, Trace::Pollux(_)));
    if matches!(trace, Trace::Philly(_)) {
        notes.push(format!(
            "a row of n GPUs ran as n servers and n workers; its speed at other sizes is that of a \
             measured model drawn by the seed, and a policy may give it 1 to {GROWTH}·n of each \
             (Philly traces, Microsoft, CC-BY-4.0)"
        ));
    }
    if cluster.nodes.is_empty() {
        return Err(TraceError::of_file("needs a cluster with nodes", "give it some"));
    }
    let mut room = Room::of(&cluster);
    let mut faults = TraceError::default();
    let jobs = match trace {
        Trace::Ours(rows) => {
            let mut ours = |row| ours(row, &mut room, &mut faults);
            rows.iter().filter_map(&mut ours).collect()
        }
        Trace::Philly(rows) => {
            let mut chance = random::stream(seed, "philly models");
            let mut philly = |row| {
                let model = &KNOWN[chance.random_range(0..MEASURED)];
                philly(row, model, &mut room, &mut faults)
            };
            rows.iter().filter_map(&mut philly).collect()
        }
        Trace::Pollux(rows) => {
            rows.iter().for_each(|row| pollux(row, &room, &mut faults));
            Vec::new()
        }
    };
    faults.none()?;
    Ok(Built { workload: Workload { jobs }, cluster, notes })
}

/// A cluster with plenty of what none of its nodes names, and sentences that say so. Replicas of
/// the Pollux paper's workloads take nothing but GPUs.
fn assumed(cluster: &Cluster, gpus_only: bool) -> (Cluster, Vec<String>) {
    let mut cluster = cluster.clone();
    let mut notes = Vec::new();
    if gpus_only {
        return (cluster, notes);
    }
    let [plenty_milli, plenty_bytes] = PLENTY;
    let any = |of: fn(&Resources) -> u64| cluster.nodes.iter().any(|(_, node)| of(node) > 0);
    let (cpus, memory) = (any(|node| node.cpus_milli), any(|node| node.memory_bytes));
    if !any(|node| node.gpus) {
        notes.push("no node has gpus: workers are taken to need none".to_owned());
    }
    for (_, node) in &mut cluster.nodes {
        node.cpus_milli = if cpus { node.cpus_milli } else { plenty_milli };
        node.memory_bytes = if memory { node.memory_bytes } else { plenty_bytes };
    }
    for (kind, named) in [("cpus", cpus), ("memory_bytes", memory)] {
        if !named {
            notes.push(format!("no node has {kind}: each is taken to have plenty"));
        }
    }
    (cluster, notes)
}

/// What a cluster holds.
#[derive(Debug)]
struct Room<'a> {
    nodes: &'a [(NodeId, Resources)],
    total: Resources,
    /// Tasks that the nodes hold, of each size asked for so far.
    holds: BTreeMap<Resources, u32>,
    /// Least shapes that were placed on the empty nodes.
    fitting: BTreeSet<(Shape, Resources, Resources)>,
}

impl<'a> Room<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        let none = Resources::default();
        let total = cluster.nodes.iter().fold(none, |sum, (_, capacity)| sum.plus(capacity));
        let nodes = cluster.nodes.as_slice();
        let (holds, fitting) = (BTreeMap::new(), BTreeSet::new());
        Self { nodes, total, holds, fitting }
    }

    /// A task without GPUs where the cluster has none, and with its slot.
    fn adapted(&self, task: &Resources) -> Resources {
        let mut adapted = task.clone();
        if self.total.gpus == 0 {
            adapted.gpus = 0;
        }
        if self.total.named("slots") > 0 {
            adapted.named.insert("slots".to_owned(), 1);
        }
        adapted
    }

    /// How many such tasks stand on the empty nodes.
    fn holds(&mut self, task: &Resources) -> u32 {
        if let Some(count) = self.holds.get(task) {
            return *count;
        }
        let on = |capacity: &Resources| {
            let kinds = task.kinds();
            let needed = kinds.iter().filter(|kind| task.amount(kind) > 0);
            let counts = needed.map(|kind| capacity.amount(kind) / task.amount(kind));
            counts.fold(u64::from(TASKS_MAX), u64::min)
        };
        let sum: u64 = self.nodes.iter().map(|(_, capacity)| on(capacity)).sum();
        let count = u32::try_from(sum).unwrap_or(TASKS_MAX).min(TASKS_MAX);
        self.holds.insert(task.clone(), count);
        count
    }

    /// What a job cannot have at least, in words.
    fn lacks(&mut self, worker: &Resources, server: &Resources, min: Shape) -> Option<String> {
        let (workers, servers) = (self.holds(worker), self.holds(server));
        if workers < min.workers {
            return Some(format!("needs {} workers, the cluster holds {workers}", min.workers));
        }
        if servers < min.servers {
            return Some(format!("needs {} servers, the cluster holds {servers}", min.servers));
        }
        let demand = min.demand(worker, server);
        if let Some((kind, have, want)) = self.total.lacks(&demand) {
            return Some(format!(
                "{min} tasks need {want} of {kind} in all, the cluster has {have}"
            ));
        }
        let key = (min, worker.clone(), server.clone());
        if !self.fitting.contains(&key) {
            if place(min, server, worker, self.nodes).is_none() {
                return Some(format!("{min} tasks do not fit on the empty nodes together"));
            }
            self.fitting.insert(key);
        }
        None
    }
}

const LARGER: &str = "lower it, or give a larger cluster";

fn ours(row: &OursRow, room: &mut Room<'_>, faults: &mut TraceError) -> Option<Job> {
    let (worker, server) = (room.adapted(&models::worker()), room.adapted(&models::server()));
    let min = Shape::new(1, row.min_workers);
    if let Some(problem) = room.lacks(&worker, &server, min) {
        let problem = format!("is {}: {problem}", row.min_workers);
        faults.add(Some(row.line), Fault::new("min_workers", problem, LARGER));
        return None;
    }
    let max = Shape::new(
        row.max_servers.min(room.holds(&server)),
        row.max_workers.min(room.holds(&worker)),
    );
    let requested = requested(room, (&worker, &server), (min, max));
    let work = row.model.work(row.mode, row.work_steps);
    Some(Job {
        id: row.id.clone(),
        arrival_s: row.arrival_s,
        model: row.model.name.to_owned(),
        mode: row.mode,
        batch: row.model.batch(row.mode),
        worker,
        server,
        min,
        max,
        requested: Some(requested),
        priority: 1.0,
        speed: row.model.speed(row.mode),
        work,
        rescale_cost_s: row.model.rescale_cost_s(),
        loss: row.model.loss(row.work_steps),
    })
}

/// What its owner may be taken to ask for: as many servers as workers, and no more than the empty
/// nodes hold.
fn requested(
    room: &mut Room<'_>,
    (worker, server): (&Resources, &Resources),
    (min, max): (Shape, Shape),
) -> Shape {
    let most = REQUESTED.clamp(min.workers, max.workers);
    let shapes = (min.workers..=most).rev();
    let shapes = shapes.map(|workers| Shape::new(workers.min(max.servers).max(1), workers));
    shapes.into_iter().find(|shape| room.lacks(worker, server, *shape).is_none()).unwrap_or(min)
}

fn philly(
    row: &PhillyRow,
    model: &'static Known,
    room: &mut Room<'_>,
    faults: &mut TraceError,
) -> Option<Job> {
    let worker = room.adapted(&Resources::new(1000, 4_000_000_000, 1));
    let server = room.adapted(&Resources::new(1000, 4_000_000_000, 0));
    let requested = Shape::new(row.num_gpus, row.num_gpus);
    if let Some(problem) = room.lacks(&worker, &server, requested) {
        let problem = format!("is {}: {problem}", row.num_gpus);
        faults.add(Some(row.line), Fault::new("num_gpus", problem, LARGER));
        return None;
    }
    let size = (f64::from(row.num_gpus) / f64::from(REQUESTED)).max(1.0);
    let [base, ratio, by_w, by_p] = model.theta;
    let theta = vec![base, ratio, by_w / size, by_p / size];
    let speed = SpeedModel::of_theta(SpeedForm::Async, theta);
    let steps = row.duration_s * speed.steps_per_s(requested);
    let most = row.num_gpus.saturating_mul(GROWTH);
    Some(Job {
        id: row.id(),
        arrival_s: row.arrival_s,
        model: model.name.to_owned(),
        mode: Mode::Async,
        batch: Batch::PerWorker(model.batch),
        min: Shape::new(1, 1),
        max: Shape::new(most.min(room.holds(&server)), most.min(room.holds(&worker))),
        worker,
        server,
        requested: Some(requested),
        priority: 1.0,
        speed: Speed::Theta(speed),
        work: steps,
        rescale_cost_s: model.rescale_cost_s(),
        loss: model.loss(steps),
    })
}

fn pollux(row: &PolluxRow, room: &Room<'_>, faults: &mut TraceError) {
    let gpus = room.total.gpus;
    if gpus < u64::from(row.num_replicas) {
        let problem = format!("is {}, the cluster has {gpus} GPUs", row.num_replicas);
        faults.add(Some(row.line), Fault::new("num_replicas", problem, LARGER));
    }
}
