//! Fits on the paper's figures and on measured speeds.

use std::collections::BTreeMap;

use model::Shape;
use proptest::prelude::*;
use scheduler::estimate::loss::{LossPoint, converged, curve, fit as fit_loss, remaining_epochs};
use scheduler::estimate::speed::{
    SpeedForm, SpeedModel, SpeedSample, fit, fit_marking, profile_shapes,
};

use crate::world::paper_sync;

const FIG_09: [&str; 4] = [
    include_str!("../data/fig09a_async_vs_workers.csv"),
    include_str!("../data/fig09b_async_vs_ps.csv"),
    include_str!("../data/fig09c_sync_vs_workers.csv"),
    include_str!("../data/fig09d_sync_vs_ps.csv"),
];
const FIXED_GLOBAL: &str = include_str!("../data/speed_fixed_global_batch.csv");
const FIXED_WORKER: &str = include_str!("../data/speed_fixed_worker_batch.csv");
const FIG_05_CURVES: &str = include_str!("../data/fig05_loss_curves.csv");
const FIG_05_FITS: &str = include_str!("../data/fig05_eq1_fits.csv");

fn rows(csv: &str) -> impl Iterator<Item = Vec<&str>> {
    csv.lines().skip(1).filter(|line| !line.is_empty()).map(|line| line.split(',').collect())
}

fn number(text: &str) -> f64 {
    text.parse().unwrap()
}

fn sample(servers: u32, workers: u32, steps_per_s: f64) -> SpeedSample {
    SpeedSample { shape: Shape::new(servers, workers), steps_per_s, weight: 1.0 }
}

/// Points of Figure 9 whose series ends in `kind`, of the panels given.
fn figure_9(panels: &[usize], kind: &str) -> Vec<SpeedSample> {
    let round = |text: &str| -> u32 { format!("{:.0}", number(text)).parse().unwrap() };
    let mut samples = Vec::new();
    for panel in panels {
        for row in rows(FIG_09[*panel]).filter(|row| row[0].ends_with(kind)) {
            let fixed = row[0].split([' ', '=']).nth(1).unwrap().parse().unwrap();
            let (x, y) = (round(row[1]), number(row[2]));
            samples.push(if row[0].starts_with("ps") {
                sample(fixed, x, y)
            } else {
                sample(x, fixed, y)
            });
        }
    }
    samples
}

/// Mean relative error of the speed.
fn error(model: &SpeedModel, samples: &[SpeedSample]) -> f64 {
    let sum: f64 = samples
        .iter()
        .map(|sample| (model.steps_per_s(sample.shape) / sample.steps_per_s - 1.0).abs())
        .sum();
    sum / f64::from(u32::try_from(samples.len()).unwrap())
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found_one, expected_one) in found.iter().zip(expected) {
        assert!((found_one - expected_one).abs() <= tolerance, "{found:?} is not {expected:?}");
    }
}

#[test]
fn exact_speeds_give_the_papers_coefficients_back() {
    let truth = paper_sync();
    let shapes: Vec<Shape> =
        (1..=4).flat_map(|p| (1..=5).map(move |w| Shape::new(3 * p, 2 * w))).collect();
    let samples: Vec<SpeedSample> = shapes
        .iter()
        .map(|shape| sample(shape.servers, shape.workers, truth.steps_per_s(*shape)))
        .collect();
    let model = fit(truth.form, &samples).unwrap();
    assert_close(&model.theta, &truth.theta, 1e-4);
    assert!(model.rmse_relative < 1e-5);
    let truth = SpeedModel {
        form: SpeedForm::Async,
        theta: vec![2.8336, 3.918, 0.0001, 0.1052],
        rmse_relative: 0.0,
    };
    let samples: Vec<SpeedSample> = shapes
        .iter()
        .map(|shape| sample(shape.servers, shape.workers, truth.steps_per_s(*shape)))
        .collect();
    assert_close(&fit(truth.form, &samples).unwrap().theta, &truth.theta, 1e-4);
}

#[test]
fn the_curves_of_figure_9_give_table_2() {
    let model = fit(SpeedForm::Async, &figure_9(&[0, 1], "fit")).unwrap();
    assert_close(&model.theta, &[2.83, 3.92, 0.0, 0.11], 0.02);
    let model = fit(SpeedForm::SyncGlobal { batch: 40 }, &figure_9(&[2, 3], "fit")).unwrap();
    assert_close(&model.theta, &[1.02, 2.82, 4.90, 0.0, 0.02], 0.06);
}

#[test]
fn ten_samples_of_figure_9_predict_the_rest() {
    for (panels, form, most) in
        [([0, 1], SpeedForm::Async, 0.07), ([2, 3], SpeedForm::SyncGlobal { batch: 40 }, 0.05)]
    {
        let all = figure_9(&panels, "measured");
        let whole = fit(form, &all).unwrap();
        assert!(error(&whole, &all) < most, "{form:?}: {}", error(&whole, &all));
        for start in 0..6 {
            let few: Vec<SpeedSample> =
                all.iter().skip(start).step_by(6).take(10).copied().collect();
            let model = fit(form, &few).unwrap();
            let error = error(&model, &all);
            assert!(error < 1.6 * most, "{form:?} from {start}: {error}");
        }
    }
}

/// Speeds by model: form, then samples.
fn measured() -> BTreeMap<(String, bool), (SpeedForm, Vec<SpeedSample>)> {
    let mut models = BTreeMap::new();
    for (csv, global) in [(FIXED_GLOBAL, true), (FIXED_WORKER, false)] {
        for row in rows(csv) {
            let batch = row[2].parse().unwrap();
            let form = match (row[1], global) {
                ("sync", true) => SpeedForm::SyncGlobal { batch },
                ("sync", false) => SpeedForm::SyncPerWorker { batch },
                _ => SpeedForm::Async,
            };
            let one = sample(row[3].parse().unwrap(), row[4].parse().unwrap(), number(row[6]));
            let entry = models.entry((row[0].to_owned(), global));
            entry.or_insert_with(|| (form, Vec::new())).1.push(one);
        }
    }
    models
}

#[test]
fn five_profiled_shapes_predict_measured_speeds() {
    let mut errors = Vec::new();
    for ((name, _), (form, all)) in measured() {
        let has = |shape: Shape| all.iter().any(|sample| sample.shape == shape);
        let shapes = profile_shapes(Shape::new(1, 1), Shape::new(8, 8), 5, has);
        let pick = |shape: &Shape| *all.iter().find(|sample| sample.shape == *shape).unwrap();
        let few: Vec<SpeedSample> = shapes.iter().map(pick).collect();
        let few = error(&fit(form, &few).unwrap(), &all);
        // Some of these models were measured at up to 20 tasks, far outside the five shapes.
        assert!(few < 0.28, "{name} {form:?} {shapes:?}: {few}");
        let whole = error(&fit(form, &all).unwrap(), &all);
        assert!(whole < 0.13, "{name} {form:?}: {whole}");
        errors.push(few);
    }
    let mean = errors.iter().sum::<f64>() / f64::from(u32::try_from(errors.len()).unwrap());
    assert!(mean < 0.17, "{mean}");
}

#[test]
fn one_gross_outlier_does_no_harm() {
    let truth = paper_sync();
    let shapes = profile_shapes(Shape::new(1, 1), Shape::new(12, 12), 6, |_| true);
    let good: Vec<SpeedSample> = shapes
        .iter()
        .map(|shape| sample(shape.servers, shape.workers, truth.steps_per_s(*shape)))
        .collect();
    for count in [5, 6] {
        for at in 0..count {
            for factor in [8.0, 0.125] {
                let mut samples = good[..count].to_vec();
                samples[at].steps_per_s *= factor;
                let (model, outliers) = fit_marking(truth.form, &samples).unwrap();
                assert_eq!(outliers, [samples[at].shape]);
                assert!(error(&model, &good) < 0.05, "{}: {model:?}", samples[at].shape);
            }
        }
    }
    // Nothing is called an outlier where nothing is one.
    assert_eq!(fit_marking(truth.form, &good).unwrap().1, []);
    // The rows that were measured wrongly are found among all.
    let (form, all) = &measured()[&("seq2seq".to_owned(), false)];
    let (_, outliers) = fit_marking(*form, all).unwrap();
    assert_eq!(outliers.len(), 2, "{outliers:?}");
    for shape in [Shape::new(5, 1), Shape::new(10, 1)] {
        assert!(outliers.contains(&shape), "{outliers:?}");
    }
}

#[test]
fn a_single_sample_gives_a_cautious_model_and_nonsense_none() {
    let form = SpeedForm::SyncGlobal { batch: 64 };
    let model = fit(form, &[sample(1, 1, 2.0)]).unwrap();
    assert!((model.steps_per_s(Shape::new(1, 1)) - 2.0).abs() < 0.01);
    let double = model.steps_per_s(Shape::new(2, 2));
    assert!(2.0 < double && double < 4.0, "more helps, less than twice: {double}");
    assert!(model.steps_per_s(Shape::new(0, 4)) <= 0.0);
    for wrong in [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e-300] {
        let error = fit(form, &[sample(1, 1, wrong), sample(0, 1, 1.0)]).unwrap_err();
        assert!(error.to_string().contains("none of 2 samples"), "{error}");
    }
    // Work of a job whose workers keep their batch is in samples.
    let form = SpeedForm::SyncPerWorker { batch: 32 };
    let model = fit(form, &[sample(1, 2, 0.5)]).unwrap();
    assert!((model.work_per_s(Shape::new(1, 2)) - 32.0).abs() < 0.1);
    assert_eq!(model.theta.len(), 5);
    assert!(model.theta[1] <= 0.0);
}

fn losses() -> BTreeMap<String, Vec<LossPoint>> {
    let mut curves: BTreeMap<String, Vec<LossPoint>> = BTreeMap::new();
    for row in rows(FIG_05_CURVES) {
        let point = LossPoint { step: number(row[1]).max(0.0), loss: number(row[2]) };
        curves.entry(row[0].to_owned()).or_default().push(point);
    }
    curves
}

#[test]
fn figure_5_gives_its_coefficients() {
    let curves = losses();
    for row in rows(FIG_05_FITS) {
        let found = fit_loss(&curves[row[0]]).unwrap();
        let expected = [number(row[2]), number(row[3]), number(row[4])];
        assert_close(&found.beta, &expected, 5e-4);
        assert!(found.rmse <= number(row[5]) + 2e-5, "{}: {}", row[0], found.rmse);
        assert_eq!(found.outliers, [], "{}", row[0]);
    }
}

/// Losses of a known curve with 1,000 steps an epoch, and noise by a fixed rule.
fn noisy(beta: [f64; 3], epochs: u32, noise: f64, seed: u64) -> Vec<LossPoint> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f64::from(u32::try_from(state >> 40).unwrap()) / f64::from(1 << 24)
    };
    (1..=epochs)
        .map(|epoch| {
            let step = f64::from(epoch) * 1000.0;
            let normal = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
            LossPoint { step, loss: curve(beta, step) + noise * normal }
        })
        .collect()
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
        let fit = fit_loss(&points).unwrap();
        let epochs: Vec<(u32, f64, f64)> =
            (1..).zip(&points).map(|(epoch, point)| (epoch, point.step, point.loss)).collect();
        let end = true_end(beta, 0.01, points[0].loss);
        let left = remaining_epochs(&fit, &epochs, 1000.0, 0.01, 3, 1000).unwrap();
        let expected = f64::from(end.saturating_sub(known));
        assert!((left.value - expected).abs() < 1e-9, "{known} of {end}: {left:?}");
        let capped = remaining_epochs(&fit, &epochs, 1000.0, 0.01, 3, known + 1).unwrap();
        assert!(capped.high <= 1.0 && capped.low >= 0.0, "{capped:?}");
    }
    let mut inside = 0;
    let rounds = 60;
    for seed in 1..=rounds {
        let points = noisy(beta, 15, 0.01, seed);
        let fit = fit_loss(&points).unwrap();
        let end = f64::from(true_end(beta, 0.003, fit.scale)) - 15.0;
        let epochs = [(15, 15_000.0, points[14].loss)];
        let left = remaining_epochs(&fit, &epochs, 1000.0, 0.003, 3, 10_000).unwrap();
        assert!(left.low <= left.value && left.value <= left.high, "{left:?}");
        inside += u32::from(left.low - 0.5 <= end && end <= left.high + 0.5);
    }
    println!("{inside} of {rounds} inside");
    assert!((36..60).contains(&inside), "{inside} of {rounds} inside a range of 80 %");
}

#[test]
fn a_spike_is_replaced_and_too_little_is_unknown() {
    let beta = [0.0004, 0.5, 0.3];
    let mut points = noisy(beta, 30, 0.0, 1);
    points[12].loss = 40.0;
    points[20].loss = 0.001;
    points[25].loss = f64::NAN;
    points.push(LossPoint { step: f64::INFINITY, loss: 1.0 });
    let fit = fit_loss(&points).unwrap();
    assert_eq!(fit.outliers, [13_000.0, 21_000.0]);
    assert_eq!(fit.points, 29);
    assert!((fit.scale - points[0].loss).abs() < 1e-12, "the spike is no scale");
    assert_close(&fit.beta, &beta, 0.01);

    let reason = |points: &[LossPoint]| fit_loss(points).unwrap_err().reason;
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
}

#[test]
fn a_million_points_cost_what_400_do() {
    let points: Vec<LossPoint> = (0..1_000_000)
        .map(|step| LossPoint {
            step: f64::from(step),
            loss: curve([1e-4, 0.5, 0.3], f64::from(step)),
        })
        .collect();
    let fit = fit_loss(&points).unwrap();
    assert!(fit.points <= 400);
    assert!((curve(fit.beta, 5e5) - curve([1e-4, 0.5, 0.3], 5e5)).abs() < 1e-3, "{fit:?}");
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
        if let Ok(fit) = fit_loss(&points) {
            prop_assert!(fit.beta.iter().all(|value| value.is_finite() && *value >= 0.0));
            for steps in [steps, 10.0] {
                let epochs_seen: Vec<(u32, f64, f64)> =
                    points.iter().map(|point| (epochs / 2, point.step, point.loss)).collect();
                let left = remaining_epochs(&fit, &epochs_seen, steps, threshold, patience, epochs);
                if let Ok(left) = left {
                    prop_assert!(0.0 <= left.low && left.low <= left.value);
                    prop_assert!(left.value <= left.high && left.high <= f64::from(epochs));
                }
            }
        }
    }

    #[test]
    fn no_sample_makes_a_fit_panic(
        samples in proptest::collection::vec(
            (0_u32..5, any::<u32>(), prop_oneof![prop::num::f64::ANY, 0.1..9.0_f64], prop::num::f64::ANY),
            0..12,
        ),
        batch in any::<u32>(),
    ) {
        let samples: Vec<SpeedSample> = samples
            .into_iter()
            .map(|(servers, workers, steps_per_s, weight)| SpeedSample {
                shape: Shape::new(servers, workers % 9),
                steps_per_s,
                weight,
            })
            .collect();
        for form in [
            SpeedForm::Async,
            SpeedForm::SyncGlobal { batch },
            SpeedForm::SyncPerWorker { batch },
        ] {
            if let Ok(model) = fit(form, &samples) {
                prop_assert!(model.theta.iter().all(|theta| theta.is_finite() && *theta >= 0.0));
                prop_assert_eq!(model.theta.len(), form.coefficients());
            }
        }
    }
}
