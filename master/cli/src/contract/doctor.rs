//! The answer of `doctor`.

use model::nodes::{Finding, Severity};
use serde::Serialize;

use crate::grid::{Cell, Tone};
use crate::listing::{Column, Item, Kind};

/// `optimus.finding/1`, a row of `optimus.doctor/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FindingJson {
    pub schema: &'static str,
    /// `fault`, `warning` or `note`.
    pub severity: &'static str,
    pub subject: String,
    pub words: String,
    pub remedy: String,
    #[serde(skip)]
    pub tone: Option<Tone>,
}

impl From<&Finding> for FindingJson {
    fn from(finding: &Finding) -> Self {
        let (severity, tone) = match finding.severity {
            Severity::Note => ("note", None),
            Severity::Warning => ("warning", Some(Tone::Warn)),
            Severity::Fault => ("fault", Some(Tone::Bad)),
        };
        Self {
            schema: "optimus.finding/1",
            severity,
            subject: finding.subject.clone(),
            words: finding.words.clone(),
            remedy: finding.remedy.clone(),
            tone,
        }
    }
}

impl Item for FindingJson {
    fn key(&self) -> String {
        self.subject.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

fn severity(finding: &FindingJson) -> Cell {
    let text = finding.severity.to_owned();
    finding.tone.map_or_else(|| Cell::Text(text.clone()), |tone| Cell::Toned(text.clone(), tone))
}

pub(crate) static FINDINGS: Kind<FindingJson> = Kind {
    schema: "optimus.doctor/1",
    field: "findings",
    columns: &[
        Column::left("severity", severity),
        Column::left("subject", |finding: &FindingJson| Cell::text(finding.subject.as_str())),
        Column::sentence("words", |finding: &FindingJson| Cell::text(finding.words.as_str())),
        Column::sentence("remedy", |finding: &FindingJson| Cell::text(finding.remedy.as_str())),
    ],
};
