//! Losses that the tests of convergence share: seeded noise, known curves, read figures.

use scheduler::estimate::loss::{LossPoint, curve};

/// The same numbers everywhere (splitmix64).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    /// In [0, 1).
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        f64::from(u32::try_from(mixed >> 32).unwrap()) / f64::from(u32::MAX)
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// Evenly in the logarithm.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.uniform())
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        let place = self.uniform() * f64::from(u32::try_from(end).unwrap());
        (0..end).rev().find(|at| f64::from(u32::try_from(*at).unwrap()) <= place).unwrap()
    }

    /// A curve from 1 at step 0 to a floor of at most 0.8, most of it within `steps`.
    pub(crate) fn beta(&mut self, steps: f64) -> [f64; 3] {
        let floor = 0.8 * self.uniform();
        let start = 1.0 / (1.0 - floor);
        [start * self.between(1.0, 30.0) / steps, start, floor]
    }
}

/// How noise comes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Noise {
    /// As a share of each loss.
    Share(f64),
    /// The same for all.
    Even(f64),
}

/// One loss an epoch for steps 1 to `count`.
pub(crate) fn losses(
    beta: [f64; 3],
    count: u32,
    noise: Noise,
    chance: &mut Chance,
) -> Vec<LossPoint> {
    (1..=count)
        .map(|step| {
            let step = f64::from(step);
            let exact = curve(beta, step);
            let loss = match noise {
                Noise::Share(share) => exact * (1.0 + share * chance.normal()),
                Noise::Even(deviation) => exact + deviation * chance.normal(),
            };
            LossPoint { step, loss: loss.max(0.0) }
        })
        .collect()
}

pub(crate) fn squares(beta: [f64; 3], points: &[LossPoint]) -> f64 {
    points.iter().map(|point| (point.loss - curve(beta, point.step)).powi(2)).sum()
}

pub(crate) fn rows(csv: &str) -> impl Iterator<Item = Vec<&str>> {
    csv.lines().skip(1).filter(|line| !line.is_empty()).map(|line| line.split(',').collect())
}

pub(crate) fn number(text: &str) -> f64 {
    text.parse().unwrap()
}

/// One series of a figure, as it was read off.
pub(crate) fn series(csv: &str, name: &str) -> Vec<LossPoint> {
    rows(csv)
        .filter(|row| row[0] == name)
        .map(|row| LossPoint { step: number(row[1]), loss: number(row[2]) })
        .collect()
}

pub(crate) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found - expected).abs();
        assert!(apart <= tolerance * expected.abs().max(1e-3), "{found} for {expected}");
    }
}

/// Equal but for rounding.
pub(crate) fn is(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-12 * expected.abs().max(1.0)
}
