//! `optimus plan`: one scheduling round on files, and a warm one after it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use model::{JobId, Millis, Placement, Shape};
use scheduler::plan::{Decision, Reason, Verb};
use scheduler::snapshot::{Allocation, JobInput, NodeInput, Policy, Snapshot, Want};
use scheduler::{Cache, Stage};
use serde::Serialize;

use super::cluster::{self, amounts};
use super::jobs::{self, ByGoodput, Jobs, Numbers, Reading};
use super::{file, finite};
use crate::args::PlanArgs;
use crate::clock;
use crate::commands::Context;
use crate::contract::{ShapeJson, ShareJson, placement};
use crate::failure::{Exit, Failure};
use crate::grid::Cell;
use crate::listing::{Column, Format, Item, Kind, View, line, pretty};
use crate::text::{count, nearest, number, percent};

/// Policies by name, with the fields that each cannot do without.
const POLICIES: [(&str, &[&str]); 7] = [
    ("horizon", &[]),
    ("optimus", &[]),
    ("drf", &[]),
    ("tetris", &[]),
    ("fifo", &["requested", "arrival_s"]),
    ("tiresias", &["requested", "arrival_s"]),
    ("pollux", &["goodput"]),
];
/// Larger than any list of a round.
const KEPT_BYTES: usize = 30 << 20;
/// Faults of the checker that are told.
const CHECKED_MAX: usize = 20;

/// One job of `optimus.plan/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PlanJobJson {
    id: String,
    allocated: ShapeJson,
    servers: u32,
    workers: u32,
    steps_per_s: Option<f64>,
    remaining_s: Option<f64>,
    placement: Vec<ShareJson>,
    transfer_time: Option<f64>,
    cross_node_share: Option<f64>,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct UnplacedJson {
    id: String,
    reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct ElapsedJson {
    allocate: f64,
    place: f64,
    check: f64,
}

/// `optimus.plan/1`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PlanJson {
    schema: &'static str,
    policy: String,
    jobs: Vec<PlanJobJson>,
    unplaced: Vec<UnplacedJson>,
    elapsed_s: ElapsedJson,
    used: BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    then: Option<Box<PlanJson>>,
}

impl Item for PlanJobJson {
    fn key(&self) -> String {
        self.id.clone()
    }

    fn settled(&self) -> Self {
        self.clone()
    }
}

impl PlanJobJson {
    fn shape_cell(shape: ShapeJson) -> Cell {
        let tasks = f64::from(shape.servers) + f64::from(shape.workers);
        if tasks > 0.0 { Cell::Number(tasks, shape.short()) } else { Cell::None }
    }

    fn placement_cell(&self) -> Cell {
        let share =
            |share: &ShareJson| format!("{}:{}+{}", share.node, share.servers, share.workers);
        let shares: Vec<String> = self.placement.iter().map(share).collect();
        Cell::Text(shares.join(" "))
    }
}

static JOBS: Kind<PlanJobJson> = Kind {
    schema: "optimus.plan/1",
    field: "jobs",
    columns: &[
        Column::name("id", |job: &PlanJobJson| Cell::text(job.id.as_str())),
        Column::right("shape", |job: &PlanJobJson| {
            let (servers, workers) = (job.servers, job.workers);
            PlanJobJson::shape_cell(ShapeJson { servers, workers })
        }),
        Column::right("allocated", |job: &PlanJobJson| PlanJobJson::shape_cell(job.allocated))
            .rank(4),
        Column::right("nodes", |job: &PlanJobJson| {
            Cell::count(u64::try_from(job.placement.len()).unwrap_or(u64::MAX))
        })
        .rank(3),
        Column::right("steps/s", |job: &PlanJobJson| Cell::number(job.steps_per_s)).rank(2),
        Column::right("left", |job: &PlanJobJson| Cell::span(job.remaining_s)).rank(1),
        Column::right("transfer", |job: &PlanJobJson| Cell::number(job.transfer_time)).wide(),
        Column::right("cross", |job: &PlanJobJson| {
            job.cross_node_share.map_or(Cell::None, |share| Cell::Number(share, percent(share)))
        })
        .wide(),
        Column::left("placement", PlanJobJson::placement_cell).wide(),
        Column::sentence("reason", |job: &PlanJobJson| Cell::text(job.reason.as_str())),
    ],
};

/// The policy of a name, and the fields that it needs.
fn policy(name: &str) -> Result<(Policy, &'static [&'static str]), Failure> {
    let known = || POLICIES.iter().map(|(name, _)| *name);
    let needs = POLICIES.iter().find(|(policy, _)| *policy == name).map(|(_, needs)| *needs);
    needs.and_then(|needs| Some((Policy::by_name(name)?, needs))).ok_or_else(|| {
        let meant =
            nearest(name, known()).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
        let known: Vec<&str> = known().collect();
        let hint = format!("{meant}there are {}", known.join(", "));
        Failure::invalid(format!("there is no policy {name:?}"), hint)
    })
}

/// Plans one round, and a second one where `--then` asks for it.
///
/// # Errors
/// Everything that is wrong with the first wrong file, or what the checker found.
pub(crate) fn plan(context: &mut Context<'_>, args: &PlanArgs) -> Result<(), Failure> {
    let (policy, needs) = policy(&args.policy)?;
    let cluster = cluster::read(&file::read(&args.cluster)?)?;
    let by_goodput = match policy.allocation {
        Allocation::Pollux => ByGoodput::Alone,
        Allocation::Horizon => ByGoodput::WithWork,
        Allocation::MarginalGain
        | Allocation::Drf
        | Allocation::Tetris
        | Allocation::Fifo
        | Allocation::Tiresias => ByGoodput::No,
    };
    let reading = Reading { cluster: &cluster, policy: &args.policy, needs, by_goodput };
    let mut numbers = Numbers::default();
    let mut read = |path: &Path| jobs::read(&file::read(path)?, &reading, &mut numbers);
    let jobs = read(&args.jobs)?;
    let then = args.then.as_deref().map(&mut read).transpose()?;
    // Freeing one large block tells the allocator to keep what later rounds free: the second one
    // would otherwise pay for every page of its lists once more.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT_BYTES)));
    let cluster::Cluster { nodes, total } = cluster;
    let mut rounds = Rounds {
        policy,
        name: args.policy.clone(),
        total,
        nodes: nodes.into(),
        cache: Cache::default(),
        count: 0,
    };
    let mut json = rounds.plan(jobs)?;
    json.then = then.map(|jobs| rounds.plan(jobs)).transpose()?.map(Box::new);
    print(context, &json)
}

/// Rounds on the same nodes, with what the cache keeps from one to the next.
#[derive(Debug)]
struct Rounds {
    policy: Policy,
    name: String,
    total: BTreeMap<String, u128>,
    nodes: Arc<[NodeInput]>,
    cache: Cache,
    count: u64,
}

impl Rounds {
    fn plan(&mut self, jobs: Jobs) -> Result<PlanJson, Failure> {
        self.count += 1;
        let Jobs { names, inputs } = jobs;
        let ids: Vec<_> = inputs.iter().map(|job| job.id).collect();
        let start = clock::instant();
        let mut snapshot = Snapshot {
            revision: self.count,
            now: inputs.iter().map(|job| job.arrival).max().unwrap_or(Millis(0)),
            nodes: Arc::clone(&self.nodes),
            jobs: inputs,
        };
        snapshot.jobs.sort_by_key(|job| job.id);
        // A round may allocate and place more than once: each stage takes the time since the last.
        let (mut last, mut allocating, mut placing) = (start, Duration::ZERO, Duration::ZERO);
        let plan =
            scheduler::plan_watched(&snapshot, &self.policy, &mut self.cache, &mut |stage| {
                let now = clock::instant();
                match stage {
                    Stage::Allocated => allocating += now.duration_since(last),
                    Stage::Placed => placing += now.duration_since(last),
                }
                last = now;
            });
        let placed = clock::instant();
        placing += placed.duration_since(last);
        let faults = scheduler::check(&snapshot, &plan);
        let checked = clock::instant();
        if !faults.is_empty() {
            return Err(unsound(&faults));
        }
        let seconds = |duration: Duration| duration.as_secs_f64();
        let elapsed_s = ElapsedJson {
            allocate: seconds(allocating),
            place: seconds(placing),
            check: seconds(checked.duration_since(placed)),
        };
        let mut used: BTreeMap<String, u128> = BTreeMap::new();
        let mut json = Vec::with_capacity(names.len());
        let mut unplaced = Vec::new();
        let named: BTreeMap<JobId, &str> =
            ids.iter().copied().zip(names.iter().map(String::as_str)).collect();
        for (id, name) in ids.iter().zip(&names) {
            let found = snapshot.jobs.binary_search_by_key(id, |job| job.id);
            let place = found.expect("every job of the file is in the snapshot");
            let (input, decision) = (&snapshot.jobs[place], &plan.decisions[place]);
            let mut job = planned(name.clone(), input, decision, &mut used);
            job.reason = with_names(&sentence(&decision.reason), &named);
            if job.placement.is_empty() {
                unplaced.push(UnplacedJson { id: job.id.clone(), reason: job.reason.clone() });
            }
            json.push(job);
        }
        Ok(PlanJson {
            schema: "optimus.plan/1",
            policy: self.name.clone(),
            jobs: json,
            unplaced,
            elapsed_s,
            used: shares(&self.total, &used),
            then: None,
        })
    }
}

/// The whole reason: what blocks a job on how many nodes, and the cheapest change that starts it.
fn sentence(reason: &Reason) -> String {
    let mut words = reason.text();
    for (why, nodes) in reason.nodes_refused().iter().skip(1) {
        words.push_str("; ");
        words.push_str(why);
        words.push_str(" on ");
        words.push_str(&count(usize::try_from(*nodes).unwrap_or(usize::MAX), "node", "nodes"));
    }
    if let Some(remedy) = reason.remedy() {
        words.push_str("; to start it: ");
        words.push_str(remedy);
    }
    words
}

/// Jobs as their file calls them, where a sentence names them by the scheduler's numbers.
fn with_names(text: &str, named: &BTreeMap<JobId, &str>) -> String {
    let parts = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    let named = |part: &str| {
        let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let id = word.starts_with('j').then(|| word.parse().ok()).flatten();
        let name = id.and_then(|id: JobId| named.get(&id));
        name.map_or_else(|| part.to_owned(), |name| format!("{name}{}", &part[word.len()..]))
    };
    parts.map(named).collect()
}

/// A plan that breaks its own rules is never printed as one.
fn unsound(faults: &[String]) -> Failure {
    let told: Vec<&str> = faults.iter().take(CHECKED_MAX).map(String::as_str).collect();
    let faults = count(faults.len(), "fault", "faults");
    Failure::new(
        Exit::Internal,
        format!("the checker found {faults} in the plan:\n  {}", told.join("\n  ")),
        "this is a fault of the program: report it with both files",
    )
}

fn planned(
    id: String,
    input: &JobInput,
    decision: &Decision,
    used: &mut BTreeMap<String, u128>,
) -> PlanJobJson {
    let nothing = Placement::default();
    let placed = match (&decision.verb, &input.current) {
        (Verb::Start { placement } | Verb::Rescale { placement }, _) => placement,
        (Verb::Keep, Some(current)) => &current.placement,
        (Verb::Keep, None) | (Verb::Evict | Verb::Wait, _) => &nothing,
    };
    let shape = placed.shape();
    for (task, number) in [(&input.server, shape.servers), (&input.worker, shape.workers)] {
        for (kind, amount) in amounts(task) {
            let amount = u128::from(amount) * u128::from(number);
            match used.get_mut(kind) {
                Some(sum) => *sum += amount,
                None => drop(used.insert(kind.to_owned(), amount)),
            }
        }
    }
    let reason = &decision.reason;
    let (steps_per_s, remaining_s) = predicted(input, shape);
    PlanJobJson {
        id,
        allocated: reason.allocated.into(),
        servers: shape.servers,
        workers: shape.workers,
        steps_per_s,
        remaining_s,
        placement: placement(placed),
        transfer_time: reason.transfer_time.filter(|_| !shape.is_empty()).and_then(finite),
        cross_node_share: reason.cross_node_share.filter(|_| !shape.is_empty()).and_then(finite),
        reason: String::new(),
    }
}

/// Steps a second, and seconds left, where the model knows any.
fn predicted(input: &JobInput, shape: Shape) -> (Option<f64>, Option<f64>) {
    let Want::Share { speed, remaining } = &input.want else { return (None, None) };
    let positive = |value: f64| finite(value).filter(|value| *value > 0.0);
    let steps_per_s = positive(speed.steps_per_s(shape));
    let work_per_s = steps_per_s.and_then(|_| positive(speed.work_per_s(shape)));
    let left = remaining.as_ref().zip(work_per_s);
    (steps_per_s, left.and_then(|(remaining, work_per_s)| finite(remaining.value / work_per_s)))
}

/// The used share of every kind that the cluster has.
fn shares(total: &BTreeMap<String, u128>, used: &BTreeMap<String, u128>) -> BTreeMap<String, f64> {
    let share = |(kind, total): (&String, &u128)| {
        let used = used.get(kind).copied().unwrap_or(0);
        (kind.clone(), used as f64 / *total as f64)
    };
    total.iter().filter(|(_, total)| **total > 0).map(share).collect()
}

fn print(context: &mut Context<'_>, json: &PlanJson) -> Result<(), Failure> {
    match context.format {
        Format::Json => context.output.data(&(pretty(json) + "\n")),
        Format::Jsonl => context.output.data(&line(json)),
        Format::Name | Format::Table | Format::Wide => {
            let mut round = Some(json);
            while let Some(json) = round {
                let view = View { format: context.format, header: true, ..View::default() };
                let style = context.output.style(false);
                let text = JOBS.render(&json.jobs, &JOBS.choose(&view)?, &view, &style);
                context.output.data(&text)?;
                context.output.talk(&summary(json));
                round = json.then.as_deref();
            }
            Ok(())
        }
    }
}

/// One line of totals and times.
fn summary(json: &PlanJson) -> String {
    let placed = json.jobs.len() - json.unplaced.len();
    let sum =
        |of: fn(&PlanJobJson) -> u32| json.jobs.iter().map(|job| u64::from(of(job))).sum::<u64>();
    let used: Vec<String> =
        json.used.iter().map(|(kind, share)| format!("{kind} {}", percent(*share))).collect();
    let used = if used.is_empty() { "nothing to use".to_owned() } else { used.join(", ") };
    let milliseconds = |seconds: f64| format!("{}ms", number(seconds * 1000.0));
    let ElapsedJson { allocate, place, check } = json.elapsed_s;
    format!(
        "{}: {placed} of {} placed, {} servers and {} workers; used: {used}; allocated in {}, \
         placed in {}, checked in {}",
        json.policy,
        count(json.jobs.len(), "job", "jobs"),
        sum(|job| job.servers),
        sum(|job| job.workers),
        milliseconds(allocate),
        milliseconds(place),
        milliseconds(check),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_that_is_listed_exists() {
        for (name, _) in POLICIES {
            policy(name).expect(name);
        }
        for (name, part) in [
            ("polux", "did you mean pollux?"),
            ("optimos", "did you mean optimus?"),
            ("", "there are horizon"),
        ] {
            let failure = policy(name).expect_err(name);
            assert_eq!(failure.exit, Exit::Invalid);
            assert!(failure.to_string().contains(part), "{failure}");
        }
    }

    #[test]
    fn an_unsound_plan_is_a_fault_of_the_program() {
        let failure = unsound(&vec!["n1: 3 cpus at once, it has 2".to_owned(); 30]);
        assert_eq!(failure.exit.code(), 70);
        assert!(failure.message.contains("30 faults"), "{failure}");
        assert_eq!(failure.message.matches("n1: 3 cpus").count(), CHECKED_MAX);
    }
}
