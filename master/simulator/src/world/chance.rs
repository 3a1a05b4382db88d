//! Draws from a stream.

use rand::RngExt;
use rand_pcg::Pcg64Mcg;

/// In 0 to 1, without 1.
pub(super) fn uniform(stream: &mut Pcg64Mcg) -> f64 {
    stream.random::<f64>()
}

/// Standard normal, by Box and Muller.
pub(super) fn normal(stream: &mut Pcg64Mcg) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - uniform(stream)));
    radius * libm::cos(2.0 * std::f64::consts::PI * uniform(stream))
}

/// Exponential with this mean, in whole ms, at least 1.
pub(super) fn exponential_ms(stream: &mut Pcg64Mcg, mean_s: f64) -> u64 {
    super::truth::ceil_ms(-mean_s * libm::log(1.0 - uniform(stream))).max(1)
}
