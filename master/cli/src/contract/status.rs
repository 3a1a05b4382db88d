//! The answers of `status`, `version`, and of changes.

use model::view::Status;
use serde::Serialize;

use super::{ResourcesJson, Time};
use crate::listing::Item;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CountJson {
    pub name: String,
    pub count: u64,
}

/// `optimus.status/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StatusJson {
    pub schema: &'static str,
    pub version: String,
    pub cluster: String,
    pub started: Time,
    pub uptime_s: f64,
    pub policy: String,
    pub round_interval_s: f64,
    pub last_round: Option<String>,
    pub last_round_age_s: Option<f64>,
    pub jobs_by_phase: Vec<CountJson>,
    pub nodes_by_state: Vec<CountJson>,
    pub capacity: ResourcesJson,
    pub used: ResourcesJson,
    pub reports_refused: Vec<CountJson>,
    pub alerts: Vec<String>,
    pub oldest_agent: Option<String>,
}

impl From<&Status> for StatusJson {
    fn from(status: &Status) -> Self {
        let counted = |name: &str, count: u64| CountJson { name: name.to_owned(), count };
        Self {
            schema: "optimus.status/1",
            version: status.version.clone(),
            cluster: status.cluster.clone(),
            started: Time(status.started),
            uptime_s: status.uptime_s,
            policy: status.policy.clone(),
            round_interval_s: status.round_interval_s,
            last_round: status.last_round.map(|round| round.to_string()),
            last_round_age_s: status.last_round_age_s,
            jobs_by_phase: status
                .jobs_by_phase
                .iter()
                .map(|(phase, count)| counted(phase.name(), u64::from(*count)))
                .collect(),
            nodes_by_state: status
                .nodes_by_state
                .iter()
                .map(|(state, count)| counted(state.name(), u64::from(*count)))
                .collect(),
            capacity: (&status.capacity).into(),
            used: (&status.used).into(),
            reports_refused: status
                .reports_refused
                .iter()
                .map(|(reason, count)| counted(reason, *count))
                .collect(),
            alerts: status.alerts.clone(),
            oldest_agent: status.oldest_agent.clone(),
        }
    }
}

impl Item for StatusJson {
    fn key(&self) -> String {
        self.cluster.clone()
    }

    fn settled(&self) -> Self {
        Self { uptime_s: 0.0, last_round_age_s: None, ..self.clone() }
    }
}

/// `optimus.version/1`. What cannot be known while the master is away is null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct VersionJson {
    pub schema: &'static str,
    pub client: String,
    pub master: Option<String>,
    pub oldest_agent: Option<String>,
    /// Why the master's is unknown.
    pub unavailable: Option<String>,
}

/// `optimus.submitted/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SubmittedJson {
    pub schema: &'static str,
    /// None in a dry run.
    pub id: Option<String>,
    pub name: String,
    /// False where the request id had been used before: `id` is the first job.
    pub created: bool,
    pub submitted_s_ago: f64,
    pub dry_run: bool,
}

/// `optimus.change/1`: one change that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ChangeJson {
    pub schema: &'static str,
    pub verb: &'static str,
    pub job: Option<String>,
    pub node: Option<String>,
    pub note: String,
    pub dry_run: bool,
}

/// `optimus.wait/1`: how a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EndedJson {
    pub schema: &'static str,
    pub id: String,
    pub name: String,
    pub phase: &'static str,
    pub reason: String,
}
