//! `optimus.certificates_status/1`.

use serde::Serialize;

use super::Time;
use crate::grid::{Cell, Tone};
use crate::listing::{Column, Item, Kind};

/// A certificate in a file, or in use at the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CertificateJson {
    /// `agent/node-7`, or the name of a CA.
    pub identity: String,
    /// A file, or `connected`.
    #[serde(rename = "where")]
    pub place: String,
    pub serial: String,
    pub ends: Time,
    /// `OK`, `ENDS-IN-30-DAYS`, `ENDS-IN-7-DAYS`, `ENDS-IN-1-DAY`, `EXPIRED`, `NOT-YET-VALID` or
    /// `REVOKED`.
    pub state: &'static str,
    pub words: String,
}

impl Item for CertificateJson {
    fn key(&self) -> String {
        self.serial.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

fn tone(state: &'static str) -> Tone {
    match state {
        "OK" => Tone::Good,
        "ENDS-IN-30-DAYS" => Tone::Busy,
        "ENDS-IN-7-DAYS" | "NOT-YET-VALID" => Tone::Warn,
        _ => Tone::Bad,
    }
}

pub(crate) static CERTIFICATES: Kind<CertificateJson> = Kind {
    schema: "optimus.certificates_status/1",
    field: "certificates",
    columns: &[
        Column::name("identity", |it| Cell::text(&it.identity)),
        Column::left("state", |it| Cell::Toned(it.state.to_owned(), tone(it.state))),
        Column::left("ends", |it| Cell::Time(it.ends.0)),
        Column::name("where", |it| Cell::text(&it.place)),
        Column::left("serial", |it: &CertificateJson| Cell::text(&it.serial)).rank(1),
        Column::sentence("words", |it| Cell::text(&it.words)),
    ],
};
