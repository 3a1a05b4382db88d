//! What a fit of the throughput model costs, from nothing and from the last one.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::time::Duration;

use scheduler::goodput::fit::{Observation, fit, objective};
use scheduler::goodput::{Spread, Throughput};

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = std::time::Instant::now();
    let result = work();
    (result, start.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn main() {
    println!("rows  cold (median)  warm (median)  objective cold, warm");
    let theta = Throughput {
        alpha_c: 0.05,
        beta_c: 0.002,
        alpha_n: 0.2,
        beta_n: 0.004,
        alpha_r: 0.08,
        beta_r: 0.001,
        gamma: 1.6,
    };
    for count in [1_u32, 3, 10, 20, 50, 100, 200, 400] {
        // Even enough for a bench, and the same everywhere.
        let chance =
            |seed: u32| f64::from(seed.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
        let rows: Vec<Observation> = (0..=count)
            .map(|row| {
                let replicas = 1 << (row * 5 / (count + 1));
                let spread = Spread::new(u32::div_ceil(replicas, 4), replicas);
                let local = 16 + (row * 37) % 241;
                let noise = 0.9 + 0.2 * chance(row + 1);
                let grad_s = theta.grad_s(local) * noise;
                let optim_s = theta.optim_s(spread, local) * (0.95 + 0.1 * chance(row + 999));
                Observation { spread, local, grad_s, optim_s }
            })
            .collect();
        let known = &rows[..rows.len() - 1];
        let last = fit(known, None).expect("sound rows");
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        let mut found = (0.0, 0.0);
        for _ in 0..301 {
            let (theta, time) = timed(|| fit(&rows, None).expect("sound rows"));
            cold.push(time);
            found.0 = objective(&theta, &rows).expect("sound rows");
            let (theta, time) = timed(|| fit(&rows, Some(&last)).expect("sound rows"));
            warm.push(time);
            found.1 = objective(&theta, &rows).expect("sound rows");
        }
        let (cold, warm) = (median(cold), median(warm));
        println!("{count:>4}  {cold:>13.1?}  {warm:>13.1?}  {:.6}, {:.6}", found.0, found.1);
    }
}
