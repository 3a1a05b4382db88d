//! How well ten samples predict the speeds that were not sampled.
//!
//! Each number is a mean over models of the median relative error |predicted - true| / true on
//! the points not fitted, over 100 draws of ten samples without replacement.

use model::Shape;
use scheduler::estimate::speed::{SpeedForm, SpeedModel, SpeedSample, fit, fit_full, next_shapes};

use crate::speed_data::{
    FIG_09_ASYNC, FIG_09_SYNC, Measured, Seeded, figure_9, fixed_global, fixed_worker, mean,
    mean_error, median_error,
};

const DRAWS: u64 = 100;
const SAMPLES: usize = 10;

/// Of 100 draws the mean of the median errors by θ alone and by the model, and of the model's
/// mean errors.
fn drawn(form: SpeedForm, all: &[SpeedSample], seed: u64) -> [f64; 3] {
    let mut seeded = Seeded(seed);
    let mut sums = [0.0; 3];
    for _ in 0..DRAWS {
        let (few, rest) = seeded.split(all, SAMPLES);
        let found = fit_full(form, &few).unwrap();
        let theta = SpeedModel::of_theta(form, found.theta);
        sums[0] += median_error(&theta, &rest);
        sums[1] += median_error(&found.model, &rest);
        sums[2] += mean_error(&found.model, &rest);
    }
    sums.map(|sum| sum / 100.0)
}

fn over_models(models: &[Measured], seed: u64) -> [f64; 3] {
    let errors: Vec<[f64; 3]> =
        models.iter().map(|(_, form, all)| drawn(*form, all, seed)).collect();
    [0, 1, 2].map(|k| mean(errors.iter().map(|errors| errors[k])))
}

/// Ten samples where `next_shapes` asks for them, `at_once` at a time, after those of `start`;
/// the model's median and mean error on the rest.
fn asked(form: SpeedForm, all: &[SpeedSample], start: &[usize], at_once: usize) -> [f64; 2] {
    let candidates: Vec<Shape> = all.iter().map(|sample| sample.shape).collect();
    let mut rest = all.to_vec();
    let mut few: Vec<SpeedSample> = start.iter().map(|at| all[*at]).collect();
    rest.retain(|sample| !few.contains(sample));
    while few.len() < SAMPLES {
        let count = at_once.min(SAMPLES - few.len());
        for shape in next_shapes(form, &few, &candidates, count) {
            let at = rest.iter().position(|sample| sample.shape == shape).unwrap();
            few.push(rest.remove(at));
        }
    }
    let model = fit(form, &few).unwrap();
    [median_error(&model, &rest), mean_error(&model, &rest)]
}

/// Means over models, from an empty start and from some single samples.
fn asked_over_models(models: &[Measured], starts: usize, at_once: usize) -> [f64; 2] {
    let errors: Vec<[f64; 2]> = models
        .iter()
        .flat_map(|(_, form, all)| {
            let mut runs = vec![asked(*form, all, &[], at_once)];
            let start = |at: usize| [at * all.len() / starts];
            runs.extend((0..starts).map(|at| asked(*form, all, &start(at), at_once)));
            runs
        })
        .collect();
    [0, 1].map(|k| mean(errors.iter().map(|errors| errors[k])))
}

fn figure_9_models() -> [Vec<Measured>; 2] {
    [FIG_09_ASYNC, FIG_09_SYNC]
        .map(|(form, panels)| vec![("fig. 9".to_owned(), form, figure_9(&panels, "measured"))])
}

#[test]
fn ten_drawn_samples_predict_speeds_of_a_fixed_global_batch() {
    let [theta, model, _] = over_models(&fixed_global(), 1);
    assert!(theta <= 0.069, "{theta}");
    assert!(model <= 0.062, "{model}");
}

#[test]
fn ten_drawn_samples_predict_speeds_of_a_fixed_worker_batch() {
    let models = fixed_worker();
    let [theta, model, _] = over_models(&models, 1);
    assert!(theta <= 0.065 && model <= 0.065, "{theta} {model}");
    // Its two wrong rows are among the 75 that samples are drawn from.
    let (_, form, all) = models.iter().find(|(name, ..)| name == "seq2seq").unwrap();
    let [theta, model, _] = drawn(*form, all, 1);
    assert!(theta <= 0.03 && model <= 0.03, "{theta} {model}");
}

#[test]
fn ten_drawn_samples_predict_figure_9() {
    let [concurrent, together] = figure_9_models().map(|models| over_models(&models, 1));
    assert!(concurrent[0] <= 0.05 && concurrent[1] <= 0.05, "{concurrent:?}");
    assert!(together[0] <= 0.034 && together[1] <= 0.034, "{together:?}");
    // The paper prints 6.9 and 4.5 %, without saying of which mean.
    assert!(concurrent[2] <= 0.05 && together[2] <= 0.045, "{concurrent:?} {together:?}");
}

#[test]
fn ten_asked_samples_predict_better_than_drawn_ones() {
    for at_once in [1, 3, SAMPLES] {
        let starts = if at_once == 1 { 3 } else { 0 };
        let [global, _] = asked_over_models(&fixed_global(), starts, at_once);
        assert!(global <= 0.055, "{at_once} at once: {global}");
        let [worker, _] = asked_over_models(&fixed_worker(), 0, at_once);
        assert!(worker <= 0.045, "{at_once} at once: {worker}");
        let [concurrent, together] =
            figure_9_models().map(|models| asked_over_models(&models, starts, at_once));
        assert!(concurrent[0] <= 0.044 && concurrent[1] <= 0.044, "{at_once}: {concurrent:?}");
        assert!(together[0] <= 0.030, "{at_once}: {together:?}");
    }
}
