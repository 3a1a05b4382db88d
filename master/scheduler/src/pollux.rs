//! A round by goodput: all workers of all jobs and their nodes at once, by the genetic search of
//! Pollux, or by our own look ahead ([`crate::goodput::horizon`]).
//!
//! 1. Jobs that state their goodput and may be moved take part; the others stay as they are, and
//!    what they hold is not shared out.
//! 2. The search gives each job workers on nodes, as far as the nodes' GPUs go, and counts other
//!    resources by the least that a worker takes of them. Where a worker takes more, those who
//!    come first in order of GPU seconds had are served first.
//! 3. Room that somebody else has to give up first is kept for its job, which meanwhile stays as it
//!    is. Where everybody would wait for somebody else, the one with the most GPU seconds gives way.

mod ahead;

use std::sync::Arc;

use model::job::TASKS_MAX;
use model::{NodeId, Shape};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use crate::cache::Cache;
use crate::entry::Standing;
use crate::goodput::genetic::{Candidate, Population, Settings, search_within};
use crate::goodput::horizon::Memory;
use crate::goodput::{Elastic, Spread};
use crate::plan::{Decision, Words};
use crate::room::{Spots, View, shape_of};
use crate::round::{Made, Round, Stage};
use crate::snapshot::{Allocation, JobInput, NodeInput, Policy, Snapshot, Want};

/// What the search leaves for the next round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Searched {
    /// The nodes that the population's columns stand for.
    nodes: Vec<NodeId>,
    population: Population,
}

/// Who finds workers and nodes for the jobs, with what was left by the last round.
enum Search<'a> {
    /// The genetic search, in a course of its own for each revision.
    Genetic(u64, &'a mut Searched),
    Ahead(&'a mut Memory),
}

/// What each job is to have on each of the nodes, and what is to be said beside that.
struct Found {
    rows: Vec<Vec<u16>>,
    /// In the order of the rows.
    why: Vec<Why>,
}

/// Why a job has so little, and what is told after its workers.
struct Why {
    nothing: String,
    beside: String,
}

/// A job as the searches ask for it.
struct Seeker {
    elastic: Arc<Elastic>,
    /// Workers that it has on each of the nodes.
    current: Vec<u16>,
    /// Least and most workers.
    least: u32,
    most: u32,
}

/// Tells the streams of rounds from others of the same number.
const PURPOSE: u64 = 0x706f_6c6c_7578;

/// A round under a policy by goodput.
pub(crate) fn planned_by_goodput(
    snapshot: &Snapshot,
    (nodes, policy): (&[&NodeInput], &Policy),
    cache: &mut Cache,
    watch: &mut dyn FnMut(Stage),
) -> Vec<Decision> {
    let mut searched = std::mem::take(&mut cache.searched);
    let mut foreseen = std::mem::take(&mut cache.foreseen);
    let search = if policy.allocation == Allocation::Pollux {
        Search::Genetic(snapshot.revision, &mut searched)
    } else {
        Search::Ahead(&mut foreseen)
    };
    let round = Round::estimate(snapshot, (nodes, policy), None, &mut cache.scratch);
    let made = round.run_goodput(search, watch);
    (cache.searched, cache.foreseen) = (searched, foreseen);
    watch(Stage::Placed);
    made.decisions
}

impl Round<'_> {
    fn run_goodput(mut self, mut search: Search<'_>, watch: &mut dyn FnMut(Stage)) -> Made {
        let jobs = self.taking_part();
        for job in &jobs {
            // What it holds counts as there now, and not as there in the end.
            self.room.set(*job, Spots::default());
        }
        let nodes: Vec<usize> =
            (0..self.room.node_count()).filter(|node| self.room.is_open(*node)).collect();
        let found = self.sought(&jobs, &nodes, &mut search);
        watch(Stage::Allocated);
        let mut waiting = Vec::new();
        let mut changes = false;
        let given = found.rows.into_iter().zip(found.why);
        for (job, (row, why)) in jobs.iter().copied().zip(given) {
            let goal = self.cut(job, &nodes, &row);
            self.allocated[job] = shape_of(&goal);
            if self.is_free_now(job, &goal) {
                self.entries[job].placed = !goal.is_empty();
                changes |= goal != self.room.hold(job).current;
                self.explain_search(job, &goal, &why);
                self.room.set(job, goal);
                continue;
            }
            let meanwhile = if self.entries[job].standing == Standing::Running {
                waiting.push(job);
                self.room.hold(job).current.clone()
            } else {
                self.idle(job)
            };
            self.room.lift(job);
            self.room.lower(job, meanwhile, goal);
        }
        if let Some(job) = waiting.pop().filter(|_| !changes) {
            let goal = self.room.hold(job).goal.clone();
            let words = "gives everything up for now: jobs wait for each other's room";
            self.notes.insert(job, Words::Plain(words.to_owned()));
            self.room.lift(job);
            self.room.lower(job, Spots::default(), goal);
        }
        self.made()
    }

    /// Jobs that the search may move, in its own order: by GPU seconds had, then by arrival.
    fn taking_part(&mut self) -> Vec<usize> {
        let may = |job: &usize| {
            let entry = &self.entries[*job];
            entry.may_get() && entry.input.goodput.is_some()
        };
        let jobs: Vec<usize> = self.order.iter().copied().filter(may).collect();
        // Who cannot stay as it is looks for a place like all others.
        let is_closed = |job: &usize| {
            let here = &self.room.hold(*job).current;
            self.entries[*job].standing == Standing::Running
                && here.iter().any(|(node, _)| !self.room.is_open(*node))
        };
        let (closed, mut jobs): (Vec<usize>, Vec<usize>) = jobs.into_iter().partition(is_closed);
        for job in closed {
            let words = "stays: it stands on a node that takes no new tasks";
            self.notes.insert(job, Words::Plain(words.to_owned()));
        }
        let had = |job: usize| self.entries[job].input.attained_s;
        jobs.sort_by(|a, b| had(*a).total_cmp(&had(*b)));
        jobs
    }

    /// Workers that each node has room for once the jobs of the search are gone.
    fn slots(&self, jobs: &[usize], nodes: &[usize]) -> Vec<u16> {
        let kinds = self.room.kinds.count();
        let least: Vec<Option<i128>> = (0..kinds)
            .map(|kind| {
                let needs = jobs.iter().map(|job| self.room.demand(*job).worker()[kind]);
                needs.filter(|need| *need > 0).min()
            })
            .collect();
        let slots = |node: &usize| {
            let left = self.room.left(*node, View::Then).zip(&least);
            let fit = left.filter_map(|(left, need)| Some(left.max(0) / (*need)?)).min();
            fit.map_or(u16::MAX, |fit| u16::try_from(fit).unwrap_or(u16::MAX))
        };
        nodes.iter().map(slots).collect()
    }

    /// The answer of the search: workers of each job on each of the nodes.
    fn sought(&self, jobs: &[usize], nodes: &[usize], search: &mut Search<'_>) -> Found {
        let slots = self.slots(jobs, nodes);
        let seekers: Vec<Seeker> = jobs.iter().filter_map(|job| self.seeker(*job, nodes)).collect();
        match search {
            Search::Genetic(revision, searched) => {
                let same = searched.nodes.iter().eq(nodes.iter().map(|node| &self.nodes[*node].id));
                if !same {
                    searched.population.clear();
                    searched.nodes =
                        nodes.iter().map(|node| self.nodes[*node].id.clone()).collect();
                }
                self.bred(&slots, (jobs, &seekers), *revision, &mut searched.population)
            }
            Search::Ahead(memory) => self.foreseen(&slots, (jobs, &seekers), memory),
        }
    }

    fn seeker(&self, job: usize, nodes: &[usize]) -> Option<Seeker> {
        let entry = &self.entries[job];
        let elastic = Arc::clone(entry.input.goodput.as_ref()?);
        let mut current = vec![0; nodes.len()];
        for (node, here) in &self.room.hold(job).current {
            if let Ok(column) = nodes.binary_search(node) {
                current[column] = u16::try_from(here.workers).unwrap_or(u16::MAX);
            }
        }
        let most = elastic.replicas_max.min(entry.gains.max.workers);
        Some(Seeker { elastic, current, least: entry.gains.least.workers, most })
    }

    /// What the genetic search finds.
    fn bred(
        &self,
        slots: &[u16],
        (jobs, seekers): (&[usize], &[Seeker]),
        revision: u64,
        population: &mut Population,
    ) -> Found {
        let elastics: Vec<Elastic> = seekers
            .iter()
            .map(|seeker| Elastic { replicas_max: seeker.most, ..(*seeker.elastic).clone() })
            .collect();
        let candidates: Vec<Candidate<'_>> = jobs
            .iter()
            .zip(seekers.iter().zip(&elastics))
            .map(|(job, (seeker, elastic))| {
                let input = self.entries[*job].input;
                Candidate {
                    id: input.id,
                    elastic,
                    current: &seeker.current,
                    attained_gpu_s: input.attained_s,
                    submitted_s: model::time::seconds(input.arrival.0),
                }
            })
            .collect();
        let least: Vec<u32> = seekers.iter().map(|seeker| seeker.least).collect();
        let mut stream = Pcg64Mcg::seed_from_u64(revision ^ PURPOSE);
        let asked = (candidates.as_slice(), least.as_slice());
        let rows = search_within(slots, asked, population, &mut stream, &Settings::default());
        let had = candidates.iter().map(|candidate| candidate.attained_gpu_s);
        let nothing =
            |had: f64| format!("the fittest plan has nothing for it after {had:.0} GPU seconds");
        let why = had.map(|had| Why { nothing: nothing(had), beside: String::new() }).collect();
        Found { rows, why }
    }

    /// A row as far as it has room beside those before it; nothing where that is too little.
    fn cut(&self, job: usize, nodes: &[usize], row: &[u16]) -> Spots {
        let worker = self.room.demand(job).worker();
        let mut spots = Vec::new();
        for (node, wanted) in nodes.iter().zip(row).filter(|(_, wanted)| **wanted > 0) {
            let left = self.room.left(*node, View::Then).zip(worker);
            let fit = left.filter(|(_, need)| **need > 0).map(|(left, need)| left.max(0) / need);
            let fit = fit.min().map_or(u32::MAX, |fit| u32::try_from(fit).unwrap_or(u32::MAX));
            let workers = u32::from(*wanted).min(fit);
            if workers > 0 {
                spots.push((*node, Shape::new(0, workers)));
            }
        }
        if shape_of(&spots).workers < self.entries[job].gains.least.workers {
            spots.clear();
        }
        spots.into()
    }

    /// True where the nodes have this room beside all that is there now.
    fn is_free_now(&mut self, job: usize, goal: &Spots) -> bool {
        self.room.lift(job);
        let fits = goal.iter().all(|(node, here)| {
            let mut left = self.room.left(*node, View::Both).zip(self.room.demand(job).of(*here));
            left.all(|(left, need)| need == 0 || need <= left)
        });
        self.room.lower(job, Spots::default(), Spots::default());
        // Giving up is always possible.
        fits || goal.iter().all(|(node, here)| {
            let held = self.room.hold(job).current.iter().find(|(at, _)| at == node);
            held.is_some_and(|(_, held)| here.workers <= held.workers)
        })
    }

    /// True where no node is large enough for one of the job's workers.
    pub(crate) fn fits_nowhere(&self, job: usize) -> bool {
        let worker = self.room.demand(job).worker();
        let holds = |node: usize| {
            let has = self.room.kinds.amounts(&self.nodes[node].capacity);
            self.room.is_open(node) && worker.iter().zip(has).all(|(need, has)| *need <= has)
        };
        !(0..self.room.node_count()).any(holds)
    }

    fn explain_search(&mut self, job: usize, goal: &Spots, why: &Why) {
        if goal.is_empty() && self.fits_nowhere(job) {
            return;
        }
        let before = shape_of(&self.room.hold(job).current);
        let after = shape_of(goal);
        let Why { nothing, beside } = why;
        let text = match (before.is_empty(), after.is_empty()) {
            (true, true) => format!("waits: {nothing}{beside}"),
            (false, true) => format!("gives everything up: {nothing}{beside}"),
            (true, false) => format!("starts with {}{beside}", self.told(job, goal)),
            (false, false) if *goal == self.room.hold(job).current => {
                format!("stays at {}{beside}", self.told(job, goal))
            }
            (false, false) => {
                let held = self.told(job, &self.room.hold(job).current);
                format!("goes from {held} to {}{beside}", self.told(job, goal))
            }
        };
        self.notes.insert(job, Words::Plain(text));
    }

    /// Workers and nodes in words, with the goodput that is expected of them.
    fn told(&self, job: usize, spots: &Spots) -> String {
        let workers = shape_of(spots).workers;
        let count = |count: usize, what: &str| {
            format!("{count} {what}{}", if count == 1 { "" } else { "s" })
        };
        let nodes = u32::try_from(spots.len()).unwrap_or(u32::MAX);
        let shape = format!(
            "{} on {}",
            count(usize::try_from(workers).unwrap_or(usize::MAX), "worker"),
            count(spots.len(), "node")
        );
        let elastic = self.entries[job].input.goodput.as_ref();
        match elastic.and_then(|elastic| elastic.best_batch(Spread::new(nodes, workers))) {
            Some(best) => format!(
                "{shape} (batch {:.0}, goodput {:.4} samples/s)",
                best.batch.total(workers),
                best.goodput
            ),
            None => shape,
        }
    }
}

/// A job as a search needs it: bounds without servers.
pub(crate) fn bounds(input: &JobInput) -> (Shape, Shape) {
    match &input.want {
        Want::Pinned { shape } => (*shape, *shape),
        Want::Share { .. } | Want::Profile { .. } => {
            let most = input.max.workers.min(TASKS_MAX);
            (Shape::new(0, input.min.workers.max(1)), Shape::new(0, most))
        }
    }
}

/// Why a search cannot take a job.
pub(crate) fn unfit(input: &JobInput, least: Shape, max: Shape) -> Option<String> {
    if input.goodput.is_none() {
        return Some("states no goodput, by which policy pollux shares out".to_owned());
    }
    if least.servers > 0 {
        return Some(format!(
            "is pinned to {least}, and who shares out by goodput gives no servers"
        ));
    }
    (least.workers == 0 || max.workers < least.workers)
        .then(|| format!("its least shape {least} is over its largest {max}, or nothing"))
}
