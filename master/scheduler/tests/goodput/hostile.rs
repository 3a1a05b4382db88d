//! Numbers that no measurement gives.

use scheduler::goodput::batch::{best, candidates, fixed};
use scheduler::goodput::fit::{Observation, fit, objective};
use scheduler::goodput::{Gradient, Limits, Spread, Throughput};

const NUMBERS: [f64; 9] =
    [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308, 1e-308, 9.3e18, 1e-8];

#[test]
fn a_fit_of_anything_is_sound_or_none() {
    assert_eq!(fit(&[], None), None);
    for grad_s in NUMBERS {
        for optim_s in NUMBERS {
            for replicas in [0, 1, 2, u32::MAX] {
                let good =
                    Observation { spread: Spread::new(1, 1), local: 8, grad_s: 0.2, optim_s: 0.3 };
                let spread = Spread::new(1, replicas);
                let bad = Observation { spread, local: u32::MAX, grad_s, optim_s };
                for rows in [vec![bad], vec![good, bad], vec![bad, bad, good, good]] {
                    let Some(theta) = fit(&rows, None) else { continue };
                    assert!(objective(&theta, &rows).unwrap().is_finite(), "{theta:?} {rows:?}");
                    let last = Throughput { gamma: f64::NAN, ..theta };
                    assert!(fit(&rows, Some(&last)).is_some());
                    let last = Throughput { alpha_c: 1e308, beta_c: 1e308, gamma: -5.0, ..theta };
                    assert!(fit(&rows, Some(&last)).is_some());
                }
            }
        }
    }
}

#[test]
fn batches_of_any_limits_are_within_them() {
    let counts = [0, 1, 7, 1 << 16, u32::MAX];
    for initial in counts {
        for batch_max in counts {
            for local_min in counts {
                for local_max in counts {
                    for accumulation in [false, true] {
                        let limits =
                            Limits { initial, batch_max, local_min, local_max, accumulation };
                        for replicas in counts {
                            for batch in candidates(limits, replicas) {
                                assert!((local_min..=local_max).contains(&batch.local));
                            }
                            for total in counts {
                                let batch = fixed(&limits, replicas, total);
                                assert!(batch.is_none_or(|batch| batch.local <= local_max));
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn goodput_of_anything_is_above_nothing_or_none() {
    let limits =
        Limits { initial: 8, batch_max: 640, local_min: 1, local_max: 64, accumulation: true };
    for alpha in NUMBERS {
        for beta in NUMBERS {
            for moment in NUMBERS {
                let theta = Throughput {
                    alpha_c: alpha,
                    beta_c: beta,
                    alpha_n: beta,
                    beta_n: alpha,
                    alpha_r: moment,
                    beta_r: beta,
                    gamma: moment,
                };
                for var in NUMBERS {
                    let gradient = Gradient { sqr: moment, var };
                    let choice = best(&theta, &gradient, &limits, Spread::new(2, 4));
                    assert!(choice.is_none_or(|choice| {
                        choice.goodput.is_finite() && choice.goodput > 0.0
                    }));
                }
            }
        }
    }
}
