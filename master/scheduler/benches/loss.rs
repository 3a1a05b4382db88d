//! What a refit of Eqn. (1) costs after each new epoch, beside a fit from nothing.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::time::Duration;

use scheduler::estimate::loss::{LossFitter, LossPoint, Options, curve, fit};

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
    println!("points  push+refit (median)  cold fit (median)");
    for (count, noise) in [(50_u32, 0.05), (200, 0.05), (380, 0.05), (2_000, 0.05), (380, 0.0)] {
        let points: Vec<LossPoint> = (1..=count + 100)
            .map(|epoch| {
                let step = f64::from(epoch) * 100.0;
                // Even enough for a bench, and the same everywhere.
                let chance = f64::from(epoch.wrapping_mul(2_654_435_761) >> 8) / 8_388_608.0 - 1.0;
                let loss = curve([0.002, 0.5, 0.3], step) * (1.0 + 1.7 * noise * chance);
                LossPoint { step, loss }
            })
            .collect();
        let known = points.len() - 100;
        let mut fitter = LossFitter::new(&Options::default());
        for point in &points[..known] {
            fitter.push(*point);
        }
        let first = fitter.fit();
        let mut warm = Vec::new();
        let mut cold = Vec::new();
        for (at, point) in points.iter().enumerate().skip(known) {
            let (refit, time) = timed(|| {
                fitter.push(*point);
                fitter.fit()
            });
            warm.push(time);
            let (whole, time) = timed(|| fit(&points[..=at]));
            cold.push(time);
            assert_eq!(refit.is_ok(), whole.is_ok(), "both see the same losses");
        }
        assert!(first.is_ok(), "the curve falls");
        println!("{count:>6}  {:>19.1?}  {:>17.1?}  noise {noise}", median(warm), median(cold));
    }
}
