//! `optimus simulate --faults`: small clusters in which everything goes wrong, by seed.

use std::collections::BTreeMap;

use serde::Serialize;
use simulator::faults::{Broken, Settings, Story, run};

use super::workers::{each, threads};
use crate::args::SimulateArgs;
use crate::clock;
use crate::commands::Context;
use crate::failure::{Exit, Failure};
use crate::grid::Cell;
use crate::listing::{Column, Format, Item, Kind, View, line, pretty};
use crate::text::{count, percent, span};

const SCHEMA: &str = "optimus.faults/1";
/// Seeds between two words of progress.
const PIECE: u32 = 16;
/// Seeds that broke of which everything is told.
const TOLD: usize = 10;

/// What many seeds came to.
#[derive(Debug, Default, Serialize)]
struct Sum {
    #[serde(skip_serializing_if = "str::is_empty")]
    schema: &'static str,
    /// The first seed, and how many were played.
    seed: u64,
    seeds: u32,
    passed: u32,
    events: u64,
    simulated_s: f64,
    /// The longest time from the end of all faults until all was healed.
    healing_s_max: f64,
    faults: BTreeMap<&'static str, u64>,
    tests: BTreeMap<&'static str, u64>,
    ends: BTreeMap<&'static str, u64>,
    policies: BTreeMap<&'static str, u64>,
    broken: Vec<BrokenRow>,
}

#[derive(Debug, Serialize)]
struct BrokenRow {
    seed: u64,
    policy: &'static str,
    at_s: f64,
    what: String,
    last: Vec<String>,
    replay: String,
    #[serde(skip)]
    text: String,
}

/// Plays the seeds, and prints what they came to.
///
/// # Errors
/// Exit 1 where a seed broke.
pub(super) fn faults(
    context: &mut Context<'_>,
    args: &SimulateArgs,
    seeds: u32,
) -> Result<(), Failure> {
    let start = clock::instant();
    // Short enough to be typed again.
    let seed = args.seed.unwrap_or_else(|| clock::now().0 % 1_000_000_000);
    context.output.talk(&format!("{} from {seed}", count_of(seeds, "seed")));
    let pieces = seeds.div_ceil(PIECE);
    let settings = Settings::default();
    let work = |piece: u32| {
        let from = piece * PIECE;
        let mut sum = Sum::default();
        for number in from..seeds.min(from.saturating_add(PIECE)) {
            match run(seed.wrapping_add(u64::from(number)), &settings) {
                Ok(story) => sum.passed(story),
                Err(broken) => sum.broke(broken),
            }
        }
        Ok::<Sum, Failure>(sum)
    };
    let output = &mut *context.output;
    let mut told = |done: u32| {
        let share = f64::from(done) / f64::from(pieces);
        output.progress(&format!("{} of {seeds} seeds", percent(share)));
    };
    let sums = each(pieces, threads(args.threads), &work, &mut told)?;
    context.output.end_progress();
    let mut sum = Sum { schema: SCHEMA, seed, seeds, ..Sum::default() };
    for piece in sums {
        sum.add(piece);
    }
    for broken in sum.broken.iter().take(TOLD) {
        context.output.talk(&broken.text);
    }
    print(context, &sum)?;
    let took = span(clock::instant().duration_since(start).as_secs_f64());
    context.output.talk(&format!("{} of {seeds} seeds passed, in {took}", sum.passed));
    if sum.broken.is_empty() {
        return Ok(());
    }
    let first = sum.broken.first().map_or("", |broken| broken.replay.as_str());
    let message = format!("{} broke", count_of(seeds - sum.passed, "seed"));
    Err(Failure::new(Exit::JobFailed, message, format!("see the first again: {first}")))
}

fn count_of(number: u32, what: &str) -> String {
    count(usize::try_from(number).unwrap_or(usize::MAX), what, &format!("{what}s"))
}

impl Sum {
    fn passed(&mut self, story: Story) {
        self.passed += 1;
        self.events += story.events;
        self.simulated_s += story.healed_s;
        self.healing_s_max = self.healing_s_max.max(story.healed_s - story.faults_s);
        *self.policies.entry(story.policy).or_default() += 1;
        merge(&mut self.faults, story.faults);
        merge(&mut self.tests, story.tests);
        merge(&mut self.ends, story.ends);
    }

    fn broke(&mut self, broken: Broken) {
        let (replay, text) = (broken.replay(), broken.to_string());
        let Broken { seed, policy, at_s, what, last } = broken;
        self.broken.push(BrokenRow { seed, policy, at_s, what, last, replay, text });
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.events += other.events;
        self.simulated_s += other.simulated_s;
        self.healing_s_max = self.healing_s_max.max(other.healing_s_max);
        merge(&mut self.faults, other.faults);
        merge(&mut self.tests, other.tests);
        merge(&mut self.ends, other.ends);
        merge(&mut self.policies, other.policies);
        self.broken.extend(other.broken);
    }
}

fn merge(sums: &mut BTreeMap<&'static str, u64>, more: BTreeMap<&'static str, u64>) {
    for (what, times) in more {
        *sums.entry(what).or_default() += times;
    }
}

/// How often something happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    kind: &'static str,
    what: &'static str,
    times: u64,
}

impl Item for Row {
    fn key(&self) -> String {
        self.what.to_owned()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

static ROWS: Kind<Row> = Kind {
    schema: SCHEMA,
    field: "rows",
    columns: &[
        Column::name("what", |row: &Row| Cell::text(row.what)),
        Column::left("kind", |row: &Row| Cell::text(row.kind)),
        Column::right("times", |row: &Row| Cell::count(row.times)),
    ],
};

fn rows(sum: &Sum) -> Vec<Row> {
    let kinds = [
        ("fault", &sum.faults),
        ("test", &sum.tests),
        ("job ended", &sum.ends),
        ("policy", &sum.policies),
    ];
    let row = |kind| move |(what, times): (&&'static str, &u64)| Row { kind, what, times: *times };
    kinds.into_iter().flat_map(|(kind, counts)| counts.iter().map(row(kind))).collect()
}

fn print(context: &mut Context<'_>, sum: &Sum) -> Result<(), Failure> {
    let text = match context.format {
        Format::Json => pretty(sum) + "\n",
        Format::Jsonl => line(sum),
        Format::Name => sum.broken.iter().map(|broken| format!("{}\n", broken.seed)).collect(),
        Format::Table | Format::Wide => {
            let view = View { format: context.format, header: true, ..View::default() };
            let style = context.output.style(false);
            ROWS.render(&rows(sum), &ROWS.choose(&view)?, &view, &style)
        }
    };
    context.output.data(&text)
}
