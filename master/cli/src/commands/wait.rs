//! `wait`, and `submit --wait`.

use std::time::Duration;

use model::JobId;
use model::client::{Answer, Read};
use model::reason::PhaseName;
use model::view::JobRow;

use super::read::POLL;
use super::{Context, Done};
use crate::args::Limit;
use crate::client::unexpected;
use crate::contract::status::EndedJson;
use crate::failure::{Exit, Failure};
use crate::text::{number, span};

/// Waits until a job ends; a master that restarts meanwhile is waited for.
pub(super) async fn wait(
    context: &mut Context<'_>,
    job: JobId,
    limit: Limit,
) -> Result<Done, Failure> {
    let mut last: Option<PhaseName> = None;
    let row = match limit.0 {
        None => until_final(context, job, &mut last).await?,
        Some(ms) => {
            let limit = Duration::from_millis(ms);
            let ended = tokio::time::timeout(limit, until_final(context, job, &mut last)).await;
            match ended {
                Ok(row) => row?,
                Err(_) => {
                    let phase = last.map_or("not seen yet", PhaseName::name);
                    let waited = model::units::DurationMs(ms);
                    return Err(Failure::new(
                        Exit::TimedOut,
                        format!("{job} is {phase} after {waited}"),
                        format!("it goes on; see `optimus why {job}`"),
                    ));
                }
            }
        }
    };
    context.output.end_progress();
    let json = EndedJson {
        schema: "optimus.wait/1",
        id: job.to_string(),
        name: row.name.clone(),
        phase: row.phase.name(),
        reason: row.reason.clone(),
    };
    let reason = if row.reason.is_empty() { String::new() } else { format!(": {}", row.reason) };
    let sentence = format!("{job} ({}) {}{reason}", row.name, row.phase.name());
    context.done(&json, &job.to_string(), &sentence)?;
    Ok(if row.phase == PhaseName::Completed { Done::Well } else { Done::JobFailed })
}

async fn until_final(
    context: &mut Context<'_>,
    job: JobId,
    last: &mut Option<PhaseName>,
) -> Result<JobRow, Failure> {
    let mut first = true;
    loop {
        let read = Read::Job { job };
        let answer = if first {
            context.master.read(read).await?
        } else {
            context.master.read_patiently(read, context.output).await?
        };
        first = false;
        let Answer::Job(detail) = answer else { return Err(unexpected(&answer)) };
        let row = detail.row;
        if row.phase.is_final() {
            return Ok(row);
        }
        *last = Some(row.phase);
        context.output.progress(&progress(&row));
        tokio::time::sleep(POLL).await;
    }
}

/// One line for a terminal.
fn progress(row: &JobRow) -> String {
    let mut words = vec![format!("{} {}", row.id, row.phase.name())];
    if !row.reason.is_empty() {
        words.push(row.reason.clone());
    }
    words.push(format!("epoch {}, step {}", row.epoch, row.step));
    words.extend(row.loss.map(|loss| format!("loss {}", number(loss))));
    words.extend(row.remaining_s.map(|left| format!("about {} left", span(left))));
    words.join(" · ")
}
