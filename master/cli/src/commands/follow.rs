//! `logs` and `events`, which can go on for ever.

use std::time::Duration;

use model::client::{Answer, Read};
use model::{Generation, JobId};

use super::Context;
use crate::args::{EventsArgs, LogsArgs};
use crate::client::unexpected;
use crate::contract::job::{EVENTS, EventJson};
use crate::failure::{Exit, Failure};
use crate::grid::Style;
use crate::listing::{Format, line, pretty};
use crate::tail::{New, added};

const FOLLOW_POLL: Duration = Duration::from_secs(1);
/// How far back a follower looks each time: what a task may print in a second without a gap.
const WINDOW: u32 = 1 << 20;
/// Lives of a job whose output an agent keeps.
const LIVES_KEPT: u64 = 5;
/// Events fetched at once; fewer came means all came.
const EVENTS_AT_ONCE: u32 = 1000;

/// `optimus.log/1`: some of a task's output.
#[derive(serde::Serialize)]
struct LogJson<'a> {
    schema: &'static str,
    job: String,
    generation: String,
    task: String,
    text: std::borrow::Cow<'a, str>,
}

pub(super) async fn logs(context: &mut Context<'_>, args: &LogsArgs) -> Result<(), Failure> {
    let bytes_max = u32::try_from(args.bytes).unwrap_or(u32::MAX);
    if args.follow {
        return follow_logs(context, args, bytes_max).await;
    }
    let generation = args.generation.map(|generation| generation.0);
    let Log { generation, text } = fetch(context, args, generation, bytes_max, false).await?;
    print(context, args, generation, &text)
}

struct Log {
    generation: u64,
    text: Vec<u8>,
}

async fn fetch(
    context: &mut Context<'_>,
    args: &LogsArgs,
    generation: Option<u64>,
    bytes_max: u32,
    patient: bool,
) -> Result<Log, Failure> {
    let read = Read::Log { job: args.job, generation, task: args.task, bytes_max };
    let answer = if patient {
        context.master.read_patiently(read, context.output).await?
    } else {
        context.master.read(read).await?
    };
    let Answer::Log { generation, text } = answer else { return Err(unexpected(&answer)) };
    Ok(Log { generation, text })
}

fn print(
    context: &mut Context<'_>,
    args: &LogsArgs,
    generation: u64,
    bytes: &[u8],
) -> Result<(), Failure> {
    if !context.format.is_json() {
        return context.output.foreign(bytes);
    }
    let json = LogJson {
        schema: "optimus.log/1",
        job: args.job.to_string(),
        generation: Generation(generation).to_string(),
        task: args.task.to_string(),
        text: String::from_utf8_lossy(bytes),
    };
    let text = if context.format == Format::Json && !args.follow {
        pretty(&json) + "\n"
    } else {
        line(&json)
    };
    context.output.data(&text)
}

async fn follow_logs(
    context: &mut Context<'_>,
    args: &LogsArgs,
    bytes_max: u32,
) -> Result<(), Failure> {
    let wanted = args.generation.map(|generation| generation.0);
    // A job that never was is told at once; one that has not printed yet is waited for.
    ended(context, args.job, false).await?;
    let mut last: Option<Log> = None;
    let mut told = false;
    loop {
        let over = ended(context, args.job, true).await?;
        match fetch(context, args, wanted, WINDOW, true).await {
            Ok(log) => {
                step(context, args, &mut last, log, bytes_max).await?;
                told = false;
            }
            Err(failure) if over || failure.exit == Exit::Invalid => return Err(failure),
            Err(failure) => {
                if !told {
                    context.output.talk(&format!("{}; still trying", failure.message));
                    told = true;
                }
            }
        }
        if over {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_POLL).await;
    }
}

async fn ended(context: &mut Context<'_>, job: JobId, patient: bool) -> Result<bool, Failure> {
    let read = Read::Why { job };
    let answer = if patient {
        context.master.read_patiently(read, context.output).await?
    } else {
        context.master.read(read).await?
    };
    let Answer::Why(why) = answer else { return Err(unexpected(&answer)) };
    Ok(why.phase.is_final())
}

/// Prints what is new since the last look.
async fn step(
    context: &mut Context<'_>,
    args: &LogsArgs,
    last: &mut Option<Log>,
    log: Log,
    bytes_max: u32,
) -> Result<(), Failure> {
    match last {
        None => {
            let first = usize::try_from(bytes_max).unwrap_or(usize::MAX);
            let start = log.text.len().saturating_sub(first);
            print(context, args, log.generation, &log.text[start..])?;
        }
        Some(before) if before.generation == log.generation => {
            let new = added(&before.text, &log.text);
            if let New::Gap(_) = new {
                context.output.talk("some output came too fast and was skipped");
            }
            let (New::Added(bytes) | New::Gap(bytes)) = new;
            if !bytes.is_empty() {
                print(context, args, log.generation, bytes)?;
            }
        }
        Some(before) => {
            // The end of the old life, which may have come after the last look. It may be gone
            // by now, and then was seen as far as it ever can be.
            if let Ok(rest) = fetch(context, args, Some(before.generation), WINDOW, false).await {
                let (New::Added(bytes) | New::Gap(bytes)) = added(&before.text, &rest.text);
                if !bytes.is_empty() {
                    print(context, args, before.generation, bytes)?;
                }
            }
            // Lives so short that they fell between two looks, as far as they are kept.
            let first = log.generation.saturating_sub(LIVES_KEPT).max(before.generation);
            for between in first + 1..log.generation {
                if let Ok(short) = fetch(context, args, Some(between), WINDOW, false).await {
                    print(context, args, between, &short.text)?;
                }
            }
            let generation = Generation(log.generation);
            context.output.talk(&format!("{} goes on as {generation}", args.job));
            print(context, args, log.generation, &log.text)?;
        }
    }
    *last = Some(log);
    Ok(())
}

pub(super) async fn events(context: &mut Context<'_>, args: &EventsArgs) -> Result<(), Failure> {
    let view = args.read.view(context.format);
    let choice = EVENTS.choose(&view)?;
    let follow = args.follow || view.watch;
    let mut first = newest(context, args.job, args.limit).await?;
    let mut seen = first.iter().map(|event| event.number).max().unwrap_or(0);
    if args.limit == 0 {
        first.clear();
    }
    let style = context.output.style(view.utc);
    let rows = EVENTS.select(first, &choice, &style);
    if !follow {
        return context.output.data(&EVENTS.render(&rows, &choice, &view, &style));
    }
    if view.header && matches!(view.format, Format::Table | Format::Wide) {
        context.output.data(&EVENTS.head(&choice, &style))?;
    }
    for row in &rows {
        context.output.data(&EVENTS.change(row, &choice, &view, &style))?;
    }
    loop {
        tokio::time::sleep(FOLLOW_POLL).await;
        let read = Read::Events { job: args.job, after: seen, limit: EVENTS_AT_ONCE };
        let answer = context.master.read_patiently(read, context.output).await?;
        let new = rows_of(answer)?;
        seen = new.iter().map(|event| event.number).fold(seen, u64::max);
        let style: Style = context.output.style(view.utc);
        for row in EVENTS.select(new, &choice, &style) {
            context.output.data(&EVENTS.change(&row, &choice, &view, &style))?;
        }
    }
}

fn rows_of(answer: Answer) -> Result<Vec<EventJson>, Failure> {
    let Answer::Events(events) = answer else { return Err(unexpected(&answer)) };
    Ok(events.iter().map(EventJson::from).collect())
}

/// The last `limit` events, oldest first.
async fn newest(
    context: &mut Context<'_>,
    job: Option<JobId>,
    limit: u32,
) -> Result<Vec<EventJson>, Failure> {
    // At least one, to know where the new ones start. After 0, the master gives the newest.
    let read = Read::Events { job, after: 0, limit: limit.max(1) };
    rows_of(context.master.read(read).await?)
}
