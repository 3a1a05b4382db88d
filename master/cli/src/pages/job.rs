//! `show` and `why`.

use model::UnixMs;

use crate::contract::detail::{DecisionJson, EstimateJson, JobDetailJson};
use crate::contract::job::WhyJson;
use crate::grid::Cell;
use crate::page::Block;
use crate::text::{bytes, count, cpus, number, percent, span};

/// The researcher's page: what was predicted, and what came of it.
#[must_use]
pub(crate) fn show(job: &JobDetailJson) -> Vec<Block> {
    let mut blocks = vec![head(job), progress(job), speed(job)];
    blocks.push(Block::table(
        "decisions",
        &["time", "round", "from", "to", ">predicted", ">measured", ">gain", ">cost", "reason"],
        job.decisions.iter().map(decision).collect(),
    ));
    blocks.push(Block::table(
        "faults",
        &["time", "generation", ">step", ">resumed", ">lost", "cause"],
        job.faults
            .iter()
            .map(|fault| {
                vec![
                    Cell::Time(fault.at.0),
                    Cell::id(&fault.generation),
                    Cell::count(fault.step),
                    fault.resumed_from.map_or(Cell::None, Cell::count),
                    Cell::span(fault.lost_s),
                    Cell::text(fault.cause.as_str()),
                ]
            })
            .collect(),
    ));
    blocks.push(Block::table(
        "checkpoints",
        &["id", "generation", ">step", ">epoch", ">size", "time", "url"],
        job.checkpoints
            .iter()
            .map(|checkpoint| {
                vec![
                    Cell::id(&checkpoint.id),
                    Cell::id(&checkpoint.generation),
                    Cell::count(checkpoint.step),
                    Cell::count(u64::from(checkpoint.epoch)),
                    Cell::bytes(checkpoint.bytes),
                    Cell::Time(checkpoint.at.0),
                    Cell::text(checkpoint.url.as_str()),
                ]
            })
            .collect(),
    ));
    blocks.push(Block::table(
        "tasks",
        &["task", "node", ">pid", ">steps/s", ">compute", "state"],
        job.tasks
            .iter()
            .map(|task| {
                vec![
                    Cell::text(task.task.as_str()),
                    Cell::text(task.node.as_str()),
                    task.pid.map_or(Cell::None, |pid| Cell::count(u64::from(pid))),
                    Cell::number(task.steps_per_s),
                    task.compute_share
                        .map_or(Cell::None, |share| Cell::Number(share, percent(share))),
                    Cell::text(task.state.as_str()),
                ]
            })
            .collect(),
    ));
    blocks.push(spec(job));
    blocks
}

fn head(job: &JobDetailJson) -> Block {
    let row = &job.row;
    Block::facts(
        "",
        vec![
            ("id", Cell::id(&row.id)),
            ("name", Cell::text(row.name.as_str())),
            ("phase", row.phase_cell()),
            ("reason", said(&row.reason)),
            ("user", Cell::text(row.user.as_str())),
            ("submitted", Cell::Time(row.submitted.0)),
            ("started", Cell::time(row.started.map(|at| at.0))),
            ("ended", Cell::time(row.ended.map(|at| at.0))),
            ("age", Cell::span(Some(row.age_s))),
        ],
    )
}

/// Text, or nothing.
fn said(text: &str) -> Cell {
    if text.is_empty() { Cell::None } else { Cell::text(text) }
}

fn range(estimate: Option<EstimateJson>, show: fn(f64) -> String) -> Cell {
    estimate.map_or(Cell::None, |EstimateJson { value, low, high }| {
        Cell::Number(value, format!("{} ({} to {})", show(value), show(low), show(high)))
    })
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

/// The data set, and how large it is once that is known.
fn data(job: &JobDetailJson) -> Cell {
    let Some(data) = &job.data else { return Cell::None };
    let (url, format) = (&data.url, &data.format);
    let (Some(chunks), Some(records), Some(size)) = (data.chunks, data.records, data.bytes) else {
        return Cell::Text(format!("{url}, {format}, not indexed yet"));
    };
    let some = |number, one, many| count(usize::try_from(number).unwrap_or(usize::MAX), one, many);
    let records = some(records, "record", "records");
    let chunks = some(chunks, "chunk", "chunks");
    Cell::Text(format!("{url}, {format}, {records} in {chunks}, {}", bytes(size)))
}

fn progress(job: &JobDetailJson) -> Block {
    let losses: Vec<f64> = job.epochs.iter().map(|epoch| epoch.loss).collect();
    let of_max = |epoch: u32| format!("{epoch} of at most {}", job.spec.epochs_max);
    let own = job.spec.convergence.as_ref().and_then(|rule| rule.curve.as_deref());
    let fit = job.loss_fit.map(|fit| {
        let [b0, b1, b2] = fit.beta.map(number);
        let (rmse, points) = (number(fit.rmse), fit.points);
        let curve = own.map_or_else(|| format!("1/({b0}·k + {b1}) + {b2}"), str::to_owned);
        format!("{curve}, rmse {rmse} over {points} points")
    });
    Block::facts(
        "progress",
        vec![
            ("epoch", Cell::Number(f64::from(job.row.epoch), of_max(job.row.epoch))),
            ("step", Cell::count(job.row.step)),
            ("data", data(job)),
            ("loss", Cell::number(job.row.loss)),
            (
                "loss not finite since step",
                job.loss_not_finite_since.map_or(Cell::None, Cell::count),
            ),
            ("loss by epoch", said(&sparkline(&losses))),
            ("loss predicted by", fit.map_or(Cell::None, Cell::Text)),
            ("epochs left", range(job.remaining_epochs, number)),
            ("steps left", range(job.remaining_steps, whole)),
            ("time left", range(job.remaining_s_range, span)),
            ("left unknown", job.remaining_unknown.as_deref().map_or(Cell::None, Cell::text)),
        ],
    )
}

/// Predicted against measured, as `-2%`.
fn difference(predicted: Option<f64>, measured: Option<f64>) -> String {
    match (predicted, measured) {
        (Some(predicted), Some(measured)) if predicted > 0.0 && measured.is_finite() => {
            format!(" ({:+.0}% of predicted)", (measured / predicted - 1.0) * 100.0)
        }
        (_, _) => String::new(),
    }
}

/// Requests of a worker in a step, and how even the servers are.
fn spread(job: &JobDetailJson) -> Cell {
    let Some(found) = &job.assignment else { return Cell::None };
    let requests = usize::try_from(found.requests).unwrap_or(usize::MAX);
    let requests = count(requests, "request", "requests");
    let largest = format!("{:.2}", found.largest_over_mean);
    let by = &found.algorithm;
    Cell::Text(format!(
        "{requests} a step and worker, fullest server {largest} of the mean parameters, by {by}"
    ))
}

/// The newest pause in its parts.
fn last_pause(job: &JobDetailJson) -> Cell {
    let Some(pause) = job.pauses.last() else { return Cell::None };
    let mut parts = vec![
        ("save", Some(pause.save_s)),
        ("publish", Some(pause.publish_s)),
        ("stop", Some(pause.stop_s)),
        ("launch", Some(pause.launch_s)),
    ];
    parts.push(("begin", Some(pause.begin_s)));
    // Of the slowest worker in each; they lie within the beginning and may overlap.
    let within = [
        ("script", pause.script_s),
        ("connect", pause.connect_s),
        ("restore", pause.restore_s),
        ("first step", pause.step_s),
    ];
    let words = |parts: &[(&str, Option<f64>)]| {
        let parts = parts.iter().filter_map(|(name, part)| Some(format!("{name} {:.2}", (*part)?)));
        parts.collect::<Vec<_>>().join(", ")
    };
    let within = words(&within);
    let within = if within.is_empty() { within } else { format!(": {within}") };
    Cell::Text(format!("{:.2} s ({}{within})", pause.total_s, words(&parts)))
}

fn speed(job: &JobDetailJson) -> Block {
    let (predicted, measured) = (job.steps_per_s_predicted, job.steps_per_s_measured);
    let rate = |rate: f64| format!("{} steps/s", number(rate));
    let fit = job.speed_fit.as_ref().map(|fit| {
        let theta: Vec<String> = fit.theta.iter().copied().map(number).collect();
        let (theta, samples) = (theta.join(", "), fit.samples.len());
        format!("θ = ({theta}), off by {} over {samples} shapes", percent(fit.rmse_relative))
    });
    let shape = job.row.shape;
    let tasks = |number: u32, one, many| count(usize::try_from(number).unwrap_or(0), one, many);
    let (servers, workers) =
        (tasks(shape.servers, "server", "servers"), tasks(shape.workers, "worker", "workers"));
    let shape_text = format!("{servers}, {workers}");
    let placed: Vec<String> = job
        .placement
        .iter()
        .map(|share| format!("{} {}+{}", share.node, share.servers, share.workers))
        .collect();
    Block::facts(
        "speed",
        vec![
            ("shape", if placed.is_empty() { Cell::None } else { Cell::Text(shape_text) }),
            ("pinned", if job.pinned { Cell::text("yes, until unpin") } else { Cell::None }),
            ("placement", said(&placed.join(", "))),
            (
                "traffic across nodes",
                Cell::Number(job.cross_node_share, percent(job.cross_node_share)),
            ),
            ("spread over servers", spread(job)),
            ("predicted", predicted.map_or(Cell::None, |value| Cell::Number(value, rate(value)))),
            (
                "measured",
                measured.map_or(Cell::None, |value| {
                    Cell::Number(value, rate(value) + &difference(predicted, measured))
                }),
            ),
            ("predicted by", fit.map_or(Cell::None, Cell::Text)),
            ("rescales", Cell::count(u64::from(job.row.rescales))),
            ("restarts", Cell::count(u64::from(job.row.restarts))),
            ("time without training", Cell::span(Some(job.paused_s))),
            ("last pause", last_pause(job)),
        ],
    )
}

fn decision(decision: &DecisionJson) -> Vec<Cell> {
    let kind = if decision.profiling { "profiling: " } else { "" };
    vec![
        Cell::Time(decision.at.0),
        decision.round.as_ref().map_or(Cell::None, Cell::id),
        Cell::text(decision.from.short()),
        Cell::text(decision.to.short()),
        Cell::number(decision.predicted_after),
        Cell::number(decision.measured_after),
        Cell::span(decision.predicted_gain_s),
        Cell::span(decision.cost_s),
        Cell::Text(format!("{kind}{}", decision.reason)),
    ]
}

fn resources(resources: &crate::contract::ResourcesJson) -> String {
    let milli = model::units::cpus_milli(resources.cpus).unwrap_or(0);
    let mut text = format!("{} CPUs, {}", cpus(milli), crate::text::bytes(resources.memory_bytes));
    if resources.gpus > 0 {
        text.push_str(&format_args!(", {} GPUs", resources.gpus).to_string());
    }
    for (kind, amount) in &resources.named {
        text.push_str(&format_args!(", {amount} {kind}").to_string());
    }
    text
}

fn spec(job: &JobDetailJson) -> Block {
    let spec = &job.spec;
    let batch = match (spec.batch_global, spec.batch_per_worker) {
        (Some(samples), _) => format!("{samples} samples shared among the workers"),
        (None, Some(samples)) => format!("{samples} samples for each worker"),
        (None, None) => String::new(),
    };
    let finish = match (&spec.convergence, spec.epochs) {
        (Some(rule), _) => format!(
            "loss drops by less than {} of its largest for {} epochs",
            percent_fine(rule.threshold),
            rule.patience
        ),
        (None, Some(epochs)) => format!("after {epochs} epochs"),
        (None, None) => String::new(),
    };
    let each = |count: crate::contract::detail::BoundsJson, one| {
        format!("{} to {} of {}", count.min, count.max, resources(one))
    };
    Block::facts(
        "job",
        vec![
            ("command", Cell::Text(spec.command.join(" "))),
            ("working directory", Cell::text(spec.working_directory.as_str())),
            ("mode", Cell::text(spec.mode)),
            ("batch", Cell::Text(batch)),
            ("workers", Cell::Text(each(spec.workers, &spec.worker))),
            ("servers", Cell::Text(each(spec.servers, &spec.server))),
            ("done when", Cell::Text(finish)),
            ("checkpoint", Cell::text(spec.checkpoint.as_str())),
            ("checkpoint interval", Cell::span(Some(f64::from(spec.checkpoint_interval_s)))),
            ("priority", Cell::number(Some(spec.priority))),
            ("on disconnect", Cell::text(spec.on_disconnect)),
            ("restarts at most", Cell::count(u64::from(spec.restarts_max))),
            ("model key", spec.model_key.as_deref().map_or(Cell::None, Cell::text)),
        ],
    )
}

fn percent_fine(share: f64) -> String {
    format!("{}%", number(share * 100.0))
}

/// Bars of the last 40 losses; a gap where one is not finite.
#[must_use]
pub(crate) fn sparkline(losses: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let last = &losses[losses.len().saturating_sub(40)..];
    let finite = || last.iter().copied().filter(|loss| loss.is_finite());
    let (low, high) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), loss| {
        (low.min(loss), high.max(loss))
    });
    let bar = |loss: &f64| {
        if !loss.is_finite() {
            return ' ';
        }
        let share = if high > low { (loss - low) / (high - low) } else { 0.0 };
        // Thresholds rather than a cast: 0.5 is the fourth bar.
        let index = (1..BARS.len()).filter(|step| share * 7.0 >= index_of(*step) - 0.5).count();
        BARS[index]
    };
    last.iter().map(bar).collect()
}

fn index_of(step: usize) -> f64 {
    u32::try_from(step).map_or(0.0, f64::from)
}

/// Short and plain.
#[must_use]
pub(crate) fn why(why: &WhyJson, now: UnixMs, utc: bool) -> Vec<Block> {
    let round = why.round.as_ref().map(|round| match why.round_at {
        Some(at) if utc => format!("{round}, {}", crate::text::rfc3339(at.0)),
        Some(at) => format!("{round}, {}", crate::text::ago(now, at.0)),
        None => round.clone(),
    });
    let phase = why.phase.to_owned();
    let refused: Vec<String> = why
        .nodes_refused
        .iter()
        .map(|refused| format!("{}: {}", refused.nodes, refused.reason))
        .collect();
    let facts = Block::facts(
        "",
        vec![
            ("job", Cell::Text(format!("{} {}", why.id, why.name))),
            (
                "phase",
                why.tone.map_or_else(|| Cell::text(why.phase), |tone| Cell::Toned(phase, tone)),
            ),
            ("reason", said(&why.reason)),
            ("round", round.map_or_else(|| Cell::text("not evaluated yet"), Cell::Text)),
            ("decision", said(&why.decision)),
            ("remedy", why.remedy.as_deref().map_or(Cell::None, Cell::text)),
        ],
    );
    let text = |title: &str, lines| Block::Text { title: title.to_owned(), lines };
    vec![facts, text("nodes that could not take a task", refused), text("notes", why.notes.clone())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_falls_with_the_loss() {
        assert_eq!(sparkline(&[8.0, 4.0, 1.0]), "█▄▁");
        assert_eq!(sparkline(&[1.0, f64::NAN, 1.0]), "▁ ▁");
        assert_eq!(sparkline(&[]), "");
        assert_eq!(sparkline(&[1.0; 100]).chars().count(), 40);
    }

    #[test]
    fn a_measured_speed_is_held_against_the_predicted() {
        assert_eq!(difference(Some(10.0), Some(9.8)), " (-2% of predicted)");
        assert_eq!(difference(Some(0.0), Some(9.8)), "");
        assert_eq!(difference(None, Some(9.8)), "");
    }
}
