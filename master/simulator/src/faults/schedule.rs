//! When what goes wrong.

use model::client::Change;
use model::{Bounds, JobId, NodeId, Shape, Task};
use rand_pcg::Pcg64Mcg;

use super::draw::{chance, one, within};
use crate::workload::Workload;
use crate::world::Garbage;

/// Something that goes wrong, or the end of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    PowerOff(usize),
    /// With or without what its disk held.
    PowerOn {
        node: usize,
        wiped: bool,
    },
    DeclareLost(usize),
    Cut(usize),
    Heal(usize),
    Mute {
        node: usize,
        towards_master: bool,
    },
    Unmute(usize),
    Break {
        node: usize,
        loses: bool,
        told_ms: Option<u64>,
    },
    StopAgent {
        node: usize,
        down_ms: u64,
    },
    Delay {
        node: usize,
        ms: u64,
    },
    Repeat {
        node: usize,
        count: u32,
        later_ms: u64,
    },
    Slow {
        node: usize,
        speed: f64,
    },
    Garble {
        node: usize,
        garbage: Garbage,
    },
    Exit {
        job: u64,
        task: Task,
        code: i32,
    },
    Hang(bool),
    IgnoreTerm(u64),
    FailSaves(bool),
    FailStore(bool),
    Halves(bool),
    Damage(usize),
    HoldPlan(Option<u64>),
    KillMaster(u64),
    /// After so many more commands.
    MasterDiesAfter(u64),
    ShiftUnix(i64),
    SubmitAgain(usize),
    Ask {
        change: Box<Change>,
        dry_run: bool,
    },
}

/// A schedule up to `ends_ms`, by time.
pub(super) fn draw(
    stream: &mut Pcg64Mcg,
    nodes: usize,
    workload: &Workload,
    ends_ms: u64,
) -> Vec<(u64, Fault)> {
    let mut schedule: Vec<(u64, Fault)> = Vec::new();
    let mean_ms = one(stream, &[1_500, 4_000, 4_000, 12_000, 40_000]);
    // Some seeds are about a few kinds only, so that these meet each other often.
    let kinds: Vec<u64> = if chance(stream, 0.5) {
        (0..within(stream, 2, 5)).map(|_| within(stream, 0, KINDS - 1)).collect()
    } else {
        (0..KINDS).collect()
    };
    let mut at = within(stream, 0, mean_ms);
    while at < ends_ms {
        let kind = one(stream, &kinds);
        let node = usize::try_from(within(stream, 0, 999)).unwrap_or(0) % nodes;
        pair(stream, &mut schedule, at, (kind, node, workload));
        at += within(stream, 1, 2 * mean_ms);
    }
    schedule.retain(|(at, _)| *at < ends_ms);
    schedule.sort_by_key(|(at, _)| *at);
    schedule
}

const KINDS: u64 = 23;

/// How long a fault lasts: around the times at which silence is judged, too.
fn length(stream: &mut Pcg64Mcg) -> u64 {
    let most = one(stream, &[3_000, 15_000, 50_000, 90_000, 200_000]);
    within(stream, most / 2, most)
}

/// A fault, with its end where it has one.
fn pair(
    stream: &mut Pcg64Mcg,
    schedule: &mut Vec<(u64, Fault)>,
    at: u64,
    (kind, node, workload): (u64, usize, &Workload),
) {
    let lasts = length(stream);
    let mut put = |later: u64, fault: Fault| schedule.push((at + later, fault));
    match kind {
        0 | 1 => {
            put(0, Fault::PowerOff(node));
            if chance(stream, 0.2) {
                put(lasts / 2, Fault::DeclareLost(node));
            }
            put(lasts, Fault::PowerOn { node, wiped: chance(stream, 0.5) });
        }
        2 | 3 => {
            put(0, Fault::Cut(node));
            put(lasts, Fault::Heal(node));
        }
        4 => {
            put(0, Fault::Mute { node, towards_master: chance(stream, 0.5) });
            // Both sides give a connection up after 20 s without an acknowledgement.
            put(20_000, Fault::Break { node, loses: true, told_ms: None });
            put(lasts.max(1_000), Fault::Unmute(node));
        }
        5 | 6 => {
            let told_ms = one(stream, &[None, Some(0), Some(500), Some(20_000)]);
            put(0, Fault::Break { node, loses: chance(stream, 0.5), told_ms });
        }
        7 => put(0, Fault::StopAgent { node, down_ms: within(stream, 0, 10_000) }),
        8 => {
            // Later than that, a connection is given up.
            put(0, Fault::Delay { node, ms: one(stream, &[500, 3_000, 9_000]) });
            put(lasts, Fault::Delay { node, ms: one(stream, &[1, 50]) });
        }
        9 => {
            let count = u32::try_from(within(stream, 1, 6)).unwrap_or(1);
            put(0, Fault::Repeat { node, count, later_ms: within(stream, 0, 9_000) });
        }
        10 => {
            put(0, Fault::Slow { node, speed: one(stream, &[0.5, 0.1, 0.01, 3.0]) });
            put(lasts, Fault::Slow { node, speed: 1.0 });
        }
        _ => of_jobs(stream, schedule, at, (kind, node, workload)),
    }
}

/// The same for kinds that are not about one node's power, links or speed.
fn of_jobs(
    stream: &mut Pcg64Mcg,
    schedule: &mut Vec<(u64, Fault)>,
    at: u64,
    (kind, node, workload): (u64, usize, &Workload),
) {
    let short = one(stream, &[1_000, 8_000, 20_000]);
    let lasts = length(stream);
    let mut put = |later: u64, fault: Fault| schedule.push((at + later, fault));
    match kind {
        11 => {
            let number = one(stream, &[f64::NAN, f64::INFINITY, -1.0, 0.0, 1e308]);
            let garbage =
                one(stream, &[Garbage::Numbers(number), Garbage::OldGeneration, Garbage::Unknown]);
            put(0, Fault::Garble { node, garbage });
        }
        12 | 13 => {
            let task = one(stream, &[Task::worker(0), Task::worker(1), Task::server(0)]);
            let task = if chance(stream, 0.2) { Task::SCHEDULER } else { task };
            let job = within(stream, 1, float_len(workload));
            put(0, Fault::Exit { job, task, code: one(stream, &[1, 139]) });
        }
        14 => {
            put(0, Fault::Hang(true));
            put(lasts, Fault::Hang(false));
        }
        15 => {
            put(0, Fault::IgnoreTerm(within(stream, 2_000, 12_000)));
            put(lasts, Fault::IgnoreTerm(0));
        }
        16 => {
            let (on, off): (fn(bool) -> Fault, u64) =
                (one(stream, &[Fault::FailSaves, Fault::FailStore, Fault::Halves]), lasts);
            put(0, on(true));
            put(off, on(false));
        }
        17 => put(0, Fault::Damage(node)),
        18 => {
            let late = one(stream, &[Some(1_000), Some(20_000), Some(150_000), None]);
            put(0, Fault::HoldPlan(late));
        }
        19 => put(0, Fault::KillMaster(one(stream, &[0, 0, short, lasts]))),
        20 => put(0, Fault::MasterDiesAfter(within(stream, 0, 12))),
        21 => {
            let ms = one(stream, &[-3_600_000, -5_000, 5_000, 86_400_000, -1_000_000_000_000]);
            put(0, Fault::ShiftUnix(ms));
        }
        _ => put(0, operator(stream, workload)),
    }
}

/// Nodes that operators close for a while. Drawn apart, so that a seed's other faults stay.
pub(super) fn closings(stream: &mut Pcg64Mcg, nodes: usize, ends_ms: u64) -> Vec<(u64, Fault)> {
    let mut schedule = Vec::new();
    if chance(stream, 0.5) {
        return schedule;
    }
    for _ in 0..within(stream, 1, 6) {
        let at = within(stream, 0, ends_ms);
        let number = usize::try_from(within(stream, 0, 999)).unwrap_or(0) % nodes + 1;
        let node: NodeId = format!("n{number}").parse().expect("a letter and a digit are a name");
        let deadline_ms = one(stream, &[None, None, Some(0), Some(5_000), Some(60_000)]);
        let close = if chance(stream, 0.3) {
            Change::NodeCordon { node: node.clone() }
        } else {
            Change::NodeDrain { node: node.clone(), deadline_ms }
        };
        let ask = |change| Fault::Ask { change: Box::new(change), dry_run: false };
        let lasts = length(stream);
        schedule.push((at, ask(close)));
        schedule.push((at + lasts, ask(Change::NodeUndrain { node })));
    }
    schedule.retain(|(at, _)| *at < ends_ms);
    schedule
}

fn float_len(workload: &Workload) -> u64 {
    u64::try_from(workload.jobs.len()).unwrap_or(1).max(1)
}

fn operator(stream: &mut Pcg64Mcg, workload: &Workload) -> Fault {
    let number = within(stream, 1, float_len(workload));
    let id = JobId(number);
    let at = usize::try_from(number - 1).unwrap_or(0);
    let job = &workload.jobs[at];
    let mut between = |least: u32, most: u32| {
        u32::try_from(within(stream, u64::from(least), u64::from(most))).unwrap_or(least)
    };
    let shape = Shape::new(
        between(job.min.servers, job.max.servers),
        between(job.min.workers, job.max.workers),
    );
    let change = match within(stream, 0, 11) {
        0 => Change::Cancel { job: id, now: chance(stream, 0.5) },
        1 | 2 => Change::Pause { job: id },
        3 | 4 => Change::Resume { job: id },
        5 => Change::Checkpoint { job: id },
        6 | 7 => Change::Resize { job: id, shape, pin: chance(stream, 0.7) },
        8 => Change::Unpin { job: id },
        9 => Change::Update {
            job: id,
            workers: Some(Bounds { min: job.min.workers, max: shape.workers }),
            servers: Some(Bounds { min: job.min.servers, max: shape.servers }),
            priority: Some(one(stream, &[0.1, 1.0, 50.0])),
        },
        _ => return Fault::SubmitAgain(at),
    };
    Fault::Ask { change: Box::new(change), dry_run: chance(stream, 0.1) }
}
