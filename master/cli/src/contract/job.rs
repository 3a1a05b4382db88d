//! Lines of `ps`, `events`, and the answer of `why`.

use model::reason::PhaseName;
use model::view::{EventView, JobRow, WhyView};
use serde::Serialize;

use super::{ShapeJson, Time};
use crate::grid::{Cell, Tone};
use crate::listing::{Column, Item, Kind};

/// The colour of a phase.
#[must_use]
pub(crate) const fn phase_tone(phase: PhaseName) -> Tone {
    match phase {
        PhaseName::Running | PhaseName::Completed => Tone::Good,
        PhaseName::Profiling | PhaseName::Starting | PhaseName::Rescaling | PhaseName::Stopping => {
            Tone::Busy
        }
        PhaseName::Queued | PhaseName::Paused => Tone::Warn,
        PhaseName::Failed | PhaseName::Cancelled => Tone::Bad,
    }
}

/// `optimus.job/1`: what every listing of a job holds; `show` adds to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct JobJson {
    pub schema: &'static str,
    pub id: String,
    pub name: String,
    pub user: String,
    pub phase: &'static str,
    pub reason: String,
    pub generation: Option<String>,
    pub shape: ShapeJson,
    pub step: u64,
    pub epoch: u32,
    pub loss: Option<f64>,
    pub steps_per_s: Option<f64>,
    pub remaining_s: Option<f64>,
    pub rescales: u32,
    pub restarts: u32,
    pub submitted: Time,
    pub started: Option<Time>,
    pub ended: Option<Time>,
    pub age_s: f64,
    #[serde(skip)]
    pub tone: Option<Tone>,
}

impl From<&JobRow> for JobJson {
    fn from(row: &JobRow) -> Self {
        Self {
            schema: "optimus.job/1",
            id: row.id.to_string(),
            name: row.name.clone(),
            user: row.user.clone(),
            phase: row.phase.name(),
            reason: row.reason.clone(),
            generation: row.generation.map(|generation| generation.to_string()),
            shape: row.shape.into(),
            step: row.step,
            epoch: row.epoch,
            loss: row.loss,
            steps_per_s: row.steps_per_s,
            remaining_s: row.remaining_s,
            rescales: row.rescales,
            restarts: row.restarts,
            submitted: Time(row.submitted),
            started: row.started.map(Time),
            ended: row.ended.map(Time),
            age_s: row.age_s,
            tone: Some(phase_tone(row.phase)),
        }
    }
}

impl JobJson {
    /// The phase in its colour.
    #[must_use]
    pub(crate) fn phase_cell(&self) -> Cell {
        let text = self.phase.to_owned();
        self.tone.map_or_else(|| Cell::text(self.phase), |tone| Cell::Toned(text, tone))
    }
}

impl Item for JobJson {
    fn key(&self) -> String {
        self.id.clone()
    }

    fn settled(&self) -> Self {
        Self { age_s: 0.0, ..self.clone() }
    }
}

fn shape_cell(shape: ShapeJson) -> Cell {
    if shape.servers == 0 && shape.workers == 0 {
        return Cell::None;
    }
    Cell::Number(f64::from(shape.servers) + f64::from(shape.workers), shape.short())
}

pub(crate) static JOBS: Kind<JobJson> = Kind {
    schema: "optimus.jobs/1",
    field: "jobs",
    columns: &[
        Column::left("id", |job: &JobJson| Cell::id(&job.id)),
        Column::name("name", |job: &JobJson| Cell::text(job.name.as_str())),
        Column::left("user", |job: &JobJson| Cell::text(job.user.as_str())).rank(4),
        Column::left("phase", JobJson::phase_cell),
        Column::right("shape", |job: &JobJson| shape_cell(job.shape)),
        Column::right("epoch", |job: &JobJson| Cell::count(u64::from(job.epoch))).rank(2),
        Column::right("loss", |job: &JobJson| Cell::number(job.loss)).rank(3),
        Column::right("steps/s", |job: &JobJson| Cell::number(job.steps_per_s)).rank(5),
        Column::right("left", |job: &JobJson| Cell::span(job.remaining_s)).rank(1),
        Column::right("age", |job: &JobJson| Cell::span(Some(job.age_s))),
        Column::right("generation", |job: &JobJson| {
            job.generation.as_ref().map_or(Cell::None, Cell::id)
        })
        .wide(),
        Column::right("step", |job: &JobJson| Cell::count(job.step)).wide(),
        Column::right("rescales", |job: &JobJson| Cell::count(u64::from(job.rescales))).wide(),
        Column::right("restarts", |job: &JobJson| Cell::count(u64::from(job.restarts))).wide(),
        Column::left("submitted", |job: &JobJson| Cell::Time(job.submitted.0)).wide(),
        Column::left("started", |job: &JobJson| Cell::time(job.started.map(|at| at.0))).wide(),
        Column::left("ended", |job: &JobJson| Cell::time(job.ended.map(|at| at.0))).wide(),
        Column::sentence("reason", |job: &JobJson| Cell::text(job.reason.as_str())),
    ],
};

/// `optimus.event/1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EventJson {
    pub schema: &'static str,
    pub number: u64,
    pub at: Time,
    pub job: Option<String>,
    pub node: Option<String>,
    pub kind: String,
    pub text: String,
}

impl From<&EventView> for EventJson {
    fn from(event: &EventView) -> Self {
        Self {
            schema: "optimus.event/1",
            number: event.number,
            at: Time(event.at),
            job: event.job.map(|job| job.to_string()),
            node: event.node.as_ref().map(ToString::to_string),
            kind: event.kind.clone(),
            text: event.text.clone(),
        }
    }
}

impl Item for EventJson {
    fn key(&self) -> String {
        self.number.to_string()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

pub(crate) static EVENTS: Kind<EventJson> = Kind {
    schema: "optimus.events/1",
    field: "events",
    columns: &[
        Column::left("time", |event: &EventJson| Cell::Time(event.at.0)),
        Column::left("job", |event: &EventJson| event.job.as_ref().map_or(Cell::None, Cell::id)),
        Column::left("node", |event: &EventJson| event.node.clone().map_or(Cell::None, Cell::Text))
            .rank(1),
        Column::left("kind", |event: &EventJson| Cell::text(event.kind.as_str())),
        Column::right("number", |event: &EventJson| Cell::count(event.number)).wide(),
        Column::sentence("text", |event: &EventJson| Cell::text(event.text.as_str())),
    ],
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RefusedJson {
    pub reason: String,
    pub nodes: u32,
}

/// `optimus.why/1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct WhyJson {
    pub schema: &'static str,
    pub id: String,
    pub name: String,
    pub phase: &'static str,
    pub reason: String,
    pub round: Option<String>,
    pub round_at: Option<Time>,
    pub decision: String,
    pub nodes_refused: Vec<RefusedJson>,
    pub remedy: Option<String>,
    pub notes: Vec<String>,
    #[serde(skip)]
    pub tone: Option<Tone>,
}

impl From<&WhyView> for WhyJson {
    fn from(why: &WhyView) -> Self {
        let refused =
            |(reason, nodes): &(String, u32)| RefusedJson { reason: reason.clone(), nodes: *nodes };
        Self {
            schema: "optimus.why/1",
            id: why.id.to_string(),
            name: why.name.clone(),
            phase: why.phase.name(),
            reason: why.reason.clone(),
            round: why.round.map(|round| round.to_string()),
            round_at: why.round_at.map(Time),
            decision: why.decision.clone(),
            nodes_refused: why.nodes_refused.iter().map(refused).collect(),
            remedy: why.remedy.clone(),
            notes: why.notes.clone(),
            tone: Some(phase_tone(why.phase)),
        }
    }
}

impl Item for WhyJson {
    fn key(&self) -> String {
        self.id.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}
