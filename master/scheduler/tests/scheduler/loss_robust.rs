//! Losses that go wrong at the start, below zero, in teeth, or along another curve.

use scheduler::estimate::loss::{
    Curve, LossFit, LossFitter, LossPoint, Options, Unknown, curve, fit, fit_with, forecast,
    remaining_epochs,
};

use crate::loss_world::{Chance, Noise, assert_close, is, losses, squares};

const BETA: [f64; 3] = [0.1, 0.5, 0.3];

fn made(count: u32, loss: impl Fn(f64) -> f64) -> Vec<LossPoint> {
    (0..count).map(f64::from).map(|step| LossPoint { step, loss: loss(step) }).collect()
}

fn exact(count: u32) -> Vec<LossPoint> {
    made(count, |step| curve(BETA, step))
}

fn by_curve(points: &[LossPoint], text: &str) -> Result<LossFit, Unknown> {
    let curve = Curve::parse(text).unwrap();
    fit_with(points, &Options { curve: Some(&curve), ..Options::default() })
}

#[test]
fn a_low_first_loss_goes_alone() {
    for count in [8, 12, 30, 60, 200, 500] {
        for first in [1.4, 0.7, 0.2, 0.0, -0.001, -5.0] {
            let mut points = exact(count);
            points[0].loss = first;
            let found = fit(&points).unwrap();
            assert_eq!(found.outliers, [0.0], "{first} of {count}");
            assert_close(&found.beta, &BETA, 1e-6);
            assert!((found.scale - points[1].loss).abs() < 1e-12);
            if count == 30 && first > 0.1 {
                let found = by_curve(&points, "a/(k+b)+c").unwrap();
                assert_eq!(found.outliers, [0.0], "{first} of {count}");
                let constants: Vec<f64> = found.constants.iter().map(|(_, value)| *value).collect();
                assert_close(&constants, &[10.0, 5.0, 0.3], 1e-6);
            }
        }
    }
    let mut chance = Chance(31);
    for case in 0..40 {
        let beta = chance.beta(100.0);
        let mut points = losses(beta, [50, 100, 200][case % 3], Noise::Share(0.03), &mut chance);
        points[0].loss *= 0.2;
        let found = fit(&points).unwrap();
        let rest = fit(&points[1..]).unwrap();
        let (ours, best) = (squares(found.beta, &points[1..]), squares(rest.beta, &points[1..]));
        assert!(found.outliers.contains(&1.0), "{beta:?}: {found:?}");
        assert!(ours <= 1.02 * best, "{ours} and {best} of {beta:?}");
    }
}

#[test]
fn low_losses_at_the_start_go_together_or_alone() {
    let mut points = exact(60);
    points[1].loss = 0.4;
    assert_eq!(fit(&points).unwrap().outliers, [1.0]);
    points[0].loss *= 0.1;
    points[1].loss *= 0.5;
    let found = fit(&points).unwrap();
    assert!(found.outliers == [0.0, 1.0] || is(found.since_step, 2.0), "{found:?}");
    assert_close(&found.beta, &BETA, 1e-6);
}

#[test]
fn a_high_second_loss_is_no_part_of_the_curve() {
    let mut chance = Chance(32);
    for case in 0..40 {
        let beta = chance.beta(60.0);
        let mut points = losses(beta, [50, 100][case % 2], Noise::Share(0.03), &mut chance);
        points[1].loss *= 3.0;
        let found = fit(&points).unwrap();
        assert_eq!(found.outliers.first(), Some(&2.0), "{beta:?}: {found:?}");
    }
}

#[test]
fn the_fit_starts_after_a_warm_up() {
    for skipped in [2, 3, 5, 10] {
        let start = f64::from(skipped);
        let after = |step: f64| 1.5 / (0.1 * (step - start) + 1.0);
        let rising = |step: f64| if step < start { 1.0 + 0.1 * step } else { after(step) };
        let flat = |step: f64| if step < start { 1.5 } else { after(step) };
        for points in [made(100, rising), made(100, flat), made(200, flat)] {
            let found = fit(&points).unwrap();
            assert!(is(found.since_step, start), "{found:?}");
            assert_close(&found.beta, &[0.2 / 3.0, (1.0 - 0.1 * start) / 1.5, 0.0], 1e-6);
            let highest = points.iter().map(|point| point.loss).fold(0.0, f64::max);
            assert!(is(found.scale, highest) || !found.outliers.is_empty());
            let mut fitter = LossFitter::new(&Options::default());
            for (at, point) in points.iter().enumerate() {
                fitter.push(*point);
                // Whatever was found before must not hold the next fit.
                if at % 16 == 0 {
                    let _ = fitter.fit();
                }
            }
            let grown = fitter.fit().unwrap();
            assert!(is(grown.since_step, start), "{grown:?}");
            assert_close(&grown.beta, &found.beta, 1e-6);
        }
    }
}

#[test]
fn noise_is_no_warm_up() {
    let mut chance = Chance(33);
    for case in 0..120 {
        let noise = [Noise::Share(0.02), Noise::Share(0.1), Noise::Even(0.05)][case % 3];
        let points = losses(chance.beta(200.0), 200, noise, &mut chance);
        if let Ok(found) = fit(&points) {
            assert!(is(found.since_step, 0.0), "{found:?}");
        }
    }
}

#[test]
fn teeth_are_neither_outliers_nor_levels() {
    let teeth = |step: f64| curve(BETA, step) * (1.0 + 0.02 * (step % 10.0));
    for points in [made(100, teeth), made(200, teeth)] {
        let found = fit(&points).unwrap();
        assert!(is(found.since_step, 0.0));
        assert!(found.outliers.len() <= 3 + points.len() / 10, "{:?}", found.outliers);
        for step in [20.0, 50.0, 90.0] {
            let (ours, least) = (found.loss_at(step), curve(BETA, step));
            assert!(least < 1.02 * ours && ours < 1.2 * least, "{ours} and {least} at {step}");
        }
    }
}

#[test]
fn a_few_losses_below_zero_are_noise() {
    for at in [0, 1, 30, 58, 59] {
        let mut points = exact(60);
        points[at].loss = -0.001;
        let found = fit(&points).unwrap();
        assert_eq!(found.outliers, [points[at].step]);
        assert_close(&found.beta, &BETA, 1e-6);
    }
    let mut chance = Chance(34);
    let noisy = made(60, |step| 1.0 / (0.5 * step + 1.0)).into_iter();
    let noisy: Vec<LossPoint> =
        noisy.map(|p| LossPoint { loss: p.loss + 0.02 * chance.normal(), ..p }).collect();
    assert!(noisy.iter().any(|point| point.loss < 0.0));
    let found = fit(&noisy).unwrap();
    assert!((found.loss_at(10.0) - 1.0 / 6.0).abs() < 0.02 && found.points == 60, "{found:?}");
    let sinking = made(60, |step| 1.0 - 0.018 * step);
    assert!(fit(&sinking).unwrap_err().reason.contains("below zero"));
}

#[test]
fn measured_falls_refute_a_curve_that_has_converged() {
    let slow = |step: f64| (step + 1.0).sqrt().recip();
    for (count, threshold) in [(60, 0.001), (200, 0.0001)] {
        let points = made(count, slow);
        let found = fit(&points).unwrap();
        let error = forecast(&found, &points, None, threshold, 3).unwrap_err();
        assert!(error.reason.contains("do not follow it"), "{error}");
        let epochs: Vec<(u32, f64, f64)> =
            (0..).zip(&points).map(|(epoch, point)| (epoch, point.step, point.loss)).collect();
        let error = remaining_epochs(&found, &epochs, 1.0, threshold, 3, 1000).unwrap_err();
        assert!(error.reason.contains("do not follow it"), "{error}");
    }
}

#[test]
fn reasons_are_true() {
    let reason = |points: &[LossPoint]| fit(points).unwrap_err().reason;
    let cosine = made(100, |step| 0.5 + 0.5 * (std::f64::consts::PI * step / 100.0).cos());
    assert!(reason(&cosine).contains("falls, but not along a curve"));
    assert!(reason(&made(100, |step| 2.0 - (step / 100.0).powi(2))).contains("falls, but not"));
    let one: Vec<LossPoint> =
        made(9, |step| 2.0 - 0.1 * step).iter().map(|p| LossPoint { step: 5.0, ..*p }).collect();
    assert!(reason(&one).contains("1 usable step with 9 losses"));
    let far: Vec<LossPoint> =
        exact(9).iter().map(|p| LossPoint { step: 1e18 + p.step * 1e14, ..*p }).collect();
    assert!(reason(&far).contains("10^15"));
    assert!(reason(&made(20, |step| 1e-308 / (step + 1.0))).contains("1e-100"));
}

#[test]
fn a_curve_that_explains_nothing_is_refused() {
    let points = exact(60);
    for text in ["a/(b-k)", "a/(b-k)+c", "a*0^k", "a*0^k+c"] {
        let error = by_curve(&points, text).unwrap_err();
        let refused =
            error.reason.contains("explains little") || error.reason.contains("not decreasing");
        assert!(refused, "{text}: {error}");
    }
}

#[test]
fn the_error_of_a_users_curve_is_that_of_all_points() {
    let mut chance = Chance(35);
    let points = losses([0.002, 0.5, 0.3], 1500, Noise::Even(0.05), &mut chance);
    let (ours, theirs) = (fit(&points).unwrap(), by_curve(&points, "1/(a*k+b)+c").unwrap());
    assert!((theirs.rmse / ours.rmse - 1.0).abs() < 1e-3, "{} {}", theirs.rmse, ours.rmse);
    assert!((0.045..0.055).contains(&theirs.rmse), "{}", theirs.rmse);
}

#[test]
fn a_fall_of_a_hundredth_gives_its_coefficients() {
    for count in [20, 100] {
        for fall in [0.2, 0.05, 0.02, 0.01] {
            let beta = [fall / f64::from(count), 1.0, 0.3];
            let found = fit(&made(count, |step| curve(beta, step))).unwrap();
            assert_close(&found.beta, &beta, 1e-6);
        }
    }
}
