//! Lines of `audit` and `roles`.

use model::UnixMs;
use model::access::{Needs, Rank, Row};
use model::nodes::AuditView;
use serde::Serialize;

use super::Time;
use crate::grid::Cell;
use crate::listing::{Column, Item, Kind};

/// `optimus.audit_line/1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AuditJson {
    pub schema: &'static str,
    pub number: u64,
    pub at: Time,
    pub user: String,
    pub role: String,
    pub address: String,
    pub request: String,
    pub dry_run: bool,
    pub reason: Option<String>,
    pub outcome: String,
}

impl From<&AuditView> for AuditJson {
    fn from(line: &AuditView) -> Self {
        Self {
            schema: "optimus.audit_line/1",
            number: line.number,
            at: Time(line.at),
            user: line.user.clone(),
            role: line.role.clone(),
            address: line.address.clone(),
            request: line.request.clone(),
            dry_run: line.dry_run,
            reason: line.reason.clone(),
            outcome: line.outcome.clone(),
        }
    }
}

impl Item for AuditJson {
    fn key(&self) -> String {
        self.number.to_string()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

pub(crate) static AUDIT: Kind<AuditJson> = Kind {
    schema: "optimus.audit/1",
    field: "lines",
    columns: &[
        Column::right("number", |line: &AuditJson| Cell::count(line.number)),
        Column::left("time", |line: &AuditJson| Cell::Time(line.at.0)),
        Column::name("user", |line: &AuditJson| Cell::text(line.user.as_str())),
        Column::left("role", |line: &AuditJson| Cell::text(line.role.as_str())),
        Column::left("address", |line: &AuditJson| Cell::text(line.address.as_str())).rank(2),
        Column::sentence("request", |line: &AuditJson| {
            let mark = if line.dry_run { "dry run: " } else { "" };
            Cell::Text(format!("{mark}{}", line.request))
        }),
        Column::sentence("reason", |line: &AuditJson| {
            Cell::text(line.reason.as_deref().unwrap_or(""))
        })
        .rank(1),
        Column::sentence("outcome", |line: &AuditJson| Cell::text(line.outcome.as_str())),
    ],
};

/// Whether a line is younger than `since_ms` at `now`.
#[must_use]
pub(crate) fn is_since(line: &AuditView, now: UnixMs, since_ms: u64) -> bool {
    now.0.saturating_sub(line.at.0) <= since_ms
}

/// `optimus.role/1`: what each role may of one kind of request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RoleJson {
    pub schema: &'static str,
    pub request: &'static str,
    pub user: &'static str,
    pub operator: &'static str,
    pub admin: &'static str,
}

impl From<&Row> for RoleJson {
    fn from(row: &Row) -> Self {
        let may = |rank: Rank| match row.needs {
            needs if needs.admits(rank, false) => "yes",
            Needs::Own(_) => "own jobs",
            Needs::Any | Needs::Least(_) => "no",
        };
        Self {
            schema: "optimus.role/1",
            request: row.name,
            user: may(Rank::User),
            operator: may(Rank::Operator),
            admin: may(Rank::Admin),
        }
    }
}

impl Item for RoleJson {
    fn key(&self) -> String {
        self.request.to_owned()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

pub(crate) static ROLES: Kind<RoleJson> = Kind {
    schema: "optimus.roles/1",
    field: "requests",
    columns: &[
        Column::left("request", |row: &RoleJson| Cell::text(row.request)),
        Column::left("user", |row: &RoleJson| Cell::text(row.user)),
        Column::left("operator", |row: &RoleJson| Cell::text(row.operator)),
        Column::left("admin", |row: &RoleJson| Cell::text(row.admin)),
    ],
};
