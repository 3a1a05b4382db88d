//! Rounds of our own policy for jobs with goodput.

use model::JobId;
use scheduler::goodput::fit::Observation;
use scheduler::goodput::horizon::{Candidate, Memory, Settings, plan};
use scheduler::goodput::shared::Shared;
use scheduler::goodput::{Elastic, Gradient, Limits, Spread, Throughput};

const LIMITS: Limits =
    Limits { initial: 128, batch_max: 4096, local_min: 32, local_max: 1024, accumulation: true };
const THETA: Throughput = Throughput {
    alpha_c: 0.02,
    beta_c: 0.0006,
    alpha_n: 0.02,
    beta_n: 1e-4,
    alpha_r: 0.005,
    beta_r: 1e-4,
    gamma: 1.5,
};

/// A job that was timed on so many replicas, with so much noise in its gradients.
fn timed(replicas: u32, var: f64) -> Elastic {
    Elastic {
        throughput: Some(THETA),
        gradient: Gradient { sqr: 1.0, var },
        limits: LIMITS,
        replicas_max: 2 * replicas,
        restarts: 0,
        age_s: 600.0,
    }
}

fn new() -> Elastic {
    Elastic { throughput: None, replicas_max: 1, age_s: 0.0, ..timed(1, 1.0) }
}

fn candidate<'a>(id: u64, elastic: &'a Elastic, current: &'a [u16], left: f64) -> Candidate<'a> {
    Candidate {
        id: JobId(id),
        elastic,
        current,
        work_done: 10_000.0,
        work_left: left,
        replicas_min: 1,
        replicas_max: 64,
        attained_gpu_s: 0.0,
        rescale_s: 30.0,
        restart_left_s: 0.0,
        priority: 1.0,
        rates: None,
    }
}

fn planned(gpus: &[u16], jobs: &[Candidate<'_>]) -> Vec<Vec<u16>> {
    let rows = plan(gpus, jobs, &mut Memory::default(), &Settings::default()).rows;
    assert_eq!(rows.len(), jobs.len());
    for (node, gpus) in gpus.iter().enumerate() {
        assert!(rows.iter().map(|row| row[node]).sum::<u16>() <= *gpus, "{rows:?}");
    }
    rows
}

fn sum(row: &[u16]) -> u16 {
    row.iter().sum()
}

#[test]
fn a_new_job_starts_at_once_on_one_node() {
    let elastic = new();
    let rows = planned(&[4; 16], &[candidate(1, &elastic, &[0; 16], 40_000.0)]);
    assert_eq!(sum(&rows[0]), 4);
    assert_eq!(rows[0].iter().filter(|here| **here > 0).count(), 1);
}

#[test]
fn a_job_grows_to_four_times_what_it_was_timed_at_where_its_noise_is_worth_it() {
    let mut current = vec![0; 16];
    current[3] = 4;
    let (noisy, quiet) = (timed(4, 1000.0), timed(4, 0.001));
    let wide = planned(&[4; 16], &[candidate(1, &noisy, &current, 40_000.0)]);
    assert_eq!(sum(&wide[0]), 16);
    assert_eq!(wide[0].iter().filter(|here| **here == 4).count(), 4);
    // Large batches teach it nothing now: it waits for its noise to grow.
    let still = planned(&[4; 16], &[candidate(1, &quiet, &current, 40_000.0)]);
    assert_eq!(still[0], current);
}

#[test]
fn a_job_gets_its_least_replicas_or_none() {
    let (first, grown) = (new(), timed(2, 100.0));
    for elastic in [&first, &grown] {
        let least =
            |least| Candidate { replicas_min: least, ..candidate(1, elastic, &[0; 4], 40_000.0) };
        let given = |gpus: &[u16], count| sum(&planned(gpus, &[least(count)])[0]);
        assert!(given(&[4, 4, 0, 0], 7) >= 7);
        assert_eq!(given(&[4, 2, 0, 0], 7), 0, "there are six");
    }
}

#[test]
fn the_shorter_job_comes_first_and_who_keeps_his_replicas_keeps_his_nodes() {
    let elastic = timed(8, 1000.0);
    let (short, long) = ([0, 4, 0, 0], [4, 0, 4, 4]);
    let jobs = [candidate(1, &elastic, &long, 1e7), candidate(2, &elastic, &short, 20_000.0)];
    let rows = planned(&[4; 4], &jobs);
    assert!(sum(&rows[1]) > sum(&rows[0]), "{rows:?}");
    let jobs = [candidate(1, &elastic, &rows[0], 1e7), candidate(2, &elastic, &rows[1], 20_000.0)];
    assert_eq!(planned(&[4; 4], &jobs), rows);
}

#[test]
fn what_is_remembered_changes_nothing() {
    let (elastic, other) = (timed(2, 50.0), new());
    let mut memory = Memory::default();
    let mut currents = vec![vec![0_u16; 4]; 3];
    for left in [90_000.0, 60_000.0, 30_000.0, 1_000.0] {
        let before = currents.clone();
        let jobs = [
            candidate(1, &elastic, &before[0], left),
            candidate(2, &elastic, &before[1], 2.0 * left),
            candidate(3, &other, &before[2], left),
        ];
        currents = plan(&[4; 4], &jobs, &mut memory, &Settings::default()).rows;
        assert_eq!(currents, planned(&[4; 4], &jobs));
    }
}

#[test]
fn hostile_numbers_give_no_more_than_there_is() {
    let numbers = [0.0, -1.0, f64::NAN, f64::INFINITY, 1e308, 9.3e18, 1e-308];
    let sound = timed(4, 100.0);
    for number in numbers {
        let mut odd = timed(4, number);
        odd.age_s = number;
        let nothing = Elastic { limits: Limits { initial: 0, local_min: 0, ..LIMITS }, ..new() };
        let broken = Throughput { alpha_c: number, gamma: number, ..THETA };
        let broken = Elastic { throughput: Some(broken), ..timed(u32::MAX / 2, 1.0) };
        for elastic in [&odd, &nothing, &broken] {
            let mut job = candidate(1, elastic, &[0, 2, 0], number);
            (job.work_done, job.attained_gpu_s, job.restart_left_s) = (number, number, number);
            job.priority = if number > 0.0 { number } else { 1.0 };
            let jobs = [job, candidate(2, &sound, &[4, 0, 0], 1000.0)];
            planned(&[4, 4, 0], &jobs);
        }
    }
    assert!(planned(&[], &[candidate(1, &sound, &[], 1.0)])[0].is_empty());
    assert!(planned(&[4], &[]).is_empty());
}

#[test]
fn the_second_job_of_a_model_is_known_from_its_start() {
    let settings = Settings::default();
    let sizes = || [(1, false), (4, false), (16, true)].into_iter();
    let mut shared = Shared::default();
    assert_eq!(shared.rates(sizes(), &LIMITS, (0.0, None), &settings), None);
    let rows = [(1, 1), (1, 4), (2, 8), (4, 16)].map(|(nodes, replicas)| {
        let spread = Spread::new(nodes, replicas);
        let (grad_s, optim_s) = (THETA.grad_s(128), THETA.optim_s(spread, 128));
        Observation { spread, local: 128, grad_s, optim_s }
    });
    shared.time(&rows);
    shared.see(0.0, Gradient { sqr: 1.0, var: 0.1 });
    shared.see(0.2, Gradient { sqr: 1.0, var: 100.0 });
    let rates = shared.rates(sizes(), &LIMITS, (0.0, None), &settings).unwrap();
    let (now, later) = rates[&(16, true)];
    assert!(later > 2.0 * now, "{rates:?}");
    // Later sixteen are worth more than four; at first, not twice as much.
    assert!(later > 2.0 * rates[&(4, false)].1 && now < 2.0 * rates[&(4, false)].0, "{rates:?}");
}
