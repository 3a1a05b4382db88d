//! Fits of the speed function.

use model::Shape;
use proptest::prelude::*;
use scheduler::estimate::speed::{
    Residual, SpeedForm, SpeedModel, SpeedSample, best_shape, fit, fit_full, profile_shapes,
};

use crate::speed_data::{
    FIG_09_ASYNC, FIG_09_SYNC, Seeded, figure_9, fixed_global, fixed_worker, mean, mean_error,
    paper_async, sample, samples_of,
};
use crate::world::paper_sync;

const PER_WORKER: SpeedForm = SpeedForm::SyncPerWorker { batch: 32 };

/// A job of the third form whose samples share nothing with the priors.
fn per_worker() -> SpeedModel {
    SpeedModel::of_theta(PER_WORKER, vec![0.01, 0.0, 0.3, 0.02, 0.004])
}

fn grid(servers: u32, workers: u32) -> Vec<Shape> {
    (1..=servers).flat_map(|p| (1..=workers).map(move |w| Shape::new(p, w))).collect()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found_one, expected_one) in found.iter().zip(expected) {
        assert!((found_one - expected_one).abs() <= tolerance, "{found:?} is not {expected:?}");
    }
}

#[test]
fn exact_speeds_give_the_coefficients_back() {
    let shapes: Vec<Shape> =
        (1..=4).flat_map(|p| (1..=5).map(move |w| Shape::new(3 * p, 2 * w))).collect();
    for truth in [paper_sync(), paper_async(), per_worker()] {
        let found = fit_full(truth.form, &samples_of(&truth, &shapes)).unwrap();
        assert_close(&found.theta, &truth.theta, 1e-4);
        assert!(found.theta_rmse_relative < 1e-5 && found.model.rmse_relative < 1e-5, "{found:?}");
        assert_eq!(found.model.theta, found.theta);
        assert_eq!(found.model.residual, None, "the form is all there is");
        assert_eq!((found.outliers, found.outlier_rows), (vec![], vec![]));
    }
}

#[test]
fn the_curves_of_figure_9_give_table_2() {
    let (form, panels) = FIG_09_ASYNC;
    let found = fit_full(form, &figure_9(&panels, "fit")).unwrap();
    assert_close(&found.theta, &[2.83, 3.92, 0.0, 0.11], 0.02);
    let (form, panels) = FIG_09_SYNC;
    let found = fit_full(form, &figure_9(&panels, "fit")).unwrap();
    assert_close(&found.theta, &[1.02, 2.82, 4.90, 0.0, 0.02], 0.06);
}

#[test]
fn five_profiled_shapes_predict_measured_speeds() {
    let mut errors = Vec::new();
    // The first were measured at odd numbers only.
    let models = fixed_global().into_iter().map(|model| (model, 7));
    for ((name, form, all), most) in models.chain(fixed_worker().into_iter().map(|m| (m, 8))) {
        let has = |shape: Shape| all.iter().any(|sample| sample.shape == shape);
        let shapes = profile_shapes(Shape::new(1, 1), Shape::new(most, most), 5, has);
        let pick = |shape: &Shape| *all.iter().find(|sample| sample.shape == *shape).unwrap();
        let few: Vec<SpeedSample> = shapes.iter().map(pick).collect();
        let few = mean_error(&fit(form, &few).unwrap(), &all);
        // Some of these models were measured at up to 40 tasks, far outside the five shapes.
        assert!(few < 0.25, "{name} {form:?} {shapes:?}: {few}");
        let whole = mean_error(&fit(form, &all).unwrap(), &all);
        assert!(whole < 0.1, "{name} {form:?}: {whole}");
        errors.push(few);
    }
    let mean = mean(errors);
    assert!(mean < 0.13, "{mean}");
}

#[test]
fn one_gross_outlier_does_no_harm() {
    let truth = paper_sync();
    let shapes = profile_shapes(Shape::new(1, 1), Shape::new(12, 12), 6, |_| true);
    let good = samples_of(&truth, &shapes);
    for count in [5, 6] {
        for at in 0..count {
            for factor in [8.0, 0.125] {
                let mut samples = good[..count].to_vec();
                samples[at].steps_per_s *= factor;
                let found = fit_full(truth.form, &samples).unwrap();
                assert_eq!(found.outliers, [samples[at].shape]);
                assert_eq!(found.outlier_rows, [at]);
                let error = mean_error(&found.model, &good);
                assert!(error < 0.05, "{} of {count}: {error}", samples[at].shape);
            }
        }
    }
    // Nothing is called an outlier where nothing is one.
    assert_eq!(fit_full(truth.form, &good).unwrap().outliers, []);
    // The rows that were measured wrongly are found among all.
    let (_, form, all) = fixed_worker().into_iter().find(|(name, ..)| name == "seq2seq").unwrap();
    let found = fit_full(form, &all).unwrap();
    assert_eq!(found.outliers, [Shape::new(5, 1), Shape::new(10, 1)]);
    let shapes: Vec<Shape> = found.outlier_rows.iter().map(|at| all[*at].shape).collect();
    assert_eq!(shapes, found.outliers);
}

/// One in five is wrong by a factor of 3 to 10, up or down, and all have 3 % of noise.
#[test]
fn one_outlier_in_five_does_no_harm() {
    let mut seeded = Seeded(3);
    for truth in [paper_sync(), paper_async(), per_worker()] {
        let all = samples_of(&truth, &grid(10, 10));
        for count in [10, 15, 30] {
            let mut errors = Vec::new();
            for _ in 0..20 {
                let (mut few, rest) = seeded.split(&all, count);
                for sample in &mut few {
                    sample.steps_per_s *= 1.0 + 0.03 * seeded.normal();
                }
                for sample in &mut few[..count / 5] {
                    let factor = [3.0, 10.0, 1.0 / 3.0, 0.1][seeded.below(4)];
                    sample.steps_per_s *= factor;
                }
                errors.push(mean_error(&fit(truth.form, &few).unwrap(), &rest));
            }
            let mean = mean(errors);
            assert!(mean < 0.06, "{:?} with {count}: {mean}", truth.form);
        }
    }
}

#[test]
fn a_wrong_sample_of_a_shape_is_voted_down_by_others() {
    let truth = paper_sync();
    let mut samples = samples_of(&truth, &grid(3, 3));
    samples.extend(samples.clone());
    samples.extend(samples[..9].to_vec());
    samples[13].steps_per_s *= 8.0;
    let found = fit_full(truth.form, &samples).unwrap();
    assert_eq!((found.outliers, found.outlier_rows), (vec![], vec![13]));
    assert_close(&found.theta, &truth.theta, 1e-4);
}

/// Of two samples of a shape the one that the other shapes disagree with is wrong, and a majority
/// too where enough of them do.
#[test]
fn a_wrong_sample_beside_a_right_one_is_found_by_the_other_shapes() {
    let truth = paper_sync();
    let shapes = [(1, 1), (2, 4), (4, 2), (6, 6), (3, 8), (8, 3), (5, 1), (1, 5)];
    let shapes = shapes.map(|(p, w)| Shape::new(p, w));
    for truth in [truth, paper_async(), per_worker()] {
        let good = samples_of(&truth, &shapes);
        for at in 0..shapes.len() {
            for (factor, copies) in [(8.0, 1), (0.125, 1), (2.5, 1), (8.0, 2), (0.125, 3)] {
                let mut samples = good.clone();
                for _ in 0..copies {
                    let speed = good[at].steps_per_s * factor;
                    samples.push(SpeedSample { steps_per_s: speed, ..good[at] });
                }
                let found = fit_full(truth.form, &samples).unwrap();
                let wrong: Vec<usize> = (8..8 + copies).collect();
                let case = format!("{} {factor} {copies}", shapes[at]);
                assert_eq!((&found.outliers, &found.outlier_rows), (&vec![], &wrong), "{case}");
                assert!(found.theta_rmse_relative < 0.02, "{case}");
                assert!(mean_error(&found.model, &good) < 0.02, "{case}");
            }
        }
    }
}

/// Ten samples may be of fewer shapes: two of them are found all the same.
#[test]
fn two_outliers_of_ten_samples_are_found_though_shapes_repeat() {
    let shapes = [(1, 1), (2, 4), (4, 2), (6, 6), (3, 8), (8, 3), (5, 1), (1, 5), (9, 9)];
    let shapes = shapes.map(|(p, w)| Shape::new(p, w));
    for truth in [paper_sync(), paper_async(), per_worker()] {
        let mut good = samples_of(&truth, &shapes);
        good.push(good[0]);
        for a in 1..9 {
            for b in a + 1..9 {
                let mut samples = good.clone();
                samples[a].steps_per_s *= 8.0;
                samples[b].steps_per_s *= 8.0;
                let found = fit_full(truth.form, &samples).unwrap();
                assert_eq!(found.outlier_rows, [a, b]);
                assert!(mean_error(&found.model, &good) < 0.05);
            }
        }
    }
}

#[test]
fn samples_of_one_shape_alone_vote_and_their_spread_is_told() {
    let form = SpeedForm::SyncGlobal { batch: 40 };
    let three = [sample(1, 1, 0.4), sample(1, 1, 0.5), sample(1, 1, 4.0)];
    let found = fit_full(form, &three).unwrap();
    assert_eq!((found.outliers, found.outlier_rows), (vec![], vec![2]));
    let rmse = found.theta_rmse_relative;
    assert!((rmse - 1.0 / 9.0).abs() < 0.01, "2 and 2.5 seconds beside 2.25: {rmse}");
    // Nothing tells which of two is right, and nothing is said of it.
    let found = fit_full(form, &[three[0], three[2]]).unwrap();
    assert_eq!((found.outliers, found.outlier_rows), (vec![], vec![]));
    assert!(found.theta_rmse_relative > 0.5);
    // Nor of two shapes that both contradict themselves, until one has a majority.
    let mut four = vec![sample(1, 1, 0.4), sample(1, 1, 4.0), sample(1, 2, 0.5), sample(1, 2, 5.0)];
    assert_eq!(fit_full(form, &four).unwrap().outlier_rows, [] as [usize; 0]);
    four.push(sample(1, 1, 0.41));
    assert_eq!(fit_full(form, &four).unwrap().outlier_rows, [1, 3]);
    // What differs by less is noise.
    let found = fit_full(form, &[sample(1, 1, 1.0), sample(1, 1, 1.9)]).unwrap();
    assert_eq!(found.outlier_rows, [] as [usize; 0]);
}

#[test]
fn speeds_out_of_range_are_called_so() {
    for speed in [1e308, 1e-308] {
        let samples = [sample(1, 1, speed), sample(1, 2, speed)];
        let error = fit(SpeedForm::SyncGlobal { batch: 40 }, &samples).unwrap_err();
        assert!(error.to_string().contains("out of range"), "{error}");
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
    let model = fit(PER_WORKER, &[sample(1, 2, 0.5)]).unwrap();
    assert!((model.work_per_s(Shape::new(1, 2)) - 32.0).abs() < 0.1);
    assert_eq!(model.theta.len(), 5);
    assert!(model.theta[1] <= 0.0);
}

/// With p = w throughout the transfer cannot be told from a constant: the model says something
/// sensible off the diagonal, and what it measured on it.
#[test]
fn samples_on_the_diagonal_are_no_trouble() {
    for truth in [paper_sync(), paper_async(), per_worker()] {
        for count in [1, 2, 3, 8] {
            let shapes: Vec<Shape> = (1..=count).map(|n| Shape::new(n, n)).collect();
            let samples = samples_of(&truth, &shapes);
            let model = fit(truth.form, &samples).unwrap();
            let error = mean_error(&model, &samples);
            assert!(error < 0.05, "{:?} with {count}: {error}", truth.form);
            let off = samples_of(&truth, &[Shape::new(count, 2 * count), Shape::new(8, 4)]);
            let error = mean_error(&model, &off);
            assert!(error < 0.6, "{:?} with {count}: {error}", truth.form);
        }
    }
}

#[test]
fn the_heavier_sample_counts_more() {
    let truth = paper_sync();
    let mut samples = samples_of(&truth, &grid(4, 4));
    for (at, sample) in samples.iter_mut().enumerate() {
        let high = at % 2 == 0;
        sample.steps_per_s *= if high { 1.2 } else { 1.0 / 1.2 };
        sample.weight = if high { 10.0 } else { 1.0 };
    }
    let theta = fit_full(truth.form, &samples).unwrap().theta;
    let model = SpeedModel::of_theta(truth.form, theta);
    let high = mean(grid(4, 4).iter().map(|s| model.steps_per_s(*s) / truth.steps_per_s(*s)));
    assert!((1.05..1.2).contains(&high), "{high}");
}

fn waving() -> (SpeedModel, Vec<SpeedSample>) {
    let truth = paper_sync();
    let mut samples = samples_of(&truth, &grid(8, 8));
    for sample in &mut samples {
        // A smooth wave that no coefficients can follow.
        let turn = f64::from(sample.shape.servers).ln() * 3.0;
        sample.steps_per_s *= (0.15 * turn.sin()).exp();
    }
    (truth, samples)
}

#[test]
fn a_residual_follows_what_theta_cannot_and_ends_with_the_samples() {
    let (truth, samples) = waving();
    let few: Vec<SpeedSample> = samples.iter().step_by(3).copied().collect();
    let found = fit_full(truth.form, &few).unwrap();
    let plain = SpeedModel::of_theta(truth.form, found.theta.clone());
    let (alone, both) = (mean_error(&plain, &samples), mean_error(&found.model, &samples));
    assert!(both < 0.5 * alone, "{both} of {alone}");
    assert!(found.model.rmse_relative < found.theta_rmse_relative);
    assert_eq!(found.model.theta, found.theta);
    // e^1.5 times 8 servers are 36, e^2.25 times 8 workers are 76.
    for far in [Shape::new(40, 4), Shape::new(2, 80), Shape::new(u32::MAX, 1)] {
        let (with, without) = (found.model.steps_per_s(far), plain.steps_per_s(far));
        assert_eq!(with.to_bits(), without.to_bits(), "{far}");
    }
    let near = Shape::new(9, 9);
    assert!((found.model.steps_per_s(near) / plain.steps_per_s(near) - 1.0).abs() > 1e-3);
}

#[test]
fn a_residual_is_a_list_of_centres_and_comes_back() {
    let (truth, samples) = waving();
    for count in [10, 64] {
        let residual = fit(truth.form, &samples[..count]).unwrap().residual.unwrap();
        let centres = Vec::from(residual.clone());
        assert!(centres.len() == count.min(32), "a factor is to be cheap: {}", centres.len());
        assert_eq!((centres[0].0, centres[0].1), (1, 1));
        assert_eq!(Residual::try_from(centres).unwrap(), residual);
    }
    for wrong in [(0, 1, 0.1), (1, 0, 0.1), (1, 1, 1e308), (1, 1, f64::NAN)] {
        assert!(Residual::try_from(vec![wrong]).is_err(), "{wrong:?}");
    }
    let many: Vec<(u32, u32, f64)> = (1..100).map(|n| (n, 1, 0.1)).collect();
    assert!(Residual::try_from(many).is_err());
    let large = Residual::try_from(vec![(1, 1, 1e4), (9, 1, -1e4)]).unwrap();
    assert!((large.factor(Shape::new(1, 1)) - 2.0).abs() < 1e-12);
    assert!((large.factor(Shape::new(9, 1)) - 0.5).abs() < 1e-12);
    let none = Residual::try_from(Vec::new()).unwrap();
    assert!((none.factor(Shape::new(1, 1)) - 1.0).abs() < 1e-12);
}

#[test]
fn the_best_shape_is_that_of_trying_all() {
    let (truth, samples) = waving();
    let fitted = fit(truth.form, &samples).unwrap();
    for model in [truth, paper_async(), per_worker(), fitted] {
        for max in [Shape::new(1, 1), Shape::new(3, 40), Shape::new(60, 60)] {
            let (best, work) = best_shape(&model, max).unwrap();
            for shape in grid(max.servers, max.workers) {
                assert!(model.work_per_s(shape) <= work, "{shape} is better than {best}");
            }
            assert!((model.work_per_s(best) - work).abs() < 1e-12);
        }
        // Far more than can be tried: no neighbour is better.
        let (best, work) = best_shape(&model, Shape::new(u32::MAX, u32::MAX)).unwrap();
        for shape in [
            Shape::new(best.servers.saturating_add(1), best.workers),
            Shape::new(best.servers, best.workers.saturating_add(1)),
            Shape::new(best.servers - 1, best.workers),
            Shape::new(best.servers, best.workers - 1),
        ] {
            assert!(model.work_per_s(shape) <= work, "{shape} is better than {best}");
        }
    }
    // Of equal ones the smallest.
    let flat =
        SpeedModel::of_theta(SpeedForm::SyncGlobal { batch: 1 }, vec![0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(best_shape(&flat, Shape::new(9, 9)), Some((Shape::new(1, 1), 1.0)));
    // Nothing known, and nothing allowed.
    let nothing = SpeedModel::of_theta(SpeedForm::Async, vec![0.0; 4]);
    assert_eq!(best_shape(&nothing, Shape::new(9, 9)), None);
    assert_eq!(best_shape(&paper_async(), Shape::new(0, 9)), None);
    let odd = SpeedModel::of_theta(SpeedForm::Async, vec![f64::NAN, 1e308, 1e308, -1.0]);
    assert_eq!(best_shape(&odd, Shape::new(9, 9)), None);
}

fn any_sample() -> impl Strategy<Value = SpeedSample> {
    let count = prop_oneof![4 => 0_u32..9, 1 => any::<u32>()];
    let number = prop_oneof![
        6 => 0.1..9.0_f64,
        1 => prop::num::f64::ANY,
        1 => prop::sample::select(vec![0.0, 1e308, 1e-308, 9.2e18, f64::NAN, f64::INFINITY]),
    ];
    (count.clone(), count, number.clone(), number).prop_map(|(p, w, steps_per_s, weight)| {
        SpeedSample { shape: Shape::new(p, w), steps_per_s, weight }
    })
}

fn forms(batch: u32) -> [SpeedForm; 3] {
    [SpeedForm::Async, SpeedForm::SyncGlobal { batch }, SpeedForm::SyncPerWorker { batch }]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_sample_makes_a_fit_panic(
        samples in proptest::collection::vec(any_sample(), 0..24),
        batch in any::<u32>(), p in any::<u32>(), w in any::<u32>(),
    ) {
        for form in forms(batch) {
            let Ok(found) = fit_full(form, &samples) else { continue };
            let model = &found.model;
            prop_assert!(model.theta.iter().all(|theta| theta.is_finite() && *theta >= 0.0));
            prop_assert_eq!(model.theta.len(), form.coefficients());
            prop_assert!(model.rmse_relative.is_finite() && found.theta_rmse_relative.is_finite());
            let plain = SpeedModel::of_theta(form, found.theta.clone());
            let shapes = samples.iter().map(|sample| sample.shape);
            for shape in shapes.chain(grid(3, 3)).chain([Shape::new(p, w)]) {
                let (with, without) = (model.steps_per_s(shape), plain.steps_per_s(shape));
                prop_assert!(with.is_finite() && with >= 0.0);
                prop_assert!(model.work_per_s(shape) >= 0.0);
                let factor = model.residual.as_ref().map_or(1.0, |r| r.factor(shape));
                prop_assert!((0.5..=2.0).contains(&factor));
                prop_assert!(with <= 2.0 * without * 1.0001 && without <= 2.0 * with * 1.0001);
            }
            for at in &found.outlier_rows {
                prop_assert!(samples[*at].shape.servers > 0);
            }
            prop_assert!(5 * found.outliers.len() <= samples.len());
        }
    }

    /// Neither the order of the samples nor the unit of time matters.
    #[test]
    fn a_fit_depends_on_what_is_measured_alone(
        noise in proptest::collection::vec(0.8..1.25_f64, 12), unit in 1e-3..1e3_f64,
    ) {
        let (truth, all) = waving();
        let mut samples: Vec<SpeedSample> = all.iter().step_by(5).take(12).copied().collect();
        for (sample, noise) in samples.iter_mut().zip(&noise) {
            sample.steps_per_s *= noise;
        }
        let model = fit(truth.form, &samples).unwrap();
        let turned: Vec<SpeedSample> = samples.iter().rev().copied().collect();
        prop_assert_eq!(&fit(truth.form, &turned).unwrap(), &model);
        for sample in &mut samples {
            sample.steps_per_s *= unit;
        }
        let scaled = fit(truth.form, &samples).unwrap();
        for shape in grid(9, 9) {
            let ratio = scaled.steps_per_s(shape) / model.steps_per_s(shape) / unit;
            prop_assert!((ratio - 1.0).abs() < 1e-4, "{} at {}", ratio, shape);
        }
    }

    /// No theta and no shape from outside gives a speed that is no number.
    #[test]
    fn speeds_are_numbers(
        theta in proptest::collection::vec(prop::num::f64::ANY, 0..7),
        centres in proptest::collection::vec((1..u32::MAX, 1..u32::MAX, -1e4..1e4_f64), 0..32),
        batch in any::<u32>(), p in any::<u32>(), w in any::<u32>(),
    ) {
        for form in forms(batch) {
            let mut model = SpeedModel::of_theta(form, theta.clone());
            model.residual = Some(Residual::try_from(centres.clone()).unwrap());
            for shape in [Shape::new(p, w), Shape::new(p % 7, w % 7)] {
                let speed = model.steps_per_s(shape);
                prop_assert!(speed.is_finite() && speed >= 0.0);
            }
            if let Some((shape, work)) = best_shape(&model, Shape::new(p % 20, w % 20)) {
                prop_assert!(shape.servers <= p % 20 && shape.workers <= w % 20 && work > 0.0);
            }
        }
    }
}
