//! `jobs.json`: the jobs of one round.

use std::collections::{BTreeMap, BTreeSet};

use model::job::TASKS_MAX;
use model::{JobId, Millis, Mode, NodeId, NodeShare, Placement, Resources, Shape};
use scheduler::estimate::speed::SpeedModel;
use scheduler::snapshot::{Current, JobInput, Remaining, Want};

use super::cluster::{Cluster, KINDS_MAX, named, resources, too_many_kinds};
use super::file::Source;
use super::json::{At, Faults, Fields, Json, parse};
use super::{goodput, speed};
use crate::failure::Failure;

/// Most jobs of one file: over ten times the most that a round is measured on.
const JOBS_MAX: usize = 200_000;
/// Latest arrival: 30 million years, which stays exact in milliseconds.
const ARRIVAL_MAX_S: f64 = 1e15;
/// How long a running job has been as it is: files do not say, so long enough for any change.
const UNCHANGED_MS: u64 = 30 * 86_400_000;

const FIELDS: [&str; 22] = [
    "id",
    "mode",
    "theta",
    "model",
    "remaining_steps",
    "remaining_samples",
    "worker",
    "server",
    "global_batch",
    "worker_batch",
    "min_workers",
    "min_servers",
    "max_workers",
    "max_servers",
    "priority_factor",
    "current",
    "rescale_cost_s",
    "remaining_range",
    "arrival_s",
    "attained_gpu_s",
    "requested",
    "goodput",
];

/// Numbers of jobs by name: the same name keeps its number from file to file.
#[derive(Debug, Default)]
pub(super) struct Numbers(BTreeMap<String, JobId>);

impl Numbers {
    fn of(&mut self, name: &str) -> JobId {
        if let Some(id) = self.0.get(name) {
            return *id;
        }
        let before = u64::try_from(self.0.len()).expect("a count of names in memory");
        let id = JobId(before).next();
        self.0.insert(name.to_owned(), id);
        id
    }
}

/// The jobs of a file in its order, with their names.
#[derive(Debug)]
pub(super) struct Jobs {
    pub names: Vec<String>,
    pub inputs: Vec<JobInput>,
}

/// What a file's jobs are read against.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    pub cluster: &'a Cluster,
    pub policy: &'a str,
    /// Fields that the policy cannot do without.
    pub needs: &'a [&'a str],
    pub by_goodput: ByGoodput,
}

/// Whether a policy goes by `goodput` where a job states one: then nothing else needs to tell of
/// its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByGoodput {
    No,
    /// What is left of the job plays no part.
    Alone,
    /// What is left is to be stated all the same.
    WithWork,
}

/// Reads the file.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn read(
    source: &Source,
    reading: &Reading<'_>,
    numbers: &mut Numbers,
) -> Result<Jobs, Failure> {
    let json = parse(source)?;
    let mut faults = Faults::default();
    let top = At::Top;
    let mut jobs = Jobs { names: Vec::new(), inputs: Vec::new() };
    let mut seen = BTreeSet::new();
    if let Some(fields) = faults.object(&json, &top, &["jobs"])
        && let Some(list) = fields.need("jobs", &mut faults)
    {
        let at = top.field("jobs");
        let list = faults.list(list, &at);
        if list.len() > JOBS_MAX {
            faults.add(&at, format!("are {}", list.len()), format!("give at most {JOBS_MAX}"));
        }
        for (index, item) in list.iter().take(JOBS_MAX).enumerate() {
            let at = at.item(index);
            let Some((name, input)) = job(item, &at, reading, &mut faults) else { continue };
            if !seen.insert(name) {
                let problem = format!("{name} is the id of another job");
                faults.add(&at.field("id"), problem, "give each its own");
                continue;
            }
            jobs.names.push(name.to_owned());
            jobs.inputs.push(JobInput { id: numbers.of(name), ..input });
        }
        let tasks = jobs.inputs.iter().flat_map(|job| [&job.worker, &job.server]);
        if named(tasks) > KINDS_MAX {
            too_many_kinds(&at, &mut faults);
        }
    }
    faults.none(source)?;
    Ok(jobs)
}

fn job<'a>(
    json: &'a Json,
    at: &At<'_>,
    reading: &Reading<'_>,
    faults: &mut Faults,
) -> Option<(&'a str, JobInput)> {
    let fields = faults.object(json, at, &FIELDS)?;
    let id = fields.need("id", faults).and_then(|json| {
        let text = faults.text(json, &at.field("id"))?;
        let fine = (1..=253).contains(&text.chars().count())
            && model::text::text_problem(text, 4 * 253).is_none();
        if !fine {
            let problem = format!("is {:?}", text.chars().take(80).collect::<String>());
            faults.add(&at.field("id"), problem, "use 1 to 253 printable characters");
        }
        fine.then_some(text)
    });
    for name in reading.needs.iter().filter(|name| fields.find(name).is_none()) {
        let remedy = format!("policy {} takes it of every job", reading.policy);
        faults.add(&at.field(name), "is missing", remedy);
    }
    let elastic = goodput::of_job(&fields, faults);
    let worker = task(&fields, "worker", faults);
    let (server, speed, remaining) = server_and_speed(&fields, reading, faults);
    let mode = speed.as_ref().map(|speed| match speed.form {
        scheduler::estimate::speed::SpeedForm::Async => Mode::Async,
        scheduler::estimate::speed::SpeedForm::SyncGlobal { .. }
        | scheduler::estimate::speed::SpeedForm::SyncPerWorker { .. } => Mode::Sync,
    });
    let current = current(&fields, reading.cluster, faults);
    let requested = shape(&fields, "requested", faults);
    let tasks = worker.as_ref().zip(server.as_ref());
    let fits = tasks.map(|(worker, server)| {
        Shape::new(reading.cluster.holds(server), reading.cluster.holds(worker))
    });
    let held = current.as_ref().map(|current| current.placement.shape());
    let bounds = bounds(&fields, fits, [held, requested], faults);
    let number = |name: &str, faults: &mut Faults, wanted: &str, fits: &dyn Fn(f64) -> bool| {
        let json = fields.find(name)?;
        faults.number(json, &at.field(name), wanted, fits)
    };
    let not_negative: &dyn Fn(f64) -> bool = &|value| value >= 0.0;
    let seconds = "seconds, 0 or more";
    let priority = number("priority_factor", faults, "a number above 0", &|value| value > 0.0);
    let rescale_cost_s = number("rescale_cost_s", faults, seconds, not_negative);
    let attained_s = number("attained_gpu_s", faults, seconds, not_negative);
    let arrival_s = number("arrival_s", faults, "seconds, 0 to 1e15", &|value| {
        (0.0..=ARRIVAL_MAX_S).contains(&value)
    });
    let (min, max) = bounds?;
    let input = JobInput {
        id: JobId::default(),
        mode: mode?,
        worker: worker?,
        server: server?,
        min,
        max,
        priority: priority.unwrap_or(1.0),
        arrival: Millis(milliseconds(arrival_s.unwrap_or(0.0))),
        current,
        want: Want::Share { speed: speed?, remaining: remaining? },
        rescale_cost_s: rescale_cost_s.unwrap_or(0.0),
        requested,
        attained_s: attained_s.unwrap_or(0.0),
        goodput: elastic,
    };
    Some((id?, input))
}

/// What a server takes, the speed function, and the work left where it is told. A policy by goodput
/// does without what a job leaves out of these, but for the work where it looks ahead.
fn server_and_speed(
    fields: &Fields<'_, '_>,
    reading: &Reading<'_>,
    faults: &mut Faults,
) -> (Option<Resources>, Option<SpeedModel>, Option<Option<Remaining>>) {
    let by_goodput = reading.by_goodput != ByGoodput::No && fields.find("goodput").is_some();
    let left_out =
        |names: &[&str]| by_goodput && names.iter().all(|name| fields.find(name).is_none());
    let server = if left_out(&["server"]) {
        Some(Resources::default())
    } else {
        task(fields, "server", faults)
    };
    let speed = if left_out(&["mode", "theta", "model"]) {
        Some(goodput::unknown_speed())
    } else {
        speed::of_job(fields, faults)
    };
    let no_work = reading.by_goodput == ByGoodput::Alone;
    let remaining = if no_work && left_out(&["remaining_steps", "remaining_samples"]) {
        Some(None)
    } else {
        speed::remaining(fields, faults).map(Some)
    };
    (server, speed, remaining)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to 1e18 and rounded"
)]
fn milliseconds(seconds: f64) -> u64 {
    (seconds.clamp(0.0, ARRIVAL_MAX_S) * 1000.0).round() as u64
}

fn task(fields: &Fields<'_, '_>, name: &str, faults: &mut Faults) -> Option<Resources> {
    let json = fields.need(name, faults)?;
    resources(json, &fields.at.field(name), faults)
}

/// A count of tasks in a range.
fn count(
    fields: &Fields<'_, '_>,
    name: &str,
    range: (u64, u64),
    faults: &mut Faults,
) -> Option<Option<u32>> {
    let Some(json) = fields.find(name) else { return Some(None) };
    let count = faults.whole(json, &fields.at.field(name), range)?;
    Some(Some(u32::try_from(count.min(u64::from(TASKS_MAX))).expect("at most 4096")))
}

/// Least and largest shape. What is not stated is one task of a kind, and what the cluster holds;
/// more where the job holds, asks for or must have more.
fn bounds(
    fields: &Fields<'_, '_>,
    fits: Option<Shape>,
    shapes: [Option<Shape>; 2],
    faults: &mut Faults,
) -> Option<(Shape, Shape)> {
    let tasks = (1, u64::from(TASKS_MAX));
    let kind = |name: &str, of: fn(Shape) -> u32, faults: &mut Faults| {
        let (min_name, max_name) = (format!("min_{name}"), format!("max_{name}"));
        let min = count(fields, &min_name, tasks, faults);
        // No job has more than the most tasks, whatever a file allows.
        let max = count(fields, &max_name, (1, u64::MAX), faults);
        let min = min?.unwrap_or(1);
        let Some(max) = max? else {
            let held = shapes.iter().flatten().map(|shape| of(*shape));
            return Some((min, held.fold(of(fits?), u32::max).max(min)));
        };
        if max < min {
            let problem = format!("is {max}, and {min_name} {min}");
            faults.add(&fields.at.field(&max_name), problem, "give a larger one");
            return None;
        }
        Some((min, max))
    };
    let servers = kind("servers", |shape| shape.servers, faults);
    let workers = kind("workers", |shape| shape.workers, faults);
    let (servers, workers) = (servers?, workers?);
    let (min, max) = (Shape::new(servers.0, workers.0), Shape::new(servers.1, workers.1));
    let within = |shape: &Shape| {
        // Workers alone are read only where a job may have them.
        (shape.servers == 0 || (min.servers..=max.servers).contains(&shape.servers))
            && (min.workers..=max.workers).contains(&shape.workers)
    };
    if let Some(requested) = shapes[1].filter(|shape| !within(shape)) {
        let problem = format!("{requested} is outside the bounds {min} to {max}");
        faults.add(&fields.at.field("requested"), problem, "ask for a shape within them");
        return None;
    }
    Some((min, max))
}

/// A shape of at least one task of each kind; with goodput it may have workers alone.
fn shape(fields: &Fields<'_, '_>, name: &str, faults: &mut Faults) -> Option<Shape> {
    let at = fields.at.field(name);
    let inner = faults.object(fields.find(name)?, &at, &["servers", "workers"])?;
    let tasks = (1, u64::from(TASKS_MAX));
    let no_servers = if fields.find("goodput").is_some() { (0, tasks.1) } else { tasks };
    let mut count = |name: &str, range| {
        inner.need(name, faults);
        count(&inner, name, range, faults).flatten()
    };
    let (servers, workers) = (count("servers", no_servers), count("workers", tasks));
    Some(Shape::new(servers?, workers?))
}

/// What a job holds; none where it holds nothing.
fn current(fields: &Fields<'_, '_>, cluster: &Cluster, faults: &mut Faults) -> Option<Current> {
    let at = fields.at.field("current");
    let inner =
        faults.object(fields.find("current")?, &at, &["servers", "workers", "placement"])?;
    let servers = tasks(&inner, "servers", faults);
    let workers = tasks(&inner, "workers", faults);
    let list = inner.need("placement", faults)?;
    let list_at = at.field("placement");
    let list = faults.list(list, &list_at);
    let mut shares: Vec<(NodeShare, usize)> = Vec::with_capacity(list.len());
    let mut fine = true;
    for (index, item) in list.iter().enumerate() {
        match share(item, &list_at.item(index), cluster, faults) {
            Some(share) => shares.push((share, index)),
            None => fine = false,
        }
    }
    shares.sort_by(|a, b| a.0.node.cmp(&b.0.node));
    for pair in shares.windows(2).filter(|pair| pair[0].0.node == pair[1].0.node) {
        let problem = format!("{} comes twice", pair[1].0.node);
        faults.add(&list_at.item(pair[1].1).field("node"), problem, "add the two up");
        fine = false;
    }
    let (servers, workers) = (servers?, workers?);
    if !fine {
        return None;
    }
    let sum =
        |of: fn(&NodeShare) -> u32| shares.iter().map(|(share, _)| u64::from(of(share))).sum();
    let (sum_servers, sum_workers): (u64, u64) =
        (sum(|share| share.servers), sum(|share| share.workers));
    if (sum_servers, sum_workers) != (u64::from(servers), u64::from(workers)) {
        let problem = format!(
            "holds {sum_servers} servers and {sum_workers} workers, the job {servers} and {workers}"
        );
        faults.add(&list_at, problem, "make them agree");
        return None;
    }
    if servers == 0 && workers == 0 {
        return None;
    }
    if workers == 0 || (servers == 0 && fields.find("goodput").is_none()) {
        faults.add(
            &at,
            format!("is {servers}+{workers}"),
            "a job has both kinds of tasks, or none; with goodput it may have workers alone",
        );
        return None;
    }
    let placement = Placement(shares.into_iter().map(|(share, _)| share).collect());
    Some(Current { placement, movable: true, since_change_ms: UNCHANGED_MS })
}

fn tasks(fields: &Fields<'_, '_>, name: &str, faults: &mut Faults) -> Option<u32> {
    fields.need(name, faults)?;
    count(fields, name, (0, u64::from(TASKS_MAX)), faults).flatten()
}

fn share(json: &Json, at: &At<'_>, cluster: &Cluster, faults: &mut Faults) -> Option<NodeShare> {
    let fields = faults.object(json, at, &["node", "servers", "workers"])?;
    let node = fields.need("node", faults).and_then(|json| {
        let name = faults.text(json, &at.field("node"))?;
        // A node that is not in the cluster is gone: the round moves the job.
        let node =
            cluster.find(name).map_or_else(|| NodeId::for_file(name), |node| Ok(node.id.clone()));
        node.map_err(|wrong| {
            faults.add(&at.field("node"), format!("{:?} is no node", wrong.given), wrong.remedy);
        })
        .ok()
    });
    let servers = tasks(&fields, "servers", faults);
    let workers = tasks(&fields, "workers", faults);
    let (servers, workers) = (servers?, workers?);
    if servers == 0 && workers == 0 {
        faults.add(at, "holds no task", "leave it out");
        return None;
    }
    // The list's own value: names are shared, not copied.
    Some(NodeShare { node: node?, servers, workers })
}
