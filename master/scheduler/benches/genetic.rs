//! What rounds of the full genetic search cost, 100 states over 100 generations, on 16 nodes of 4
//! GPUs: each round carries out the last one's answer, and the moments of all jobs have moved.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::time::Duration;

use model::JobId;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use scheduler::goodput::genetic::{Candidate, Population, Settings, judge, search};
use scheduler::goodput::{Elastic, Gradient, Limits, Throughput};

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = std::time::Instant::now();
    let result = work();
    (result, start.elapsed())
}

fn job(at: u32) -> Elastic {
    // Limits of cifar10, deepspeech2, bert and yolov3.
    let (initial, batch_max, local_min, local_max) =
        [(128, 4096, 32, 1024), (20, 640, 10, 80), (12, 384, 4, 12), (8, 512, 4, 8)]
            [usize::try_from(at % 4).expect("below 4")];
    let limits = Limits { initial, batch_max, local_min, local_max, accumulation: true };
    let pass_s = 0.03 + 0.01 * f64::from(at % 9);
    Elastic {
        throughput: Some(Throughput {
            alpha_c: pass_s,
            beta_c: pass_s / f64::from(initial),
            alpha_n: 0.06,
            beta_n: 0.002,
            alpha_r: 0.03,
            beta_r: 0.001,
            gamma: 1.6,
        }),
        gradient: Gradient { sqr: 1.0, var: f64::from(1 + at % 11) },
        limits,
        replicas_max: 1,
        restarts: 0,
        age_s: 60.0 * f64::from(1 + at),
    }
}

fn main() {
    println!("jobs  median a round   slowest   fitness at the end");
    let gpus = [4_u16; 16];
    for count in [1_u32, 2, 3, 5, 10, 20, 40, 60, 100] {
        let mut elastics: Vec<Elastic> = (0..count).map(job).collect();
        let mut rows = vec![vec![0_u16; gpus.len()]; elastics.len()];
        let mut attained = vec![0.0; elastics.len()];
        let mut population = Population::default();
        let mut stream = Pcg64Mcg::seed_from_u64(1);
        let mut times = Vec::new();
        let mut fitness = 0.0;
        for _ in 0..40 {
            let jobs: Vec<Candidate<'_>> = elastics
                .iter()
                .zip(&rows)
                .zip(&attained)
                .zip(1..)
                .map(|(((elastic, current), attained_gpu_s), id)| Candidate {
                    id: JobId(id),
                    elastic,
                    current,
                    attained_gpu_s: *attained_gpu_s,
                    submitted_s: 0.0,
                })
                .collect();
            let settings = Settings::default();
            let (state, time) =
                timed(|| search(&gpus, &jobs, &mut population, &mut stream, &settings));
            times.push(time);
            fitness = judge(&gpus, &jobs, &state, &settings).expect("obeys").fitness;
            for (at, elastic) in elastics.iter_mut().enumerate() {
                let replicas: u16 = state[at].iter().sum();
                elastic.restarts += u32::from(rows[at] != state[at]);
                elastic.replicas_max = elastic.replicas_max.max(2 * u32::from(replicas)).min(64);
                elastic.gradient.var *= 1.02;
                elastic.age_s += 60.0;
                attained[at] += 60.0 * f64::from(replicas);
            }
            rows = state;
        }
        times.sort();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{count:>4}  {median:>14.2?}  {most:>8.2?}  {fitness:.5}");
    }
}
