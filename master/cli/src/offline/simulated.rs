//! Tables of simulated runs: by policy, by job, and of what jobs held over time.

use serde::Serialize;
use simulator::outcome::Outcome;
use simulator::report::{JobRow, Run, SCHEMA, SpanRow, Summary, Timelines};

use crate::grid::Cell;
use crate::listing::{Column, Item, Kind};

/// A policy over all its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PolicyItem {
    policy: String,
    runs: usize,
    jobs: usize,
    #[serde(flatten)]
    mean: Summary,
    /// Mean JCT and makespan over those of the first policy.
    jct_ratio: Option<f64>,
    makespan_ratio: Option<f64>,
}

impl Item for PolicyItem {
    fn key(&self) -> String {
        self.policy.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

fn size(count: usize) -> Cell {
    Cell::count(u64::try_from(count).unwrap_or(u64::MAX))
}

fn ratio(value: Option<f64>) -> Cell {
    value.map_or(Cell::None, |value| Cell::Number(value, format!("{value:.3}")))
}

pub(super) static POLICIES: Kind<PolicyItem> = Kind {
    schema: SCHEMA,
    field: "policies",
    columns: &[
        Column::left("policy", |row: &PolicyItem| Cell::text(row.policy.as_str())),
        Column::right("runs", |row: &PolicyItem| size(row.runs)).rank(5),
        Column::right("jobs", |row: &PolicyItem| size(row.jobs)).rank(4),
        Column::right("unfinished", |row: &PolicyItem| Cell::number(Some(row.mean.unfinished)))
            .wide(),
        Column::right("mean_jct", |row: &PolicyItem| Cell::span(row.mean.mean_jct_s)),
        Column::right("jct/first", |row: &PolicyItem| ratio(row.jct_ratio)).rank(1),
        Column::right("p50", |row: &PolicyItem| Cell::span(row.mean.p50_jct_s)).rank(3),
        Column::right("p99", |row: &PolicyItem| Cell::span(row.mean.p99_jct_s)).rank(3),
        Column::right("makespan", |row: &PolicyItem| Cell::span(row.mean.makespan_s)),
        Column::right("makespan/first", |row: &PolicyItem| ratio(row.makespan_ratio)).rank(1),
        Column::right("restarts", |row: &PolicyItem| Cell::number(Some(row.mean.restarts))).rank(2),
        Column::right("rescaling", |row: &PolicyItem| {
            let share = row.mean.rescale_share;
            Cell::Number(share, format!("{:.2}%", share * 100.0))
        })
        .rank(2),
        Column::right("rounds", |row: &PolicyItem| Cell::number(Some(row.mean.rounds))).wide(),
    ],
};

/// One row for each policy; those after the first beside it.
pub(super) fn policies(outcomes: &[Vec<Outcome>]) -> Vec<PolicyItem> {
    let mut rows: Vec<PolicyItem> = Vec::with_capacity(outcomes.len());
    for runs in outcomes {
        let summaries: Vec<Summary> = runs.iter().map(Summary::of).collect();
        let mean = Summary::mean(&summaries);
        let first = rows.first().map_or(mean, |row| row.mean);
        let over = |ours: Option<f64>, first: Option<f64>| {
            ours.zip(first).map(|(ours, first)| ours / first).filter(|ratio| ratio.is_finite())
        };
        rows.push(PolicyItem {
            policy: runs.first().map(|outcome| outcome.policy.clone()).unwrap_or_default(),
            runs: runs.len(),
            jobs: runs.first().map_or(0, |outcome| outcome.jobs.len()),
            mean,
            jct_ratio: over(mean.mean_jct_s, first.mean_jct_s),
            makespan_ratio: over(mean.makespan_s, first.makespan_s),
        });
    }
    rows
}

/// A job of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct JobItem {
    policy: String,
    seed: u64,
    #[serde(flatten)]
    job: JobRow,
}

impl Item for JobItem {
    fn key(&self) -> String {
        self.job.id.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

pub(super) static JOBS: Kind<JobItem> = Kind {
    schema: SCHEMA,
    field: "jobs",
    columns: &[
        Column::name("id", |row: &JobItem| Cell::text(row.job.id.as_str())),
        Column::left("policy", |row: &JobItem| Cell::text(row.policy.as_str())),
        Column::right("seed", |row: &JobItem| Cell::count(row.seed)).rank(3),
        Column::left("model", |row: &JobItem| Cell::text(row.job.model.as_str())).rank(2),
        Column::right("arrival", |row: &JobItem| Cell::span(Some(row.job.arrival_s))),
        Column::right("started", |row: &JobItem| Cell::span(row.job.started_s)).rank(1),
        Column::right("completed", |row: &JobItem| Cell::span(row.job.completion_s)),
        Column::right("jct", |row: &JobItem| Cell::span(row.job.jct_s)),
        Column::right("restarts", |row: &JobItem| Cell::count(u64::from(row.job.restarts))),
        Column::right("rescaling", |row: &JobItem| Cell::span(Some(row.job.rescale_s))).rank(1),
    ],
};

pub(super) fn jobs(outcome: &Outcome) -> Vec<JobItem> {
    let Run { policy, seed, jobs, .. } = Run::of(outcome, &Timelines::None);
    let item = |job| JobItem { policy: policy.clone(), seed, job };
    jobs.into_iter().map(item).collect()
}

/// What a job holds from an instant on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SpanItem {
    policy: String,
    seed: u64,
    id: String,
    #[serde(flatten)]
    span: SpanRow,
}

impl Item for SpanItem {
    fn key(&self) -> String {
        self.id.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

pub(super) static SPANS: Kind<SpanItem> = Kind {
    schema: SCHEMA,
    field: "spans",
    columns: &[
        Column::name("id", |row: &SpanItem| Cell::text(row.id.as_str())),
        Column::left("policy", |row: &SpanItem| Cell::text(row.policy.as_str())),
        Column::right("seed", |row: &SpanItem| Cell::count(row.seed)).rank(1),
        Column::right("from", |row: &SpanItem| Cell::span(Some(row.span.at_s))),
        Column::right("from_s", |row: &SpanItem| {
            Cell::Number(row.span.at_s, format!("{:.3}", row.span.at_s))
        })
        .wide(),
        Column::right("servers", |row: &SpanItem| Cell::count(u64::from(row.span.servers))),
        Column::right("workers", |row: &SpanItem| Cell::count(u64::from(row.span.workers))),
        Column::right("nodes", |row: &SpanItem| Cell::count(u64::from(row.span.nodes))),
    ],
};

pub(super) fn spans(outcome: &Outcome, timelines: &Timelines) -> Vec<SpanItem> {
    let Run { policy, seed, jobs, .. } = Run::of(outcome, timelines);
    let mut items = Vec::new();
    for job in jobs {
        let item = |span| SpanItem { policy: policy.clone(), seed, id: job.id.clone(), span };
        items.extend(job.timeline.unwrap_or_default().into_iter().map(item));
    }
    items
}
