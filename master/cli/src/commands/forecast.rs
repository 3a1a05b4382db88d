//! `optimus forecast`: when the jobs of the live queue will be done, by simulating it from now on.
//!
//! What the master shows of its jobs and nodes is simulated here, in the command's own process: a
//! forecast costs the master a few reads. Assumed, and told with the answer: no job comes or fails;
//! a job is known by θ of its speed and the work it has left; it begins anew at no cost; and jobs
//! of which speed or work is not known yet keep what they hold.

use std::collections::BTreeMap;

use model::client::{Answer, Read};
use model::job::TASKS_MAX;
use model::reason::{PhaseName, Reachability, Schedulability};
use model::view::{JobDetail, NodeRow, Status};
use model::{Batch, Mode, NodeId, Resources, Shape};
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::place::place;
use scheduler::snapshot::Policy;
use serde::Serialize;
use simulator::outcome::Outcome;
use simulator::workload::{Cluster, Job, Speed, Workload};
use simulator::world::{self, Options};

use super::Context;
use crate::args::ForecastArgs;
use crate::client::unexpected;
use crate::failure::{Exit, Failure};
use crate::grid::Cell;
use crate::listing::{Column, Format, Item, Kind, View, line, pretty};
use crate::text::{count, span};

/// `optimus.forecast/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ForecastJson {
    schema: &'static str,
    policy: String,
    jobs: Vec<ForecastItem>,
    /// Until the last job is done; null where that is not known.
    all_done_in_s: Option<f64>,
    added_nodes: u32,
    /// The same with the added nodes.
    all_done_with_nodes_in_s: Option<f64>,
    assumptions: Vec<String>,
}

/// One job. Times in s from now.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ForecastItem {
    id: String,
    name: String,
    phase: &'static str,
    /// Null with a reason.
    done_in_s: Option<f64>,
    /// Where all jobs have the least and the most work of their central 80 % left.
    low_s: Option<f64>,
    high_s: Option<f64>,
    /// With the added nodes.
    with_nodes_in_s: Option<f64>,
    saved_s: Option<f64>,
    reason: String,
}

impl Item for ForecastItem {
    fn key(&self) -> String {
        self.id.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

static FORECAST: Kind<ForecastItem> = Kind {
    schema: "optimus.forecast/1",
    field: "jobs",
    columns: &[
        Column::left("id", |row: &ForecastItem| Cell::id(&row.id)),
        Column::name("name", |row: &ForecastItem| Cell::text(row.name.as_str())),
        Column::left("phase", |row: &ForecastItem| Cell::text(row.phase)),
        Column::right("done_in", |row: &ForecastItem| Cell::span(row.done_in_s)),
        Column::right("low", |row: &ForecastItem| Cell::span(row.low_s)).rank(2),
        Column::right("high", |row: &ForecastItem| Cell::span(row.high_s)).rank(2),
        Column::right("with_nodes", |row: &ForecastItem| Cell::span(row.with_nodes_in_s)).rank(1),
        Column::right("saved", |row: &ForecastItem| Cell::span(row.saved_s)).rank(1),
        Column::sentence("reason", |row: &ForecastItem| Cell::text(row.reason.as_str())),
    ],
};

/// What the master shows of now.
#[derive(Debug)]
struct Queue {
    status: Box<Status>,
    nodes: Vec<NodeRow>,
    /// Jobs that have not ended, by submission.
    jobs: Vec<JobDetail>,
}

pub(super) async fn forecast(
    context: &mut Context<'_>,
    args: &ForecastArgs,
) -> Result<(), Failure> {
    let queue = read(context).await?;
    if let Some(wrong) = args.jobs.iter().find(|id| queue.jobs.iter().all(|job| job.row.id != **id))
    {
        let message = format!("{wrong} is not in the queue");
        return Err(Failure::new(Exit::NotFound, message, "`optimus ps` lists the jobs"));
    }
    let json = foresee(&queue, args)?;
    print(context, &json)
}

async fn read(context: &mut Context<'_>) -> Result<Queue, Failure> {
    let answer = context.master.read(Read::Status).await?;
    let Answer::Status(status) = answer else { return Err(unexpected(&answer)) };
    let answer = context.master.read(Read::Nodes).await?;
    let Answer::Nodes(nodes) = answer else { return Err(unexpected(&answer)) };
    let answer = context.master.read(Read::Jobs).await?;
    let Answer::Jobs(rows) = answer else { return Err(unexpected(&answer)) };
    let mut jobs = Vec::new();
    for (at, row) in rows.iter().filter(|row| is_live(row.phase)).enumerate() {
        context.output.progress(&format!("read {at} jobs"));
        let answer = context.master.read(Read::Job { job: row.id }).await?;
        let Answer::Job(detail) = answer else { return Err(unexpected(&answer)) };
        jobs.push(*detail);
    }
    jobs.sort_by_key(|job| (job.row.submitted, job.row.id));
    Ok(Queue { status, nodes, jobs })
}

const fn is_live(phase: PhaseName) -> bool {
    match phase {
        PhaseName::Queued
        | PhaseName::Profiling
        | PhaseName::Starting
        | PhaseName::Running
        | PhaseName::Rescaling
        | PhaseName::Paused => true,
        PhaseName::Stopping | PhaseName::Completed | PhaseName::Failed | PhaseName::Cancelled => {
            false
        }
    }
}

/// A job's work left in the unit of its speed: central, low and high.
type Left = [f64; 3];

/// What a job is simulated with, or why it is not.
type Facts = Result<(SpeedModel, Left), String>;

fn known(job: &JobDetail) -> Facts {
    if job.row.phase == PhaseName::Paused {
        return Err("paused: it waits for `resume`".to_owned());
    }
    let fit = job.speed_fit.as_ref().ok_or("its speed is not known yet")?;
    let form = SpeedForm::of(job.spec.mode, job.spec.batch);
    let usable = fit.theta.len() == form.coefficients()
        && fit.theta.iter().all(|theta| theta.is_finite() && *theta >= 0.0)
        && fit.theta.iter().any(|theta| *theta > 0.0);
    if !usable {
        return Err("its speed is not known yet".to_owned());
    }
    let unknown = || job.remaining_unknown.clone().unwrap_or("its work left is unknown".to_owned());
    let left = left(job).ok_or_else(unknown)?;
    Ok((SpeedModel::of_theta(form, fit.theta.clone()), left))
}

fn left(job: &JobDetail) -> Option<Left> {
    let factor = match (job.remaining_epochs, job.samples_per_epoch) {
        (Some(_), Some(samples)) => {
            let batch = match (job.spec.mode, job.spec.batch) {
                (Mode::Sync, Batch::PerWorker(_)) => 1,
                (Mode::Sync | Mode::Async, Batch::Global(batch) | Batch::PerWorker(batch)) => batch,
            };
            samples as f64 / f64::from(batch.max(1))
        }
        // Steps of the present shape; their samples where each worker keeps its batch.
        _ => match (job.spec.mode, job.spec.batch) {
            (Mode::Sync, Batch::PerWorker(batch)) => {
                f64::from(batch) * f64::from(job.row.shape.workers)
            }
            (Mode::Sync, Batch::Global(_)) | (Mode::Async, _) => 1.0,
        },
    };
    let epochs = job.remaining_epochs.filter(|_| job.samples_per_epoch.is_some());
    let estimate = epochs.or(job.remaining_steps)?;
    let values = [estimate.value, estimate.low, estimate.high].map(|value| value * factor);
    let fits = |value: &f64| value.is_finite() && (0.0..=1e12).contains(value);
    // A job at its very end is done at once, which a simulation takes no work for.
    values.iter().all(fits).then(|| values.map(|value| value.max(1e-3)))
}

fn foresee(queue: &Queue, args: &ForecastArgs) -> Result<ForecastJson, Failure> {
    let name = &queue.status.policy;
    let policy = Policy::by_name(name).ok_or_else(|| {
        let message = format!("the master's policy {name:?} is not known here");
        Failure::invalid(message, "compare the versions with `optimus version`")
    })?;
    let facts: Vec<Facts> = queue.jobs.iter().map(known).collect();
    let now = cluster(queue, &facts);
    let more = added(&now, queue, args)?;
    let mut options = Options { policy_name: name.clone(), policy, ..Options::default() };
    if queue.status.round_interval_s >= 0.001 {
        options.rounds.interval_s = queue.status.round_interval_s;
    }
    let run = |cluster: &Cluster, which: usize| {
        let workload = workload(queue, &facts, which, cluster);
        if workload.jobs.is_empty() || cluster.nodes.is_empty() {
            return Ok(Outcome::default());
        }
        world::run(cluster, &workload, &options, &mut |_| ())
            .map_err(|error| Failure::invalid(format!("cannot forecast: {error}"), ""))
    };
    let runs = [run(&now, 0)?, run(&now, 1)?, run(&now, 2)?];
    let with = more.as_ref().map(|more| run(more, 0)).transpose()?;
    let chosen = |job: &&(&JobDetail, _)| args.jobs.is_empty() || args.jobs.contains(&job.0.row.id);
    let jobs: Vec<_> = queue.jobs.iter().zip(&facts).collect();
    let item = |(job, facts): &(&JobDetail, &Result<_, String>)| {
        let reason = facts.as_ref().err().cloned().unwrap_or_default();
        item(job, reason, &runs, with.as_ref())
    };
    let items = jobs.iter().filter(chosen).map(item).collect();
    let all = queue.jobs.len();
    let last = |outcome: &Outcome| outcome.makespan_s().filter(|_| outcome.jobs.len() == all);
    Ok(ForecastJson {
        schema: "optimus.forecast/1",
        policy: name.clone(),
        jobs: items,
        all_done_in_s: last(&runs[0]),
        added_nodes: args.add_nodes.unwrap_or(0),
        all_done_with_nodes_in_s: with.as_ref().and_then(last),
        assumptions: [
            "no job comes, and none fails",
            "jobs of which speed or work left is not known keep what they hold",
            "low and high: all jobs have the least, or the most, of their central 80 % left",
        ]
        .map(str::to_owned)
        .to_vec(),
    })
}

fn item(
    job: &JobDetail,
    reason: String,
    runs: &[Outcome; 3],
    with: Option<&Outcome>,
) -> ForecastItem {
    let id = job.row.id.to_string();
    let done = |outcome: &Outcome| {
        outcome.jobs.iter().find(|job| job.id == id).and_then(|job| job.completion_s)
    };
    let [done_in_s, low_s, high_s] = [0, 1, 2].map(|run| done(&runs[run]));
    let with_nodes_in_s = with.and_then(done);
    let reason = if reason.is_empty() && done_in_s.is_none() {
        "there is no room for it on the nodes that take tasks".to_owned()
    } else {
        reason
    };
    ForecastItem {
        id,
        name: job.row.name.clone(),
        phase: job.row.phase.name(),
        done_in_s,
        // A policy may give a job with less work a later turn: the range holds the central value.
        low_s: low_s.zip(done_in_s).map(|(low, done)| low.min(done)),
        high_s: high_s.zip(done_in_s).map(|(high, done)| high.max(done)),
        with_nodes_in_s,
        saved_s: done_in_s.zip(with_nodes_in_s).map(|(done, with)| done - with),
        reason,
    }
}

/// The nodes that take tasks, without what jobs hold that are not simulated.
fn cluster(queue: &Queue, facts: &[Facts]) -> Cluster {
    let open = |node: &&NodeRow| {
        node.reachability == Reachability::Up && node.schedulability == Schedulability::Open
    };
    let mut nodes: BTreeMap<NodeId, Resources> = BTreeMap::new();
    for node in queue.nodes.iter().filter(open) {
        nodes.insert(node.id.clone(), node.capacity.clone());
    }
    for (job, _) in queue.jobs.iter().zip(facts).filter(|(_, facts)| facts.is_err()) {
        for share in &job.placement.0 {
            let held = Shape::new(share.servers, share.workers);
            let held = held.demand(&job.spec.worker, &job.spec.server);
            if let Some(capacity) = nodes.get_mut(&share.node) {
                *capacity = capacity.minus_saturating(&held);
            }
        }
    }
    Cluster { nodes: nodes.into_iter().collect() }
}

/// The cluster with more nodes, where that is asked for.
fn added(now: &Cluster, queue: &Queue, args: &ForecastArgs) -> Result<Option<Cluster>, Failure> {
    let Some(count) = args.add_nodes else { return Ok(None) };
    let like = match &args.like {
        Some(id) => queue.nodes.iter().find(|node| node.id == *id).ok_or_else(|| {
            let message = format!("there is no node {id}");
            Failure::new(Exit::NotFound, message, "`optimus nodes` lists them")
        })?,
        None => queue.nodes.first().ok_or_else(|| {
            Failure::invalid("there is no node that the added ones could be like", "")
        })?,
    };
    let mut nodes = now.nodes.clone();
    for number in 0..count {
        // No operator's name has a space in front, so none is taken.
        let id = NodeId::for_file(&format!("added {number}"))
            .map_err(|error| Failure::invalid(error.to_string(), error.remedy))?;
        nodes.push((id, like.capacity.clone()));
    }
    nodes.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Some(Cluster { nodes }))
}

/// The jobs that are known and fit on the empty nodes, with their central, low or high work.
fn workload(queue: &Queue, facts: &[Facts], which: usize, cluster: &Cluster) -> Workload {
    let job = |(job, facts): (&JobDetail, &Facts)| {
        let (speed, left) = facts.as_ref().ok()?;
        let spec = &job.spec;
        let costs = job.decisions.iter().rev().find_map(|decision| decision.cost_s);
        let pinned = job.pinned && !job.row.shape.is_empty();
        let (min, max) = if pinned {
            (job.row.shape, job.row.shape)
        } else {
            let max = Shape::new(spec.servers.max, spec.workers.max);
            (spec.shape_min(), Shape::new(max.servers.min(TASKS_MAX), max.workers.min(TASKS_MAX)))
        };
        place(min, &spec.server, &spec.worker, &cluster.nodes)?;
        Some(Job {
            id: job.row.id.to_string(),
            arrival_s: 0.0,
            model: job.row.id.to_string(),
            mode: spec.mode,
            batch: spec.batch,
            worker: spec.worker.clone(),
            server: spec.server.clone(),
            min,
            max,
            requested: Some(max),
            priority: spec.priority,
            speed: Speed::Theta(speed.clone()),
            work: left[which],
            rescale_cost_s: costs.filter(|cost| (0.0..=1e6).contains(cost)).unwrap_or(15.0),
            loss: None,
        })
    };
    Workload { jobs: queue.jobs.iter().zip(facts).filter_map(job).collect() }
}

fn print(context: &mut Context<'_>, json: &ForecastJson) -> Result<(), Failure> {
    match context.format {
        Format::Json => context.output.data(&(pretty(json) + "\n")),
        Format::Jsonl => context.output.data(&line(json)),
        Format::Name | Format::Table | Format::Wide => {
            let view = View { format: context.format, header: true, ..View::default() };
            let style = context.output.style(false);
            let text = FORECAST.render(&json.jobs, &FORECAST.choose(&view)?, &view, &style);
            context.output.data(&text)?;
            let done = json.all_done_in_s.map_or_else(|| "not known".to_owned(), span);
            context.output.talk(&format!("{}: all done in {done}", json.policy));
            if let Some(with) = json.all_done_with_nodes_in_s {
                let added = usize::try_from(json.added_nodes).unwrap_or(usize::MAX);
                let added = count(added, "node", "nodes");
                context.output.talk(&format!("with {added} more: {}", span(with)));
            }
            for assumption in &json.assumptions {
                context.output.talk(&format!("assumed: {assumption}"));
            }
            Ok(())
        }
    }
}
