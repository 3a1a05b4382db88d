//! Measured speeds: the paper's Figure 9 and the models of `tests/data`.

use std::collections::BTreeMap;

use model::Shape;
use scheduler::estimate::speed::{SpeedForm, SpeedModel, SpeedSample};

const FIG_09: [&str; 4] = [
    include_str!("../data/fig09a_async_vs_workers.csv"),
    include_str!("../data/fig09b_async_vs_ps.csv"),
    include_str!("../data/fig09c_sync_vs_workers.csv"),
    include_str!("../data/fig09d_sync_vs_ps.csv"),
];
const FIXED_GLOBAL: &str = include_str!("../data/speed_fixed_global_batch.csv");
const FIXED_WORKER: &str = include_str!("../data/speed_fixed_worker_batch.csv");

fn rows(csv: &str) -> impl Iterator<Item = Vec<&str>> {
    csv.lines().skip(1).filter(|line| !line.is_empty()).map(|line| line.split(',').collect())
}

fn number(text: &str) -> f64 {
    text.parse().unwrap()
}

pub(crate) fn sample(servers: u32, workers: u32, steps_per_s: f64) -> SpeedSample {
    SpeedSample { shape: Shape::new(servers, workers), steps_per_s, weight: 1.0 }
}

/// Exact samples of a model.
pub(crate) fn samples_of(model: &SpeedModel, shapes: &[Shape]) -> Vec<SpeedSample> {
    let one = |shape: &Shape| sample(shape.servers, shape.workers, model.steps_per_s(*shape));
    shapes.iter().map(one).collect()
}

/// Points of Figure 9 whose series ends in `kind`, of the panels given.
pub(crate) fn figure_9(panels: &[usize], kind: &str) -> Vec<SpeedSample> {
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

pub(crate) const FIG_09_ASYNC: (SpeedForm, [usize; 2]) = (SpeedForm::Async, [0, 1]);
pub(crate) const FIG_09_SYNC: (SpeedForm, [usize; 2]) =
    (SpeedForm::SyncGlobal { batch: 40 }, [2, 3]);

/// A model's name, its form, and its samples.
pub(crate) type Measured = (String, SpeedForm, Vec<SpeedSample>);

fn measured(csv: &str, form: fn(u32) -> SpeedForm) -> Vec<Measured> {
    let mut models: BTreeMap<&str, (SpeedForm, Vec<SpeedSample>)> = BTreeMap::new();
    for row in rows(csv) {
        let one = sample(row[3].parse().unwrap(), row[4].parse().unwrap(), number(row[6]));
        let entry = models.entry(row[0]);
        entry.or_insert_with(|| (form(row[2].parse().unwrap()), Vec::new())).1.push(one);
    }
    models.into_iter().map(|(name, (form, samples))| (name.to_owned(), form, samples)).collect()
}

pub(crate) fn fixed_global() -> Vec<Measured> {
    measured(FIXED_GLOBAL, |batch| SpeedForm::SyncGlobal { batch })
}

pub(crate) fn fixed_worker() -> Vec<Measured> {
    measured(FIXED_WORKER, |batch| SpeedForm::SyncPerWorker { batch })
}

pub(crate) fn paper_async() -> SpeedModel {
    SpeedModel::of_theta(SpeedForm::Async, vec![2.8336, 3.918, 0.0001, 0.1052])
}

/// Relative error of the speed at a sample.
pub(crate) fn error(model: &SpeedModel, sample: &SpeedSample) -> f64 {
    (model.steps_per_s(sample.shape) / sample.steps_per_s - 1.0).abs()
}

pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0.0), |(sum, n), x| (sum + x, n + 1.0));
    sum / count
}

pub(crate) fn mean_error(model: &SpeedModel, samples: &[SpeedSample]) -> f64 {
    mean(samples.iter().map(|sample| error(model, sample)))
}

pub(crate) fn median_error(model: &SpeedModel, samples: &[SpeedSample]) -> f64 {
    let mut errors: Vec<f64> = samples.iter().map(|sample| error(model, sample)).collect();
    errors.sort_by(f64::total_cmp);
    let half = errors.len() / 2;
    if errors.len() % 2 == 1 { errors[half] } else { f64::midpoint(errors[half - 1], errors[half]) }
}

/// Numbers by a fixed rule (SplitMix64).
pub(crate) struct Seeded(pub(crate) u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `count`; the bias of the remainder is far below what a test could see.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(count).unwrap()).unwrap()
    }

    /// Of mean zero and variance one, near enough to normal.
    pub(crate) fn normal(&mut self) -> f64 {
        let mut uniform = || f64::from(u32::try_from(self.next() >> 32).unwrap()) / 2_f64.powi(32);
        (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    }

    /// `count` of the samples without replacement, and the rest.
    pub(crate) fn split(
        &mut self,
        samples: &[SpeedSample],
        count: usize,
    ) -> (Vec<SpeedSample>, Vec<SpeedSample>) {
        let mut order = samples.to_vec();
        for at in 0..count {
            let other = at + self.below(order.len() - at);
            order.swap(at, other);
        }
        let rest = order.split_off(count);
        (order, rest)
    }
}
