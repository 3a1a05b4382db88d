//! A small cluster, its jobs and its settings, drawn from a seed.

use model::{Batch, Mode, NodeId, OnDisconnect, Resources, Shape};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::snapshot::Policy;

use super::schedule::{self, Fault};
use crate::random::stream;
use crate::workload::{Cluster, Job, Loss, Speed, Workload};
use crate::world::{Costs, Estimates, Fidelity, Network, Options, Rounds, Tweak, World, settings};

/// Policies to draw from; those that there are not yet are passed over.
const POLICIES: [&str; 6] = ["optimus", "drf", "tetris", "fifo", "horizon", "tiresias"];

/// Everything that a seed decides.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) policy: &'static str,
    pub(super) cluster: Cluster,
    pub(super) workload: Workload,
    options: Options,
    settings: control::Settings,
    tweaks: Vec<Tweak>,
    /// Faults by time in ms.
    pub(super) schedule: Vec<(u64, Fault)>,
    /// When all of them end, in ms.
    pub(super) ends_ms: u64,
}

/// One of some values.
pub(super) fn one<T: Copy>(stream: &mut Pcg64Mcg, of: &[T]) -> T {
    of[stream.random_range(0..of.len())]
}

pub(super) fn within(stream: &mut Pcg64Mcg, least: u64, most: u64) -> u64 {
    stream.random_range(least..=most)
}

pub(super) fn chance(stream: &mut Pcg64Mcg, share: f64) -> bool {
    stream.random::<f64>() < share
}

fn small(stream: &mut Pcg64Mcg, least: u64, most: u64) -> u32 {
    u32::try_from(within(stream, least, most)).expect("bounds here are small")
}

fn real(stream: &mut Pcg64Mcg, least: f64, most: f64) -> f64 {
    least + (most - least) * stream.random::<f64>()
}

pub(super) fn draw(seed: u64) -> Drawn {
    let cluster = cluster(&mut stream(seed, "cluster"));
    let mut jobs = stream(seed, "jobs");
    let count = within(&mut jobs, 1, 6);
    let all: Vec<Job> = (0..count).map(|job| a_job(&mut jobs, job, &cluster)).collect();
    let tweaks = all.iter().map(|_| tweak(&mut jobs)).collect();
    let workload = Workload { jobs: all };
    let mut knobs = stream(seed, "settings");
    let (policy, options) = options(&mut knobs, seed);
    let settings = master(&mut knobs, settings(&options));
    let ends_ms = within(&mut knobs, 120, 900) * 1000;
    let mut faults = stream(seed, "faults");
    let nodes = cluster.nodes.len();
    let mut schedule = schedule::draw(&mut faults, nodes, &workload, ends_ms);
    schedule.extend(schedule::closings(&mut stream(seed, "closings"), nodes, ends_ms));
    schedule.sort_by_key(|(at, _)| *at);
    Drawn { policy, cluster, workload, options, settings, tweaks, schedule, ends_ms }
}

fn cluster(stream: &mut Pcg64Mcg) -> Cluster {
    let count = within(stream, 1, 5);
    let gpus = one(stream, &[0, 0, 1, 2]);
    let nodes = (1..=count).map(|number| {
        let id: NodeId = format!("n{number}").parse().expect("a letter and a digit are a name");
        let cores = within(stream, 4, 10) * 1000;
        let memory = within(stream, 8, 32) << 30;
        (id, Resources::new(cores, memory, gpus))
    });
    Cluster { nodes: nodes.collect() }
}

fn a_job(stream: &mut Pcg64Mcg, number: u64, cluster: &Cluster) -> Job {
    let alone = cluster.nodes.len() == 1;
    let gpus = cluster.nodes.first().map_or(0, |node| node.1.gpus);
    let mode = one(stream, &[Mode::Sync, Mode::Sync, Mode::Async]);
    let batch = one(stream, &[Batch::Global(64), Batch::Global(64), Batch::PerWorker(16)]);
    let takes_gpu = gpus > 0 && chance(stream, 0.5);
    let min = if alone || takes_gpu || chance(stream, 0.6) {
        Shape::new(1, 1)
    } else {
        one(stream, &[Shape::new(1, 2), Shape::new(2, 1), Shape::new(2, 2)])
    };
    let max = Shape::new(min.servers + small(stream, 0, 3), min.workers + small(stream, 0, 5));
    let step_s = real(stream, 0.1, 0.6);
    let theta = |share: f64| step_s * share;
    let (form, theta, per_step) = match (mode, batch) {
        (Mode::Async, _) => {
            (SpeedForm::Async, vec![theta(0.8), theta(0.1), theta(0.05), theta(0.05)], 1.0)
        }
        (Mode::Sync, Batch::Global(batch)) => (
            SpeedForm::SyncGlobal { batch },
            vec![theta(0.8) / f64::from(batch), theta(0.1), theta(0.1), 0.0, 0.0],
            1.0,
        ),
        (Mode::Sync, Batch::PerWorker(batch)) => (
            SpeedForm::SyncPerWorker { batch },
            vec![theta(0.8), theta(0.1), theta(0.1), 0.0, 0.0],
            f64::from(batch),
        ),
    };
    let work = (real(stream, 30.0, 300.0) / step_s * per_step).ceil();
    let loss = chance(stream, 0.3).then(|| Loss {
        beta: [real(stream, 0.2, 1.0), real(stream, 0.3, 1.0), real(stream, 0.0, 0.3)],
        noise: 0.02,
        steps_per_epoch: (work / per_step / real(stream, 15.0, 40.0)).ceil().max(2.0),
        threshold: real(stream, 0.01, 0.05),
        patience: small(stream, 1, 3),
    });
    Job {
        id: format!("j{number}"),
        arrival_s: real(stream, 0.0, 1.0) * one(stream, &[1.0, 60.0, 300.0]),
        model: one(stream, &["a", "b", "c", "d"]).to_owned() + &format!("{mode:?}{batch:?}"),
        mode,
        batch,
        worker: Resources::new(one(stream, &[500, 1000, 1500]), 1 << 30, u64::from(takes_gpu)),
        server: Resources::new(one(stream, &[250, 500, 1000]), 1 << 29, 0),
        min,
        max,
        requested: Some(min),
        priority: one(stream, &[1.0, 1.0, 0.1, 10.0]),
        speed: Speed::Theta(SpeedModel::of_theta(form, theta)),
        work,
        rescale_cost_s: real(stream, 1.0, 20.0),
        loss,
    }
}

fn tweak(stream: &mut Pcg64Mcg) -> Tweak {
    Tweak {
        on_disconnect: one(
            stream,
            &[OnDisconnect::Keep, OnDisconnect::Stop, OnDisconnect::Replace, OnDisconnect::Replace],
        ),
        restarts_max: one(stream, &[1000, 1000, 5, 2, 0]),
        checkpoint_interval_s: one(stream, &[5, 15, 30, 60, 600]),
    }
}

fn options(stream: &mut Pcg64Mcg, seed: u64) -> (&'static str, Options) {
    let known: Vec<(&str, Policy)> =
        POLICIES.iter().filter_map(|name| Some((*name, Policy::by_name(name)?))).collect();
    let (name, mut policy) = known[stream.random_range(0..known.len())].clone();
    policy.change_spacing_ms = one(stream, &[0, 10_000, 60_000]);
    policy.hysteresis_factor = one(stream, &[0.0, 1.0, 1.5]);
    let estimates = one(
        stream,
        &[
            Estimates::Oracle,
            Estimates::Errors { work: 0.3, speed: 0.2 },
            Estimates::Fitted,
            Estimates::Fitted,
        ],
    );
    let (save, stop) = (real(stream, 0.0, 0.4), real(stream, 0.0, 0.3));
    let options = Options {
        seed,
        policy_name: name.to_owned(),
        policy,
        rounds: Rounds {
            interval_s: one(stream, &[20.0, 60.0, 200.0]),
            spacing_s: Some(one(stream, &[0.01, 1.0, 5.0])),
        },
        estimates,
        fidelity: Fidelity::Exact {
            beat_ms: one(stream, &[1_000, 2_000, 4_000]),
            delay_ms: one(stream, &[1, 20, 300]),
        },
        costs: Costs { save_share: save, stop_share: stop, first_start_s: real(stream, 0.0, 5.0) },
        network: chance(stream, 0.3).then_some(Network { within_over_across: 3.5 }),
        speed_noise: one(stream, &[0.0, 0.05, 0.3]),
        shared_speeds: chance(stream, 0.7),
        check_plans: true,
        ..Options::default()
    };
    (name, options)
}

fn master(stream: &mut Pcg64Mcg, usual: control::Settings) -> control::Settings {
    let port = 20_000;
    control::Settings {
        profile_ms: within(stream, 3, 20) * 1000,
        start_timeout_ms: within(stream, 40, 300) * 1000,
        checkpoint_timeout_ms: within(stream, 20, 120) * 1000,
        stop_grace_ms: within(stream, 2, 10) * 1000,
        backoff_ms: within(stream, 1, 5) * 1000,
        backoff_ms_max: within(stream, 10, 60) * 1000,
        stall_ms: within(stream, 60, 300) * 1000,
        checkpoints_kept: one(stream, &[1, 2, 3]),
        jobs_finished_kept: 100,
        events_kept: one(stream, &[20, 1_000]),
        rounds_kept: one(stream, &[2, 50]),
        root_ports: (port, port + one(stream, &[3, 20, 1000])),
        ..usual
    }
}

impl Drawn {
    /// The cluster before anything happened.
    ///
    /// # Errors
    /// What makes no sense in what was drawn.
    pub(super) fn world(&self) -> Result<World, String> {
        let settings = self.settings.clone();
        let world = World::with_settings(&self.cluster, &self.workload, &self.options, settings)?;
        Ok(world.tweaked(self.tweaks.clone()))
    }
}
