//! Figure 12: how long one round takes, over numbers of jobs and nodes.

use model::{JobId, Millis, Mode, NodeId, Resources, Shape};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use scheduler::Cache;
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::plan::{Decision, Plan, Verb};
use scheduler::snapshot::{JobInput, NodeInput, Policy, Remaining, Snapshot, Want};

use super::{Experiment, Report, Row, Settings, spread};
use crate::models::{self, KNOWN};
use crate::plot::{Chart, Line, Lines, Point};
use crate::random;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "fig12",
    figure: "Figure 12",
    title: "Time of one scheduling round",
    runs: 3,
    run,
};

/// Numbers of nodes in the figure.
const NODES: [u32; 7] = [1000, 2000, 4000, 8000, 16_000, 32_000, 64_000];
/// Numbers of jobs, each with the paper's times in s by number of nodes, read off the figure.
const PAPER: [(u32, [f64; 7]); 4] = [
    (1000, [0.907, 1.002, 1.295, 1.676, 2.416, 4.120, 7.183]),
    (2000, [0.916, 1.679, 1.998, 2.195, 3.108, 4.723, 7.967]),
    (4000, [0.949, 1.622, 2.711, 3.591, 4.205, 5.889, 9.139]),
    (8000, [0.935, 1.759, 3.1407, 5.684, 6.752, 8.464, 11.818]),
];

fn run(settings: &Settings<'_>) -> Result<Report, String> {
    let runs = settings.runs.unwrap_or(EXPERIMENT.runs).max(1);
    let mut report = Report {
        runs,
        assumptions: vec![
            "a round from nothing: no job runs yet, as after a start of the master".to_owned(),
            "jobs: models of the catalogue drawn evenly, half of them synchronous, each \
             coefficient 0.5 to 1.5 times the measured one; nodes: 7 of 16 CPUs and 80 GB to 6 of \
             8 CPUs, 48 GB and 2 GPUs, as on the paper's testbed"
                .to_owned(),
            "on one core of this machine; the paper had an Intel E5-1620 v4".to_owned(),
        ],
        ..Report::default()
    };
    let mut lines = Vec::new();
    for (jobs, paper) in PAPER {
        let named = |whose: &str| Line { name: format!("{jobs} jobs{whose}"), ..Line::default() };
        let (mut ours, mut theirs) = (named(""), named(", paper"));
        for (nodes, paper) in NODES.into_iter().zip(paper) {
            settings.hands.progress(&format!("{jobs} jobs on {nodes} nodes"));
            let (mut times, mut tasks) = (Vec::new(), 0);
            for run in 0..runs {
                let mut chance = random::stream(settings.seed_of(run), "scheduling time");
                let snapshot = snapshot(jobs, nodes, &mut chance);
                let start = settings.hands.seconds();
                let plan = scheduler::plan(&snapshot, &Policy::default(), &mut Cache::default());
                times.push(settings.hands.seconds() - start);
                tasks = placed(&plan);
            }
            let (mean, deviation) = spread(&times);
            let what = format!("{jobs} jobs, {nodes} nodes");
            report.rows.push(
                Row::new(what, Some(paper), mean)
                    .deviation(deviation)
                    .note(format!("s; {tasks} tasks placed")),
            );
            let x = f64::from(nodes);
            let error = deviation.unwrap_or(0.0);
            ours.points.push(Point { x, y: mean.unwrap_or(0.0), error });
            theirs.points.push(Point::new(x, paper));
        }
        lines.extend([ours, theirs]);
    }
    report.charts.push(Chart::Lines(Lines {
        title: "Scheduling time".to_owned(),
        x: "nodes".to_owned(),
        y: "time of a round in s".to_owned(),
        lines,
        y_most: None,
        log_x: true,
    }));
    Ok(report)
}

/// Servers and workers that a plan from nothing starts.
fn placed(plan: &Plan) -> u64 {
    let tasks = |decision: &Decision| match &decision.verb {
        Verb::Start { placement } | Verb::Rescale { placement } => {
            let shape = placement.shape();
            u64::from(shape.servers) + u64::from(shape.workers)
        }
        Verb::Keep | Verb::Evict | Verb::Wait => 0,
    };
    plan.decisions.iter().map(tasks).sum()
}

fn snapshot(jobs: u32, nodes: u32, chance: &mut Pcg64Mcg) -> Snapshot {
    let node = |at: u32| NodeInput {
        id: NodeId::for_file(&format!("n{at:06}")).expect("a plain name is one"),
        capacity: if at % 13 < 7 {
            Resources::new(16_000, 80_000_000_000, 0)
        } else {
            Resources::new(8000, 48_000_000_000, 2)
        },
        held: Resources::default(),
        open: true,
    };
    Snapshot {
        revision: 1,
        now: Millis(0),
        nodes: (0..nodes).map(node).collect(),
        jobs: (0..jobs).map(|at| job(at, chance)).collect(),
    }
}

fn job(at: u32, chance: &mut Pcg64Mcg) -> JobInput {
    let model = &KNOWN[chance.random_range(0..KNOWN.len())];
    let mut around = |theta: f64| theta * chance.random_range(0.5..1.5);
    let [base, ratio, by_w, by_p] = model.theta.map(&mut around);
    let sync = chance.random_bool(0.5);
    let speed = if sync {
        let form = SpeedForm::SyncGlobal { batch: model.batch };
        let compute = base / f64::from(model.batch);
        SpeedModel::of_theta(form, vec![compute, 0.1 * base, ratio, by_w, by_p])
    } else {
        SpeedModel::of_theta(SpeedForm::Async, vec![base, ratio, by_w, by_p])
    };
    let work = chance.random_range(100.0..20_000.0);
    JobInput {
        id: JobId(u64::from(at) + 1),
        mode: if sync { Mode::Sync } else { Mode::Async },
        // Most of the testbed has no GPU: a job takes CPUs there, or GPUs on the other servers.
        worker: Resources { gpus: u64::from(chance.random_bool(0.3)), ..models::worker() },
        server: models::server(),
        min: Shape::new(1, 1),
        max: Shape::new(4096, 4096),
        priority: 1.0,
        arrival: Millis(u64::from(at)),
        current: None,
        want: Want::Share {
            speed,
            remaining: Some(Remaining { value: work, low: work, high: work }),
        },
        requested: None,
        attained_s: 0.0,
        goodput: None,
        rescale_cost_s: model.rescale_cost_s(),
    }
}
