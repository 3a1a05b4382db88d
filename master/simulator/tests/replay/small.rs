//! The loop in small, by hand.

use std::fs;

use scheduler::baseline::gpus::Replicas;
use scheduler::goodput::Elastic;
use simulator::outcome::Span;
use simulator::replay::{Batching, Folders, Options, Planner, Profiles, Row, View, run, run_with};
use tempfile::TempDir;

/// One GPU takes 1 s for 8 samples and 2 s for 16, four on a node no longer; between two nodes
/// 0.5 s more go into the exchange.
pub(crate) const PLACEMENTS: &str = "placement,local_bsz,step_time,sync_time
1,8,1,0
1,16,2,0
4,8,1,0
4,16,2,0
11,8,1.5,0.5
11,16,2.5,0.5
2,8,1,0
2,16,2,0
";
/// Two epochs of 100 steps, of which one at twice the batch counts as much as two.
pub(crate) const VALIDATION: &str = "progress,iteration,metric,grad_sqr,grad_var
100,100,0,0,1
200,200,0,0,1
";

/// A folder with measurements of one application.
pub(crate) fn measured() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let toy = folder.path().join("profiles/toy");
    fs::create_dir_all(&toy).unwrap();
    fs::write(toy.join("placements.csv"), PLACEMENTS).unwrap();
    for batch in [8, 32] {
        fs::write(toy.join(format!("validation-{batch}.csv")), VALIDATION).unwrap();
    }
    folder
}

fn profiles() -> Profiles {
    Profiles::load(&Folders::of(measured().path()), ["toy"]).unwrap()
}

fn row(name: &str, time: f64, num_replicas: u32, batch_size: u32) -> Row {
    let (name, application) = (name.to_owned(), "toy".to_owned());
    Row { name, time, application, num_replicas, batch_size }
}

/// Gives what is written down, round by round, then always the last.
#[derive(Debug)]
struct Script(Vec<Vec<Vec<Replicas>>>, usize);

impl Planner for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn batching(&self) -> Batching {
        Batching::Stated
    }

    fn round(&mut self, view: &View<'_>) -> Vec<Vec<Replicas>> {
        let given = &self.0[self.1.min(self.0.len() - 1)];
        self.1 += 1;
        view.jobs.iter().map(|job| given[job.id].clone()).collect()
    }
}

const fn on(node: usize, count: u32) -> Replicas {
    Replicas { node, count }
}

#[test]
fn a_job_waits_for_the_round_and_pays_for_its_start() {
    // One pass of 8 samples a second: 200 s of work from 60 + 30 s on.
    let outcome = run(&profiles(), &[row("a", 1.0, 1, 8)], 1, &options("tiresias")).unwrap();
    let job = &outcome.jobs[0];
    assert_eq!((job.started_s, job.completion_s), (Some(60.0), Some(290.0)));
    assert_eq!((job.restarts, job.rescale_s), (0, 0.0));
    let span = |at_s, workers| Span { at_s, servers: 0, workers, nodes: workers };
    assert_eq!(job.timeline, [span(60.0, 1), span(290.0, 0)]);
    assert_eq!(outcome.rounds, 4);
}

#[test]
fn a_larger_batch_is_worth_its_gain_and_accumulates_on_one_replica() {
    // 16 samples in two passes of 1 s, worth 2 steps as gradients are all noise.
    let outcome = run(&profiles(), &[row("a", 0.0, 1, 16)], 1, &options("tiresias")).unwrap();
    assert_eq!(outcome.jobs[0].completion_s, Some(290.0));
    // 32 samples on four replicas in 1 s, worth 4 steps.
    let outcome = run(&profiles(), &[row("a", 0.0, 4, 32)], 1, &options("tiresias")).unwrap();
    assert_eq!(outcome.jobs[0].completion_s, Some(140.0));
}

fn options(policy: &str) -> Options {
    Options { policy: policy.to_owned(), ..Options::default() }
}

#[test]
fn a_restart_costs_and_is_counted() {
    let mut script = Script(vec![vec![vec![on(0, 2)]], vec![vec![on(1, 2)]]], 0);
    let rows = [row("a", 0.0, 2, 16)];
    let outcome = run_with(&profiles(), &rows, 2, &Options::default(), &mut script).unwrap();
    let job = &outcome.jobs[0];
    // 30 s of 2 steps/s, then 30 s of restart, then 70 s for the other 140 steps.
    assert_eq!(job.completion_s, Some(60.0 + 60.0 + 30.0 + 70.0));
    assert_eq!((job.restarts, job.rescale_s), (1, 30.0));
    assert!((outcome.rescale_share - 30.0 / 160.0).abs() < 1e-12);
}

#[test]
fn a_job_without_gpus_stands_still() {
    let mut script = Script(vec![vec![vec![on(0, 2)]], vec![vec![]], vec![vec![on(0, 2)]]], 0);
    let rows = [row("a", 0.0, 2, 16)];
    let outcome = run_with(&profiles(), &rows, 1, &Options::default(), &mut script).unwrap();
    assert_eq!(outcome.jobs[0].completion_s, Some(60.0 + 60.0 + 60.0 + 30.0 + 70.0));
    let workers: Vec<u32> = outcome.jobs[0].timeline.iter().map(|span| span.workers).collect();
    assert_eq!(workers, [2, 0, 2, 0]);
}

#[test]
fn jobs_on_shared_nodes_interfere() {
    let given = vec![vec![on(0, 1), on(1, 1)], vec![on(1, 1), on(0, 1)]];
    let rows = [row("a", 0.0, 2, 16), row("b", 0.0, 2, 16)];
    let completion = |interference, given: &Vec<Vec<Replicas>>| {
        let options = Options { interference, ..Options::default() };
        let mut script = Script(vec![given.clone()], 0);
        let outcome = run_with(&profiles(), &rows, 2, &options, &mut script).unwrap();
        outcome.jobs[0].completion_s
    };
    // 2 steps' worth in 1.5 s: 150 s, or 300 s at half speed.
    assert_eq!(completion(0.0, &given), Some(90.0 + 150.0));
    assert_eq!(completion(0.5, &given), Some(90.0 + 300.0));
    // One that keeps to its node neither disturbs nor is disturbed.
    let apart = vec![given[0].clone(), vec![on(0, 2)]];
    assert_eq!(completion(0.5, &apart), Some(90.0 + 150.0));
}

#[test]
fn what_a_policy_may_not_do_is_refused() {
    let rows = [row("a", 0.0, 2, 16), row("b", 0.0, 2, 16)];
    let given = |a: Vec<Replicas>, b: Vec<Replicas>| {
        let mut script = Script(vec![vec![a, b]], 0);
        run_with(&profiles(), &rows, 2, &Options::default(), &mut script).unwrap_err()
    };
    assert!(given(vec![on(0, 4)], vec![on(0, 1)]).contains("gave b GPUs that are not there"));
    assert!(given(vec![on(2, 1)], vec![]).contains("gave a GPUs that are not there"));
    assert!(given(vec![on(0, 0)], vec![]).contains("gave a GPUs that are not there"));
    assert!(given(vec![on(0, 3)], vec![]).contains("put a on 1 nodes in a way that was not"));
}

#[test]
fn hostile_options_and_rows_are_refused() {
    let rows = [row("a", 0.0, 2, 16)];
    let fault = |rows: &[Row], nodes, options: &Options| {
        run(&profiles(), rows, nodes, options).unwrap_err()
    };
    assert!(fault(&rows, 2, &options("fifo")).contains("there are horizon,"));
    assert!(fault(&rows, 0, &Options::default()).contains("0 nodes"));
    assert!(fault(&rows, u32::MAX, &Options::default()).contains("nodes"));
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let options = Options { interval_s: bad, ..Options::default() };
        assert!(fault(&rows, 2, &options).contains("between rounds"));
    }
    for bad in [1.0, -0.1, f64::NAN, f64::INFINITY] {
        let options = Options { interference: bad, ..Options::default() };
        assert!(fault(&rows, 2, &options).contains("interference"));
    }
    let options = Options { restart_s: f64::NAN, ..Options::default() };
    assert!(fault(&rows, 2, &options).contains("restart"));
    for (time, num_replicas, batch_size) in
        [(f64::NAN, 1, 8), (f64::INFINITY, 1, 8), (-1.0, 1, 8), (0.0, 0, 8), (0.0, 1, 0)]
    {
        let bad = [row("a", time, num_replicas, batch_size)];
        assert!(fault(&bad, 2, &Options::default()).contains("a is no job"));
    }
    let large = [row("a", 0.0, 9, 16)];
    let fault = fault(&large, 2, &Options::default());
    assert_eq!(fault, "a asks for 9 replicas on a cluster of 8 GPUs");
    let none = run(&profiles(), &[], 2, &Options::default()).unwrap();
    assert_eq!((none.jobs.len(), none.rounds), (0, 0));
}

#[test]
fn rounds_may_come_with_submissions_and_ends() {
    let options = Options { at_events: true, ..options("tiresias") };
    let rows = [row("a", 0.0, 4, 32), row("b", 70.0, 4, 32), row("c", 1_000_007.0, 1, 8)];
    let outcome = run(&profiles(), &rows, 1, &options).unwrap();
    let times: Vec<(Option<f64>, Option<f64>)> =
        outcome.jobs.iter().map(|job| (job.started_s, job.completion_s)).collect();
    // 30 s of start and 50 s of work each; the second follows on the first at once.
    let wanted = [(0.0, 80.0), (80.0, 160.0), (1_000_007.0, 1_000_237.0)];
    assert_eq!(times, wanted.map(|(start, end)| (Some(start), Some(end))));
    // Three submissions, the end for which a job waits, and the grid while jobs are there: at 60
    // and 120 s, and four times for the last.
    assert_eq!(outcome.rounds, 3 + 1 + 2 + 4);
    let plain = Options { at_events: false, ..options };
    let outcome = run(&profiles(), &rows, 1, &plain).unwrap();
    let starts: Vec<Option<f64>> = outcome.jobs.iter().map(|job| job.started_s).collect();
    assert_eq!(starts, [60.0, 180.0, 1_000_020.0].map(Some));
}

#[test]
fn a_policy_that_gives_nothing_comes_to_an_end() {
    let mut script = Script(vec![vec![vec![]]], 0);
    let rows = [row("a", 0.0, 2, 16)];
    let options = Options { interval_s: 86_400.0, ..Options::default() };
    let outcome = run_with(&profiles(), &rows, 1, &options, &mut script).unwrap();
    assert_eq!(outcome.jobs[0].completion_s, None);
    assert_eq!(outcome.makespan_s(), None);
}

/// Two replicas from the first round on; keeps what it was told.
#[derive(Debug, Default)]
struct Watcher(Vec<(f64, f64, usize, Option<Elastic>)>);

impl Planner for Watcher {
    fn name(&self) -> &'static str {
        "watcher"
    }

    fn batching(&self) -> Batching {
        Batching::Goodput
    }

    fn round(&mut self, view: &View<'_>) -> Vec<Vec<Replicas>> {
        assert_eq!((view.gpus, view.jobs.len()), (&[4][..], 1));
        let job = &view.jobs[0];
        self.0.push((job.attained_gpu_s, job.work_left, job.epoch, job.elastic.clone()));
        vec![vec![on(0, 2)]]
    }
}

#[test]
fn a_policy_is_told_what_was_learned_and_what_is_left() {
    let mut watcher = Watcher::default();
    let rows = [row("a", 10.0, 1, 8)];
    run_with(&profiles(), &rows, 1, &Options::default(), &mut watcher).unwrap();
    let [first, second, ..] = &watcher.0[..] else { panic!("there were fewer rounds") };
    let elastic = first.3.as_ref().unwrap();
    assert_eq!((first.0, first.1, first.2), (0.0, 200.0, 0));
    assert_eq!((elastic.throughput, elastic.replicas_max, elastic.age_s), (None, 1, 50.0));
    assert_eq!(elastic.limits.initial, 8);
    // For 30 s it held two GPUs and restarted; for 30 s it made 2 steps' worth a second, and then
    // more: four replicas fill the largest batch, and gradients are all noise.
    let elastic = second.3.as_ref().unwrap();
    assert_eq!((second.0, second.2), (120.0, 0));
    assert!((100.0..=140.0).contains(&second.1), "{} left", second.1);
    assert!(elastic.throughput.is_some());
    assert_eq!(elastic.replicas_max, 4);
    assert_eq!((elastic.restarts, elastic.gradient.var), (0, 1.0));
}

#[test]
fn our_own_policy_starts_jobs_as_they_come_and_is_the_same_every_time() {
    let folder = measured();
    let placements = folder.path().join("profiles/toy/placements.csv");
    fs::write(placements, format!("{PLACEMENTS}3,8,1,0\n3,16,2,0\n")).unwrap();
    let profiles = Profiles::load(&Folders::of(folder.path()), ["toy"]).unwrap();
    let rows: Vec<Row> =
        (0..6_u32).map(|at| row(&format!("toy-{at}"), f64::from(at * 7), 1, 8)).collect();
    for policy in ["horizon", "horizon-shared", "horizon-oracle"] {
        let outcome = run(&profiles, &rows, 1, &options(policy)).unwrap();
        assert!(outcome.jobs.iter().all(|job| job.completion_s.is_some()), "{policy}");
        // Nobody waits for the end of an interval while there is room.
        assert_eq!(outcome.jobs[0].started_s, Some(0.0), "{policy}");
        assert_eq!(outcome.jobs[1].started_s, Some(7.0), "{policy}");
        assert_eq!(run(&profiles, &rows, 1, &options(policy)).unwrap(), outcome);
    }
}
