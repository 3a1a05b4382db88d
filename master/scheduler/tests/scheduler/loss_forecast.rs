//! When the loss will have converged: exact without noise, a range with it, and real curves.

use scheduler::estimate::loss::{LossPoint, converged, curve, fit, forecast, remaining_epochs};

use crate::loss_world::{Chance, Noise, is, losses, number, rows, series};

const FIG_01: &str = include_str!("../data/fig01_resnext110_cifar10_curves.csv");
const FIG_05: &str = include_str!("../data/fig05_loss_curves.csv");
const RECORDED: &str = include_str!("../data/recorded_losses.csv");
const FIG_06: &str = include_str!("../data/fig06_prediction_error.csv");

/// The end of the last of `patience` epochs whose drops are below the threshold, looked for one
/// by one; epochs end at `start + n·length`.
fn end_by_hand(beta: [f64; 3], (start, length): (f64, f64), drop: f64, patience: u32) -> f64 {
    let mut row = 0;
    for epoch in 1..1_000_000 {
        let end = start + f64::from(epoch) * length;
        row = if curve(beta, end - length) - curve(beta, end) < drop { row + 1 } else { 0 };
        if row == patience {
            return end;
        }
    }
    panic!("{beta:?} does not converge")
}

#[test]
fn the_end_is_exact_without_noise() {
    let mut chance = Chance(11);
    for case in 0..60 {
        let beta = chance.beta(50.0);
        let points = losses(beta, 30, Noise::Even(0.0), &mut chance);
        let found = fit(&points).unwrap();
        let threshold = chance.between(1e-4, 0.05);
        let drop = threshold * points[0].loss;
        let patience = 1 + case % 4;
        for (steps_per_epoch, epochs) in
            [(None, (1.0, 1.0)), (Some(7.0), (0.0, 7.0)), (Some(0.5), (0.0, 0.5))]
        {
            let ahead = forecast(&found, &points, steps_per_epoch, threshold, patience).unwrap();
            let end = end_by_hand(beta, epochs, drop, patience);
            // A drop that equals the threshold but for rounding may fall on either side.
            let apart = (ahead.converged_at_step - end).abs();
            assert!(apart < 1e-6 * end, "{ahead:?} for {end}");
            let left = (end - 30.0).max(0.0);
            assert!((ahead.remaining_steps - left).abs() < 1e-6 * end);
            assert!(ahead.high - ahead.low < 1e-6 * end, "{ahead:?} is certain");
        }
    }
}

/// The share of runs whose range held the truth.
fn share_inside(noises: &[Noise], seed: u64) -> (u32, u32) {
    let mut chance = Chance(seed);
    let (mut inside, mut known) = (0, 0);
    let mut case = 0_usize;
    while known < 200 {
        let noise = noises[case % noises.len()];
        let progress = [0.1, 0.2, 0.35, 0.5, 0.75][case % 5];
        case += 1;
        let beta = chance.beta(150.0);
        let first = curve(beta, 1.0);
        let threshold = (curve(beta, 149.0) - curve(beta, 150.0)) / first;
        let end = end_by_hand(beta, (1.0, 1.0), threshold * first, 3);
        let cut = (1..).find(|step| f64::from(*step) >= (progress * end).max(8.0)).unwrap();
        let points = losses(beta, cut, noise, &mut chance);
        let Ok(found) = fit(&points) else { continue };
        known += 1;
        let ahead = forecast(&found, &points, None, threshold, 3).unwrap();
        assert!(ahead.low <= ahead.remaining_steps && ahead.remaining_steps <= ahead.high);
        let left = end - f64::from(cut);
        inside += u32::from(ahead.low <= left && left <= ahead.high);
    }
    (inside, known)
}

#[test]
fn the_range_holds_the_truth_as_often_as_it_says() {
    for (seed, noises) in [
        (12, [Noise::Share(0.01), Noise::Share(0.02), Noise::Share(0.05)]),
        (13, [Noise::Even(0.005), Noise::Even(0.01), Noise::Even(0.03)]),
    ] {
        let (inside, known) = share_inside(&noises, seed);
        // 70 to 90 %.
        assert!((140..=180).contains(&inside), "{inside} of {known} with {noises:?}");
    }
}

/// |predicted total / total − 1| of a curve cut at a share of its progress; none where there are
/// too few points then. The threshold is the fitted drop of the whole curve at its end: single
/// measured ones are noise.
fn error_of_total(points: &[LossPoint], cut: f64) -> Option<f64> {
    let (first, last) = (points[0].step.max(0.0), points[points.len() - 1].step);
    let rows = f64::from(u32::try_from(points.len() - 1).unwrap());
    let length = (last - first) / rows;
    let whole = fit(points).unwrap();
    let threshold = (whole.loss_at(last - length) - whole.loss_at(last)) / whole.scale;
    let part: Vec<LossPoint> =
        points.iter().filter(|point| point.step <= cut * last + 1e-6).copied().collect();
    match fit(&part) {
        Ok(found) => {
            let ahead = forecast(&found, &part, None, threshold, 1).unwrap();
            Some((ahead.converged_at_step / last - 1.0).abs())
        }
        Err(unknown) => {
            assert!(part.len() < 5 && unknown.reason.contains("5 are needed"), "{unknown}");
            None
        }
    }
}

fn mean(errors: &[f64]) -> f64 {
    errors.iter().sum::<f64>() / f64::from(u32::try_from(errors.len()).unwrap())
}

#[test]
fn real_curves_end_where_they_did_better_than_the_paper_says() {
    let mut figures: Vec<Vec<LossPoint>> =
        ["CNN-rand", "Inception", "DS2"].map(|name| series(FIG_05, name)).into();
    figures.push(series(FIG_01, "train_loss"));
    let recorded = ["digits_mlp", "regression", "digits_cnn"].map(|name| series(RECORDED, name));
    for cut in [0.1, 0.2, 0.5] {
        let at: Vec<f64> = rows(FIG_06)
            .filter(|row| (number(row[1]) - 100.0 * cut).abs() < 0.5)
            .map(|row| number(row[2]).abs() / 100.0)
            .collect();
        assert_eq!(at.len(), 9);
        let paper = mean(&at);
        let errors = |curves: &[Vec<LossPoint>]| -> Vec<f64> {
            curves.iter().filter_map(|points| error_of_total(points, cut)).collect()
        };
        let of_figures = errors(&figures);
        assert_eq!(of_figures.len(), figures.len());
        let of_recorded = errors(&recorded);
        // Three epochs of thirty are too few to say anything.
        assert_eq!(of_recorded.len(), if cut < 0.15 { 0 } else { recorded.len() });
        let all = [of_figures.clone(), of_recorded].concat();
        let (ours, ours_all) = (mean(&of_figures), mean(&all));
        println!("cut at {cut}: figures {ours:.4}, all {ours_all:.4}, the paper {paper:.4}");
        assert!(ours < paper && ours_all < paper, "{all:?} and {paper} at {cut}");
    }
}

#[test]
fn without_a_threshold_or_an_epoch_there_is_no_forecast() {
    let points = losses([0.4, 0.5, 0.3], 30, Noise::Even(0.0), &mut Chance(1));
    let found = fit(&points).unwrap();
    let reason = |steps, threshold| forecast(&found, &points, steps, threshold, 3).unwrap_err();
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(reason(None, wrong).reason.contains("threshold"));
        assert!(reason(Some(wrong), 0.01).reason.contains("epoch"));
    }
    assert!(forecast(&found, &[], None, 0.01, 3).is_err());
    assert!(forecast(&found, &points[..1], None, 0.01, 3).unwrap_err().reason.contains("epoch"));
    assert!(reason(None, 1e-300).reason.contains("10^18"));
    let patient = forecast(&found, &points, None, 0.01, u32::MAX).unwrap();
    assert!(patient.remaining_steps > 4e9);
    let at_once = forecast(&found, &points, None, 1e9, 0).unwrap();
    assert!(is(at_once.converged_at_step, 2.0) && is(at_once.remaining_steps, 0.0));
}

/// Losses with 1,000 steps an epoch.
fn noisy(beta: [f64; 3], epochs: u32, noise: f64, seed: u64) -> Vec<LossPoint> {
    let by_epoch = [beta[0] * 1000.0, beta[1], beta[2]];
    let mut points = losses(by_epoch, epochs, Noise::Even(noise), &mut Chance(seed));
    for point in &mut points {
        point.step *= 1000.0;
    }
    points
}

/// First epoch after which the true curve's drop was below the threshold three times.
fn true_end(beta: [f64; 3], threshold: f64, scale: f64) -> u32 {
    let drop = |epoch: u32| {
        let end = f64::from(epoch) * 1000.0;
        (curve(beta, end - 1000.0) - curve(beta, end)) / scale
    };
    (2..10_000).find(|epoch| drop(*epoch) < threshold).unwrap() + 2
}

#[test]
fn remaining_epochs_are_exact_without_noise_and_within_the_range_with_it() {
    let beta = [0.0004, 0.5, 0.3];
    for known in [8, 12, 20] {
        let points = noisy(beta, known, 0.0, 1);
        let found = fit(&points).unwrap();
        let epochs: Vec<(u32, f64, f64)> =
            (1..).zip(&points).map(|(epoch, point)| (epoch, point.step, point.loss)).collect();
        let end = true_end(beta, 0.01, points[0].loss);
        let left = remaining_epochs(&found, &epochs, 1000.0, 0.01, 3, 1000).unwrap();
        let expected = f64::from(end.saturating_sub(known));
        assert!((left.value - expected).abs() < 1e-9, "{known} of {end}: {left:?}");
        let capped = remaining_epochs(&found, &epochs, 1000.0, 0.01, 3, known + 1).unwrap();
        assert!(capped.high <= 1.0 && capped.low >= 0.0, "{capped:?}");
    }
    let mut inside = 0;
    let rounds = 60;
    for seed in 1..=rounds {
        let points = noisy(beta, 15, 0.01, seed);
        let found = fit(&points).unwrap();
        let end = f64::from(true_end(beta, 0.003, found.scale)) - 15.0;
        let epochs = [(15, 15_000.0, points[14].loss)];
        let left = remaining_epochs(&found, &epochs, 1000.0, 0.003, 3, 10_000).unwrap();
        assert!(left.low <= left.value && left.value <= left.high, "{left:?}");
        inside += u32::from(left.low - 0.5 <= end && end <= left.high + 0.5);
    }
    assert!((36..60).contains(&inside), "{inside} of {rounds} inside a range of 80 %");
}

#[test]
fn convergence_is_judged_on_measured_losses() {
    let falling = [2.0, 1.5, 1.2, 1.19, 1.185, 1.18];
    assert!(converged(&falling, 0.01, 3));
    assert!(!converged(&falling, 0.01, 4), "the drop before was 0.15 of 2");
    assert!(!converged(&falling[..5], 0.01, 3));
    assert!(!converged(&[2.0, 1.0, f64::NAN, 1.0, 1.0], 0.01, 3), "an epoch without a loss");
    assert!(!converged(&[], 0.01, 1) && !converged(&[1.0], 0.01, 1));
    assert!(!converged(&[1.0, 1.0], f64::NAN, 1));
    assert!(converged(&[1.0, 1.0], 0.01, 0), "a patience of none is one");
}
