//! The jobs of a snapshot as the round sees them: checked, and with every absurd number set aside.

use std::collections::BTreeMap;

use model::Shape;
use model::job::TASKS_MAX;

use crate::allocate::{Gains, Pace, Progress};
use crate::plan::NODE_GONE;
use crate::pollux;
use crate::room::{Finder, Room, Spot, Spots, View, shape_of};
use crate::snapshot::{Allocation, JobInput, NodeInput, Policy, Remaining, Snapshot, Want};

/// What may be done with a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Holds nothing and may start.
    Waiting,
    /// Runs and may be moved.
    Running,
    /// Runs, and must not be touched.
    Fixed,
    /// Runs, and cannot stay as it is; `lost` where a node under it is gone.
    Displaced { lost: bool, why: String },
    /// Its own bounds or shape make no sense: it stays as it is.
    Unfit { why: String },
}

/// What the round is to give.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim<'a> {
    Share,
    Profile(&'a [Shape]),
    Pinned(Shape),
}

#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) input: &'a JobInput,
    pub(crate) standing: Standing,
    pub(crate) aim: Aim<'a>,
    pub(crate) gains: Gains<'a>,
    /// True where the remaining work is a guess.
    pub(crate) young: bool,
    pub(crate) cost_s: f64,
    pub(crate) since_change_ms: u64,
    /// True once this round found a place for it beyond its least shape.
    pub(crate) placed: bool,
}

/// Cost of a rescale where the snapshot's is not a number: the daemon's own first assumption.
const RESCALE_COST_UNKNOWN_S: f64 = 10.0;

impl Entry<'_> {
    pub(crate) fn is_share(&self) -> bool {
        matches!(self.aim, Aim::Share)
    }

    /// True where the round may give it anything.
    pub(crate) fn may_get(&self) -> bool {
        self.needs_place() || self.standing == Standing::Running
    }

    /// True where the round looks for a place for this job: it waits or cannot stay.
    pub(crate) fn needs_place(&self) -> bool {
        matches!(self.standing, Standing::Waiting | Standing::Displaced { .. })
    }

    pub(crate) fn seconds_left(&self, shape: Shape) -> Option<f64> {
        let seconds = self.gains.progress?.predicted_s(shape);
        (!seconds.is_nan()).then_some(seconds)
    }
}

/// All jobs, in the snapshot's order, entered into the room as they run unless they are in it.
pub(crate) fn entries<'a>(
    snapshot: &'a Snapshot,
    nodes: &[&NodeInput],
    policy: &Policy,
    room: &mut Room,
) -> Vec<Entry<'a>> {
    let mut entries = Vec::with_capacity(snapshot.jobs.len());
    let mut finder = Finder::new(nodes);
    let by_goodput = snapshot.goes_by_goodput(policy);
    for (at, input) in snapshot.jobs.iter().enumerate() {
        let mut entry = entry(input, (policy, by_goodput), room.dominant(at));
        let entered = !room.is_lifted(at);
        let (spots, lost) = match &input.current {
            Some(_) if entered => (room.hold(at).current.clone(), false),
            Some(current) => finder.spots(&current.placement),
            None => (Spots::default(), false),
        };
        if entry.standing == Standing::Running
            && let Some(why) = displacement(&entry, &spots, lost)
        {
            entry.standing = Standing::Displaced { lost, why };
        }
        if !entered {
            room.enter(at, spots);
        }
        entries.push(entry);
    }
    displace_from_full_nodes(&mut entries, nodes, room);
    entries
}

fn entry<'a>(
    input: &'a JobInput,
    (policy, is_elastic): (&Policy, bool),
    dominant: [f64; 2],
) -> Entry<'a> {
    let is_alone = policy.allocation == Allocation::Tiresias && asks_for_workers_alone(input);
    let aim = match &input.want {
        // The search gives a pinned shape, or nothing, as it does any other.
        _ if is_elastic => Aim::Share,
        Want::Share { .. } => Aim::Share,
        Want::Profile { shapes } => Aim::Profile(shapes),
        Want::Pinned { shape } => Aim::Pinned(*shape),
    };
    let at_least_one = |shape: Shape| Shape::new(shape.servers.max(1), shape.workers.max(1));
    let (least, max) = match aim {
        _ if is_elastic || is_alone => pollux::bounds(input),
        Aim::Pinned(shape) => (shape, shape),
        Aim::Share | Aim::Profile(_) => (
            at_least_one(input.min),
            Shape::new(input.max.servers.min(TASKS_MAX), input.max.workers.min(TASKS_MAX)),
        ),
    };
    let wrong = if is_elastic || is_alone {
        pollux::unfit(input, least, max)
    } else {
        among_others(input, policy).or_else(|| unfit(least, max))
    };
    let standing = match &input.current {
        Some(current) if !current.movable => Standing::Fixed,
        current => match (wrong, current) {
            (Some(why), _) => Standing::Unfit { why },
            (None, Some(_)) => Standing::Running,
            (None, None) => Standing::Waiting,
        },
    };
    let start = input.current.as_ref().map_or(least, |current| current.placement.shape());
    let (progress, young) = if is_elastic || is_alone {
        (None, false)
    } else {
        progress(&input.want, start, least, policy)
    };
    let priority = input.priority;
    let priority = if priority.is_finite() && priority > 0.0 { priority } else { 1.0 };
    let cost_s = input.rescale_cost_s;
    Entry {
        input,
        standing,
        aim,
        gains: Gains {
            progress: progress.map(Pace::of),
            least,
            max,
            weight: priority * if young { policy.young_factor } else { 1.0 },
            server_share: dominant[0],
            worker_share: dominant[1],
        },
        young,
        cost_s: if cost_s.is_finite() && cost_s >= 0.0 {
            cost_s.abs()
        } else {
            RESCALE_COST_UNKNOWN_S
        },
        since_change_ms: input.current.as_ref().map_or(0, |current| current.since_change_ms),
        placed: false,
    }
}

/// True where a job's owner asks for workers without servers, which exchange gradients themselves.
fn asks_for_workers_alone(input: &JobInput) -> bool {
    let asks = input.requested.is_some_and(|requested| requested.servers == 0);
    asks && input.goodput.is_some() && matches!(input.want, Want::Share { .. })
}

/// Why a job that states its goodput cannot be shared out beside others that do not: they have
/// servers, and progress that cannot be compared, unless it states a speed function too and holds
/// no workers alone.
fn among_others(input: &JobInput, policy: &Policy) -> Option<String> {
    let Want::Share { speed, .. } = &input.want else { return None };
    let is_alone = input.current.as_ref().is_some_and(|held| held.placement.shape().servers == 0);
    let has_speed = speed.work_per_s(Shape::new(1, 1)) > 0.0;
    let is_asked = policy.allocation == Allocation::Horizon && input.goodput.is_some();
    (is_asked && (is_alone || !has_speed)).then(|| {
        "goes by its goodput, which policy horizon does only where every job states one".to_owned()
    })
}

fn unfit(least: Shape, max: Shape) -> Option<String> {
    if least.servers == 0 || least.workers == 0 {
        return Some(format!("{least} is not a shape: at least one server and one worker"));
    }
    if least.servers > TASKS_MAX || least.workers > TASKS_MAX {
        return Some(format!("{least} is more than {TASKS_MAX} tasks of a kind"));
    }
    (max.servers < least.servers || max.workers < least.workers)
        .then(|| format!("its least shape {least} is over its largest {max}"))
}

/// How far a sharing job is, and whether its end is a guess. The work of a job whose end is not
/// known is what it would do in `unknown_remaining_s` at the speed it has now, or would start
/// with. Of a known one the value counts, however wide its range: the range is the same risk at
/// every shape.
fn progress<'a>(
    want: &'a Want,
    start: Shape,
    least: Shape,
    policy: &Policy,
) -> (Option<Progress<'a>>, bool) {
    let Want::Share { speed, remaining } = want else { return (None, false) };
    let known = |remaining: &Remaining| remaining.value.is_finite() && remaining.value >= 0.0;
    // A model that sees no speed at the shape held or least knows nothing of others.
    let held = speed.work_per_s(start);
    let base = if held > 0.0 { held } else { speed.work_per_s(least) };
    if base <= 0.0 {
        return (None, true);
    }
    match remaining.filter(known) {
        Some(remaining) => (Some(Progress { speed, work: remaining.value }), false),
        None => {
            let work = policy.unknown_remaining_s * base;
            (work.is_finite().then_some(Progress { speed, work }), true)
        }
    }
}

/// Why a running job cannot stay as it is, for its own part.
fn displacement(entry: &Entry<'_>, spots: &[Spot], lost: bool) -> Option<String> {
    let shape = shape_of(spots);
    let Gains { least, max, .. } = entry.gains;
    if lost {
        return Some(NODE_GONE.to_owned());
    }
    let inside = crate::allocate::within(least, shape) && crate::allocate::within(shape, max);
    // A pinned shape is moved to without haste, and without others giving way.
    (!inside && !matches!(entry.aim, Aim::Pinned(_)))
        .then(|| format!("its shape {shape} is outside its bounds {least} to {max}"))
}

/// Where an open node has less than its tasks hold, jobs stay in order of arrival while they fit.
fn displace_from_full_nodes(entries: &mut [Entry<'_>], nodes: &[&NodeInput], room: &Room) {
    let full: Vec<usize> = (0..room.node_count())
        .filter(|node| room.is_open(*node) && room.left(*node, View::Then).any(|left| left < 0))
        .collect();
    if full.is_empty() {
        return;
    }
    let mut on_node: BTreeMap<usize, Vec<(usize, Shape)>> = BTreeMap::new();
    for job in 0..entries.len() {
        for (node, shape) in &room.hold(job).current {
            on_node.entry(*node).or_default().push((job, *shape));
        }
    }
    for node in full {
        let Some(jobs) = on_node.get_mut(&node) else { continue };
        jobs.sort_by_key(|(job, _)| {
            let input = entries[*job].input;
            (entries[*job].standing == Standing::Running, input.arrival, input.id)
        });
        let mut left: Vec<i128> = room.left(node, View::Then).collect();
        for (job, shape) in jobs.iter() {
            for (left, need) in left.iter_mut().zip(room.demand(*job).of(*shape)) {
                *left += need;
            }
        }
        for (job, shape) in jobs {
            let needs: Vec<i128> = room.demand(*job).of(*shape).collect();
            let fits = left.iter().zip(&needs).all(|(left, need)| *need == 0 || need <= left);
            if fits || entries[*job].standing != Standing::Running {
                for (left, need) in left.iter_mut().zip(needs) {
                    *left -= need;
                }
            } else {
                let why = format!("{} has less than its tasks take", nodes[node].id);
                entries[*job].standing = Standing::Displaced { lost: false, why };
            }
        }
    }
}
