//! Lines of `rounds` and the answer of `round show`.

use model::view::{RoundDetail, RoundJobView, RoundRow};
use serde::Serialize;

use super::{ShapeJson, ShareJson, Time, placement};
use crate::grid::Cell;
use crate::listing::{Column, Item, Kind};

/// `optimus.round/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RoundJson {
    pub schema: &'static str,
    pub id: String,
    pub at: Time,
    pub cause: String,
    pub jobs: u32,
    pub started: u32,
    pub rescaled: u32,
    pub waiting: u32,
    pub elapsed_s: f64,
}

impl From<&RoundRow> for RoundJson {
    fn from(row: &RoundRow) -> Self {
        Self {
            schema: "optimus.round/1",
            id: row.id.to_string(),
            at: Time(row.at),
            cause: row.cause.clone(),
            jobs: row.jobs,
            started: row.started,
            rescaled: row.rescaled,
            waiting: row.waiting,
            elapsed_s: row.elapsed_s,
        }
    }
}

impl Item for RoundJson {
    fn key(&self) -> String {
        self.id.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

pub(crate) static ROUNDS: Kind<RoundJson> = Kind {
    schema: "optimus.rounds/1",
    field: "rounds",
    columns: &[
        Column::left("id", |round: &RoundJson| Cell::id(&round.id)),
        Column::left("time", |round: &RoundJson| Cell::Time(round.at.0)),
        Column::right("jobs", |round: &RoundJson| Cell::count(u64::from(round.jobs))),
        Column::right("started", |round: &RoundJson| Cell::count(u64::from(round.started))),
        Column::right("rescaled", |round: &RoundJson| Cell::count(u64::from(round.rescaled))),
        Column::right("waiting", |round: &RoundJson| Cell::count(u64::from(round.waiting))),
        Column::right("took", |round: &RoundJson| Cell::span(Some(round.elapsed_s))).rank(1),
        Column::sentence("cause", |round: &RoundJson| Cell::text(round.cause.as_str())),
    ],
};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RoundJobJson {
    pub id: String,
    pub verb: String,
    pub from: ShapeJson,
    pub to: ShapeJson,
    pub reason: String,
    pub predicted_steps_per_s: Option<f64>,
    pub measured_steps_per_s: Option<f64>,
    pub remaining_s: Option<f64>,
    pub placement: Vec<ShareJson>,
}

impl From<&RoundJobView> for RoundJobJson {
    fn from(job: &RoundJobView) -> Self {
        Self {
            id: job.id.to_string(),
            verb: job.verb.clone(),
            from: job.from.into(),
            to: job.to.into(),
            reason: job.reason.clone(),
            predicted_steps_per_s: job.predicted_steps_per_s,
            measured_steps_per_s: job.measured_steps_per_s,
            remaining_s: job.remaining_s,
            placement: placement(&job.placement),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct UsedJson {
    pub resource: String,
    pub share: f64,
}

/// `optimus.round/1` with its decisions. `decisions` holds one entry for each job, `jobs` how
/// many those are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RoundDetailJson {
    #[serde(flatten)]
    pub row: RoundJson,
    pub policy: String,
    pub decisions: Vec<RoundJobJson>,
    pub dropped: Vec<String>,
    pub used: Vec<UsedJson>,
}

impl From<&RoundDetail> for RoundDetailJson {
    fn from(detail: &RoundDetail) -> Self {
        let used = |(resource, share): &(String, f64)| UsedJson {
            resource: resource.clone(),
            share: *share,
        };
        Self {
            row: (&detail.row).into(),
            policy: detail.policy.clone(),
            decisions: detail.jobs.iter().map(Into::into).collect(),
            dropped: detail.dropped.clone(),
            used: detail.used.iter().map(used).collect(),
        }
    }
}

impl Item for RoundDetailJson {
    fn key(&self) -> String {
        self.row.id.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}
