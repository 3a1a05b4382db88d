//! The convergence curve: known curves found again, least squares, outliers, restarts, refusals.

use proptest::prelude::*;
use scheduler::estimate::loss::{
    LossFitter, LossPoint, Options, curve, fit, fit_with, forecast, remaining_epochs,
};

use crate::loss_world::{Chance, Noise, assert_close, is, losses, number, rows, series, squares};

const FIG_05_CURVES: &str = include_str!("../data/fig05_loss_curves.csv");
const FIG_05_FITS: &str = include_str!("../data/fig05_eq1_fits.csv");

#[test]
fn figure_5_gives_its_coefficients() {
    for row in rows(FIG_05_FITS) {
        let found = fit(&series(FIG_05_CURVES, row[0])).unwrap();
        let expected = [number(row[2]), number(row[3]), number(row[4])];
        assert_close(&found.beta, &expected, 5e-4);
        assert!(found.rmse <= number(row[5]) + 2e-5, "{}: {}", row[0], found.rmse);
        assert_eq!(found.outliers, [], "{}", row[0]);
    }
}

#[test]
fn noise_free_curves_give_their_coefficients_at_any_scale() {
    let mut chance = Chance(1);
    for (case, count) in
        [6, 20, 100, 399, 400, 401, 2_000].into_iter().cycle().take(140).enumerate()
    {
        let mut beta = chance.beta(f64::from(count));
        if case % 9 == 0 {
            beta[2] = 0.0;
        }
        let (steps, scale) = (chance.between(1.0, 1e9), chance.between(1e-6, 1e6));
        let scaled = [beta[0] / steps / scale, beta[1] / scale, beta[2] * scale];
        // From step 0 or from step 1.
        let from = u32::from(case % 2 == 0);
        let points: Vec<LossPoint> = (from..from + count)
            .map(|k| f64::from(k) * steps)
            .map(|step| LossPoint { step, loss: curve(scaled, step) })
            .collect();
        let found = fit(&points).unwrap();
        for (found, expected) in found.beta.iter().zip(scaled) {
            let unit = if expected > 0.0 { expected } else { scale };
            assert!(
                (found - expected).abs() <= 1e-6 * unit,
                "{found} for {expected} of {scaled:?}"
            );
        }
        assert!(found.points <= 400 && found.rmse <= 1e-6 * found.scale, "{found:?}");
        assert_eq!(found.outliers, []);
        assert!(is(found.since_step, 0.0));
        assert!((found.loss_at(points[3].step) - points[3].loss).abs() <= 1e-9 * found.scale);
        let largest = points.iter().map(|point| point.loss).fold(0.0, f64::max);
        assert!((found.scale - largest).abs() <= 1e-12 * largest);
    }
}

/// Levenberg and Marquardt's method in ln β0, ln β1 and √β2 from many starts, by Cramer's rule:
/// shares nothing with the crate. The least squares found.
fn multi_start(points: &[LossPoint]) -> f64 {
    let top = points.iter().map(|point| point.loss).fold(0.0, f64::max);
    let end = points.last().unwrap().step;
    let mut least = f64::INFINITY;
    for floor in [0.0, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95] {
        for bend in [0.5, 2.0, 10.0, 60.0] {
            for start in [0.2, 1.0] {
                let start = [bend / end / top, start / top, 0.9 * floor * top];
                least = least.min(descend(points, start));
            }
        }
    }
    least
}

fn descend(points: &[LossPoint], start: [f64; 3]) -> f64 {
    let beta = |t: [f64; 3]| [t[0].exp(), t[1].exp(), t[2] * t[2]];
    let mut at = [start[0].ln(), start[1].ln(), start[2].sqrt()];
    let mut least = squares(beta(at), points);
    let mut damping = 1e-3;
    for _ in 0..200 {
        let [b0, b1, _] = beta(at);
        let (mut normal, mut right) = ([[0.0; 3]; 3], [0.0; 3]);
        for point in points {
            let u = b0 * point.step + b1;
            let slopes = [-point.step * b0 / (u * u), -b1 / (u * u), 2.0 * at[2]];
            let error = point.loss - curve(beta(at), point.step);
            for i in 0..3 {
                right[i] += error * slopes[i];
                for j in 0..3 {
                    normal[i][j] += slopes[i] * slopes[j];
                }
            }
        }
        let before = least;
        for _ in 0..15 {
            let mut damped = normal;
            for i in 0..3 {
                damped[i][i] = normal[i][i] * (1.0 + damping) + 1e-14;
            }
            let whole = determinant(damped);
            let next = [0, 1, 2].map(|column: usize| {
                let mut replaced = damped;
                for i in 0..3 {
                    replaced[i][column] = right[i];
                }
                at[column] + determinant(replaced) / whole
            });
            let there = squares(beta(next), points);
            if there < least {
                (at, least) = (next, there);
                damping *= 0.2;
                break;
            }
            damping *= 4.0;
        }
        if least > before * (1.0 - 1e-10) {
            break;
        }
    }
    least
}

fn determinant(m: [[f64; 3]; 3]) -> f64 {
    m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
}

#[test]
fn the_squared_error_in_loss_is_least_under_noise() {
    let mut chance = Chance(2);
    let mut dropped = 0;
    for case in 0..60 {
        let noise = if case % 2 == 0 { Noise::Share(0.05) } else { Noise::Even(0.05) };
        let beta = chance.beta(100.0);
        let points = losses(beta, [50, 100, 150][case % 3], noise, &mut chance);
        let found = fit(&points).unwrap();
        let best = multi_start(&points);
        let ours = squares(found.beta, &points);
        assert!(ours <= 1.01 * best, "{ours} and {best} of {beta:?}");
        assert!(found.beta.iter().all(|value| *value >= 0.0));
        dropped += found.outliers.len();
    }
    // The paper's rule alone drops a quarter of these 6,000.
    assert!(dropped <= 12, "{dropped} good points dropped");
}

#[test]
fn gross_outliers_are_dropped_and_do_no_harm() {
    let mut chance = Chance(3);
    let (mut planted, mut found_of_planted) = (0, 0);
    for case in 0..60 {
        let count = [100, 200, 300][case % 3];
        let beta = chance.beta(100.0);
        let mut points = losses(beta, count, Noise::Share(0.05), &mut chance);
        let mut bad = Vec::new();
        for _ in 0..count / 100 {
            let at = chance.below(points.len());
            let factor = if chance.uniform() < 0.7 { chance.between(2.5, 30.0) } else { 0.2 };
            points[at].loss = curve(beta, points[at].step) * factor;
            bad.push(points[at].step);
        }
        let found = fit(&points).unwrap();
        let good: Vec<LossPoint> =
            points.iter().filter(|point| !bad.contains(&point.step)).copied().collect();
        let (ours, best) = (squares(found.beta, &good), multi_start(&good));
        assert!(ours <= 1.02 * best, "{ours} and {best} of {beta:?}, bad {bad:?}: {found:?}");
        planted += bad.len();
        found_of_planted += bad.iter().filter(|step| found.outliers.contains(step)).count();
    }
    assert!(found_of_planted * 20 >= planted * 19, "{found_of_planted} of {planted}");
}

#[test]
fn a_bad_point_of_an_epoch_goes_alone() {
    let beta = [0.0004, 0.5, 0.3];
    let mut points: Vec<LossPoint> = (1..=300)
        .map(|at| f64::from(at) * 100.0)
        .map(|step| LossPoint { step, loss: curve(beta, step) })
        .collect();
    points[156].loss = 40.0;
    let options = Options { steps_per_epoch: Some(1000.0), ..Options::default() };
    let found = fit_with(&points, &options).unwrap();
    assert_eq!(found.outliers, [15_700.0]);
    assert_close(&found.beta, &beta, 1e-7);
    assert_eq!(found.points, 299);
    assert!((found.scale - points[0].loss).abs() < 1e-12, "the csv's own largest loss");
    // Three epochs show no outlier, but enough points for a curve.
    let found = fit_with(&points[..30], &options).unwrap();
    assert_eq!(found.points, 30);
}

/// Eqn. (1) up to a step of the learning rate at 40, another one from there on.
fn two_levels(second: [f64; 3], noise: f64) -> Vec<LossPoint> {
    let mut chance = Chance(5);
    (0..90)
        .map(f64::from)
        .map(|step| {
            let exact = if step < 40.0 {
                curve([0.05, 0.8, 0.6], step)
            } else {
                curve(second, step - 40.0)
            };
            LossPoint { step, loss: exact * (1.0 + noise * chance.normal()) }
        })
        .collect()
}

#[test]
fn a_learning_rate_step_starts_a_new_fit_announced_or_seen() {
    let second = [0.5, 5.0, 0.2];
    let points = two_levels(second, 0.0);
    let announced = Options { rate_steps: &[40.0], ..Options::default() };
    for options in [announced, Options::default()] {
        let found = fit_with(&points, &options).unwrap();
        assert!(is(found.since_step, 40.0), "{options:?}");
        // k counts in the csv's steps: β1 holds the shift.
        assert_close(&found.beta, &[0.5, 5.0 - 0.5 * 40.0, 0.2], 1e-6);
        assert!((found.loss_at(70.0) - curve(second, 30.0)).abs() < 1e-9);
        assert_eq!(found.points, 50);
        assert!((found.scale - points[0].loss).abs() < 1e-12, "drops count from the largest seen");
        let end = forecast(&found, &points, None, 0.001, 1).unwrap().converged_at_step;
        let drop = |end: f64| (curve(second, end - 41.0) - curve(second, end - 40.0)) / found.scale;
        assert!(drop(end) < 0.001 && drop(end - 1.0) >= 0.001, "{end}");
        let never = forecast(&found, &points, None, 0.9, 2).unwrap();
        assert!(is(never.converged_at_step, 42.0), "epochs before the restart do not count");
    }
    for noise in [0.005, 0.02] {
        let noisy = two_levels(second, noise);
        assert!(is(fit(&noisy).unwrap().since_step, 40.0));
    }
    // Up again, where a warm restart raises the rate.
    let found = fit(&two_levels([0.05, 0.5, 0.2], 0.005)).unwrap();
    assert!(is(found.since_step, 40.0));
    // Not before the new level has lasted for five points; where it was announced there is no
    // answer before.
    assert!(is(fit(&points[..42]).unwrap().since_step, 0.0));
    assert!(!fit(&points[..44]).is_ok_and(|found| found.since_step > 0.0));
    assert!(is(fit(&points[..46]).unwrap().since_step, 40.0));
    let error = fit_with(&points[..43], &announced).unwrap_err();
    assert!(error.reason.contains("learning rate changed at step 40"), "{error}");
    // A rate that moves with every point starts no fit.
    let moving: Vec<f64> = (1..90).map(f64::from).collect();
    let found = fit_with(&points[..40], &Options { rate_steps: &moving, ..Options::default() });
    assert!(is(found.unwrap().since_step, 0.0));
    // Nor do steps that lie ahead, or are none.
    let ahead = [f64::NAN, f64::INFINITY, -3.0, 0.0, 1000.0];
    let found = fit_with(&points[..40], &Options { rate_steps: &ahead, ..Options::default() });
    assert!(is(found.unwrap().since_step, 0.0));
}

#[test]
fn noise_is_no_change_of_level() {
    let mut chance = Chance(6);
    for noise in [0.01, 0.05, 0.1] {
        for _ in 0..40 {
            let points = losses(chance.beta(200.0), 200, Noise::Share(noise), &mut chance);
            if let Ok(found) = fit(&points) {
                assert!(is(found.since_step, 0.0));
            }
        }
    }
}

#[test]
fn spikes_are_dropped_and_too_little_is_unknown() {
    let beta = [0.4, 0.5, 0.3];
    let mut points = losses(beta, 30, Noise::Even(0.0), &mut Chance(1));
    points[12].loss = 40.0;
    points[20].loss = 0.001;
    points[25].loss = f64::NAN;
    points.push(LossPoint { step: f64::INFINITY, loss: 1.0 });
    let found = fit(&points).unwrap();
    assert_eq!(found.outliers, [13.0, 21.0]);
    assert_eq!(found.points, 27);
    assert!((found.scale - points[0].loss).abs() < 1e-12, "the spike is no scale");
    assert_close(&found.beta, &beta, 1e-9);

    let reason = |points: &[LossPoint]| fit(points).unwrap_err().reason;
    assert!(reason(&points[..4]).contains("5 are needed"));
    assert!(reason(&[]).contains("5 are needed"));
    let made = |loss: &dyn Fn(f64) -> f64| -> Vec<LossPoint> {
        (0..40).map(f64::from).map(|step| LossPoint { step, loss: loss(step) }).collect()
    };
    assert!(reason(&made(&|_| f64::NAN)).contains("finite"));
    assert!(reason(&made(&|_| 0.7)).contains("flat"));
    assert!(reason(&made(&|_| 0.0)).contains("zero"));
    assert!(reason(&made(&|step| 0.1 + step)).contains("rising"));
    assert!(reason(&made(&|step| (step - 25.0).abs())).contains("rising"));
    assert!(reason(&made(&|step| 1.0 - step)).contains("below zero"));
    // Noise around a constant is no fall, whatever its seed.
    let mut flat = 0;
    for seed in 0..50 {
        let points = losses([0.0, 1.0, 0.0], 60, Noise::Even(0.05), &mut Chance(seed));
        flat += u32::from(fit(&points).is_err());
    }
    assert!(flat >= 48, "{flat} of 50 seen as flat");
}

#[test]
fn a_million_points_cost_what_400_do() {
    let points: Vec<LossPoint> = (0..1_000_000)
        .map(|step| LossPoint {
            step: f64::from(step),
            loss: curve([1e-4, 0.5, 0.3], f64::from(step)),
        })
        .collect();
    let found = fit(&points).unwrap();
    assert!(found.points <= 400);
    assert_close(&found.beta, &[1e-4, 0.5, 0.3], 1e-6);
}

#[test]
fn the_fit_of_a_growing_run_is_that_of_its_points() {
    let mut chance = Chance(7);
    for case in 0..6 {
        let count = [60, 120, 700][case % 3];
        let beta = chance.beta(f64::from(count));
        let mut points = losses(beta, count, Noise::Share(0.03), &mut chance);
        points[20].loss *= 9.0;
        if case >= 3 {
            for point in &mut points[40..] {
                point.loss *= 0.4;
            }
        }
        let options = Options { rate_steps: &[30.0][..case % 2], ..Options::default() };
        let mut fitter = LossFitter::new(&options);
        for (at, point) in points.iter().enumerate() {
            assert!(fitter.push(*point));
            if at % 7 != 0 {
                continue;
            }
            match (fitter.fit(), fit_with(&points[..=at], &options)) {
                (Ok(warm), Ok(cold)) => {
                    assert_eq!((warm.points, &warm.outliers), (cold.points, &cold.outliers));
                    assert!(is(warm.since_step, cold.since_step) && is(warm.scale, cold.scale));
                    assert!((warm.rmse / cold.rmse - 1.0).abs() < 1e-9, "{warm:?} and {cold:?}");
                    for (step, loss) in
                        points[..=at].iter().map(|point| (point.step, cold.loss_at(point.step)))
                    {
                        let apart = (warm.loss_at(step) - loss).abs();
                        assert!(
                            apart < 1e-6 * cold.scale || step < cold.since_step,
                            "{apart} at {step}"
                        );
                    }
                }
                (Err(warm), Err(cold)) => assert_eq!(warm, cold),
                (warm, cold) => panic!("{warm:?} and {cold:?} after {at}"),
            }
        }
        assert!(!fitter.push(LossPoint { step: 3.0, loss: 1.0 }), "a point from the past");
        assert!(!fitter.push(LossPoint { step: 1e6, loss: f64::NAN }));
    }
}

fn any_points() -> impl Strategy<Value = Vec<LossPoint>> {
    let number = prop_oneof![prop::num::f64::ANY, 0.0..10.0_f64, Just(0.0), Just(1e30)];
    let point = (number.clone(), number).prop_map(|(step, loss)| LossPoint { step, loss });
    proptest::collection::vec(point, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_loss_makes_a_fit_panic(
        points in any_points(), steps in prop::num::f64::ANY, threshold in 0.0..1.0_f64,
        patience in any::<u32>(), epochs in any::<u32>(),
    ) {
        if let Ok(found) = fit(&points) {
            prop_assert!(found.beta.iter().all(|value| value.is_finite()));
            for steps in [steps, 10.0] {
                let epochs_seen: Vec<(u32, f64, f64)> =
                    points.iter().map(|point| (epochs / 2, point.step, point.loss)).collect();
                let left = remaining_epochs(&found, &epochs_seen, steps, threshold, patience, epochs);
                if let Ok(left) = left {
                    prop_assert!(0.0 <= left.low && left.low <= left.value);
                    prop_assert!(left.value <= left.high && left.high <= f64::from(epochs));
                }
            }
            for steps in [Some(steps), Some(10.0), None] {
                if let Ok(ahead) = forecast(&found, &points, steps, threshold, patience) {
                    prop_assert!(ahead.converged_at_step.is_finite());
                    prop_assert!(0.0 <= ahead.low && ahead.low <= ahead.remaining_steps);
                    prop_assert!(ahead.remaining_steps <= ahead.high && ahead.high.is_finite());
                }
            }
        }
    }

    #[test]
    fn no_option_makes_a_fit_panic(
        points in any_points(),
        rates in proptest::collection::vec(prop_oneof![prop::num::f64::ANY, 0.0..10.0_f64], 0..4),
        steps in prop_oneof![prop::num::f64::ANY, 0.01..10.0_f64],
    ) {
        let options =
            Options { rate_steps: &rates, steps_per_epoch: Some(steps), ..Options::default() };
        let mut fitter = LossFitter::new(&options);
        for point in &points {
            fitter.push(*point);
        }
        for found in [fit_with(&points, &options), fitter.fit()].into_iter().flatten() {
            prop_assert!(found.beta.iter().all(|value| value.is_finite()));
            prop_assert!(found.rmse.is_finite() && found.scale.is_finite());
            prop_assert!((5..=400).contains(&found.points));
        }
    }

    #[test]
    fn units_and_order_do_not_matter(
        seed in any::<u64>(), steps in 1e-3..1e6_f64, scale in 1e-3..1e3_f64,
    ) {
        let mut chance = Chance(seed);
        let points = losses(chance.beta(40.0), 40, Noise::Share(0.02), &mut chance);
        let mut other: Vec<LossPoint> = points
            .iter()
            .map(|point| LossPoint { step: point.step * steps, loss: point.loss * scale })
            .collect();
        other.reverse();
        match (fit(&points), fit(&other)) {
            (Ok(one), Ok(two)) => {
                let (a, b) = (one.loss_at(25.0), two.loss_at(25.0 * steps));
                prop_assert!((a * scale - b).abs() <= 1e-6 * b, "{} and {}", a * scale, b);
                prop_assert_eq!(one.outliers.len(), two.outliers.len());
            }
            (Err(_), Err(_)) => {}
            (one, two) => prop_assert!(false, "{one:?} and {two:?}"),
        }
    }
}
