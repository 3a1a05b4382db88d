//! `audit` and `roles`: who did what, and who may.

use model::UnixMs;
use model::access::TABLE;
use model::client::{Answer, Read};

use super::Context;
use super::read::list;
use crate::args::AuditArgs;
use crate::client::unexpected;
use crate::contract::access::{AUDIT, AuditJson, ROLES, RoleJson, is_since};
use crate::failure::Failure;
use crate::listing::View;

pub(super) async fn audit(context: &mut Context<'_>, args: &AuditArgs) -> Result<(), Failure> {
    let read = Read::Audit { after: 0, limit: args.limit };
    list(context, &AUDIT, &args.read, read, |answer, style| {
        let Answer::Audit(lines) = answer else { return Err(unexpected(&answer)) };
        let now: UnixMs = style.now;
        let chosen = lines.iter().filter(|line| {
            args.user.as_ref().is_none_or(|user| *user == line.user)
                && args.since.is_none_or(|since| is_since(line, now, since.0))
        });
        Ok(chosen.map(AuditJson::from).collect())
    })
    .await
}

/// The table that the master decides by, which needs no master to be shown.
pub(super) fn roles(context: &mut Context<'_>) -> Result<(), Failure> {
    let view = View { format: context.format, header: true, ..View::default() };
    let choice = ROLES.choose(&view)?;
    let style = context.output.style(false);
    let rows = ROLES.select(TABLE.iter().map(RoleJson::from).collect(), &choice, &style);
    context.output.data(&ROLES.render(&rows, &choice, &view, &style))
}
