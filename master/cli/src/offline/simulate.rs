//! `optimus simulate`: what a cluster would have done with a trace of jobs.

use std::cell::Cell as Shared;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use simulator::outcome::Outcome;
use simulator::plot;
use simulator::report::{Policies, Run, Runs, SCHEMA, Timelines};

use super::runner::{NoRun, Runner, check_policies, runner};
use super::simulated::{JOBS, JobItem, POLICIES, SPANS, SpanItem, jobs, policies, spans};
use super::workers::{each, threads};
use super::{check_writable, cluster, file, trace, write};
use crate::args::SimulateArgs;
use crate::clock;
use crate::commands::Context;
use crate::failure::{Exit, Failure};
use crate::listing::{Format, Item, Kind, View, line, pretty};
use crate::text::{count, percent, span};

/// Simulates, prints, and draws.
///
/// # Errors
/// Everything that is wrong with the first wrong file, or why a run came to no end.
pub(crate) fn simulate(context: &mut Context<'_>, args: &SimulateArgs) -> Result<(), Failure> {
    if let Some(seeds) = args.faults {
        return super::faults::faults(context, args, seeds);
    }
    let start = clock::instant();
    if let Some(svg) = args.svg.as_deref() {
        check_writable(svg)?;
        for input in [&args.cluster, &args.trace] {
            if svg.canonicalize().is_ok_and(|svg| input.canonicalize().is_ok_and(|own| own == svg))
            {
                let message = format!("--svg {} is one of the files to read", svg.display());
                return Err(Failure::invalid(message, "name another file"));
            }
        }
    }
    let cluster = cluster::read(&file::read(&args.cluster)?)?;
    let input = trace::read(&file::read(&args.trace)?, cluster)?;
    let timelines = timelines(args, &input.trace.ids())?;
    let runner = runner(&input, args)?;
    check_policies(&*runner, &args.policies)?;
    for note in &input.notes {
        context.output.talk(&format!("note: {note}"));
    }
    let runs = args.runs.unwrap_or(1);
    let outcomes = outcomes(context, args, &*runner, runs)?;
    if let Some(path) = &args.svg {
        draw(path, args, &outcomes)?;
    }
    print(context, args, &timelines, &outcomes)?;
    for (policy, outcomes) in args.policies.iter().zip(&outcomes) {
        let jobs = || outcomes.iter().flat_map(|outcome| &outcome.jobs);
        let open = jobs().filter(|job| job.completion_s.is_none()).count();
        if open > 0 {
            context.output.talk(&format!(
                "note: under {policy} {open} of {} had not ended by the limit; means are those of the \
                 others",
                count(jobs().count(), "job", "jobs"),
            ));
        }
    }
    let runs = usize::try_from(runs).unwrap_or(usize::MAX);
    context.output.talk(&format!(
        "simulated {} under {}, {} of each, in {}",
        count(input.trace.jobs(), "job", "jobs"),
        count(args.policies.len(), "policy", "policies"),
        count(runs, "run", "runs"),
        span(clock::instant().duration_since(start).as_secs_f64()),
    ));
    Ok(())
}

/// Which timelines are wanted; the job must be there.
fn timelines(args: &SimulateArgs, ids: &[String]) -> Result<Timelines, Failure> {
    match args.timeline.as_deref() {
        None => Ok(Timelines::None),
        Some(id) if ids.iter().any(|known| known == id) => Ok(Timelines::Of(id.to_owned())),
        Some("all") => Ok(Timelines::All),
        Some(id) => {
            let meant = crate::text::nearest(id, ids.iter().map(String::as_str))
                .map(|near| format!("did you mean {near}? "))
                .unwrap_or_default();
            let message = format!("the trace has no job {id:?}");
            Err(Failure::new(
                Exit::NotFound,
                message,
                format!("{meant}give one of its ids, or all"),
            ))
        }
    }
}

/// All runs: by policy, then by seed.
fn outcomes(
    context: &mut Context<'_>,
    args: &SimulateArgs,
    runner: &dyn Runner,
    runs: u32,
) -> Result<Vec<Vec<Outcome>>, Failure> {
    let policies = u32::try_from(args.policies.len()).unwrap_or(u32::MAX);
    let total = policies.saturating_mul(runs);
    // Shares of runs under way, in millionths, so that one long run shows progress as well.
    let under_way = AtomicU64::new(0);
    let work = |number: u32| {
        let policy = &args.policies[usize::try_from(number / runs).unwrap_or(0)];
        let seed = args.first_seed().wrapping_add(u64::from(number % runs));
        let last = Shared::new(0);
        let told = |share: f64| {
            let now = millionths(share);
            under_way.fetch_add(now.saturating_sub(last.get()), Ordering::Relaxed);
            last.set(now.max(last.get()));
        };
        let named = |none: NoRun| none.failure(&format!("policy {policy}, seed {seed}"));
        runner.run(policy, seed, &told).map_err(named)
    };
    let output = &mut *context.output;
    let mut told = |done: u32| {
        let all = f64::from(total) * 1e6;
        let share = under_way.load(Ordering::Relaxed) as f64 / all;
        output.progress(&format!("{done} of {total} runs, {}", percent(share)));
    };
    let all = each(total, threads(args.threads), &work, &mut told)?;
    let mut all = all.into_iter();
    let each = usize::try_from(runs).unwrap_or(usize::MAX);
    Ok(args.policies.iter().map(|_| all.by_ref().take(each).collect()).collect())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0 to a million")]
fn millionths(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * 1e6) as u64
}

fn draw(path: &Path, args: &SimulateArgs, outcomes: &[Vec<Outcome>]) -> Result<(), Failure> {
    let firsts: Vec<&Outcome> = outcomes.iter().filter_map(|runs| runs.first()).collect();
    let name =
        args.trace.file_name().map_or_else(|| "stdin".into(), std::ffi::OsStr::to_string_lossy);
    let title = format!("{name}, seed {}", args.first_seed());
    write(path, &plot::over_time(&title, &firsts))
}

/// What JSON holds of one policy.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum OfPolicy {
    Run(Box<Run>),
    Runs(Runs),
}

/// The whole of JSON.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Document {
    One(OfPolicy),
    Several(Policies<OfPolicy>),
}

fn print(
    context: &mut Context<'_>,
    args: &SimulateArgs,
    timelines: &Timelines,
    outcomes: &[Vec<Outcome>],
) -> Result<(), Failure> {
    match context.format {
        Format::Json => {
            let text = pretty(&json(args, timelines, outcomes)) + "\n";
            context.output.data(&text)
        }
        Format::Jsonl => {
            for outcome in outcomes.iter().flatten() {
                let run = Run { schema: Some(SCHEMA), ..Run::of(outcome, timelines) };
                context.output.data(&line(&run))?;
            }
            Ok(())
        }
        Format::Name => {
            let jobs = outcomes.first().and_then(|runs| runs.first());
            let ids = jobs.iter().flat_map(|outcome| &outcome.jobs);
            let text: String = ids.map(|job| crate::text::escape(&job.id) + "\n").collect();
            context.output.data(&text)
        }
        Format::Table | Format::Wide => {
            let every = || outcomes.iter().flatten();
            if *timelines != Timelines::None {
                let rows: Vec<SpanItem> =
                    every().flat_map(|outcome| spans(outcome, timelines)).collect();
                return table(context, &SPANS, &rows);
            }
            if args.list_jobs {
                let rows: Vec<JobItem> = every().flat_map(jobs).collect();
                return table(context, &JOBS, &rows);
            }
            table(context, &POLICIES, &policies(outcomes))
        }
    }
}

fn json(args: &SimulateArgs, timelines: &Timelines, outcomes: &[Vec<Outcome>]) -> Document {
    // The schema stands at the top only.
    let schema = (outcomes.len() == 1).then_some(SCHEMA);
    let mut policies: Vec<OfPolicy> = Vec::new();
    for outcomes in outcomes {
        let run = |outcome| Run::of(outcome, timelines);
        let policy = match outcomes.as_slice() {
            [outcome] if args.runs.is_none() => {
                OfPolicy::Run(Box::new(Run { schema, ..run(outcome) }))
            }
            all => {
                let name = all.first().map_or("", |outcome| outcome.policy.as_str());
                let runs = all.iter().map(run).collect();
                OfPolicy::Runs(Runs { schema, ..Runs::of(name, runs) })
            }
        };
        policies.push(policy);
    }
    if schema.is_some()
        && let Some(only) = policies.pop()
    {
        return Document::One(only);
    }
    Document::Several(Policies { schema: SCHEMA, policies })
}

fn table<T: Item>(context: &mut Context<'_>, kind: &Kind<T>, rows: &[T]) -> Result<(), Failure> {
    let view = View { format: context.format, header: true, ..View::default() };
    let style = context.output.style(false);
    let text = kind.render(rows, &kind.choose(&view)?, &view, &style);
    context.output.data(&text)
}
