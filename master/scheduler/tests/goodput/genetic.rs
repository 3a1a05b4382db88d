//! The genetic search.

use model::JobId;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use scheduler::goodput::genetic::{Candidate, Population, Settings, fair_share, judge, search};
use scheduler::goodput::{Elastic, Gradient, Limits, Spread, Throughput};
use serde_json::Value;

use crate::recorded::{gradient, limits, list, model, number, records, whole};

fn row(value: &Value) -> Vec<u16> {
    list(value).iter().map(|cell| u16::try_from(whole(cell)).unwrap()).collect()
}

#[test]
fn fitness_is_as_recorded() {
    for record in records("fitness.json") {
        let nodes = usize::try_from(whole(&record["nodes"])).unwrap();
        let gpus = vec![u16::try_from(whole(&record["gpus_per_node"])).unwrap(); nodes];
        let bert = Value::from("bert");
        let elastic = |job: &Value| Elastic {
            throughput: (!job["params"].is_null()).then(|| model(&job["params"])),
            gradient: if job["grad"].is_null() {
                Gradient { sqr: 1.0, var: 1.0 }
            } else {
                gradient(&job["grad"])
            },
            // A job that was never measured has no application either.
            limits: limits(if job["app"].is_null() { &bert } else { &job["app"] }),
            replicas_max: 64,
            restarts: whole(&job["num_restarts"]),
            age_s: number(&job["age"]),
        };
        let elastics: Vec<Elastic> = list(&record["jobs"]).iter().map(elastic).collect();
        let rows: Vec<Vec<u16>> = list(&record["base"]).iter().map(row).collect();
        let jobs: Vec<Candidate<'_>> = candidates(&elastics, &rows);
        let states = list(&record["states"]).iter().zip(list(&record["speedups"]));
        for (at, (state, speedups)) in states.enumerate() {
            let state: Vec<Vec<u16>> = list(state).iter().map(row).collect();
            let judged = judge(&gpus, &jobs, &state, &Settings::default()).unwrap();
            for (found, wanted) in judged.speedups.iter().zip(list(speedups)) {
                let wanted = number(wanted);
                assert!((found - wanted).abs() <= 1e-6 * wanted, "{found} for {wanted}");
            }
            for (found, wanted) in
                [(judged.fitness, &record["fitness"]), (judged.utility, &record["utility"])]
            {
                let wanted = number(&wanted[at]);
                assert!((found - wanted).abs() <= 1e-6 * wanted, "{found} for {wanted}");
            }
        }
    }
}

fn candidates<'a>(elastics: &'a [Elastic], rows: &'a [Vec<u16>]) -> Vec<Candidate<'a>> {
    let candidate = |((elastic, row), id): ((&'a Elastic, &'a Vec<u16>), u64)| Candidate {
        id: JobId(id),
        elastic,
        current: row,
        attained_gpu_s: 0.0,
        submitted_s: 0.0,
    };
    elastics.iter().zip(rows).zip(1..).map(candidate).collect()
}

fn job(speed: f64, noise: f64, replicas_max: u32) -> Elastic {
    Elastic {
        throughput: Some(Throughput {
            alpha_c: 0.05,
            beta_c: 0.002 / speed,
            alpha_n: 0.06,
            beta_n: 0.002,
            alpha_r: 0.03,
            beta_r: 0.001,
            gamma: 1.6,
        }),
        gradient: Gradient { sqr: 1.0, var: noise },
        limits: Limits {
            initial: 64,
            batch_max: 2048,
            local_min: 16,
            local_max: 256,
            accumulation: true,
        },
        replicas_max,
        restarts: 1,
        age_s: 3600.0,
    }
}

/// Whether a state obeys every limit of the cluster.
fn obeys(gpus: &[u16], jobs: &[Candidate<'_>], state: &[Vec<u16>], settings: &Settings) {
    for (node, gpus) in gpus.iter().enumerate() {
        let used: u16 = state.iter().map(|row| row[node]).sum();
        assert!(used <= *gpus, "node {node} has {gpus}, {used} are used");
        let wide =
            |row: &&Vec<u16>| row[node] > 0 && row.iter().filter(|here| **here > 0).count() > 1;
        assert!(!settings.avoids_interference || state.iter().filter(wide).count() <= 1);
    }
    for (row, job) in state.iter().zip(jobs) {
        let replicas: u32 = row.iter().map(|here| u32::from(*here)).sum();
        assert!(replicas <= job.elastic.replicas_max);
        let nodes = u32::try_from(row.iter().filter(|here| **here > 0).count()).unwrap();
        assert!(nodes <= settings.job_nodes_max);
    }
}

#[test]
fn answers_obey_the_limits_and_are_the_same_again() {
    let mut stream = Pcg64Mcg::seed_from_u64(5);
    let settings = Settings { generations: 20, population: 30, ..Settings::default() };
    for turn in 0..16_u32 {
        let mut chance = |most: u32| stream.next_u32() % most;
        let gpus: Vec<u16> = (0..=chance(40)).map(|_| u16::try_from(chance(6)).unwrap()).collect();
        let elastics: Vec<Elastic> = (0..chance(30))
            .map(|_| job(f64::from(1 + chance(9)), f64::from(chance(500)), 1 + chance(20)))
            .collect();
        let mut left = gpus.clone();
        let rows: Vec<Vec<u16>> = elastics
            .iter()
            .map(|_| {
                let mut row = vec![0; gpus.len()];
                let node = usize::try_from(chance(41)).unwrap() % gpus.len();
                row[node] = left[node].min(1);
                left[node] -= row[node];
                row
            })
            .collect();
        let settings = Settings {
            avoids_interference: turn % 3 > 0,
            job_nodes_max: 1 + chance(16),
            ..settings
        };
        let jobs = candidates(&elastics, &rows);
        let (mut first, mut second) = (Population::default(), Population::default());
        for round in 0..3 {
            let run = |population| {
                let mut stream = Pcg64Mcg::seed_from_u64(round);
                search(&gpus, &jobs, population, &mut stream, &settings)
            };
            let state = run(&mut first);
            obeys(&gpus, &jobs, &state, &settings);
            assert_eq!(state, run(&mut second));
        }
    }
}

/// Small enough to look at every state: the search finds the fittest.
#[test]
fn finds_the_fittest_of_all_states() {
    let gpus = [2, 2];
    let elastics = [job(1.0, 300.0, 4), job(4.0, 20.0, 4), job(2.0, 100.0, 2)];
    let rows = [vec![2, 0], vec![0, 0], vec![0, 1]];
    let jobs = candidates(&elastics, &rows);
    let settings = Settings::default();
    let all: Vec<Vec<u16>> = (0..9).map(|at| vec![at / 3, at % 3]).collect();
    let mut best = 0.0;
    for a in &all {
        for b in &all {
            for c in &all {
                let state = [a.clone(), b.clone(), c.clone()];
                let wide = state.iter().filter(|row| row[0] > 0 && row[1] > 0).count();
                let fits = (0..2).all(|node| state.iter().map(|row| row[node]).sum::<u16>() <= 2);
                if fits
                    && wide <= 1
                    && let Some(judged) = judge(&gpus, &jobs, &state, &settings)
                {
                    best = judged.fitness.max(best);
                }
            }
        }
    }
    for seed in 0..5 {
        let mut stream = Pcg64Mcg::seed_from_u64(seed);
        let found = search(&gpus, &jobs, &mut Population::default(), &mut stream, &settings);
        let fitness = judge(&gpus, &jobs, &found, &settings).unwrap().fitness;
        assert!((fitness - best).abs() < 1e-12, "{fitness} of {best}: {found:?}");
    }
}

/// Rounds go on from the last population: with few generations each, they come to more than one
/// round of as few.
#[test]
fn a_population_goes_on_from_round_to_round() {
    let gpus = [4; 16];
    let elastics: Vec<Elastic> = (1..=40_u32)
        .map(|at| job(f64::from(at % 7 + 1), f64::from(at * 13), 1 + at % 12))
        .collect();
    let rows = vec![vec![0; 16]; 40];
    let jobs = candidates(&elastics, &rows);
    let settings = Settings { generations: 10, ..Settings::default() };
    let mut stream = Pcg64Mcg::seed_from_u64(1);
    let mut population = Population::default();
    let mut fitness = Vec::new();
    for _ in 0..10 {
        let state = search(&gpus, &jobs, &mut population, &mut stream, &settings);
        obeys(&gpus, &jobs, &state, &settings);
        fitness.push(judge(&gpus, &jobs, &state, &settings).unwrap().fitness);
    }
    assert!(fitness.is_sorted(), "the fittest is never lost: {fitness:?}");
    assert!(fitness[9] > 1.2 * fitness[0], "{fitness:?}");
    // Jobs that are gone and new ones do not disturb the rest.
    let fewer = &jobs[5..];
    let state = search(&gpus, fewer, &mut population, &mut stream, &settings);
    let after = judge(&gpus, fewer, &state, &settings).unwrap().fitness;
    assert!(after > fitness[0], "{after}");
    population.clear();
    let state = search(&gpus[..9], &jobs, &mut population, &mut stream, &settings);
    obeys(&gpus[..9], &jobs, &state, &settings);
}

#[test]
fn a_fair_share_is_even() {
    assert_eq!(fair_share(16, 64, 40), Spread::new(1, 2));
    assert_eq!(fair_share(16, 64, 64), Spread::new(1, 1));
    assert_eq!(fair_share(16, 64, 1), Spread::new(1, 64));
    assert_eq!(fair_share(0, 0, 0), Spread::new(1, 1));
}

#[test]
fn nothing_to_share_is_no_trouble() {
    let elastics = [job(1.0, 1.0, 4), Elastic { throughput: None, ..job(1.0, f64::NAN, 0) }];
    let rows = [vec![1, 0, 0], vec![]];
    let jobs = candidates(&elastics, &rows);
    let settings = Settings::default();
    let mut stream = Pcg64Mcg::seed_from_u64(1);
    let mut run = |gpus: &[u16], jobs: &[Candidate<'_>], settings: &Settings| {
        search(gpus, jobs, &mut Population::default(), &mut stream, settings)
    };
    assert_eq!(run(&[], &jobs, &settings), vec![Vec::<u16>::new(); 2]);
    assert_eq!(run(&[0, 0], &jobs, &settings), vec![vec![0; 2]; 2]);
    assert_eq!(run(&[4], &[], &settings), Vec::<Vec<u16>>::new());
    let none = Settings { population: 0, generations: 0, ..settings };
    assert_eq!(run(&[4, 4, 4], &jobs, &none), vec![vec![1, 0, 0], vec![0; 3]]);
    let odd = Settings { rescale_s: f64::NAN, ..settings };
    let state = run(&[4, u16::MAX, 0], &jobs, &odd);
    assert!(state[1] == [0; 3] && state[0][2] == 0 && state[0][1] <= 42, "{state:?}");
}

#[test]
fn hostile_jobs_and_wide_clusters_end() {
    let mut elastics = vec![job(1.0, 1.0, u32::MAX); 3];
    elastics[0].age_s = f64::NAN;
    elastics[1].age_s = f64::INFINITY;
    elastics[1].restarts = u32::MAX;
    elastics[2].throughput = Some(Throughput { gamma: f64::NAN, ..Throughput::default() });
    let rows = vec![vec![u16::MAX; 3]; 3];
    let mut jobs = candidates(&elastics, &rows);
    jobs[0].attained_gpu_s = f64::NAN;
    jobs[1].submitted_s = f64::NEG_INFINITY;
    let settings = Settings { generations: 2, population: 4, ..Settings::default() };
    for nodes in [1, 17, 200, 1100] {
        let gpus = vec![4; nodes];
        let mut stream = Pcg64Mcg::seed_from_u64(1);
        let state = search(&gpus, &jobs, &mut Population::default(), &mut stream, &settings);
        obeys(&gpus, &jobs, &state, &settings);
    }
}
