//! Jobs alone, jobs together, and nodes that die.

use model::Shape;
use simulator::workload::Loss;
use simulator::world::{Costs, Estimates, Failures, Fidelity, Network, Options, Rounds};

use super::{cluster, done, job};

fn pinned(shape: Shape) -> simulator::workload::Job {
    let mut job = job("alone", 3.5);
    (job.min, job.max) = (shape, shape);
    job
}

fn close(seconds: f64, expected: f64) -> bool {
    (seconds - expected).abs() < 1e-6
}

#[test]
fn a_job_alone_ends_at_work_over_rate() {
    // 1 / (0.4/2 + 0.05 + 0.05·2/1) steps a second.
    let expected = 1000.0 * 0.35;
    let outcome = done(&cluster(2, 8), vec![pinned(Shape::new(1, 2))], &Options::default());
    let jct = outcome.completion_times()[0];
    assert!(close(jct, expected), "{jct}");
    assert_eq!(outcome.jobs[0].restarts, 0);
    let spans: Vec<_> = outcome.jobs[0].timeline.iter().map(|s| (s.servers, s.workers)).collect();
    assert_eq!(spans, [(1, 2), (0, 0)]);
}

#[test]
fn with_heartbeats_and_delays_it_takes_little_longer() {
    let exact = Options {
        fidelity: Fidelity::exact(),
        rounds: Rounds { interval_s: 600.0, spacing_s: Some(0.01) },
        ..Options::default()
    };
    let outcome = done(&cluster(2, 8), vec![pinned(Shape::new(1, 2))], &exact);
    let jct = outcome.completion_times()[0];
    assert!(350.0 < jct && jct < 350.2, "{jct}");
}

#[test]
fn new_jobs_wait_for_the_grid_where_rounds_keep_to_one() {
    let options =
        Options { rounds: Rounds { interval_s: 600.0, spacing_s: None }, ..Options::default() };
    let outcome = done(&cluster(2, 8), vec![pinned(Shape::new(1, 2))], &options);
    assert!(close(outcome.jobs[0].started_s.unwrap(), 600.0), "{:?}", outcome.jobs[0]);
    assert!(close(outcome.jobs[0].completion_s.unwrap(), 950.0), "{:?}", outcome.jobs[0]);
}

#[test]
fn two_jobs_share_and_the_later_one_grows_by_a_rescale() {
    let mut options = Options::default();
    options.policy.change_spacing_ms = 0;
    let outcome = done(&cluster(1, 5), vec![job("a", 0.0), job("b", 20.0)], &options);
    assert!(outcome.jobs.iter().any(|job| job.restarts > 0), "{:?}", outcome.jobs);
    assert!(outcome.rescale_share > 0.0);
    for job in &outcome.jobs {
        assert!((job.rescale_s - 15.0 * f64::from(job.restarts)).abs() < 1e-6, "{job:?}");
    }
    assert!(outcome.samples.iter().all(|sample| sample.used <= 1.0));
}

#[test]
fn a_rescale_costs_what_the_job_says_however_it_is_split() {
    let mut options = Options::default();
    options.policy.change_spacing_ms = 0;
    options.costs = Costs { save_share: 0.2, stop_share: 0.1, first_start_s: 0.0 };
    let outcome = done(&cluster(1, 5), vec![job("a", 0.0), job("b", 20.0)], &options);
    assert!(outcome.jobs.iter().any(|job| job.restarts > 0), "{:?}", outcome.jobs);
    for job in &outcome.jobs {
        assert!((job.rescale_s - 15.0 * f64::from(job.restarts)).abs() < 1e-6, "{job:?}");
    }
}

fn events(world: &simulator::world::World) -> Vec<String> {
    use model::client::{Answer, Read};
    let read = Read::Events { job: None, after: 0, limit: 60 };
    match world.control().read(control::Now::default(), &read) {
        Ok(Answer::Events(events)) => events
            .into_iter()
            .map(|event| {
                format!("{} {} {}", event.at.0 - 1_700_000_000_000, event.kind, event.text)
            })
            .collect(),
        other => vec![format!("{other:?}")],
    }
}

#[test]
fn a_lost_node_costs_at_most_an_interval_and_a_restart() {
    for fidelity in [Fidelity::exact(), Fidelity::Coarse { report_s: 10.0 }] {
        let options = Options { fidelity, checkpoint_interval_s: 60, ..Options::default() };
        let workload = simulator::workload::Workload { jobs: vec![pinned(Shape::new(1, 2))] };
        let mut world = simulator::world::World::new(&cluster(2, 8), &workload, &options).unwrap();
        world.until(200.0).unwrap();
        let before = world.outcome();
        assert_eq!(before.jobs[0].timeline.len(), 1);
        // Whichever node carries it.
        for node in 0..2 {
            world.power_off(node);
        }
        world.until(210.0).unwrap();
        world.power_on(0);
        while !world.is_done() && world.now_s() < 5_000.0 {
            world.step().unwrap();
        }
        assert_eq!(world.findings(), [] as [String; 0]);
        assert!(world.is_done(), "{:#?}", events(&world));
        let jct = world.outcome().completion_times()[0];
        // Down for 10 s and found by the new boot or after 60 s; back-off, and 15 s to start.
        assert!(jct > 350.0 + 15.0, "{jct}");
        assert!(jct < 350.0 + 60.0 + 4.0 + 70.0 + 10.0 + 15.0, "{jct} {:?}", world.outcome());
    }
}

#[test]
fn a_slow_nodes_worker_is_replaced_once_and_the_job_goes_on_at_its_speed() {
    let options = Options {
        fidelity: Fidelity::exact(),
        rounds: Rounds { interval_s: 600.0, spacing_s: Some(0.01) },
        ..Options::default()
    };
    let mut team = pinned(Shape::new(1, 4));
    // One worker on each node of 2 cores.
    (team.worker.cpus_milli, team.server.cpus_milli) = (1500, 500);
    let jobs = vec![team];
    let healthy = done(&cluster(5, 2), jobs.clone(), &options).completion_times()[0];
    let workload = simulator::workload::Workload { jobs };
    let mut world = simulator::world::World::new(&cluster(5, 2), &workload, &options).unwrap();
    world.until(60.0).unwrap();
    let record = world.control().job_records().next().unwrap();
    let placement = record.phase.life().unwrap().placement.clone();
    let share = placement.0.iter().find(|share| share.workers > 0 && share.servers == 0).unwrap();
    let slow = (0..5).find(|node| super::n(*node) == share.node).unwrap();
    world.slow(slow, 0.3);
    while !world.is_done() && world.now_s() < 5_000.0 {
        world.step().unwrap();
    }
    let told = events(&world);
    let moves = told.iter().filter(|told| told.contains(" moves from ")).count();
    assert_eq!(moves, 1, "{told:#?}");
    assert!(told.iter().any(|told| told.contains("is flagged slow")), "{told:#?}");
    // Named within four windows of 6 s, moved at a cost of 15 s.
    let jct = world.outcome().completion_times()[0];
    assert!(jct < healthy + 24.0 + 30.0, "{jct} {healthy}");
}

#[test]
fn an_oracle_and_the_daemons_own_estimates_both_end() {
    let loss = Loss {
        beta: [0.5, 0.4, 0.1],
        noise: 0.02,
        steps_per_epoch: 40.0,
        threshold: 0.01,
        patience: 3,
    };
    for estimates in
        [Estimates::Oracle, Estimates::Errors { work: 0.2, speed: 0.1 }, Estimates::Fitted]
    {
        for fidelity in [Fidelity::exact(), Fidelity::Coarse { report_s: 5.0 }] {
            let mut jobs: Vec<_> =
                (0..4_u8).map(|k| job(&format!("j{k}"), 40.0 * f64::from(k))).collect();
            for job in &mut jobs {
                job.loss = Some(loss);
            }
            let options = Options { estimates, fidelity, speed_noise: 0.03, ..Options::default() };
            let outcome = done(&cluster(3, 8), jobs, &options);
            assert!(outcome.rounds > 3);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome_and_another_one_another() {
    let outcome = |seed: u64| {
        let jobs = (0..12_u8).map(|k| job(&format!("j{k}"), 30.0 * f64::from(k))).collect();
        let options = Options {
            seed,
            estimates: Estimates::Errors { work: 0.3, speed: 0.3 },
            failures: Failures {
                node_mtbf_s: 2_000.0,
                node_mttr_s: 100.0,
                slow_mtbf_s: 500.0,
                slow_mttr_s: 100.0,
                slow_factor: 0.5,
                save_failures: 0.2,
            },
            checkpoint_interval_s: 60,
            network: Some(Network { within_over_across: 3.5 }),
            ..Options::default()
        };
        done(&cluster(4, 8), jobs, &options)
    };
    let first = outcome(1);
    assert_eq!(first, outcome(1));
    let mut other = outcome(2);
    other.seed = 1;
    assert_ne!(first, other);
}
